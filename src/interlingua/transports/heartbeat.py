"""Checks whether a silent server is still there. A server that hangs does not say so: it has to be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import httpx2

_PULSE = 20.0  # seconds in which nothing was heard of a server, after which it is asked whether it is there
_SILENCE = 60.0  # seconds of silence after which one that does not say so is gone
_REACHED_WITHIN = 10.0  # seconds for an answer
UNANSWERED = (502, 503, 504)  # sent by a proxy for a missing server, or by a full server


async def answers(asked: AbstractAsyncContextManager[httpx2.Response], *, whole: bool = False) -> None:
    """Sends a request, and raises ConnectionError if no server answers it. A refusal is an answer: a server that
    refuses is awake; the statuses in UNANSWERED are none. `whole`: reads the answer to its end, if that comes soon;
    else leaves it."""
    status: int | None = None
    try:
        async with asyncio.timeout(_REACHED_WITHIN), asked as answer:
            status = answer.status_code
            if whole:
                async for _ in answer.aiter_bytes():
                    pass
    except TimeoutError as error:
        if status is None:
            raise ConnectionError("it does not answer") from error
    except (httpx2.HTTPError, OSError) as error:
        if status is None:
            raise ConnectionError(text_of(error)) from error
    if status in UNANSWERED:
        raise ConnectionError(f"it answered {status}")


class Pulse:
    """Reports a server that hangs as lost. Its agents may be quiet for as long as they like. An Interlingua server
    sends something every 15 seconds on every open stream, so it need not be asked."""

    def __init__(self, ask: Callable[[], Awaitable[None]], lost: Callable[[str], None]) -> None:
        self._ask = ask  # raises ConnectionError if no server answers
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._feeling: asyncio.Task[None] | None = None

    def heard(self) -> None:
        """Notes that something came from the server, of whatever kind."""
        self._heard = self._loop.time()

    def begin(self) -> None:
        if self._feeling is None:
            self.heard()
            self._feeling = self._loop.create_task(self._feel())

    async def end(self) -> None:
        if self._feeling is not None:
            self._feeling.cancel()
            await asyncio.gather(self._feeling, return_exceptions=True)

    async def _feel(self) -> None:
        while True:
            quiet = self._loop.time() - self._heard
            if quiet < _PULSE:
                await asyncio.sleep(_PULSE - quiet)
                continue
            try:
                await self._ask()
            except ConnectionError as error:
                if self._loop.time() - self._heard >= _SILENCE:
                    self._lost(text_of(error))
                    return
                await asyncio.sleep(min(1.0, _PULSE))
            else:
                self.heard()


def text_of(error: Exception) -> str:
    return str(error) or type(error).__name__

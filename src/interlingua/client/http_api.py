"""Calls the control API: one method a request, with retries, typed answers and errors of our tree."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

import httpx2
import msgspec

from ..control import wire
from ..model.errors import ErrorInfo, InterlinguaError, Unavailable, from_info
from ..transports.http import sse

T = TypeVar("T")

_BUSY = (429, 502, 503, 504)
_LONGEST_PAUSE = 5.0
_PIECE = "text/event-stream"


class StreamBroken(Unavailable):
    """A stream ended in the middle, and could not be taken up again."""


class HttpApi:
    """`retries`: how often a request is repeated that may be repeated, where the server is busy or away. `pause`: the
    seconds before the first of them; the pauses grow."""

    def __init__(self, http: httpx2.AsyncClient, *, retries: int, pause: float = 0.1) -> None:
        self.http = http
        self.retries = retries
        self._first_pause = pause

    async def get(self, path: str, type_: type[T], query: Mapping[str, Any] | None = None) -> T:
        return await self.call("GET", path, type_, query=query)

    async def call(
        self, method: str, path: str, type_: type[T] | None, body: Any = None, *,
        query: Mapping[str, Any] | None = None, repeat: bool = True,
    ) -> T:  # fmt: skip
        """`repeat`: to send it twice does no harm."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if content is None else {"content-type": "application/json"}
        attempt = 0
        while True:
            try:
                answer = await self.http.request(
                    method, wire.PREFIX + path, params=_plain(query), content=content, headers=headers
                )
            except httpx2.TransportError as error:
                if not repeat or attempt >= self.retries:
                    raise _away(self.http, error) from error
                await self._pause(attempt, None)
            else:
                if answer.status_code not in _BUSY or not repeat or attempt >= self.retries:
                    return _read(answer, type_)
                await self._pause(attempt, answer.headers.get("retry-after"))
            attempt += 1

    async def stream(
        self, path: str, after: int, query: Mapping[str, Any] | None = None
    ) -> AsyncIterator[sse.Received]:
        """Yields the events of a stream, and takes it up again at its cursor where the connection is lost. Ends where
        the server ends it."""
        cursor, attempt = str(after), 0
        while True:
            headers = {"accept": _PIECE, "last-event-id": cursor, "cache-control": "no-cache"}
            try:
                async with self.http.stream(
                    "GET", wire.PREFIX + path, params=_plain(query), headers=headers, timeout=_patient(self.http)
                ) as answer:
                    if answer.status_code in _BUSY and attempt < self.retries:
                        raise httpx2.ReadError(f"the server answered {answer.status_code}")
                    if answer.status_code != 200:
                        await answer.aread()
                        _read(answer, None)
                    async for event in sse.read(answer.aiter_raw()):
                        attempt = 0
                        if event.event in ("end", "deleted"):
                            yield event
                            return
                        cursor = event.id or cursor
                        yield event
                raise httpx2.ReadError("the stream ended in the middle")
            except httpx2.TransportError as error:
                if attempt >= self.retries:
                    raise _away(self.http, error) from error
                await self._pause(attempt, None)
                attempt += 1

    async def _pause(self, attempt: int, after: str | None) -> None:
        pause = min(_LONGEST_PAUSE, self._first_pause * 2**attempt) * random.uniform(0.5, 1.0)
        if after is not None and after.isdecimal():
            pause = min(float(after), _LONGEST_PAUSE * 6)
        await asyncio.sleep(pause)


def _plain(query: Mapping[str, Any] | None) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in (query or {}).items():
        if value is None or value == [] or value == {}:
            continue
        if name == "metadata":
            plain |= {f"metadata.{key}": member for key, member in value.items()}
        else:
            plain[name] = msgspec.to_builtins(value)
    return plain


def _read(answer: httpx2.Response, type_: type[T] | None) -> T:
    if answer.status_code >= 400:
        raise _error(answer)
    if type_ is None:
        return None  # type: ignore[return-value]
    try:
        return msgspec.json.decode(answer.content, type=type_)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"{answer.url} answered something else: {error}") from error


def _error(answer: httpx2.Response) -> InterlinguaError:
    try:
        problem = msgspec.json.decode(answer.content, type=wire.Failure).error
    except msgspec.MsgspecError:
        return Unavailable(f"{answer.url} answered {answer.status_code}: {answer.text[:200]}")
    error = from_info(ErrorInfo(problem.code, problem.message, problem.transient, problem.details))
    if problem.path and hasattr(error, "path"):
        error.path = problem.path
    return error


def _away(http: httpx2.AsyncClient, error: Exception) -> Unavailable:
    return Unavailable(f"{http.base_url} does not answer: {str(error) or type(error).__name__}")


def _patient(http: httpx2.AsyncClient) -> httpx2.Timeout:
    """Streams may be silent for long: the server sends a comment now and then."""
    return httpx2.Timeout(http.timeout.connect, read=60.0)

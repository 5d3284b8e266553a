"""Reads the events of a node from the moment on which the stream opens: `/stream`, or that of one task."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import msgspec

from interlingua.transports.http import sse
from interlingua.transports.raw_client.http import trusted

from ..base import Gone, Subject, shown


class Event(msgspec.Struct):
    """An event as it came. `body` is empty if its data are no JSON object."""

    name: str | None
    data: str
    body: dict[str, Any]

    def __str__(self) -> str:
        return shown(self.data, 160)


class Feed:
    def __init__(self, subject: Subject, status: int, media_type: str) -> None:
        self._subject = subject
        self.status = status
        self.media_type = media_type
        self.events: list[Event] = []
        self.ended = False
        self._patience = subject.patience
        self._news = asyncio.Condition()

    @property
    def streams(self) -> bool:
        return self.status == 200 and self.media_type == "text/event-stream"

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, subject: Subject, url: str) -> AsyncIterator[Feed]:
        """Opens the stream. The feed has all events from then on."""
        # A stream may be silent for as long as it likes, so that reading has no time of its own.
        timeout = httpx2.Timeout(subject.patience, read=None)
        headers = {"accept": "text/event-stream", **subject.headers}
        async with httpx2.AsyncClient(timeout=timeout, trust_env=False, verify=trusted(url)) as client:
            try:
                async with asyncio.timeout(subject.patience):
                    answer = await client.send(client.build_request("GET", url, headers=headers), stream=True)
            except TimeoutError:
                raise Gone(f"GET {url} was not answered within {subject.patience:g} s") from None
            except httpx2.HTTPError as error:
                raise Gone(f"GET {url}: {type(error).__name__}: {error}") from error
            kind = str(answer.headers.get("content-type", "")).partition(";")[0].strip().lower()
            feed = cls(subject, answer.status_code, kind)
            reading = asyncio.get_running_loop().create_task(feed._read(answer))
            try:
                if feed.streams:
                    await feed._greeted()
                yield feed
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                await answer.aclose()

    async def _read(self, answer: httpx2.Response) -> None:
        try:
            async for event in sse.read(answer.aiter_bytes()):
                try:
                    body = json.loads(event.data)
                except ValueError:
                    body = None
                async with self._news:
                    self.events.append(Event(event.event, event.data, body if isinstance(body, dict) else {}))
                    self._news.notify_all()
        except (httpx2.HTTPError, ValueError):
            pass
        finally:
            async with self._news:
                self.ended = True
                self._news.notify_all()

    async def _greeted(self) -> None:
        """Waits a moment for the first event. Some nodes announce that the stream is ready; others are ready a moment
        after their headers, without a word."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._subject.quiet), self._news:
                while not self.events and not self.ended:
                    await self._news.wait()

    def find(self, wanted: Callable[[Event], bool], start: int = 0) -> Event | None:
        return next((event for event in self.events[start:] if wanted(event)), None)

    async def until(self, wanted: Callable[[Event], bool], start: int = 0) -> Event | None:
        """Returns the first wanted event from `start` on; None if it does not come in time. A stream on which a wait
        was in vain once gets less time from then on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience), self._news:
                while (found := self.find(wanted, start)) is None and not self.ended:
                    await self._news.wait()
                return found
        self._patience = self._subject.quiet
        return None

"""Speaks JSON-RPC for checks: connections that carry any message, right or wrong, and clients that ask over them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from interlingua.transports.raw_client import Answer, Heard, Pipes

from ..base import Broken, Subject, expect, member, shown

Message = dict[str, Any]


class Link(Heard):
    """A connection to the server."""

    kind: str
    listener: Callable[[Message], None] | None = None  # hears every message as it comes
    stuck = False  # a request was not answered in time: checks that need an answer take another link

    def came(self, message: Message) -> None:
        if self.listener is not None:
            self.listener(message)

    async def put(self, message: Any, headers: dict[str, str] | None = None) -> None:
        """Sends a message. `headers` are those that it needs over HTTP."""
        await self.put_bytes(json.dumps(message).encode())

    async def put_bytes(self, data: bytes) -> Answer | None:
        """Sends a message as it is, and adds only the end mark of this wire. Over HTTP, may return the answer to the
        POST."""
        raise NotImplementedError

    def leave(self) -> None:
        """Makes the close silent: the client goes without a word."""

    async def close(self) -> None:
        raise NotImplementedError


class StdioLink(Pipes, Link):
    kind = "stdio"

    async def put_bytes(self, data: bytes) -> Answer | None:
        self.send_bytes(data + b"\n")
        return None


class Caller:
    """The part of a client that all protocols over JSON-RPC share: a connection, and what was heard on it."""

    def __init__(self, link: Link, subject: Subject) -> None:
        self.link = link
        self.subject = subject
        self.told: Message = {}  # the result of the handshake
        self.unasked: list[Message] = []  # requests for what this client has not said that it can
        self._tasks: set[asyncio.Task[None]] = set()
        link.listener = self._came

    @property
    def now(self) -> int:
        """The number of messages so far: the place at which to look for the next ones."""
        return len(self.link.messages)

    def _came(self, message: Message) -> None:
        """Handles a message that came: overridden by clients that answer requests."""

    def _later(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def judged(answer: Message, what: str) -> Message:
    """An answer that has a result or an error, and not both."""
    if ("result" in answer) == ("error" in answer):
        raise Broken(f"the answer to {what} has not exactly one of result and error: {shown(answer)}")
    if "error" in answer:
        member(answer, "error.code", int, f"the answer to {what}")
        member(answer, "error.message", str, f"the answer to {what}")
    return answer


def result_of(answer: Message, what: str) -> Any:
    """The result of an answer, which must be none with an error."""
    if "error" in answer:
        raise Broken(f"{what} was answered with an error: {shown(answer['error'])}")
    return answer["result"]


def only_one(heard: Heard) -> None:
    """Raises Broken if an answer had both a result and an error."""
    said = shown(heard.doubled[0].decode(errors="replace").strip()) if heard.doubled else ""
    expect(
        not said, f"an answer has both result and error, of which JSON-RPC 2.0 allows one, also if it is null: {said}"
    )

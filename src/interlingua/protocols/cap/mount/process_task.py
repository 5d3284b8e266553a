"""A task in a process of its own, which speaks over its pipes. It is lost with the process."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec

from ....model import json_values
from ....model.errors import InterlinguaError, InvalidRequest, RunLost, Unavailable
from ....model.trace_context import Carrier
from ....mounts.settings import ORDINARY, Access
from ....security.redaction import redact_text
from ....transports import json_text, wire_tap
from ....transports.process.child_process import Child, QuietChannel, environment
from .. import wire
from .remote_task import ANSWERS, PIECES, Update, decoded, log

STAYS = 2.0
"""Seconds for which a program that has nothing to do is watched: one that is broken has ended by then."""
_GONE_WITHIN = 10.0


class _Lines(QuietChannel):
    """Skips lines that are no JSON objects, because a program may print."""

    def _is_message(self, frame: bytes) -> bool:
        if frame.lstrip()[:1] == b"{":
            return True
        if frame.strip():
            self.noise += 1
            self.first_noise = self.first_noise or self._clean(frame[:500].decode(errors="replace"))[:200]
        return False


class _Program(Child):
    def __init__(self, process: Any, pipes: Any, stderr: Any, guard: Any, clean: Any, log: Any) -> None:
        super().__init__(process, pipes, stderr, guard, clean, log)
        self.channel = _Lines(pipes, clean)


async def _started(command: list[str], access: Access) -> Child:
    folder, env = access.directory or str(Path.cwd()), {**environment(os.environ), **access.env}
    return await _Program.start(command, folder, env, clean=redact_text, log=log)


async def try_out(command: list[str], name: str, access: Access = ORDINARY) -> None:
    """Starts a program and stops it again. Raises where it cannot be started, or ends before it gets any message.

    A test can show no more: a program that waits for a task has nothing to say, and need not know any other message.
    """
    child = await _started(command, access)
    try:
        async with asyncio.timeout(STAYS):
            while await child.channel.receive():
                pass  # it may print
        raise Unavailable(f"{name} ended at once: {await child.how_it_ended()}", transient=False)
    except TimeoutError:
        pass  # it waits
    finally:
        await child.end()


class ProcessTask:
    """A task in a process of its own."""

    again = False
    cursor: str | None = None

    def __init__(self, command: list[str], name: str, access: Access = ORDINARY) -> None:
        self.name = name
        self._access = access
        self.noise = (0, "")
        self._command = command
        self._child: Child | None = None
        self.begun = asyncio.Event()
        self._frames: list[bytes] = []
        self._settled: set[str] = set()  # questions that need no answer any more
        self._news = asyncio.Event()

    async def begin(self, notice: wire.DelegationNotice, trace: Carrier) -> None:
        self._child = await _started(self._command, self._access)
        # A line has no headers: the metadata is where its sender says more of it.
        await self.send(msgspec.structs.replace(notice, metadata={**(notice.metadata or {}), **trace}))
        self.begun.set()

    async def next(self) -> Update:
        assert self._child is not None
        while True:
            if not self._frames:
                self._frames = await self._child.channel.receive()
                self.noise = (self._child.channel.noise, self._child.channel.first_noise)
                if not self._frames:
                    why = await self._child.how_it_ended()
                    raise RunLost(f"{self.name} is gone, in the middle of a task: {why}")
            frame = self._frames.pop(0)
            _tapped(frame, sent=False)
            seen = json_text.members(frame, "type")
            try:
                told = decoded(frame, pieces=seen.get("type") in PIECES)
            except InvalidRequest as error:
                return "broken", {"error": error.message, "answers": seen.get("type") in ANSWERS}
            kind = told.get("type")
            return (kind if kind in ("status", "delta", "reset", "activity") else "message"), told

    async def send(self, message: wire.AnyMessage) -> None:
        """Sends a message. The program does not report if it took it."""
        if self._child is not None:
            frame = json_values.encode(wire.write(message))
            _tapped(frame, sent=True)
            self._child.channel.send(frame)
            await self._child.channel.drain()

    async def cancel(self, back: wire.ErrorResponse) -> None:
        with contextlib.suppress(InterlinguaError):
            await self.send(back)

    async def moved_on(self, question: Any) -> None:
        while question not in self._settled:
            self._news.clear()
            await self._news.wait()

    def settled(self, question: str) -> None:
        self._settled.add(question)
        self._news.set()

    async def close(self) -> None:
        if self._child is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GONE_WITHIN):
                    await self._child.end()


def _tapped(frame: bytes, *, sent: bool) -> None:
    if wire_tap.current is not None:
        (wire_tap.current.sent if sent else wire_tap.current.received)(frame)

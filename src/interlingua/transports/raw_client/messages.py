"""Keeps the JSON messages that come over a wire, and waits for those that are wanted."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

from .endpoint import Gone, shown


class Heard:
    """Collects what comes over a wire that carries JSON messages: every line (or frame) in `lines`, its value in
    `frames`, every JSON object in `messages`, with arrays unpacked. `noise` are lines that hold something else;
    `doubled` are answers with both a result and an error, of which the null one was removed."""

    def __init__(self, patience: float, quiet: float) -> None:
        self._patience = patience
        self.quiet = quiet
        self.lines: list[bytes] = []
        self.frames: list[Any] = []
        self.messages: list[dict[str, Any]] = []
        self.noise: list[bytes] = []  # lines that are no JSON objects or arrays
        self.doubled: list[bytes] = []
        self.ended = False
        self._news = asyncio.Condition()

    async def take(self, line: bytes) -> None:
        """Takes a line or frame that came."""
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        async with self._news:
            self.lines.append(line)
            self.frames.append(value)
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, dict):
                    if _undoubled(one):
                        self.doubled.append(line)
                    self.messages.append(one)
                    self.came(one)
                else:
                    self.noise.append(line)
            self._news.notify_all()

    def came(self, message: dict[str, Any]) -> None:
        """Handles a message that was added to `messages`: overridden by classes that answer at once."""

    async def end(self) -> None:
        """Notes that nothing more will come."""
        async with self._news:
            self.ended = True
            self._news.notify_all()

    async def until(self, wanted: Callable[[dict[str, Any]], bool], what: str, start: int = 0) -> dict[str, Any]:
        """The first message from `start` on that is wanted; `what` is it in words."""
        at = start
        async with self._news:
            try:
                async with asyncio.timeout(self._patience):
                    while True:
                        while at < len(self.messages):
                            if wanted(self.messages[at]):
                                return self.messages[at]
                            at += 1
                        if self.ended:
                            raise Gone(f"{self.gone()} before {what} came{self._last()}")
                        await self._news.wait()
            except TimeoutError:
                raise Gone(f"{what} did not come within {self._patience:g} s{self._last()}") from None

    async def silent(
        self, wanted: Callable[[dict[str, Any]], bool], start: int = 0, within: float | None = None
    ) -> bool:  # fmt: skip
        """Returns whether no such message comes for a moment, or `within` so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with self._news, asyncio.timeout(self.quiet if within is None else within):
                while not self.ended:
                    if any(wanted(message) for message in self.messages[start:]):
                        return False
                    await self._news.wait()
        return not any(wanted(message) for message in self.messages[start:])

    def gone(self) -> str:
        """Returns the message for a wire that has ended."""
        return "the connection ended"

    def _last(self) -> str:
        return f"; the last line: {shown(self.lines[-1].decode(errors='replace').strip(), 120)}" if self.lines else ""


def _undoubled(message: dict[str, Any]) -> bool:
    """Removes the null from an answer that has both a result and an error, as JSON-RPC 1.0 had them: the other one
    counts. Version 2.0 forbids this, but that is one mistake, and not one for every answer."""
    if not {"jsonrpc", "result", "error"} <= set(message) or None not in (message["result"], message["error"]):
        return False
    del message["error" if message["error"] is None else "result"]
    return True

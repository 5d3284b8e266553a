"""What the tests of the inbox share: agents that ask, however deep, and waiting for what the program's log says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec

import interlingua as il
from interlingua.engine.engine import Engine

from .engines import PATIENT, QUICK

__all__ = ["PATIENT", "QUICK", "LogLines", "asker", "middle", "reading", "served", "top", "with_settings"]


@il.agent(asks=[il.Confirm])
async def asker(ctx: il.Context[None, None], text: str = "it") -> str:
    """Asks before it does anything."""
    await ctx.thought(f"shall I do {text}?")
    verdict = await ctx.ask(il.Confirm(f"Do {text}?"))
    return f"{verdict.approved} {verdict.reason}"


@il.agent
async def middle(ctx: il.Context[None, None], text: str = "it") -> str:
    """Has somebody else ask."""
    return str(await ctx.call(asker, text=text))


@il.agent
async def top(ctx: il.Context[None, None], text: str = "it") -> str:
    """Has somebody have somebody else ask."""
    return str(await ctx.call(middle, text=text))


def with_settings(settings: il.Settings, **changes: Any) -> il.Settings:
    return msgspec.structs.replace(settings, **changes)


@contextlib.asynccontextmanager
async def served(
    store: Path | str, *agents: il.Agent[..., Any], settings: il.Settings = QUICK
) -> AsyncIterator[Engine]:
    """An engine of a process that serves: it reminds."""
    engine = Engine(store, agents=agents, settings=settings)
    engine.reminders.serves = True
    async with engine:
        yield engine


class LogLines(logging.Handler):
    """What the program's log says, to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self._loop.call_soon_threadsafe(self._news.set)

    def said(self, text: str) -> list[dict[str, Any]]:
        """The fields of the lines with this text in them."""
        return [vars(record).get("fields", {}) for record in self.records if text in record.getMessage()]

    async def until(self, holds: Callable[[LogLines], Any]) -> None:
        async with asyncio.timeout(20):
            while not holds(self):
                self._news.clear()
                await self._news.wait()


@contextlib.contextmanager
def reading(name: str) -> Any:
    """The lines of one logger."""
    lines, logger = LogLines(), logging.getLogger(name)
    before = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(lines)
        logger.setLevel(before)

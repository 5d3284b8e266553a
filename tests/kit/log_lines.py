"""Waiting for what the program's log says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any


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

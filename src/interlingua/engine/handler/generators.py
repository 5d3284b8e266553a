"""Handlers and steps that are generators: each yield extends the output."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

from ...model.delta import Joiner
from ...model.events import OutputDelta
from ..log import run_log
from .output import Output
from .run_data import RunData
from .threads import HandlerThreads
from .waits import Waits


async def drain(
    data: RunData, output: Output, generator: AsyncIterator[Any], step: str | None = None, joined: Joiner | None = None
) -> None:
    """Emit what an asynchronous generator yields. `joined` gathers it."""
    try:
        async for item in generator:
            delta = output.delta_of(item)
            if joined is not None:
                joined.add(delta)
            output.emit(OutputDelta(delta, step))
            await data.log.breathe()
    finally:
        close = getattr(generator, "aclose", None)
        if close is not None:
            await close()


class ThreadDrain:
    """Emits what a generator yields in the agent's thread."""

    def __init__(
        self, data: RunData, waits: Waits, output: Output, threads: HandlerThreads, step: str | None = None,
        joined: Joiner | None = None,
    ) -> None:  # fmt: skip
        """`joined` gathers what the generator yields."""
        self._data = data
        self._waits = waits
        self._output = output
        self._threads = threads
        self._step = step
        self._joined = joined
        self._pending: list[Any] = []
        self._room = threading.Semaphore(256)
        self._failure: list[BaseException] = []

    def run(self, generator: Iterator[Any]) -> Any:
        """Drain a generator, and return what it returns."""
        data, waits, threads = self._data, self._waits, self._threads
        weight = 0
        while True:
            try:
                item = next(generator)
            except StopIteration as stop:
                threads.block(_nothing())  # everything that was yielded before has been emitted then
                if self._failure:
                    raise self._failure[0] from None
                return stop.value
            if self._failure or waits.over or waits.leaving is not None:
                getattr(generator, "close", lambda: None)()
                threads.block(_nothing())  # raises where the run is being left
                raise self._failure[0]
            delta = self._output.delta_of(item)
            if self._joined is not None:
                self._joined.add(delta)
            weight += run_log.weight(delta)
            if weight > data.log.recent.most_bytes:
                threads.block(data.log.breathe())  # everything that was yielded before has been emitted then
                weight = 0
            if not self._room.acquire(blocking=False):
                threads.block(data.log.flush())
                self._room.acquire()
            self._pending.append(delta)
            waits.loop.call_soon_threadsafe(self._emit)

    def _emit(self) -> None:
        while self._pending:
            item = self._pending.pop(0)
            self._room.release()
            try:
                self._output.emit(OutputDelta(item, self._step))
            except BaseException as error:
                self._failure.append(error)


async def _nothing() -> None:
    pass

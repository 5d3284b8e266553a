"""Reads the log of a run for a reader that has a part of it: the earlier events to build on, then the new ones."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from ..engine.engine import Engine
from ..model.delta import ABSENT
from ..model.errors import RunNotFound
from ..model.events import Event, RunFinished, RunRestarted

__all__ = ["feed_all", "follow_log", "read_back", "read_on"]

U = TypeVar("U")
Feed = Callable[[Event, Any], list[U]]
"""Takes an event and returns its updates. The second argument is what remains of the output where the run was
restarted, and else ABSENT."""
Prepare = Callable[[Sequence[Event]], Awaitable[None]]
"""Looks up what a projection needs to know of some events, before it is fed with them."""

_PAGE_BYTES = 256 * 1024  # of the log, read at once


async def follow_log(
    engine: Engine, run: str, feed: Feed[U], after: int = 0, *, wait: float | None = None,
    prepare: Prepare | None = None,
) -> AsyncGenerator[list[U]]:  # fmt: skip
    """Yields the updates of a whole log: of the events up to `after`, and then of all that come, until the run ends.

    Several updates come as one list, which the reader may empty. An empty list means that nothing came for as long as
    `wait` says. Raises RunNotFound where the run is deleted before its end.
    """
    async with contextlib.aclosing(_batches(engine, run, after, wait)) as batches:
        async for batch in batches:
            if prepare is not None:
                await prepare(batch)
            updates, idle = await feed_all(engine, feed, batch), not batch
            del batch  # a slow reader holds only what it is given
            if updates or idle:
                yield updates


async def _batches(engine: Engine, run: str, after: int, wait: float | None) -> AsyncGenerator[list[Event]]:
    async for batch in read_back(engine, run, after):
        yield batch
    async with contextlib.aclosing(read_on(engine, run, after, lambda: wait)) as batches:
        async for batch in batches:
            given = [batch]
            del batch
            yield given.pop()


async def read_back(engine: Engine, run: str, upto: int) -> AsyncIterator[list[Event]]:
    """Yields the events up to `upto`, uncomposed: a composed event could begin before a place and end after it."""
    cursor = 0
    while cursor < upto and (page := await engine.runs.page(run, cursor, upto - cursor, _PAGE_BYTES)):
        cursor = page[-1].seq
        given = [[event for event in page if event.seq <= upto]]
        del page
        yield given.pop()


async def read_on(
    engine: Engine, run: str, after: int, wait: Callable[[], float | None]
) -> AsyncGenerator[list[Event]]:
    """Yields the events after `after` as they come, until the run ends; an empty list where none came for as long as
    `wait` says. Raises RunNotFound where the run is deleted before its end."""
    reader, has_end = engine.runs.reader(run, after), False
    try:
        while not reader.over:
            given = [await reader.read(wait())]
            has_end = bool(given[0]) and isinstance(given[0][-1].body, RunFinished)
            if given[0] or not reader.over:
                yield given.pop()
    finally:
        reader.close()
    if not has_end and not await engine.runs.exists(run):
        raise RunNotFound(f"there is no run {run}")


async def feed_all(engine: Engine, feed: Feed[U], events: Sequence[Event]) -> list[U]:
    updates: list[U] = []
    for event in events:
        restarted = isinstance(event.body, RunRestarted)
        updates += feed(event, await engine.runs.kept_output(event) if restarted else ABSENT)
    return updates

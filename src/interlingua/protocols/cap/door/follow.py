"""Reads the log of a task as it grows, as updates of its conversation.

The stream of the HTTP door and the lines of stdio both use it. It ends with the task, or with the part of it that is
read.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence

from ....engine.engine import Engine
from ....model.delta import ABSENT
from ....model.errors import QuestionNotFound, RunNotFound
from ....model.events import Event, RunRestarted, Said
from ....model.run import Question
from ....model.team.manifest import USER
from ..projection import START, Conversation, Place, Update, View

_PAGE_BYTES = 256 * 1024  # of the log, read at once
_SETTLED = 1.0
"""Seconds without news after which the end of a part of a task is shown: the messages of its participants come to the
log of the whole a moment later than its end."""


async def snapshot(engine: Engine, run: str, view: View) -> list[Update]:
    """Returns all updates so far."""
    conversation, found = Conversation(run, view), list[Update]()
    async for event in engine.runs.events(run, follow=False):
        found += await _fed(engine, conversation, event)
    return found


async def follow(
    engine: Engine, run: str, view: View, after: Place = START, *, keep_alive: float = 15.0, part: str | None = None
) -> AsyncIterator[list[Update]]:
    """Yields the updates after a cursor, as they come. An empty list means that nothing came for so many seconds. The
    reader may empty a list that it takes.

    `part` is the run of the part that is read, where that is not the whole task.
    """
    conversation = Conversation(run, view)
    # The output that the reader has is put together first, uncomposed: a composed event could begin before its cursor.
    cursor = 0
    while cursor < after[0] and (batch := await engine.runs.page(run, cursor, after[0] - cursor, _PAGE_BYTES)):
        found = await _updates(engine, conversation, [event for event in batch if event.seq <= after[0]])
        if missed := [update for update in found if update.place > after]:
            yield missed
        cursor = batch[-1].seq
    reader = engine.runs.reader(run, after=after[0])
    loop, until = asyncio.get_running_loop(), math.inf
    try:
        while not reader.over and loop.time() < until:
            try:
                batch = await reader.read(min(_SETTLED, keep_alive) if part is not None else keep_alive)
            except RunNotFound:  # deleted while it was read
                return
            found = await _updates(engine, conversation, batch)
            if found or not (batch or reader.over):
                del batch  # a slow reader holds only the piece that it is given
                yield found
            if part is not None and until == math.inf and await _ended(engine, part):
                until = loop.time() + _SETTLED
    finally:
        reader.close()


async def _updates(engine: Engine, conversation: Conversation, events: Sequence[Event]) -> list[Update]:
    return [update for event in events for update in await _fed(engine, conversation, event)]


async def _fed(engine: Engine, conversation: Conversation, event: Event) -> list[Update]:
    body = event.body
    asked: Question | None = None
    if isinstance(body, Said) and body.recipient == USER and isinstance(body.message.metadata.get("question"), str):
        try:
            asked = (await engine.questions.get(body.message.metadata["question"])).question
        except QuestionNotFound:
            asked = None
    output = await engine.runs.kept_output(event) if isinstance(body, RunRestarted) else ABSENT
    return conversation.feed(event, asked, output)


async def _ended(engine: Engine, run: str) -> bool:
    row = await engine.runs.find_row(run)
    return row is None or row.status.final


__all__ = ["follow", "snapshot"]

"""Reads the log of a task as it grows, as updates of its conversation.

The stream of the HTTP door and the lines of stdio both use it. It ends with the task, or with the part of it that is
read.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Sequence

from ....doors.follow_log import feed_all, follow_log
from ....engine.engine import Engine
from ....model.errors import QuestionNotFound, RunNotFound
from ....model.events import Event, Said
from ....model.run import Question
from ....model.team.manifest import USER
from ..projection import START, Conversation, Place, Update, View

_SETTLED = 1.0
"""Seconds without news after which the end of a part of a task is shown: the messages of its participants come to the
log of the whole a moment later than its end."""


async def snapshot(engine: Engine, run: str, view: View) -> list[Update]:
    """Returns all updates so far."""
    conversation, updates = Conversation(run, view), list[Update]()
    async for event in engine.runs.events(run, follow=False):
        conversation.questions = await _questions(engine, [event])
        updates += await feed_all(engine, conversation.feed, [event])
    return updates


async def follow(
    engine: Engine, run: str, view: View, after: Place = START, *, part: str | None = None
) -> AsyncGenerator[list[Update]]:
    """Yields the updates after a cursor, as they come. The reader may empty a list that it takes.

    `part` is the run of the part that is read, where that is not the whole task.
    """
    conversation = Conversation(run, view)

    async def prepare(events: Sequence[Event]) -> None:
        conversation.questions = await _questions(engine, events)

    loop, until = asyncio.get_running_loop(), math.inf
    wait = None if part is None else _SETTLED
    updates = follow_log(engine, run, conversation.feed, after[0], wait=wait, prepare=prepare)
    with contextlib.suppress(RunNotFound):  # deleted while it was read
        async with contextlib.aclosing(updates) as log:
            async for batch in log:
                fresh = [update for update in batch if update.place > after]
                del batch  # a slow reader holds only the piece that it is given
                if fresh:
                    yield fresh
                if part is not None and until == math.inf and await _has_ended(engine, part):
                    until = loop.time() + _SETTLED
                if loop.time() >= until:
                    return


async def _questions(engine: Engine, events: Sequence[Event]) -> dict[str, Question]:
    """Returns the questions that messages to the user ask, by their ids."""
    questions: dict[str, Question] = {}
    for event in events:
        body = event.body
        if isinstance(body, Said) and body.recipient == USER:
            id_ = body.message.metadata.get("question")
            if isinstance(id_, str):
                with contextlib.suppress(QuestionNotFound):
                    questions[id_] = (await engine.questions.get(id_)).question
    return questions


async def _has_ended(engine: Engine, run: str) -> bool:
    row = await engine.runs.find_row(run)
    return row is None or row.status.final


__all__ = ["follow", "snapshot"]

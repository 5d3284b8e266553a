"""The inbox: what all runs ask, and answering it. A question is one record, however deep the run is that asks it.

The first valid answer wins, and everybody who sees the question reads of it in the logs that it shows on. Nothing here
knows how a door shows a question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...model import json_values
from ...model.errors import Denied, InvalidAnswer, QuestionNotFound, TooLarge
from ...model.filters import QuestionFilter
from ...model.run import OWNER, Caller, Question, QuestionRecord
from ...model.schemas import Validator
from ...store.ports import Store
from ..ids import now

if TYPE_CHECKING:
    from ..runs.worker import Worker
    from ..settings import Settings


class Answering:
    """The part of the engine that is about questions."""

    store: Store
    settings: Settings
    worker: Worker

    async def questions(
        self, *, run: str | None = None, caller: str | None = None, state: str | None = "open", limit: int = 100
    ) -> list[Question]:
        """Open questions, oldest first. Those of a run include those of the runs that it called."""
        where = QuestionFilter(run=run, caller=caller, state=state, limit=limit)
        return [record.question for record in await self.store.questions(where)]

    async def question(self, question: str) -> tuple[Question, str, Any]:
        """A question, its state (open, answered, withdrawn, expired), and its answer."""
        record = await self.question_record(question)
        return record.question, record.state, None if record.answer is None else record.answer.value

    async def question_record(self, question: str) -> QuestionRecord:
        """A question, and all that became of it."""
        found = await self.store.question(question)
        if found is None:
            raise QuestionNotFound(f"there is no question {question}")
        return found

    async def question_records(self, where: QuestionFilter) -> list[QuestionRecord]:
        return await self.store.questions(where)

    async def answered_last(self, run: str) -> str:
        """Who has answered what a run asked last, for somebody who comes too late: words to put behind a reason, or
        none."""
        found = await self.store.questions(QuestionFilter(run=run, state="answered", newest=True, limit=1))
        return f" ({found[0].too_late().message})" if found else ""

    async def answer(self, question: str, value: Any, *, by: Caller = OWNER, door: str = "") -> None:
        """Answer a question, through a door. The first valid answer wins. Returns when it is on disk."""
        record = await self.question_record(question)
        asked = record.question
        if asked.answerer is not None and asked.answerer != by.id:
            raise Denied(f"question {question} is for {asked.answerer} to answer")
        Validator(asked.answer_schema, what="answer").check(value, InvalidAnswer)
        if (weight := len(json_values.encode(value))) > (most := self.settings.max_input_bytes):
            raise TooLarge(f"the answer is larger than {most} bytes: as JSON it has {weight}")
        run, _, owner = await self.store.answer(question, value, by.id, now(), door)
        if owner == self.worker.id or owner is None or self.worker.others is not None:
            self.worker.told(run, owner=owner)
        if self.worker.others is not None:
            self.worker.others.questions_changed()

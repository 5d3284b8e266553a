"""Questions of all runs, and their answers. A question is one record, however deep the run that asks it.

The first valid answer wins, and all logs that show the question record it. Doors decide how to show a question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...model import json_values
from ...model.errors import Denied, InvalidAnswer, QuestionNotFound, TooLarge
from ...model.filters import QuestionFilter
from ...model.run import OWNER, Caller, Question, QuestionRecord
from ...model.schemas import Validator
from ...store.ports import Store
from ..settings import Settings

Answered = Callable[[str, str | None], None]
"""Called with a run and its owner when an answer for the run, or the withdrawal of its question, is in the store."""


class QuestionQueries:
    """Finds questions."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def open(self, *, run: str | None = None, caller: str | None = None, limit: int = 100) -> list[Question]:
        """Open questions, oldest first. Those of a run include those of the runs that it called."""
        where = QuestionFilter(run=run, caller=caller, limit=limit)
        return [record.question for record in await self._store.questions.search(where)]

    async def get(self, question: str) -> QuestionRecord:
        """The record of a question."""
        record = await self._store.questions.get(question)
        if record is None:
            raise QuestionNotFound(f"there is no question {question}")
        return record

    async def search(self, where: QuestionFilter) -> list[QuestionRecord]:
        """Questions that fit, oldest first unless the filter says otherwise."""
        return await self._store.questions.search(where)

    async def last_answer_text(self, run: str) -> str:
        """Words about the last answer that a run got, to put behind a reason; empty where it got none."""
        records = await self._store.questions.search(QuestionFilter(run=run, state="answered", newest=True, limit=1))
        return f" ({records[0].too_late().message})" if records else ""

    async def last_change(self) -> int:
        """Returns a number that grows whenever a question is asked or closed."""
        return await self._store.questions.last_change()

    async def counts(self) -> list[tuple[str, int, int]]:
        """Returns how many open questions there are of each type, and since when the oldest waits."""
        return await self._store.questions.count_open()


class QuestionService(QuestionQueries):
    """Finds questions, and takes their answers."""

    def __init__(self, store: Store, settings: Settings, answered: Answered) -> None:
        super().__init__(store)
        self._settings = settings
        self._answered = answered

    async def answer(self, question: str, value: Any, *, by: Caller = OWNER, door: str = "") -> None:
        """Answer a question, through a door. The first valid answer wins. Returns when it is on disk."""
        asked = await self._of(question, by)
        Validator(asked.answer_schema, what="answer").check(value, InvalidAnswer)
        if (weight := len(json_values.encode(value))) > (most := self._settings.max_input_bytes):
            raise TooLarge(f"the answer is larger than {most} bytes: as JSON it has {weight}")
        run, _, owner = await self._store.questions.answer(question, value, by.id, self._store.clock.now(), door)
        self._answered(run, owner)

    async def withdraw(self, question: str, *, reason: str = "", by: Caller = OWNER) -> None:
        """Closes a question that nobody need answer: `ctx.ask` raises QuestionExpired. Returns when it is on disk."""
        await self._of(question, by)
        run, owner = await self._store.questions.withdraw(question, reason, by.id, self._store.clock.now())
        self._answered(run, owner)

    async def _of(self, question: str, by: Caller) -> Question:
        """Returns a question that this caller may close."""
        asked = (await self.get(question)).question
        if asked.answerer is not None and asked.answerer != by.id:
            raise Denied(f"question {question} is for {asked.answerer} to answer")
        return asked

"""Asks a client the questions of a run, withdraws those that were answered elsewhere, and passes its answers on."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from ..engine.engine import Engine
from ..model.errors import InvalidAnswer
from ..model.run import Caller, Question
from ..security import scopes

T = TypeVar("T")

_MOST_SHOWN = 3  # times that a form is shown while its answers do not fit


class ClientQuestions:
    """The questions of one run that are open at a client."""

    def __init__(
        self,
        engine: Engine,
        caller: Caller,
        agent: str | None,
        ask: Callable[[Question], Coroutine[Any, Any, None]],
        *,
        door: str,
    ) -> None:
        """`agent` is the key of the run's agent. `ask` asks one question and passes the answer on; it is cancelled when
        the question was answered elsewhere. `door` names the door in the log."""
        self._engine = engine
        self._caller = caller
        self._agent = agent
        self._ask = weakref.WeakMethod(ask)  # of the owner of these questions: no circle for the collector
        self._door = door
        self._open: dict[str, asyncio.Task[None]] = {}
        self._withdrawn: list[asyncio.Task[None]] = []

    def __bool__(self) -> bool:
        """Tells if a question is open at the client."""
        return bool(self._open)

    def are_for(self, question: Question) -> bool:
        """Tells if the client may answer a question. The questions of other callers only show here."""
        return question.answerer in (None, self._caller.id)

    @property
    def may_answer(self) -> bool:
        return scopes.may(self._caller, "answer", self._agent).allowed

    def ask(self, question: Question) -> None:
        """Asks a question in the background."""
        ask = self._ask()
        assert ask is not None
        task = self._open[question.id] = asyncio.get_running_loop().create_task(ask(question))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # several may fail; one is reported

    def withdraw(self, question: str) -> bool:
        """Takes a question back that needs no answer any more. Returns False where it was not asked."""
        task = self._open.pop(question, None)
        if task is None:
            return False
        task.cancel()
        self._withdrawn = [other for other in self._withdrawn if not other.done()] + [task]
        return True

    def withdraw_all(self) -> None:
        for question in list(self._open):
            self.withdraw(question)

    async def close(self) -> None:
        """Withdraws all questions, and returns when their requests have been taken back."""
        self.withdraw_all()
        if self._withdrawn:
            await asyncio.gather(*self._withdrawn, return_exceptions=True)

    async def beside(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits something while questions are open. The first question that cannot be asked ends it."""
        working = asyncio.ensure_future(work)
        try:
            while not working.done():
                done, _ = await asyncio.wait({working, *self._open.values()}, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {working}:
                    self._open = {id_: other for id_, other in self._open.items() if other is not task}
                    if not task.cancelled():
                        task.result()
            return working.result()
        finally:
            working.cancel()

    async def answer(self, question: Question, value: Any) -> None:
        """Passes an answer on. Raises Conflict or NotFound where another client was first."""
        scopes.require(self._caller, "answer", self._agent)
        await self._engine.questions.answer(question.id, value, by=self._caller, door=self._door)


async def ask_by_form(show: Callable[[str], Awaitable[bool]], message: str) -> bool:
    """Shows a form again with the fault of the answer, until an answer fits. `show` gets the message, and returns False
    where the client gives no answer. Returns whether the question was answered."""
    text = message
    for _ in range(_MOST_SHOWN):
        try:
            return await show(text)
        except (InvalidAnswer, msgspec.ValidationError) as error:
            text = f"{error}\n\n{message}"
    return False


__all__ = ["ClientQuestions", "ask_by_form"]

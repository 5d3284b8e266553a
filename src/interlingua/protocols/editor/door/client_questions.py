"""Asks a client the questions of a turn: choices as permission requests, others by a form; clients without forms get a
text, and the next prompt is the answer."""

from __future__ import annotations

import contextlib
import logging
import weakref
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ....doors.client_questions import ClientQuestions, ask_by_form
from ....engine.ids import now
from ....model.content import Part
from ....model.errors import Conflict, InterlinguaError, InvalidAnswer, NotFound
from ....model.events import QuestionAnswered, QuestionAsked, QuestionWithdrawn
from ....model.run import Question
from ....transports.jsonrpc.connection import ConnectionLost
from ....transports.jsonrpc.core import RpcError
from .. import translate, wire

if TYPE_CHECKING:
    from .sessions import Session
    from .turns import Turn

log = logging.getLogger("interlingua.editor")


class TurnQuestions:
    """The questions of one turn."""

    def __init__(self, session: Session, turn: Turn, agent: str | None) -> None:
        self.as_text: Question | None = None
        """The question that the next prompt answers."""
        self.left_open: list[Question] = []
        """Questions that were open when the session was opened again."""
        self._session = session
        self._owner = weakref.ref(turn)  # no circle for the collector
        self._connection = session.connection
        self._asked = ClientQuestions(session.engine, session.connection.caller, agent, self._ask, door="editor")

    @property
    def _turn(self) -> Turn:
        turn = self._owner()
        assert turn is not None
        return turn

    def ask(self, question: Question) -> None:
        if not self._asked.are_for(question):
            return
        if translate.choices(question) is None and not self._connection.forms:
            self._ask_as_text(question)
            return
        self._session.updates(self._connection.dialect.state("requires_action"))
        self._asked.ask(question)

    def replay(self, body: Any) -> None:
        """Notes which questions an event opened or closed, before the client was asked."""
        if isinstance(body, QuestionAsked):
            self.left_open.append(body.question)
        elif isinstance(body, QuestionAnswered | QuestionWithdrawn):
            self.left_open = [question for question in self.left_open if question.id != body.question]

    def ask_left_open(self) -> None:
        for question in self.left_open:
            self.ask(question)
        self.left_open = []

    def settle(self, question: str) -> None:
        """Withdraws the open request of a question that was answered or withdrawn, here or elsewhere."""
        if self.as_text is not None and self.as_text.id == question:
            self._answered_as_text()
        if self._asked.withdraw(question) and not self._asked:
            self._session.updates(self._connection.dialect.state("running"))

    def withdraw_all(self) -> None:
        self._asked.withdraw_all()

    # -- as text ------------------------------------------------------------------------------------------

    def _ask_as_text(self, question: Question) -> None:
        self.as_text = question
        self._session.say(f"{question.id}-asked", translate.question_text(question))
        self._turn.rests.set()

    def _answered_as_text(self) -> None:
        self.as_text = None
        self._turn.rests.clear()

    async def answer_as_text(self, parts: list[Part]) -> Literal["goes on", "asked again", "too late"]:
        """Takes a prompt as the answer to a question that was asked as text."""
        question = self.as_text
        assert question is not None
        try:
            await self._asked.answer(question, translate.parse_answer(question, translate.prompt_text(parts)))
        except InvalidAnswer as error:
            note = f"That does not answer the question: {error.message}\n\n{translate.question_text(question)}"
            self._session.say(f"{question.id}-again-{now()}", note)
            return "asked again"
        except (Conflict, NotFound):
            return "too late"  # another client answered: this prompt begins a turn
        self._answered_as_text()
        return "goes on"

    # -- as requests --------------------------------------------------------------------------------------

    async def _ask(self, question: Question) -> None:
        try:
            with contextlib.suppress(ConnectionLost):
                if not await self._is_answered(question) and not self._turn.cancelling:
                    await self._session.cancel_run(self._turn)
        except (Conflict, NotFound) as error:  # the first answer wins, and another was first
            self._session.say(f"{question.id}-late", f"The answer was not taken: {error.message}")
        except InterlinguaError as error:
            self._session.say(f"{question.id}-failed", f"The answer was not taken: {error.message}")
            await self._session.cancel_run(self._turn)
        except Exception:  # this task is not awaited: unhandled, its error would let the turn wait for ever
            log.exception("question %s of run %s could not be asked", question.id, self._turn.run)
            self._ask_as_text(question)

    async def _is_answered(self, question: Question) -> bool:
        """Asks the client. Returns False where it gives no answer."""
        choices = translate.choices(question)
        if choices is None:
            return await self._is_form_answered(question)
        params = self._connection.dialect.permission(self._session.id, question, choices)
        try:
            result = await self._connection.rpc.request("session/request_permission", params)
            response = msgspec.convert(result, wire.PermissionResponse)
        except (RpcError, msgspec.ValidationError):
            response = wire.PermissionResponse(wire.PermissionOutcome("failed"))  # whatever it was, no permission
        outcome, meta = response.outcome, response.meta
        if outcome.outcome == "selected" and outcome.option_id in choices.answers:
            whole = meta.get(wire.META_ANSWER) if isinstance(meta, dict) else None
            await self._asked.answer(question, choices.full_answer(outcome.option_id, whole))
        elif outcome.outcome == "cancelled" or choices.rejection() is msgspec.UNSET:
            return False
        else:
            await self._asked.answer(question, choices.rejection())
        return True

    async def _is_form_answered(self, question: Question) -> bool:
        form = translate.form(question.answer_schema)

        async def show(message: str) -> bool:
            params = self._connection.dialect.elicitation(self._session.id, question, form, message)
            try:
                result = await self._connection.rpc.request("elicitation/create", params)
                response = msgspec.convert(result, wire.ElicitationResponse)
            except (RpcError, msgspec.ValidationError):
                return False
            if response.action != "accept":
                return False
            await self._asked.answer(question, form.answer(response.content or {}))
            return True

        return await ask_by_form(show, question.prompt or question.type.replace("_", " "))

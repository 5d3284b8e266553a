"""Asks a client the questions of the run that its request waits for: by elicitation, or by the result of the request in
the revision whose server sends no requests. A client that cannot be asked gets an error with the run and the
question."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import msgspec

from ....doors.client_questions import ClientQuestions, ask_by_form
from ....model.errors import Conflict, NotFound
from ....model.run import Question
from ....transports.jsonrpc.connection import ConnectionLost
from ....transports.jsonrpc.core import RpcError
from .. import translate, wire

if TYPE_CHECKING:
    from .run_request import Running


class InputWanted(Exception):
    """Raised where the run asks and this revision returns questions as results: the client repeats the request with the
    answer."""

    def __init__(self, question: Question, run: str, problem: str = "") -> None:
        """`problem` is the fault of the answer before."""
        super().__init__(question.id)
        self.question = question
        self.run = run
        self.problem = problem


class RequestQuestions:
    """The questions of one request."""

    def __init__(self, running: Running) -> None:
        self._running: Running = weakref.proxy(running)  # it owns these questions: no circle for the collector
        self._connection = running.connection
        agent = running.card.key
        self.asked = ClientQuestions(running.engine, self._connection.caller, agent, self._ask, door="mcp")

    @property
    def can_ask(self) -> bool:
        return self.asked.may_answer and self._connection.can_ask(self._running.call)

    def ask(self, question: Question) -> None:
        if self.asked.are_for(question):
            self.asked.ask(question)

    async def _ask(self, question: Question) -> None:
        running = self._running
        if (await running.engine.questions.get(question.id)).state != "open":
            return  # a run that is joined again repeats earlier questions
        if not self.can_ask:
            await running.note_unasked()
            lacks = running.version == wire.MODERN and not self._connection.can_ask(running.call)
            raise translate.question_open(question, running.run, lacks=lacks)
        if running.version == wire.MODERN:
            raise InputWanted(question, running.run)
        if not await self._is_answered(question):
            raise translate.question_open(question, running.run)

    async def _is_answered(self, question: Question) -> bool:
        """Asks the client. Returns False where it gives no answer."""
        running = self._running
        params = translate.elicitation(question, running.version)
        meta: dict[str, Any] = {wire.META_QUESTION: question.id, wire.META_RUN: running.run}
        token = running.meta.get("progressToken")
        if type(token) in (str, int):  # over one pipe nothing else tells which of several runs asks
            meta[wire.META_TOKEN] = token
        params["_meta"] = {**params.get("_meta", {}), **meta}

        async def show(message: str) -> bool:
            asked = {**params, "message": message}
            try:
                result = await self._connection.rpc.request("elicitation/create", asked, about=running.call.id)
            except ConnectionLost:
                return True  # nobody is left who could be told
            except RpcError:
                return False
            return await self.answer(question, msgspec.convert(result, wire.ElicitResult))

        return await ask_by_form(show, params["message"])

    async def answer(self, question: Question, result: wire.ElicitResult) -> bool:
        """Passes the client's answer to a question on. Returns False where the client has not answered yet."""
        value = translate.answer(question, result)
        if value is msgspec.UNSET:
            return False
        try:
            await self.asked.answer(question, value)
        except (Conflict, NotFound) as error:  # the first answer wins, and another was first
            warning = f"the answer was not taken: {error.message}"
            self._connection.warn(self._running.card.name, warning, about=self._running.call.id)
        return True

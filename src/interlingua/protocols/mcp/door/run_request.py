"""One request that runs an agent, from its submission to its answer: deltas or progress, questions, cancelling."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....doors.follow_log import read_back
from ....engine.ports import RunHandle
from ....model import trace_context
from ....model.card import AgentCard
from ....model.errors import Conflict, ErrorInfo, InvalidAnswer, NotFound, RunNotFound, ThreadNotFound
from ....model.events import (
    QuestionAnswered,
    QuestionAsked,
    QuestionWithdrawn,
    RunBlocked,
    RunFinished,
    Warned,
    blocked_warning,
)
from ....model.prompt_input import ContentCollector, add_data_parts
from ....model.run import Caller, RunRequest
from ....model.status import Status
from ....security import scopes
from ....transports.jsonrpc import params as params_
from ....transports.jsonrpc.core import INVALID_PARAMS, Call, RpcError
from .. import translate, wire
from .client_questions import InputWanted, RequestQuestions
from .named_agents import Named
from .progress import progress_of
from .unasked_runs import mark_of

if TYPE_CHECKING:
    from .connection import McpConnection


class Running:
    """A run that a request waits for."""

    def __init__(self, connection: McpConnection, call: Call, card: AgentCard, version: str, *, tool: bool) -> None:
        self.connection = connection
        self.engine = connection.engine
        self.call = call
        self.card = card
        self.version = version
        self.meta = meta = connection.meta(call)
        count, after = connection.again.pop(call, (0, 0))
        self.progress = progress_of(connection, call.id, meta, version, count, tool=tool, text_field=card.output_text)
        if after is None:  # it is not known which deltas arrived
            self.progress.stop()
        self._after = after or 0  # the last event that another process has sent
        self.questions = RequestQuestions(self)
        self._mark: str | None = None  # of a request whose client cannot be asked: the next one like it joins its run
        self._waited = False  # it has joined a run, which may have been left waiting
        self.beside = ContentCollector()  # beside its output
        self.run = ""
        self._takes_along = True  # a request that is taken back takes its run along

    async def start(self, input_: dict[str, Any], config: Any) -> None:
        """Submits the run, or joins the run that the request names."""
        joins = self._named(wire.META_RUN)
        if joins is not None:
            await self.join(joins)
            self._waited = True
            return
        key = self._named(wire.META_KEY) or None
        if key is None and not self.questions.can_ask and await self._join_waiting(input_, config):
            return
        thread = self._named(wire.META_THREAD)
        if thread is not None:
            await self._check_thread(thread)
        request = request_of(self.card, input_, config, self.connection.caller, self.meta)
        if thread is not None:
            request.thread, request.create_thread = thread, True
        request.key = key
        submitting = asyncio.ensure_future(self.engine.runs.submit(request, watch=True))
        try:
            self.run = (await asyncio.shield(submitting)).id
        except asyncio.CancelledError:  # cancelled while it is submitted: its result would be lost
            submitting.add_done_callback(self._cancel_late)
            raise

    def _named(self, key: str) -> str | None:
        """Returns a member of `_meta` that belongs to this project."""
        value = self.meta.get(key)
        if value is not None and not isinstance(value, str):
            raise RpcError(INVALID_PARAMS, f"_meta {key!r} is {value!r}; it is a string")
        return value

    async def _join_waiting(self, input_: dict[str, Any], config: Any) -> bool:
        """Joins the run that an earlier identical request has left waiting. Returns False where there is none."""
        unasked, caller = self.connection.shared.unasked, self.connection.caller
        self._mark = mark_of(caller.id, self.card, input_, config, self.meta)
        run = await unasked.find(self.card, self._mark)
        if run is None:
            return False
        try:
            await self.join(run)
        except RunNotFound:
            await unasked.forget(run)
            return False
        self._waited = True
        return True

    async def note_unasked(self) -> None:
        """Notes a run that waits because its client cannot be asked: the next request like this one joins it."""
        if self._mark is not None:
            await self.connection.shared.unasked.note(self.card, self._mark, self.run)

    async def _check_thread(self, thread: str) -> None:
        """Checks the thread of a request. A thread of another caller counts as not found, because its state would be
        shown. A thread with the state of another agent is refused, because that state would be overwritten."""
        existing = await self.engine.threads.find(thread)
        if existing is None:
            return
        if not scopes.sees(self.connection.caller, existing.caller):
            raise ThreadNotFound(f"there is no thread {thread}")
        await self.engine.threads.check_state(existing, self.card)

    async def join(self, run: str) -> None:
        """Follows an existing run, if this client may see it."""
        view, caller = await self.engine.runs.get(run), self.connection.caller
        if not scopes.sees(caller, view.caller) or view.agent != self.card.name:
            raise RunNotFound(f"there is no run {run} of {self.card.name}")
        if view.caller != caller.id:  # one's own comes with the right to run; another's is looked at, and left alone
            scopes.require(caller, "read", self.card.key)
            self._takes_along = scopes.may(caller, "cancel", self.card.key).allowed
        self.run = run

    async def end(self) -> RunFinished:
        """Follows the run to its end. A client that cancels its request cancels the run; when it only disconnects, the
        run goes on, and can be joined again."""
        try:
            finished = await self._follow()
            if self._waited:
                await self.connection.shared.unasked.forget(self.run)
            return finished
        except asyncio.CancelledError:
            await asyncio.shield(self._cancel())
            raise
        finally:
            self.progress.close()
            await self.questions.asked.close()  # before the answer: after it there may be no stream for that

    async def _cancel(self) -> None:
        if self.connection.rpc.lost and (self.connection.runs_go_on or self.connection.shared.stopping):
            return
        if not self._takes_along:
            return
        with contextlib.suppress(Conflict, NotFound):
            await self.engine.runs.cancel(self.run, by=self.connection.caller, reason="the request was cancelled")

    def _cancel_late(self, submitted: asyncio.Future[RunHandle]) -> None:
        if not submitted.cancelled() and submitted.exception() is None:
            self.run = submitted.result().id
            self.connection.shared.jobs.spawn(self._cancel())

    async def _follow(self) -> RunFinished:
        mark = getattr(self.connection.rpc.channel, "mark", None)
        asked = self.questions.asked
        reader = self.engine.runs.reader(self.run, await self._take_sent() if self._after else 0)
        try:
            while not reader.over:
                for event in await (asked.beside(reader.read()) if asked else reader.read()):
                    if mark is not None:
                        mark(self.call.id, event.seq)
                    self.beside.feed(event)
                    self._take(event.body)
                    if isinstance(event.body, RunFinished):
                        await self.progress.finish(event, event.body)
                        return event.body
                    del event  # while a slow reader takes it, it is not held here
                await self.connection.rpc.drain(self.call.id)
        finally:
            reader.close()
        raise RunNotFound(f"run {self.run} was deleted")

    async def _take_sent(self) -> int:
        """Takes the events that another process has sent, and returns the last of them."""
        cursor = 0
        async for events in read_back(self.engine, self.run, self._after):
            for event in events:
                if isinstance(event.body, RunFinished):
                    self.progress.stop()  # its last delta was sent with the end
                    return cursor
                cursor = event.seq
                self.beside.feed(event)
                self.progress.feed_sent(event.body)
                if isinstance(event.body, QuestionAsked):
                    self.questions.ask(event.body.question)
        if cursor < self._after:
            self.progress.stop()
        return cursor

    def _take(self, body: Any) -> None:
        if isinstance(body, RunBlocked):
            body = blocked_warning(body)
        if isinstance(body, QuestionAsked):
            self.questions.ask(body.question)
        elif isinstance(body, QuestionAnswered | QuestionWithdrawn):
            self.questions.asked.withdraw(body.question)
        elif isinstance(body, Warned):
            self.connection.warn(self.card.name, body.message, about=self.call.id)
        self.progress.feed(body)


def request_of(
    card: AgentCard, input_: dict[str, Any], config: Any, caller: Caller, meta: dict[str, Any]
) -> RunRequest:
    if not meta:
        return RunRequest(card.name, card.version, input_, config, caller=caller, when_busy="enqueue")
    messages = translate.messages(meta, input_, card)
    return RunRequest(
        card.name, card.version,
        add_data_parts(card, input_, messages[0].parts) if messages else input_, config, messages,
        translate.metadata(meta), caller, when_busy="enqueue", trace=trace_context.read(meta),
    )  # fmt: skip


async def run_and_answer(
    connection: McpConnection,
    call: Call,
    named: Named,
    input_: dict[str, Any],
    result: Callable[[Running, RunFinished], dict[str, Any]],
    *,
    tool: bool,
) -> dict[str, Any]:
    """Runs an agent for a request, and returns its answer: `result` of the finished run, or a question of the run in
    the revision whose server sends no requests."""
    scopes.require(connection.caller, "run", named.card.key)
    running = Running(connection, call, named.card, connection.version_of(call), tool=tool)
    try:
        state = call.params.get("requestState") if isinstance(call.params, dict) else None
        if state is not None and running.version == wire.MODERN:
            await _resume(running, state)
        else:
            await running.start(input_, named.instance.config if named.instance is not None else None)
        connection.note_run(call, running.run)
        return result(running, await running.end())
    except InputWanted as asked:
        return await _input_required(connection, call, asked)


async def _resume(running: Running, state: Any) -> None:
    """Joins the waiting run and gives it the answer to its question. Raises InputWanted where the question must be
    asked again."""
    connection, call = running.connection, running.call
    run, question_id = await connection.shared.states.open(connection.caller.id, call, state)
    await running.join(run)
    open_ = await connection.engine.questions.open(run=run, limit=1000)
    question = next((question for question in open_ if question.id == question_id), None)
    if question is None:
        return  # answered meanwhile, and whatever the run asks now is asked
    responses = call.params.get("inputResponses")
    response = responses.get(question_id) if isinstance(responses, dict) else None
    if response is None:
        raise InputWanted(question, run)
    try:
        answered = await running.questions.answer(question, params_.read(response, wire.ElicitResult))
    except InvalidAnswer as error:
        raise InputWanted(question, run, error.message) from None
    if not answered:
        raise translate.question_open(question, run)


async def _input_required(connection: McpConnection, call: Call, asked: InputWanted) -> dict[str, Any]:
    """Returns the result that asks a question. The client repeats the request with the answer, to any process that has
    this store."""
    params = translate.elicitation(asked.question, wire.MODERN)
    if asked.problem:
        params["message"] = f"{asked.problem}\n\n{params['message']}"
    state = await connection.shared.states.seal(connection.caller.id, call, asked.run, asked.question.id)
    return {
        "resultType": "input_required",
        "inputRequests": {asked.question.id: {"method": "elicitation/create", "params": params}},
        "requestState": state,
        "_meta": {wire.META_RUN: asked.run},
    }


def failed(finished: RunFinished) -> ErrorInfo | None:
    if finished.status is Status.SUCCEEDED:
        return None
    return finished.error or ErrorInfo("run_failed", f"the run {finished.status.value.replace('_', ' ')}")

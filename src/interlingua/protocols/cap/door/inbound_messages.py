"""Takes in messages from outside: starts tasks, answers questions, tells participants, cancels.

The sender is checked here. A caller is the user and the orchestrator of its own tasks. To speak as an agent needs a
scope of its own, and no agent delegates from outside: it delegates within its run, where the gate is. The time of a
message is the time of its arrival, whatever its sender says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from typing import Any

import msgspec

from ....engine.engine import Engine
from ....model import trace_context
from ....model.card import AgentCard
from ....model.content import Message
from ....model.error_numbers import ErrorNumber
from ....model.errors import AlreadyFinished, Conflict, Denied, InvalidAnswer, InvalidRequest, NotFound, ThreadNotFound
from ....model.run import Caller, Question, RunRequest
from ....model.team.manifest import ORCHESTRATOR, USER, instance_of
from ....model.team.oversight import is_review
from ....model.trace_context import Carrier
from ....security import scopes
from .. import translate, wire
from .task_ids import MAX_NAME, RequestedTask, TaskBook

log = logging.getLogger("interlingua.cap")

MOST_REFUSALS = 100
"""The limit of recorded refusals of strangers in one task of another caller, so that they cannot fill its log."""
_REMEMBERED = 10_000
_BEGINS_WITHIN = 10.0  # seconds that a message waits for the task that it is about


class Taken(msgspec.Struct, omit_defaults=True):
    """The result of a message: the task, and its state."""

    task_id: str
    run_id: str
    status: str
    agent: str = ""  # the agent that has the task
    question: str | None = None  # that was answered


class Desk:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.book = TaskBook(engine)
        self._refusals: Counter[str] = Counter()  # of strangers, by the run of the task

    async def take(self, message: wire.AnyMessage, caller: Caller, trace: Carrier | None = None) -> Taken:
        """Takes in a message. `trace` is the trace context of the message, where the wire carries one beside it."""
        outside = message.sender_id in (USER, ORCHESTRATOR)
        if not outside:
            await self._check_speaker(message, caller)
        match message:
            case wire.DelegationNotice():
                if not outside:
                    raise await self._refuse(
                        message, caller,
                        f"{message.sender_id} hands work over within its own run, and nowhere else: tasks are begun "
                        f"by {ORCHESTRATOR} or {USER}",
                    )  # fmt: skip
                return await self.begin(message, caller, trace)
            case wire.ErrorResponse(error_code=ErrorNumber.CANCELLED) if outside:
                return await self.cancel(message.task_id, caller, message.error_message)
        requested = await self.book.find(message.task_id, caller, "answer")
        if outside and requested.run.caller != caller.id and scopes.EVERYTHING not in caller.scopes:
            raise await self._refuse(message, caller, f"the task {message.task_id} is not yours to speak in")
        if requested.view.team and not requested.view.label:
            requested = await self._begun(requested, message, caller)
        taken = Taken(requested.view.part, requested.run.id, requested.run.status.value, requested.view.agent)
        if not outside:
            await self._tell(requested, message, "agent")
            return taken
        question = await self._meant(requested, message, caller)
        if question is None:
            await self._tell(requested, message, "user")
        else:
            taken.question = question.id
            await self._answer(question, message, caller)
        return taken

    async def _begun(self, requested: RequestedTask, message: wire.AnyMessage, caller: Caller) -> RequestedTask:
        """Waits until a task that was just taken has a participant, so that a message right after the notice is
        heard."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BEGINS_WITHIN):
                if await self.engine.teams.label_of(requested.run.id):
                    return await self.book.find(message.task_id, caller, "answer")
        return requested

    # -- the sender ---------------------------------------------------------------------------------------

    async def _check_speaker(self, message: wire.AnyMessage, caller: Caller) -> None:
        decision = scopes.may_speak_as(caller, message.sender_id)
        if not decision:
            raise await self._refuse(message, caller, decision.reason)

    async def _refuse(self, message: wire.AnyMessage, caller: Caller, why: str) -> Denied:
        log.warning(
            "refused a %s of %s for %s in task %r, sent by caller %s: %s", message.type, message.sender_id,
            message.recipient_id, message.task_id[:MAX_NAME], caller.id, why,
        )  # fmt: skip
        whole = message.task_id.partition(".")[0]
        with contextlib.suppress(NotFound, Denied):
            who, more = f"{message.sender_id}, said by caller {caller.id}", ""
            try:
                root = (await self.book.find(whole, caller)).run.id
            except NotFound:  # it may be another caller's, who should know of the attempt
                root = (await self.engine.teams.task(whole)).root
                if len(self._refusals) >= _REMEMBERED:
                    self._refusals.clear()
                self._refusals[root] += 1
                if self._refusals[root] > MOST_REFUSALS:
                    return Denied(why)
                if self._refusals[root] == MOST_REFUSALS:
                    more = "; more of the kind are not put on record here"
            text = f"a {message.type} of {who} was refused: {why}{more}"
            await self.engine.teams.refuse(root, message.recipient_id, text)
        return Denied(why)

    # -- tasks --------------------------------------------------------------------------------------------

    async def begin(self, notice: wire.DelegationNotice, caller: Caller, trace: Carrier | None = None) -> Taken:
        """Begins a task under the id that its sender gave it. The same notice again is the same task."""
        task = notice.task_id
        if len(task) > MAX_NAME or not task.isprintable():
            raise InvalidRequest(f"/task_id has up to {MAX_NAME} characters that can be printed", path="/task_id")
        metadata = notice.metadata or {}
        version = metadata.get("version")
        card = self.book.card(notice.recipient_id, caller, version if isinstance(version, str) else None)
        scopes.require(caller, "run", card.key)
        message = translate.model_message(notice)
        for name in ("stream", *trace_context.NAMES):  # streaming and tracing do not make it another task
            message.metadata.pop(name, None)
        thread = await self._thread(metadata.get("thread"), card, caller)
        run = await self.engine.runs.submit(
            RunRequest(
                card.name, card.version, translate.input_of(notice, card), metadata.get("config"), messages=[message],
                metadata=translate.metadata_of(notice),
                caller=caller, thread=thread, create_thread=thread is not None,
                when_busy="reject" if thread is None else "enqueue", key=f"cap {task}",
                trace=trace or trace_context.read(metadata),
                extra={"cap": {"task": task, "sender": notice.sender_id}},
            )
        )  # fmt: skip
        await self.book.name(caller, task, run.id)
        return Taken(task, run.id, run.run.status.value, self.book.id_of(card.name))

    async def _thread(self, name: Any, card: AgentCard, caller: Caller) -> str | None:
        """Returns the thread that a task shares with others. A thread of another caller counts as not found. A thread
        with the state of another agent is refused, because that state would be overwritten."""
        if name is None:
            return None
        if not isinstance(name, str) or not name or len(name) > MAX_NAME or not name.isprintable():
            raise InvalidRequest(
                f"/metadata/thread has up to {MAX_NAME} characters that can be printed", path="/metadata/thread"
            )
        thread = await self.engine.threads.find(name)
        if thread is not None:
            if not scopes.sees(caller, thread.caller):
                raise ThreadNotFound(f"there is no thread {name}")
            await self.engine.threads.check_state(thread, card)
        return name

    async def cancel(self, task: str, caller: Caller, reason: str = "") -> Taken:
        """Cancels a task, or a part of one."""
        requested = await self.book.find(task, caller, "cancel")
        run = requested.part.run if requested.part is not None and requested.view.below else requested.run.id
        # Also a part that works sealed: whose task it is may stop it, and learns no more of it than that it stopped.
        with contextlib.suppress(AlreadyFinished):
            await self.engine.runs.cancel(run, by=caller, reason=reason, sealed=True)
        status = (await self.engine.runs.get(run, sealed=True)).status
        agent = requested.part.agent if requested.part is not None else requested.view.agent
        return Taken(requested.view.part, run, status.value, agent)

    # -- questions ----------------------------------------------------------------------------------------

    async def _meant(self, requested: RequestedTask, message: wire.AnyMessage, caller: Caller) -> Question | None:
        """Returns the question that a message answers: the one that it names, or the only one that its recipient
        asks."""
        metadata = message.metadata or {}
        judges = isinstance(message, wire.OversightInquiry) or "verdict" in metadata
        recipient = message.recipient_id
        asked = [q for asker, q in await self.book.questions(requested, caller) if asker == recipient]
        if "question" in metadata:
            named = next((question for question in asked if question.id == metadata["question"]), None)
            if named is None and metadata["question"] is not None:
                raise await self._no_question(requested, metadata["question"], recipient)
            return named
        if isinstance(message, wire.ErrorResponse):
            return None
        asked = [question for question in asked if is_review(question)] if judges else asked
        if len(asked) > 1:
            raise Conflict(
                f"{recipient} asks {len(asked)} questions; say in metadata.question which one is answered",
                details={"questions": [translate.asked(question) for question in asked]},
            )
        if judges and not asked:
            raise Conflict(f"no result of {recipient} waits for a verdict")
        return asked[0] if asked else None

    async def _no_question(self, requested: RequestedTask, id_: Any, recipient: str) -> Exception:
        if isinstance(id_, str):
            with contextlib.suppress(NotFound):
                record = await self.engine.questions.get(id_)
                if requested.run.id in record.runs and record.state != "open":
                    return record.too_late()
        return NotFound(f"{recipient} asks no question {str(id_)[:80]} in this task")

    async def _answer(self, question: Question, message: wire.AnyMessage, caller: Caller) -> None:
        value = translate.answer_in(message, question, review=is_review(question))
        try:
            await self.engine.questions.answer(question.id, value, by=caller, door="cap")
        except InvalidAnswer as error:
            details = {**(error.details or {}), **translate.asked(question)}
            raise InvalidAnswer(
                f"{error.message}; put an answer that fits answer_schema into metadata.answer", path=error.path,
                details=details,
            ) from None  # fmt: skip

    # -- telling ------------------------------------------------------------------------------------------

    async def _tell(self, requested: RequestedTask, message: wire.AnyMessage, role: Any) -> None:
        said: Message = translate.model_message(message, role)
        if requested.view.team:
            if not requested.view.label:
                raise Conflict(f"the task {requested.view.task} has not begun yet; nobody takes part in it")
            if role == "agent" and message.sender_id not in {part.agent for part in requested.parts}:
                raise NotFound(f"{message.sender_id} takes no part in {requested.view.task}")
            await self.engine.teams.tell(requested.view.label, message.recipient_id, said, sender=message.sender_id)
            return
        if role == "agent" or instance_of(message.recipient_id)[0] != requested.view.agent:
            who = message.sender_id if role == "agent" else message.recipient_id
            raise NotFound(f"{who} takes no part in {requested.view.task} (there is: {requested.view.agent})")
        await self.engine.runs.send(requested.run.id, said)

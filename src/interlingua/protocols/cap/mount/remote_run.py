"""One run of a mounted participant: a task that is worked on elsewhere, and the requests of its agent meanwhile.

The stretches between two requests are recorded steps, each with its cursor: nothing is shown or done twice. A task at a
server is begun once and found again after a crash; when a process is gone, the run fails as transient.

The agent speaks as the member that it works as, through the same gate as every participant: it sends to participants of
our team, asks the user, and delegates only where our team allows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

import msgspec
from msgspec.structs import replace

from ....engine.handler.context import Context
from ....model.card import AgentCard
from ....model.content import Artifact, DataPart, Message
from ....model.error_numbers import ErrorNumber
from ....model.errors import (
    AgentNotFound,
    Denied,
    ErrorInfo,
    InterlinguaError,
    Invalid,
    InvalidRequest,
    NotFound,
    RunError,
)
from ....model.events import ArtifactAdded, Plan, Thought, ToolCall, Warned
from ....model.team.attachments import PythonObject, TextSnippet, attachment_of, text_and_attached
from ....model.team.manifest import ORCHESTRATOR, USER
from ....mounts.connection import noise_notes
from ....mounts.errors import RemoteError, our_failure, remote_error
from ....mounts.http import HttpAddress
from ....mounts.remote_run import ENDED, FAILED, RemoteRun, Stretch
from ....security.redaction import redact_text
from .. import translate, wire
from .process_task import ProcessTask
from .remote_requests import RemoteRequests
from .remote_task import RemoteTask, log
from .server_task import ServerTask

_ACTIVITY = Thought | Plan | ToolCall | Warned
MOST_REFUSED = 100
"""Things that are refused in one run before its agent is not listened to any more: each is on the log of the run."""
_THREADS = uuid.UUID("6d1d3a53-8f2e-5b3c-9d0b-1f0f6c3f7e52")  # names remote threads after local ones


class Begun(msgspec.Struct):
    """The handle of a task that is lost with its process: it had begun."""


class CapRun(RemoteRun):
    """A local run and the remote task that does its work."""

    has_cursors = True

    def __init__(
        self, ctx: Context[Any, Any], input_: dict[str, Any], card: AgentCard, agent: str | None, name: str,
        patience: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(ctx, input_, name, patience=patience)
        self._card = card
        self._me = agent or ctx.me or "agent"  # the remote name of the agent
        self._ours = False  # it tells how the task stands; others end it with their first message back
        self._result: dict[str, Any] | None = None  # the agent's last message, where that may be the result
        self._error: wire.ErrorResponse | None = None
        self._hint = ""  # the advice where the server has no such agent

    def _works_as(self, way: RemoteTask, task: str, back: str) -> None:
        self._way = way
        self._task = task
        self._back = back
        self._requests = RemoteRequests(
            way, self.ctx, self.mounted, self.questions, task=task, me=self._me, back=back,
            put_question=self.put_question,
        )  # fmt: skip

    async def begin(self) -> None:
        await self._way.begin(self._notice(self.input), self.trace)

    async def act(self, stretch: Stretch, number: int) -> None:
        await self._requests.act(stretch.kind, stretch.data, number, ours=self._ours)

    def go_on_from(self, stretch: Stretch) -> None:
        self._way.cursor = stretch.cursor
        self._ours = bool(stretch.more)

    async def cancel(self) -> None:
        await self._requests.cancel()

    def notes(self) -> list[tuple[str, Any]]:
        return noise_notes(self._way.noise)

    async def leave(self) -> None:
        await self._way.close()

    def _notice(self, input_: dict[str, Any]) -> wire.DelegationNotice:
        ctx, card = self.ctx, self._card
        text = input_.get(card.input_text or "")
        rest = {name: value for name, value in input_.items() if name != card.input_text or not isinstance(text, str)}
        attached = text_and_attached(ctx.messages[0])[1] if ctx.messages else []
        attachments = [attachment_of(part) for part in attached]
        # The caller of this run cannot set our own members through its metadata.
        ours = (*translate.CONTROLS, translate.METADATA, "review", "inquiries")
        metadata: dict[str, Any] = {name: given for name, given in ctx.metadata.items() if name not in ours}
        if named := {name: given for name, given in ctx.metadata.items() if name in ours}:
            metadata[translate.METADATA] = named
        metadata["stream"] = True
        if rest:
            metadata["input"] = rest
        if ctx.config:
            metadata["config"] = ctx.config
        if ctx.thread_id is not None:
            metadata["thread"] = str(uuid.uuid5(_THREADS, ctx.thread_id))
        if ctx.review is not None:
            metadata["review"] = {"agent": ctx.review.agent, "result_hash": ctx.review.result_hash}
            attachments.append(PythonObject(object=msgspec.to_builtins(ctx.review), extra={"name": "proposal"}))
        if ctx.inquiries:
            metadata["inquiries"] = msgspec.to_builtins(ctx.inquiries)
            for one in ctx.inquiries:
                attachments.append(TextSnippet(text=f"{one.decision}: {one.text}"))
                attachments += [attachment_of(part) for part in one.attachments]
        return wire.DelegationNotice(
            task_id=self._task, sender_id=self._back, recipient_id=self._me,
            context_summary=text if isinstance(text, str) else "", attachments=attachments, metadata=metadata,
        )  # fmt: skip

    # -- following ----------------------------------------------------------------------------------------

    async def follow(self) -> Stretch:
        # Only beside other work: a run that only waits for mail would be parked.
        passing = asyncio.ensure_future(self._requests.pass_mail_on())
        try:
            stretch = await self._read_on()
        finally:
            passing.cancel()
            await asyncio.wait({passing})
        stretch.cursor, stretch.more = self._way.cursor, self._ours
        return stretch

    async def _read_on(self) -> Stretch:
        while True:
            if self._requests.refused >= MOST_REFUSED:
                await self._give_up()
            kind, data = await self._way.next()
            stretch: Stretch | None = None
            match kind:
                case "delta":
                    await self._delta(data.get("delta"))
                case "reset":
                    if isinstance(data.get("output"), dict):
                        await self.output.value(data["output"])
                case "activity":
                    with contextlib.suppress(msgspec.ValidationError):
                        await self.output.emit(msgspec.convert(data, _ACTIVITY))
                case "status":
                    self._ours = True
                    if data.get("final") is True:
                        stretch = Stretch(ENDED, self._summed_up(data))
                case "message":
                    stretch = await self._considered(data)
                case _ if data.get("answers"):
                    raise RemoteError(f"an answer of {self.where} cannot be read: {data['error']}")
                case _:
                    await self._complain(InvalidRequest(str(data.get("error"))), data)
            if stretch is not None:
                return stretch

    async def _delta(self, delta: Any) -> None:
        delta = {self._card.output_text or "text": delta} if isinstance(delta, str) else delta
        if isinstance(delta, dict):
            await self.output.delta(delta)

    def _summed_up(self, status: dict[str, Any]) -> dict[str, Any]:
        """Returns how the task ended, with the last message of its agent, which has the attachments, or more of the
        error."""
        said = wire.write(self._error) if self._error is not None else self._result
        return {"status": status, "said": said}

    async def _considered(self, data: dict[str, Any]) -> Stretch | None:
        """Returns the request of the agent in a message; None where the message asks for nothing."""
        told = data.get("metadata")
        if isinstance(told, dict) and (data.get("sender_id") == USER or "withdrawn" in told):
            settled = told.get("question")
            if isinstance(settled, str) and f"question-{settled}" in self.mounted.open():
                self._way.settled(settled)  # it was answered there, or is not asked any more
                return None
        try:
            message = wire.read(data)
            if self._is_not_taken(message):
                return Stretch(FAILED, {"error": data, "taken": False})
            self._check(message)
        except InterlinguaError as error:
            if not (self._way.again and data.get("sender_id") in (USER, ORCHESTRATOR)):  # that was us
                await self._complain(error, data)
            return None
        kind = self._kind(message)
        if kind == "ask" and not await self._still_asks(message):
            return None
        if kind == "result":
            return Stretch(ENDED, {"said": data})
        if kind == "error":
            return Stretch(FAILED, {"error": data})
        return Stretch(kind, data) if kind is not None else None

    async def _still_asks(self, message: wire.AnyMessage) -> bool:
        """Tells if a question of the agent waits for an answer."""
        return True

    def _is_not_taken(self, message: wire.AnyMessage) -> bool:
        """Tells if a process reports that no agent there has taken the task. It reports that as the orchestrator, which
        it is to its own agents. As soon as it has reported how the task stands, such an error is about a message in the
        task."""
        return (
            isinstance(message, wire.ErrorResponse)
            and not (self._way.again or self._ours)
            and (message.sender_id, message.recipient_id) == (ORCHESTRATOR, self._back)
            and message.task_id == self._task
        )

    def _check(self, message: wire.AnyMessage) -> None:
        """Raises where a message is not of this task, or where the remote side may not speak as its sender."""
        task, agent = message.task_id, message.sender_id.partition("#")[0]
        known = task in (self._task, *self._requests.handed_over) or task.startswith(f"{self._task}.")
        if not known and (self._ours or not isinstance(message, wire.DelegationNotice)):
            raise NotFound(f"there is no task {task[:80]} between us; this is {self._task}")
        team = self.mounted.engine.teams.find(self.ctx.authority.team) if self.ctx.authority is not None else None
        ours = {USER, ORCHESTRATOR, *(team.manifests if team is not None else ())} - {self._me.partition("#")[0]}
        if agent in ours and not (self._way.again and agent not in (USER, ORCHESTRATOR)):
            raise Denied(f"you are {self._me}, and do not speak as {message.sender_id}")

    def _kind(self, message: wire.AnyMessage) -> Any:
        told = message.metadata or {}
        mine = message.sender_id.partition("#")[0] == self._me.partition("#")[0]
        to = message.recipient_id
        if to == self._back and mine and message.task_id == self._task:
            return self._kind_back(message, told)
        if to == USER and isinstance(message, wire.Message):
            return "tell" if told.get("reply_expected") is False else "ask"
        if self._ours:  # it has participants and a gate of its own, and only lets us listen
            return None
        if isinstance(message, wire.DelegationNotice):
            return "delegate"
        return "send" if to not in (self._back, self._me) else "show"

    def _kind_back(self, message: wire.AnyMessage, told: dict[str, Any]) -> Any:
        match message:
            case wire.ErrorResponse():
                self._error = message
                return None if self._ours else "error"
            case wire.OversightInquiry():
                return "result" if self.ctx.review is not None and not self._ours else "show"
            case wire.Message():
                if told.get("final") is False or told.get("reply_expected") is True:
                    if (self.ctx.delegator or ORCHESTRATOR) != ORCHESTRATOR:
                        return "say"
                    # No participant there could answer, but the user may.
                    return "ask" if told.get("reply_expected") is True else "show"
                if self._ours:
                    self._result = wire.write(message) if told.get("final") is True else self._result
                    return None if told.get("final") is True else "show"
                return "result"
        return "delegate" if not self._ours else None

    async def _complain(self, error: InterlinguaError, data: dict[str, Any]) -> None:
        """Reports a fault in a message to its agent, and to the log. An error is never answered with an error."""
        self._requests.refused += 1
        await self.output.warn(f"{self.where} said something that was refused: {error.message}")
        if self._way.again or wire.is_error(data):
            return
        task, sender = data.get("task_id"), data.get("sender_id")
        await self._requests.reply_error(
            error.info(), task if isinstance(task, str) and task else self._task, ORCHESTRATOR,
            sender if isinstance(sender, str) and sender else self._me,
        )  # fmt: skip

    # -- the end ------------------------------------------------------------------------------------------

    async def _give_up(self) -> None:
        if self._way.again:  # a process ends with its task
            await self.cancel()
        raise RemoteError(
            f"{self.where} has said {self._requests.refused} things that were refused, and is not listened to any "
            "more; the warnings of this run say what was wrong with them"
        )

    def _not_taken(self, error: ErrorInfo) -> ErrorInfo:
        said = f"{self.where} did not take the task: {error.message or 'it gave no reason'}"
        if error.code == AgentNotFound.code and self._hint:
            said += f"; {self._hint}"
        return replace(error, message=said)

    async def finish(self, data: dict[str, Any]) -> dict[str, Any]:
        status, said = data.get("status"), data["said"]
        if status is None:
            return await self._given(said)
        if status.get("status") != "succeeded":
            raise _failure_of_task(status, said)
        output = status.get("output")
        if isinstance(said, dict):
            await self._attached(said, output)
        return await super().finish(output)

    def failure(self, data: dict[str, Any]) -> RunError:
        error = _error(data["error"])
        if data.get("taken", True):
            return _failure_in(error)
        return _failure(self._not_taken(translate.error_in(error)))

    async def _given(self, data: dict[str, Any]) -> dict[str, Any]:
        """Returns the message with which an agent gives back its result."""
        message = wire.read(data)
        told, review = message.metadata or {}, self.ctx.review
        if review is not None:
            attached = text_and_attached(translate.model_message(message, "agent"))[1]
            more = {"attachments": msgspec.to_builtins(attached)} if attached else {}
            if isinstance(message, wire.OversightInquiry):
                return {"decision": "inquire", "inquiry": message.inquiry, "result_hash": review.result_hash, **more}
            if isinstance(told.get("verdict"), dict):
                return {**told["verdict"], **more}
        output = told.get("output")
        if not isinstance(output, dict):
            output = {self._card.output_text or "text": translate.text_of(message)}
        await self._attached(data, output)
        return output

    async def _attached(self, data: dict[str, Any], output: Any) -> None:
        with contextlib.suppress(Invalid):
            said: Message = translate.model_message(wire.read(data), "agent")
            for number, part in enumerate(text_and_attached(said)[1]):
                if not (isinstance(part, DataPart) and part.data == output):
                    name = getattr(part, "name", None)
                    await self.mounted.show(ArtifactAdded(Artifact(f"attachment-{number + 1}", [part], name)))


class ServerRun(CapRun):
    """A task at a server, which has it whenever the run is resumed."""

    begins_with_its_stream = True

    def __init__(
        self, address: HttpAddress, ctx: Context[Any, Any], input_: dict[str, Any], card: AgentCard, agent: str,
        existing: str | None,
    ) -> None:  # fmt: skip
        """`existing` is the id of a task to go on with, instead of beginning one."""
        super().__init__(ctx, input_, card, agent, redact_text(address.base), address.patience)
        self._address = address
        self._existing = existing

    async def enter(self) -> None:
        http = await self.resources.enter_async_context(self._address.open())
        task = self._existing or self.ctx.run_id
        self._server_task = ServerTask(
            self._address.base, http, task, self.patience, existing=self._existing is not None,
            found=self.mounted.found_at_server,
        )  # fmt: skip
        # A server does not know our team: for it we are the orchestrator, with an id that no other has used.
        self._works_as(self._server_task, task, ORCHESTRATOR)

    async def _still_asks(self, message: wire.AnyMessage) -> bool:
        """Tells if a question of the agent waits for an answer: one may have been asked and answered before this run
        went on with the task."""
        question = message.metadata.get("question") if message.metadata else None
        return self._existing is None or await self._server_task.asks(question)


class ProcessRun(CapRun):
    """A task in a process of its own, which is lost with the process."""

    expires_there = False

    def __init__(
        self, way: ProcessTask, ctx: Context[Any, Any], input_: dict[str, Any], card: AgentCard, agent: str | None,
        hint: str,
    ) -> None:  # fmt: skip
        super().__init__(ctx, input_, card, agent, way.name)
        self._hint = hint
        self._beside: set[asyncio.Task[None]] = set()
        self._works_as(way, ctx.task or ctx.run_id, ctx.delegator or ORCHESTRATOR)

    async def handle_at_hand(self) -> Begun:
        return Begun()

    def lost(self) -> str | None:
        return f"this process ended in the middle of a task of {self.where}"

    async def act(self, stretch: Stretch, number: int) -> None:
        if stretch.kind not in ("delegate", "ask"):
            await super().act(stretch, number)
            return
        task = asyncio.ensure_future(super().act(stretch, number))  # the agent may say more while it waits
        self._beside.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._beside.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("what %s wanted could not be done: %s", self.where, error, exc_info=error)

    async def leave(self) -> None:
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)
        await super().leave()


def _error(data: dict[str, Any]) -> wire.ErrorResponse:
    message = wire.read(data)
    assert isinstance(message, wire.ErrorResponse)
    return message


def _failure_in(error: wire.ErrorResponse) -> RunError:
    return our_failure(error.error_message, error.metadata) or _failure(translate.error_in(error))


def _failure_of_task(status: dict[str, Any], said: Any) -> RunError:
    """Returns the error of a task whose server reports its end."""
    if isinstance(said, dict) and said.get("type") == "error_response":
        return _failure_in(_error(said))
    error = status.get("error")
    error = error if isinstance(error, dict) else {}
    number, text = error.get("error_code"), error.get("error_message")
    number = number if isinstance(number, int) else int(ErrorNumber.FAILED)
    text = text if isinstance(text, str) else "the task did not succeed"
    return our_failure(text, error) or _failure(translate.error_told(number, text, error))


def _failure(error: ErrorInfo) -> RunError:
    return remote_error(error if error.message else replace(error, message="the remote agent gave no reason"))

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

from ....engine.handler.context import Context
from ....engine.handler.mounted_run import MountedRun
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
    QuestionExpired,
    RunError,
    RunLost,
    StepFailed,
)
from ....model.events import ArtifactAdded, Plan, Thought, ToolCall, Warned
from ....model.team.manifest import ORCHESTRATOR, USER
from ....mounts.errors import RemoteError, our_failure
from ....mounts.remote_output import RemoteOutput
from .. import translate, wire
from .remote_requests import Acting, Stretch
from .remote_task import Address, Way, log

_ACTIVITY = Thought | Plan | ToolCall | Warned
MOST_REFUSED = 100
"""Things that are refused in one run before its agent is not listened to any more: each is on the log of the run."""
_THREADS = uuid.UUID("6d1d3a53-8f2e-5b3c-9d0b-1f0f6c3f7e52")  # names remote threads after local ones


class Attachment(Acting):
    """A local run and the remote task that does its work."""

    def __init__(
        self, way: Way, card: AgentCard, agent: str | None, ctx: Context[Any, Any], hint: str = "",
        task: str | None = None,
    ) -> None:  # fmt: skip
        """`task` is the id of a task at a server, to go on with instead of beginning one."""
        self._way = way
        self._hint = hint  # the advice where the server has no such agent
        self._card = card
        self._ctx = ctx
        self._mounted = MountedRun(ctx)
        self._handed = set()
        self._unsent = []
        self._output = RemoteOutput(self._mounted)
        self._me = agent or ctx.me or "agent"  # the remote name of the agent
        # A server does not know our team: for it we are the orchestrator, with an id that no other has used.
        self._back = ORCHESTRATOR if way.again else ctx.delegator or ORCHESTRATOR
        self._existing = way if task is not None and isinstance(way, Address) else None
        self._task = task or (ctx.run_id if way.again else ctx.task or ctx.run_id)
        self._ours = False  # it tells how the task stands; others end it with their first message back
        self._fresh = False
        self._result: dict[str, Any] | None = None  # the agent's last message, where that may be the result
        self._error: wire.ErrorResponse | None = None
        self._beside: set[asyncio.Task[None]] = set()

    async def run(self, input_: dict[str, Any]) -> Any:
        try:
            async with self._mounted.telling_unused():
                return await self._run(input_)
        except StepFailed as failure:
            error = failure.error
            raise _failure(error) from failure
        except QuestionExpired:
            await self._cancel()
            raise
        except asyncio.CancelledError:
            if self._mounted.leaving_for_good:
                await self._cancel()
            raise
        finally:
            for task in self._beside:
                task.cancel()
            await asyncio.gather(*self._beside, return_exceptions=True)
            await self._way.close()

    async def _run(self, input_: dict[str, Any]) -> Any:
        way = self._way
        entered_again = self._mounted.recorded("start")
        notice = self._notice(input_)
        if not way.again:
            if entered_again:
                raise RunLost(f"this process ended in the middle of a task of {way.name}")
            self._mounted.record("start", None)
            await self._mounted.committed()
        await way.begin(notice, self._mounted.onward())
        number = 0
        while True:
            number += 1
            stretch = await self._stretch(f"follow-{number}")
            match stretch.kind:
                case "end":
                    return await self._ended(stretch.data)
                case "result":
                    return await self._given(stretch.data)
                case "error":
                    raise _failure_in(stretch.data)
                case "not taken":
                    raise _failure(self._not_taken(translate.error_in(_error(stretch.data))))
                case "delegate" | "ask" if not way.again:  # it may say more while it waits
                    self._spawn(self._act(stretch, number))
                case _:  # later messages of the server are read later, and the run may be parked until then
                    await self._act(stretch, number)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._beside.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._beside.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("what %s wanted could not be done: %s", self._way.name, error, exc_info=error)

    def _notice(self, input_: dict[str, Any]) -> wire.DelegationNotice:
        ctx, card = self._ctx, self._card
        text = input_.get(card.input_text or "")
        rest = {name: value for name, value in input_.items() if name != card.input_text or not isinstance(text, str)}
        attached = translate.split(ctx.messages[0])[1] if ctx.messages else []
        attachments = [translate.attachment(part) for part in attached]
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
            attachments.append(wire.PythonObject(object=msgspec.to_builtins(ctx.review), extra={"name": "proposal"}))
        if ctx.inquiries:
            metadata["inquiries"] = msgspec.to_builtins(ctx.inquiries)
            for one in ctx.inquiries:
                attachments.append(wire.TextSnippet(text=f"{one.decision}: {one.text}"))
                attachments += [translate.attachment(part) for part in one.attachments]
        return wire.DelegationNotice(
            task_id=self._task, sender_id=self._back, recipient_id=self._me,
            context_summary=text if isinstance(text, str) else "", attachments=attachments, metadata=metadata,
        )  # fmt: skip

    # -- following ----------------------------------------------------------------------------------------

    async def _stretch(self, key: str) -> Stretch:
        self._fresh = False
        stretch: Stretch = await self._ctx.step("follow", self._follow, key, key=key)
        self._way.cursor = stretch.cursor
        self._ours = stretch.ours
        self._output.step_recorded(stretch.shown, from_log=not self._fresh)
        return stretch

    async def _follow(self, step: str) -> Stretch:
        await self._output.begin(step)
        # Only beside other work: a run that only waits for mail would be parked.
        passing = asyncio.ensure_future(self._pass_on())
        try:
            return await self._read_on()
        finally:
            passing.cancel()
            await asyncio.wait({passing})

    async def _read_on(self) -> Stretch:
        while True:
            if self._refused >= MOST_REFUSED:
                await self._give_up()
            kind, data = await self._way.next()
            found: Stretch | None = None
            match kind:
                case "delta":
                    await self._delta(data.get("delta"))
                case "reset":
                    if isinstance(data.get("output"), dict):
                        await self._output.value(data["output"])
                case "activity":
                    with contextlib.suppress(msgspec.ValidationError):
                        await self._output.emit(msgspec.convert(data, _ACTIVITY))
                case "status":
                    self._ours = True
                    if data.get("final") is True:
                        found = Stretch("end", self._summed_up(data))
                case "message":
                    found = await self._considered(data)
                case _ if data.get("answers"):
                    raise RemoteError(f"an answer of {self._way.name} cannot be read: {data['error']}")
                case _:
                    await self._complain(InvalidRequest(str(data.get("error"))), data)
            if found is not None:
                self._fresh = True
                found.cursor, found.shown, found.ours = self._way.cursor, self._output.shown, self._ours
                return found

    async def _delta(self, delta: Any) -> None:
        delta = {self._card.output_text or "text": delta} if isinstance(delta, str) else delta
        if isinstance(delta, dict):
            await self._output.delta(delta)

    def _summed_up(self, status: dict[str, Any]) -> dict[str, Any]:
        """Returns how the task ended, with the last message of its agent, which has the attachments, or more of the
        error."""
        said = wire.write(self._error) if self._error is not None else self._result
        return {**status, "said": said} if said is not None else status

    async def _considered(self, data: dict[str, Any]) -> Stretch | None:
        """Returns the request of the agent in a message; None where the message asks for nothing."""
        told = data.get("metadata")
        if isinstance(told, dict) and (data.get("sender_id") == USER or "withdrawn" in told):
            settled = told.get("question")
            if isinstance(settled, str) and f"question-{settled}" in self._mounted.open():
                self._way.settled(settled)  # it was answered there, or is not asked any more
                return None
        try:
            message = wire.read(data)
            if self._is_not_taken(message):
                return Stretch("not taken", data)
            self._check(message)
        except InterlinguaError as error:
            if not (self._way.again and data.get("sender_id") in (USER, ORCHESTRATOR)):  # that was us
                await self._complain(error, data)
            return None
        kind = self._kind(message)
        if kind == "ask" and self._existing is not None:
            question = message.metadata.get("question") if message.metadata else None
            if not await self._existing.asks(question):
                return None  # it was asked and answered before this run went on with the task
        return Stretch(kind, data) if kind is not None else None

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
        known = task in (self._task, *self._handed) or task.startswith(f"{self._task}.")
        if not known and (self._ours or not isinstance(message, wire.DelegationNotice)):
            raise NotFound(f"there is no task {task[:80]} between us; this is {self._task}")
        team = self._mounted.engine.teams.find(self._ctx.authority.team) if self._ctx.authority is not None else None
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
                return "result" if self._ctx.review is not None and not self._ours else "show"
            case wire.Message():
                if told.get("final") is False or told.get("reply_expected") is True:
                    if (self._ctx.delegator or ORCHESTRATOR) != ORCHESTRATOR:
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
        self._refused += 1
        await self._output.warn(f"{self._way.name} said something that was refused: {error.message}")
        if self._way.again or wire.is_error(data):
            return
        task, sender = data.get("task_id"), data.get("sender_id")
        await self._reply_error(
            error.info(), task if isinstance(task, str) and task else self._task, ORCHESTRATOR,
            sender if isinstance(sender, str) and sender else self._me,
        )  # fmt: skip

    # -- the end ------------------------------------------------------------------------------------------

    async def _give_up(self) -> None:
        if self._way.again:  # a process ends with its task
            await self._cancel()
        raise RemoteError(
            f"{self._way.name} has said {self._refused} things that were refused, and is not listened to any more; the "
            "warnings of this run say what was wrong with them"
        )

    def _not_taken(self, error: ErrorInfo) -> ErrorInfo:
        said = f"{self._way.name} did not take the task: {error.message or 'it gave no reason'}"
        if error.code == AgentNotFound.code and self._hint:
            said += f"; {self._hint}"
        return msgspec.structs.replace(error, message=said)

    async def _ended(self, status: dict[str, Any]) -> Any:
        """Returns the output of a task whose server reports its end. Raises where the task failed."""
        said = status.get("said")
        if status.get("status") != "succeeded":
            if isinstance(said, dict) and said.get("type") == "error_response":
                raise _failure_in(said)
            error = status.get("error")
            error = error if isinstance(error, dict) else {}
            number, text = error.get("error_code"), error.get("error_message")
            number = number if isinstance(number, int) else int(ErrorNumber.FAILED)
            text = text if isinstance(text, str) else "the task did not succeed"
            raise our_failure(text, error) or _failure(translate.error_told(number, text, error))
        output = status.get("output")
        if isinstance(said, dict):
            await self._attached(said, output)
        return output if isinstance(output, dict) else {} if output is None else {"value": output}

    async def _given(self, data: dict[str, Any]) -> Any:
        """Returns the message with which an agent gives back its result."""
        message = wire.read(data)
        told, review = message.metadata or {}, self._ctx.review
        if review is not None:
            attached = translate.split(translate.model_message(message, "agent"))[1]
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
        count, first = self._way.noise
        if count:
            lines = "1 line that is no message" if count == 1 else f"{count} lines that are no messages"
            await self._ctx.warn(f"the agent wrote {lines} to its output", {"lines": count, "first": first})
        with contextlib.suppress(Invalid):
            said: Message = translate.model_message(wire.read(data), "agent")
            for number, part in enumerate(translate.split(said)[1]):
                if not (isinstance(part, DataPart) and part.data == output):
                    name = getattr(part, "name", None)
                    await self._mounted.show(ArtifactAdded(Artifact(f"attachment-{number + 1}", [part], name)))


def _error(data: dict[str, Any]) -> wire.ErrorResponse:
    message = wire.read(data)
    assert isinstance(message, wire.ErrorResponse)
    return message


def _failure_in(data: dict[str, Any]) -> RunError:
    error = _error(data)
    return our_failure(error.error_message, error.metadata) or _failure(translate.error_in(error))


def _failure(error: ErrorInfo) -> RunError:
    return RemoteError(
        error.message or "the remote agent gave no reason", code=error.code, transient=error.transient,
        details=error.details,
    )  # fmt: skip

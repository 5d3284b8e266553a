"""Carries out the requests of a remote agent: asks its questions, sends its messages on, delegates its work.

Everything is done and recorded as the member that the agent works as. Failures are reported to the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import Any, Literal

import msgspec

from ....engine.handler.context import Context
from ....engine.handler.mounted_run import Gone, MountedRun
from ....engine.ids import now
from ....model.content import Message, TextPart
from ....model.errors import (
    ChildFailed,
    Denied,
    ErrorInfo,
    InterlinguaError,
    InvalidRequest,
    NotFound,
    QuestionExpired,
    RunError,
    StepFailed,
)
from ....model.question_forms import usable_answer
from ....model.run import Option
from ....model.team.manifest import ORCHESTRATOR, USER
from ....model.team.oversight import read_verdict
from .. import agent_manifest, translate, wire
from .remote_task import Way

_CANCEL_WITHIN = 10.0  # seconds
_ASKING = "message"  # the type of a question that has none of its own


class Stretch(msgspec.Struct):
    """The recorded end of a stretch of a task."""

    kind: Literal["end", "result", "error", "not taken", "ask", "say", "tell", "send", "delegate", "show"]
    data: dict[str, Any]
    cursor: str | None = None
    shown: Any = None
    ours: bool = False


class Acting:
    """The part of an attachment that carries out the agent's requests."""

    _way: Way
    _ctx: Context[Any, Any]
    _mounted: MountedRun
    _me: str  # the remote name of the agent
    _back: str  # the sender of its task, under its remote name
    _task: str
    _handed: set[str]  # ids of tasks that it handed over
    _ours: bool  # it is a server like ours
    _unsent: list[wire.Message]  # the message that is being passed on, if there is one
    _mails = 0  # how many were passed on, and that one
    _refused = 0  # things that it said or wanted, and may not

    # -- carrying out its requests ------------------------------------------------------------------------

    async def _act(self, stretch: Stretch, number: int) -> None:
        message = wire.read(stretch.data)
        try:
            match stretch.kind:
                case "ask":
                    await self._ask(message, number)
                case "say":
                    await self._say(message, self._ctx.delegator or ORCHESTRATOR, number)
                # Output of an Interlingua server beside its result is shown here too: under oversight it is judged.
                case "tell" if self._ctx.task is not None and not (
                    self._ours and self._ctx._run.output.for_review is not None
                ):
                    await self._say(message, USER, number)
                case "send":
                    if self._ctx.task is None:
                        raise NotFound(f"there is nobody here but {USER} and {self._back}")
                    await self._say(message, message.recipient_id, number)
                case "delegate":
                    await self._delegate(message, number)
                case _:
                    await self._show(message, number)
        except InterlinguaError as error:
            if self._way.again and isinstance(error, StepFailed | QuestionExpired):
                raise  # the server does not take our answer, or none came: it would wait for ever
            self._refused += not isinstance(error, RunError)
            if isinstance(message, wire.ErrorResponse):  # is answered with none
                await self._ctx.warn(f"{self._way.name} told of an error that was not passed on: {error.message}")
                return
            await self._reply_error(
                _of_child(error), message.task_id, _answerer(message, error), message.sender_id
            )  # fmt: skip

    async def _ask(self, message: wire.AnyMessage, number: int) -> None:
        """Asks the user a question, and returns the answer as a message to the agent."""
        told, said = message.metadata or {}, translate.model_message(message, "agent")
        attached = translate.split(said)[1]
        payload: Any = told.get("payload")
        if payload is None:
            payload = {"message": translate.text_of(message)}
            if attached:
                payload["attachments"] = [wire.write(translate.attachment(part)) for part in attached]
        free = not isinstance(told.get("answer_schema"), dict)
        schema = agent_manifest.TEXT if free else usable_answer(told["answer_schema"])
        options: list[Option] = []
        with contextlib.suppress(msgspec.ValidationError):
            options = msgspec.convert(told.get("options") or [], list[Option])
        deadline: float | None = None
        with contextlib.suppress(InvalidRequest):
            until = told.get("deadline")
            deadline = max(0.0, (wire.time_of(until) - now()) / 1e6) if isinstance(until, str) else None
        kind, id_ = told.get("question_type"), told.get("question")
        key = f"question-{id_}" if isinstance(id_, str) else f"ask-{number}"
        try:
            answer = await self._mounted.ask_while(
                functools.partial(self._way.moved_on, id_),
                kind if isinstance(kind, str) and kind else _ASKING, payload, schema,
                key=key, prompt=translate.text_of(message), options=options, deadline=deadline, attachments=attached,
            )  # fmt: skip
        except Gone:
            return
        except QuestionExpired:
            if deadline is None or not self._way.again:
                raise
            return  # it expires there too
        metadata: dict[str, Any] = {} if free else {"answer": answer}
        if id_ is not None:
            metadata["question"] = id_
        back = self._reply(message, USER, answer["text"] if free else translate.answer_text(answer), metadata)
        await self._ctx.step("answer", self._answer, back, key, f"answer-{number}", key=f"answer-{number}")

    async def _answer(self, message: wire.AnyMessage, key: str, step: str) -> None:
        """Sends an answer to the agent. Records an answer that came too late, unless this very answer may have arrived
        before a crash."""
        if await self._mounted.shown_again(step):
            return
        before = self._mounted.passed_on(key)
        await self._mounted.passing_on(key)
        refused = await self._way.send(message)
        if refused is not None and not before and not refused.again:
            answered = refused.status == 409
            late = self._mounted.too_late(key, step=step, answered=answered, told=refused.message)
            await self._mounted.show(late)

    async def _say(self, message: wire.AnyMessage, recipient: str, number: int) -> None:
        """Sends a message of the agent to a participant. A reply comes into the member's mailbox, and is passed on from
        there."""
        text, attached = translate.split(translate.model_message(message, "agent"))
        await self._ctx.send(recipient, text, attachments=attached, key=f"say-{number}")

    async def _show(self, message: wire.AnyMessage, number: int) -> None:
        said = translate.model_message(message, "agent")
        await self._ctx.message(said.parts, sender=message.sender_id, key=f"show-{number}")

    async def _delegate(self, message: wire.AnyMessage, number: int) -> None:
        """Delegates work through the gate of our team. A delegation that the team does not allow is refused and
        recorded."""
        ctx, told = self._ctx, message.metadata or {}
        self._handed.add(message.task_id)
        if ctx.task is None:
            raise Denied(f"{self._me} is in no team here, and hands nothing over")
        text, attached = translate.split(translate.model_message(message, "agent"))
        words = {name: told[name] for name in ("rule", "reason") if isinstance(told.get(name), str)}
        proposed = told.get("output") if isinstance(told.get("output"), dict) else None
        output = await ctx.delegate(
            message.recipient_id, text, attachments=attached, output=proposed, key=f"remote-{number}", **words
        )  # fmt: skip
        reply = self._verdict(message, output) if self._is_overseer(message.recipient_id) else None
        if reply is None:
            said, *more = translate.output_parts(output, None)
            assert isinstance(said, TextPart)
            reply = self._reply(message, message.recipient_id, said.text, {"final": True})
            came = [*more, *getattr(output, "attachments", [])]
            reply.attachments = [translate.attachment(part) for part in came]
        await self._ctx.step("reply", self._send, reply, key=f"reply-{number}")

    def _is_overseer(self, id_: str) -> bool:
        authority = self._ctx.authority
        manifest = self._mounted.engine.teams.manifest_of(authority) if authority is not None else None
        return manifest is not None and manifest.overseer == id_.partition("#")[0]

    def _verdict(self, notice: wire.AnyMessage, output: Any) -> wire.AnyMessage | None:
        """Returns the overseer's verdict on a proposal of the agent, as a message; None where the output has no
        verdict."""
        if not isinstance(output, dict) or "decision" not in output:
            return None
        said = str(output.get("inquiry") or output.get("reason") or output["decision"])
        attached = [translate.attachment(part) for part in read_verdict(output).attachments]
        if output["decision"] != "inquire":
            reply = self._reply(notice, notice.recipient_id, said, {"final": True, "verdict": output})
            reply.attachments = [*attached]
            return reply
        return wire.OversightInquiry(
            task_id=notice.task_id, sender_id=notice.recipient_id, recipient_id=notice.sender_id, inquiry=said,
            attachments=attached, timestamp=wire.timestamp(now()), metadata={"verdict": output},
        )  # fmt: skip

    async def _pass_on(self) -> None:
        """Passes messages for the member on to the remote agent, as soon as its task has begun."""
        await self._way.begun.wait()
        while True:
            if not self._unsent:
                message = await self._ctx.receive()
                self._mails += 1
                self._unsent.append(self._passed_on(message))
            try:
                await self._ctx.step("pass on", self._send, self._unsent[0], key=f"pass-{self._mails}")
            except InterlinguaError as error:
                await self._ctx.warn(f"{self._way.name} was not told what {self._unsent[0].sender_id} said: {error}")
            self._unsent.pop()

    def _passed_on(self, message: Message) -> wire.Message:
        text, attached = translate.split(message)
        sender = message.sender or USER
        if self._way.again and sender != USER:
            sender = ORCHESTRATOR  # to a server we are everybody but the user
        return wire.Message(
            task_id=self._task, sender_id=sender, recipient_id=self._me, content=text,
            attachments=[translate.attachment(part) for part in attached],
            metadata={"question": None} if self._way.again else None,  # it answers none
        )  # fmt: skip

    # -- sending ------------------------------------------------------------------------------------------

    def _reply(self, to: wire.AnyMessage, sender: str, text: str, metadata: dict[str, Any]) -> wire.Message:
        return wire.Message(
            task_id=to.task_id, sender_id=sender, recipient_id=to.sender_id, content=text, attachments=[],
            timestamp=wire.timestamp(now()), metadata=metadata or None,
        )  # fmt: skip

    async def _send(self, message: Any) -> None:
        await self._way.send(message)

    async def _reply_error(self, error: ErrorInfo, task: str, sender: str, recipient: str) -> None:
        with contextlib.suppress(InterlinguaError):
            told = translate.error_response(error, task=task, sender=sender, recipient=recipient, time=now())
            await self._way.send(told)

    async def _cancel(self) -> None:
        told = translate.error_response(
            ErrorInfo("cancelled", "the task was cancelled"), task=self._task, sender=self._back, recipient=self._me,
            time=now(),
        )  # fmt: skip
        with contextlib.suppress(InterlinguaError, TimeoutError):
            async with asyncio.timeout(_CANCEL_WITHIN):
                await self._way.cancel(told)


def _answerer(message: wire.AnyMessage, error: InterlinguaError) -> str:
    """Returns the sender of an error: the agent that had the work, or the orchestrator where the work never reached
    it."""
    return message.recipient_id if isinstance(error, RunError) else ORCHESTRATOR


def _of_child(error: InterlinguaError) -> ErrorInfo:
    return error.error if isinstance(error, ChildFailed) else error.info()

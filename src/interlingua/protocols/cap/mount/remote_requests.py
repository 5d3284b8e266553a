"""Carries out the requests of a remote agent: asks its questions, sends its messages on, delegates its work.

Everything is done and recorded as the member that the agent works as. Failures are reported to the agent.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from ....engine.handler.context import Context
from ....engine.handler.mounted_run import MountedRun
from ....engine.ids import now
from ....model.content import Message, Part, TextPart
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
from ....model.team.attachments import attachment_of, text_and_attached, write_attachment
from ....model.team.manifest import ORCHESTRATOR, USER
from ....model.team.oversight import read_verdict
from ....mounts.remote_questions import Asked, RemoteQuestions, TooLate
from .. import agent_manifest, translate, wire
from .remote_task import RemoteTask

_ASKING = "message"  # the type of a question that has none of its own


class PutQuestion(Protocol):
    """Asks a question of the remote side here: `RemoteRun.put_question`."""

    async def __call__(
        self, asked: Asked, number: int, *, moved_on: Callable[[], Awaitable[None]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None: ...  # fmt: skip


class RemoteRequests:
    """The requests of one task."""

    def __init__(
        self, way: RemoteTask, ctx: Context[Any, Any], mounted: MountedRun, questions: RemoteQuestions, *,
        task: str, me: str, back: str, put_question: PutQuestion,
    ) -> None:  # fmt: skip
        """`me` is the remote name of the agent, and `back` the sender of its task, under its remote name."""
        self._way = way
        self._ctx = ctx
        self._mounted = mounted
        self._questions = questions
        self._task = task
        self._me = me
        self._back = back
        self._put_question = weakref.WeakMethod(put_question)  # of the run that owns this: no circle for the collector
        self._unsent: list[wire.Message] = []  # the message that is being passed on, if there is one
        self._mails = 0  # how many were passed on, and that one
        self.handed_over: set[str] = set()  # ids of tasks
        self.refused = 0  # things that the agent said or wanted, and may not

    # -- carrying out its requests ------------------------------------------------------------------------

    async def act(self, kind: str, data: dict[str, Any], number: int, *, ours: bool) -> None:
        """Does what a message asks for. `ours`: it comes of an Interlingua server."""
        message = wire.read(data)
        try:
            match kind:
                case "ask":
                    await self._ask(message, number)
                case "say":
                    await self._say(message, self._ctx.delegator or ORCHESTRATOR, number)
                # Output of an Interlingua server beside its result is shown here too: under oversight it is judged.
                case "tell" if self._ctx.task is not None and not (
                    ours and self._ctx._run.output.for_review is not None
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
            self.refused += not isinstance(error, RunError)
            if isinstance(message, wire.ErrorResponse):  # is answered with none
                await self._ctx.warn(f"{self._way.name} told of an error that was not passed on: {error.message}")
                return
            await self.reply_error(
                _of_child(error), message.task_id, _answerer(message, error), message.sender_id
            )  # fmt: skip

    async def _ask(self, message: wire.AnyMessage, number: int) -> None:
        """Asks the user a question, and returns the answer as a message to the agent."""
        metadata, attached = message.metadata or {}, text_and_attached(translate.model_message(message, "agent"))[1]
        id_, schema = metadata.get("question"), metadata.get("answer_schema")
        free = not isinstance(schema, dict)

        async def send(answer: Any) -> None:
            more: dict[str, Any] = {} if free else {"answer": answer}
            if id_ is not None:
                more["question"] = id_
            text = answer["text"] if free else translate.answer_text(answer)
            await self._questions.passing_on(asked.place)
            await self._way.send(self._reply(message, USER, text, more))

        asked = _question(message, attached, f"question-{id_}" if isinstance(id_, str) else f"ask-{number}")
        asked.answer = agent_manifest.TEXT if free else usable_answer(schema)
        put_question = self._put_question()
        assert put_question is not None
        await put_question(asked, number, moved_on=functools.partial(self._way.moved_on, id_), send=send)

    async def _say(self, message: wire.AnyMessage, recipient: str, number: int) -> None:
        """Sends a message of the agent to a participant. A reply comes into the member's mailbox, and is passed on from
        there."""
        text, attached = text_and_attached(translate.model_message(message, "agent"))
        await self._ctx.send(recipient, text, attachments=attached, key=f"say-{number}")

    async def _show(self, message: wire.AnyMessage, number: int) -> None:
        said = translate.model_message(message, "agent")
        await self._ctx.message(said.parts, sender=message.sender_id, key=f"show-{number}")

    async def _delegate(self, message: wire.AnyMessage, number: int) -> None:
        """Delegates work through the gate of our team. A delegation that the team does not allow is refused and
        recorded."""
        ctx, told = self._ctx, message.metadata or {}
        self.handed_over.add(message.task_id)
        if ctx.task is None:
            raise Denied(f"{self._me} is in no team here, and hands nothing over")
        text, attached = text_and_attached(translate.model_message(message, "agent"))
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
            reply.attachments = [attachment_of(part) for part in came]
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
        attached = [attachment_of(part) for part in read_verdict(output).attachments]
        if output["decision"] != "inquire":
            reply = self._reply(notice, notice.recipient_id, said, {"final": True, "verdict": output})
            reply.attachments = [*attached]
            return reply
        return wire.OversightInquiry(
            task_id=notice.task_id, sender_id=notice.recipient_id, recipient_id=notice.sender_id, inquiry=said,
            attachments=attached, timestamp=wire.timestamp(now()), metadata={"verdict": output},
        )  # fmt: skip

    async def pass_mail_on(self) -> None:
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
        text, attached = text_and_attached(message)
        sender = message.sender or USER
        if self._way.again and sender != USER:
            sender = ORCHESTRATOR  # to a server we are everybody but the user
        return wire.Message(
            task_id=self._task, sender_id=sender, recipient_id=self._me, content=text,
            attachments=[attachment_of(part) for part in attached],
            metadata={"question": None} if self._way.again else None,  # it answers none
        )  # fmt: skip

    # -- sending ------------------------------------------------------------------------------------------

    def _reply(self, to: wire.AnyMessage, sender: str, text: str, metadata: dict[str, Any]) -> wire.Message:
        return wire.Message(
            task_id=to.task_id, sender_id=sender, recipient_id=to.sender_id, content=text, attachments=[],
            timestamp=wire.timestamp(now()), metadata=metadata or None,
        )  # fmt: skip

    async def _send(self, message: Any) -> None:
        with contextlib.suppress(TooLate):
            await self._way.send(message)

    async def reply_error(self, error: ErrorInfo, task: str, sender: str, recipient: str) -> None:
        with contextlib.suppress(InterlinguaError):
            told = translate.error_response(error, task=task, sender=sender, recipient=recipient, time=now())
            await self._send(told)

    async def cancel(self) -> None:
        told = translate.error_response(
            ErrorInfo("cancelled", "the task was cancelled"), task=self._task, sender=self._back, recipient=self._me,
            time=now(),
        )  # fmt: skip
        await self._way.cancel(told)


def _question(message: wire.AnyMessage, attached: list[Part], key: str) -> Asked:
    """Returns the question in a message, without the schema of its answer."""
    metadata, text = message.metadata or {}, translate.text_of(message)
    payload: Any = metadata.get("payload")
    if payload is None:
        payload = {"message": text}
        if attached:
            payload["attachments"] = [write_attachment(attachment_of(part)) for part in attached]
    kind, until, options = metadata.get("question_type"), metadata.get("deadline"), list[Option]()
    with contextlib.suppress(msgspec.ValidationError):
        options = msgspec.convert(metadata.get("options") or [], list[Option])
    asked = Asked(
        key=key, type=kind if isinstance(kind, str) and kind else _ASKING, payload=payload, answer={}, prompt=text,
        options=options, attachments=attached,
    )  # fmt: skip
    with contextlib.suppress(InvalidRequest):
        asked.until = wire.time_of(until) if isinstance(until, str) else None
    return asked


def _answerer(message: wire.AnyMessage, error: InterlinguaError) -> str:
    """Returns the sender of an error: the agent that had the work, or the orchestrator where the work never reached
    it."""
    return message.recipient_id if isinstance(error, RunError) else ORCHESTRATOR


def _of_child(error: InterlinguaError) -> ErrorInfo:
    return error.error if isinstance(error, ChildFailed) else error.info()

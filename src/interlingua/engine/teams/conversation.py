"""Participants of a task that talk to each other: what is said, and to whom it goes.

Whatever a member of a team says or is told stands on its log, and goes on to the log of the team's run, where the whole
conversation is. What concerns a result that is not approved stays on sealed logs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ...model import json_values
from ...model.content import DataPart, Message, Part, TextPart, ToolResultPart
from ...model.errors import AlreadyFinished, ErrorInfo, InvalidRequest, NotFound, TooLarge
from ...model.events import Form, Said, body_encoder
from ...model.run import Answer, Question
from ...model.team.authority import Authority
from ...model.team.manifest import ORCHESTRATOR, USER, instance_id
from ...model.team.oversight import ReviewVerdict, is_review, read_verdict
from ...store.changes import Change, PutInbox
from ...store.rows import DelegationRow
from ..handler.calls import Calls
from ..handler.run_data import RunData
from ..handler.waits import Waits
from ..log.received_messages import MailKind as MailKind
from ..log.record_keys import Arguments, show
from ..log.replay import said_digest
from .ports import TeamPorts

UNVERIFIED = "unverified"
"""The member of a tool result's `meta` that says that its sender has not called that tool with that result."""

RESULT_HASH = "result_hash"
"""The member of a held message's metadata that says which result it is about."""

ENGINE_SAYS = frozenset({"verdict", "final", RESULT_HASH})
"""Members of a message's metadata that only the engine sets: what others read there is true."""


class Conversation:
    """The part of a run in the conversation of its team. It is the run's `TeamPart`."""

    __slots__ = ("_called_tools", "_calls", "_data", "_ports", "_replay", "_waits")

    def __init__(self, data: RunData, waits: Waits, calls: Calls, ports: TeamPorts) -> None:
        self._data = data
        self._replay = data.replay
        self._waits = waits
        self._calls = calls
        self._ports = ports
        self._called_tools: set[str] | None = None  # digests of server, tool and result

    @property
    def _authority(self) -> Authority | None:
        return self._data.request.authority

    # -- saying -------------------------------------------------------------------------------------------

    def say_once(
        self, key: str, form: Form, task: str, sender: str, recipient: str, message: Message, *,
        code: str | None = None, held: bool = False, time: int | None = None, also: Iterable[Change] = (),
    ) -> None:  # fmt: skip
        """Put something into the conversation, once for each key. `also` is changed with that."""
        past = self._replay.said.get(key)
        if past is not None:
            self._calls.passed(past[0])
            return
        body = Said(task, sender, recipient, form, message, code, time, None, key, held)
        self._replay.said[key] = (0, body)
        self._data.log.append(body, *also, *self._to_team(body))

    def _to_team(self, body: Said) -> list[Change]:
        authority, run = self._authority, self._data.row.id
        root = authority.root if authority is not None else ""
        if body.held or not root or root == run:
            return []
        relayed = msgspec.structs.replace(body, run=run, time=body.time or self._data.clock.now())
        return [PutInbox(root, "relay", body_encoder.encode(relayed))]

    def notice_of(self, call: str) -> Said | None:
        """The message with which a task was handed over: it tells what the task is called, and who has it."""
        notice = self._replay.said.get(f"{call}:notice")
        return notice[1] if notice is not None else None

    async def send(self, recipient: str, content: str, attachments: list[Part | str], key: str | None) -> None:
        """Send a message to another participant of the task. No rule says who may talk to whom."""
        self._waits.check_open()
        authority = self._participant()
        sound(content, str, "content")
        parts = self.attached(attachments)
        place = self._calls.place("send", recipient, key, Arguments(said_digest(content), show(content)))
        if place in self._replay.said:
            self._calls.passed(self._replay.said[place][0])
            return
        message = Message("agent", [TextPart(content), *parts], f"{self._data.row.id}/{place}", authority.me)
        plain = msgspec.to_builtins(message)
        if (clean := json_values.clean(plain, InvalidRequest, what="message")) is not plain:
            message = msgspec.convert(clean, Message)
        if recipient in (USER, ORCHESTRATOR):
            self.say_once(place, "message", authority.task, authority.me, recipient, message)
        else:
            await self._send_to_member(place, authority, recipient, message)
        await self._data.log.flush()  # it is on its way

    async def _send_to_member(self, place: str, authority: Authority, recipient: str, message: Message) -> None:
        host = self._data.host
        participant = await self.find_participant(recipient)
        run = await host.store.runs.get(participant.run)
        self._waits.check_open()
        if run is None or run.status.final:
            raise AlreadyFinished(f"{recipient} has ended its part in {participant.label}, and reads no more messages")
        message.metadata["task"] = task = between(authority.task, participant.label)
        held, hash_ = self._is_held(participant)
        if hash_:
            message.metadata[RESULT_HASH] = hash_
        body, most = json_values.encode(message), host.settings.max_input_bytes
        if len(body) > most:
            raise TooLarge(f"the message to {recipient} is larger than {most} bytes: as JSON it has {len(body)}")
        mail = PutInbox(participant.run, "message", body)
        self.say_once(place, "message", task, authority.me, recipient, message, held=held, also=[mail])

    def _is_held(self, to: DelegationRow) -> tuple[bool, str]:
        """Tells whether a message is for the log alone: an overseer and the agent that it oversees talk about a
        result."""
        assignment, authority = self._data.request.assignment, self._participant()
        if assignment is not None and assignment.review is not None:
            return assignment.review.agent == instance_id(to.agent, to.instance), assignment.review.result_hash
        manifest = self._ports.directory.manifest_of(authority)
        sealed = bool(self._data.row.sealed)
        return sealed and manifest is not None and to.agent == manifest.overseer, ""

    def _participant(self) -> Authority:
        authority = self._authority
        if authority is None or not authority.task:
            raise InvalidRequest("only members of a team talk to each other; use ctx.message, or ctx.ask")
        return authority

    async def find_participant(self, id_: str) -> DelegationRow:
        authority = self._participant()
        return await self._ports.participants.participant(authority.task.partition(".")[0], id_)

    # -- attachments --------------------------------------------------------------------------------------

    def attached(self, attachments: Iterable[Part | str]) -> list[Part]:
        """Attachments as parts. A tool's result that this run did not get is marked."""
        plain = [TextPart(part) if isinstance(part, str) else part for part in attachments]
        parts: list[Part] = [sound(part, Part, "attachment") for part in plain]
        return [self._verified(part) if isinstance(part, ToolResultPart) else part for part in parts]

    def _verified(self, part: ToolResultPart) -> Part:
        if tool_digest(part.server or "", part.tool, part.result) in (self._called_tools or ()):
            meta = {name: value for name, value in (part.meta or {}).items() if name != UNVERIFIED}
            return msgspec.structs.replace(part, meta=meta or None)
        return unverified(part)

    def note_tool(self, server: str, tool: str, result: Any) -> None:
        """Remember that this run has got a result of a tool."""
        if self._called_tools is None:
            self._called_tools = set()
        self._called_tools.add(tool_digest(server, tool, result))

    def with_checked_attachments(self, output: Any) -> Any:
        """The output of a run. Where it is a verdict, the tool results that go along are checked as any others."""
        assignment = self._data.request.assignment
        if assignment is None or assignment.review is None or not isinstance(output, dict):
            return output
        try:
            attachments = msgspec.convert(output.get("attachments"), list[Part] | None)
        except msgspec.ValidationError:
            return output  # then it is no verdict
        return output if not attachments else {**output, "attachments": msgspec.to_builtins(self.attached(attachments))}

    # -- what the run asks and is told --------------------------------------------------------------------

    def asked(self, place: str, question: Question, attachments: Iterable[Part | str]) -> None:
        """A question of a member is a message to the user, and its answer is one back."""
        authority = self._authority
        if authority is None or not authority.task:
            return
        about = {"question": question.id, "type": question.type}
        message = Message("agent", [TextPart(question.prompt), *self.attached(attachments)], sender=authority.me)
        message.metadata.update(about)
        self.say_once(f"{place}:{question.id}", "message", authority.task, authority.me, USER, message)

    def answered(self, place: str, question: Question, answer: Answer) -> None:
        authority = self._authority
        if authority is None or not authority.task:
            return
        key = f"{place}:{question.id}:answer"
        if is_review(question):
            verdict = read_verdict(answer.value)
            verdict.attachments = [unverified(part) for part in verdict.attachments]
            message = verdict_message(verdict, USER, question.payload["result_hash"])
            message.metadata["question"] = question.id
            form: Form = "inquiry" if verdict.decision == "inquire" else "message"
            self.say_once(key, form, authority.task, USER, authority.me, message)
            return
        value = answer.value.get("text") if isinstance(answer.value, dict) and len(answer.value) == 1 else answer.value
        text = value if isinstance(value, str) else json_values.encode(answer.value).decode()
        message = Message("user", [TextPart(text)], sender=USER, metadata={"question": question.id})
        self.say_once(key, "message", authority.task, USER, authority.me, message)

    def received(self, message: Message, kind: MailKind) -> list[Change]:
        """Mark a message from outside, and return what tells the team of it."""
        authority = self._authority
        if authority is None or not authority.task:
            return []
        if message.sender not in (None, USER) and kind != "told":
            return []
        message.sender = message.sender or USER
        message.metadata = unclaimed(message.metadata)
        message.parts = [unverified(part) for part in message.parts]  # nobody out there calls our tools
        if kind == "passed":
            return []
        return self._to_team(Said(authority.task, message.sender, authority.me, "message", message))


def unclaimed(metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata of somebody outside, without what only the engine may say."""
    return {name: value for name, value in metadata.items() if name not in ENGINE_SAYS}


def between(mine: str, theirs: str) -> str:
    """The task that two participants have in common as its two sides: the deeper of both, where one is in the other."""
    return theirs if theirs.startswith(f"{mine}.") else mine


def unverified(part: Part) -> Part:
    """Mark a part as coming from a sender who cannot have called its tool."""
    if not isinstance(part, ToolResultPart):
        return part
    return msgspec.structs.replace(part, meta={**(part.meta or {}), UNVERIFIED: True})


def sound(value: Any, type_: Any, what: str) -> Any:
    """Convert a value to something that can be read back when it is written. Nothing else may reach a log: no run gets
    past it."""
    try:
        return msgspec.convert(msgspec.to_builtins(value), type_)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{what}: {error}") from None


def tool_digest(server: str, tool: str, result: Any) -> str:
    return json_values.digest([server, tool, result])


def result_message(output: Any, text_field: str | None, sender: str) -> Message:
    """The output of an agent, as it tells others of it."""
    if output is None:
        return Message("agent", [TextPart("")], sender=sender)
    text = output.get(text_field or "text") if isinstance(output, dict) else output
    if isinstance(text, str) and (not isinstance(output, dict) or len(output) == 1):
        return Message("agent", [TextPart(text)], sender=sender)
    return Message("agent", [TextPart(text if isinstance(text, str) else ""), DataPart(output)], sender=sender)


def verdict_message(verdict: ReviewVerdict, overseer: str, result_hash: str) -> Message:
    texts = {"approve": "Approved.", "reject": "Rejected.", "inquire": "?"}
    metadata = {RESULT_HASH: result_hash, "verdict": verdict.decision}
    parts: list[Part] = [TextPart(verdict.text or texts[verdict.decision]), *verdict.attachments]
    return Message("agent", parts, sender=overseer, metadata=metadata)


def error_message(error: ErrorInfo, sender: str) -> Message:
    details = {"details": error.details} if error.details is not None else {}
    return Message("agent", [TextPart(error.message)], sender=sender, metadata={"code": error.code, **details})


def nobody(label: str, id_: str, there: Iterable[str]) -> NotFound:
    known = ", ".join(sorted(set(there))) or "nobody"
    return NotFound(f"{id_[:80]!r} takes no part in {label} (there are: {known})")

"""Participants of a task that talk to each other: what is said, to whom it goes, and the mailbox where it arrives.

Whatever a member of a team says or is told stands on its log, and goes on to the log of the team's run, where the whole
conversation is. What concerns a result that is not approved stays on sealed logs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ...model import json_values
from ...model.content import DataPart, Message, Part, TextPart, ToolResultPart
from ...model.errors import AlreadyFinished, ErrorInfo, InvalidRequest, NotFound, TooLarge
from ...model.events import Body, Form, MessageReceived, Recorded, Said, body_encoder
from ...model.run import Answer, Question, RunRequest
from ...model.team.authority import Authority
from ...model.team.manifest import ORCHESTRATOR, USER, instance_id
from ...model.team.oversight import ReviewVerdict, is_review, read_verdict
from ...store.changes import Change, DropInbox, PutInbox
from ...store.rows import DelegationRow
from ..handler.branches import Branches
from ..ids import now
from ..log.received_messages import PASSED
from ..log.record_keys import UNKNOWN_ARGUMENTS, Arguments, show
from ..log.replay import said_digest
from ..log.run_log import encode
from ..runs.inbox import Inbox

UNVERIFIED = "unverified"
"""The member of a tool result's `meta` that says that its sender has not called that tool with that result."""

MailKind = Literal["message", "told", "passed"]
"""How a message comes: from another run or some caller; from a participant without a run; or passed on to the run that
does the work of another."""

RESULT_HASH = "result_hash"
"""The member of a held message's metadata that says which result it is about."""

ENGINE_SAYS = frozenset({"verdict", "final", RESULT_HASH})
"""Members of a message's metadata that only the engine sets: what others read there is true."""


class Speaking(Inbox):
    """The part of an Execution that talks to other participants."""

    request: RunRequest
    branches: Branches
    _untaken = 0  # the first message that the handler has not had
    _passed_on: set[str] | None = None  # messages that were passed on to this run; None: not looked yet

    def __init__(self) -> None:
        super().__init__()
        self._taken: set[int] = set()  # messages that the handler has had, by their number in the mailbox
        self._called_tools: set[str] = set()  # digests of server, tool and result

    if TYPE_CHECKING:

        def _check_alive(self) -> None: ...
        def place(self, kind: str, name: str, key: str | None, called_with: Arguments = UNKNOWN_ARGUMENTS) -> str: ...
        def _passed(self, seq: int) -> None: ...
        async def turn(self, seq: int) -> None: ...
        async def body_at(self, seq: int) -> Body | None: ...
        def busy(self) -> contextlib.AbstractContextManager[None]: ...
        def _deadline_at(self, place: str, seconds: float) -> int: ...
        async def _wait(
            self, future: asyncio.Future[Any], deadline: int | None = None, *,
            behind: asyncio.Future[Any] | None = None,
        ) -> Any: ...  # fmt: skip

    @property
    def authority(self) -> Authority | None:
        return self.request.authority

    # -- saying -------------------------------------------------------------------------------------------

    def say_once(
        self, key: str, form: Form, task: str, sender: str, recipient: str, message: Message, *,
        code: str | None = None, held: bool = False, time: int | None = None, also: Iterable[Change] = (),
    ) -> None:  # fmt: skip
        """Put something into the conversation, once for each key. `also` is changed with that."""
        past = self.replay.said.get(key)
        if past is not None:
            self._passed(past[0])
            return
        body = Said(task, sender, recipient, form, message, code, time, None, key, held)
        self.replay.said[key] = (0, body)
        self.log.append(body, *also, *self._to_team(body))

    def _to_team(self, body: Said) -> list[Change]:
        root = self.authority.root if self.authority is not None else ""
        if body.held or not root or root == self.log.row.id:
            return []
        told = msgspec.structs.replace(body, run=self.log.row.id, time=body.time or now())
        return [PutInbox(root, "relay", body_encoder.encode(told))]

    async def send(self, recipient: str, content: str, attachments: list[Part | str], key: str | None) -> None:
        """A message to another participant of the task. No rule says who may talk to whom."""
        self._check_alive()
        authority = self._participant()
        sound(content, str, "content")
        parts = self.attached(attachments)
        place = self.place("send", recipient, key, Arguments(said_digest(content), show(content)))
        if place in self.replay.said:
            self._passed(self.replay.said[place][0])
            return
        message = Message("agent", [TextPart(content), *parts], f"{self.log.row.id}/{place}", authority.me)
        plain = msgspec.to_builtins(message)
        if (clean := json_values.clean(plain, InvalidRequest, what="message")) is not plain:
            message = msgspec.convert(clean, Message)
        if recipient in (USER, ORCHESTRATOR):
            self.say_once(place, "message", authority.task, authority.me, recipient, message)
            await self.log.flush()
            return
        found = await self.find_participant(recipient)
        run = await self.worker.store.runs.get(found.run)
        self._check_alive()
        if run is None or run.status.final:
            raise AlreadyFinished(f"{recipient} has ended its part in {found.label}, and reads no more messages")
        message.metadata["task"] = task = between(authority.task, found.label)
        held, hash_ = self._is_held(found)
        if hash_:
            message.metadata[RESULT_HASH] = hash_
        body, most = json_values.encode(message), self.worker.settings.max_input_bytes
        if len(body) > most:
            raise TooLarge(f"the message to {recipient} is larger than {most} bytes: as JSON it has {len(body)}")
        mail = PutInbox(found.run, "message", body)
        self.say_once(place, "message", task, authority.me, recipient, message, held=held, also=[mail])
        await self.log.flush()  # it is on its way

    def _is_held(self, to: DelegationRow) -> tuple[bool, str]:
        """What an overseer and the one that it oversees tell each other about a result is not for others."""
        assignment, authority = self.request.assignment, self._participant()
        if assignment is not None and assignment.review is not None:
            return assignment.review.agent == instance_id(to.agent, to.instance), assignment.review.result_hash
        manifest = self.worker.engine.directory.manifest_of(authority)
        sealed = bool(self.log.row.sealed)
        return sealed and manifest is not None and to.agent == manifest.overseer, ""

    def _participant(self) -> Authority:
        if self.authority is None or not self.authority.task:
            raise InvalidRequest("only members of a team talk to each other; use ctx.message, or ctx.ask")
        return self.authority

    async def find_participant(self, id_: str) -> DelegationRow:
        authority = self._participant()
        return await self.worker.engine.teams.participant(authority.task.partition(".")[0], id_)

    def attached(self, attachments: Iterable[Part | str]) -> list[Part]:
        """Attachments as parts. A tool's result that this run did not get is marked."""
        given = [TextPart(part) if isinstance(part, str) else part for part in attachments]
        parts: list[Part] = [sound(part, Part, "attachment") for part in given]
        return [self._verified(part) if isinstance(part, ToolResultPart) else part for part in parts]

    def _verified(self, part: ToolResultPart) -> Part:
        if tool_digest(part.server or "", part.tool, part.result) in self._called_tools:
            meta = {name: value for name, value in (part.meta or {}).items() if name != UNVERIFIED}
            return msgspec.structs.replace(part, meta=meta or None)
        return unverified(part)

    def with_checked_attachments(self, output: Any) -> Any:
        """The output of a run. Where it is a verdict, the tool results that go along are checked as any others."""
        assignment = self.request.assignment
        if assignment is None or assignment.review is None or not isinstance(output, dict):
            return output
        try:
            given = msgspec.convert(output.get("attachments"), list[Part] | None)
        except msgspec.ValidationError:
            return output  # then it is no verdict
        return output if not given else {**output, "attachments": msgspec.to_builtins(self.attached(given))}

    def tell_question(self, place: str, question: Question, attachments: Iterable[Part | str]) -> None:
        """What a member asks is a message to the user, and what it is answered is one back."""
        authority = self.authority
        if authority is None or not authority.task:
            return
        about = {"question": question.id, "type": question.type}
        message = Message("agent", [TextPart(question.prompt), *self.attached(attachments)], sender=authority.me)
        message.metadata.update(about)
        self.say_once(f"{place}:{question.id}", "message", authority.task, authority.me, USER, message)

    def tell_answer(self, place: str, question: Question, answer: Answer) -> None:
        authority = self.authority
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

    # -- what a run is told -------------------------------------------------------------------------------

    def take_message(self, message: Message, drop: DropInbox, kind: str) -> None:
        """A message for this run. What somebody outside says is recorded here, for they have no log."""
        authority, said = self.authority, list[Change]()
        if kind == "passed" and not self._is_new(message):
            self.log.touch(drop)
            return
        if kind != "passed":
            message.metadata.pop(PASSED, None)  # only we say so
        if authority is not None and authority.task and (message.sender in (None, USER) or kind == "told"):
            message.sender = message.sender or USER
            message.metadata = unclaimed(message.metadata)
            message.parts = [unverified(part) for part in message.parts]  # nobody out there calls our tools
            told = Said(authority.task, message.sender, authority.me, "message", message)
            said = [] if kind == "passed" else self._to_team(told)
        body = MessageReceived(message)
        encoded = encode(body)
        seq = self.log.append(body, drop, *said, encoded=encoded)
        if not seq:
            return  # the run is over, or the store refused its log
        self.replay.received.add(message, seq, len(encoded))
        for future in self._mail:
            if not future.done():
                future.set_result(None)

    def _is_new(self, message: Message) -> bool:
        """Whether a message that was passed on comes for the first time: after a crash it is passed on again."""
        mark = message.metadata.get(PASSED)
        if self._passed_on is None:
            self._passed_on = self.replay.received.passed_on()
        new = str(mark) not in self._passed_on
        self._passed_on.add(str(mark))
        return new

    async def receive(self, timeout: float | None, sender: str | None = None) -> Message:
        """The next message for the handler."""
        self._check_alive()
        place = self.place("receive", sender or "", None)
        number = self.taken_before(place)
        if number is not None:
            await self.turn(self.replay.records[f"{place}:taken"][0])
        else:
            number = await self.next_mail(timeout, sender, place)
            if (seq := self.replay.received[number].seq) <= self.replay.last_seq:
                await self.turn(seq)
            if self.branches.here() is not self.branches.root:  # else the order of the messages says it
                self.record_taken(place, number)
        return await self.read_mail(number)

    async def read_mail(self, number: int) -> Message:
        """The message with this number in the mailbox: from memory, or from the store."""
        message = self.replay.received.take(number)
        if message is not None:
            return message
        seq = self.replay.received[number].seq
        try:
            with self.busy():
                await self.log.flush()
                body = await self.body_at(seq)
        except BaseException:
            self.put_back(number)
            raise
        assert isinstance(body, MessageReceived)
        return body.message

    def taken_before(self, place: str) -> int | None:
        """The message that this call took, where the history says it."""
        past = self.replay.records.get(f"{place}:taken")
        if past is None:
            return None
        self._passed(past[0])
        return int(past[1].value)

    def record_taken(self, place: str, number: int) -> None:
        record = Recorded(f"{place}:taken", number)
        self.replay.records[record.key] = (0, record)
        self.log.append(record)

    def reserve_taken(self) -> None:
        """Messages that some call has taken are for no other one."""
        self._taken.update(int(one.value) for key, (_, one) in self.replay.records.items() if key.endswith(":taken"))
        while self._untaken in self._taken:
            self._untaken += 1

    async def next_mail(self, timeout: float | None = None, sender: str | None = None, place: str = "") -> int:
        """Take the next message, and give its number in the mailbox. `place`: of the call that has a timeout."""
        self._check_alive()
        deadline, late = None, f"{place}:late"
        if timeout is not None:
            deadline = self._deadline_at(place, timeout)
            if late in self.replay.records:  # what has come since then is for whoever waited later
                await self.turn(self.replay.records[late][0])
                self._passed(self.replay.records[late][0])
                raise TimeoutError
        while True:
            for number in range(self._untaken, len(self.replay.received)):
                if number not in self._taken and sender in (None, self.replay.received[number].sender):
                    self._taken.add(number)
                    while self._untaken in self._taken:
                        self._untaken += 1
                    return number
            future: asyncio.Future[None] = self.loop.create_future()
            self._mail.append(future)
            try:
                await self._wait(future, deadline)
            except TimeoutError:
                self._check_alive()
                record = Recorded(late)
                self.replay.records[late] = (0, record)
                self.log.append(record)
                raise
            finally:
                if future in self._mail:
                    self._mail.remove(future)

    @property
    def has_mail(self) -> bool:
        """Whether there are messages that the handler has not taken."""
        return self._untaken < len(self.replay.received)

    def put_back(self, number: int) -> None:
        """A message that was taken is for somebody else."""
        self._taken.discard(number)
        self._untaken = min(self._untaken, number)


def unclaimed(metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata of somebody outside, without what only the engine may say."""
    return {name: value for name, value in metadata.items() if name not in ENGINE_SAYS}


def between(mine: str, theirs: str) -> str:
    """The task that two participants have in common as its two sides: the deeper of both, where one is in the other."""
    return theirs if theirs.startswith(f"{mine}.") else mine


def unverified(part: Part) -> Part:
    """A part as whoever cannot have called a tool gives it."""
    if not isinstance(part, ToolResultPart):
        return part
    return msgspec.structs.replace(part, meta={**(part.meta or {}), UNVERIFIED: True})


def sound(given: Any, type_: Any, what: str) -> Any:
    """What can be read back when it is written down. Nothing else may reach a log: no run gets past what is there."""
    try:
        return msgspec.convert(msgspec.to_builtins(given), type_)
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
    said = {"approve": "Approved.", "reject": "Rejected.", "inquire": "?"}
    metadata = {RESULT_HASH: result_hash, "verdict": verdict.decision}
    parts: list[Part] = [TextPart(verdict.text or said[verdict.decision]), *verdict.attachments]
    return Message("agent", parts, sender=overseer, metadata=metadata)


def error_message(error: ErrorInfo, sender: str) -> Message:
    details = {"details": error.details} if error.details is not None else {}
    return Message("agent", [TextPart(error.message)], sender=sender, metadata={"code": error.code, **details})


def nobody(label: str, id_: str, there: Iterable[str]) -> NotFound:
    known = ", ".join(sorted(set(there))) or "nobody"
    return NotFound(f"{id_[:80]!r} takes no part in {label} (there are: {known})")

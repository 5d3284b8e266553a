"""Delegations of a member of a team: through the gate, told to the team, and with the files of the result."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from ...model import json_values
from ...model.content import Message, Part, TextPart
from ...model.errors import AlreadyFinished, Denied, ErrorInfo, InterlinguaError, OverBudget, RunTimedOut
from ...model.events import ChildEnded, DelegationRefused, Notice, Recorded
from ...model.run import RunRequest
from ...model.status import Status
from ...model.team.authority import Authority, Scope
from ...model.team.manifest import ORCHESTRATOR, USER
from ...model.team.oversight import Assignment
from ...store.changes import CountDelegation
from ..handler import branches
from ..handler.branches import Branch
from ..handler.calls import Calls
from ..handler.child_runs import ChildCall, ChildRuns, Prepare
from ..handler.handler_run import OnMessage
from ..handler.mailbox import Mailbox
from ..handler.run_data import RunData
from ..handler.waits import Waits
from ..log.received_messages import PASSED
from ..log.record_keys import is_named
from .conversation import RESULT_HASH, Conversation, error_message, result_message, unclaimed, unverified
from .finished_work import Work
from .gate import TeamGate, TeamHost, TeamMember

_INNER = "inner:"
_REFUSALS: dict[str, type[InterlinguaError]] = {cls.code: cls for cls in (Denied, OverBudget, RunTimedOut)}


class Handover(msgspec.Struct):
    """A delegation besides its input."""

    messages: list[Message] = []
    summary: str | None = None
    rule: str | None = None
    reason: str | None = None
    scope: Scope | None = None
    assignment: Assignment | None = None
    on_message: OnMessage | None = None
    label: str = ""  # of a review that goes on


class Task(msgspec.Struct):
    """A task for a member of the team: whom the run named for it, who that is, and what the member gets."""

    name: str
    member: TeamMember | None  # None: the team has nobody of that name, and the gate says so
    run_name: str
    payload: Any
    handover: Handover
    config: Any = None
    thread: str | None = None
    timeout: float | None = None
    proposal: str | None = None  # the hash of the result that is to be judged: it is a review
    mail: bool = False  # messages that come for this run meanwhile are for the child

    @property
    def digest(self) -> str:
        handover = self.handover
        return json_values.digest(
            [
                self.name, self.payload, self.config, self.thread, msgspec.to_builtins(handover.messages),
                msgspec.to_builtins(handover.scope), msgspec.to_builtins(handover.assignment),
            ]
        )  # fmt: skip


class Delegation:
    __slots__ = (
        "_calls", "_children", "_conversation", "_data", "_gate", "_host", "_mailbox", "_replay", "_waits", "files",
    )  # fmt: skip

    def __init__(
        self, data: RunData, waits: Waits, calls: Calls, children: ChildRuns, mailbox: Mailbox,
        conversation: Conversation, gate: TeamGate, host: TeamHost,
    ) -> None:  # fmt: skip
        self._data = data
        self._replay = data.replay
        self._waits = waits
        self._calls = calls
        self._children = children
        self._mailbox = mailbox
        self._conversation = conversation
        self._gate = gate
        self._host = host
        self.files: dict[str, list[Part]] = {}  # of tasks that were handed over and are done, by their runs

    async def delegate(self, task: Task, place: str) -> ChildEnded:
        """Through the gate: a child that the authority of this run allows, or a refusal in the log."""
        gate, row, authority = self._gate, self._data.row, self._data.authority
        digest, handover, member = task.digest, task.handover, task.member
        self._raise_refusal(place, digest)
        new = place not in self._replay.children
        if new:
            await self._or_refuse(gate.check_delegation(row, authority, task.name), place, digest, task.name)
        assert member is not None  # nobody else passes the gate
        assert authority is not None
        notice = self._notice(authority, member, handover)

        async def prepare(child: str) -> RunRequest:
            if task.proposal is not None:
                admitted = gate.admit_review(child, row, authority, member, handover.label)
            else:
                admitted = gate.admit_delegation(child, row, authority, member, handover.scope)
            granted: Authority = await self._or_refuse(admitted, place, digest, task.name, child)
            if not handover.label:  # else it was said when the review began
                # It comes to the store before the child does, mostly with it.
                self._tell_notice(place, granted, notice, task)
            return self._children.request(
                task.run_name, member.version, task.payload, task.config, thread=task.thread, timeout=task.timeout,
                messages=handover.messages, authority=granted, assignment=handover.assignment,
            )  # fmt: skip

        count = None
        if new and task.proposal is not None:
            count = await gate.count_review(row, authority, member, handover.label)
        elif new:
            count = await gate.count_delegation(row, authority, member)
        ended = await self._children.run_child(
            ChildCall(
                place, digest, task.run_name, prepare, "", notice, task.proposal, count,
                beside=self._beside(place, task), is_told=lambda: self._conversation.notice_of(place) is not None,
            )
        )  # fmt: skip
        if not handover.label and self._conversation.notice_of(place) is None:
            # It was lost, and the child ended before the handler came to it again.
            given = await gate.authority_of(self._replay.children[place][0].run)
            if given is not None:
                self._tell_notice(place, given, notice, task)
        if task.proposal is None:
            await self._tell_result(place, member, ended)
        return ended

    async def inner(
        self, name: str, prepare: Prepare, key: str, given: list[Any], *, mail: bool = False,
        count: CountDelegation | None = None,
    ) -> ChildEnded:  # fmt: skip
        """A child that is part of how this run does its own work. It passes no gate: its authority is this run's.

        `given` is the input of the child: where that has changed, the run is blocked.
        """
        self._waits.check_open()
        place = f"{_INNER}{key}"
        return await self._children.run_child(
            ChildCall(
                place, json_values.digest(given), name, prepare, count=count, inner=True,
                beside=(lambda child: self._pass_on(child, place)) if mail else None,
            )
        )  # fmt: skip

    # -- the gate -----------------------------------------------------------------------------------------

    def _raise_refusal(self, place: str, digest: str) -> None:
        """Raise the refusal that the history has."""
        past = self._replay.refused.get(place)
        if past is None:
            return
        if past[1].input != digest and not is_named(place):
            self._children.other_input(place)
        self._replay.reach(place)
        self._calls.passed(past[0])
        raise _REFUSALS.get(past[1].code, Denied)(past[1].reason)

    async def _or_refuse(
        self, asked: Awaitable[Any], place: str, digest: str, name: str, run: str | None = None
    ) -> Any:
        try:
            return await asked
        except (Denied, OverBudget, RunTimedOut) as error:
            self._waits.check_open()
            body = DelegationRefused(name, error.message, error.code, place, digest, run)
            self._data.log.append(body)
            self._replay.children.pop(place, None)
            self._replay.refused[place] = (0, body)  # the same key again: the same refusal
            authority = self._data.authority
            if authority is not None and authority.task:
                message = error_message(error.info(), ORCHESTRATOR)
                self._conversation.say_once(
                    f"{place}:refused", "error", authority.task, ORCHESTRATOR, authority.me, message, code=error.code
                )
            await self._data.log.flush()
            raise

    # -- what is told -------------------------------------------------------------------------------------

    def _notice(self, authority: Authority, member: TeamMember, handover: Handover) -> Notice:
        manifest = self._gate.manifest_of(authority)
        rule = manifest.delegate_rules.get(member.id) if manifest is not None else None
        return Notice(
            member.id, handover.rule or (rule.when_to_delegate if rule is not None else None), handover.reason,
            None if handover.summary is None else json_values.digest(handover.summary),
        )  # fmt: skip

    def _tell_notice(self, place: str, granted: Authority, notice: Notice, task: Task) -> None:
        handover = task.handover
        said: list[Part] = [TextPart(handover.summary or "")]
        parts = handover.messages[0].parts if handover.messages else said
        metadata = unclaimed(handover.messages[0].metadata) if handover.messages else {}
        if notice.rule is not None:
            metadata["rule"] = notice.rule
        if notice.reason is not None:
            metadata["reason"] = notice.reason
        if task.proposal is not None:
            metadata[RESULT_HASH] = task.proposal
        message = Message("agent", parts, sender=granted.delegator, metadata=metadata)
        self._conversation.say_once(
            f"{place}:notice", "delegation", granted.task, granted.delegator, granted.me, message,
            held=task.proposal is not None,
        )  # fmt: skip

    async def _tell_result(self, place: str, member: TeamMember, ended: ChildEnded) -> None:
        """Tell what came of a task, with its artifacts. The result of an overseen agent was told by its overseer, with
        the approval.

        What an overseen agent had others do is part of its work: it is told with that, or never.
        """
        notice = self._conversation.notice_of(place)
        files = await self._files_of(place, member, ended)
        if notice is None or (ended.status is Status.SUCCEEDED and member.overseen):
            return
        key, back = f"{place}:result", (notice.task, notice.recipient, notice.sender)
        held = bool(self._data.row.sealed)
        say = self._conversation.say_once
        if ended.status is Status.SUCCEEDED:
            message = result_message(ended.output, member.card.output_text, notice.recipient)
            message.parts = [*message.parts, *files]
            message.metadata["final"] = True
            say(key, "message", *back, message, held=held)
        else:
            error = ended.error or ErrorInfo("run_failed", f"{notice.recipient} {ended.status.value}")
            say(key, "error", *back, error_message(error, notice.recipient), code=error.code, held=held)

    async def _files_of(self, place: str, member: TeamMember, ended: ChildEnded) -> list[Part]:
        """The files that come with the output of a task, where that succeeded."""
        if ended.status is not Status.SUCCEEDED:
            return []
        known = self._replay.said.get(f"{place}:result")
        if known is not None:
            output = result_message(ended.output, member.card.output_text, "")
            self.files[ended.run] = known[1].message.parts[len(output.parts) :]
        else:
            with self._waits.busy():
                work = await Work.of(self._host, ended.run)
            self._waits.check_open()
            authority = self._data.authority
            assert authority is not None
            # Messages of the first agent are told to the user as they are.
            self.files[ended.run] = work.files(in_messages=authority.agent != ORCHESTRATOR)
        return self.files[ended.run]

    # -- messages while a task is under way ---------------------------------------------------------------

    def _beside(self, place: str, task: Task) -> Callable[[str], Coroutine[Any, Any, None]] | None:
        on_message = task.handover.on_message
        if task.mail:
            return lambda child: self._pass_on(child, place)
        if on_message is not None:
            return lambda child: self._reply(place, on_message)
        return None

    async def _pass_on(self, child: str, call: str) -> None:
        """Send on what is sent to this run. Where the process dies between the two, it is sent on again,
        and the child takes it once."""
        mailbox, authority = self._mailbox, self._data.authority
        outside = authority is not None and not authority.task  # it came from there, where nobody is one of the team
        while True:
            number = await mailbox.next()
            place = f"passed:{number + 1}"
            if place in self._replay.records:
                continue
            received = await mailbox.read(number)
            mark = f"{self._data.row.id}/{number + 1}"
            message = msgspec.structs.replace(received, metadata={**received.metadata, PASSED: mark})
            if outside:
                message.sender = USER
            try:
                with self._waits.busy():
                    await self._children.pass_on(child, message)
            except AlreadyFinished:
                mailbox.put_back(number)  # the next child gets it
                return
            except asyncio.CancelledError:
                mailbox.put_back(number)
                raise
            self._calls.add(Recorded(place))
            notice = self._conversation.notice_of(call)
            if notice is not None and outside:
                parts = [unverified(part) for part in received.parts]
                metadata = unclaimed(received.metadata)
                message = msgspec.structs.replace(received, sender=USER, parts=parts, metadata=metadata)
                self._conversation.say_once(f"{place}:said", "message", notice.task, USER, notice.recipient, message)

    async def _reply(self, call: str, on_message: OnMessage) -> None:
        """Answer what a child sends while its task is under way."""
        mailbox, own = self._mailbox, self._waits.branches
        notice = self._conversation.notice_of(call)
        assert notice is not None
        branches.enter(Branch(own, f"m{json_values.digest(call)[:8]}"))
        for count in itertools.count(1):
            place = f"{call}:mail:{count}"
            number = mailbox.taken_before(place)
            if number is None:
                number = await mailbox.next(sender=notice.recipient)
                mailbox.record_taken(place, number)
            with self._waits.busy():
                reply = await on_message(await mailbox.read(number))
                if reply is None:
                    continue
                with contextlib.suppress(AlreadyFinished):  # it did not wait for that
                    await self._conversation.send(notice.recipient, reply, [], f"{call}:reply:{number + 1}")

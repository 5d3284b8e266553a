"""Agents that call agents: the records of children, and the gate in front of those that are members of teams.

A run without an authority calls whom it likes, except members of teams. A run with one is a member of a team, and calls
only whom its authority allows: that is decided here, where child runs come from, and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from ...model import json_values, trace_context
from ...model.content import Message, Part, TextPart
from ...model.errors import (
    AlreadyFinished,
    ChildFailed,
    Denied,
    ErrorInfo,
    InterlinguaError,
    Invalid,
    InvalidInput,
    InvalidOutput,
    InvalidRequest,
    OverBudget,
    RunTimedOut,
    StoreError,
    from_info,
)
from ...model.events import Body, ChildCalled, ChildEnded, DelegationRefused, Notice, Recorded, Said
from ...model.run import RunRequest
from ...model.status import Status
from ...model.team import carried_scope
from ...model.team.authority import Authority, Scope
from ...model.team.manifest import ORCHESTRATOR, USER
from ...model.team.oversight import Assignment, ReviewVerdict
from ...store.changes import CountDelegation
from ..ids import new_id, now
from ..log.received_messages import PASSED
from ..log.record_keys import Arguments, is_named, name_of, show
from ..log.replay import NEVER_BEGAN
from ..observe import tracing
from ..runs.finished_work import Work
from ..teams.conversation import RESULT_HASH, Speaking, error_message, result_message, sound, unclaimed, unverified
from . import branches
from .branches import Branch
from .replay_order import AFTER_ALL

if TYPE_CHECKING:
    from ..agents.agent import Agent
    from ..teams.members import Member

Prepare = Callable[[str], Awaitable[RunRequest]]
OnInquiry = Callable[[ReviewVerdict], Awaitable[str | None]]
OnMessage = Callable[[Message], Awaitable[str | None]]

_INNER = "inner:"

REFUSALS: dict[str, type[InterlinguaError]] = {cls.code: cls for cls in (Denied, OverBudget, RunTimedOut)}


class Handover(msgspec.Struct):
    """What a delegation says besides its input."""

    messages: list[Message] = []
    summary: str | None = None
    rule: str | None = None
    reason: str | None = None
    scope: Scope | None = None
    assignment: Assignment | None = None
    on_message: OnMessage | None = None
    label: str = ""  # of a review that goes on


class TaskOutput(dict[str, Any]):
    """The output of a task that was handed over, and what came along: files, data and other artifacts."""

    def __init__(self, output: dict[str, Any], attachments: list[Part]) -> None:
        super().__init__(output)
        self.attachments = list(attachments)


class Calling(Speaking):
    """The part of an Execution that calls other agents."""

    agent: Agent[..., Any] | None
    request: RunRequest
    ctx: Any

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, list[Part]] = {}  # of tasks that were handed over and are done, by their runs

    if TYPE_CHECKING:

        def busy(self) -> AbstractContextManager[None]: ...
        async def recorded_at(self, seq: int) -> Body | None: ...
        def _stir(self) -> None: ...
        def mismatch(self, past: Any, called: str | None) -> NoReturn: ...
        def recalled(self, what: str, read: Callable[[], Any]) -> Any: ...
        async def _propose(
            self, name: str, overseer: Member, handover: Handover, parts: list[Part], output: Any,
            on_inquiry: OnInquiry | None, key: str | None,
        ) -> dict[str, Any]: ...  # fmt: skip
        async def by_policy(
            self, name: str, place: str, attempt: Callable[[str, str], Awaitable[ChildEnded]]
        ) -> ChildEnded: ...

    # -- any child ----------------------------------------------------------------------------------------

    async def call(
        self, agent: Agent[..., Any] | str, input_: Any, inputs: dict[str, Any], version: str | None, config: Any,
        thread: str | None, timeout: float | None, key: str | None,
    ) -> Any:  # fmt: skip
        self._check_alive()
        name = agent if isinstance(agent, str) else agent.card.name
        version = version if isinstance(agent, str) else agent.card.version
        if self.authority is not None or await self.worker.engine.directory.is_member(name):
            return await self._hand_over(name, input_, inputs, config, thread, timeout, key, Handover())
        if isinstance(input_, str):
            input_ = _as_text(name, (await self.worker.engine.agents.card(name, version)).input_text, input_)
        payload = {**(input_ or {}), **json_values.to_plain(inputs)}
        payload = json_values.clean(payload, InvalidInput, what="input")
        digest = json_values.digest([name, version, payload, config])
        shown = show(payload)

        async def prepare(_: str) -> RunRequest:
            return self._request(name, version, payload, config, thread=thread, timeout=timeout)

        place = self.place("call", name, key, Arguments(digest, shown))
        past = place in self.replay.children
        ended = await self._child(place, digest, name, prepare, shown=shown)
        self.replay.forget_end(place)
        if not is_named(place):
            self._children.pop(ended.run, None)  # it has the result too
        if past:
            return self.recalled(f"the result of agent {name}", lambda: child_result(agent, ended))
        return child_result(agent, ended)

    def _request(self, name: str, version: str | None, payload: Any, config: Any, **more: Any) -> RunRequest:
        trace = tracing.current(self.request.trace)
        if self.authority is None:  # else the child's authority says how much time is left
            trace = carried_scope.deduct_seconds(trace_context.read(trace), (now() - self.log.row.created_at) / 1e6)
        return RunRequest(name, version, payload, config, caller=self.request.caller, trace=trace, **more)

    async def _child(
        self, place: str, digest: str, name: str, prepare: Prepare, notice: Notice | None = None,
        proposal: str | None = None, *, mail: bool = False, on_message: OnMessage | None = None,
        count: CountDelegation | None = None, shown: str = "",
    ) -> ChildEnded:  # fmt: skip
        """Call for a child and wait for its end, or find both in the log. `prepare` makes its request, given its id.

        `mail`: messages that come for this run meanwhile are for the child. `on_message`: answers those of the child.
        `count`: that it counts is written with the call.
        """
        engine = self.worker.engine
        self.replay.reach(place)
        known = self.replay.children.get(place)
        new = False
        if known is not None:
            called, ended, seq = known
            if called.input != digest and (not is_named(place) or place.startswith(_INNER)):
                self._other_input(place)
        if (never_began := self.replay.never_began(place)) is not None:
            seq, record = never_began
            await self.turn(seq or AFTER_ALL)
            self._passed(seq)
            assert record.error is not None
            raise from_info(record.error)
        if known is not None:
            if ended is None and called.run in self._children and self._children[called.run].done():
                ended = self._children[called.run].result()
            if ended is not None:
                at = self.replay.ended_at.get(place, AFTER_ALL)
                await self.turn(at)
                if place in self.replay.in_store:
                    found = await self.recorded_at(at)
                    assert isinstance(found, ChildEnded)
                    ended = found
                self._passed(seq)
                return ended
            child = called.run
        else:
            child, new = new_id(), True
            called = ChildCalled(place, child, name, digest, notice, proposal, shown)
            self.replay.children[place] = (called, None, 0)
            changes = [msgspec.structs.replace(count, run=child)] if count is not None else []
            self.log.append(called, *changes)
        with self.busy():  # another branch of the handler may wait
            await self.log.flush()
            self._child_keys[child] = place
            future = self._children.setdefault(child, self.loop.create_future())
            if known is None or not await engine.runs.exists(child):
                try:
                    await engine.runs.submit(await prepare(child), run=child, parent=self.log.row)
                except Exception as error:
                    self._child_keys.pop(child, None)
                    if notice is not None and isinstance(error, Invalid):
                        await engine.store.delegations.uncount(child)  # it never came to be, and counts for nothing
                    if isinstance(error, InterlinguaError) and not isinstance(error, StoreError):
                        self._never_began(place, error)
                    raise
            elif notice is not None and self.notice_of(place) is None:
                await prepare(child)  # it was written, and what was said of it was not
            if not new:
                await self._pull()  # its end may have come long ago; that of a new one is told
        passing, over = None, asyncio.shield(future)
        if mail:
            passing = self.loop.create_task(self._pass_on(child, place))
        elif on_message is not None:
            passing = self.loop.create_task(self._reply(place, on_message))
        if passing is not None:

            def failed(answering: asyncio.Task[None]) -> None:
                """What answers the child has failed: the child may wait for that answer for ever."""
                error = None if answering.cancelled() else answering.exception()
                if error is not None and not over.done():
                    over.set_exception(error)
                    self._stir()  # no time to park

            passing.add_done_callback(failed)
        try:
            ended = await self._wait(over, behind=future)
        finally:
            if passing is not None:
                passing.cancel()
                await asyncio.wait([passing])
        if passing is not None and not passing.cancelled() and passing.exception() is not None:
            passing.result()
        assert isinstance(ended, ChildEnded)
        return ended

    def _never_began(self, place: str, error: InterlinguaError) -> None:
        """Record why a child was refused when it was submitted. A refusal of the gate is in the log already."""
        self._check_alive()
        if place not in self.replay.refused:
            record = Recorded(place + NEVER_BEGAN, error=error.info())
            self.replay.records[record.key] = (0, record)
            self.log.append(record)

    def _other_input(self, place: str) -> NoReturn:
        """What a member of a team is told is for the log of its own run."""
        call = f"call '{name_of(place)}'"
        self.mismatch(call, f"{call} with another input")

    async def _pass_on(self, child: str, call: str) -> None:
        """Send on what is sent to this run. Where the process dies between the two, it is sent on again,
        and the child takes it once."""
        while True:
            number = await self.next_mail()
            place = f"passed:{number + 1}"
            if place in self.replay.records:
                continue
            received = await self.read_mail(number)
            mark = f"{self.log.row.id}/{number + 1}"
            message = msgspec.structs.replace(received, metadata={**received.metadata, PASSED: mark})
            if self.authority is not None and not self.authority.task:
                message.sender = USER  # it came from outside, where nobody is one of the team
            try:
                with self.busy():
                    await self.worker.engine.runs.send(child, message, sealed=True, kind="passed")
            except AlreadyFinished:
                self.put_back(number)  # the next child gets it
                return
            except asyncio.CancelledError:
                self.put_back(number)
                raise
            record = Recorded(place)
            self.replay.records[place] = (0, record)
            self.log.append(record)
            notice = self.notice_of(call)
            if notice is not None and self.authority is not None and not self.authority.task:
                parts = [unverified(part) for part in received.parts]
                metadata = unclaimed(received.metadata)
                message = msgspec.structs.replace(received, sender=USER, parts=parts, metadata=metadata)
                self.say_once(f"{place}:said", "message", notice.task, USER, notice.recipient, message)

    async def _reply(self, call: str, on_message: OnMessage) -> None:
        """Answer what a child sends while its task is under way."""
        notice = self.notice_of(call)
        assert notice is not None
        branches.enter(Branch(self.branches, f"m{json_values.digest(call)[:8]}"))
        for count in itertools.count(1):
            place = f"{call}:mail:{count}"
            number = self.taken_before(place)
            if number is None:
                number = await self.next_mail(sender=notice.recipient)
                self.record_taken(place, number)
            with self.busy():
                reply = await on_message(await self.read_mail(number))
                if reply is None:
                    continue
                with contextlib.suppress(AlreadyFinished):  # it did not wait for that
                    await self.send(notice.recipient, reply, [], f"{call}:reply:{number + 1}")

    def notice_of(self, call: str) -> Said | None:
        """What was said when this call was made: it tells what its task is called, and who has it."""
        found = self.replay.said.get(f"{call}:notice")
        return found[1] if found is not None else None

    # -- members of a team --------------------------------------------------------------------------------

    async def delegate(
        self, target: str, summary: str, attachments: list[Part | str], rule: str | None, reason: str | None,
        scope: Scope | None, inputs: dict[str, Any], output: Any, on_inquiry: OnInquiry | None,
        on_message: OnMessage | None, timeout: float | None, key: str | None,
    ) -> Any:  # fmt: skip
        """Hand over a task. To one's own overseer: propose what was done, and give back the verdict."""
        self._check_alive()
        if self.authority is None and not await self.worker.engine.directory.is_member(target):
            raise InvalidRequest("only a member of a team delegates; call other agents with ctx.call")
        for what, given in (("summary", summary), ("rule", rule), ("reason", reason)):
            sound(given, str if what == "summary" else str | None, what)
        scope = sound(scope, Scope | None, "scope")
        parts = self.attached(attachments)
        said = [Message("user", [TextPart(summary), *parts], sender=self.authority.me if self.authority else None)]
        handover = Handover(said, summary, rule, reason, scope, on_message=on_message)
        overseer = self.worker.engine.directory.reviewer_of(self.request, target)
        if overseer is None:
            return await self._hand_over(target, summary, inputs, None, None, timeout, key, handover)
        return await self._propose(target, overseer, handover, parts, output, on_inquiry, key)

    async def _hand_over(
        self, name: str, input_: Any, inputs: dict[str, Any], config: Any, thread: str | None, timeout: float | None,
        key: str | None, handover: Handover,
    ) -> Any:  # fmt: skip
        """Delegate, and do what the team's policy says where that fails."""
        place = self.place("call", name, key)

        async def attempt(target: str, at: str) -> ChildEnded:
            member = self.worker.engine.directory.member(self.authority, target)
            given = input_
            if isinstance(given, str):
                given = _as_text(target, member.card.input_text if member is not None else "text", given)
            payload = {**(given or {}), **json_values.to_plain(inputs)}
            payload = json_values.clean(payload, InvalidInput, what="input")
            return await self.delegated(
                target, member, member.run_name if member is not None else target, payload, handover, at,
                config=config, thread=thread, timeout=timeout,
            )  # fmt: skip

        ended = await self.by_policy(name, place, attempt)
        output = child_result(name, ended)
        return TaskOutput(output, self.files.pop(ended.run, [])) if isinstance(output, dict) else output

    async def delegated(
        self, name: str, member: Member | None, run_name: str, payload: Any, handover: Handover, place: str, *,
        config: Any = None, thread: str | None = None, timeout: float | None = None, proposal: str | None = None,
        mail: bool = False,
    ) -> ChildEnded:  # fmt: skip
        """Through the gate: a child that the authority of this run allows, or a refusal in the log."""
        engine, row, authority = self.worker.engine, self.log.row, self.authority
        assignment = msgspec.to_builtins(handover.assignment)
        scope = msgspec.to_builtins(handover.scope)
        digest = json_values.digest(
            [name, payload, config, thread, msgspec.to_builtins(handover.messages), scope, assignment]
        )
        past = self.replay.refused.get(place)
        if past is not None:
            if past[1].input != digest and not is_named(place):
                self._other_input(place)
            self.replay.reach(place)
            self._passed(past[0])
            raise _refusal(past[1].code, past[1].reason)
        new = place not in self.replay.children
        if new:
            await self._or_refuse(engine.gate.check_delegation(row, authority, name), place, digest, name)
        assert member is not None  # nobody else passes the gate
        assert authority is not None
        manifest = engine.directory.manifest_of(authority)
        rule = manifest.delegate_rules.get(member.id) if manifest is not None else None
        notice = Notice(
            member.id, handover.rule or (rule.when_to_delegate if rule is not None else None), handover.reason,
            None if handover.summary is None else json_values.digest(handover.summary),
        )  # fmt: skip

        async def prepare(child: str) -> RunRequest:
            if proposal is not None:
                admitted = engine.gate.admit_review(child, row, authority, member, handover.label)
            else:
                admitted = engine.gate.admit_delegation(child, row, authority, member, handover.scope)
            granted: Authority = await self._or_refuse(admitted, place, digest, name, child)
            if not handover.label:  # else it was said when the review began
                # It comes to the store before the child does, mostly with it.
                self._tell_notice(place, granted, notice, handover, proposal)
            return self._request(
                run_name, member.version, payload, config, thread=thread, timeout=timeout, messages=handover.messages,
                authority=granted, assignment=handover.assignment,
            )  # fmt: skip

        count = None
        if new and proposal is not None:
            count = await engine.gate.count_review(row, authority, member, handover.label)
        elif new:
            count = await engine.gate.count_delegation(row, authority, member)
        ended = await self._child(
            place, digest, run_name, prepare, notice, proposal, mail=mail, on_message=handover.on_message, count=count
        )
        if not handover.label and self.notice_of(place) is None:  # lost, and the child ended before we came to it again
            given = await engine.gate.authority_of(self.replay.children[place][0].run)
            if given is not None:
                self._tell_notice(place, given, notice, handover, proposal)
        if proposal is None:
            await self._tell_result(place, member, ended)
        return ended

    def _tell_notice(
        self, place: str, granted: Authority, notice: Notice, handover: Handover, proposal: str | None
    ) -> None:
        said: list[Part] = [TextPart(handover.summary or "")]
        parts = handover.messages[0].parts if handover.messages else said
        metadata = unclaimed(handover.messages[0].metadata) if handover.messages else {}
        if notice.rule is not None:
            metadata["rule"] = notice.rule
        if notice.reason is not None:
            metadata["reason"] = notice.reason
        if proposal is not None:
            metadata[RESULT_HASH] = proposal
        message = Message("agent", parts, sender=granted.delegator, metadata=metadata)
        self.say_once(
            f"{place}:notice", "delegation", granted.task, granted.delegator, granted.me, message,
            held=proposal is not None,
        )  # fmt: skip

    async def _tell_result(self, place: str, member: Member, ended: ChildEnded) -> None:
        """What came of a task, with its artifacts. That of an overseen agent was told by its overseer, with the
        approval.

        What an overseen agent had others do is part of its work: it is told with that, or never.
        """
        notice = self.notice_of(place)
        files = await self._files_of(place, member, ended)
        if notice is None or (ended.status is Status.SUCCEEDED and member.overseen):
            return
        key, back = f"{place}:result", (notice.task, notice.recipient, notice.sender)
        held = bool(self.log.row.sealed)
        if ended.status is Status.SUCCEEDED:
            message = result_message(ended.output, member.card.output_text, notice.recipient)
            message.parts = [*message.parts, *files]
            message.metadata["final"] = True
            self.say_once(key, "message", *back, message, held=held)
        else:
            error = ended.error or ErrorInfo("run_failed", f"{notice.recipient} {ended.status.value}")
            self.say_once(key, "error", *back, error_message(error, notice.recipient), code=error.code, held=held)

    async def _files_of(self, place: str, member: Member, ended: ChildEnded) -> list[Part]:
        """What whoever delegated a task gets with its output, where it succeeded."""
        if ended.status is not Status.SUCCEEDED:
            return []
        told = self.replay.said.get(f"{place}:result")
        if told is not None:
            output = result_message(ended.output, member.card.output_text, "")
            self.files[ended.run] = told[1].message.parts[len(output.parts) :]
        else:
            with self.busy():
                work = await Work.of(self.worker, ended.run)
            self._check_alive()
            assert self.authority is not None
            # Messages of the first agent are told to the user as they are.
            self.files[ended.run] = work.files(in_messages=self.authority.agent != ORCHESTRATOR)
        return self.files[ended.run]

    async def _or_refuse(
        self, asked: Awaitable[Any], place: str, digest: str, name: str, run: str | None = None
    ) -> Any:
        try:
            return await asked
        except (Denied, OverBudget, RunTimedOut) as error:
            self._check_alive()
            body = DelegationRefused(name, error.message, error.code, place, digest, run)
            self.log.append(body)
            self.replay.children.pop(place, None)
            self.replay.refused[place] = (0, body)  # the same key again: the same refusal
            if self.authority is not None and self.authority.task:
                told = error_message(error.info(), ORCHESTRATOR)
                self.say_once(
                    f"{place}:refused", "error", self.authority.task, ORCHESTRATOR, self.authority.me, told,
                    code=error.code,
                )  # fmt: skip
            await self.log.flush()
            raise

    async def inner(
        self, name: str, prepare: Prepare, key: str, told: list[Any], *, mail: bool = False,
        count: CountDelegation | None = None,
    ) -> ChildEnded:  # fmt: skip
        """A child that is part of how this run does its own work. It passes no gate: its authority is this run's.

        `told` is what the child is told: where that has changed, the run is blocked.
        """
        self._check_alive()
        return await self._child(f"{_INNER}{key}", json_values.digest(told), name, prepare, mail=mail, count=count)


def _as_text(name: str, field: str | None, text: str) -> dict[str, Any]:
    if field is None:
        raise InvalidInput(f"agent {name} has no text field; call it with its input's members")
    return {field: text}


def _refusal(code: str, reason: str) -> InterlinguaError:
    return REFUSALS.get(code, Denied)(reason)


def child_result(agent: Agent[..., Any] | str, ended: ChildEnded) -> Any:
    if ended.status is not Status.SUCCEEDED:
        error = ended.error or ErrorInfo("run_failed", f"it {ended.status.value}")
        name = agent if isinstance(agent, str) else agent.card.name
        raise ChildFailed(f"agent {name}: {error.message}", error=error, run=ended.run)
    output = ended.output
    codec = None if isinstance(agent, str) else agent.output
    if codec is None or codec.codec is None:
        return output
    return codec.codec.decode(output if codec.wrap is None else output.get(codec.wrap), InvalidOutput)

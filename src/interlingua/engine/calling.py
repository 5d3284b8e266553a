"""Agents that call agents: the records of children, and the gate in front of those that are members of teams.

A run without an authority calls whom it likes, except members of teams. A run with one is a member of a team, and calls
only whom its authority allows: that is decided here, where child runs come from, and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from ..model import oversight, values
from ..model.authority import Authority, Scope
from ..model.content import Artifact, Message, Part, TextPart, parts_from
from ..model.errors import (
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
)
from ..model.events import (
    ArtifactAdded,
    ChildCalled,
    ChildEnded,
    DelegationRefused,
    Emission,
    MessageSent,
    Notice,
    Recorded,
)
from ..model.oversight import Assignment, Exchange, Proposal, Result, ReviewVerdict
from ..model.run import RunRequest
from ..model.status import Status
from . import tracing
from .ids import new_id
from .inbox import Inbox

if TYPE_CHECKING:
    from .agents import Agent
    from .teams import Member

Prepare = Callable[[str], Awaitable[RunRequest]]
OnInquiry = Callable[[ReviewVerdict], Awaitable[str | None]]

REFUSALS: dict[str, type[InterlinguaError]] = {cls.code: cls for cls in (Denied, OverBudget, RunTimedOut)}


class Handover(msgspec.Struct):
    """What a delegation says besides its input."""

    messages: list[Message] = []
    summary: str | None = None
    rule: str | None = None
    reason: str | None = None
    scope: Scope | None = None
    assignment: Assignment | None = None


class Calling(Inbox):
    """The part of an Execution that calls other agents."""

    agent: Agent[..., Any] | None
    request: RunRequest
    ctx: Any
    _read = 0  # messages that the handler has taken
    _exchanges: list[Exchange] | None = None  # what came of proposals of this run that were not approved
    given: list[Emission] | None = None  # artifacts and messages so far, where they will be proposed

    if TYPE_CHECKING:

        def _check_alive(self) -> None: ...
        def _key(self, kind: str, name: str, key: str | None) -> str: ...
        def _passed(self, seq: int) -> None: ...
        async def receive(self, timeout: float | None) -> Message: ...
        async def _wait(self, future: asyncio.Future[Any], deadline: int | None = None, mark: str = "") -> Any: ...
        async def show(self, body: Emission) -> None: ...
        def current_state(self) -> Any: ...

    # -- any child ----------------------------------------------------------------------------------------

    async def call(
        self, agent: Agent[..., Any] | str, input_: Any, inputs: dict[str, Any], version: str | None, config: Any,
        thread: str | None, timeout: float | None, key: str | None,
    ) -> Any:  # fmt: skip
        self._check_alive()
        name = agent if isinstance(agent, str) else agent.card.name
        version = version if isinstance(agent, str) else agent.card.version
        if self.authority is not None or await self.worker.engine.is_member(name):
            return await self._hand_over(name, input_, inputs, config, thread, timeout, key, Handover())
        if isinstance(input_, str):
            input_ = _as_text(name, (await self.worker.engine.card(name, version)).input_text, input_)
        payload = {**(input_ or {}), **msgspec.to_builtins(inputs)}
        values.check(payload, InvalidInput, what="input")
        digest = values.digest([name, version, payload, config])

        async def prepare(_: str) -> RunRequest:
            return self._request(name, version, payload, config, thread=thread, timeout=timeout)

        ended = await self._child(self._key("call", name, key), digest, name, prepare)
        return _child_result(agent, ended)

    def _request(self, name: str, version: str | None, payload: Any, config: Any, **more: Any) -> RunRequest:
        trace = tracing.current() or self.request.trace
        return RunRequest(name, version, payload, config, caller=self.request.caller, trace=trace, **more)

    async def _child(
        self, place: str, digest: str, name: str, prepare: Prepare, notice: Notice | None = None,
        proposal: str | None = None, *, mail: bool = False,
    ) -> ChildEnded:  # fmt: skip
        """Call for a child and wait for its end, or find both in the log. `prepare` makes its request, given its id.

        `mail`: messages that come for this run meanwhile are for the child.
        """
        engine = self.worker.engine
        known = self.replay.children.get(place)
        exists = False
        if known is not None and known[0].input == digest:
            called, ended, seq = known
            if ended is None and called.run in self._children and self._children[called.run].done():
                ended = self._children[called.run].result()
            if ended is not None:
                self._passed(seq)
                return ended
            child = called.run
            exists = await engine.has_run(child)
        else:
            if known is not None and known[1] is None:
                self.worker.cancel_soon(known[0].run, "its parent calls something else now")
                self._child_keys.pop(known[0].run, None)
            child = new_id()
            called = ChildCalled(place, child, name, digest, notice, proposal)
            self.replay.children[place] = (called, None, 0)
            self.log.append(called)
            await self.log.flush()
        self._child_keys[child] = place
        future = self._children.setdefault(child, self.loop.create_future())
        if not exists:
            try:
                await engine.submit_child(await prepare(child), child, self.log.row)
            except Exception as error:
                self._child_keys.pop(child, None)
                if notice is not None and isinstance(error, Invalid):
                    await engine.store.undelegate(child)  # it never came to be, and counts for nothing
                raise
        await self._pull()
        passing = self.loop.create_task(self._pass_on(child)) if mail else None
        try:
            ended = await self._wait(asyncio.shield(future))
        finally:
            if passing is not None:
                passing.cancel()
                await asyncio.wait([passing])
        assert isinstance(ended, ChildEnded)
        return ended

    async def _pass_on(self, child: str) -> None:
        """Send on what is sent to this run. Where the process dies between the two, it is sent on again."""
        while True:
            message = await self.receive(None)
            place = f"passed:{self._read}"
            if place in self.replay.records:
                continue
            try:
                await self.worker.engine.send(child, message, sealed=True)
            except AlreadyFinished:
                self._read -= 1  # the next child gets it
                return
            except asyncio.CancelledError:
                self._read -= 1
                raise
            record = Recorded(place)
            self.replay.records[place] = (0, record)
            self.log.append(record)

    # -- members of a team --------------------------------------------------------------------------------

    @property
    def authority(self) -> Authority | None:
        return self.request.authority

    async def delegate(
        self, target: str, summary: str, attachments: list[Part | str], rule: str | None, reason: str | None,
        scope: Scope | None, inputs: dict[str, Any], output: Any, on_inquiry: OnInquiry | None, timeout: float | None,
        key: str | None,
    ) -> Any:  # fmt: skip
        """Hand over a task. To one's own overseer: propose what was done, and give back the verdict."""
        self._check_alive()
        if self.authority is None and not await self.worker.engine.is_member(target):
            raise InvalidRequest("only a member of a team delegates; call other agents with ctx.call")
        parts = [TextPart(part) if isinstance(part, str) else part for part in attachments]
        said = [Message("user", [TextPart(summary), *parts])]
        handover = Handover(said, summary, rule, reason, scope)
        overseer = self.worker.engine.reviewer_of(self.request, target)
        if overseer is None:
            return await self._hand_over(target, summary, inputs, None, None, timeout, key, handover)
        return await self._propose(target, overseer, handover, parts, output, on_inquiry, key)

    async def _hand_over(
        self, name: str, input_: Any, inputs: dict[str, Any], config: Any, thread: str | None, timeout: float | None,
        key: str | None, handover: Handover,
    ) -> Any:  # fmt: skip
        engine = self.worker.engine
        member = engine.member(self.authority, name)
        if isinstance(input_, str):
            text = member.card.input_text if member is not None else "text"
            input_ = _as_text(name, text, input_)
        payload = {**(input_ or {}), **msgspec.to_builtins(inputs)}
        values.check(payload, InvalidInput, what="input")
        ended = await self.delegated(
            name, member, member.run_name if member is not None else name, payload, handover, key,
            config=config, thread=thread, timeout=timeout,
        )  # fmt: skip
        return _child_result(name, ended)

    async def delegated(
        self, name: str, member: Member | None, run_name: str, payload: Any, handover: Handover, key: str | None, *,
        config: Any = None, thread: str | None = None, timeout: float | None = None, proposal: str | None = None,
        mail: bool = False,
    ) -> ChildEnded:  # fmt: skip
        """Through the gate: a child that the authority of this run allows, or a refusal in the log."""
        engine, row, authority = self.worker.engine, self.log.row, self.authority
        place = self._key("call", name, key)
        assignment = msgspec.to_builtins(handover.assignment)
        scope = msgspec.to_builtins(handover.scope)
        digest = values.digest(
            [name, payload, config, thread, msgspec.to_builtins(handover.messages), scope, assignment]
        )
        past = self.replay.refused.get(place)
        if past is not None and past[1].input == digest:
            self._passed(past[0])
            raise _refusal(past[1].code, past[1].reason)
        known = self.replay.children.get(place)
        if known is None or known[0].input != digest:
            await self._or_refuse(engine.check_delegation(row, authority, name), place, digest, name)
        assert member is not None  # nobody else passes the gate
        assert authority is not None

        async def prepare(child: str) -> RunRequest:
            granted = await self._or_refuse(
                engine.admit_delegation(child, row, authority, member, handover.scope), place, digest, name, child
            )
            request = self._request(
                run_name, member.version, payload, config, thread=thread, timeout=timeout, messages=handover.messages,
                authority=granted, assignment=handover.assignment,
            )  # fmt: skip
            if handover.assignment is not None and handover.assignment.review is not None:
                request.authority = engine.review_authority(authority, granted)
            return request

        manifest = engine.manifest_of(authority)
        rule = manifest.delegate_rules.get(member.id) if manifest is not None else None
        notice = Notice(
            member.id, handover.rule or (rule.when_to_delegate if rule is not None else None), handover.reason,
            None if handover.summary is None else values.digest(handover.summary),
        )  # fmt: skip
        return await self._child(place, digest, run_name, prepare, notice, proposal, mail=mail)

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
            await self.log.flush()
            raise

    async def inner(self, name: str, request: RunRequest, key: str, *, mail: bool = False) -> ChildEnded:
        """A child that is part of how this run does its own work. It passes no gate: its authority is this run's."""
        self._check_alive()
        assert request.authority is not None
        told = [name, request.input, request.config, msgspec.to_builtins(request.assignment)]

        async def prepare(_: str) -> RunRequest:
            return request

        return await self._child(f"inner:{key}", values.digest(told), name, prepare, mail=mail)

    # -- proposing to one's overseer ----------------------------------------------------------------------

    def note(self, body: Emission) -> None:
        """What is shown will be judged: remember it, in the order in which it was shown."""
        if self.given is not None and isinstance(body, ArtifactAdded | MessageSent):
            self.given.append(body)

    def _proposed(self, output: Any) -> Result:
        given = self.given or []
        shown = Result(
            output,
            oversight.whole([body.artifact for body in given if isinstance(body, ArtifactAdded)]),
            [body.message for body in given if isinstance(body, MessageSent)],
            self.current_state(),
        )
        # A copy: the agent may change its own while the overseer looks, and must not change what it is shown.
        return msgspec.json.decode(msgspec.json.encode(shown), type=Result)

    async def _propose(
        self, name: str, overseer: Member, handover: Handover, parts: list[Part], output: Any,
        on_inquiry: OnInquiry | None, key: str | None,
    ) -> dict[str, Any]:  # fmt: skip
        engine, agent, authority = self.worker.engine, self.agent, self.authority
        assert agent is not None
        assert authority is not None
        assert self.request.assignment is not None
        if output is None:
            output = {agent.card.output_text or "text": handover.summary}
        elif agent.output is not None:
            output = agent.output.encode(output)
        agent.check_output.check(output, InvalidOutput)
        for place, part in enumerate(parts):
            await self.show(ArtifactAdded(Artifact(f"proposed-{place + 1}", parts_from(part))))
        exchanges = self._exchanges = self._exchanges or []
        turn = 0
        while True:
            engine.check_patience(authority, [*self.request.assignment.earlier, *exchanges])
            result = self._proposed(output)
            proposal = Proposal(
                authority.path[-1], result.hash, result, handover.summary,
                [*self.request.assignment.earlier, *exchanges],
            )  # fmt: skip
            turn += 1
            # Without a scope: whoever is judged does not say what the overseer may use.
            asked = Handover(handover.messages, handover.summary, handover.rule, handover.reason)
            asked.assignment = Assignment(review=proposal)
            ended = await self.delegated(
                name, overseer, overseer.review_name, overseer.review_input(proposal), asked,
                None if key is None else f"{key}:{turn}", proposal=proposal.result_hash,
            )  # fmt: skip
            if ended.status is Status.TIMED_OUT:
                raise RunTimedOut(f"{overseer.id} gave no verdict in time")
            verdict = oversight.read_verdict(_child_result(name, ended), overseer.card.output_text)
            if verdict.decision == "approve" and not verdict.approves(proposal.result_hash):
                verdict = ReviewVerdict("inquire", inquiry="the approval was for another result")
            if verdict.decision != "approve":
                exchanges.append(Exchange(verdict.decision, verdict.text, proposal.result_hash))
                engine.check_patience(authority, [*proposal.earlier, exchanges[-1]])
            reply = await on_inquiry(verdict) if verdict.decision == "inquire" and on_inquiry is not None else None
            if reply is None:
                return dict(msgspec.to_builtins(verdict))
            exchanges[-1].reply = reply


def _as_text(name: str, field: str | None, text: str) -> dict[str, Any]:
    if field is None:
        raise InvalidInput(f"agent {name} has no text field; call it with its input's members")
    return {field: text}


def _refusal(code: str, reason: str) -> InterlinguaError:
    return REFUSALS.get(code, Denied)(reason)


def _child_result(agent: Agent[..., Any] | str, ended: ChildEnded) -> Any:
    if ended.status is not Status.SUCCEEDED:
        error = ended.error or ErrorInfo("run_failed", f"it {ended.status.value}")
        name = agent if isinstance(agent, str) else agent.card.name
        raise ChildFailed(f"agent {name}: {error.message}", error=error, run=ended.run)
    output = ended.output
    codec = None if isinstance(agent, str) else agent.output
    if codec is None or codec.codec is None:
        return output
    return codec.codec.decode(output if codec.wrap is None else output.get(codec.wrap), InvalidOutput)

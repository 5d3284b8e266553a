"""Runs that stand in front of others: of a team, before its first agent, and of an overseen agent, before its work.

An overseen agent works in a sealed run. What comes of that (output, artifacts, messages, thread state) is read from its
log here, proposed to the overseer, and shown only when a verdict approves exactly that. Nothing is recorded of it
before on the log that others read: everything that is needed to go on after a crash is in the sealed logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ...model import json_values
from ...model.card import Schema
from ...model.content import Message, TextPart
from ...model.delta import ABSENT, Joiner, compose_all
from ...model.errors import ErrorInfo, InterlinguaError, QuestionExpired, RunTimedOut, all_errors
from ...model.events import ArtifactAdded, ChildEnded, Form, MessageSent, OutputDelta, Said
from ...model.run import RunRequest
from ...model.status import Status
from ...model.team.manifest import USER
from ...model.team.oversight import Assignment, Exchange, Proposal, Result, ReviewVerdict, read_verdict, verdict_schema
from ..agents.agent import Agent
from ..agents.mount_path import MOUNTED_FROM
from ..agents.question_types import Question, question_codec
from ..observe import tracing
from .conversation import RESULT_HASH, result_message, unverified, verdict_message
from .delegation import Handover, Task
from .finished_work import Work
from .member_run import MemberRun
from .ports import TeamMember

if TYPE_CHECKING:
    from ..handler.context import Context


class Review(Question[ReviewVerdict]):
    """Asks if a result may be passed on."""

    agent: str
    result_hash: str
    result: Any
    earlier: list[Any] = msgspec.field(default_factory=list)

    def __prompt__(self) -> str:
        return f"May {self.agent} hand over this result?"

    def __answer_schema__(self) -> Schema:
        return verdict_schema(self.result_hash)


REVIEW = question_codec(Review)


class Failed(InterlinguaError):
    """The error of another run, as this one's own."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message, details=info.details, transient=info.transient)
        self._info = info

    def info(self) -> ErrorInfo:
        return self._info


def _member_run(ctx: Context[Any, Any]) -> MemberRun:
    member = ctx._run.member
    assert isinstance(member, MemberRun)
    return member


# -- the team -------------------------------------------------------------------------------------------------


async def orchestrate(ctx: Context[Any, Any], entry: TeamMember, input_: dict[str, Any]) -> Any:
    run, member = ctx._run, _member_run(ctx)
    data = run.data
    # A process without the team's code may have taken the request in.
    request = member.ports.directory.begin_task(data.request, data.row.created_at)
    assert request.authority is not None
    authority = msgspec.structs.replace(request.authority, root=data.row.id)
    data.request = msgspec.structs.replace(request, authority=authority)
    data.team = member.conversation
    text = input_.get(entry.card.input_text or "")
    messages = [
        msgspec.structs.replace(message, parts=[unverified(part) for part in message.parts])
        for message in data.request.messages
    ]
    handover = Handover(messages, text if isinstance(text, str) else None, assignment=run.thread.lend())

    async def attempt(_: str, place: str) -> ChildEnded:
        task = Task(entry.id, entry, entry.run_name, input_, handover, data.request.config, mail=True)
        return await member.delegation.delegate(task, place)

    ended = await member.errors.run(entry.id, "call:entry", attempt)
    if ended.status is not Status.SUCCEEDED:
        raise Failed(ended.error or ErrorInfo("run_failed", f"{entry.id} {ended.status.value}"))
    if ended.run not in member.delegation.files:
        return ended.output  # somebody answered in place of the agent
    work = await Work.of(member.ports.logs, ended.run)
    for body in work.shown:
        await run.output.show(msgspec.structs.replace(body, step=None))
    if work.usage:
        ctx.usage(**work.usage)
    return _hand_back(ctx, work)


def _hand_back(ctx: Context[Any, Any], work: Work) -> Any:
    if work.result.state is not None:
        ctx.state = json_values.copy(work.result.state)
    return work.result.output


# -- an overseen agent ----------------------------------------------------------------------------------------


def overseen(member: TeamMember, work: Agent[..., Any], overseer: TeamMember | None, name: str) -> Agent[..., Any]:
    """Make the agent that the delegator of an overseen agent sees. `overseer` is None where the user oversees it."""
    metadata = {key: value for key, value in work.card.metadata.items() if key != MOUNTED_FROM}
    card = msgspec.structs.replace(work.card, name=name, metadata=metadata)

    async def oversee(input: dict[str, Any], ctx: Any) -> Any:  # noqa: A002
        return await _Oversight(ctx, member, work, overseer).run(input)

    return Agent(card, oversee, shape="async", ctx_param="ctx", questions=[REVIEW])


class _Oversight:
    """One task of an overseen agent: work and reviews by turns, until a result is approved or patience ends."""

    def __init__(
        self, ctx: Context[Any, Any], member: TeamMember, work: Agent[..., Any], overseer: TeamMember | None
    ) -> None:
        self.ctx = ctx
        self.handler_run = ctx._run
        self.member_run = _member_run(ctx)
        self.member = member
        self.work = work
        self.overseer = overseer
        assert self.handler_run.data.authority is not None
        self.authority = self.handler_run.data.authority
        self.earlier: list[Exchange] = []
        self.reviews = 0
        self.talk: list[Said] = []  # of reviews that were not the agent's own idea

    async def run(self, input_: dict[str, Any]) -> Any:
        turn = 0
        while True:
            turn += 1
            ended = await self._work(input_, f"work:{turn}")
            done = await Work.of(self.member_run.ports.logs, ended.run)
            if ended.status is not Status.SUCCEEDED:
                raise Failed(_withheld(self.member, done.error, ended.status))
            for exchange in done.exchanges:
                self._said(exchange)
            if done.result.hash in done.approved or await self._approved(done.result):
                return await self._release(done)

    async def _work(self, input_: dict[str, Any], key: str) -> ChildEnded:
        request = self.handler_run.data.request
        before = request.assignment
        assignment = self.handler_run.thread.lend(
            sealed=True, earlier=list(self.earlier), review=before.review if before else None
        )
        card = self.work.card
        asked = RunRequest(
            card.name, card.version, input_, request.config, messages=request.messages, metadata=request.metadata,
            caller=request.caller, trace=tracing.current(request.trace), authority=self.authority,
            assignment=assignment, timeout=request.timeout,
        )  # fmt: skip

        async def prepare(_: str) -> RunRequest:
            return asked

        arguments = [card.name, input_, request.config, msgspec.to_builtins(assignment)]
        return await self.member_run.delegation.inner(card.name, prepare, key, arguments, mail=True)

    def _said(self, exchange: Exchange) -> None:
        self.earlier.append(exchange)
        self.member_run.ports.gate.check_patience(self.authority, self.earlier)

    async def _approved(self, result: Result) -> bool:
        """Ask the overseer to approve. False: the agent has to work again, with what the overseer said."""
        hash_, note = result.hash, None
        while True:
            proposal = Proposal(self.authority.path[-1], hash_, result, None, list(self.earlier), note)
            self.reviews += 1
            verdict = await self._verdict(proposal, f"review:{self.reviews}")
            if verdict.approves(hash_):
                return True
            if verdict.decision != "approve":
                self._said(verdict.about(hash_))
                return False
            note = f"the approval was for the result {verdict.result_hash[:80]!r}, and this one is {hash_}"
            self._said(Exchange("inquire", note, hash_))

    async def _verdict(self, proposal: Proposal, key: str) -> ReviewVerdict:
        gate, data, overseer = self.member_run.ports.gate, self.handler_run.data, self.overseer
        if overseer is None:
            return await self._ask(proposal, key)
        label = self.talk[0].task if self.talk else ""

        async def prepare(child: str) -> RunRequest:
            granted = await gate.admit_review(child, data.row, self.authority, overseer, label)
            return RunRequest(
                overseer.review_name, overseer.version, overseer.review_input(proposal), caller=data.request.caller,
                trace=tracing.current(data.request.trace), authority=granted,
                assignment=Assignment(sealed=True, review=proposal),
            )  # fmt: skip

        arguments = [overseer.review_name, msgspec.to_builtins(proposal)]
        count = await gate.count_review(data.row, self.authority, overseer, label)
        ended = await self.member_run.delegation.inner(overseer.review_name, prepare, key, arguments, count=count)
        if ended.status is Status.TIMED_OUT:
            raise RunTimedOut(f"{overseer.id} gave no verdict on the result of {proposal.agent} in time")
        done = await Work.of(self.member_run.ports.logs, ended.run)
        if ended.status is not Status.SUCCEEDED:
            raise Failed(_withheld(overseer, done.error, ended.status))
        verdict = read_verdict(done.result.output, overseer.card.output_text)
        self._remember(proposal, done, verdict)
        return verdict

    def _remember(self, proposal: Proposal, done: Work, verdict: ReviewVerdict) -> None:
        """Remember the review for when others may know of it: as if the agent had asked for it itself."""
        made = done.created.request.authority
        assert made is not None
        mine, about = self.authority, {RESULT_HASH: proposal.result_hash}
        if not any(said.message.metadata.get(RESULT_HASH) == proposal.result_hash for said in self.talk):
            asked = Message("agent", [TextPart("Please review.")], sender=mine.me, metadata=about)
            self.talk.append(
                Said(made.task, mine.me, made.me, "delegation", asked, time=done.began, key=f"review:{self.reviews}")
            )
        to = mine.delegator if verdict.decision == "approve" else mine.me
        form: Form = "inquiry" if verdict.decision == "inquire" else "message"
        message = verdict_message(verdict, made.me, proposal.result_hash)
        key = f"review:{self.reviews}:verdict"
        self.talk.append(Said(made.task, made.me, to, form, message, time=done.ended, key=key))
        # Each review is a run of its own, with keys of its own.
        self.talk.extend(msgspec.structs.replace(one, key=f"review:{self.reviews}:{one.key}") for one in done.held)

    async def _ask(self, proposal: Proposal, key: str) -> ReviewVerdict:
        question = Review(
            proposal.agent, proposal.result_hash, msgspec.to_builtins(proposal.result),
            msgspec.to_builtins(proposal.earlier),
        )  # fmt: skip
        seconds = self.member.team.limits_of(self.member.manifest).review_seconds
        try:
            verdict: ReviewVerdict = await self.handler_run.questions.ask(
                question, seconds, key, REVIEW, answerer=self.handler_run.data.request.caller.id
            )
        except QuestionExpired:
            raise RunTimedOut(f"nobody gave a verdict on the result of {proposal.agent} in time") from None
        return msgspec.structs.replace(verdict, attachments=[unverified(part) for part in verdict.attachments])

    async def _release(self, done: Work) -> Any:
        """Publishes the approved result, and nothing else of the work."""
        deltas = [body.delta for body in done.shown if isinstance(body, OutputDelta)]
        joined = Joiner()
        for delta in deltas:
            joined.add(delta)
        if joined.value is not ABSENT and joined.value == done.result.output:
            await self.handler_run.output.show(OutputDelta(compose_all(deltas)))
        for artifact in done.result.artifacts:
            await self.handler_run.output.show(ArtifactAdded(artifact))
        for message in done.result.messages:
            await self.handler_run.output.show(MessageSent(message))
        self.talk += await done.reviews(self.member_run.ports.logs)
        self._tell(done, await done.below(self.member_run.ports.logs))
        return _hand_back(self.ctx, done)

    def _tell(self, done: Work, below: list[Said]) -> None:
        """Tell the team what was said about this result, and the approval, which brings it."""
        hash_, say_once = done.result.hash, self.member_run.conversation.say_once
        held = bool(self.handler_run.data.row.sealed)  # it works for somebody whose own work is not approved yet
        about = [said for said in (*done.held, *self.talk) if said.message.metadata.get(RESULT_HASH) == hash_]
        result = result_message(done.result.output, self.member.card.output_text, self.authority.me)
        brought = [
            part for part in (*result.parts, *(p for a in done.result.artifacts for p in a.parts))
            if not isinstance(part, TextPart) or part.text
        ]  # fmt: skip
        for said in sorted([*about, *below], key=lambda one: one.time or 0):
            message = said.message
            if message.metadata.get("verdict") == "approve" and said in about:
                metadata = {**message.metadata, "final": True}
                message = msgspec.structs.replace(message, parts=[*message.parts, *brought], metadata=metadata)
            say_once(
                f"told:{said.key}", said.form, said.task, said.sender, said.recipient, message, code=said.code,
                time=said.time, held=held,
            )  # fmt: skip
        if not any(said.message.metadata.get("verdict") == "approve" for said in about):  # by the user
            verdict = verdict_message(ReviewVerdict("approve"), USER, hash_)
            verdict.parts.extend(brought)
            verdict.metadata["final"] = True
            say_once(
                "told:approved", "message", self.authority.task, USER, self.authority.delegator, verdict, held=held
            )  # fmt: skip


def _withheld(member: TeamMember, error: ErrorInfo | None, status: Status) -> ErrorInfo:
    """The error that others get of a failure: its code, where that says nothing of the work. The rest stays sealed."""
    known = {cls.code for cls in all_errors()} | {error_type.code for error_type in member.card.errors}
    code = error.code if error is not None and error.code in known else "run_failed"
    message = f"{member.id} did not finish: it {status.value.replace('_', ' ')} ({code})"
    return ErrorInfo(code, message, error.transient if error is not None else False)

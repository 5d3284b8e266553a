"""Agents that propose what they did to their own overseer, instead of waiting until they are done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ...model.content import Artifact, Message, Part, TextPart, parts_from
from ...model.errors import InvalidOutput, RunTimedOut
from ...model.events import ArtifactAdded, Emission, Form, MessageSent
from ...model.status import Status
from ...model.team import oversight
from ...model.team.oversight import Assignment, Exchange, Proposal, Result, ReviewVerdict
from ..handler.branches import inside
from ..handler.child_runs import Calling, Handover, OnInquiry, child_result
from .conversation import RESULT_HASH, sound, verdict_message

if TYPE_CHECKING:
    from .members import Member


class Proposing(Calling):
    """The part of an Execution that proposes."""

    _exchanges: list[Exchange] | None = None  # what came of proposals of this run that were not approved
    _reviews = 0  # that this run has asked for
    given: list[Emission] | None = None  # artifacts and messages so far, where they will be proposed

    if TYPE_CHECKING:

        async def show(self, body: Emission) -> None: ...
        def current_state(self) -> Any: ...

    def note(self, body: Emission) -> None:
        """What is shown will be judged: remember it, in the order in which it was shown."""
        if self.given is not None and isinstance(body, ArtifactAdded | MessageSent):
            self.given.append(body)

    def _proposed(self, output: Any) -> Result:
        given = self.given or []
        shown = Result(
            output,
            oversight.join_chunks([body.artifact for body in given if isinstance(body, ArtifactAdded)]),
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
        for number, part in enumerate(parts):
            await self.show(ArtifactAdded(Artifact(f"proposed-{number + 1}", parts_from(part))))
        exchanges = self._exchanges = self._exchanges or []
        turn, base = 0, self.place("call", name, key)
        while True:
            others = self._reviews - len(exchanges)
            engine.gate.check_patience(authority, [*self.request.assignment.earlier, *exchanges], others)
            self._reviews += 1
            result = self._proposed(output)
            proposal = Proposal(
                authority.path[-1], result.hash, result, handover.summary,
                [*self.request.assignment.earlier, *exchanges],
            )  # fmt: skip
            turn += 1
            # Without a scope: whoever is judged does not say what the overseer may use.
            asked = Handover(handover.messages, handover.summary, handover.rule, handover.reason)
            asked.assignment = Assignment(review=proposal)
            first = self.notice_of(f"{base}:1")
            asked.label = first.task if turn > 1 and first is not None else ""
            place = f"{base}:{turn}"
            ended = await self.delegated(
                name, overseer, overseer.review_name, overseer.review_input(proposal), asked, place,
                proposal=proposal.result_hash,
            )  # fmt: skip
            if ended.status is Status.TIMED_OUT:
                raise RunTimedOut(f"{overseer.id} gave no verdict in time")
            verdict = oversight.read_verdict(child_result(name, ended), overseer.card.output_text)
            if verdict.decision == "approve" and not verdict.approves(proposal.result_hash):
                verdict = ReviewVerdict("inquire", inquiry="the approval was for another result")
            if verdict.decision != "approve":
                exchanges.append(verdict.about(proposal.result_hash))
                engine.gate.check_patience(authority, [*proposal.earlier, exchanges[-1]])
            self._tell_verdict(base, turn, verdict, proposal.result_hash)
            reply = None
            if verdict.decision == "inquire" and on_inquiry is not None:
                with inside(None):
                    reply = await on_inquiry(verdict)
            if reply is None:
                return dict(msgspec.to_builtins(verdict))
            exchanges[-1].reply = sound(reply, str, "reply")
            self._tell_reply(base, turn, reply, proposal.result_hash)

    def _tell_verdict(self, base: str, turn: int, verdict: ReviewVerdict, result_hash: str) -> None:
        """What the overseer said of a proposal, for when others may know."""
        notice, authority = self.notice_of(f"{base}:1"), self.authority
        if notice is None or authority is None:
            return
        to = authority.delegator if verdict.decision == "approve" else authority.me
        message = verdict_message(verdict, notice.recipient, result_hash)
        form: Form = "inquiry" if verdict.decision == "inquire" else "message"
        self.say_once(f"{base}:{turn}:verdict", form, notice.task, notice.recipient, to, message, held=True)

    def _tell_reply(self, base: str, turn: int, reply: str, result_hash: str) -> None:
        notice = self.notice_of(f"{base}:1")
        if notice is not None:
            message = Message("agent", [TextPart(reply)], sender=notice.sender, metadata={RESULT_HASH: result_hash})
            self.say_once(
                f"{base}:{turn}:reply", "message", notice.task, notice.sender, notice.recipient, message, held=True
            )

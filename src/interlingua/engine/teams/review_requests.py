"""Review requests: an agent proposes its result to its overseer before it ends."""

from __future__ import annotations

from typing import Any

import msgspec

from ...model.content import Artifact, Message, Part, TextPart, parts_from
from ...model.errors import InvalidOutput, RunTimedOut
from ...model.events import ArtifactAdded, Form, MessageSent
from ...model.status import Status
from ...model.team import oversight
from ...model.team.oversight import Assignment, Exchange, Proposal, Result, ReviewVerdict
from ..handler.branches import inside
from ..handler.calls import Calls
from ..handler.child_runs import child_result
from ..handler.handler_run import OnInquiry
from ..handler.output import Output
from ..handler.run_data import RunData
from ..handler.thread_state import ThreadState
from .conversation import RESULT_HASH, Conversation, sound, verdict_message
from .delegation import Delegation, Handover, Task
from .ports import TeamMember, TeamPorts


class ReviewRequests:
    """Asks the overseer of a run to judge what the run has done so far."""

    __slots__ = (
        "_calls",
        "_conversation",
        "_data",
        "_delegation",
        "_exchanges",
        "_output",
        "_ports",
        "_reviews",
        "_thread",
    )  # fmt: skip

    def __init__(
        self, data: RunData, calls: Calls, output: Output, thread: ThreadState, conversation: Conversation,
        delegation: Delegation, ports: TeamPorts,
    ) -> None:  # fmt: skip
        self._data = data
        self._calls = calls
        self._output = output
        self._thread = thread
        self._conversation = conversation
        self._delegation = delegation
        self._ports = ports
        self._exchanges: list[Exchange] = []  # what came of proposals of this run that were not approved
        self._reviews = 0  # that this run has asked for

    def _proposed(self, output: Any) -> Result:
        emitted = self._output.for_review or []
        shown = Result(
            output,
            oversight.join_chunks([body.artifact for body in emitted if isinstance(body, ArtifactAdded)]),
            [body.message for body in emitted if isinstance(body, MessageSent)],
            self._thread.current(),
        )
        # A copy: the agent may change its own while the overseer looks, and must not change what it is shown.
        return msgspec.json.decode(msgspec.json.encode(shown), type=Result)

    async def propose(
        self, name: str, overseer: TeamMember, handover: Handover, parts: list[Part], output: Any,
        on_inquiry: OnInquiry | None, key: str | None,
    ) -> dict[str, Any]:  # fmt: skip
        """Proposes the result of the run to its overseer until the overseer has no question. Returns the verdict."""
        authority, exchanges = self._data.authority, self._exchanges
        assert authority is not None
        output = await self._checked(output, handover.summary, parts)
        turn, base = 0, self._calls.place("call", name, key)
        while True:
            self._ports.gate.check_patience(authority, self._so_far(), self._reviews - len(exchanges))
            self._reviews += 1
            result = self._proposed(output)
            proposal = Proposal(authority.path[-1], result.hash, result, handover.summary, self._so_far())
            turn += 1
            verdict = await self._verdict(name, overseer, handover, proposal, base, turn)
            if verdict.decision != "approve":
                exchanges.append(verdict.about(proposal.result_hash))
                self._ports.gate.check_patience(authority, [*proposal.earlier, exchanges[-1]])
            self._tell_verdict(base, turn, verdict, proposal.result_hash)
            reply = None
            if verdict.decision == "inquire" and on_inquiry is not None:
                with inside(None):
                    reply = await on_inquiry(verdict)
            if reply is None:
                return dict(msgspec.to_builtins(verdict))
            exchanges[-1].reply = sound(reply, str, "reply")
            self._tell_reply(base, turn, reply, proposal.result_hash)

    def _so_far(self) -> list[Exchange]:
        assignment = self._data.request.assignment
        assert assignment is not None
        return [*assignment.earlier, *self._exchanges]

    async def _checked(self, output: Any, summary: str | None, parts: list[Part]) -> Any:
        """The output that is proposed. Its attachments are shown as artifacts."""
        agent = self._data.agent
        assert agent is not None
        if output is None:
            output = {agent.card.output_text or "text": summary}
        elif agent.output is not None:
            output = agent.output.encode(output)
        agent.check_output.check(output, InvalidOutput)
        for number, part in enumerate(parts):
            await self._output.show(ArtifactAdded(Artifact(f"proposed-{number + 1}", parts_from(part))))
        return output

    async def _verdict(
        self, name: str, overseer: TeamMember, handover: Handover, proposal: Proposal, base: str, turn: int
    ) -> ReviewVerdict:
        # Without a scope: an agent that is judged does not say what the overseer may use.
        asked = Handover(handover.messages, handover.summary, handover.rule, handover.reason)
        asked.assignment = Assignment(review=proposal)
        first = self._conversation.notice_of(f"{base}:1")
        asked.label = first.task if turn > 1 and first is not None else ""
        task = Task(
            name, overseer, overseer.review_name, overseer.review_input(proposal), asked,
            proposal=proposal.result_hash,
        )  # fmt: skip
        ended = await self._delegation.delegate(task, f"{base}:{turn}")
        if ended.status is Status.TIMED_OUT:
            raise RunTimedOut(f"{overseer.id} gave no verdict in time")
        verdict = oversight.read_verdict(child_result(name, ended), overseer.card.output_text)
        if verdict.decision == "approve" and not verdict.approves(proposal.result_hash):
            return ReviewVerdict("inquire", inquiry="the approval was for another result")
        return verdict

    def _tell_verdict(self, base: str, turn: int, verdict: ReviewVerdict, result_hash: str) -> None:
        """Tell what the overseer said of a proposal, for when others may know."""
        notice, authority = self._conversation.notice_of(f"{base}:1"), self._data.authority
        if notice is None or authority is None:
            return
        to = authority.delegator if verdict.decision == "approve" else authority.me
        message = verdict_message(verdict, notice.recipient, result_hash)
        form: Form = "inquiry" if verdict.decision == "inquire" else "message"
        self._conversation.say_once(
            f"{base}:{turn}:verdict", form, notice.task, notice.recipient, to, message, held=True
        )

    def _tell_reply(self, base: str, turn: int, reply: str, result_hash: str) -> None:
        notice = self._conversation.notice_of(f"{base}:1")
        if notice is not None:
            message = Message("agent", [TextPart(reply)], sender=notice.sender, metadata={RESULT_HASH: result_hash})
            self._conversation.say_once(
                f"{base}:{turn}:reply", "message", notice.task, notice.sender, notice.recipient, message, held=True
            )

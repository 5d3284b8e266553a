"""The policy of a team says what is done when a delegation fails, error code by error code.

Every decision is an event, made once: a run that is replayed finds what was decided.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from ...model.card import Schema
from ...model.content import Message, TextPart
from ...model.error_numbers import ErrorNumber, number_of
from ...model.errors import ChildFailed, Denied, ErrorInfo, InterlinguaError, OverBudget, QuestionExpired, RunTimedOut
from ...model.events import ChildEnded, ErrorHandled
from ...model.run import RunRequest
from ...model.status import Status
from ...model.team import authority as gates
from ...model.team.authority import Action
from ...model.team.manifest import ORCHESTRATOR, USER
from ..agents.question_types import Question, question_codec
from ..handler.calls import Calls
from ..handler.questions import Questions
from ..handler.run_data import RunData
from ..handler.steps import Steps
from ..observe import tracing
from .conversation import Conversation
from .delegation import Delegation
from .ports import TeamMember, TeamPorts

Attempt = Callable[[str, str], Awaitable[ChildEnded]]


class Remedy(msgspec.Struct, omit_defaults=True):
    decision: Literal["retry", "fail", "answer"]
    text: str | None = None  # the result that is to be taken instead, where somebody knows it


class Escalation(Question[Remedy]):
    """Asks what to do after a member of the team failed."""

    agent: str
    task: str
    error_code: int
    error_message: str

    def __prompt__(self) -> str:
        what = f"{self.agent} failed with {self.error_code} ({self.error_message})"
        return f"{what}. Try again, give up, or answer for it?"

    def __answer_schema__(self) -> Schema:
        return {
            "type": "object",
            "properties": {
                "decision": {"enum": ["retry", "fail", "answer"]},
                "text": {"type": "string", "description": "With `answer`: the result to go on with"},
            },
            "required": ["decision"],
            "additionalProperties": False,
        }


ESCALATION = question_codec(Escalation)


class ErrorPolicy:
    """Applies the team's policy to failures of the agents that a run delegated to."""

    __slots__ = ("_calls", "_conversation", "_data", "_delegation", "_ports", "_questions", "_replay", "_steps")

    def __init__(
        self, data: RunData, calls: Calls, steps: Steps, questions: Questions, conversation: Conversation,
        delegation: Delegation, ports: TeamPorts,
    ) -> None:  # fmt: skip
        self._data = data
        self._replay = data.replay
        self._calls = calls
        self._steps = steps
        self._questions = questions
        self._conversation = conversation
        self._delegation = delegation
        self._ports = ports

    async def run(self, name: str, place: str, attempt: Attempt) -> ChildEnded:
        """Delegate to an agent; where that fails, again, or to another, as long as the policy says so."""
        tried, taken, at = [name], 0, place
        while True:
            refusal: InterlinguaError | None = None
            ended: ChildEnded | None = None
            try:
                ended = await attempt(tried[-1], at)
                if ended.status is Status.SUCCEEDED:
                    return ended
                error = ended.error or ErrorInfo("run_failed", f"it {ended.status.value}")
            except (Denied, OverBudget, RunTimedOut) as raised:
                refusal, error = raised, raised.info()
            answer: ChildEnded | None = None
            while True:
                action = self.decide(tried[-1], place, error, taken)
                taken += 1
                if action.do == "fail":
                    if refusal is not None:
                        raise refusal
                    assert ended is not None
                    return ended
                again, answer = await self._take(action, place, tried, error, ended, taken)
                if answer is not None:
                    return answer
                if again:
                    break
            at = f"{place}:again:{taken}"

    def decide(self, agent: str, place: str, error: ErrorInfo, taken: int, *, tool: bool = False) -> Action:
        """The next step of the policy, on record. A tool is tried again or fails: its caller is who fails then."""
        key = f"{place}:{taken + 1}"
        past = self._replay.handled.get(key)
        if past is not None and past[1].code == error.code:
            self._calls.passed(past[0])
            return Action(past[1].do, past[1].delay, past[1].to)
        team = self._ports.directory.teams.get(self._data.authority.team) if self._data.authority is not None else None
        # Failures further down were handled there: here, only the failure of the agent itself counts.
        number = ErrorNumber.FAILED if error.code == ChildFailed.code else number_of(error)
        action = team.policy.action(number, taken) if team is not None else Action("fail")
        if tool and action.do != "retry":
            action = Action("fail")
        if action.do != "fail" or taken:
            body = ErrorHandled(key, agent, error.code, number, action.do, action.to, action.delay, taken + 1)
            self._replay.handled[key] = (0, body)
            self._data.log.append(body)
        return action

    async def _take(
        self, action: Action, place: str, tried: list[str], error: ErrorInfo, ended: ChildEnded | None, taken: int
    ) -> tuple[bool, ChildEnded | None]:
        """Take an action. Returns whether to try again now, or the result to go on with."""
        if action.do == "retry":
            if action.delay:
                await self._steps.sleep(action.delay, f"{place}:{taken}")
            return True, None
        if action.do == "reassign":
            assert self._data.authority is not None
            left = [action.to] if action.to is not None else list(self._data.authority.delegates)
            if self._data.authority.agent == ORCHESTRATOR:
                # It starts nobody but the entry.
                left = [agent for agent in left if agent in self._data.authority.delegates]
            if not (left := [agent for agent in left if agent not in tried]):
                return False, None
            tried.append(left[0])
            return True, None
        remedy = await self._escalate(action.to, place, tried[-1], error, taken)
        if remedy.decision != "answer":
            return remedy.decision == "retry", None
        member = self._ports.directory.member(self._data.authority, tried[-1])
        output = {member.card.output_text or "text" if member is not None else "text": remedy.text or ""}
        run, head = (ended.run, ended.head) if ended is not None else ("", "")
        return False, ChildEnded(place, run, Status.SUCCEEDED, head, output)

    async def _escalate(self, to: str | None, place: str, agent: str, error: ErrorInfo, taken: int) -> Remedy:
        """Escalates a failure, and applies the decision."""
        directory, authority = self._ports.directory, self._data.authority
        assert authority is not None
        failed = directory.member(authority, agent)
        if to == "overseer":
            to = failed.manifest.overseer if failed is not None else None
        if to is None:
            return Remedy("fail")
        task = authority.task or "the task"
        if authority.task:
            message = Message("agent", [TextPart(f"{agent}: {error.message}")], sender=authority.me)
            held = bool(self._data.row.sealed) and to != USER
            self._conversation.say_once(
                f"{place}:{taken}:told", "error", task, authority.me, to, message, code=error.code, held=held
            )
        if to == ORCHESTRATOR:
            return Remedy("fail")  # it knows now; the agent that delegated has the error
        if to == USER:
            question = Escalation(agent, task, int(number_of(error)), error.message)
            try:
                remedy: Remedy = await self._questions.ask(question, None, f"{place}:{taken}", ESCALATION)
            except QuestionExpired:
                return Remedy("fail")  # nobody wanted to say: what failed is what counts
            return remedy
        overseer = directory.member(authority, to)
        return Remedy("fail") if overseer is None else await self._ask_overseer(overseer, place, agent, error, taken)

    async def _ask_overseer(self, overseer: TeamMember, place: str, agent: str, error: ErrorInfo, taken: int) -> Remedy:
        assert self._data.authority is not None
        prompt = (
            f"{agent} failed with {int(number_of(error))} ({error.message}). Answer with the one word retry to have it "
            "tried again; anything else ends it."
        )
        granted = gates.shrink(
            self._data.authority,
            overseer.manifest,
            overseer.team.limits_of(overseer.manifest),
            now=self._data.clock.now(),
        )
        request = RunRequest(
            overseer.run_name, overseer.version, {overseer.card.input_text or "text": prompt},
            caller=self._data.request.caller, trace=tracing.current(self._data.request.trace), authority=granted,
        )  # fmt: skip

        async def prepare(_: str) -> RunRequest:
            return request

        key = f"{place}:{taken}:overseer"
        ended = await self._delegation.inner(overseer.run_name, prepare, key, [overseer.run_name, prompt])
        output = ended.output if ended.status is Status.SUCCEEDED else None
        text = output.get(overseer.card.output_text or "text") if isinstance(output, dict) else None
        return Remedy("retry" if isinstance(text, str) and text.strip().strip(".").lower() == "retry" else "fail")

"""The tools of a model in a team: it delegates tasks, proposes results to its overseer, talks, and gives verdicts."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from ..engine.agents.question_types import AskText
from ..engine.handler.context import Context
from ..model.card import Schema
from ..model.errors import InterlinguaError, InvalidRequest
from ..model.team.manifest import ORCHESTRATOR, USER, Manifest, Team
from ..model.team.oversight import ReviewVerdict, read_verdict
from ..model.team.tools import ToolSpec
from .provider import Call
from .tool_calls import ATTACHMENTS, Given, Toolbox, Work, api_name, as_text, from_id, message_text, with_attachments
from .waiting import Heard, Mailbox, Proposal, Waiting, Wakefulness

PATIENCE = 600.0  # seconds to wait for the reply of an agent, which may never give one
DELEGATE = "delegate_to_"
VERDICT = "verdict"

_RECIPIENT: Schema = {"type": "string", "description": f"The id of an agent of the task, or {USER}"}
_TASK: Schema = {"type": "string", "description": "The id of the task, such as T1.2"}
_TEXT: Schema = {"type": "string"}


def _schema(required: dict[str, Schema], **more: Schema) -> Schema:
    return {"type": "object", "properties": {**required, **more}, "required": list(required)}


class _Delegated(msgspec.Struct):
    agent: str
    key: str
    start: Callable[[], Coroutine[Any, Any, Any]]
    done: bool = False


class Teamwork(Toolbox):
    """The tools of a model in a team."""

    def __init__(
        self, ctx: Context[Any, Any], team: Team, manifest: Manifest, specs: list[ToolSpec], mailbox: Mailbox
    ) -> None:
        super().__init__(ctx, team, manifest, specs)
        self._wakefulness = Wakefulness(ctx)
        self._waiting = Waiting(ctx, mailbox, self._wakefulness)
        self._delegated: list[_Delegated] = []
        self._proposals: dict[str, Proposal] = {}  # by the key of the call
        assert ctx.authority is not None
        for agent in ctx.authority.delegates:
            self._offer_delegate(agent)
        self._offer_talk()
        if ctx.review is not None:
            self._offer_verdict()

    @property
    def unfinished(self) -> list[str]:
        """Returns the delegated tasks that the model no longer waits for."""
        notices = ((one.key, self._waiting.notice(one.key)) for one in self._delegated if not one.done)
        return [notice.task if notice is not None else key for key, notice in notices]

    async def run(self, calls: list[Call]) -> list[Given]:
        self._waiting.interrupted = False
        return await super().run(calls)

    async def do(self, work: Work) -> Given:
        self._wakefulness.begin_call()
        try:
            return await super().do(work)
        finally:
            self._wakefulness.end_call()

    async def close(self) -> None:
        self._wakefulness.close()
        await self._stop_proposals()

    async def _stop_proposals(self) -> None:
        for proposal in self._proposals.values():
            await proposal.stop()

    # -- handing over -------------------------------------------------------------------------------------

    def _offer_delegate(self, agent: str) -> None:
        rule = self._manifest.delegate_rules.get(agent)
        about = [rule.when_to_delegate if rule is not None else ""]
        schema = _schema(
            {"context_summary": {"type": "string", "description": "What has been done, and what remains to be done"}},
            reason={"type": "string", "description": "Why this agent, now"},
            attachments=ATTACHMENTS,
        )
        name = api_name(DELEGATE + agent)
        if agent != self._manifest.overseer:
            about.append(f"Hands a task to {agent}, and gives back what came of it.")

            async def delegate(arguments: dict[str, Any], key: str) -> Given:
                return await self._delegate(agent, arguments, key)

            self.offer(name, "\n".join(filter(None, about)), schema, delegate)
            return
        about.append(
            f"{agent} is your overseer: this proposes your result, and gives back the verdict. With the approval your "
            "task is done, and exactly what you proposed is handed over."
        )
        schema["properties"]["result"] = {
            "type": "string",
            "description": "The text of the result to hand over; context_summary, where it is left out",
        }

        async def propose(arguments: dict[str, Any], key: str) -> Given:
            return await self._propose(agent, arguments, key)

        # Alone: attachments show in the log, and events of other calls would come in any order.
        self.offer(name, "\n".join(filter(None, about)), schema, propose, alone=True)
        self.offer(
            "answer_inquiry", f"Answers what {agent} asked about your result, and gives back the next verdict.",
            _schema({"task": _TASK, "reply": _TEXT}), self._answer_inquiry, alone=True,
        )  # fmt: skip

    def _not_offered(self, name: str, arguments: dict[str, Any], key: str) -> Work:
        agent = from_id(name.removeprefix(DELEGATE))
        if not name.startswith(DELEGATE) or not agent:
            return super()._not_offered(name, arguments, key)
        summary = arguments.get("context_summary")
        told = {"context_summary": summary if isinstance(summary, str) else ""}
        return lambda: self._delegate(agent, told, key)

    async def _delegate(self, agent: str, arguments: dict[str, Any], key: str) -> Given:
        attachments = self.attached(arguments)

        async def start() -> Any:
            return await self._ctx.delegate(
                agent, arguments["context_summary"], attachments=attachments, reason=arguments.get("reason"), key=key
            )

        delegated = _Delegated(agent, key, start)
        self._delegated.append(delegated)
        return await self._wait_for_task(delegated, key)

    async def _wait_for_task(self, delegated: _Delegated, key: str) -> Given:
        try:
            heard, result = await self._waiting.task(key, delegated.key, delegated.start)
        except InterlinguaError:
            delegated.done = True
            raise
        if heard.ended:
            delegated.done = True
            return Given(with_attachments(as_text(result), getattr(result, "attachments", [])))
        return Given(await self._interruption(heard, delegated.agent, f"is still working on {heard.task}"))

    async def _interruption(self, heard: Heard, agent: str, doing: str) -> str:
        """Returns the text for the model when its wait is interrupted."""
        who = heard.who or agent
        go_on = f"call wait_for with {heard.task or who} to go on waiting."
        if heard.message is None:
            return f"{who} {doing}. Somebody else has a message for you; then {go_on}"
        message = message_text(await self._waiting.mailbox.show(heard.message))
        return f"{message}\n\n({who} {doing}. Reply with send_message where it needs a reply; then {go_on})"

    # -- proposing ----------------------------------------------------------------------------------------

    async def _propose(self, agent: str, arguments: dict[str, Any], key: str) -> Given:
        attachments = self.attached(arguments)
        summary: str = arguments["context_summary"]
        output: str = arguments.get("result") or summary
        await self._stop_proposals()  # this answers the inquiries about an earlier result
        proposal = self._proposals[key] = Proposal(
            lambda on_inquiry: self._ctx.delegate(
                agent, summary, attachments=attachments, reason=arguments.get("reason"), output=output,
                on_inquiry=on_inquiry, key=key,
            ),
            output,
        )  # fmt: skip
        return await self._wait_for_verdict(proposal, key, key)

    async def _wait_for_verdict(self, proposal: Proposal, of: str, key: str) -> Given:
        agent = self._manifest.overseer or ""
        heard = await self._waiting.proposal(key, of, proposal)
        if heard.inquiry:
            asked = with_attachments(proposal.inquiry, proposal.attached)
            return Given(
                f"{agent} asks about your result: {asked}\n\nAnswer with answer_inquiry (task "
                f"{heard.task or of}), or do what is missing and propose again."
            )
        if not heard.ended:
            return Given(await self._interruption(heard, agent, "has not decided yet"))
        verdict = await proposal.task
        if not isinstance(verdict, dict) or "decision" not in verdict:
            return Given(as_text(verdict))  # nothing of this run is reviewed: it has done its task
        if verdict["decision"] == "approve":
            return Given("approved", end=proposal.output)
        said = verdict.get("reason") or verdict.get("inquiry") or "it gives no reason"
        said = with_attachments(said, read_verdict(verdict).attachments)
        return Given(f"{agent} rejected your result: {said}\n\nDo what is missing and propose again.")

    async def _answer_inquiry(self, arguments: dict[str, Any], key: str) -> Given:
        task: str = arguments["task"]
        found = self._proposal(task)
        if found is None or not found[1].answer(arguments["reply"]):
            raise InvalidRequest(f"nobody asked anything about {task!r}")
        return await self._wait_for_verdict(found[1], found[0], key)

    def _proposal(self, task: str) -> tuple[str, Proposal] | None:
        """Returns the last proposal with this name."""
        for of, proposal in reversed(self._proposals.items()):
            if task in self._waiting.names(of):
                return of, proposal
        return None

    # -- talking ------------------------------------------------------------------------------------------

    def _offer_talk(self) -> None:
        says = _schema({"recipient": _RECIPIENT, "content": _TEXT}, attachments=ATTACHMENTS)
        waits = _schema(
            {"task": {"type": "string", "description": "The id of the task, such as T1.2, or of the agent"}}
        )
        self.offer("send_message", "Tells somebody something, without waiting for a reply.", says, self._send)
        self.offer("ask", "Asks somebody something, and gives back the reply.", says, self._ask)
        self.offer("wait_for", "Waits for a task that you handed over, or for a message of an agent.", waits,
                   self._wait_for)  # fmt: skip

    async def _send(self, arguments: dict[str, Any], key: str) -> Given:
        recipient: str = arguments["recipient"]
        await self._ctx.send(recipient, arguments["content"], attachments=self.attached(arguments), key=key)
        return Given(f"sent to {recipient}")

    async def _ask(self, arguments: dict[str, Any], key: str) -> Given:
        recipient: str = arguments["recipient"]
        attachments, review = self.attached(arguments), self._ctx.review
        if recipient == USER:
            wake = self._wakefulness.sleep()
            try:
                answer = await self._ctx.ask(AskText(message=arguments["content"]), attachments=attachments, key=key)
            finally:
                wake()
            return Given(answer.text)
        if recipient in (ORCHESTRATOR, self._ctx.me):
            raise InvalidRequest(f"{recipient} answers no questions")
        if review is not None and recipient == review.agent:
            raise InvalidRequest(f"{recipient} waits for your verdict: ask in a verdict that inquires")
        await self._ctx.send(recipient, arguments["content"], attachments=attachments, key=key)
        return await self._wait_for_reply(recipient, key)

    async def _wait_for_reply(self, sender: str, key: str) -> Given:
        heard = await self._waiting.message(key, sender, PATIENCE)
        if heard.ended:
            return Given(f"{sender} has not replied for {PATIENCE:g} seconds; it may have ended", failed=True)
        if heard.message is not None:
            return Given(message_text(await self._waiting.mailbox.show(heard.message)))
        return Given(await self._interruption(heard, sender, "has not replied yet"))

    async def _wait_for(self, arguments: dict[str, Any], key: str) -> Given:
        task: str = arguments["task"]
        for one in self._delegated:
            if not one.done and task in self._waiting.names(one.key):
                return await self._wait_for_task(one, key)
        if (proposed := self._proposal(task)) is not None:
            return await self._wait_for_verdict(proposed[1], proposed[0], key)
        if self._team.find(task) is None or task == self._ctx.me:
            waiting = ", ".join(self.unfinished) or "nothing"
            raise InvalidRequest(f"you wait for no task {task!r}: what you handed over and is not done is {waiting}")
        return await self._wait_for_reply(task, key)

    # -- verdicts -----------------------------------------------------------------------------------------

    def _offer_verdict(self) -> None:
        schema = _schema(
            {"decision": {"enum": ["approve", "inquire", "reject"]}},
            inquiry={"type": "string", "description": "With inquire: what you want to know, or have done"},
            reason=_TEXT,
            attachments=ATTACHMENTS,
        )
        about = "Your verdict on the result, with which your review ends. Nothing else approves it."
        self.offer(VERDICT, about, schema, self._decide, only=True)

    async def _decide(self, arguments: dict[str, Any], key: str) -> Given:
        assert self._ctx.review is not None
        # The hash is of the result that this run was shown: a model that copied one could be made to copy another.
        verdict = ReviewVerdict(
            arguments["decision"], self._ctx.review.result_hash, arguments.get("inquiry"), arguments.get("reason"),
            self.attached(arguments),
        )  # fmt: skip
        if verdict.decision == "inquire" and not verdict.text:
            raise InvalidRequest("a verdict that inquires says in `inquiry` what it wants to know")
        return Given(verdict.decision, end=msgspec.to_builtins(verdict))

"""The handler of an agent that a model drives, through pydantic-ai.

Each request to the model is a step, and the engine records each call of the model under the id that the model gave it:
after a crash no recorded request or call is repeated. The engine decides what a model may do; this module only
describes it, offers it and passes it on.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..engine.agents.agent import Agent
from ..engine.agents.question_types import AskText
from ..engine.definition import agent
from ..engine.handler.context import Context
from ..model import json_values
from ..model.content import Part, TextPart
from ..model.errors import OverBudget, StepFailed
from ..model.team.attachments import text_and_attached
from ..model.team.manifest import Manifest, Team
from ..model.team.oversight import Exchange, Proposal, ReviewVerdict
from .provider import Conversation, Model, ModelFailed, Reply, check_installed, failure
from .team_moves import VERDICT, Teamwork
from .tool_calls import INSET, as_text, inset, message_text, parts_text, with_attachments
from .waiting import Mailbox

REQUESTS = 50  # to the model, in one run
TIMEOUT = 300.0  # seconds, for one answer of the model


def thinker(
    team: Team, manifest: Manifest, model: str, *, requests: int = REQUESTS, timeout: float = TIMEOUT
) -> Agent[..., Any]:
    """Returns an agent that follows a manifest, driven by a model: `provider:name`, such as openai:gpt-5.

    `requests` limits the requests to the model in one run; `timeout` is the seconds for one answer.
    """
    asked = Model(model, timeout=timeout)
    check_installed(model)

    # As an overseer it finds the proposal in its context too, where only the engine puts one.
    @agent(asks=[AskText], description=manifest.options.description or f"{manifest.id} of the team {team.name}")
    async def think(text: str, ctx: Context[Any, Any], proposal: dict[str, Any] | None = None) -> str:
        async with asked:
            result: str = await _Mind(team, manifest, asked, ctx).work(text, requests)
            return result

    think.card = msgspec.structs.replace(think.card, name=manifest.id)
    think.digest = json_values.digest(msgspec.to_builtins(think.card))
    return think


class Turn(msgspec.Struct):
    """The record of one request to the model."""

    response: Any
    news: list[int]  # messages that it was shown with this request, by their place in the mailbox
    more: bool  # whether others came while it was thinking


class _Mind:
    """One run of an agent that a model drives."""

    def __init__(self, team: Team, manifest: Manifest, model: Model, ctx: Context[Any, Any]) -> None:
        self.team = team
        self.manifest = manifest
        self.model = model
        self.ctx = ctx
        ctx._run.waits.branches.engine_code = True
        self.mailbox = Mailbox(ctx)
        self.conversation = Conversation([manifest.system_prompt, _frame(team, manifest, ctx)])

    async def work(self, text: str, requests: int) -> Any:
        ctx = self.ctx
        assert ctx.authority is not None
        specs = await ctx.tools() if ctx.authority.tools else []
        for message in ctx.history:
            self.conversation.remember(message)
        self.conversation.tell(_task(ctx, text) if ctx.review is None else _review(ctx.review))
        toolbox = Teamwork(ctx, self.team, self.manifest, specs, self.mailbox)
        reminded = False
        try:
            for number in range(1, requests + 1):
                reply, more = await self._ask(toolbox, number)
                if reply.calls:
                    given = await toolbox.run(reply.calls)
                    for call, one in zip(reply.calls, given, strict=True):
                        if one.end is not None:
                            return one.end
                        self.conversation.give_back(call, one.content, failed=one.failed)
                elif reply.finish == "content_filter":
                    raise ModelFailed(f"the provider of {self.model.name} withheld the answer")
                elif not reply.text.strip():
                    self.conversation.tell("Your answer was empty. Call a tool, or give your answer as text.")
                elif ctx.review is not None:
                    # Free text never approves.
                    return msgspec.to_builtins(ReviewVerdict("inquire", ctx.review.result_hash, inquiry=reply.text))
                elif more:
                    self.conversation.tell(
                        "Your answer was not handed over yet, because messages came for you while you wrote it. Read "
                        "them, then give your whole answer again."
                    )
                elif (left := toolbox.unfinished) and not reminded:
                    reminded = True
                    self.conversation.tell(
                        f"You handed over {', '.join(left)}, which is not done. Call wait_for to have its result, "
                        "or give your whole answer again to end without it."
                    )
                else:
                    if reply.finish == "length":
                        await ctx.warn(f"the answer of {self.model.name} was cut off: it is as long as it may be")
                    return reply.text
        finally:
            await toolbox.close()
        raise OverBudget(f"{ctx.me} asked its model {requests} times and has no result; that is all it may ask")

    async def _ask(self, toolbox: Teamwork, number: int) -> tuple[Reply, bool]:
        """Returns the model's next reply, and if messages came for it meanwhile."""
        mailbox, conversation = self.mailbox, self.conversation

        async def request() -> Turn:
            await mailbox.look()
            news = mailbox.unseen()
            told = [message_text(await mailbox.show(place)) for place in news]
            response = await self.model.ask(conversation, toolbox.offered, told)
            await mailbox.look()
            return Turn(response, news, bool(mailbox.unseen()))

        try:
            turn = await self.ctx.step("model", request, key=f"model:{number}")
        except StepFailed as failed:
            raise failure(failed) from failed
        for place in turn.news:
            conversation.tell(message_text(await mailbox.show(place)))
        reply = conversation.hear(turn.response)
        self.ctx.usage(model_requests=1, **reply.usage)
        for thought in [*reply.thoughts, *([reply.text] if reply.calls and reply.text.strip() else [])]:
            await self.ctx.thought(thought)
        return reply, turn.more


# -- the messages to the model --------------------------------------------------------------------------------


def _frame(team: Team, manifest: Manifest, ctx: Context[Any, Any]) -> str:
    delegator, overseer = ctx.delegator or "whoever asked you", manifest.overseer
    task = f" Your task is {ctx.task}; {delegator} handed it to you." if ctx.task is not None else ""
    told = [
        f"You are {ctx.me}, an agent of the team {team.name}.{task}",
        "Other agents and the user may send you messages while you work; they begin with `Message from`, and lines "
        "of theirs after the first are indented. Only your tools reach them: what you write beside calls of tools "
        "nobody reads.",
    ]
    if ctx.review is not None:
        told.append(f"You review the result of another agent. End with one call of {VERDICT}, and nothing beside it.")
    elif overseer is None:
        told.append(f"An answer without a call of a tool ends your task; it is your result, and goes to {delegator}.")
    else:
        told.append(
            f"An answer without a call of a tool ends your task. It is your result: {overseer} reviews it, and with "
            f"its approval it goes to {delegator}."
        )
    return "\n".join(told)


def _task(ctx: Context[Any, Any], text: str) -> str:
    attached: list[Part] = []
    for message in ctx.messages:
        said, more = text_and_attached(message)
        # A door's texts are all in the input already; in a team, texts are attached too.
        attached.extend(part for part in more if said == text or not isinstance(part, TextPart))
    told = [text, *([parts_text(attached)] if attached else [])]
    if ctx.inquiries:
        told.append("You have worked on this before. Your overseer has not approved what you gave:")
        told.extend(_exchange(one) for one in ctx.inquiries)
    return "\n\n".join(told)


def _review(proposal: Proposal) -> str:
    result = proposal.result
    told = [f"{proposal.agent} proposes this result, all of which is indented:", INSET + inset(as_text(result.output))]
    if proposal.summary is not None and proposal.summary != as_text(result.output):
        told.insert(0, f"{proposal.agent} says: {inset(proposal.summary)}")
    for artifact in result.artifacts:
        told.append(f"With it comes {inset(artifact.name or artifact.id)}. {parts_text(artifact.parts)}")
    told.extend(f"It would also say: {message_text(message)}" for message in result.messages)
    if proposal.earlier:
        told.append("What was said of its earlier results:")
        told.extend(_exchange(one) for one in proposal.earlier)
    if proposal.note is not None:
        told.append(f"Your last verdict did not count: {proposal.note}")
    return "\n\n".join(told)


def _exchange(one: Exchange) -> str:
    said = f"{'rejected' if one.decision == 'reject' else 'asked'}: {inset(one.text)}"
    said = with_attachments(said, one.attachments)
    return said if one.reply is None else f"{said}\nreply: {inset(one.reply)}"

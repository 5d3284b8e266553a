"""A team whose member is overseen: what it makes is secret until it is approved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import interlingua as il
from interlingua.model.team.authority import Limits
from interlingua.model.team.oversight import Proposal, ReviewVerdict
from tests.kit.teams import member, passes_on, team

Judge = Callable[[Proposal], Any]
SECRET = "forty-two"


@il.agent
async def analyst(ctx: il.Context[dict[str, Any], None], text: str) -> AsyncIterator[str]:
    """Shows everything that there is to show, and has said its secret in all of it."""
    await ctx.thought(f"I think of {SECRET}")
    await ctx.artifact(SECRET, name="report")
    await ctx.message(f"it is {SECRET}")
    await ctx.tool_call("t", title=SECRET, status="completed")
    if isinstance(ctx.state, dict):
        ctx.state["found"] = SECRET
    yield f"{text}: "
    yield SECRET


def judge(rule: Judge, seen: list[Proposal] | None = None) -> il.Agent[..., Any]:
    @il.agent
    async def qa(ctx: il.Context[None, None], text: str) -> Any:
        if ctx.review is None:
            return f"heard {text}"
        if seen is not None:
            seen.append(ctx.review)
        return rule(ctx.review)

    return qa


def approve(proposal: Proposal) -> ReviewVerdict:
    return ReviewVerdict("approve", proposal.result_hash)


def staff(
    eng: il.Engine, qa: il.Agent[..., Any], *, work: il.Agent[..., Any] = analyst, limits: Limits | None = None,
    lead: il.Agent[..., Any] = passes_on, overseer: str = "qa",
) -> None:  # fmt: skip
    """lead → analyst, whose overseer is qa."""
    handlers = {"lead": lead, "analyst": work, "qa": qa}
    manifests = [
        member("lead", "analyst"), member("analyst", "qa", overseer=overseer, limits=limits), member("qa"),
    ]  # fmt: skip
    eng.teams.add_team(team(*manifests), handlers)

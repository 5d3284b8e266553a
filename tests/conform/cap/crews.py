"""Teams that use all that the protocol has: instances side by side, parts of parts, tools, an overseer that asks back,
and failures that are passed up."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

import interlingua as il
from interlingua.engine.teams.members import TeamAgent
from interlingua.model.errors import RunTimedOut
from interlingua.model.team.authority import Policy, Step
from interlingua.model.team.manifest import Binding, Manifest, Server, Team
from interlingua.model.team.tools import ToolOutcome
from tests.engine.teams.test_tool_calls import Bench
from tests.kit.teams import member


def _team(name: str, *manifests: Manifest, policy: Policy | None = None) -> Team:
    made = Team(name, entry=manifests[0].id, description=f"The team {name}.")
    made.manifests = {manifest.id: manifest for manifest in manifests}
    made.servers = {name: Server(command=name.lower()) for name in ("Data", "Archive")}
    if policy is not None:
        made.policy = policy
    return made


def _bound(manifest: Manifest, server: str = "Data") -> Manifest:
    return msgspec.structs.replace(manifest, mcp_bindings=(Binding(server, ("read",), ("query",), "What we sold."),))


class _Bench(Bench):
    """Tool servers, of which one never answers in time."""

    async def call(self, server_id: str, *given: Any, **named: Any) -> ToolOutcome:
        if server_id == "Archive":
            raise RunTimedOut("MCP timeout.")
        return await super().call(server_id, *given, **named)


_BENCH = _Bench()  # teams of one process share their tool servers


def crew() -> il.Agent[..., Any]:
    """A lead with two helpers of one kind at the same time, somebody who hands over in turn, and an overseer."""
    both: list[str] = []
    full = asyncio.Event()

    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        rows = await ctx.tool("Data", "query")
        attached = [il.ToolResultPart("query", rows, "Data")]
        parts = await asyncio.gather(
            *(ctx.delegate("helper", f"{text}, part {n}", attachments=attached, key=str(n)) for n in (1, 2))
        )
        more = await ctx.delegate("middle", "What is left of it.")
        return " ".join(part["text"] for part in (*parts, more))

    @il.agent
    async def helper(ctx: il.Context[None, None], text: str) -> str:
        both.append(text)
        if len(both) % 2 == 0:
            full.set()
        await full.wait()
        await ctx.send("lead", f"{ctx.me} is at it.")
        return text.upper()

    @il.agent
    async def middle(ctx: il.Context[None, None], text: str) -> str:
        return str((await ctx.delegate("expert", f"{text} It takes an expert."))["text"])

    @il.agent
    async def expert(text: str) -> str:
        return text[::-1]

    @il.agent
    async def checker(ctx: il.Context[None, None], text: str) -> Any:
        assert ctx.review is not None
        if not ctx.review.earlier:
            await ctx.send("lead", "Look at this.", attachments=["It is too short."])
            return il.ReviewVerdict("inquire", ctx.review.result_hash, inquiry="Is that all?")
        return il.ReviewVerdict("approve", ctx.review.result_hash, reason="Fine.")

    manifests = (
        _bound(member("lead", "helper", "middle", "checker", overseer="checker")), member("helper"),
        member("middle", "expert"), member("expert"), member("checker"),
    )  # fmt: skip
    handlers = {"lead": lead, "helper": helper, "middle": middle, "expert": expert, "checker": checker}
    return TeamAgent(_team("crew", *manifests), handlers, _BENCH)


def shaky() -> il.Agent[..., Any]:
    """A boss whose worker fails, which the orchestrator is told."""

    @il.agent
    async def boss(ctx: il.Context[None, None], text: str) -> str:
        return str((await ctx.delegate("worker", text))["text"])

    @il.agent
    async def worker(text: str) -> str:
        raise il.AgentError(f"{text} cannot be done")

    policy = Policy({502: (Step("escalate", to="orchestrator"),)})
    made = _team("shaky", member("boss", "worker"), member("worker"), policy=policy)
    return TeamAgent(made, {"boss": boss, "worker": worker})


def late() -> il.Agent[..., Any]:
    """Somebody whose tool times out."""

    @il.agent
    async def waiter(ctx: il.Context[None, None], text: str) -> str:
        return str(await ctx.tool("Archive", "query"))

    policy = Policy({504: (Step("fail"),)})
    return TeamAgent(_team("late", _bound(member("waiter"), "Archive"), policy=policy), {"waiter": waiter}, _BENCH)

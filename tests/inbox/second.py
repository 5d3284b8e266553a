"""A second server, in a process of its own: a team whose member is a coding agent that asks for permission.

Run as a module with the path of its store; says its address on its first line. What the team is told is what the coding
agent does (see the fake agent of the editor tests).
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import interlingua as il
from interlingua.engine.teams.members import TeamAgent
from interlingua.server.app import ServeSettings, serving
from tests.kit.engines import PATIENT
from tests.kit.mounts.editor import agent_of, mount
from tests.kit.processes import say
from tests.kit.teams import member, team


@il.agent(name="lead", asks=[il.AskText])
async def lead(ctx: il.Context[Any, Any], text: str) -> str:
    """Has the coder do it."""
    await ctx.thought("the coder knows how")
    return str((await ctx.delegate("coder", text, reason="it knows how"))["text"])


@il.agent(name="solo", asks=[il.Confirm])
async def solo(ctx: il.Context[Any, Any], text: str = "it") -> str:
    """Asks by itself; nobody answering ends it in good order."""
    try:
        verdict = await ctx.ask(il.Confirm(f"Do {text}?"), deadline=float(text) if text.isdecimal() else None)
    except il.QuestionExpired:
        return "nobody answered"
    return f"{verdict.approved} {verdict.reason}"


async def main(store: str) -> None:
    coder = mount()
    crew = team(member("lead", "coder"), member("coder"), entry="lead")
    agents = [TeamAgent(crew, {"lead": lead, "coder": await agent_of(coder)}), solo]
    settings = ServeSettings(port=0, engine=PATIENT)
    try:
        async with serving(store, agents, settings) as server:
            say(server.address)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    finally:
        await coder.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

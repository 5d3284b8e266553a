"""Small teams, their members, and the runs of their tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import interlingua as il
from interlingua.model.events import RunCreated
from interlingua.model.filters import RunFilter
from interlingua.model.team.authority import Authority, Limits
from interlingua.model.team.manifest import Manifest, Options, Rule, Team
from tests.kit.engines import bodies


def member(
    id_: str, *allowed: str, overseer: str | None = None, limits: Limits | None = None, target: str | None = None
) -> Manifest:
    rules = {one: Rule(f"when {one} knows better") for one in allowed}
    options = Options(limits=limits or Limits(), target=target)
    return Manifest(id_, f"You are {id_}.", allowed, rules, overseer, options=options)


def team(*manifests: Manifest, entry: str = "lead", name: str = "crew", limits: Limits | None = None) -> Team:
    made = Team(name, entry=entry, description="A crew", limits=limits or Limits())
    made.manifests = {manifest.id: manifest for manifest in manifests}
    return made


@il.agent
async def shout(text: str) -> str:
    return text.upper()


@il.agent
async def passes_on(ctx: il.Context[None, None], text: str) -> str:
    """Calls the agent that the first word names, with the rest."""
    target, _, rest = text.partition(" ")
    return str((await ctx.call(target, rest))["text"])


async def authority_of(eng: il.Engine, run: str) -> Authority:
    (created,) = await bodies(eng, run, RunCreated)
    assert created.request.authority is not None
    found: Authority = created.request.authority
    return found


async def tree(eng: il.Engine, root: str) -> list[il.Run]:
    """All runs of a task, oldest first."""
    return sorted(await eng.runs.search(RunFilter(root=root, limit=500, sealed=True)), key=lambda run: run.id)


async def of_agent(eng: il.Engine, root: str, agent: str) -> list[il.Run]:
    return [run for run in await tree(eng, root) if run.agent == agent]


def chain(*, limits: Limits | None = None, lead: il.Agent[..., Any] = passes_on) -> Callable[[il.Engine], None]:
    """lead → middle → expert; nobody else may."""
    made = team(member("lead", "middle"), member("middle", "expert"), member("expert"), limits=limits)
    return lambda eng: eng.teams.add_team(made, {"lead": lead, "middle": passes_on, "expert": shout})


async def first_of(eng: il.Engine, root: str, agent: str) -> str:
    """Wait until a run of that agent was called for below a run."""
    seen: set[str] = set()
    async with asyncio.timeout(20):
        while True:
            for one in await tree(eng, root):
                if one.agent == agent:
                    return one.id
                seen.add(one.id)
            await asyncio.gather(*(eng.runs.next_hint(one) for one in list(seen)[-1:]))

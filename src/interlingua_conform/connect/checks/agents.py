"""Finding agents: the search, and what an agent's id is good for."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

from ...base import Broken, NotApplicable, applies, expect, member, shown
from ...remembering import once
from ...rows import Played, Row, Source, add
from ...sample import sample
from ...schemas import compiled
from ..driver import PAGE, Driver, answered, at, descriptor, every_agent, identity, suite

_MANY = 20  # agents that are looked through


@once
async def search(d: Driver) -> list[dict[str, Any]]:
    return await d.listed("POST", "/agents/search", {})


async def _reference(d: Driver) -> tuple[str, str]:
    """Name and version of the agent that is looked at."""
    item = (await d.agent()).item
    return member(item, "metadata.ref.name", str, "an agent"), member(item, "metadata.ref.version", str, "an agent")


async def some(d: Driver) -> list[dict[str, Any]]:
    """Returns the agents that a search finds. An empty list shows only that it is a list, so the checks do not apply to
    it."""
    found = await search(d)
    applies(found, "the server has no agents")
    return found


async def _described(d: Driver) -> None:
    await descriptor(d, (await d.agent()).id)


def _named(item: Any, where: str) -> None:
    identity(item, where)


_AGENT = Source(some, "an agent of the search", each=True)
add(
    suite,
    Played("connect.agents.search", some),
    Row("connect.agents.search-item-id", _AGENT, fits=_named),
    Row("connect.agents.search-item-metadata", _AGENT, "metadata", dict),
    Played("connect.agents.id-for-descriptor connect.agents.descriptor connect.descriptor.from-call", _described),
    calm=True,
)


@suite.check("connect.agents.search-all", calm=True)
async def an_empty_search_lists_all_agents(d: Driver) -> None:
    found = {identity(item) for item in await some(d)}
    every = {agent.id for agent in await every_agent(d)}
    answer = await d.ask("POST", "/agents/search", {"limit": 1000})
    if answer.status == 200:
        listed = member(answer.json(), "", list, "the answer to a search")
        every |= {identity(member(item, "", dict, "an agent")) for item in listed}
    missing = every - found
    expect(not missing or len(found) >= PAGE, f"POST /agents/search {{}} leaves out {', '.join(sorted(missing)[:5])}")


@suite.check("connect.agents.search-name", calm=True)
async def a_search_by_name_finds_only_that_name(d: Driver) -> None:
    name, _ = await _reference(d)
    found = await d.listed("POST", "/agents/search", {"name": name})
    expect(found, f"POST /agents/search for the name {name} finds nothing, though there is such an agent")
    for item in found:
        told = member(item, "metadata.ref.name", str, "an agent")
        expect(told == name, f"POST /agents/search for the name {name} finds {told}")
    other = f"{name}-{uuid.uuid4().hex}"
    found = await d.listed("POST", "/agents/search", {"name": other})
    expect(not found, f"POST /agents/search for a name that no agent has finds {shown(found)}")


@suite.check("connect.agents.search-version", "connect.metadata.name-and-version", calm=True)
async def a_search_by_name_and_version_finds_that_one_agent(d: Driver) -> None:
    name, version = await _reference(d)
    found = await d.listed("POST", "/agents/search", {"name": name, "version": version})
    refs = [member(item, "metadata.ref", dict, "an agent") for item in found]
    told = [(ref.get("name"), ref.get("version")) for ref in refs]
    expect(told == [(name, version)], f"POST /agents/search for {name} {version} finds {shown(told)}")
    found = await d.listed("POST", "/agents/search", {"name": name, "version": "0.0.0-conform"})
    expect(not found, f"POST /agents/search for a version that {name} does not have finds {shown(found)}")


@suite.check("connect.agents.id-for-runs", "connect.runs.agent-id")
async def an_id_from_the_search_runs_the_agent(d: Driver) -> None:
    agent = await d.agent()
    made = member(await d.told("POST", "/runs", await d.request()), "", dict, "the answer to POST /runs")
    told = made.get("agent_id", agent.id)  # the run object of the text has none
    expect(told == agent.id, f"a run of the agent {agent.id} says that its agent is {shown(told)}")


@suite.check("connect.metadata.unique-in-server", calm=True)
async def no_two_agents_have_the_same_name_and_version(d: Driver) -> None:
    await some(d)
    seen: dict[tuple[Any, Any], str] = {}
    for agent in await every_agent(d):
        ref = member(agent.item, "metadata.ref", dict, "an agent")
        key = (member(ref, "name", str, "an agent's ref"), member(ref, "version", str, "an agent's ref"))
        expect(key not in seen, f"{' '.join(key)} is both {seen.get(key)} and {agent.id}")
        seen[key] = agent.id


@suite.check("connect.openapi.default-agent")
async def a_run_without_an_agent_is_one_of_the_default_agent(d: Driver) -> None:
    """Delays the run and cancels it, as the effects of the default agent are unknown."""
    for given in [{}, {"input": await d.input()}, *await _inputs(d)]:
        answer = await d.ask("POST", "/runs", {**given, "after_seconds": 3600, "metadata": d.mark})
        if answer.status != 422:
            break
    applies(answer.status != 422, "the default agent takes none of the inputs that the descriptors tell of")
    expect(answer.status == 200, answered("POST /runs without an agent_id", answer))
    made = answer.json()
    run = member(made, "run_id", str, "the answer to POST /runs without an agent_id")
    d.going[at("runs", run)] = None
    await d.stop(run)
    told = member(made, "agent_id", str, "the answer to POST /runs without an agent_id")
    expect(told in {agent.id for agent in await every_agent(d)}, f"the default agent is {told}, which nobody can find")


async def _inputs(d: Driver) -> list[dict[str, Any]]:
    """Returns sample inputs for agents of this server; one of these agents should be the default one."""
    found: list[dict[str, Any]] = []
    for agent in (await every_agent(d))[:_MANY]:
        with contextlib.suppress(Broken, NotApplicable):
            schema = member(await descriptor(d, agent.id), "specs.input", dict, "the descriptor")
            compiled(schema, "the input")
            given = {"input": sample(schema)}
            if given not in found:
                found.append(given)
    return found

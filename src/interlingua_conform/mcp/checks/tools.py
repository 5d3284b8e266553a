"""Agents as tools, for clients that know nothing of agents: a promise of Interlingua's, and of no document."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

from ...base import Role, applies, expect, member, shown
from ...remembering import once
from ..driver import Agent, Driver, check, pages
from ..links import Message
from ..talk import Client, Seen, result_of, same, token_of
from .cancelling import META_KEY, has_ended, taken_back
from .questions import META_RUN, Answering, accepted, answered

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@once
async def tools(d: Driver) -> dict[str, Message]:
    """Tools by the agents that they are: a title is the name of its agent."""
    client = await d.promises()
    found = [member(item, "", dict, "an entry of tools") for item in await pages(client, "tools/list", "tools")]
    return {str(item.get("title") or item.get("name")): item for item in found}


async def tool(d: Driver, role: Role = "agent") -> tuple[Agent, str]:
    agent = await d.agent(role)
    found = (await tools(d)).get(agent.name)
    applies(found is not None, f"there is no tool for {agent.name}")
    assert found is not None
    return agent, member(found, "name", str, "a tool")


async def called(d: Driver, client: Client, role: Role, token: Any = None, **meta: Any) -> Any:
    """Begin a call of the tool that an agent with a role is."""
    agent, name = await tool(d, role)
    told = {**meta, **({} if token is None else {"progressToken": token})}
    params = {"name": name, "arguments": d.input(agent), **({"_meta": told} if told else {})}
    return await client.begin_with(params, method="tools/call")


@check("mcp.tools.call")
async def every_agent_is_a_tool(d: Driver) -> None:
    await d.promises()
    found = await tools(d)
    names = [member(item, "name", str, "a tool") for item in found.values()]
    expect(len(set(names)) == len(names), f"several tools have one name: {shown(names)}")
    for agent in await d.agents():
        expect(agent.name in found, f"there is no tool for the agent {agent.name}")
        item = found[agent.name]
        expect(_NAME.fullmatch(item["name"]), f"clients do not take the name of a tool: {shown(item['name'])}")
        for name in ("inputSchema", "outputSchema"):
            expect(
                item.get(name) == agent.item.get(name), f"{name} of the tool {item['name']} is not that of its agent"
            )


@check("mcp.tools.structure")
async def a_tool_gives_text_and_structure(d: Driver) -> None:
    client = await d.promises()
    seen: Seen = await (await called(d, client, "agent")).end()
    told = result_of(seen.answer, "tools/call")
    expect(told.get("isError") in (None, False), f"a call of a tool fails: {shown(told)}")
    _text(told)
    output = member(told, "structuredContent", dict, "the result of tools/call")
    agent, _ = await tool(d)
    run = await d.run()
    if "result" in run.answer:
        same_members = set(run.output()) == set(output)
        expect(same_members, f"structuredContent is no output of {agent.name}: {shown(output)}")
    if d.subject.roles.failing is not None:
        seen = await (await called(d, client, "failing")).end()
        told = result_of(seen.answer, "tools/call of an agent that fails")
        expect(told.get("isError") is True, f"a tool that fails does not say so: {shown(told)}")
        expect(_text(told), "a tool that fails does not say why")


def _text(told: Message) -> str:
    first = member(told, "content.0", dict, "the result of tools/call")
    expect(first.get("type") == "text", f"the result of a tool is no text: {shown(told)}")
    return member(first, "text", str, "the content of tools/call")


@check("mcp.tools.progress")
async def a_tool_tells_its_text_so_far(d: Driver) -> None:
    client = await d.promises()
    seen: Seen = await (await called(d, client, "agent", "tool")).end()
    told = result_of(seen.answer, "tools/call")
    notices = [m for m in seen.during if m.get("method") == "notifications/progress"]
    applies(notices, "the server sends no progress of its tool, as it may")
    last = 0.0
    for notice in notices:
        expect(same(token_of(notice), "tool"), f"progress of a tool has another token: {shown(notice)}")
        number = notice["params"].get("progress")
        expect(isinstance(number, int | float) and number > last, f"progress does not grow: {shown(notice)}")
        last = float(number)
    text = _text(told)
    said = [notice["params"].get("message") for notice in notices if "message" in notice["params"]]
    if said and not text.startswith("{"):
        expect(
            any(text.startswith(str(part)) for part in said),
            f"no progress of a tool is its text so far: {json.dumps(said[:3])}",
        )


@check("mcp.tools.questions")
async def a_tool_asks_and_is_cancelled_as_a_run_is(d: Driver) -> None:
    await d.promises()
    client = await d.asked()
    answering = Answering(accepted)
    seen = await answered(client, called(d, client, "asking"), answering)
    told = result_of(seen.answer, "tools/call, whose question was answered,")
    member(told, "_meta", dict, "the result of tools/call").get(META_RUN)
    if d.subject.roles.slow is not None:
        busy = await d.busy()
        key = {META_KEY: uuid.uuid4().hex}
        run = await called(d, busy, "slow", "slow tool", **key)
        applies(await run.begun(), "the tool that should be slow was answered at once")
        await taken_back(busy, run)
        await has_ended(await called(d, busy, "slow", "looking again", **key))

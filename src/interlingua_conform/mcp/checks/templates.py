"""Templates, from which agents are made: an addition of the published SDKs, where a server says that it has it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from ...base import Broken, Gone, NotApplicable, applies, expect, member, shown
from ...remembering import once
from ...sample import made_for
from ..driver import Driver, check, pages
from ..links import Message
from ..talk import Client, result_of
from .listing import is_schema

CHANGED = "notifications/agents/list_changed"
_SOON = 2.0


class Made(msgspec.Struct):
    """An agent that was made from a template, and destroyed again."""

    name: str
    names: list[Any]  # names listed while it was there
    left: list[Any]  # and afterwards
    ran: Message | None  # the answer to its run, where it may be run
    told: bool  # true if a notification of the changed list came


@once
async def made(d: Driver) -> Made:
    client = await d.busy()
    template = (await templates(d))[0]
    name = member(template, "name", str, "a template")
    config = made_for(member(template, "configSchema", dict, "a template"), f"the config of {name}")
    before = client.now
    told = await client.ask("agents/create", {"templateName": name, "config": config})
    agent = member(told, "agent.name", str, "the result of agents/create")
    names = await _listed(client)
    ran = None
    if name == (await d.agent()).name:  # only agents of that kind may be run
        ran = (await client.run(agent, d.input(await d.agent()))).answer
    result_of(await client.answer("agents/destroy", {"name": agent}), "agents/destroy")
    left = await _listed(client)
    return Made(agent, names, left, ran, await _told(client, before))


async def _told(client: Client, before: int) -> bool:
    """Returns whether the server has sent that the list changed, or does so in a moment: over HTTP it comes on another
    stream."""
    try:
        async with asyncio.timeout(_SOON):
            await client.link.until(lambda message: message.get("method") == CHANGED, CHANGED, before)
    except (TimeoutError, Gone):
        return False
    return True


async def templates(d: Driver) -> list[Message]:
    client = await d.busy()
    applies(client.capability("agents", "templates") is True, "the server does not say that it has templates")
    told = await client.ask("agents/templates/list", {})
    found = member(told, "agentTemplates", list, "the result of agents/templates/list")
    applies(found, "the server has no template")
    return [member(item, "", dict, "an entry of agentTemplates") for item in found]


async def _listed(client: Client) -> list[Any]:
    try:
        found = await pages(client)
    except Broken as error:
        raise NotApplicable(f"the agents cannot be listed: {error}") from None
    return [item.get("name") if isinstance(item, dict) else None for item in found]


@check("mcp.door.templates")
async def agents_are_made_from_templates(d: Driver) -> None:
    client = await d.busy()
    if client.extended and not client.capability("agents", "templates"):
        answer = await client.answer("agents/templates/list", {})
        expect("error" in answer, f"there are templates, and the server does not say so: {shown(answer)}")
    for template in await templates(d):
        member(template, "name", str, "a template")
        for name in ("inputSchema", "outputSchema", "configSchema"):
            is_schema(template, name)
    seen = await made(d)
    expect(seen.name in seen.names, f"{seen.name} was made, and is not listed: {shown(seen.names)}")
    if seen.ran is not None:
        result_of(seen.ran, f"agents/run of {seen.name}, which was made,")
    expect(seen.name not in seen.left, f"{seen.name} was destroyed, and is still listed: {shown(seen.left)}")


@check("mcp.door.list-changed")
async def clients_are_told_that_agents_come_and_go(d: Driver) -> None:
    client = await d.busy()
    applies(not client.modern, "without a handshake there is nobody to tell")
    applies(
        client.capability("agents", "listChanged") is True, "the server does not say that it tells when agents change"
    )  # fmt: skip
    try:
        seen = await made(d)
    except (Broken, Gone) as error:
        raise NotApplicable(f"no agent can be made: {error}") from None
    expect(seen.told, f"an agent was made and destroyed, and no {CHANGED} came")

"""The introduction and the capability: an MCP server, that says it has agents, and has them."""

from __future__ import annotations

from ...base import Broken, applies, expect, member, shown
from ...clients.jsonrpc import only_one
from ..driver import Driver, check, listed, plain
from ..talk import is_answer, result_of


@check("mcp.capabilities.agents-declared", calm=True)
async def agents_are_declared(d: Driver) -> None:
    client = await d.client()
    where = "the result of server/discover" if client.modern else "the result of initialize"
    able = member(client.told, "capabilities", dict, where)
    expect("agents" in able, f"capabilities of {where} has no agents: {shown(able)}")


@check("mcp.capabilities.agents-is-object", calm=True)
async def the_capability_is_an_object(d: Driver) -> None:
    client = await d.client()
    able = client.capability()
    applies(isinstance(able, dict) and "agents" in able, "the server declares no agents")
    member(able, "agents", dict, "capabilities")


@check("mcp.intro.extends-mcp", calm=True)
async def an_ordinary_session_works(d: Driver) -> None:
    client = await d.client()
    if client.modern:
        member(client.told, "supportedVersions", list, "the result of server/discover")
        await client.ask("agents/list", {})
        await client.discover()
        only_one(client.link)
        return
    where = "the result of initialize"
    told = client.told
    version = told.get("protocolVersion")
    expect(
        isinstance(version, str) or (version == 1 and not isinstance(version, bool)),  # as the first servers had it
        f"protocolVersion of {where} is no revision: {shown(version)}",
    )
    member(told, "capabilities", dict, where)
    member(told, "serverInfo.name", str, where)
    member(told, "serverInfo.version", str, where)
    result_of(await client.answer("ping"), "ping")
    strays = [m for m in client.link.messages if is_answer(m) and "error" in m and m.get("id") is None]
    expect(not strays, f"notifications/initialized is answered: {shown(strays[:1])}")
    only_one(client.link)


@check("mcp.intro.server-side", calm=True)
async def a_client_declares_nothing(d: Driver) -> None:
    """The client of all checks has said that it can do nothing at all."""
    client = await d.client()
    answer = await client.answer("agents/list", {})
    if "error" not in answer:
        return
    async with d.another(agents={}, experimental={"agents": {}}) as other:
        declared = await other.answer("agents/list", {})
    applies("error" not in declared, f"agents/list was answered with an error: {shown(answer['error'])}")
    raise Broken(f"agents/list is refused to a client that does not declare agents: {shown(answer['error'])}")


@check("mcp.intro.discover-and-run")
async def agents_are_found_and_run(d: Driver) -> None:
    items = await listed(d)
    expect(items, "agents/list gives no agent at all")
    seen = await plain(d)
    result_of(seen.answer, "agents/run of an agent that is listed")

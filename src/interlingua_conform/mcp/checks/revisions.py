"""Revisions of MCP that a server speaks: with a handshake, and the one without."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from ...base import Broken, NotApplicable, applies, expect, member, shown
from ..driver import Driver, before_all, check
from ..links import Message
from ..talk import LATEST, META_CAPABILITIES, MODERN, REVISIONS, Client, Refused, result_of

UNSUPPORTED = -32022


@check("mcp.door.revisions")
async def revisions_are_answered(d: Driver) -> None:
    client = await d.promises()
    if not client.modern:
        await _with_a_handshake(d)
    other = await d.stateless()
    unknown = "2031-01-01"
    message = other.request("agents/list")
    message["params"] = other.stamped({}, unknown)
    before = other.now
    await other.link.put(message, other.headers(message, unknown))
    answer = await other.response(message["id"], "agents/list", before)
    expect("error" in answer, f"a revision that nobody knows is spoken: {shown(answer)}")
    code = answer["error"]["code"]
    expect(code == UNSUPPORTED, f"a revision that nobody knows is refused with the code {code}, not {UNSUPPORTED}")
    known = member(answer, "error.data.supported", list, "the error of an unknown revision")
    expect(MODERN in known, f"the error of an unknown revision does not name {MODERN}: {shown(answer)}")


async def _with_a_handshake(d: Driver) -> None:
    wanted: list[tuple[Any, str]] = [(version, version) for version in REVISIONS]
    wanted += [(1, REVISIONS[0]), ("1999-12-31", LATEST)]
    async with AsyncExitStack() as stack:
        link = None
        for asked, answered in wanted:
            again = link is not None and link.kind != "http"  # there, a session begins with each
            if link is None or not again:
                link = await stack.enter_async_context(d.unspoken())
            answer = await Client(link, d.subject).initialized(asked)
            if again and "error" in answer:  # a server may take one handshake for a connection
                link = await stack.enter_async_context(d.unspoken())
                answer = await Client(link, d.subject).initialized(asked)
            version = result_of(answer, "initialize").get("protocolVersion")
            expect(
                version == answered,
                f"revision {shown([asked])[1:-1]} is answered with {shown(version)}, not {answered}",
            )


@check("mcp.door.stateless")
async def a_request_needs_nothing_before_it(d: Driver) -> None:
    client = await d.stateless()
    told = result_of(await before_all(d), "agents/list, with nothing before it,")
    _complete(told, "agents/list")
    agent = await d.agent()
    seen = await client.run(agent.name, d.input(agent), "stateless")
    told = result_of(seen.answer, f"agents/run in {MODERN}")
    _complete(told, "agents/run")
    await _needs(client, META_CAPABILITIES)
    for method in ("initialize", "ping"):
        answer = await client.answer(method, {})
        expect("error" in answer, f"{method} is there in {MODERN}, which has none: {shown(answer)}")


def _complete(told: Message, what: str) -> None:
    kind = told.get("resultType")
    expect(
        kind == "complete", f"resultType of the result of {what} is {shown([kind])[1:-1]}, not complete: {shown(told)}"
    )


async def _needs(client: Client, member_: str) -> None:
    """A request that lacks something of what the handshake would have said."""
    message = client.request("agents/list")
    del message["params"]["_meta"][member_]
    before = client.now
    try:
        answer = await client.response(await client.put(message), "agents/list", before)
    except Refused:
        return
    expect("error" in answer, f"a request without {member_} is not refused: {shown(answer)}")


@check("mcp.door.paging")
async def lists_have_pages(d: Driver) -> None:
    client = await d.client()
    try:
        first = await client.ask("agents/list", {})
    except Broken as error:
        raise NotApplicable(str(error)) from None
    applies(first.get("nextCursor") is not None, "all agents are on one page")
    cursor = member(first, "nextCursor", str, "the result of agents/list")
    names = _names(first)
    second = _names(await client.ask("agents/list", {"cursor": cursor}))
    expect(second, "nextCursor leads to a page without agents")
    expect(names.isdisjoint(second), f"an agent is on two pages: {', '.join(sorted(names & second))}")
    if client.extended and not client.modern:
        message = {**client.request("agents/list", {}), "cursor": cursor}  # as acp-sdk 0.0.6 has it
        before = client.now
        beside = result_of(await client.response(await client.put(message), "agents/list", before), "agents/list")
        expect(_names(beside) == second, "a cursor in the envelope does not count")


def _names(told: Message) -> set[str]:
    agents = member(told, "agents", list, "the result of agents/list")
    return {member(item, "name", str, "a listed agent") for item in agents}

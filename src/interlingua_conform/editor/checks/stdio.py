"""Checks of the stdio transport: a command that reads lines and writes lines, and nothing else."""

from __future__ import annotations

import json

from ...base import Gone, NotApplicable, applies, expect, shown
from ..driver import Driver, batch, check
from ..links import StdioLink
from ..reading import answers, is_error, note, picked
from ..talk import PING, Client


async def started(driver: Driver) -> Client:
    applies(driver.stdio, "the server is no command, but at an address")
    return await driver.either()


@check(
    "editor.messages.stdio-defined", "editor.messages.agent-supports-stdio", "editor.stdio.agent-reads-stdin",
    "editor.stdio.agent-writes-stdout",
)  # fmt: skip
async def it_speaks_over_its_pipes(driver: Driver) -> None:
    client = await started(driver)
    expect(client.told, "initialize was answered with nothing")


@check("editor.stdio.request")
async def a_line_is_a_request(driver: Driver) -> None:
    client = await started(driver)
    await client.ping()


@check("editor.stdio.notification")
async def a_line_is_a_notification(driver: Driver) -> None:
    client = await started(driver)
    try:
        session = await client.slow()
    except NotApplicable:
        await client.notify("_interlingua/news")
        await client.ping()
        return
    turn = await session.begin()
    await turn.begun()
    await session.cancel()
    try:
        await turn.end()
    except Gone as error:
        expect(False, f"session/cancel on a line of its own had no effect: {error}")


@check("editor.stdio.response")
async def a_line_is_a_response(driver: Driver) -> None:
    client = await started(driver)
    session = await client.asking()
    with client.by_hand():
        turn = await session.begin()
        request = await turn.question()
        await client.respond(request, picked(request, "") or {"action": "decline"})
        try:
            await turn.end()
        except Gone as error:
            expect(False, f"the answer to a request of the agent had no effect: {error}")


@check("editor.stdio.batch")
async def a_line_is_a_batch(driver: Driver) -> None:
    applies(driver.stdio, "the server is no command, but at an address")
    try:
        client = await driver.v2()
    except NotApplicable:
        client = await driver.v1()
    frame = await batch(client, [client.request(PING), note("_interlingua/news")])
    applies(
        client.version == 2 or not is_error(frame, -32600),
        "the server speaks version 1 alone, which knows no batches, and refuses them as it should",
    )
    expect(isinstance(frame, list), f"a batch on a line was answered with {shown(frame)}")


@check("editor.stdio.newline-delimited")
async def a_newline_ends_a_message_and_nothing_else_does(driver: Driver) -> None:
    client = await started(driver)
    link = client.link
    assert isinstance(link, StdioLink)
    one, two, three = (client.request(PING, id_=f"line {number}") for number in range(3))
    link.send_bytes(json.dumps(one).encode() + b"\n" + json.dumps(two).encode() + b"\n")
    cut = json.dumps(three).encode()
    link.send_bytes(cut[:20])
    before = client.now
    for message in (one, two):
        await client.response(message["id"], "one of two requests that were written at once")
    expect(
        await link.silent(lambda m: "error" in m and m.get("id") is None, before),
        f"half a line was answered before its newline came: {shown(link.messages[-1])}",
    )
    link.send_bytes(cut[20:] + b"\n")
    await client.response(three["id"], "a request that was written in two pieces")


@check("editor.stdio.no-embedded-newline")
async def a_message_has_no_newline_inside(driver: Driver) -> None:
    client = await started(driver)
    before = len(client.link.noise)
    await client.link.put(client.request(PING, id_="two\nlines"))
    await client.link.until(
        lambda m: answers("two\nlines")(m) or len(client.link.noise) > before, "the answer to a request with a newline"
    )
    try:
        session = await client.plain()
        await session.turn("one line\nand another\r\nand a third")
    except NotApplicable:
        pass
    broken = client.link.noise[before:]
    expect(not broken, f"a message is cut by a newline inside it: {shown(repr(broken[:1]))}")

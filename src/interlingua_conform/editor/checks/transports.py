"""Checks of what holds on every wire: messages are JSON-RPC in UTF-8, and mean the same whatever carries them."""

from __future__ import annotations

import contextlib
from typing import Any

from ...base import Broken, Gone, NotApplicable, applies, expect, shown
from ...clients.jsonrpc import only_one
from ..driver import Driver, check
from ..links import Link, StdioLink
from ..reading import flaw
from ..talk import AUTH_REQUIRED, PING, Client
from .stdio import started

_WORDS = "Grüße, 世界 \U0001f600"


async def _talk(client: Client) -> None:
    """A bit of everything: an answer, an error, and a turn where there can be one."""
    await client.ping()
    with contextlib.suppress(NotApplicable):
        await (await client.plain()).turn()


def _valid(link: Link) -> None:
    only_one(link)
    for message in link.messages:
        wrong = flaw(message)
        expect(not wrong, f"a message is no JSON-RPC 2.0, {wrong}: {shown(message)}")


@check("editor.messages.json-rpc", calm=True)
async def the_answer_to_initialize_is_json_rpc(driver: Driver) -> None:
    await driver.either()
    for link in driver.links:
        _valid(link)


@check("editor.messages.json-rpc")
async def every_message_is_json_rpc(driver: Driver) -> None:
    await _talk(await driver.either())
    for link in driver.links:
        _valid(link)


@check("editor.messages.utf-8")
async def messages_are_utf_8(driver: Driver) -> None:
    client = await driver.either()
    await client.link.put_bytes(b'{"jsonrpc":"2.0","id":"%b","method":"_interlingua/ping"}' % _WORDS.encode())
    try:
        await client.response(_WORDS, "a request with characters beyond ASCII in its id")
    except Gone as error:
        raise Broken(f"UTF-8 does not come back as it was sent: {error}") from error
    try:
        session = await client.plain()
        ended = await session.turn(_WORDS)
        expect(ended.error is None, f"a prompt with characters beyond ASCII fails: {shown(ended.error)}")
    except NotApplicable:
        pass
    for link in driver.links:
        for line in link.lines:
            try:
                line.decode()
            except UnicodeDecodeError:
                raise Broken(f"a message is not UTF-8: {shown(repr(line))}") from None
            expect(not line.startswith(b"\xef\xbb\xbf"), "a message begins with a byte order mark")


@check("editor.stdio.agent-stdout-clean")
async def nothing_but_messages_is_on_stdout(driver: Driver) -> None:
    await _talk(await started(driver))
    for link in driver.links:
        noise = [line for line in link.noise if line.strip()]
        expect(not noise, f"a line on stdout is no message: {shown(repr(b''.join(noise[:1])))}")
        for message in link.messages:
            expect(not flaw(message), f"what is on stdout is no valid message, {flaw(message)}: {shown(message)}")


@check("editor.stdio.stderr-logging")
async def what_is_on_stderr_is_text(driver: Driver) -> None:
    await _talk(await started(driver))
    logged = [link.stderr for link in driver.links if isinstance(link, StdioLink) and link.stderr]
    applies(logged, "nothing was written to stderr")
    for said in logged:
        begin = next((n for n in range(4) if said[n : n + 1] and said[n] & 0xC0 != 0x80), 0)  # the place of the cut
        try:
            said[begin:].decode()
        except UnicodeDecodeError as error:
            expect(False, f"what is on stderr is not UTF-8: {error}")


# -- a transport that the page does not name -------------------------------------------------------------------


async def _custom(driver: Driver) -> Client:
    """A client over WebSocket, which the page does not name."""
    applies(not driver.stdio, "the server is a command, and has no other transport")
    return await driver.client(1, await driver.socket())


@check("editor.messages.custom-possible", "editor.custom.agent")
async def another_transport_is_offered(driver: Driver) -> None:
    client = await _custom(driver)
    await client.ping()


@check("editor.custom.keeps-json-rpc")
async def another_transport_keeps_the_format(driver: Driver) -> None:
    client = await _custom(driver)
    await _talk(client)
    expect(not client.link.noise, f"over WebSocket came what is no message: {shown(repr(client.link.noise[:1]))}")
    _valid(client.link)


@check("editor.custom.keeps-lifecycle")
async def another_transport_keeps_the_lifecycle(driver: Driver) -> None:
    link = await driver.socket()
    early = Client(link, driver.subject, 1, driver.folder)
    try:
        answer = await early.answer("session/new", early.opening())
    except Gone:
        expect(link.ended, "session/new before initialize is not answered over WebSocket")
    else:
        expect("error" in answer, f"session/new before initialize is answered over WebSocket: {shown(answer)}")
    await _opens(await _custom(driver))


async def _opens(client: Client) -> None:
    answer = await client.answer("session/new", client.opening())
    login = "error" in answer and answer["error"]["code"] == AUTH_REQUIRED
    expect("result" in answer or login, f"session/new after initialize fails: {shown(answer)}")


@check("editor.custom.transport-agnostic")
async def the_same_is_said_on_every_wire(driver: Driver) -> None:
    one = await _custom(driver)
    two = await driver.client(1, await driver.web())
    expect(
        one.told == two.told,
        f"initialize is answered with {shown(one.told, 100)} over WebSocket, and with {shown(two.told, 100)} over HTTP",
    )
    said = [await _said(client) for client in (one, two)]
    expect(
        said[0] == said[1], f"the same is answered with {shown(said[0])} over WebSocket, and {shown(said[1])} over HTTP"
    )


async def _said(client: Client) -> list[Any]:
    """Returns the error codes and the stop reason of some requests, without anything that may differ from time to
    time."""
    unknown = await client.refused(PING, {}, "which is no method")
    bad = await client.refused("session/new", {"mcpServers": []}, "without a cwd")
    found: list[Any] = [unknown["code"], bad["code"]]
    try:
        session = await client.plain()
        ended = await session.turn()
        found += [ended.stop, sorted(session.told)]
    except NotApplicable:
        pass
    return found

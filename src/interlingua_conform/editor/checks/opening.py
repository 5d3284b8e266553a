"""Checks of how a connection and a session are opened in version 1: initialize, logins, and what is badly written."""

from __future__ import annotations

from typing import Any

import msgspec

from ...base import Gone, NotApplicable, applies, expect, member, shown
from ...remembering import once
from ..driver import INFO, Driver, check
from ..links import Message, session_of
from ..reading import is_response, objects
from ..talk import AUTH_REQUIRED, PING, Client

_ENDED = 0  # for an error: the connection ended instead


class First(msgspec.Struct):
    """The observations of a connection on which initialize did not come first."""

    early: Message  # the answer to session/new before it
    noticed: list[Message]  # the answers to a notification before it
    failed: Message  # the answer to an initialize that is badly written
    then: Message  # the answer to a good one
    opened: Message  # the answer to session/new after it
    again: Message  # the answer to one more


@once
async def _first(driver: Driver) -> First:
    client = Client(await driver.link(), driver.subject, 1, driver.folder)
    if client.link.kind == "http":
        raise NotApplicable("over Streamable HTTP nothing but initialize opens a connection")
    before = client.now
    if client.link.kind == "stdio":
        await client.notify("session/cancel", {"sessionId": "no such session"})
    early = await _said(client, "session/new", client.opening())
    noticed = [m for m in client.link.messages[before:] if is_response(m) and m is not early]
    if client.link.ended:  # as a WebSocket is that does not begin with initialize
        client = Client(await driver.link(), driver.subject, 1, driver.folder)
    failed = await _said(client, "initialize", {"protocolVersion": "one", "clientCapabilities": {}})
    good = {"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": INFO}
    then = await _said(client, "initialize", good)
    if "error" in then:
        client = Client(await driver.link(), driver.subject, 1, driver.folder)
        await client.ask("initialize", good)
    opened = await client.answer("session/new", client.opening())
    again = await client.answer("initialize", good)
    driver.keep(client)
    return First(early, noticed, failed, then, opened, again)


async def _said(client: Client, method: str, params: Message) -> Message:
    """Returns the answer to a request. A connection that ends in place of an answer counts as an error."""
    try:
        return await client.answer(method, params)
    except Gone as error:
        if not client.link.ended:
            raise
        return {"error": {"code": _ENDED if client.link.kind == "stdio" else -32600, "message": str(error)}}


@check("editor.v1.initialize-first")
async def nothing_but_initialize_comes_first(driver: Driver) -> None:
    await driver.v1()
    seen = await _first(driver)
    expect("error" in seen.early, f"session/new before initialize was answered with a result: {shown(seen.early)}")
    error = seen.early["error"]
    expect(error["code"] != _ENDED, f"session/new before initialize is not answered: {error['message']}")
    expect(not seen.noticed, f"a notification before initialize was answered: {shown(seen.noticed)}")
    if "result" in seen.again:
        version = seen.again["result"].get("protocolVersion") if isinstance(seen.again["result"], dict) else None
        expect(version == 1, f"a second initialize changes the version: {shown(seen.again)}")


@check("editor.v1.initialize-failed")
async def an_initialize_that_fails_leaves_the_connection_open(driver: Driver) -> None:
    await driver.v1()
    seen = await _first(driver)
    applies("error" in seen.failed, "a protocolVersion that is no number is taken")
    expect("result" in seen.then, f"after an initialize that failed another one fails: {shown(seen.then)}")


@check("editor.batch.lifecycle-affects-later")
async def what_may_be_said_depends_on_what_was_said_before(driver: Driver) -> None:
    await driver.v1()
    seen = await _first(driver)
    expect("error" in seen.early, f"session/new before initialize was answered with a result: {shown(seen.early)}")
    login = seen.opened.get("error", {}).get("code") == AUTH_REQUIRED if "error" in seen.opened else False
    expect("result" in seen.opened or login, f"session/new after initialize fails: {shown(seen.opened)}")


@check("editor.v1.initialize", calm=True)
async def initialize_tells_who_the_agent_is(driver: Driver) -> None:
    client = await driver.v1()
    told = client.told
    if told.get("agentCapabilities") is not None:
        able = member(told, "agentCapabilities", dict, "the answer to initialize")
        for path, kind in (
            ("loadSession", bool), ("promptCapabilities", dict), ("mcpCapabilities", dict),
            ("sessionCapabilities", dict), ("auth", dict),
        ):  # fmt: skip
            if able.get(path) is not None:
                member(able, path, kind, "agentCapabilities")
        for path in ("promptCapabilities.image", "promptCapabilities.audio", "promptCapabilities.embeddedContext"):
            if client.able("promptCapabilities") and path.split(".")[1] in able["promptCapabilities"]:
                member(able, path, bool, "agentCapabilities")
        for name, value in (able.get("sessionCapabilities") or {}).items():
            expect(value is None or isinstance(value, dict), f"sessionCapabilities.{name} is no object: {shown(value)}")
    if told.get("authMethods") is not None:
        for method in member(told, "authMethods", list, "the answer to initialize"):
            member(method, "id", str, "an entry of authMethods")
            member(method, "name", str, "an entry of authMethods")
    applies(told.get("agentInfo") is not None, "the server does not tell its name and version, which it may")
    for name in ("name", "version"):
        member(told, f"agentInfo.{name}", str, "the answer to initialize")


@check("editor.v1.negotiation", calm=True)
async def a_version_that_nobody_speaks_is_answered_with_one_of_the_servers(driver: Driver) -> None:
    client = Client(await driver.link(), driver.subject, 2, driver.folder)
    told = await client.ask(
        "initialize",
        {"protocolVersion": 99, "clientCapabilities": {}, "clientInfo": INFO, "capabilities": {}, "info": INFO},
    )
    highest = member(told, "protocolVersion", int, "the answer to initialize")
    client.told, client.version = told, highest
    driver.keep(client)
    expect(highest != 99, "the server answers protocolVersion 99 with 99, which nobody speaks")
    expect(0 < highest < 99, f"the server answers protocolVersion 99 with {highest}")
    for version in {1, 2, highest}:
        try:
            await _answered(driver, version)
        except NotApplicable as error:
            expect(version != highest, f"the server names version {highest}, and does not speak it: {error}")


async def _answered(driver: Driver, version: int) -> None:
    match version:
        case 1:
            await driver.v1()
        case 2:
            await driver.v2()
        case _:
            driver.keep(await driver.client(version))


@check("editor.v1.extensions", calm=True)
async def what_is_unknown_is_refused_and_a_notification_ignored(driver: Driver) -> None:
    client = await driver.v1()
    for method in (PING, "_interlingua/other", "session/nonsense"):
        error = await client.refused(method, {}, "which is no method")
        expect(
            error["code"] == -32601, f"the unknown method {method} was answered with {shown(error)}, not with -32601"
        )
    if client.link.kind != "http":
        came = await client.heard_after(b'{"jsonrpc":"2.0","method":"_interlingua/news","params":{}}')
        expect(not came, f"an unknown notification was answered: {shown(came)}")


# -- logins ----------------------------------------------------------------------------------------------------


@check("editor.v1.authenticate")
async def who_wants_a_login_tells_how(driver: Driver) -> None:
    client = await driver.v1()
    methods = objects(client.told.get("authMethods"))
    refused = await client.answer("session/new", client.opening())
    if "error" not in refused:
        raise NotApplicable("the server opens sessions without a login")
    expect(
        refused["error"]["code"] == AUTH_REQUIRED,
        f"session/new fails before a login, and not with {AUTH_REQUIRED}: {shown(refused['error'])}",
    )
    expect(methods, "session/new fails for want of a login, and initialize tells no way to log in")
    await client.refused("authenticate", {"methodId": "no such way"}, "in a way that was not told")
    again = await client.refused("session/new", client.opening(), "after a login that failed")
    expect(again["code"] == AUTH_REQUIRED, f"session/new without a login fails with {shown(again)}")


@check("editor.v1.terminal-auth")
async def a_login_in_a_terminal_is_for_clients_that_have_one(driver: Driver) -> None:
    able, not_able = await driver.v1(), await driver.other()
    shell = [m for m in objects(able.told.get("authMethods")) if m.get("type") == "terminal"]
    wrong = [m for m in objects(not_able.told.get("authMethods")) if m.get("type") == "terminal"]
    expect(not wrong, f"a client that has not said that it has a terminal is told to log in there: {shown(wrong)}")
    applies(shell, "the server has no login in a terminal")
    method = member(shell[0], "id", str, "a way to log in")
    await able.refused("authenticate", {"methodId": method}, "with a login that is for a terminal")


# -- what is badly written -------------------------------------------------------------------------------------


@check("editor.v1.bad-params")
async def params_that_do_not_fit_are_refused(driver: Driver) -> None:
    client = await driver.v1()
    session = await client.session()
    wrong: list[tuple[str, Any, str]] = [
        ("session/new", {"mcpServers": []}, "without a cwd"),
        ("session/new", {"cwd": 7, "mcpServers": []}, "with a number for a cwd"),
        ("session/prompt", {"prompt": []}, "without a sessionId"),
        ("session/prompt", {"sessionId": session.id, "prompt": "hello"}, "with a string for content"),
    ]
    for method, params, what in wrong:
        error = await client.refused(method, params, what)
        expect(error["code"] == -32602, f"{method} {what} was answered with {shown(error)}, not with -32602")


@check("editor.v1.update-after-session")
async def nothing_is_said_of_a_session_before_it_is_known(driver: Driver) -> None:
    client = await driver.v1()
    before = client.now
    session = await client.plain()
    for message in client.link.messages[before:]:
        if is_response(message):
            return
        expect(
            session_of(message) != session.id,
            f"a session is spoken of before session/new is answered: {shown(message)}",
        )


_SERVER: Message = {"name": "conform", "command": "/bin/cat", "args": [], "env": [{"name": "A", "value": "1"}]}


@check("editor.v1.tool-servers")
async def tool_servers_are_taken(driver: Driver) -> None:
    client = await driver.v1()
    servers = [_SERVER]
    if client.able("mcpCapabilities.http"):
        servers.append({"type": "http", "name": "web", "url": "http://127.0.0.1:9/mcp", "headers": []})
    if client.able("mcpCapabilities.sse"):
        servers.append({"type": "sse", "name": "old", "url": "http://127.0.0.1:9/sse", "headers": []})
    answer = await client.answer("session/new", client.opening(mcpServers=servers))
    if "error" in answer:
        code = answer["error"]["code"]
        applies(code != AUTH_REQUIRED, "the server wants a login before it opens a session")
        expect(
            code not in (-32600, -32601, -32602),
            f"session/new with tool servers of the kinds that are offered is refused: {shown(answer['error'])}",
        )


@check("editor.v1.tool-server-env")
async def variables_as_an_object_are_refused(driver: Driver) -> None:
    client = await driver.v1()
    answer = await client.answer("session/new", client.opening(mcpServers=[{**_SERVER, "env": {"A": "1"}}]))
    if "error" not in answer:
        raise NotApplicable("the server passes over a tool server that is badly written, as older schemas let it")
    applies(answer["error"]["code"] != AUTH_REQUIRED, "the server wants a login before it opens a session")
    expect(
        answer["error"]["code"] == -32602,
        f"a tool server whose variables are an object is refused with {shown(answer['error'])}, not with -32602",
    )


@check("editor.v1.directories")
async def directories_are_those_of_the_last_opening(driver: Driver) -> None:
    client = await driver.v1()
    applies(
        client.able("sessionCapabilities.additionalDirectories") and client.able("sessionCapabilities.list"),
        "the server has no additional directories, or does not list sessions",
    )
    how = "session/resume" if client.able("sessionCapabilities.resume") else "session/load"
    applies(
        client.able("sessionCapabilities.resume") or client.able("loadSession"), "the server opens no session again"
    )
    session = await client.plain(additionalDirectories=["/", client.folder])
    await session.turn()
    told = await _directories(client, session.id)
    applies(told is not None, "session/list does not tell the additional directories, or not that session")
    expect(told == ["/", client.folder], f"the directories / and {client.folder} are listed as {shown(told)}")
    await client.ask(how, client.opening(sessionId=session.id))
    told = await _directories(client, session.id)
    expect(not told, f"{how} without additional directories leaves those of before: {shown(told)}")


async def _directories(client: Client, session: str) -> Any:
    found = next((entry for entry in await client.listed() if entry["sessionId"] == session), None)
    return None if found is None else found.get("additionalDirectories")

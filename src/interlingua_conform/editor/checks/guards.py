"""Checks of who gets in over the network, and of the WebSocket at the same address."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from urllib.parse import urlsplit

import msgspec

from interlingua.model.errors import Unavailable
from interlingua.transports.raw_client import Http
from interlingua.transports.raw_client.websocket import upgraded

from ...base import Broken, Gone, NotApplicable, Subject, applies, expect, shown
from ..driver import Driver, check
from ..links import CONNECTION
from ..reading import answers, is_response
from ..talk import Client
from .web import initialize

_ELSEWHERE = "https://elsewhere.example"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # and an empty SETTINGS frame
_SETTINGS = 4


@check("editor.http.callers")
async def without_its_key_nobody_gets_in(driver: Driver) -> None:
    http = await driver.http()
    applies(driver.subject.headers, "no headers with a key were given")
    answer = await http.ask("POST", "", initialize())
    expect(answer.status == 200, f"with the headers that were given initialize is answered with status {answer.status}")
    mine = {CONNECTION: answer.headers.get(CONNECTION, "")}
    async with Http(msgspec.structs.replace(driver.subject, headers={})) as nobody:
        for what, headers in (("initialize", {}), ("a message to the connection of another", mine)):
            refused = await nobody.ask("POST", "", initialize(), headers=headers)
            applies(refused.status != 200 or headers, "the server wants no key")
            expect(refused.status in (401, 403, 404), f"without a key {what} is answered with status {refused.status}")
    await http.ask("DELETE", "", headers=mine)


@check("editor.http.origin")
async def pages_of_other_sites_are_refused(driver: Driver) -> None:
    http = await driver.http()
    answer = await http.ask("POST", "", initialize())
    applies(answer.status < 300, f"initialize is answered with status {answer.status}, wherever it comes from")
    if CONNECTION in answer.headers:
        await http.ask("DELETE", "", headers={CONNECTION: answer.headers[CONNECTION]})
    taken = []
    for name, headers in (("Origin", {"origin": _ELSEWHERE}), ("Host", {"host": "elsewhere.example"})):
        answer = await http.ask("POST", "", initialize(), headers=headers)
        expect(answer.status < 500, f"a foreign {name} is answered with status {answer.status}")
        if answer.status < 300:
            taken.append(name)
            if CONNECTION in answer.headers:
                await http.ask("DELETE", "", headers={CONNECTION: answer.headers[CONNECTION]})
    opened = await _from_elsewhere(driver)
    expect(
        not opened or taken,
        "requests with a foreign Origin are refused, but a page of another site can open a WebSocket, which no browser "
        "forbids it",
    )
    applies(
        not taken, f"the server takes a foreign {' and a foreign '.join(taken)}, on which the draft has no rule yet"
    )


async def _from_elsewhere(driver: Driver) -> bool:
    """Returns whether a page of another site can open a WebSocket."""
    try:
        socket_ = await upgraded(driver.subject, origin=_ELSEWHERE)
    except Unavailable:
        return False
    await socket_.close()
    return True


@check("editor.http.http-2")
async def the_endpoint_speaks_http_2(driver: Driver) -> None:
    await driver.http()
    try:
        async with asyncio.timeout(driver.subject.patience):
            spoken = await asyncio.to_thread(_speaks_2, driver.subject)
    except OSError as error:
        raise Gone(f"the server does not take a connection for HTTP/2: {error}") from error
    applies(spoken, "the server speaks HTTP/1.1, as published servers do where no proxy stands before them")


def _speaks_2(subject: Subject) -> bool:
    """Returns whether the server answers the beginning of HTTP/2 in HTTP/2: by ALPN over TLS, else by prior
    knowledge."""
    parts = urlsplit(subject.address or "")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(socket.create_connection((parts.hostname or "", port), timeout=subject.patience))
        wire: socket.socket = plain
        if parts.scheme == "https":
            context = ssl.create_default_context()
            context.set_alpn_protocols(["h2", "http/1.1"])
            secure = stack.enter_context(context.wrap_socket(plain, server_hostname=parts.hostname))
            if secure.selected_alpn_protocol() != "h2":
                return False
            wire = secure
        wire.sendall(_PREFACE)
        head = b""
        with contextlib.suppress(OSError):
            while len(head) < 9 and (data := wire.recv(9 - len(head))):
                head += data
        return len(head) == 9 and head[3] == _SETTINGS


# -- WebSocket -------------------------------------------------------------------------------------------------


@check("editor.http.websocket")
async def a_websocket_carries_everything(driver: Driver) -> None:
    link = await driver.socket()
    expect(
        link.socket.response is not None and CONNECTION in link.socket.response.headers,
        "the answer to the upgrade has no header Acp-Connection-Id",
    )
    client = await driver.client(1, link)
    await link.socket.send(b"a binary frame is no message")
    came = await client.heard_after()
    expect(not came, f"a binary frame was answered: {shown(came)}")
    try:
        session = await client.plain()
        ended = await session.turn()
        expect(ended.error is None, f"a prompt over WebSocket fails: {shown(ended.error)}")
    except NotApplicable:
        pass


@check("editor.http.websocket-initialize")
async def a_websocket_begins_with_initialize(driver: Driver) -> None:
    link = await driver.socket()
    client = Client(link, driver.subject, 1, driver.folder)
    new = client.request("session/new", client.opening())
    await link.put(new)
    try:
        answer = await link.until(is_response, "an answer")
    except Gone as error:
        if not link.ended:
            raise Broken("a WebSocket that does not begin with initialize is neither answered nor closed") from error
    else:
        expect(
            not answers(new["id"])(answer) or "error" in answer,
            f"session/new on a WebSocket that did not begin with initialize is answered with {shown(answer)}",
        )
        raise NotApplicable("a WebSocket that does not begin with initialize is told so, and not closed")
    code = link.socket.close_code
    applies(code == 1002, f"a WebSocket that does not begin with initialize is closed, with {code} instead of 1002")

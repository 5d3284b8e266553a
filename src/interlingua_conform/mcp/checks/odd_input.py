"""Checks unreadable, unknown and wrong input: JSON-RPC defines the answers, and no input may end the server.

MCP had no errors without an id for most of its life, so a server may also ignore input that belongs to no request. If
one input ends the server, the next is tried on another connection, so that the report names all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from interlingua.transports.raw_client import Answer

from ...base import Broken, Gone, NotApplicable, Subject, expect, shown
from ...clients.jsonrpc import only_one
from ..driver import Driver, check
from ..links import Message
from ..talk import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, Client, Refused, is_answer

_WITH_BATCHES = "2025-03-26"
_SOON = 2.0  # seconds for a refusal, where what came later is answered already


class Odd(msgspec.Struct):
    """A request that is wrong."""

    what: str
    method: str
    params: Any = None
    codes: tuple[int, ...] = ()  # codes of the error; empty: any, as an agent is run then


class Unreadable(msgspec.Struct):
    """Input that is no request."""

    what: str
    data: bytes
    codes: tuple[int, ...]


UNREADABLE = [
    Unreadable("a line that is no JSON", b'{"jsonrpc": "2.0", "id": 77, "method": ', (PARSE_ERROR,)),
    Unreadable("bytes that are no text", b"\xff\xfe\x00\x9f\xc3", (PARSE_ERROR,)),
    Unreadable("a number", b"5", (INVALID_REQUEST, PARSE_ERROR)),
    Unreadable("an empty object", b"{}", (INVALID_REQUEST, PARSE_ERROR)),
    Unreadable("an empty array", b"[]", (INVALID_REQUEST, PARSE_ERROR)),
]

SILENT: list[tuple[str, Message]] = [
    ("a notification that nobody knows", {"jsonrpc": "2.0", "method": "notifications/nobody/knows", "params": {}}),
    ("an answer that nobody asked for", {"jsonrpc": "2.0", "id": 987654, "result": {}}),
]


class Trials:
    """A connection that may be broken, and another one then."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._stack = AsyncExitStack()
        self._client: Client | None = None
        self.problems: list[str] = []

    @property
    def subject(self) -> Subject:
        return self._driver.subject

    async def client(self) -> Client:
        if self._client is None or not self._client.usable:
            await self._stack.aclose()
            self._stack = AsyncExitStack()
            self._client = await self._stack.enter_async_context(self._driver.another())
        return self._client

    @contextlib.asynccontextmanager
    async def trying(self, what: str) -> AsyncIterator[Client]:
        """Tries an input; the server must still be there afterwards."""
        client = await self.client()
        try:
            yield client
            await client.alive()
        except Gone as error:
            self.problems.append(f"after {what}: {str(error).partition('; the last line')[0]}")
            client.link.stuck = True
        except Broken as error:
            self.problems.append(f"{what}: {error}")

    async def close(self) -> None:
        await self._stack.aclose()


@check("mcp.door.never-ends")
async def nothing_ends_the_server(d: Driver) -> None:
    trials = Trials(d)
    try:
        for odd in await _requests(d):
            await _refused(trials, odd)
        for what, message in SILENT:
            await _passed_over(trials, what, message)
        for unreadable in UNREADABLE:
            await _unreadable(trials, unreadable)
        await _batch(trials)
    finally:
        await trials.close()
    expect(not trials.problems, "; ".join(trials.problems))


@check("mcp.intro.extends-mcp")
async def nothing_but_messages_comes(d: Driver) -> None:
    """Expects no output of the server between the messages."""
    for link in d.links:
        only_one(link)
    noise = [line for link in d.links for line in link.noise]
    said = shown(noise[0].decode(errors="replace").strip(), 120) if noise else ""
    expect(not noise, f"something comes that is no message: {said}")


async def _requests(d: Driver) -> list[Odd]:
    found = [
        Odd("a method that nobody knows", "nobody/knows", {}, (METHOD_NOT_FOUND,)),
        Odd("agents/run without params", "agents/run", {}, (INVALID_PARAMS,)),
        Odd("agents/run whose name is a number", "agents/run", {"name": 5, "input": {}}, (INVALID_PARAMS,)),
    ]
    if not d.way.modern:  # without a handshake every request has an object there: nothing else can be tried
        codes = (INVALID_PARAMS, INVALID_REQUEST)
        found.append(Odd("agents/run whose params are an array", "agents/run", ["a"], codes))
    with contextlib.suppress(NotApplicable):
        failing = await d.agent("failing")
        found.append(Odd("a run that fails", "agents/run", {"name": failing.name, "input": d.input(failing)}))
    return found


async def _refused(trials: Trials, odd: Odd) -> None:
    async with trials.trying(odd.what) as client:
        before = client.now
        id_ = await client.send(odd.method, odd.params)
        if odd.codes:  # one that ends with the next thing it reads is not waited for
            await client.alive()
        try:
            async with asyncio.timeout(_SOON if odd.codes else None):
                answer = await client.response(id_, odd.method, before)
        except Refused:
            return
        except TimeoutError:
            raise Broken("it is not answered") from None
        expect("error" in answer, f"it has a result: {shown(answer)}")
        code = answer["error"]["code"]
        wanted = " or ".join(map(str, odd.codes))
        expect(not odd.codes or code in odd.codes, f"the error has the code {code}, not {wanted}")


async def _passed_over(trials: Trials, what: str, message: Message) -> None:
    async with trials.trying(what) as client:
        if client.modern:
            return  # over HTTP no session could carry the error
        before = client.now
        await client.link.put(message)
        await client.alive()
        found = [m for m in client.link.messages[before:-1] if is_answer(m)]
        expect(not found, f"it is answered: {shown(found[:1])}")


async def _unreadable(trials: Trials, unreadable: Unreadable) -> None:
    async with trials.trying(unreadable.what) as client:
        before = client.now
        answer = await client.link.put_bytes(unreadable.data)
        if answer is not None:
            _is_refusal(answer)
        await client.alive()
        for message in client.link.messages[before:-1]:
            if is_answer(message):
                _is_error(message, unreadable.codes)


def _is_error(message: Message, codes: tuple[int, ...]) -> None:
    error = message.get("error")
    expect(isinstance(error, dict), f"it has a result: {shown(message)}")
    code = error.get("code") if isinstance(error, dict) else None
    expect(code in codes, f"the error has the code {shown([code])[1:-1]}, not {' or '.join(map(str, codes))}")
    readable = message.get("id") in (None, 77)  # the id that stands in one of them
    expect(readable, f"the error has the id of something else: {shown(message)}")


def _is_refusal(answer: Answer) -> None:
    """Over HTTP, a status says that it was not taken. Whether there is JSON-RPC in it too, is not said anywhere."""
    expect(
        answer.status < 500,
        f"the POST is answered with HTTP {answer.status}: {shown(answer.body.decode(errors='replace'))}",
    )
    if answer.status == 200 and answer.media_type == "application/json":
        told = answer.json()
        expect(isinstance(told, dict) and "error" in told, f"it has a result: {shown(told)}")


async def _batch(trials: Trials) -> None:
    """Sends a batch. One revision has batches; other revisions may have them, or not."""
    async with trials.trying("a batch of two requests") as client:
        if client.modern:
            return
        batch = [client.request("ping"), client.request("ping")]
        before = client.now
        refused = None
        if client.link.kind == "http":
            refused = await client.link.put_bytes(json.dumps(batch).encode())
            if refused is not None:
                expect(refused.status < 500, f"the POST is answered with HTTP {refused.status}")
        else:
            await client.link.put(batch)
        if client.version == _WITH_BATCHES and client.link.kind != "http":
            for request in batch:
                await client.response(request["id"], "a request of a batch", before)

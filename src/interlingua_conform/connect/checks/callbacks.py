"""Checks callbacks: the server calls an address of the client's when the status of a run changes.

The checker sees them only if the server can reach it: both on one machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ...base import Gone, applies, expect, member, shown
from ...remembering import once
from ..driver import Driver, answered, briefly, result_of, suite
from ..shapes import RUN_STATUSES
from .runs import succeeded

_HERE = ("127.", "localhost", "::1", "[::1]")
_HEAD = 64 * 1024


class Call(msgspec.Struct):
    method: str
    body: Any  # None where it is no JSON


class Receiver:
    """Listens on this machine, answers 200, and keeps what it was sent."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.address = ""
        self._news = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Receiver]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_HEAD)
        self.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/callme"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, _, rest = head.partition(" ")
            headers = dict(line.lower().split(":", 1) for line in rest.split("\r\n")[1:] if ":" in line)
            if "chunked" in headers.get("transfer-encoding", ""):
                body = await _chunks(reader)
            else:
                body = await reader.readexactly(int(headers.get("content-length", "0")))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            await writer.drain()
            async with self._news:
                self.calls.append(Call(method, _json(body)))
                self._news.notify_all()
        writer.close()

    async def until_done(self, within: float) -> None:
        """Waits until a run object comes whose status is not pending, for so many seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with self._news, asyncio.timeout(within):
                await self._news.wait_for(lambda: any(_status(call) not in (None, "pending") for call in self.calls))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    whole = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        whole += await reader.readexactly(size)
        await reader.readline()
    return whole


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _status(call: Call) -> Any:
    return call.body.get("status") if isinstance(call.body, dict) else None


class Called(msgspec.Struct):
    run: str
    calls: list[Call]


async def _near(d: Driver) -> None:
    host = urlsplit(d.http.base).hostname or ""
    applies(host.startswith(_HERE), f"a server at {host} cannot call an address of this machine")


@once
async def called(d: Driver) -> Called:
    """A run with a callback, and the calls that came."""
    await _near(d)
    applies("callbacks" in await d.able(), "the agent supports no callbacks, says its descriptor")
    await succeeded(d)
    async with Receiver().listening() as receiver:
        run = await d.start(webhook=receiver.address)
        await receiver.until_done(d.patience)
        if not receiver.calls:  # as the text spells it
            run = await d.start(callback={"POST": receiver.address})
            await receiver.until_done(d.patience)
    return Called(run, receiver.calls)


async def _calls(d: Driver) -> Called:
    seen = await called(d)
    expect(seen.calls, f"nobody called within {d.patience:g} s, though the run {seen.run} has a webhook")
    return seen


@suite.check("connect.callbacks.parameter", "connect.invocation.callback")
async def an_invocation_takes_a_callback_or_none(d: Driver) -> None:
    await succeeded(d)
    await called(d)


@suite.check(
    "connect.callbacks.supported", "connect.callbacks.on-status-change", "connect.output.asynchronous",
    "connect.invocation.callback-async",
)  # fmt: skip
async def the_server_posts_to_the_callback(d: Driver) -> None:
    for call in (await _calls(d)).calls:
        expect(call.method == "POST", f"the server calls with {call.method}, not POST")


@suite.check("connect.callbacks.payload-run")
async def a_callback_is_told_the_run(d: Driver) -> None:
    seen = await _calls(d)
    for call in seen.calls:
        told = member(call.body, "run_id", str, "the body of a call")
        expect(told == seen.run, f"the webhook of the run {seen.run} is told of the run {told}")
        status = member(call.body, "status", str, "the body of a call")
        expect(status in RUN_STATUSES, f"the body of a call has the status {shown(status)}, which is none")


@suite.check("connect.callbacks.success-status")
async def the_callback_of_a_run_that_succeeded_says_so(d: Driver) -> None:
    last = [_status(call) for call in (await _calls(d)).calls][-1]
    expect(last == "success", f"the last call of a run that succeeded has the status {shown(last)}")


@suite.check("connect.callbacks.wait-after", "connect.callbacks.flow")
async def after_the_callback_the_output_comes_at_once(d: Driver) -> None:
    seen = await _calls(d)
    expect(_status(seen.calls[-1]) != "pending", f"no call told that the run is done: {shown(seen.calls[-1].body)}")
    output = await briefly(d.waited(seen.run), f"GET /runs/{seen.run}/wait after the callback")
    expect(output.get("type") == "result", f"the output after the callback is {shown(output)}")
    result_of(output)


@suite.check("connect.openapi.webhook")
async def a_webhook_is_told_every_change_or_has_no_effect(d: Driver) -> None:
    await _near(d)
    if "callbacks" in await d.able():
        seen = await _calls(d)
        statuses = [_status(call) for call in seen.calls]
        now = await d.status(seen.run)
        expect(now in statuses, f"the run {seen.run} has the status {now}, and the webhook was told {shown(statuses)}")
        return
    async with Receiver().listening() as receiver:
        answer = await d.ask("POST", "/runs", await d.request(webhook=receiver.address))
        expect(answer.status < 500, answered("POST /runs with a webhook", answer))
        with contextlib.suppress(Gone):
            await receiver.until_done(d.quiet)
        expect(not receiver.calls, "the webhook was called, though the agent supports no callbacks")

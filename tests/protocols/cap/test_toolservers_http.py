"""Tool servers at an address: the published library behind uvicorn, and addresses that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from interlingua.model.errors import RunTimedOut, ToolFailed, Unavailable
from interlingua.model.team.manifest import Server
from interlingua.tools import connections
from tests.kit import warm_python

from .rude_web import INITIALIZED, done, respond, web
from .tool_common import HERE, tools


@contextlib.asynccontextmanager
async def served(*words: str, port: int = 0) -> AsyncIterator[tuple[Server, int]]:
    command = [warm_python.python(), str(HERE / "tool_server.py"), "http", str(port), *words]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        yield Server(url=f"http://127.0.0.1:{port}/mcp"), port
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.mark.parametrize("kind", ["stream", "json"])
async def test_tools_at_an_address_are_listed_and_called(kind: str) -> None:
    async with served(kind) as (server, _), tools(server) as given:
        assert len(await given.list()) == 10
        assert (await given.call("about", scopes=("read:data",)))["scopes"] == ["read:data"]
        texts = [[f"number {number}"] for number in range(30)]
        assert await asyncio.gather(*(given.call("say", texts=one) for one in texts)) == [one[0] for one in texts]
        with pytest.raises(ToolFailed, match="the table is locked"):
            await given.call("fail")


async def test_headers_are_sent_with_secrets_from_the_environment() -> None:
    async with served() as (server, _):
        named = Server(url=server.url, headers={"X-Key": "Token ${KEY}"})
        async with tools(named, {"KEY": "k1234"}) as given:
            assert (await given.call("about"))["headers"]["x-key"] == "Token k1234"


async def test_a_changed_list_is_asked_for_again() -> None:
    async with served() as (server, _), tools(server) as given:
        before = await given.list()
        await given.call("grow", name="new_one")
        async with asyncio.timeout(20):  # the news comes on a stream of its own
            while len(await given.list()) == len(before):
                await asyncio.sleep(0)
        assert (await given.list())[-1].name == "new_one"


@pytest.mark.parametrize("kind", ["stream", "json"])
async def test_a_call_that_takes_too_long_is_taken_back_and_the_connection_goes_on(kind: str) -> None:
    async with served(kind) as (server, _), tools(server) as given:
        await given.list()
        with pytest.raises(RunTimedOut, match=r"within 0\.3 s"):
            await given.call("wait", timeout=0.3)
        assert await given.call("cancelled") == "yes"


async def test_a_server_that_died_is_reached_again_where_it_was() -> None:
    async with served() as (server, port), tools(server) as given:
        first = await given.call("about")
        with pytest.raises(Unavailable):
            await given.call("die")
        async with served(port=port):
            assert (await given.call("about"))["pid"] != first["pid"]


async def test_a_session_that_the_server_forgot_is_begun_anew_and_the_call_made_again() -> None:
    forgotten = []

    async def answer(message: dict[str, Any], writes: asyncio.StreamWriter) -> None:
        if not forgotten:
            forgotten.append(message)
            await respond(writes, None, "404 Not Found")
        else:
            await done(message, writes)

    async def first(message: dict[str, Any], writes: asyncio.StreamWriter) -> None:
        told = {"jsonrpc": "2.0", "id": message["id"], "result": INITIALIZED}
        await respond(writes, told, "200 OK", "mcp-session-id: s1")

    async with web(answer, first) as address, tools(Server(url=address.url)) as given:
        assert await given.call("any") == "done"
        assert address.methods.count("initialize") == 2
        assert address.methods.count("tools/call") == 2


# -- addresses that misbehave ---------------------------------------------------------------------------------


async def test_an_address_where_nobody_is_cannot_be_reached() -> None:
    async with web(done) as address:
        pass
    async with tools(Server(url=address.url)) as given:
        with pytest.raises(Unavailable, match=f"Tools cannot be reached at {address.url}") as gone:
            await given.call("any")
        assert gone.value.transient


@pytest.mark.parametrize(
    ("status", "transient"), [("401 Unauthorized", False), ("403 Forbidden", False), ("503 Service Unavailable", True)]
)
async def test_a_refusal_is_told_with_its_status(status: str, transient: bool) -> None:
    async def refuse(message: dict[str, Any], writes: asyncio.StreamWriter) -> None:
        await respond(writes, None, status)

    async with web(done, refuse) as address, tools(Server(url=address.url)) as given:
        with pytest.raises(Unavailable, match=f"it answered {status}") as refused:
            await given.call("any")
        assert refused.value.transient is transient


async def test_what_speaks_no_http_cannot_be_reached() -> None:
    async def babble(message: dict[str, Any], writes: asyncio.StreamWriter) -> None:
        writes.write(b"220 mail.example.com ready\r\n" * 3)
        writes.close()

    async with web(done, babble) as address, tools(Server(url=address.url)) as given:
        with pytest.raises(Unavailable, match="cannot be reached"):
            await given.call("any")


async def test_a_post_that_fails_fails_its_own_call_alone() -> None:
    """The library alone would end the connection with it, and all that is under way."""
    waits = asyncio.Event()

    async def answer(message: dict[str, Any], writes: asyncio.StreamWriter) -> None:
        if message["params"]["name"] == "break":
            writes.close()
        else:
            await waits.wait()
            await done(message, writes)

    async with web(answer) as address, tools(Server(url=address.url)) as given:
        slow = asyncio.ensure_future(given.call("slow"))
        with pytest.raises(Unavailable):
            await given.call("break")
        with pytest.raises(Unavailable):  # and a new connection does not wait for what is still under way on the old
            await given.call("break")
        assert not slow.done()
        assert address.methods.count("initialize") == 2
        waits.set()
        assert await slow == "done"
        assert await given.call("slow") == "done"


async def test_a_flood_of_notifications_before_the_answer_is_waited_out() -> None:
    async def flood(message: dict[str, Any], writes: asyncio.StreamWriter) -> None:
        writes.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 100}}
        writes.write(f"data: {json.dumps(note)}\n\n".encode() * 3000)
        result = {"content": [{"type": "text", "text": "done"}]}
        writes.write(f"data: {json.dumps({'jsonrpc': '2.0', 'id': message['id'], 'result': result})}\n\n".encode())
        await writes.drain()

    async with web(flood) as address, tools(Server(url=address.url)) as given:
        assert await given.call("any") == "done"


async def test_a_stream_that_ends_without_an_answer_is_no_answer() -> None:
    async def short(message: dict[str, Any], writes: asyncio.StreamWriter) -> None:
        writes.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n: hm\n\n")
        writes.close()

    async with web(short) as address, tools(Server(url=address.url)) as given:
        with pytest.raises(Unavailable, match="the answer broke off"):
            await given.call("any")


async def test_an_error_of_the_server_s_own_with_a_number_of_the_library_s_is_an_answer() -> None:
    async def refuse(message: dict[str, Any], writes: asyncio.StreamWriter) -> None:
        error = {"code": -32000, "message": "quota exceeded"}
        await respond(writes, {"jsonrpc": "2.0", "id": message["id"], "error": error})

    async with web(refuse) as address, tools(Server(url=address.url)) as given:
        for _ in range(2):
            with pytest.raises(ToolFailed, match="Tools refuses any: quota exceeded"):
                await given.call("any")
        assert address.methods.count("initialize") == 1


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_answer_without_an_end_is_not_kept(kind: str) -> None:
    async def pour(message: dict[str, Any], writes: asyncio.StreamWriter) -> None:
        if message["params"]["name"] != "pour":
            await done(message, writes)
            return
        writes.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n\r\ndata: ".encode())
        while not writes.is_closing():
            writes.write(b"x" * 100_000)
            await writes.drain()

    async with web(pour) as address, tools(Server(url=address.url), max_result=10_000) as given:
        with pytest.raises(ToolFailed, match="cannot be taken"):
            await given.call("pour")
        assert await given.call("any") == "done"
        assert address.methods.count("initialize") == 1


async def test_an_answer_that_breaks_off_is_no_answer() -> None:
    async def half(message: dict[str, Any], writes: asyncio.StreamWriter) -> None:
        writes.write(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"jsonrpc"')
        await writes.drain()
        writes.close()

    async with web(half) as address, tools(Server(url=address.url)) as given:
        with pytest.raises(Unavailable, match="the answer broke off"):
            await given.call("any")


async def test_a_compressed_answer_is_not_unpacked() -> None:
    async def squeeze(message: dict[str, Any], writes: asyncio.StreamWriter) -> None:
        await respond(writes, {"x": 1}, "200 OK", "content-encoding: gzip")

    async with web(squeeze) as address, tools(Server(url=address.url)) as given:
        with pytest.raises(ToolFailed, match="compresses"):
            await given.call("any")


@pytest.mark.parametrize(
    "begin",
    [b"", b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: yes\n\n"],
    ids=["nothing", "a stream"],
)
async def test_a_server_that_never_answers_holds_up_nobody(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even by not taking it when a call is taken back."""
    monkeypatch.setattr(connections, "_PATIENCE", 90.0)
    never = asyncio.Event()

    async def silent(message: dict[str, Any], writes: asyncio.StreamWriter) -> None:
        if message["params"]["name"] != "silent":
            await done(message, writes)
            return
        writes.write(begin)
        await never.wait()

    async with web(silent) as address, tools(Server(url=address.url)) as given:
        address.takes_back.clear()
        for _ in range(3):
            with pytest.raises(RunTimedOut, match=r"within 0\.2 s"):
                await given.call("silent", timeout=0.2)
        before = time.monotonic()
        assert await given.call("any") == "done"
        assert time.monotonic() - before < 60  # and not after the patience with what is not taken
        assert "notifications/cancelled" in address.methods
        never.set()
        address.takes_back.set()


async def test_secrets_do_not_follow_to_another_address() -> None:
    async def elsewhere(message: dict[str, Any], writes: asyncio.StreamWriter) -> None:
        await respond(writes, None, "307 Temporary Redirect", f"location: {other.url}")

    async with web(done) as other, web(done, elsewhere) as address:
        server = Server(url=address.url, headers={"X-Key": "${KEY}"})
        async with tools(server, {"KEY": "k1234"}) as given:
            with pytest.raises(Unavailable, match="not followed"):
                await given.call("any")
        assert other.methods == []

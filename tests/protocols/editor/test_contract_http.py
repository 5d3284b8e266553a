"""Our client over HTTP, as a strict server sees it: headers, cookies, and what is opened before what."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from interlingua.protocols.editor.mount.http_channel import open_remote
from interlingua.transports.jsonrpc.connection import Connection
from tests.kit.wait_for import PATIENCE

from .test_contract_transports import Editor


class Strict:
    """A server that answers just enough, numbers no messages, and writes down what it was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.streams: dict[str | None, asyncio.StreamWriter] = {}
        self.opened = asyncio.Condition()
        self.prompt: Any = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            verb = first.split()[0]
            message = json.loads(body) if body else None
            self.requests.append((verb, headers, message))
            if verb == "GET":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
                await writer.drain()
                async with self.opened:
                    self.streams[headers.get("acp-session-id")] = writer
                    self.opened.notify_all()
                await reader.read()  # until the client leaves
            elif message is not None and message.get("method") == "initialize":
                answer = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"protocolVersion": 1}}).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nacp-connection-id: c1\r\n"
                    b"set-cookie: node=seven; Path=/\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
                    % (len(answer), answer)
                )
            else:
                writer.write(b"HTTP/1.1 202 Accepted\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()
                writer.close()
                if message is not None:
                    await self.react(message)
            await writer.drain()
        writer.close()

    async def react(self, message: Any) -> None:
        match message.get("method"):
            case "session/new":
                await self.say(None, {"id": message["id"], "result": {"sessionId": "s1"}})
            case "session/prompt":
                self.prompt = message["id"]
                options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
                params = {"sessionId": "s1", "toolCall": {"toolCallId": "t"}, "options": options}
                await self.say("s1", {"id": "p", "method": "session/request_permission", "params": params})
            case None:
                await self.say("s1", {"id": self.prompt, "result": {"stopReason": "end_turn"}})

    async def say(self, session: str | None, message: Any) -> None:
        async with self.opened, asyncio.timeout(PATIENCE):
            await self.opened.wait_for(lambda: session in self.streams)
        stream = self.streams[session]
        stream.write(b"data: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n")
        await stream.drain()


@contextlib.asynccontextmanager
async def strict() -> AsyncIterator[tuple[Strict, str]]:
    server = Strict()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    try:
        yield server, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/acp"
    finally:
        for stream in server.streams.values():
            stream.close()
        listening.close()
        await listening.wait_closed()


async def talked() -> list[tuple[str, dict[str, str], Any]]:
    """A whole turn with a permission; what the server was asked."""
    async with strict() as (server, url):
        connection = Connection(await open_remote(url, {}), Editor())
        running = asyncio.ensure_future(connection.run())
        await connection.request("initialize", {"protocolVersion": 1}, timeout=PATIENCE)
        made = await connection.request("session/new", {"cwd": "/", "mcpServers": []}, timeout=PATIENCE)
        params = {"sessionId": made["sessionId"], "prompt": []}
        assert await connection.request("session/prompt", params, timeout=PATIENCE) == {"stopReason": "end_turn"}
        connection.notify("session/cancel", {"sessionId": "s1"})
        await connection.close()
        await running
        return server.requests


def posted(requests: list[tuple[str, dict[str, str], Any]], method: str | None) -> dict[str, str]:
    return next(headers for verb, headers, body in requests if verb == "POST" and body.get("method") == method)


async def test_our_client_names_the_session_on_everything_that_belongs_to_one() -> None:
    requests = await talked()
    assert "acp-session-id" not in posted(requests, "session/new")
    for method in ("session/prompt", "session/cancel", None):  # None is the answer to the permission request
        assert posted(requests, method)["acp-session-id"] == "s1", method


async def test_our_client_listens_to_a_session_before_it_prompts_in_it() -> None:
    requests = await talked()
    listens = next(n for n, (verb, headers, _) in enumerate(requests) if verb == "GET" and "acp-session-id" in headers)
    prompts = next(n for n, (_, _, body) in enumerate(requests) if body and body.get("method") == "session/prompt")
    assert listens < prompts


async def test_our_client_stays_on_its_connection_with_its_cookies_and_says_goodbye() -> None:
    requests = await talked()
    verb, headers, body = requests[0]
    assert (verb, body["method"]) == ("POST", "initialize")
    assert "acp-connection-id" not in headers
    assert "cookie" not in headers
    for verb, headers, _ in requests[1:]:
        assert headers["acp-connection-id"] == "c1", verb
        assert headers["cookie"] == "node=seven", verb
        if verb == "GET":
            assert headers["accept"] == "text/event-stream"
        elif verb == "POST":
            assert headers["content-type"].startswith("application/json")
    assert requests[-1][0] == "DELETE"

"""One node of the Agent Communication Protocol on several servers: one of them has it, all of them answer for it, and
another takes it over when that one is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import websockets.asyncio.client

import interlingua as il
from interlingua.protocols.peer.config import NodeSettings
from interlingua.protocols.peer.node.node import Node
from interlingua.protocols.peer.node.peers import Peer
from interlingua.protocols.peer.translate.errors import Refusal
from tests.kit.ports import free_port
from tests.kit.wait_for import wait_for

from .fleet import WAIT, Fleet, Member, fleet


@contextlib.asynccontextmanager
async def servers(home: Path, count: int = 3) -> AsyncIterator[tuple[Fleet, int]]:
    """On one machine, with one port for peers."""
    port = free_port()
    ports = ("--peer-name", "Zoo", "--peer-port", str(port), "--peer-http-port", str(free_port()))
    async with fleet(home, count, *ports) as all_:
        yield all_, port


@contextlib.asynccontextmanager
async def guest(home: Path, link: str) -> AsyncIterator[Node]:
    """A peer that has connected."""
    settings = NodeSettings(name="Guest", listens=False, join=(link,), reconnect_first=0.1, reconnect_last=0.3)
    async with il.Engine(home / "guest.db") as engine:
        node = Node(engine, settings)
        await node.start()
        try:
            yield node
        finally:
            await node.stop()


async def connected(node: Node) -> Peer:
    async with asyncio.timeout(WAIT):
        while not (peers := [peer for peer in node.peers if peer.connected]):
            await asyncio.sleep(0.01)
    return peers[0]


def link_of(member: Member) -> str:
    return next(word for line in member.said.splitlines() for word in line.split() if word.startswith("acp://"))


async def send(http: httpx2.AsyncClient, base: str, text: str, **more: Any) -> Any:
    body = {"role": "user", "text": text, "skill_id": "helper", "sync": True, **more}
    answer = await http.post(f"{base}/peer/message:send", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_every_server_answers_for_the_one_node(tmp_path: Path) -> None:
    async with servers(tmp_path) as (all_, _), httpx2.AsyncClient(timeout=WAIT) as http:
        first, *others = all_.members
        assert "acp://" in first.said
        for member in others:
            assert "is run by another process on this store" in member.said
            assert "on this store: http://127.0.0.1:" in member.said
        for member in all_.members:
            assert "heard hello" in json.dumps(await send(http, member.address, "hello"))
        made = await http.post(f"{others[0].address}/peer/tasks", json={"skill_id": "helper", "text": "a task"})
        task = made.json()["task"]["id"]
        for member in all_.members:
            found = (await http.get(f"{member.address}/peer/tasks/{task}:wait", params={"timeout": 20})).json()
            assert found["task"]["status"] == "completed", found
            card = (await http.get(f"{member.address}/peer/card")).json()["self"]
            assert "ws" in card["capabilities"]["supported_transports"], "it is that of the node that listens"
        assert await first.metric("passed_on_total") == 0
        assert await others[0].metric("passed_on_total") > 0


async def test_the_stream_of_the_node_is_read_at_any_server(tmp_path: Path) -> None:
    async with servers(tmp_path, 2) as (all_, _), httpx2.AsyncClient(timeout=WAIT) as http:
        _, second = all_.members
        async with websockets.asyncio.client.connect(f"ws://127.0.0.1:{second.port}/peer/ws/stream") as socket:
            await send(http, second.address, "hello")
            async with asyncio.timeout(WAIT):
                told = json.loads(await socket.recv())
            assert told, "an event of the node"


async def test_a_port_of_a_server_that_has_not_the_node_leads_to_it(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(4)]
    each = [("--peer-port", str(port), "--peer-tcp-port", str(tcp)) for port, tcp in (ports[:2], ports[2:])]
    async with fleet(tmp_path, 2, "--peer-http-port", "0", each=each) as all_:
        first, _ = all_.members
        link = link_of(first)
        assert f":{ports[0]}/" in link
        async with guest(tmp_path, link.replace(f":{ports[0]}/", f":{ports[2]}/")) as node:
            peer = await connected(node)
            body = {"role": "user", "text": "hello", "skill_id": "helper", "sync": True, "timeout": 20}
            assert "heard hello" in json.dumps((await node.sending.send(body, peer_id=peer.id))["reply"])


async def test_another_server_takes_the_node_over_and_nothing_is_lost_or_done_twice(tmp_path: Path) -> None:
    async with servers(tmp_path) as (all_, port), httpx2.AsyncClient(timeout=WAIT) as http:
        first, *others = all_.members
        link = link_of(first)
        assert f":{port}/" in link
        async with guest(tmp_path, link) as node:
            peer = await connected(node)
            await first.kill()
            for number in range(5):  # they wait on the shelf until somebody is there
                body = {"role": "user", "text": f"message {number}", "skill_id": "helper"}
                with contextlib.suppress(Refusal):  # which says that the message waits
                    await node.sending.send(body, peer_id=peer.id)
            for member in others:
                assert "heard door" in json.dumps(await send(http, member.address, "door"))
            await wait_for(lambda: len(worked(tmp_path, "message")) >= 5)
        assert sorted(worked(tmp_path, "message")) == [f"message {number}" for number in range(5)]
        assert sorted(worked(tmp_path, "door")) == ["door"] * 2
        assert sum([await member.metric("takeovers_total") for member in others]) == 1


def worked(home: Path, text: str) -> list[str]:
    file = home / "worked"
    return [line for line in file.read_text().splitlines() if line.startswith(text)] if file.exists() else []

"""A node whose process is killed without a word, at a bad moment, and started again: nothing is lost, nothing is done
twice, and no count begins anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import interlingua as il
from interlingua.engine.engine import Engine
from interlingua.protocols.peer.config import NodeSettings
from interlingua.protocols.peer.node.node import Node
from interlingua.protocols.peer.node.task_record import Task
from interlingua.protocols.peer.wire import frames
from tests.kit.peer_nodes import WAIT, client, events, running_node, text
from tests.kit.ports import free_port

from .processes import Far
from .reference import Reference

AGENTS = '''
import os
import signal
from pathlib import Path

import interlingua as il


@il.agent
async def halting(text: str):
    """Its process is killed in the middle of its first attempt."""
    yield "once "
    if not Path("tried").exists():
        Path("tried").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    yield text
'''


class Host:
    """A node in a process, on ports that it has again after a restart."""

    def __init__(self, env: dict[str, str], home: Path, *agents: str) -> None:
        http = free_port()
        ports = ["--port", str(free_port()), "--http-port", str(http)]
        command = ["interlingua", "peer", *agents, "--name", "Host", "--log", "off", "--store", "host.db", *ports]
        self.base = f"http://127.0.0.1:{http}"
        self._far = Far(command, env, home)

    async def __aenter__(self) -> Host:
        await asyncio.to_thread(self._far.up)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._far.end)

    @property
    def link(self) -> str:
        return self._far.process.link

    async def dead(self) -> None:
        """Wait until it was killed by somebody else."""
        await asyncio.to_thread(self._far.process.popen.communicate)

    async def kill(self) -> None:
        await asyncio.to_thread(self._far.kill)

    async def again(self) -> None:
        await asyncio.to_thread(self._far.again)

    async def get(self, path: str, **query: Any) -> Any:
        async with client(self.base) as http:  # each time anew: the one before may have been killed
            answer = await http.get(path, params=query)
            assert answer.status_code == 200, answer.text
            return answer.json()

    async def post(self, path: str, body: Any, status: int = 200) -> Any:
        async with client(self.base) as http:
            answer = await http.post(path, json=body)
            assert answer.status_code == status, answer.text
            return answer.json()

    @contextlib.asynccontextmanager
    async def events(self, after: int = 0) -> AsyncIterator[Any]:
        async with client(self.base) as http, events(http, headers={"last-event-id": str(after)}) as told:
            yield told

    async def told(self, after: int = 0, **last: Any) -> list[dict[str, Any]]:
        """What follows an event, until one with these members."""
        found: list[dict[str, Any]] = []
        async with self.events(after) as told:
            while not found or any(found[-1].get(name) != value for name, value in last.items()):
                found.append(await told.next())
        return found


async def test_what_was_received_and_not_read_is_there_and_the_stream_goes_on(
    env: dict[str, str],
    tmp_path: Path,
) -> None:
    ref = Reference("Ref")
    async with Host(env, tmp_path) as host, ref.join(host.link):
        await ref.connected()
        sent = [await ref.send(f"no {n}") for n in range(3)]
        before = await host.told(message_id=sent[2]["message_id"])
        first = await host.get("/message:recv", limit=1)
        assert [one["parts"] for one in first["messages"]] == [text("no 0")]
        known = first["messages"][0]["seq"]
        async with asyncio.timeout(WAIT):  # that it was read is noted when the answer has gone out
            while len((await host.get("/message:recv", ack=0))["messages"]) > 2:
                pass
        await host.kill()
        await ref.until(lambda: not ref.sockets)
        await host.again()
        await ref.connected()
        await ref.raw(sent[1])  # it does not know whether that has arrived
        last = await ref.send("no 3")
        seen = next(event["seq"] for event in before if event.get("message_id") == sent[0]["message_id"])
        told = await host.told(seen, message_id=last["message_id"])
        assert [event["seq"] for event in told] == list(range(seen + 1, seen + 1 + len(told)))
        heard = [event["message_id"] for event in told if event["type"] == "message"]
        assert heard == [one["message_id"] for one in (*sent[1:], last)]
        read = (await host.get("/message:recv"))["messages"]
        assert [one["parts"] for one in read] == [text(f"no {n}") for n in (1, 2, 3)]
        assert [one["seq"] for one in read] == [known + 1, known + 2, known + 3]


async def test_what_waits_for_a_peer_is_known_by_its_id_and_goes_out_by_priority(
    env: dict[str, str],
    tmp_path: Path,
) -> None:
    async with Host(env, tmp_path) as host:
        async with Reference("Late").join(host.link) as ref:
            await ref.connected()
            await host.told(event="card")
            sent = await host.post("/message:send", {"role": "user", "text": "you there?"})
            await ref.came("acp.message")
        await host.told(event="disconnected")
        queued = {}
        for n, priority in enumerate(["low", "normal", "critical", "normal"]):
            body = {"role": "user", "text": priority, "priority": priority, "message_id": f"msg_{n}"}
            queued[n] = await host.post("/message:send", body, 503)
            assert queued[n]["queued"] is True
        await host.kill()
        await host.again()
        again = await host.post("/message:send", {"role": "user", "text": "low", "message_id": "msg_0"}, 503)
        assert (again["queued"], again["server_seq"]) == (True, queued[0]["server_seq"])
        late = Reference("Late")
        async with late.join(host.link):
            await late.came("acp.message", message_id="msg_0")
            arrived = [frame for frame in late.frames if frame["type"] == "acp.message"]
            assert [frame["message_id"] for frame in arrived] == ["msg_2", "msg_1", "msg_3", "msg_0"]
            assert all(frame["_was_queued"] is True for frame in arrived)
            assert sorted(frame["server_seq"] for frame in arrived) == [
                sent["server_seq"] + place for place in (1, 2, 3, 4)
            ]
            done = await host.post("/message:send", {"role": "user", "text": "low", "message_id": "msg_0"})
            assert (done["deduplicated"], done["server_seq"]) == (True, queued[0]["server_seq"])
            next_ = await host.post("/message:send", {"role": "user", "text": "and now"})
            assert next_["server_seq"] == sent["server_seq"] + 5


async def test_what_is_anothers_is_given_to_nobody_else_however_soon_the_process_was_killed(
    env: dict[str, str],
    tmp_path: Path,
) -> None:
    first, second = Reference("First"), Reference("Second")
    async with Host(env, tmp_path) as host:
        async with first.join(host.link):
            await first.connected()
        await host.told(event="disconnected")
        await host.post("/peer/peer_001/send", {"role": "user", "text": "for the first alone"}, 503)
        await host.kill()
        await host.again()
        async with second.join(host.link):
            came = (await host.told(event="card", name="Second"))[-1]
            assert came["peer_id"] == "peer_002"
            await host.post("/peer/peer_002/send", {"role": "user", "text": "for the second"})
            assert (await second.came("acp.message"))["parts"] == text("for the second")
            async with first.join(host.link):
                assert (await first.came("acp.message"))["parts"] == text("for the first alone")


async def test_the_number_of_a_peer_that_was_forgotten_is_not_given_again(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    async with running_node("Host", store=store) as host:
        async with Reference("First").join(str(host.node.link)) as first:
            await first.connected()
        await host.until(lambda event: event.get("event") == "disconnected")
        await host.post("/peer/peer_001/send", {"role": "user", "text": "for the first alone"}, 503)
        assert (await host.http.delete("/peers/peer_001")).status_code == 200
    async with running_node("Host", store=store) as host, Reference("Second").join(str(host.node.link)) as second:
        await host.until(lambda event: event.get("event") == "card" and event["name"] == "Second")
        await host.post("/message:send", {"role": "user", "text": "for the second"})
        assert (await second.came("acp.message"))["parts"] == text("for the second")
        assert [one["id"] for one in (await host.get("/peers"))["peers"]] == ["peer_002"]


async def test_a_task_that_was_under_way_is_finished_and_told_once(
    env: dict[str, str],
    tmp_path: Path,
) -> None:
    (tmp_path / "agents.py").write_text(AGENTS)
    async with Host(env, tmp_path, "agents.py") as host, running_node("Boss", reconnect_first=0.05) as boss:
        await boss.post("/peers/connect", {"link": host.link})
        await boss.until(lambda event: event.get("event") == "card")
        task = (await boss.post("/tasks", {"role": "user", "parts": text("again")}, 201))["id"]
        await host.dead()
        await host.again()
        await boss.state(task, "completed")
        assert (await boss.get(f"/tasks/{task}"))["artifact"]["parts"] == text("once again")
        told = await host.told(task_id=task, state="completed")
        states = [event["state"] for event in told if event.get("task_id") == task and "state" in event]
        assert states == ["submitted", "working", "completed"]
        assert [event["seq"] for event in told] == list(range(1, len(told) + 1))
        assert (await host.get(f"/tasks/{task}"))["artifact"]["parts"] == text("once again")


async def test_a_task_that_was_written_down_and_not_begun_is_begun_by_the_next_process(tmp_path: Path) -> None:
    store = tmp_path / "node.db"
    async with Engine(store) as engine:
        node = Node(engine, NodeSettings(name="Host", listens=False))
        await node.start()
        peer = node.peers.new("one that confirms nothing")
        now = frames.now_z()
        task = Task("task_1", "submitted", now, now, {"parts": text("hello")}, peer.scope, "run", peer.id)
        await node.journal.keep([node.journal.put_task(task)])
        await node.stop()

    @il.agent
    async def echo(text: str) -> str:
        return text

    async with Engine(store, agents=[echo]) as engine:
        node = Node(engine, NodeSettings(name="Host", listens=False))
        await node.start()
        found = await node.journal.task(peer.scope, "task_1")
        assert found is not None
        ended, _ = await node.tasking.wait(found, 10.0)
        assert (ended.status, ended.artifact) == ("completed", {"artifact_id": "output", "parts": text("hello")})
        waiting = await engine.core.store.documents.letters(node.journal.box_out, topic=peer.id, limit=10)
        assert [json.loads(letter.body)["status"] for letter in waiting] == ["working", "completed"]
        await node.stop()

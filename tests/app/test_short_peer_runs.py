"""Messages and tasks of the peer door whose runs are over at once, and those that take longer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.documents import Follow
from interlingua.model.filters import RunFilter
from interlingua.model.run import RunRequest
from interlingua.mounts.loader import local_agents
from interlingua.protocols.peer.mount.server import PeerServer
from interlingua.protocols.peer.wire import links
from interlingua.transports.http.sse import Reader
from tests.kit.databases import keeps_not_once

from .test_short_runs import Raw, connected, up


def asked(raw: Raw, path: str, body: Any, *more: str) -> bytes:
    data = json.dumps(body).encode()
    head = [
        f"POST /peer{path} HTTP/1.1", f"host: {raw.host}", "content-type: application/json", *more,
        f"content-length: {len(data)}",
    ]  # fmt: skip
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


def message(raw: Raw, agent: str, text: str, **more: Any) -> bytes:
    return asked(raw, "/message:send", {"role": "user", "text": text, "skill_id": agent, "sync": True, **more})


def task(raw: Raw, agent: str, text: str, **more: Any) -> bytes:
    body = {"role": "user", "text": text, "skill_id": agent, **more}
    return asked(raw, "/tasks", body, "accept: text/event-stream")


async def streamed(raw: Raw) -> list[dict[str, Any]]:
    """The events of a stream, with a length or in chunks."""
    async with asyncio.timeout(20):
        head = (await raw.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        assert status == "HTTP/1.1 200 OK"
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        data = b""
        if "content-length" in headers:
            data = await raw.reader.readexactly(int(headers["content-length"]))
        else:
            while size := int(await raw.reader.readline(), 16):
                data += await raw.reader.readexactly(size)
                await raw.reader.readexactly(2)
            await raw.reader.readexactly(2)
    return [json.loads(event.data) for event in Reader(2**20).feed(data)]


def states(events: list[dict[str, Any]]) -> list[str]:
    return [event["state"] for event in events if event["type"] == "status"]


async def test_a_message_is_answered_with_its_reply(tmp_path: Path) -> None:
    async with up(tmp_path) as (server, _), connected(server) as raw:
        raw.send(message(raw, "echo", "first"))
        first = await raw.answer()
        raw.send(message(raw, "echo", "höher", create_task=True))
        status, headers, told = await raw.answer()
        assert (status, set(headers)) == (200, set(first[1]))
        assert set(told) == set(first[2])
        assert told["reply"]["parts"] == [{"type": "text", "content": "höher"}]
        assert told["task"]["status"] == "completed"
        assert told["server_seq"] == first[2]["server_seq"] + 1
        raw.send(message(raw, "echo", "again", message_id=told["message_id"]))
        _, _, again = await raw.answer()
        assert (again["deduplicated"], again["reply"]) == (True, told["reply"])
        raw.send(message(raw, "broken", "x"))
        assert (await raw.answer())[2]["reply"]["error"]["message"] == "so it is"
        raw.send(message(raw, "nobody", "x"))
        assert (await raw.answer())[0] == 404


async def test_a_task_is_told_whole_in_the_answer_to_its_making(tmp_path: Path) -> None:
    async with up(tmp_path) as (server, _), connected(server) as raw:
        raw.send(task(raw, "echo", "first"))
        usual = await streamed(raw)
        raw.send(task(raw, "echo", "second", task_id="task_two"))
        direct = await streamed(raw)
        assert [event["type"] for event in direct] == [event["type"] for event in usual]
        assert states(direct) == ["submitted", "working", "completed"]
        assert direct[-1]["task"]["artifact"]["parts"] == [{"type": "text", "content": "second"}]
        assert direct[-1]["task"]["id"] == "task_two"
        seqs = [event["seq"] for event in direct if "seq" in event]
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
        raw.send(task(raw, "echo", "other", task_id="task_two"))  # that one is there, and is told again
        again = await streamed(raw)
        assert again[-1]["task"]["artifact"] == direct[-1]["task"]["artifact"]
        assert len(await server.engine.runs.search(RunFilter(agent="echo"))) == 2


async def test_a_task_that_takes_longer_is_streamed_to_its_end_and_begun_once(
    tmp_path: Path,
) -> None:
    async with up(tmp_path) as (server, gate), connected(server) as raw:
        raw.send(message(raw, "echo", "x"))
        await raw.answer()
        raw.send(task(raw, "patient", "slowly"))
        async with asyncio.timeout(20):
            await gate.entered.wait()
        gate.open.set()
        told = await streamed(raw)
        assert states(told) == ["submitted", "working", "completed"]
        assert told[-1]["task"]["artifact"]["parts"] == [{"type": "text", "content": "slowly"}]
        assert len(await server.engine.runs.search(RunFilter(agent="patient"))) == 1


async def test_a_message_that_takes_longer_is_answered_when_its_run_ends(tmp_path: Path) -> None:
    async with up(tmp_path) as (server, gate), connected(server) as raw:
        raw.send(message(raw, "echo", "x"))
        await raw.answer()
        raw.send(message(raw, "patient", "slowly"))
        async with asyncio.timeout(20):
            await gate.entered.wait()
        gate.open.set()
        assert (await raw.answer())[2]["reply"]["parts"] == [{"type": "text", "content": "slowly"}]
        assert len(await server.engine.runs.search(RunFilter(agent="patient"))) == 1


@pytest.mark.parametrize("begin", [message, task])
async def test_what_could_not_be_kept_with_its_run_is_begun_once_all_the_same(
    tmp_path: Path,
    begin: Any,
) -> None:
    async with up(tmp_path) as (server, _), connected(server) as raw:
        raw.send(message(raw, "echo", "first"))
        await raw.answer()
        failed = keeps_not_once(server.engine.core.store, lambda change: isinstance(change, Follow))
        raw.send(begin(raw, "echo", "second"))
        if begin is task:
            assert states(await streamed(raw)) == ["submitted", "working", "completed"]
        else:
            assert (await raw.answer())[2]["reply"]["parts"] == [{"type": "text", "content": "second"}]
        assert failed
        runs = await server.engine.runs.search(RunFilter(agent="echo"))
        assert [run.status for run in runs] == [il.Status.SUCCEEDED] * 2


async def test_a_mounted_agent_is_one_run_there(tmp_path: Path) -> None:
    async with up(tmp_path) as (server, gate):
        mount = PeerServer(links.parse(f"peer+{server.address}/peer"))
        agents = await local_agents(mount)
        async with il.Engine(tmp_path / "hub.db", agents=agents) as hub:

            async def through(agent: str, text: str) -> il.Run:
                made = await hub.runs.submit(RunRequest(agent, None, {"text": text}))
                return await hub.runs.wait(made.id, timeout=20)

            assert (await through("echo", "first")).output == {"text": "first"}
            assert (await through("echo", "second")).output == {"text": "second"}
            assert (await through("broken", "x")).status is il.Status.FAILED
            slow = asyncio.ensure_future(through("patient", "slowly"))
            async with asyncio.timeout(20):
                await gate.entered.wait()
            gate.open.set()
            assert (await slow).output == {"text": "slowly"}
        await mount.close()
        assert len(await server.engine.runs.search(RunFilter(agent="patient"))) == 1

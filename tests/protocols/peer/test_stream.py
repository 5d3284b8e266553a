"""Events as they happen: the stream of a node, that of one task, and the WebSocket of the same."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest
import websockets.asyncio.client
import websockets.exceptions

from interlingua.protocols.peer.discovery.beacons import FoundPeer
from interlingua.protocols.peer.door.http_streams import StreamSettings
from tests.kit.peer_nodes import (
    WAIT,
    EventReader,
    Keys,
    Running,
    at_door,
    breaks,
    checked,
    client,
    echo,
    events,
    painter,
    running_node,
    stuck,
    text,
)
from tests.kit.wait_for import wait_for


async def _tell(node: Running, *words: str) -> None:
    """Something on the owner's feed."""
    for word in words:
        body = {"message_id": word, "role": "user", "parts": text(word)}
        await node.node.journal.keep([node.node.journal.event("message", body)])


async def _task(http: httpx2.AsyncClient, **body: Any) -> str:
    return str(checked(await http.post("/tasks", json={"role": "user", "text": "x", **body}), 201)["id"])


# -- the stream of a node -------------------------------------------------------------------------------------


async def test_a_stream_greets_at_once_and_then_tells_what_happens_without_a_gap() -> None:
    async with running_node("Ann") as ann:
        await _tell(ann, "before")
        async with events(ann.http) as stream:
            ready = await stream.ready()
            assert (ready["type"], ready["seq"]) == ("ready", 1)
            assert ready["ts"].endswith("Z")
            await _tell(ann, "a", "b", "ü\u2028")
            told = [await stream.next() for _ in range(3)]
            assert stream.raw.isascii()
            comments = [line for line in stream.raw.split(b"\n") if line.startswith(b":")]
            assert max(map(len, comments)) >= 512
        assert [event["seq"] for event in told] == [2, 3, 4]
        assert [event["_id"] for event in told] == ["2", "3", "4"]
        assert [event["message_id"] for event in told] == ["a", "b", "ü\u2028"]
        assert all({"type", "ts", "seq"} <= set(event) for event in told)


async def test_a_stream_is_taken_up_again_where_it_was_and_counts_on_after_a_restart(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    async with running_node("Ann", store=store) as ann:
        await _tell(ann, "a", "b", "c")
        async with events(ann.http, since=1) as stream:
            assert (await stream.ready())["seq"] == 1
            assert [(await stream.next())["seq"] for _ in range(2)] == [2, 3]
    async with running_node("Ann", store=store) as ann:
        await _tell(ann, "d")
        # What a browser remembers is newer than the address that it opens again.
        async with events(ann.http, headers={"last-event-id": "2"}, since=0) as stream:
            assert [(await stream.next())["message_id"] for _ in range(2)] == ["c", "d"]
        async with events(ann.http, since=0) as stream:
            assert [(await stream.next())["seq"] for _ in range(4)] == [1, 2, 3, 4]
        async with events(ann.http, since=1000) as stream:
            assert (await stream.ready())["seq"] == 4
            await _tell(ann, "e")
            assert (await stream.next())["seq"] == 5
        for wrong in ("x", "-1", "1.5", "9" * 30):
            assert (await ann.get("/stream", 400, since=wrong))["error_code"] == "ERR_INVALID_REQUEST"
        answer = await ann.http.get("/stream", headers={"last-event-id": "x"})
        assert checked(answer, 400)["ok"] is False


async def test_what_is_older_than_the_memory_is_read_from_the_store() -> None:
    async with running_node("Ann") as ann:
        journal = ann.node.journal
        body = {"role": "user", "parts": text("x")}
        for first in range(0, 3000, 500):
            await journal.keep([journal.event("message", {**body, "message_id": str(first + n)}) for n in range(500)])
        async with events(ann.http, since=0) as stream:
            seen = [(await stream.next())["seq"] for _ in range(3000)]
            assert seen == list(range(1, 3001))
            await _tell(ann, "last")
            assert (await stream.next())["seq"] == 3001


async def test_a_reader_gets_a_piece_at_once_and_all_in_the_end() -> None:
    async with running_node("Ann") as ann:
        journal = ann.node.journal
        body = {"role": "user", "parts": text("x" * 100_000)}
        for number in range(120):  # more than is held in memory
            task = "even" if number % 2 == 0 else "odd"
            await journal.keep([journal.event("message", {**body, "message_id": str(number)}, task=task)])
        feed = journal.feed()
        for topic, wanted in ((None, list(range(1, 121))), ("even", list(range(1, 121, 2)))):
            seen, place = list[int](), 0
            while place < 120:
                events, place = await feed.read(place, topic)
                assert sum(len(event.body) for event in events[:-1]) < 256 * 1024
                seen += [event.seq for event in events]
            assert seen == wanted


async def test_a_silent_stream_is_kept_alive_by_comments() -> None:
    async with running_node("Ann", streams=StreamSettings(look=0.02, keep_alive=0.02)) as ann:
        async with ann.http.stream("GET", "/stream") as answer:
            raw = b""
            async with asyncio.timeout(WAIT):
                async for piece in answer.aiter_bytes():
                    raw += piece
                    if raw.count(b": keepalive\n") >= 4:
                        break
        assert raw.count(b"event:") == 1  # the greeting


async def test_peers_that_come_and_go_and_what_is_found_near_are_told_without_a_name() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben, events(ann.http) as stream:
        peer = await ann.connect(ben)
        found = await stream.next()
        assert (found["type"], found["event"], found["peer_id"], found["_name"]) == ("peer", "connected", peer, None)
        ann.node._found(FoundPeer("Cid", "tok_1", "acp://192.0.2.1:7801/tok_1", "192.0.2.1", 7801, 7901, 0.0))
        while (event := await stream.next())["type"] != "mdns":
            assert event["type"] == "peer"
        assert (event["event"], event["name"], event["_name"]) == ("discovered", "Cid", None)
        assert {"ts", "seq"} <= set(event)


async def test_every_one_of_many_readers_hears_every_event_once() -> None:
    async with running_node("Ann") as ann:

        async def listen() -> list[int]:
            async with events(ann.http) as stream:
                await stream.ready()
                ready.release()
                return [(await stream.next())["seq"] for _ in range(20)]

        ready = asyncio.Semaphore(0)
        readers = [asyncio.ensure_future(listen()) for _ in range(60)]
        for _ in readers:
            await ready.acquire()
        await asyncio.gather(*(_tell(ann, str(index)) for index in range(20)))
        assert await asyncio.gather(*readers) == [list(range(1, 21))] * 60


async def test_a_reader_that_stops_reading_disturbs_only_itself_and_is_given_up() -> None:
    async with running_node("Ann", streams=StreamSettings(look=0.05, keep_alive=5, stall=0.3)) as ann:
        host, _, port = ann.base.removeprefix("http://").partition(":")
        rude = socket.socket()
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        rude.setblocking(False)
        await asyncio.get_running_loop().sock_connect(rude, (host, int(port)))
        await asyncio.get_running_loop().sock_sendall(rude, b"GET /stream HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        streams = ann.app._api.streams
        async with events(ann.http) as stream:
            await stream.ready()
            await wait_for(lambda: len(streams.open) >= 2)
            big = "x" * 200_000
            for index in range(40):
                body = {"message_id": str(index), "role": "user", "parts": text(big)}
                await ann.node.journal.keep([ann.node.journal.event("message", body)])
                assert (await stream.next())["message_id"] == str(index)
            async with asyncio.timeout(WAIT):
                while len(streams.open) > 1:  # the one that takes nothing
                    await _tell(ann, "more")
                    await stream.next()
        rude.close()


async def test_there_is_a_limit_to_streams_and_one_caller_cannot_have_them_all() -> None:
    async with running_node("Ann", max_streams=2) as ann, events(ann.http) as one, events(ann.http) as two:
        await one.ready()
        await two.ready()
        error = await ann.get("/stream", 503)
        assert error["error_code"] == "ERR_RATE_LIMIT"
    keys = Keys()
    mine, yours = keys.add("mine"), keys.add("yours")
    async with at_door(echo, keys=keys, max_streams=10) as (_, http), events(http, headers=mine) as stream:
        await stream.ready()
        assert checked(await http.get("/stream", headers=mine), 429)["error_code"] == "ERR_RATE_LIMIT"
        async with events(http, headers=yours) as other:
            await other.ready()


async def test_streams_end_when_the_server_stops() -> None:
    async with running_node("Ann") as ann, events(ann.http) as stream:
        await stream.ready()
        await ann.app.close()
        assert await stream.rest() == []
        assert (await ann.get("/stream", 503))["error_code"] == "ERR_RATE_LIMIT"


# -- the stream of a task -------------------------------------------------------------------------------------


async def test_a_task_is_told_from_its_beginning_to_its_end_and_then_the_stream_ends() -> None:
    async with at_door(echo) as (_, http):
        other = await _task(http)
        task = await _task(http, text="hello", context_id="ctx")
        async with events(http, f"/tasks/{task}:subscribe") as stream:
            told = await stream.rest()
        assert {event["task_id"] for event in told} == {task}
        assert [event["state"] for event in told if event["type"] == "status"] == ["submitted", "working", "completed"]
        assert {event["context_id"] for event in told} == {"ctx"}
        seqs = [event["seq"] for event in told]
        assert seqs == sorted(set(seqs))
        pieces = [event["artifact"] for event in told if event["type"] == "artifact"]
        assert told[-1]["state"] == "completed"
        assert [piece["append"] for piece in pieces] == [False, *[True] * (len(pieces) - 1)]
        assert [piece["last_chunk"] for piece in pieces] == [*[False] * (len(pieces) - 1), True]
        assert "".join(part["content"] for piece in pieces for part in piece["parts"]) == "you said hello"
        whole = checked(await http.get(f"/tasks/{task}"), 200)["artifact"]
        assert whole["parts"] == text("you said hello")
        # Once more, long after; and from the middle.
        async with events(http, f"/tasks/{task}/subscribe") as stream:
            assert await stream.rest() == told
        async with events(http, f"/tasks/{task}:subscribe", headers={"last-event-id": str(told[-2]["seq"])}) as stream:
            assert await stream.rest() == told[-1:]
        async with events(http, f"/tasks/{task}:subscribe", since=told[-1]["seq"]) as stream:
            assert await stream.rest() == []
        async with events(http, f"/tasks/{other}:subscribe") as stream:
            assert {event["task_id"] for event in await stream.rest()} == {other}
        assert checked(await http.get("/tasks/task_none:subscribe"), 404)["error_code"] == "ERR_NOT_FOUND"


async def test_whoever_watches_a_task_sees_its_question_its_cancelling_and_its_end() -> None:
    async with at_door(painter, stuck, breaks) as (_, http):
        asks = await _task(http)
        async with events(http, f"/tasks/{asks}:subscribe") as stream:
            await _until(stream, "input_required")
            checked(await http.post(f"/tasks/{asks}:continue", json={"text": "red"}), 200)
            states = [event["state"] for event in await stream.rest() if event["type"] == "status"]
            assert states == ["working", "completed"]
        hangs = await _task(http, skill_id="stuck")
        async with events(http, f"/tasks/{hangs}:subscribe") as stream:
            await _until(stream, "working")
            checked(await http.post(f"/tasks/{hangs}:cancel"), 200)
            assert [event["state"] for event in await stream.rest()] == ["cancelling", "canceled"]
        fails = await _task(http, skill_id="breaks")
        async with events(http, f"/tasks/{fails}:subscribe") as stream:
            told = await stream.rest()
        assert [event["state"] for event in told] == ["submitted", "working", "failed"]
        assert told[-1]["error"] == "it cannot be done"


async def _until(stream: EventReader, state: str) -> None:
    while (await stream.next()).get("state") != state:
        pass


async def test_how_a_task_ended_is_told_even_where_its_events_are_gone() -> None:
    async with at_door(echo) as (node, http):
        task = await _task(http)
        await http.get(f"/tasks/{task}:wait")
        await node.node.engine.core.store.documents.trim_feed(node.node.journal.name, 0)
        node.node.journal.feed()._ring.clear()
        async with events(http, f"/tasks/{task}:subscribe") as stream:
            (last,) = await stream.rest()
        assert (last["type"], last["state"], last["task_id"]) == ("status", "completed", task)
        assert {"ts", "seq"} <= set(last)


# -- over a WebSocket -----------------------------------------------------------------------------------------


async def test_the_same_events_come_over_a_websocket() -> None:
    async with at_door(echo) as (node, http):
        task = await _task(http)
        checked(await http.get(f"/tasks/{task}:wait"), 200)
        await _tell(node, "hello")
        async with events(http, since=0) as stream:
            told = [await stream.next() for _ in range(await node.node.journal.feed().head())]
        for base in (node.base, str(http.base_url).rstrip("/")):
            address = base.replace("http://", "ws://") + "/ws/stream?since=0"
            async with websockets.asyncio.client.connect(address) as socket_:
                frames = [json.loads(await asyncio.wait_for(socket_.recv(), WAIT)) for _ in range(len(told) + 1)]
                assert frames[0]["event"] == "acp.ready"
                assert [frame["data"]["seq"] for frame in frames[1:]] == [event["seq"] for event in told]
                names = {"status": "acp.task.status", "artifact": "acp.task.artifact", "message": "acp.message"}
                assert [frame["event"] for frame in frames[1:]] == [names[event["type"]] for event in told]
                last = frames[-1]["data"]
                assert (last["message_id"], last["timestamp"], last["server_seq"]) == ("hello", last["ts"], last["seq"])
                await _tell(node, "live")
                live = json.loads(await asyncio.wait_for(socket_.recv(), WAIT))
                assert live["data"]["message_id"] == "live"
            await _gone(node)


async def _gone(node: Running) -> None:
    await wait_for(lambda: not node.app._api.streams.open)


async def test_a_websocket_is_for_those_who_may_read() -> None:
    async with running_node("Ann", http_token="s3cret") as ann:
        address = ann.base.replace("http://", "ws://") + "/ws/stream"
        with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
            await websockets.asyncio.client.connect(address).__aenter__()
        assert refused.value.response.status_code == 401
        headers = {"authorization": "Bearer s3cret"}
        async with websockets.asyncio.client.connect(address, additional_headers=headers) as socket_:
            assert json.loads(await socket_.recv())["event"] == "acp.ready"
        evil = {**headers, "origin": "https://evil.example"}
        with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
            await websockets.asyncio.client.connect(address, additional_headers=evil).__aenter__()
        assert refused.value.response.status_code == 403


async def test_one_caller_does_not_hear_of_another() -> None:
    keys = Keys()
    ann, ben = keys.add("ann"), keys.add("ben")
    async with at_door(echo, keys=keys) as (node, http), events(http, headers=ben) as stream:
        body = {"role": "user", "text": "x"}
        checked(await http.post("/message:send", json={**body, "sync": True}, headers=ann), 200)
        mine = checked(await http.post("/message:send", json=body, headers=ben), 200)
        first = await stream.next()
        assert (first["message_id"], first["seq"]) == (mine["message_id"], 1)
        async with client(node.base) as owner, events(owner, since=0) as own:
            assert (await own.ready())["seq"] == 0
            await _tell(node, "mine")
            assert (await own.next())["message_id"] == "mine"

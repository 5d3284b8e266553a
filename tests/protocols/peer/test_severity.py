"""Twelve things that were seen to go badly wrong in the published reference, each shown not to go wrong here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from interlingua.protocols.peer.relay.app import RelaySettings, relay_app
from tests.kit.peer_nodes import (
    WAIT,
    Running,
    at_door,
    echo,
    events,
    listening,
    painter,
    promptly,
    running_node,
    shout,
    text,
)
from tests.kit.ports import free_port

from .reference import Reference


def address(node: Running) -> str:
    return str(node.node.link).replace("acp://", "ws://")


@contextlib.asynccontextmanager
async def one_that_does_not_read(node: Running, name: str = "Rude") -> AsyncIterator[ClientConnection]:
    """A peer that tells who it is, and takes nothing from its socket from then on."""
    ref = Reference(name)
    async with connect(address(node), max_queue=(1, 1), close_timeout=0.1, ping_interval=None) as socket:
        before = await node.node.journal.feed().head()
        await socket.send(ref.introduction())
        await node.until(lambda event: event.get("event") == "card", before)
        yield socket
        socket.transport.abort()


async def test_1_a_peer_that_stops_reading_while_much_is_sent_to_it_locks_up_nothing() -> None:
    async with running_node("Host", agents=[echo]) as host, running_node("Good", agents=[shout]) as good:
        async with one_that_does_not_read(host):
            rude = (await host.get("/peers"))["peers"][0]["id"]
            good_id = await host.connect(good)
            large = {"role": "user", "text": "x" * 900_000}
            sent = await asyncio.gather(*(host.post(f"/peer/{rude}/send", large) for _ in range(12)))
            assert all(one["ok"] for one in sent)
            async with promptly():
                answer = await host.post("/message:send", {"role": "user", "text": "hi", "sync": True} | peer(good_id))
            assert answer["reply"]["parts"] == text("HI")
        ref = Reference("Next")
        async with ref.join(str(host.node.link)):
            await ref.connected()
            assert (await ref.ask("still there?"))["parts"] == text("you said still there?")


def peer(id_: str) -> dict[str, str]:
    return {"peer_id": id_}


async def test_2_what_is_connected_by_a_relay_can_be_sent_to() -> None:
    async with listening(relay_app(RelaySettings())) as base:
        relay = base.replace("http://", "acp+ws://")
        async with running_node("Host", agents=[shout], relay=relay) as host, running_node("Guest") as guest:
            assert host.node.relay is not None
            await host.node.relay.ready()
            await guest.post("/peers/connect", {"link": str(host.node.relay_link(host.node.token))})
            await guest.until(lambda event: event.get("event") == "card")
            assert (await guest.get("/status"))["connection_type"] == "relay"
            answer = await guest.post("/message:send", {"role": "user", "text": "hi", "sync": True})
            assert answer["reply"]["parts"] == text("HI")


async def test_3_a_peer_that_leaves_takes_nobody_elses_connection_with_it() -> None:
    first, second = Reference("First"), Reference("Second")
    async with running_node("Host") as host, first.join(str(host.node.link)):
        await first.connected()
        await host.until(lambda event: event.get("event") == "card")
        async with second.join(str(host.node.link)):
            await host.until(lambda event: event.get("event") == "card" and event["name"] == "Second")
        await host.until(lambda event: event.get("event") == "disconnected" and event["name"] == "Second")
        assert (await host.get("/status"))["connected"] is True
        await host.post("/message:send", {"role": "user", "text": "to the one who stayed"})
        assert (await first.came("acp.message"))["parts"] == text("to the one who stayed")


@pytest.mark.parametrize("odd", [b"\x00\xff", "[]", "17", '{"card":5,"type":"acp.agent_card"}', '{"identity":[]}'])
async def test_4_an_odd_frame_does_not_end_the_connection_and_leaves_no_dead_peer(odd: str | bytes) -> None:
    ref = Reference("Odd")
    async with running_node("Host", agents=[echo]) as host, ref.join(str(host.node.link)):
        await ref.connected()
        await ref.raw(odd)
        assert (await ref.ask("and now?"))["parts"] == text("you said and now?")
        assert ref.closes == []
        assert [(one["name"], one["connected"]) for one in (await host.get("/peers"))["peers"]] == [("Odd", True)]


async def test_5_a_dead_address_is_never_called_connected() -> None:
    async with running_node("Host") as host:
        link = f"acp://127.0.0.1:{free_port()}/tok_0123456789abcdef"
        told = await host.post("/peers/connect", {"link": link})
        async with asyncio.timeout(WAIT):
            while (dead := await host.get(f"/peers/{told['peer_id']}"))["error"] is None:
                assert dead["connected"] is False
        assert (dead["connected"], dead["connection_type"]) == (False, None)
        assert "cannot be reached" in dead["error"]
        status = await host.get("/status")
        assert (status["connected"], status["connection_type"]) == (False, None)


async def test_6_peers_and_messages_can_be_read_after_sending_and_a_bad_number_is_a_bad_request() -> None:
    async with running_node("Here") as here, running_node("There") as there:
        id_ = await here.connect(there)
        await here.post("/message:send", {"role": "user", "text": "out", "peer_id": id_})
        back = (await there.get("/peers"))["peers"][0]["id"]
        await there.post(f"/peer/{back}/send", {"role": "agent", "text": "in"})
        await here.message(direction="inbound")
        for path in (f"/peers/{id_}", f"/peer/{id_}"):
            assert (await here.get(path))["id"] == id_
        told = (await here.get("/messages"))["messages"]
        assert {one["direction"] for one in told} == {"inbound", "outbound"}
        assert all(isinstance(one["received_at"], str) for one in told)
        for path in ("/recv", "/message:recv", "/messages"):
            refused = await here.get(path, 400, limit="abc")
            assert refused["error_code"] == "ERR_INVALID_REQUEST"


async def test_7_a_task_that_has_ended_stays_as_it_is_and_only_known_states_are_taken() -> None:
    ref = Reference("Boss")
    async with running_node("Worker") as worker, ref.join(str(worker.node.link)):
        await ref.connected()
        task = await ref.delegate({"role": "user", "parts": text("dig")})
        await worker.state(task, "submitted")
        for status in ("banana", "", 7, None):
            refused = await worker.http.put(f"/tasks/{task}", json={"status": status})
            assert refused.status_code == 400
        await worker.http.put(f"/tasks/{task}", json={"status": "working"})
        ended = await worker.http.put(f"/tasks/{task}", json={"status": "completed"})
        assert ended.status_code == 200
        for status in ("failed", "working", "submitted", "canceled"):
            refused = await worker.http.put(f"/tasks/{task}", json={"status": status})
            assert (refused.status_code, refused.json()["error_code"]) == (400, "ERR_INVALID_REQUEST")
        assert (await worker.get(f"/tasks/{task}"))["status"] == "completed"


async def test_8_a_stream_of_a_task_tells_the_result_before_the_end_and_ends_with_its_own_task_alone() -> None:
    async with at_door(echo, painter) as (_, http):
        body = {"role": "user", "parts": text("a wall"), "skill_id": "painter", "task_id": "task_slow"}
        assert (await http.post("/tasks", json=body)).status_code == 201
        async with events(http, "/tasks/task_slow:subscribe") as slow:
            while (await slow.next()).get("state") != "input_required":
                pass
            other = {"role": "user", "parts": text("hi"), "skill_id": "echo", "task_id": "task_quick"}
            assert (await http.post("/tasks", json=other)).status_code == 201
            async with events(http, "/tasks/task_quick:subscribe") as quick:
                told = [event.get("state", event["type"]) for event in await quick.rest()]
            assert told[-1] == "completed"
            assert told.index("artifact") < told.index("completed")
            await http.post("/tasks/task_slow:continue", json={"text": "blue"})
            rest = [event.get("state", event["type"]) for event in await slow.rest()]
        assert (rest[0], rest[-2:]) == ("working", ["artifact", "completed"])
        async with events(http, "/tasks/task_slow:subscribe") as after:
            assert [event["state"] for event in await after.rest() if "state" in event][-1] == "completed"


async def test_9_a_slow_reader_of_the_websocket_stream_holds_up_no_update_of_a_task() -> None:
    ref = Reference("Boss")
    async with running_node("Worker") as worker, ref.join(str(worker.node.link)):
        await ref.connected()
        task = await ref.delegate({"role": "user", "parts": text("dig")})
        await worker.state(task, "submitted")
        await worker.http.put(f"/tasks/{task}", json={"status": "working"})
        stream = worker.base.replace("http://", "ws://") + "/ws/stream"
        async with connect(stream, max_queue=(1, 1), close_timeout=0.1, ping_interval=None) as reader:
            await reader.recv()
            for n in range(30):
                artifact = {"artifact_id": f"a{n}", "parts": text("x" * 200_000)}
                async with promptly():
                    done = await worker.http.put(f"/tasks/{task}", json={"artifact": artifact})
                assert done.status_code == 200
            reader.transport.abort()


async def test_10_own_messages_are_not_received_and_what_is_received_can_still_be_read() -> None:
    async with running_node("Here") as here, running_node("There") as there:
        await here.connect(there)
        await here.post("/message:send", {"role": "user", "text": "mine", "context_id": "ctx"})
        await there.message(direction="inbound")
        await there.post("/message:send", {"role": "agent", "text": "theirs", "context_id": "ctx"})
        await here.message(direction="inbound")
        got = (await here.get("/recv"))["messages"]
        assert [one["parts"] for one in got] == [text("theirs")]
        assert (await here.get("/recv"))["messages"] == []
        for path in ("/messages", "/context/ctx/messages"):
            kept = await here.get(path, sort="asc")
            assert [one["parts"] for one in kept["messages"]] == [text("mine"), text("theirs")]


async def test_11_a_message_that_is_sent_again_because_nobody_was_there_arrives_once() -> None:
    ref = Reference("Late")
    async with running_node("Host") as host:
        body = {"role": "user", "text": "wait for me", "message_id": "msg_again"}
        for _ in range(3):
            told = await host.post("/message:send", body, 503)
            assert (told["error_code"], told["queued"]) == ("ERR_NOT_CONNECTED", True)
        assert (await host.get("/offline-queue"))["total_queued"] == 1
        async with ref.join(str(host.node.link)):
            await ref.came("acp.message", message_id="msg_again")
            again = await host.post("/message:send", body)
            assert again["deduplicated"] is True
            await host.post("/message:send", {"role": "user", "text": "the next"})
            await ref.until(lambda: [one for one in ref.messages if one["parts"] == text("the next")])
            assert [one["message_id"] for one in ref.messages].count("msg_again") == 1


async def test_12_a_message_to_one_peer_is_signed_checked_and_whole(tmp_path: Path) -> None:
    ref = Reference("Ref", secret="shared")
    async with (
        running_node("Host", secret="shared", identity=tmp_path / "key.json") as host,
        ref.join(str(host.node.link)),
    ):
        await ref.connected()
        await host.until(lambda event: event.get("event") == "card")
        said: dict[str, Any] = {"role": "user", "text": "hi", "context_id": "ctx_7", "message_id": "msg_7"}
        await host.post("/peer/peer_001/send", said)
        frame = await ref.came("acp.message")
        assert frame["context_id"] == "ctx_7"
        assert frame["identity"]["scheme"] == "ed25519"
        (read,) = await ref.until(lambda: ref.messages)
        assert "_sig_invalid" not in read
        assert "sig" in frame
        for wrong in ({"role": "robot"}, {"role": None}, {"text": None}, {"text": None, "parts": [{"type": "odd"}]}):
            refused = await host.post("/peer/peer_001/send", {**said, "message_id": "msg_8", **wrong}, 400)
            assert refused["error_code"] == "ERR_INVALID_REQUEST"
        assert len(ref.messages) == 1

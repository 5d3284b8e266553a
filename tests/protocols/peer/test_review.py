"""What goes wrong only when two things meet: limits, crashes, readers at the same time, and peers that are rude."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.client import ClientProtocol
from websockets.uri import parse_uri

import interlingua as il
from interlingua.model.documents import Follow, Post
from interlingua.protocols.peer.node.outbound import draft
from interlingua.protocols.peer.wire.frames import now_z
from interlingua.protocols.peer.wire.signatures import Identity, Trust
from tests.kit.databases import keeps_not_once
from tests.kit.mounts.peer import runs_of
from tests.kit.peer_nodes import (
    WAIT,
    Keys,
    Running,
    at_door,
    checked,
    client,
    events,
    painter,
    running_door,
    running_node,
    shout,
    stuck,
    text,
)
from tests.kit.wait_for import wait_for

from .reference import Reference


class Raw:
    """A peer that is whatever the test says."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self.frames: list[dict[str, Any]] = []

    async def say(self, *frames: Any) -> None:
        for frame in frames:
            await self._socket.send(json.dumps(frame))

    async def hear(self, kind: str, **members: Any) -> dict[str, Any]:
        """The next frame of a type."""
        async with asyncio.timeout(WAIT):
            while True:
                frame: dict[str, Any] = json.loads(await self._socket.recv())
                self.frames.append(frame)
                if frame.get("type") == kind and all(frame.get(name) == value for name, value in members.items()):
                    return frame

    async def heard_so_far(self) -> list[dict[str, Any]]:
        """Everything that came before the answer to a ping: frames keep their order."""
        await self.say({"type": "acp.ping", "nonce": "so-far", "from": "x", "ts": "2026-01-01T00:00:00Z"})
        await self.hear("acp.pong", nonce="so-far")
        return self.frames


def card(name: str, **flags: Any) -> dict[str, Any]:
    told = {"name": name, "capabilities": flags, "extensions": []}
    return {"type": "acp.agent_card", "message_id": f"card_{name}", "ts": "2026-01-01T00:00:00Z", "card": told}


def said(name: str, id_: str, content: str = "hello", **more: Any) -> dict[str, Any]:
    return {
        "type": "acp.message", "message_id": id_, "ts": "2026-01-01T00:00:00Z", "from": name, "role": "user",
        "parts": text(content), **more,
    }  # fmt: skip


@contextlib.asynccontextmanager
async def raw(node: Running, name: str = "Rude", **flags: Any) -> AsyncIterator[Raw]:
    """A peer with this card, connected to a node."""
    assert node.node.link is not None
    async with connect(node.node.link.replace("acp://", "ws://"), max_size=None) as socket:
        peer = Raw(socket)
        await peer.say(card(name, **flags))
        await peer.hear("acp.agent_card")
        yield peer


# -- limits -------------------------------------------------------------------------------------------------------


async def test_a_message_that_is_as_large_as_may_be_arrives_and_so_does_what_follows() -> None:
    limit = 4000
    async with running_node("Ann", max_msg_bytes=limit) as ann, running_node("Ben", max_msg_bytes=limit) as ben:
        await ann.connect(ben)
        # The largest that is taken, found by asking.
        size = limit - len(draft({"role": "user", "text": ""}, "Ann", limit).data)
        while (await ann.http.post("/message:send", json={"role": "user", "text": "x" * size})).status_code == 413:
            size -= 1
        await ann.post("/message:send", {"role": "user", "text": "after", "message_id": "after"})
        await ben.message(message_id="after")
        found = (await ben.get("/messages", sort="asc"))["messages"]
        assert [len(one["parts"][0]["content"]) for one in found] == [size, len("after")]


async def test_a_task_that_is_too_large_for_a_peer_is_refused_and_holds_up_nothing() -> None:
    async with running_node("Ann", max_msg_bytes=4000) as ann, running_node("Ben", max_msg_bytes=4000) as ben:
        await ann.connect(ben)
        error = await ann.post("/tasks", {"role": "user", "text": "x" * 5000}, 413)
        assert error["error_code"] == "ERR_MSG_TOO_LARGE"
        await ann.post("/message:send", {"role": "user", "text": "after", "message_id": "after"})
        await ben.message(message_id="after")


async def test_a_message_that_only_this_side_would_take_is_refused_for_a_peer_that_takes_less() -> None:
    async with running_node("Ann", max_msg_bytes=100_000) as ann, running_node("Ben", max_msg_bytes=4000) as ben:
        await ann.connect(ben)
        error = await ann.post("/message:send", {"role": "user", "text": "x" * 5000}, 413)
        assert error["error_code"] == "ERR_MSG_TOO_LARGE"
        await ann.post("/message:send", {"role": "user", "text": "after", "message_id": "after"})
        await ben.message(message_id="after")


@il.agent
async def verbose(text: str) -> str:
    """Says much."""
    return text * 10_000


async def test_a_result_that_is_too_large_for_a_peer_reaches_it_as_a_file() -> None:
    async with (
        running_node("Ann", max_msg_bytes=8000) as ann,
        running_node("Agents", agents=[verbose], max_msg_bytes=8000) as agents,
    ):
        await ann.connect(agents)
        task = (await ann.post("/tasks", {"role": "user", "text": "abc"}, 201))["task"]["id"]
        await ann.state(task, "completed")
        [part] = (await ann.get(f"/tasks/{task}"))["artifact"]["parts"]
        assert part["type"] == "file"
        async with client(agents.base) as http:
            assert (await http.get(part["url"])).text == "abc" * 10_000
        answer = await ann.post("/message:send", {"role": "user", "text": "abc", "sync": True})
        assert answer["reply"]["parts"][0]["type"] == "file"


async def test_what_waits_and_is_too_large_for_whoever_comes_holds_up_nothing() -> None:
    async with running_node("Ann", max_msg_bytes=100_000) as ann, running_node("Ben", max_msg_bytes=4000) as ben:
        await ann.post("/message:send", {"role": "user", "text": "x" * 50_000, "message_id": "large"}, 503)
        await ann.post("/message:send", {"role": "user", "text": "after", "message_id": "after"}, 503)
        await ann.connect(ben)
        await ben.message(message_id="after")
        refused = await ann.until(lambda event: event.get("event") == "error" and event.get("message_id") == "large")
        assert refused["code"] == "message_too_large"
        queues = (await ann.get("/offline-queue"))["queue"].values()
        assert "large" not in [one["id"] for queue in queues for one in queue["messages"]]


# -- who is who ---------------------------------------------------------------------------------------------------


async def test_the_id_of_a_peer_that_was_forgotten_is_nobody_elses_after_a_restart(tmp_path: Path) -> None:
    async with running_node("Host", store=tmp_path / "s.db") as host:
        async with raw(host, "Alice"):
            await host.until(lambda event: event.get("event") == "card")
        await host.until(lambda event: event.get("event") == "disconnected")
        await host.post("/peer/peer_001/send", {"role": "user", "text": "for Alice alone"}, 503)
        checked(await host.http.delete("/peer/peer_001"), 200)
    async with running_node("Host", store=tmp_path / "s.db") as host, raw(host, "Mallory") as mallory:
        await host.until(lambda event: event.get("event") == "card" and event["name"] == "Mallory")
        await host.post("/message:send", {"role": "user", "text": "for Mallory"})
        await mallory.hear("acp.message")
        told = [frame["parts"] for frame in mallory.frames if frame["type"] == "acp.message"]
        assert told == [text("for Mallory")]
        assert [peer["id"] for peer in (await host.get("/peers"))["peers"]] == ["peer_002"]


async def test_a_reply_goes_to_no_other_peer_that_used_the_same_id() -> None:
    async with running_node("Host") as host, raw(host, "Alice") as alice, raw(host, "Mallory") as mallory:
        await alice.say(said("Alice", "m1", correlation_id="m1"))
        await host.until(lambda event: event.get("message_id") == "m1" and event["from"] == "Alice")
        await mallory.say(said("Mallory", "m1", correlation_id="m1"))
        await host.until(lambda event: event.get("message_id") == "m1" and event["from"] == "Mallory")
        error = await host.post("/reply", {"correlation_id": "m1", "content": "the secret"}, 400)
        assert error["error_code"] == "ERR_AMBIGUOUS_PEER"
        first = next(peer["id"] for peer in (await host.get("/peers"))["peers"] if peer["name"] == "Alice")
        await host.post("/reply", {"correlation_id": "m1", "content": "the secret", "peer_id": first})
        assert (await alice.hear("acp.reply"))["content"] == "the secret"
        assert not [frame for frame in await mallory.heard_so_far() if frame["type"] == "acp.reply"]


# -- each message once --------------------------------------------------------------------------------------------


async def test_readers_at_the_same_time_do_not_get_the_same_message() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        await ann.connect(ben)
        for number in range(40):
            await ann.post("/message:send", {"role": "user", "text": "x", "message_id": f"m{number}"})
        await ben.message(message_id="m39")
        answers = await asyncio.gather(*(ben.get("/message:recv", limit=3) for _ in range(40)))
        given = [one["message_id"] for answer in answers for one in answer["messages"]]
        assert sorted(given) == sorted(f"m{number}" for number in range(40))


# -- tasks --------------------------------------------------------------------------------------------------------


async def test_a_message_that_makes_a_task_is_worked_on_to_the_end_of_the_task() -> None:
    async with running_node("Ann") as ann, running_node("Agents", agents=[shout]) as agents:
        await ann.connect(agents)
        sent = await ann.post("/message:send", {"role": "user", "text": "hi", "create_task": True, "sync": True})
        assert sent["reply"]["parts"] == text("HI")
        await ann.state(sent["task"]["id"], "completed")
        assert (await ann.get(f"/tasks/{sent['task']['id']}"))["artifact"]["parts"] == text("HI")


async def test_a_message_of_the_reference_with_a_task_of_its_own_is_answered() -> None:
    async with running_node("Agents", agents=[shout]) as agents:
        reference = Reference()
        assert agents.node.link is not None
        async with reference.join(agents.node.link):
            await agents.until(lambda event: event.get("event") == "card")
            reference.tasks["task_ref"] = {"id": "task_ref", "status": "submitted", "artifacts": []}
            reply = await reference.ask("hi", task_id="task_ref")
            assert reply["parts"] == text("HI")
            await agents.state("task_ref", "completed")


async def test_an_answer_that_was_taken_just_before_a_crash_is_given_after_it(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    async with running_node("Agents", agents=[painter], store=store) as agents, raw(agents, "Ann") as ann:
        await ann.say(
            {"type": "task.delegate", "message_id": "d1", "ts": "2026-01-01T00:00:00Z", "from": "Ann",
             "task_id": "t1", "payload": {"role": "user", "parts": text("a door")}}
        )  # fmt: skip
        await agents.state("t1", "input_required")
    async with running_node("Agents", agents=[painter], store=store) as agents:
        # As it is on the shelf when the process dies after it took the message, and before it answered the question.
        frame = said("Ann", "a1", "red", task_id="t1")
        box = agents.node.journal.box_in
        letter = Post(box, "peer_001|a1", json.dumps(frame).encode(), 1, "", "accepted", "peer_001")
        await agents.node.engine.core.store.documents.write([letter])
    async with running_node("Agents", agents=[painter], store=store) as agents:
        await agents.state("t1", "completed")
        assert (await agents.get("/tasks/t1"))["artifact"]["parts"] == text("a door in red")
        assert len(await runs_of(agents.node)) == 1


async def test_a_task_whose_cancelling_a_restart_interrupts_is_canceled_all_the_same(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    async with running_node("Ann", store=store) as ann, raw(ann, "Worker", task_delegation=True):
        await ann.until(lambda event: event.get("event") == "card")
        task = (await ann.post("/tasks", {"role": "user", "text": "work"}, 201))["task"]["id"]
        assert (await ann.post(f"/tasks/{task}:cancel"))["status"] == "cancelling"
    async with running_node("Ann", store=store) as ann:
        await ann.state(task, "canceled")


async def test_a_task_that_was_deleted_can_be_made_again() -> None:
    async with at_door(shout) as (_, http):
        body = {"role": "user", "text": "hi", "task_id": "mine"}
        for _ in range(2):
            checked(await http.post("/tasks", json=body), 201)
            told = checked(await http.get("/tasks/mine:wait"), 200)
            assert told["task"]["status"] == "completed"
            checked(await http.delete("/tasks/mine"), 200)


async def test_a_subscriber_that_missed_the_end_sees_it_though_the_events_are_gone() -> None:
    async with at_door(shout) as (node, http):
        task = checked(await http.post("/tasks", json={"role": "user", "text": "hi"}), 201)["task"]["id"]
        checked(await http.get(f"/tasks/{task}:wait"), 200)
        journal = node.node.journal
        first = json.loads((await journal.feed().stored(0, task))[0].data)["seq"]
        await node.node.engine.core.store.documents.trim_feed(journal.name, 0)
        journal._own._ring.clear()
        async with events(http, f"/tasks/{task}:subscribe", since=first) as stream:
            assert [event["state"] for event in await stream.rest()] == ["completed"]


async def test_a_subscriber_that_asks_for_what_is_yet_to_come_sees_the_end_of_its_task() -> None:
    async with at_door(stuck) as (_, http):
        task = checked(await http.post("/tasks", json={"role": "user", "text": "hi"}), 201)["task"]["id"]
        async with events(http, f"/tasks/{task}:subscribe", since=10**9) as stream:
            await stream.ready()
            checked(await http.post(f"/tasks/{task}:cancel", json={}), 200)
            assert (await stream.rest())[-1]["state"] == "canceled"


# -- rude peers ---------------------------------------------------------------------------------------------------


async def test_a_message_that_names_no_skill_but_an_object_does_not_keep_the_node_from_starting(
    tmp_path: Path,
) -> None:
    store = tmp_path / "s.db"
    async with running_node("Agents", agents=[shout], store=store) as agents, raw(agents, "Rude") as rude:
        await rude.say(said("Rude", "m1", skill_id=["shout"]))
        await agents.message(message_id="m1")
        await rude.heard_so_far()
    async with running_node("Agents", agents=[shout], store=store) as agents, raw(agents, "Ann") as ann:
        await ann.say(said("Ann", "m2", correlation_id="m2"))
        assert (await ann.hear("acp.reply", correlation_id="m2"))["parts"] == text("HELLO")


async def test_replies_that_nobody_asked_for_count_as_unread_messages() -> None:
    async with running_node("Host", max_unread=5) as host, raw(host) as rude:
        for number in range(20):
            await rude.say(
                {"type": "acp.reply", "message_id": f"r{number}", "ts": "2026-01-01T00:00:00Z", "from": "Rude",
                 "correlation_id": f"c{number}", "content": "x", "parts": None}
            )  # fmt: skip
        await host.until(lambda event: event.get("event") == "inbox_full")
        assert len((await host.get("/message:recv", limit=500))["messages"]) <= 6


@pytest.mark.parametrize("odd", [["x"], {"x": 1}, 7])
async def test_a_chunk_of_an_odd_artifact_ends_nothing_and_leaves_nothing_behind(odd: Any) -> None:
    async with running_node("Ann") as ann, raw(ann, "Worker", task_delegation=True) as worker:
        await ann.until(lambda event: event.get("event") == "card")
        task = (await ann.post("/tasks", {"role": "user", "text": "work"}, 201))["task"]["id"]
        news = {"type": "task.updated", "ts": "2026-01-01T00:00:00Z", "from": "Worker", "task_id": task}
        for number, id_ in enumerate((odd, "a", "b"), 1):
            chunk = {"artifact_id": id_, "parts": text("x"), "append": False, "last_chunk": True}
            await worker.say({**news, "message_id": f"u{number}", "status": "working", "chunk": chunk,
                              "chunk_number": number})  # fmt: skip
        whole = {"artifact_id": odd, "parts": text("all")}
        await worker.say({**news, "message_id": "end", "status": "completed", "artifact": whole})
        await ann.state(task, "completed")
        assert (await ann.get("/peers"))["active"] == 1
        assert not ann.node.inbound._told_whole


async def test_a_peer_that_types_all_the_time_is_told_of_when_it_begins_and_when_it_ends() -> None:
    async with running_node("Host") as host, raw(host, typing_indicator=True) as rude:
        await host.until(lambda event: event.get("event") == "card")
        for _ in range(50):
            await rude.say({"type": "acp.typing", "from": "Rude", "typing": True, "ts": "2026-01-01T00:00:00Z"})
        await rude.say({"type": "acp.typing", "from": "Rude", "typing": False, "ts": "2026-01-01T00:00:00Z"})
        await host.until(lambda event: event.get("event") == "typing" and event["typing"] is False)
        told = [json.loads(one.data) for one in await host.node.journal.feed().after(0)]
        assert [one["typing"] for one in told if one.get("event") == "typing"] == [True, False]


# -- the surfaces -------------------------------------------------------------------------------------------------


async def test_a_page_of_another_site_reads_no_messages_away() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        await ann.connect(ben)
        await ann.post("/message:send", {"role": "user", "text": "x", "message_id": "m1"})
        await ben.message(message_id="m1")
        # An <img> or <script> of a page elsewhere sends no Origin; what browsers say instead is this.
        for site in ("cross-site", "same-site"):
            answer = await ben.http.get("/message:recv", headers={"sec-fetch-site": site, "sec-fetch-mode": "no-cors"})
            assert answer.status_code == 403
        assert (await ben.get("/message:recv"))["count"] == 1


async def test_a_caller_who_may_not_answer_cannot_do_so_by_a_message_on_the_task() -> None:
    keys = Keys()
    runs = keys.add("runs", "do:run", "do:read", "agents:*")
    async with at_door(painter, keys=keys) as (_, http):
        task = checked(await http.post("/tasks", json={"role": "user", "text": "a door"}, headers=runs), 201)["id"]
        told = checked(await http.get(f"/tasks/{task}:wait", headers=runs), 200)
        assert told["task"]["status"] == "input_required"
        assert (await http.post(f"/tasks/{task}:continue", json={"text": "red"}, headers=runs)).status_code == 403
        body = {"role": "user", "text": "red", "task_id": task}
        assert (await http.post("/message:send", json=body, headers=runs)).status_code == 403
        told = checked(await http.get(f"/tasks/{task}", headers=runs), 200)
        assert told["status"] == "input_required"


async def test_nothing_is_left_of_those_who_waited_for_the_reply_to_a_message() -> None:
    async with at_door(shout) as (node, http):
        body = {"role": "user", "text": "hi", "message_id": "m1", "sync": True}
        for _ in range(3):
            checked(await http.post("/message:send", json=body), 200)
        checked(await http.get("/wait/m1"), 200)
        assert not node.node.working._awaited


async def test_a_broadcast_with_odd_metadata_is_refused() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        await ann.connect(ben)
        error = await ann.post("/peers/broadcast", {"role": "user", "text": "x", "metadata": 5}, 400)
        assert error["error_code"] == "ERR_INVALID_REQUEST"


# -- connections that this node opens -----------------------------------------------------------------------------


async def test_a_link_with_a_host_that_cannot_be_written_is_tried_again_and_says_why() -> None:
    async with running_node("Ann", reconnect_first=0.01, reconnect_last=0.01) as ann:
        link = f"acp://{'a' * 70}.example:7801/tok_0123456789abcdef"
        told = await ann.post("/peers/connect", {"link": link})
        peer = ann.node.peers.get(told["peer_id"])
        async with asyncio.timeout(WAIT):
            while peer.dial_error is None:
                assert peer.dialing is not None
                assert not peer.dialing.done()
                await asyncio.sleep(0)


async def test_a_peer_that_only_types_is_read_no_faster_than_that_is_written_down() -> None:
    async with running_node("Host") as host, raw(host, typing_indicator=True) as rude:
        store: Any = host.node.engine.core.store
        most, keep = 0, store.documents.write

        def watched(changes: Any, heed: Any = None) -> Any:
            nonlocal most
            most = max(most, len(store.documents._queued))
            return keep(changes, heed)

        store.documents.write = watched
        for number in range(60_000):
            await rude.say({"type": "acp.typing", "typing": number % 2 == 0})
        await rude.heard_so_far()
        assert most < 12_000  # what one read of the connection holds at most


async def test_what_never_left_this_machine_does_not_count_as_delivered_when_the_peer_goes() -> None:
    async with running_node("Host") as host:
        assert host.node.link is not None
        where, _, token = host.node.link.removeprefix("acp://").partition("/")
        address, _, port = where.partition(":")
        with socket.socket() as rude:
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it goes without a word
            rude.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(rude, (address, int(port)))
            protocol = ClientProtocol(parse_uri(f"ws://{where}/{token}"))
            protocol.send_request(protocol.connect())
            await loop.sock_sendall(rude, b"".join(protocol.data_to_send()))
            protocol.receive_data(await loop.sock_recv(rude, 200))
            protocol.send_text(json.dumps(card("Rude")).encode())
            await loop.sock_sendall(rude, b"".join(protocol.data_to_send()))
            await host.until(lambda event: event.get("event") == "card")
            [peer] = host.node.peers
            assert peer.session is not None
            channel: Any = peer.session.channel
            size = 900_000
            for _ in range(20):
                await host.node.sending.send({"role": "user", "text": "x" * size})
            await wait_for(lambda: not channel._room.is_set())
            unsent, sent = channel._transport.get_write_buffer_size(), peer.known.sent
        await host.until(lambda event: event.get("event") == "disconnected")
        await wait_for(lambda: peer.outbox._settling is None)
        delivered = await host.node.engine.core.store.documents.count_letters(
            host.node.journal.box_out, states=["delivered"]
        )
        assert unsent > size
        assert delivered <= sent - unsent // size


async def test_what_is_left_of_a_connection_that_was_replaced_still_counts_as_the_same_peers() -> None:
    async with running_node("Host", max_unread=3) as host:
        assert host.node.link is not None
        url = host.node.link.replace("acp://", "ws://")
        sent = [said("Ann", f"m{number}") for number in range(8)]
        async with connect(url) as first, connect(url) as second:
            old, new = Raw(first), Raw(second)
            await old.say(card("Ann", resume=True, delivery_ack=True))
            token = (await old.hear("acp.session"))["resume"]
            await old.say(*sent)
            await host.until(lambda event: event.get("event") == "inbox_full")
            behind = await host.node.journal.feed().head()
            await new.say({"type": "acp.resume", "token": token}, card("Ann", resume=True, delivery_ack=True))
            await host.until(lambda event: event.get("event") == "connected", behind)
            await new.say(*sent)  # nothing was confirmed
            given: list[str] = []
            while len(set(given)) < len(sent):
                given += [one["message_id"] for one in (await host.get("/message:recv", wait=WAIT))["messages"]]
            assert given == [one["message_id"] for one in sent]
            assert len((await host.get("/peers"))["peers"]) == 1


async def test_a_peer_that_comes_back_with_its_key_leaves_no_others_behind() -> None:
    trust = Trust(None, Identity.new())
    told = trust.sign_card({"name": "Ann", "capabilities": {}, "extensions": []})
    async with running_node("Host") as host:
        assert host.node.link is not None
        for number in range(3):
            behind = await host.node.journal.feed().head()
            async with connect(host.node.link.replace("acp://", "ws://")) as socket_:
                ann = Raw(socket_)
                await ann.say({**card("Ann"), "card": told})
                await ann.say(trust.sign({**said("Ann", f"m{number}"), "ts": now_z()}))
                await host.message(message_id=f"m{number}")
                await ann.heard_so_far()
            await host.until(lambda event: event.get("event") == "disconnected", behind)
        assert [peer["id"] for peer in (await host.get("/peers"))["peers"]] == ["peer_001"]


async def test_something_that_a_peer_signed_for_another_does_not_make_that_one_the_peer() -> None:
    trust = Trust(None, Identity.new())
    async with running_node("Host") as host:
        assert host.node.link is not None
        async with raw(host, "Ann", resume=True) as ann:
            await ann.hear("acp.session")
            await ann.say(trust.sign({**said("Ann", "m1"), "ts": now_z()}))
            await host.message(message_id="m1")
        await host.until(lambda event: event.get("event") == "disconnected")
        await host.post("/peer/peer_001/send", {"role": "user", "text": "for Ann alone"}, 503)
        for_mallory = trust.sign({**said("Ann", "m2"), "ts": now_z()})
        async with raw(host, "Mallory") as mallory:
            await mallory.say(for_mallory)
            await host.message(message_id="m2")
            assert not [frame for frame in await mallory.heard_so_far() if frame["type"] == "acp.message"]


async def test_tasks_that_nobody_looks_at_count_as_unread_messages() -> None:
    async with running_node("Host", max_unread=5) as host, raw(host) as rude:
        for number in range(20):
            await rude.say(
                {"type": "task.delegate", "message_id": f"d{number}", "ts": "2026-01-01T00:00:00Z", "from": "Rude",
                 "task_id": f"t{number}", "payload": {"role": "user", "parts": text("x")}}
            )  # fmt: skip
        await host.until(lambda event: event.get("event") == "inbox_full")
        assert (await host.get("/tasks"))["total"] <= 6
        await host.post("/tasks/t0:update", {"status": "working"})
        await host.until(lambda event: event.get("task_id") == "t5")


async def test_a_reply_over_http_that_comes_while_the_asker_is_down_is_there_when_it_is_back(tmp_path: Path) -> None:
    release = asyncio.Event()

    @il.agent
    async def slow(text: str) -> str:
        """Waits to be released."""
        await release.wait()
        return text.upper()

    store = tmp_path / "near.db"
    async with running_node("Agents", agents=[slow]) as agents, running_door(agents.node) as base:
        async with running_node("Near", store=store) as near:
            behind = await near.node.journal.feed().head()
            await near.post("/peers/connect", {"link": base})
            await near.until(lambda event: event.get("event") == "card", behind)
            await near.post("/message:send", {"role": "user", "text": "hi", "message_id": "m1"})
            await agents.message(message_id="m1")
        release.set()
        await agents.message(correlation_id="m1")
        async with running_node("Near", store=store) as near:
            answer = await near.message(correlation_id="m1")
            assert answer["parts"] == text("HI")
            assert [one["parts"] for one in (await near.get("/message:recv"))["messages"]] == [text("HI")]


@pytest.mark.parametrize("kind", [{"type": "note"}, {"type": "acp.message2"}, {"type": 7}, {}])
async def test_a_strict_node_takes_no_unsigned_message_by_whatever_name(kind: dict[str, Any]) -> None:
    async with running_node("Host", secret="between us", strict=True) as host, raw(host) as rude:
        frame = said("Rude", "m1")
        del frame["type"]
        await rude.say({**frame, **kind}, {**kind, "message_id": "m2", "content": "hello"})
        await rude.heard_so_far()
        assert (await host.get("/message:recv"))["messages"] == []


async def test_cancelling_what_has_ended_is_confirmed_however_often() -> None:
    async with running_node("Agents", agents=[shout]) as agents, raw(agents, "Ann", delivery_ack=True) as ann:
        head = {"ts": "2026-01-01T00:00:00Z", "from": "Ann", "task_id": "t1"}
        payload = {"role": "user", "parts": text("x")}
        await ann.say({"type": "task.delegate", "message_id": "d1", **head, "payload": payload})
        await agents.state("t1", "completed")
        for number in range(30):
            await ann.say({"type": "task.cancel", "message_id": f"c{number}", **head})
        for number in range(30):
            await ann.hear("acp.delivered", message_id=f"c{number}")
        assert not [frame for frame in ann.frames if frame["type"] == "error"]


async def test_a_store_that_fails_once_does_not_keep_the_end_of_a_task_from_its_subscribers() -> None:
    async with at_door(shout) as (node, http):
        failed = keeps_not_once(node.node.engine.core.store, lambda one: isinstance(one, Follow) and one.ended)
        task = checked(await http.post("/tasks", json={"role": "user", "text": "hi"}), 201)["task"]["id"]
        async with events(http, f"/tasks/{task}:subscribe") as stream:
            assert [event["state"] for event in await stream.rest() if "state" in event][-1] == "completed"
        assert failed

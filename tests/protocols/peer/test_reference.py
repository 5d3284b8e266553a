"""A node of ours and the published reference, connected either way: each gets what it understands, and no more."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import connect

from interlingua.protocols.peer.wire import frames
from tests.kit.peer_nodes import Running, echo, running_node, text

from .reference import Reference, Version

VERSIONS: tuple[Version, ...] = ("2.19", "2.48")
WAYS = ("we are the host", "it is the host")


@contextlib.asynccontextmanager
async def together(
    way: str, version: Version, *, agents: tuple[Any, ...] = (), secret: str = "", **settings: Any
) -> AsyncIterator[tuple[Running, Reference]]:
    """Both connected, and both know who the other is."""
    ref = Reference("Ref", version, secret=secret)
    async with (
        running_node("Ours", agents=agents, secret=secret or None, **settings) as ours,
        ref.join(str(ours.node.link)) if way == WAYS[0] else ref.host(),
    ):
        if way == WAYS[1]:
            await ours.post("/peers/connect", {"link": ref.link})
        await ref.connected()
        await ours.until(lambda event: event.get("event") == "card")
        yield ours, ref


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("version", VERSIONS)
async def test_messages_go_both_ways_and_nothing_pollutes_its_inbox(way: str, version: Version) -> None:
    async with together(way, version) as (ours, ref):
        sent = await ours.post("/message:send", {"role": "user", "text": "grüß dich"})
        came = await ref.came("acp.message")
        assert (came["message_id"], came["parts"]) == (sent["message_id"], text("grüß dich"))
        said = await ref.send("hello yourself", context_id="ctx_1")
        heard = await ours.message(direction="inbound")
        assert (heard["message_id"], heard["parts"]) == (said["message_id"], text("hello yourself"))
        assert heard["context_id"] == "ctx_1"
        assert ref.recv == []
        assert ref.closes == []
        assert {frame["type"] for frame in ref.frames} <= {"acp.agent_card", "acp.message", "acp.delivered", "acp.pong"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_sync_send_gets_the_reply_that_its_owner_posts(way: str, version: Version) -> None:
    async with together(way, version) as (ours, ref):
        ref.answers = lambda frame: frame["parts"][0]["content"].upper()
        answer = await ours.post("/message:send", {"role": "user", "text": "hi", "sync": True})
        assert answer["reply"]["content"] == "HI"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("version", VERSIONS)
async def test_our_agents_answer_it_by_replies_that_resolve_its_wait(way: str, version: Version) -> None:
    async with together(way, version, agents=(echo,)) as (_, ref):
        reply = await ref.ask("hello")
        assert reply["parts"] == text("you said hello")
        assert (reply["type"], reply["from"]) == ("acp.reply", "Ours")


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_task_that_it_delegates_is_worked_on_and_it_is_told(version: Version) -> None:
    async with together(WAYS[0], version, agents=(echo,)) as (_, ref):
        task = await ref.delegate({"role": "user", "parts": text("hello")})
        await ref.until(lambda: ref.tasks[task]["status"] == "completed")
        assert ref.tasks[task]["artifacts"][-1]["parts"] == text("you said hello")
        assert ref.recv == []


async def test_what_waited_for_a_host_that_was_away_arrives_once() -> None:
    ref = Reference("Ref")
    await ref.send("for whoever comes first")
    async with ref.host(), running_node("Ours") as ours:
        await ours.post("/peers/connect", {"link": ref.link})
        heard = await ours.message(direction="inbound")
        assert heard["parts"] == text("for whoever comes first")


async def test_a_time_that_a_relay_made_a_number_and_members_of_later_versions_are_taken() -> None:
    async with together(WAYS[0], "2.19") as (ours, ref):
        await ref.raw(ref.relayed(ref.message("by the relay", a_later_member={"x": [1]})))
        assert (await ours.message(direction="inbound"))["parts"] == text("by the relay")


async def test_the_same_message_again_is_one_message() -> None:
    async with together(WAYS[0], "2.19") as (ours, ref):
        frame = ref.message("once")
        await ref.raw(frame)
        await ref.raw(frame)
        await ref.send("the next")
        await ours.until(lambda event: event.get("parts") == text("the next"))
        told = (await ours.get("/message:recv"))["messages"]
        assert [one["parts"] for one in told] == [text("once"), text("the next")]


ODD = [b"\x00", "[1]", "7", "no json", '{"type":"acp.agent_card","card":"x"}', '{"identity":5}']


@pytest.mark.parametrize("odd", ODD)
async def test_what_would_kill_the_reference_does_not_kill_us(odd: str | bytes) -> None:
    async with together(WAYS[0], "2.19") as (ours, ref):
        await ref.raw(odd)
        await ref.send("still here")
        await ours.message(direction="inbound")
        assert ref.closes == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_is_signed_with_the_shared_secret_is_good_on_both_sides(version: Version) -> None:
    async with together(WAYS[0], version, secret="between us") as (ours, ref):
        await ours.post("/message:send", {"role": "user", "text": "signed"})
        await ref.came("acp.message")
        await ref.until(lambda: ref.messages)
        assert "_sig_invalid" not in ref.messages[0]
        await ref.send("signed as well")
        await ours.message(direction="inbound")
        (read,) = (await ours.get("/message:recv"))["messages"]
        assert "_sig_invalid" not in read["raw"]


async def test_a_wrong_token_is_told_to_it_as_it_tells_others() -> None:
    async with running_node("Ours") as ours, Reference("Ref").join(f"{ours.node.link}0") as ref:
        refused = await ref.came("error")
        assert refused["code"] == "invalid_token"
        await ref.until(lambda: ref.closes)
        assert ref.closes[0] == 1000
        assert list(ours.node.peers) == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_errors_are_told_to_it_as_answers_and_not_as_messages(version: Version) -> None:
    async with together(WAYS[0], version) as (ours, ref):
        await ref.raw('{"type":"acp.message","role":"user","parts":[]}')  # has no id: there is nobody to be told
        await ref.raw('{"type":"acp.message","message_id":"msg_odd","role":"robot","parts":[]}')
        refused = await ref.came("acp.reply")
        assert (refused["correlation_id"], refused["error"]["code"]) == ("msg_odd", "invalid_frame")
        assert "refused: " in refused["parts"][0]["content"]
        await ref.send("still here")
        await ours.message(direction="inbound")
        assert ref.recv == []
        assert [frame for frame in ref.frames if frame["type"] == "error"] == []


@pytest.mark.parametrize("way", WAYS)
async def test_the_older_one_is_sent_nothing_that_it_would_take_for_a_message(way: str) -> None:
    async with together(way, "2.19") as (ours, ref):
        typed = await ours.post("/message:typing", {"typing": True})
        assert typed["sent"] is False
        refused = await ours.post("/peers/peer_001/ping", {}, 400)
        assert refused["error_code"] == "ERR_INVALID_REQUEST"
        await ref.send("a message that it gets no receipt for")
        await ours.message(direction="inbound")
        await ours.get("/message:recv")
        await ours.post("/message:send", {"role": "user", "text": "the last"})
        await ref.came("acp.message")
        assert ref.recv == []
        assert {frame["type"] for frame in ref.frames} == {"acp.agent_card", "acp.message"}


@pytest.mark.parametrize("way", WAYS)
async def test_the_newer_one_is_told_that_somebody_types_answers_pings_and_gets_receipts(way: str) -> None:
    async with together(way, "2.48") as (ours, ref):
        assert (await ours.post("/message:typing", {"typing": True}))["sent"] is True
        assert (await ref.came("acp.typing"))["typing"] is True
        assert (await ours.post("/peers/peer_001/ping"))["status"] == "alive"
        sent = await ref.send("hello")
        assert (await ref.came("acp.delivered"))["message_id"] == sent["message_id"]
        assert ref.recv == []
        assert ref.closes == []


async def test_the_work_of_a_task_is_not_taken_for_what_its_payload_says_beside_it() -> None:
    async with together(WAYS[0], "2.48") as (ours, ref):
        body = {"role": "user", "input": {"parts": text("dig")}, "payload": {"text": "a hole", "deep": 3}}
        task = (await ours.post("/tasks", body, 201))["id"]
        frame = await ref.came("task.delegate", task_id=task)
        assert frame["payload"] == {"role": "user", "parts": text("dig"), "text": "a hole", "deep": 3}
        read = frames.read(frame)
        assert isinstance(read, frames.Delegate)
        assert read.parts == text("dig")


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_it_says_about_a_task_counts_if_it_can_be(version: Version) -> None:
    async with together(WAYS[0], version) as (ours, ref):
        task = (await ours.post("/tasks", {"role": "user", "parts": text("dig")}, 201))["id"]
        frame = await ref.came("task.delegate", task_id=task)
        assert frame["payload"] == {"role": "user", "input": {"parts": text("dig")}}
        await ref.update(task, "working")
        await ref.update(task, "banana")
        await ref.update(task, "completed", {"parts": text("a hole")})
        await ref.update(task, "failed")
        await ref.send("that was all")
        await ours.message(direction="inbound")
        held = await ours.get(f"/tasks/{task}")
        assert (held["status"], held["artifact"]["parts"]) == ("completed", text("a hole"))
        assert (await ours.get("/peers"))["peers"][0]["connected"] is True


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_waited_for_it_says_so_and_is_on_the_way_until_it_has_it(version: Version) -> None:
    async with running_node("Ours") as ours:
        body = {"role": "user", "text": "for you", "message_id": "msg_waits"}
        assert (await ours.post("/message:send", body, 503))["queued"] is True
        ref = Reference("Ref", version)
        async with ref.join(str(ours.node.link)):
            came = await ref.came("acp.message")
            assert (came["message_id"], came["_was_queued"], came["from"]) == ("msg_waits", True, "Ours")
            assert came["ts"].endswith("Z")
            await ref.send("thanks")
            await ours.message(direction="inbound")
            async with asyncio.timeout(15):
                while not (await ours.post("/message:send", body))["delivered"]:
                    pass
            assert (await ours.get("/offline-queue"))["total_queued"] == 0


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_message_of_its_on_a_task_that_is_not_known_is_work_in_progress(version: Version) -> None:
    async with together(WAYS[0], version) as (ours, ref):
        await ref.send("about that", task_id="task_theirs")
        await ours.state("task_theirs", "working")
        assert (await ours.get("/tasks/task_theirs"))["status"] == "working"
        await ours.http.put("/tasks/task_theirs", json={"status": "completed", "artifact": {"parts": text("done")}})
        assert (await ref.came("task.updated", status="completed"))["artifact"]["parts"] == text("done")


async def test_what_programs_of_before_the_envelope_send_is_a_message() -> None:
    async with together(WAYS[0], "2.19") as (ours, ref):
        await ref.raw({"id": "old_1", "ts": ref.now(), "from": "Ref", "session_id": "sess_1", "content": "old words"})
        assert (await ours.message(direction="inbound"))["parts"] == text("old words")


async def test_a_peer_of_the_first_versions_that_can_do_no_more_than_talk_is_talked_to() -> None:
    """A card with a name and a version, messages with the members that every version has: all that a peer needs."""
    async with running_node("Ours", agents=(echo,)) as ours:
        url = str(ours.node.link).replace("acp://", "ws://")
        async with connect(url) as socket:
            await socket.send(json.dumps({"type": "acp.agent_card", "card": {"name": "Old", "acp_version": "0.5"}}))
            frame = {"type": "acp.message", "message_id": "m1", "ts": "2026-11-15T00:00:00Z", "from": "Old",
                     "role": "user", "parts": text("hi"), "a_member_of_another_time": [1]}  # fmt: skip
            await socket.send(json.dumps(frame))
            async with asyncio.timeout(15):
                while (came := json.loads(await socket.recv()))["type"] != "acp.message":
                    pass
            assert (came["parts"], came["from"]) == (text("you said hi"), "Ours")


@pytest.mark.parametrize("version", VERSIONS)
async def test_it_comes_back_after_a_lost_connection_and_is_the_same_peer(version: Version) -> None:
    async with together(WAYS[0], version) as (ours, ref):
        await ref.sockets[-1].close()
        await ref.until(lambda: ref.closes)
        await ours.until(lambda event: event.get("event") == "disconnected")
        await ref.until(lambda: ref.sockets)
        await ref.send("here I am")
        assert (await ours.message(direction="inbound"))["peer_id"] == "peer_001"
        assert len((await ours.get("/peers"))["peers"]) == 1

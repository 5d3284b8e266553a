"""Binding D as a channel: frames in, HTTP out, and back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette

import interlingua as il
from interlingua.protocols.peer.bindings import http_tasks
from interlingua.protocols.peer.bindings.http import dial_http
from interlingua.protocols.peer.bindings.http_tasks import Following
from interlingua.protocols.peer.wire import frames, links
from interlingua.protocols.peer.wire.signatures import verify_card
from interlingua.transports.channel import Channel
from interlingua.transports.http.sse import Received
from tests.kit.mounts.peer import Again, runs_of
from tests.kit.mounts.watch import Gate
from tests.kit.peer_nodes import (
    WAIT,
    Keys,
    Running,
    breaks,
    echo,
    listening,
    painter,
    running_door,
    running_node,
    stuck,
    text,
)

from .reference_http import ReferenceApi

AGENTS = [echo, painter, stuck, breaks]

Frame = dict[str, Any]


class Frames:
    """What comes over a channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.all: list[Frame] = []
        self._taken: set[int] = set()

    def send(self, frame: Frame) -> Frame:
        self.channel.send(msgspec.json.encode(frame))
        return frame

    async def until(self, kind: str, **members: Any) -> Frame:
        """The first frame with these members that was not given yet: what is of two kinds may come in any order."""
        place = 0
        async with asyncio.timeout(WAIT):
            while True:
                for index in range(place, len(self.all)):
                    frame = self.all[index]
                    fits = frame["type"] == kind and all(frame.get(name) == members[name] for name in members)
                    if fits and index not in self._taken:
                        self._taken.add(index)
                        return frame
                place = len(self.all)
                batch = await self.channel.receive()
                assert batch, "the channel has ended"
                self.all += map(msgspec.json.decode, batch)

    async def states(self, task: str) -> list[str]:
        """The states of a task, until it has ended."""
        found = []
        while not found or found[-1] not in ("completed", "failed", "canceled"):
            frame = await self.until("task.updated", task_id=task)
            if "chunk" not in frame and "activity" not in frame:
                found.append(frame["status"])
        return found


@contextlib.asynccontextmanager
async def dialled(address: str, **more: Any) -> AsyncIterator[Frames]:
    channel = await dial_http(links.parse(address), **{"name": "Here", "max_bytes": 1 << 20, **more})
    try:
        yield Frames(channel)
    finally:
        await channel.close()


@contextlib.asynccontextmanager
async def door(**settings: Any) -> AsyncIterator[tuple[Running, Frames]]:
    async with (
        running_node("There", agents=AGENTS, **settings) as there,
        running_door(there.node) as address,
        dialled(address) as channel,
    ):
        yield there, channel


def message(said: str, **more: Any) -> Frame:
    return frames.message("Here", "user", text(said), **more)


def delegated(said: str, **more: Any) -> Frame:
    return frames.delegate("Here", frames.new_id("task"), {"parts": text(said), **more})


# -- a door of ours -------------------------------------------------------------------------------------------


async def test_the_card_comes_first_as_it_was_signed(tmp_path: Path) -> None:
    async with door(identity=tmp_path / "key.json") as (_, channel):
        first = await channel.until("acp.agent_card")
        assert channel.all[0] is first
        assert first["card"]["name"] == "There"
        assert verify_card(first["card"])["valid"]


async def test_a_message_is_confirmed_and_its_reply_names_it() -> None:
    async with door() as (_, channel):
        sent = channel.send(message("hello"))
        await channel.until("acp.delivered", message_id=sent["message_id"])
        reply = await channel.until("acp.message", correlation_id=sent["message_id"])
        assert reply["parts"] == text("you said hello")
        assert (reply["role"], reply["from"]) == ("agent", "There")


async def test_a_message_that_waits_for_its_reply_gets_one() -> None:
    async with door() as (_, channel):
        sent = message("hello", message_id="msg_asks", correlation_id="msg_asks")
        channel.send(sent)
        await channel.until("acp.delivered", message_id="msg_asks")
        reply = await channel.until("acp.reply", correlation_id="msg_asks")
        assert reply["parts"] == text("you said hello")
        failed = channel.send(message("x", message_id="msg_b", correlation_id="msg_b", skill_id="breaks"))
        assert (await channel.until("acp.reply", correlation_id=failed["message_id"]))["error"]["message"] == (
            "it cannot be done"
        )


async def test_the_same_message_again_is_the_same_run() -> None:
    async with door() as (there, channel):
        for _ in range(3):
            channel.send(message("hello", message_id="msg_once"))
            await channel.until("acp.delivered", message_id="msg_once")
        await channel.until("acp.message", correlation_id="msg_once")
        assert len(await runs_of(there.node)) == 1


async def test_a_task_is_told_state_by_state_and_chunk_by_chunk_and_confirmed_when_it_has_ended() -> None:
    async with door() as (_, channel):
        sent = channel.send(delegated("hello"))
        assert await channel.states(sent["task_id"]) == ["working", "completed"]
        told = [frame for frame in channel.all if frame.get("task_id") == sent["task_id"]]
        chunks = [frame for frame in told if "chunk" in frame]
        assert [frame["chunk_number"] for frame in chunks] == list(range(1, len(chunks) + 1))
        assert "".join(frame["chunk"]["parts"][0]["content"] for frame in chunks) == "you said hello"
        assert told[-1]["artifact"]["parts"] == text("you said hello")
        await channel.until("acp.delivered", message_id=sent["message_id"])
        assert channel.all[-1]["type"] == "acp.delivered"


async def test_a_task_that_asks_is_answered_by_a_message() -> None:
    async with door() as (_, channel):
        sent = channel.send(delegated("a house", skill_id="painter"))
        asked = await channel.until("task.updated", task_id=sent["task_id"], status="input_required")
        assert asked["question"]["type"] == "colour"
        answer = frames.message(
            "Here", "user", [{"type": "data", "content": {"answer": "red"}}], task_id=sent["task_id"]
        )
        channel.send(answer)
        await channel.until("acp.delivered", message_id=answer["message_id"])
        channel.send(answer)  # the same answer again counts once
        await channel.until("acp.delivered", message_id=answer["message_id"])
        done = await channel.until("task.updated", task_id=sent["task_id"], status="completed")
        assert done["artifact"]["parts"] == text("a house in red")


async def test_an_answer_that_does_not_fit_is_refused_by_its_id() -> None:
    async with door() as (_, channel):
        sent = channel.send(delegated("a house", skill_id="painter"))
        await channel.until("task.updated", task_id=sent["task_id"], status="input_required")
        wrong = frames.message("Here", "user", [{"type": "data", "content": {"answer": 5}}], task_id=sent["task_id"])
        channel.send(wrong)
        refused = await channel.until("error", message_id=wrong["message_id"])
        assert refused["code"] == "invalid_answer"
        channel.send(frames.cancel("Here", sent["task_id"]))
        await channel.until("task.updated", task_id=sent["task_id"], status="canceled")


async def test_a_message_that_leads_to_a_question_is_told_what_is_asked() -> None:
    async with door() as (_, channel):
        channel.send(message("a house", message_id="msg_q", correlation_id="msg_q", skill_id="painter"))
        asked = await channel.until("acp.message", correlation_id="msg_q")
        assert asked["parts"][1]["content"]["question"]["type"] == "colour"
        channel.send(message("blue", task_id=asked["task_id"]))
        assert (await channel.until("acp.reply", correlation_id="msg_q"))["parts"] == text("a house in blue")


async def test_a_task_is_cancelled_in_two_phases() -> None:
    async with door() as (_, channel):
        sent = channel.send(delegated("x", skill_id="stuck"))
        await channel.until("task.updated", task_id=sent["task_id"], status="working")
        stop = channel.send(frames.cancel("Here", sent["task_id"]))
        assert await channel.states(sent["task_id"]) == ["cancelling", "canceled"]
        await channel.until("acp.delivered", message_id=stop["message_id"])


async def test_a_task_that_cannot_begin_has_failed() -> None:
    async with door() as (_, channel):
        sent = channel.send(delegated("x", skill_id="nobody-has-it"))
        failed = await channel.until("task.updated", task_id=sent["task_id"])
        assert (failed["status"], failed["error_info"]["code"]) == ("failed", "agent_not_found")
        assert "nobody-has-it" in failed["error"]
        await channel.until("acp.delivered", message_id=sent["message_id"])


async def test_a_ping_is_answered() -> None:
    async with door() as (_, channel):
        sent = channel.send(frames.ping("Here"))
        await channel.until("acp.pong", nonce=sent["nonce"])


async def test_frames_without_a_place_in_http_are_not_sent_and_harm_nothing() -> None:
    async with door() as (there, channel):
        channel.send(frames.delivered("Here", "msg_x"))
        channel.send(frames.typing("Here", True))
        channel.send(frames.agent_card({"name": "Here"}))
        channel.send({"type": "acp.resume", "token": "x"})
        sent = channel.send(message("hello"))
        await channel.until("acp.message", correlation_id=sent["message_id"])
        assert list(there.node.peers) == []


async def test_the_door_is_found_below_the_address_of_a_server() -> None:
    async with (
        running_node("There", agents=AGENTS) as there,
        running_door(there.node) as address,
        dialled(address.removesuffix("/peer")) as channel,
    ):
        sent = channel.send(message("hi"))
        await channel.until("acp.message", correlation_id=sent["message_id"])


async def test_a_credential_goes_with_every_request() -> None:
    keys = Keys()
    headers = keys.add("somebody")
    async with running_node("There", agents=AGENTS) as there, running_door(there.node, keys) as address:
        async with dialled(address, headers=headers) as channel:
            sent = channel.send(message("hi"))
            await channel.until("acp.message", correlation_id=sent["message_id"])
        async with dialled(address) as channel:
            sent = channel.send(message("hi"))
            assert (await channel.until("error", message_id=sent["message_id"]))["code"] == "unauthenticated"


async def test_an_address_without_a_card_says_so() -> None:
    async with listening(Starlette()) as address:
        with pytest.raises(ConnectionError, match=r"no agent card at /\.well-known/acp\.json: it answered 404"):
            await dial_http(links.parse(address), name="Here", max_bytes=1000)
    with pytest.raises(ConnectionError, match="cannot be reached"):
        await dial_http(links.parse("http://127.0.0.1:9"), name="Here", max_bytes=1000)


# -- a remote that goes away ----------------------------------------------------------------------------------


async def test_a_task_is_followed_over_a_restart_of_the_remote(tmp_path: Path) -> None:
    gate = Gate()
    async with Again("http", tmp_path, gate) as again, dialled(again.there.link) as channel:
        sent = channel.send(delegated("one two three", skill_id="words"))
        await channel.until("task.updated", task_id=sent["task_id"], chunk_number=1)
        await again.stop()
        waiting = channel.send(message("four five", skill_id="words"))
        gate.open.set()
        await again.start()
        done = await channel.until("task.updated", task_id=sent["task_id"], status="completed")
        assert done["artifact"]["parts"] == text("one two three")
        await channel.until("acp.delivered", message_id=waiting["message_id"])
        await channel.until("acp.message", correlation_id=waiting["message_id"])
        assert len(await runs_of(again.there.node)) == 2


async def test_a_remote_that_stays_away_ends_the_channel(tmp_path: Path) -> None:
    async with Again("http", tmp_path, Gate()) as again, dialled(again.there.link, outage=0.3) as channel:
        await channel.until("acp.agent_card")
        await again.stop()
        channel.send(message("is anybody there?"))
        async with asyncio.timeout(WAIT):
            assert await channel.channel.receive() == []


# -- between two nodes ----------------------------------------------------------------------------------------


async def reach(here: Running, address: str) -> str:
    told = await here.post("/peers/connect", {"link": address})
    await here.until(lambda event: event.get("event") == "card" and event["peer_id"] == told["peer_id"])
    return str(told["peer_id"])


async def test_a_node_reaches_another_by_an_http_link() -> None:
    async with (
        running_node("Here") as here,
        running_node("There", agents=AGENTS) as there,
        running_door(there.node) as address,
    ):
        peer = await reach(here, address)
        assert (await here.get(f"/peer/{peer}"))["connection_type"] == "http"
        answer = await here.post("/message:send", {"role": "user", "text": "hello", "sync": True})
        assert answer["reply"]["parts"] == text("you said hello")
        plain = await here.post("/message:send", {"role": "user", "text": "again"})
        reply = await here.message(direction="inbound", correlation_id=plain["message_id"])
        assert reply["parts"] == text("you said again")
        task = (await here.post("/tasks", {"role": "user", "input": {"parts": text("a task")}}, 201))["id"]
        await here.state(task, "completed")
        assert (await here.get(f"/tasks/{task}"))["artifact"]["parts"] == text("you said a task")
        ping = await here.post(f"/peers/{peer}/ping")
        assert ping["status"] == "alive"


async def test_a_task_at_an_http_link_ends_also_when_the_node_that_created_it_was_restarted(tmp_path: Path) -> None:
    store = tmp_path / "here.db"
    gate = Gate()

    @il.agent
    async def patient(text: str) -> str:
        await gate.open.wait()
        return text.upper()

    async with running_node("There", agents=[patient]) as there, running_door(there.node) as address:
        async with running_node("Here", store=store) as here:
            await reach(here, address)
            task = (await here.post("/tasks", {"role": "user", "input": {"parts": text("a task")}}, 201))["id"]
            await here.state(task, "working")
        gate.open.set()
        async with running_node("Here", store=store) as here:
            await here.state(task, "completed")
            assert (await here.get(f"/tasks/{task}"))["artifact"]["parts"] == text("A TASK")
        assert len(await runs_of(there.node)) == 1


# -- the reference's API --------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def reference() -> AsyncIterator[tuple[ReferenceApi, Frames]]:
    api = ReferenceApi()
    async with listening(api.app()) as address, dialled(address) as channel:
        yield api, channel


async def test_the_wrapped_card_of_the_reference_is_taken_out() -> None:
    async with reference() as (_, channel):
        assert (await channel.until("acp.agent_card"))["card"]["name"] == "RefAgent"


async def test_a_message_that_waits_gets_the_reply_of_the_references_peer() -> None:
    async with reference() as (api, channel):
        api.replies["hello"] = "hi there"
        channel.send(message("hello", message_id="msg_r", correlation_id="msg_r"))
        reply = await channel.until("acp.reply", correlation_id="msg_r")
        assert reply["content"] == "hi there"
        assert api.sent[0]["sync"] is True


async def test_what_the_references_peer_says_comes_and_what_we_said_does_not_come_back() -> None:
    async with reference() as (api, channel):
        sent = channel.send(message("hello"))
        await channel.until("acp.delivered", message_id=sent["message_id"])
        await api.tell("message", message_id="msg_theirs", role="agent", parts=text("hi"), task_id=None)
        said = await channel.until("acp.message")
        assert (said["message_id"], said["parts"]) == ("msg_theirs", text("hi"))


async def test_a_task_at_the_reference_ends_although_its_stream_never_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_tasks, "_LOOK", 0.1)
    async with reference() as (api, channel):
        other = channel.send(delegated("another"))
        sent = channel.send(delegated("a task"))
        await channel.until("acp.pong", nonce=channel.send(frames.ping("Here"))["nonce"])
        await api.update(sent["task_id"], "working")
        await channel.until("task.updated", task_id=sent["task_id"], status="working")
        await api.update(other["task_id"], "working")
        await api.update(other["task_id"], "completed")  # which ends every stream
        await api.update(sent["task_id"], "input_required")
        await channel.until("task.updated", task_id=sent["task_id"], status="input_required")
        answer = channel.send(message("go on", task_id=sent["task_id"]))
        await channel.until("acp.delivered", message_id=answer["message_id"])
        assert api.continued[0]["parts"] == text("go on")
        await api.update(sent["task_id"], "completed", {"parts": text("done")})
        done = await channel.until("task.updated", task_id=sent["task_id"], status="completed")
        assert done["artifact"]["parts"] == text("done")
        await channel.until("acp.delivered", message_id=sent["message_id"])


class _Channel:
    remote, ours = "Far", True

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.take = self.frames.append

    async def room(self) -> None:
        pass


async def test_events_that_came_are_not_told_again_unless_the_remote_says_that_it_counts_from_before_them() -> None:
    """As after a power cut there, which takes the last of what passed by."""
    channel: Any = _Channel()
    follower = Following(channel, "t1", None)

    async def comes(**told: Any) -> int:
        await follower._event(Received(msgspec.json.encode(told).decode()))
        return len(channel.frames)

    chunk = {"type": "artifact", "task_id": "t1", "artifact": {"artifact_id": "output", "parts": []}}
    assert await comes(**chunk, seq=5) == 1
    assert await comes(**chunk, seq=5) == 1
    assert await comes(type="ready", seq=5) == 1
    assert await comes(**chunk, seq=4) == 1
    assert await comes(type="ready", seq=3) == 1
    assert await comes(**chunk, seq=4) == 2
    assert await comes(**chunk, seq=4) == 2

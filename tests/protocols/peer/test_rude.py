"""Peers that behave badly, with the right link in their hands: they disturb themselves, and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from interlingua.protocols.peer.wire import links
from tests.kit.peer_nodes import WAIT, Running, echo, painter, promptly, running_node, shout, stuck, text

from .reference import Reference

MEGABYTE = 1024 * 1024
DEEP = "[" * 100_000 + "]" * 100_000


class Crowd:
    """A host with agents and a guest of it that behaves well."""

    def __init__(self, host: Running, guest: Running) -> None:
        self.host = host
        self.guest = guest

    async def unharmed(self) -> None:
        """Whoever behaves well is answered at once, both ways."""
        async with promptly():
            asked = {"role": "user", "text": "hi", "sync": True}
            answer = await self.guest.post("/message:send", asked)
            back = await self.host.post("/message:send", {**asked, "peer_id": "peer_001"})
        assert answer["reply"]["parts"] == text("you said hi")
        assert back["reply"]["parts"] == text("HI")

    @contextlib.asynccontextmanager
    async def rude(self, name: str = "Rude", **options: Any) -> AsyncIterator[ClientConnection]:
        """A connection of somebody else's, whose card was sent."""
        before = await self.host.node.journal.feed().head()
        async with connect(
            address(self.host), max_size=None, close_timeout=0.1, ping_interval=None, **options
        ) as socket:
            await socket.send(Reference(name).introduction())
            await self.host.until(lambda event: event.get("event") == "card", before)
            try:
                yield socket
            finally:
                socket.transport.abort()


@contextlib.asynccontextmanager
async def crowd(**settings: Any) -> AsyncIterator[Crowd]:
    agents = [echo, shout, stuck, painter]
    async with (
        running_node("Host", agents=agents, **settings) as host,
        running_node("Guest", agents=[shout, stuck]) as guest,
    ):
        await guest.connect(host)
        yield Crowd(host, guest)


def address(node: Running) -> str:
    return str(node.node.link).replace("acp://", "ws://")


async def heard(socket: ClientConnection, kind: str, **members: Any) -> dict[str, Any]:
    async with asyncio.timeout(15):
        while True:
            frame: dict[str, Any] = json.loads(await socket.recv())
            if frame["type"] == kind and all(frame.get(name) == value for name, value in members.items()):
                return frame


def message(id_: str, said: str, **more: Any) -> str:
    frame = {"type": "acp.message", "message_id": id_, "ts": "2026-11-15T00:00:00Z", "from": "Rude", "role": "user"}
    return json.dumps({**frame, "parts": text(said), **more})


# -- what fills up ----------------------------------------------------------------------------------------------


async def test_one_that_asks_much_and_reads_no_answer() -> None:
    async with crowd() as all_, all_.rude(max_queue=(1, 1)) as rude:
        for n in range(60):
            await rude.send(message(f"msg_{n}", "x" * 200_000, correlation_id=f"msg_{n}"))
            if n % 20 == 0:
                await all_.unharmed()
        await all_.host.until(lambda event: event.get("correlation_id") == "msg_59" and event["direction"] != "inbound")
        await all_.unharmed()


async def test_a_send_to_one_that_does_not_read_says_that_it_is_queued() -> None:
    async with crowd() as all_, all_.rude(max_queue=(1, 1)) as rude:
        host = all_.host
        [id_] = [peer["id"] for peer in (await host.get("/peers"))["peers"] if peer["name"] == "Rude"]
        large, sent = {"role": "user", "text": "x" * 500_000, "peer_id": id_}, []
        for n in range(60):  # the buffers between hold a few of these
            sent.append(await host.post("/message:send", {**large, "message_id": f"msg_{n}"}))
            if sent[-1]["queued"]:
                break
        assert [answer["queued"] for answer in sent] == [False] * (len(sent) - 1) + [True]
        last = sent[-1]["message_id"]
        again = await host.post("/message:send", {**large, "message_id": last})
        assert (again["deduplicated"], again["queued"], again["delivered"]) == (True, True, False)
        await all_.unharmed()
        await heard(rude, "acp.message", message_id=last)  # it reads now


async def test_one_that_sends_what_nobody_reads() -> None:
    """A node without agents keeps what comes until its owner reads it, and no more of one peer than it has room for."""
    async with running_node("Host", max_unread=10) as host, running_node("Guest", agents=[shout]) as guest:
        await guest.connect(host)
        all_ = Crowd(host, guest)
        async with all_.rude() as rude:
            for n in range(30):
                await rude.send(message(f"msg_{n}", "x"))
            await host.until(lambda event: event.get("event") == "inbox_full")
            await guest.post("/message:send", {"role": "user", "text": "I am no part of this"})
            await host.until(lambda event: event.get("parts") == text("I am no part of this"))
            read: list[dict[str, Any]] = []
            while len(read) < 31:
                page = (await host.get("/message:recv", wait=5))["messages"]
                assert page, f"only {len(read)} came"
                read += page
            assert [one["message_id"] for one in read if one["from"] == "Rude"] == [f"msg_{n}" for n in range(30)]


@pytest.mark.parametrize(
    "rounds", [pytest.param(2, id="a tenth"), pytest.param(20, id="all", marks=pytest.mark.faults)]
)
async def test_one_that_sends_a_million_tiny_frames(rounds: int) -> None:
    async with crowd() as all_, all_.rude() as rude:
        frame = b"\x81\x82\x00\x00\x00\x00{}"  # an empty object; with a mask of zeros, as a client may choose it
        for _ in range(rounds):
            rude.transport.write(frame * 50_000)
            await all_.unharmed()
            while rude.transport.get_write_buffer_size():  # as much as is taken
                await asyncio.sleep(0)
        await rude.send(message("msg_last", "done?", correlation_id="msg_last"))
        assert (await heard(rude, "acp.reply"))["parts"] == text("you said done?")


async def test_one_that_sends_more_than_a_message_may_have() -> None:
    async with crowd() as all_:
        async with all_.rude() as rude:
            with contextlib.suppress(ConnectionClosed):
                await rude.send(message("msg_1", "x" * (MEGABYTE + 1)))
                await heard(rude, "error", code="message_too_large")
            await all_.unharmed()
        async with all_.rude("Again") as rude:
            padding = MEGABYTE - len(message("msg_2", "", correlation_id="msg_2"))
            await rude.send(message("msg_2", "y" * padding, correlation_id="msg_2"))
            assert (await heard(rude, "acp.reply"))["correlation_id"] == "msg_2"
        assert [one for one in await messages(all_.host) if one == "msg_1"] == []


async def messages(node: Running) -> list[str]:
    return [one["message_id"] for one in (await node.get("/messages", limit=500))["messages"]]


# -- what makes no sense ----------------------------------------------------------------------------------------

NONSENSE: list[str | bytes] = [
    b"\x00\x01\x02", b"", "", "no json", "[]", "[{}]", "17", "null", '"text"', "NaN", '{"type":NaN}',
    '{"type":"acp.message","role":"user","parts":[{"type":"data","content":NaN}]}',
    '{"type":"acp.message","role":"user","parts":[{"type":"data","content":1e999}]}',
    '{"type":"acp.message","role":"user","parts":' + DEEP + "}",
    '{"type":"acp.message","role":"user","message_id":"m","parts":[{"type":"data","content":' + "[" * 600 + "]" * 600
    + "}]}",
    '{"type":"acp.message","role":"user","parts":[{"type":"text","content":"\\ud800"}]}',
    '{"type":7}', '{"type":["acp.message"]}', '{"type":"acp.message"}', '{"type":"acp.reply"}',
    '{"type":"acp.message","role":"robot","parts":[{"type":"text","content":"x"}]}',
    '{"type":"acp.message","role":"user","parts":[]}', '{"type":"acp.message","role":"user","parts":"x"}',
    '{"type":"acp.message","role":"user","message_id":{"a":1},"parts":[{"type":"text","content":"x"}]}',
    '{"type":"acp.message","role":"user","priority":"soon","parts":[{"type":"text","content":"x"}]}',
    '{"type":"acp.agent_card"}', '{"type":"acp.agent_card","card":[]}', '{"type":"acp.agent_card","card":{"name":5}}',
    '{"type":"acp.agent_card","card":{"name":"x","capabilities":7,"extensions":"x","identity":3}}',
    '{"type":"task.delegate"}', '{"type":"task.delegate","task_id":5}', '{"type":"task.updated","task_id":"x"}',
    '{"type":"task.updated","task_id":"task_none","status":"banana"}', '{"type":"task.cancel"}',
    '{"type":"acp.delivered"}', '{"type":"acp.delivered","message_ids":[1,{},null]}', '{"type":"acp.pong"}',
    '{"type":"acp.ping"}', '{"type":"acp.resume"}', '{"type":"acp.session","resume":"x"}', '{"type":"error"}',
    '{"type":"error","code":{"a":1},"message_id":[]}', '{"type":"acp.typing","typing":"much"}',
    '{"type":"acp.message","role":"user","sig":7,"identity":{"public_key":7},"parts":[{"type":"text","content":"x"}]}',
    '{"type":"acp.message","role":"user","ts":7e300,"sig":"x","parts":[{"type":"text","content":"x"}]}',
]  # fmt: skip


@pytest.mark.parametrize("ours", [True, False])
async def test_nonsense_of_every_kind_ends_nothing_and_is_answered_for_a_while_only(ours: bool) -> None:
    """A peer that is the reference gets no error frames: it would show them as messages."""
    async with crowd() as all_, all_.rude() as rude:
        if ours:
            card = {"name": "Rude", "capabilities": {"task_delegation": True}}
            await rude.send(json.dumps({"type": "acp.agent_card", "card": card}))
        for odd in NONSENSE:
            await rude.send(odd)
        await rude.send(message("msg_ok", "and now?", correlation_id="msg_ok"))
        complaints = 0
        async with asyncio.timeout(15):
            while (frame := json.loads(await rude.recv()))["type"] != "acp.reply" or frame[
                "correlation_id"
            ] != "msg_ok":
                complaints += frame["type"] == "error"
        assert frame["parts"] == text("you said and now?")
        assert 1 <= complaints <= 20 if ours else not complaints
        await all_.unharmed()


# -- strangers --------------------------------------------------------------------------------------------------


async def test_two_hundred_peers_that_connect_at_once_are_all_greeted() -> None:
    async with crowd() as them:
        peers = await asyncio.gather(*(connect(address(them.host), ping_interval=None) for _ in range(200)))
        try:
            for peer in peers:
                assert json.loads(await asyncio.wait_for(peer.recv(), WAIT))["type"] == "acp.agent_card"
        finally:
            for peer in peers:
                peer.transport.abort()


async def test_many_who_begin_a_handshake_and_do_not_go_on() -> None:
    async with crowd() as all_:
        port = links.parse(str(all_.host.node.link)).port
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
        for _, writer in opened:
            writer.write(b"GET /tok_x HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgr")
        await all_.unharmed()
        ref = Reference("Newcomer")
        async with ref.join(str(all_.host.node.link)):
            await ref.connected()
        for _, writer in opened:
            writer.close()


async def test_a_wrong_token_a_thousand_times() -> None:
    async with crowd() as all_:
        base = address(all_.host).rpartition("/")[0]

        async def guess(n: int) -> str:
            async with connect(f"{base}/tok_{n:016x}", close_timeout=0.1, ping_interval=None) as socket:
                return str(json.loads(await socket.recv())["code"])

        told = set()
        for n in range(0, 1000, 50):
            told |= set(await asyncio.gather(*(guess(n + m) for m in range(50))))
        assert told == {"invalid_token"}
        await all_.unharmed()
        assert [one.name for one in all_.host.node.peers] == ["Guest"]


# -- what is not theirs -----------------------------------------------------------------------------------------


async def test_what_a_peer_says_about_the_messages_of_another_counts_for_nothing() -> None:
    ref = Reference("Honest")
    async with running_node("Host") as host, ref.join(str(host.node.link)):
        await ref.connected()
        await host.until(lambda event: event.get("event") == "card")
        asking = asyncio.ensure_future(
            host.post("/message:send", {"role": "user", "text": "secret?", "message_id": "msg_1", "sync": True})
        )
        await ref.came("acp.message")
        async with Crowd(host, host).rude() as rude:
            forged: list[dict[str, Any]] = [
                {"type": "acp.reply", "correlation_id": "msg_1", "content": "forged"},
                {"type": "acp.message", "role": "agent", "correlation_id": "msg_1", "parts": text("forged")},
                {"type": "acp.delivered", "message_id": "msg_1"},
                {"type": "acp.ack", "ack_message_id": "msg_1"},
                {"type": "error", "code": "invalid_frame", "message_id": "msg_1", "message": "forged"},
            ]
            for frame in forged:
                await rude.send(json.dumps({"message_id": f"msg_f{id(frame)}", "from": "Honest", **frame}))
            await rude.send(message("msg_end", "that was all"))
            await host.until(lambda event: event.get("parts") == text("that was all"))
            assert not asking.done()
            assert (await host.get("/peers/peer_001"))["messages_delivered"] == 0
            await ref.reply("msg_1", "the truth")
            assert (await asking)["reply"]["content"] == "the truth"


async def test_what_a_peer_says_about_the_tasks_of_another_counts_for_nothing() -> None:
    async with crowd() as all_:
        guest, host = all_.guest, all_.host
        task = (await guest.post("/tasks", {"role": "user", "parts": text("x"), "skill_id": "painter"}, 201))["id"]
        await guest.state(task, "input_required")
        body = {"role": "user", "parts": text("y"), "peer_id": "peer_001", "skill_id": "stuck"}
        mine = (await host.post("/tasks", body, 201))["id"]
        await host.state(mine, "working")
        async with all_.rude() as rude:
            for frame in (
                {"type": "task.cancel", "task_id": task},
                {"type": "task.updated", "task_id": task, "status": "canceled"},
                {"type": "task.updated", "task_id": task, "status": "cancelling"},
                {"type": "task.updated", "task_id": mine, "status": "failed"},
                {"type": "task.updated", "task_id": mine, "status": "completed", "artifact": {"parts": text("forged")}},
                {"type": "task.cancel", "task_id": mine},
            ):
                await rude.send(json.dumps({"from": "Guest", "message_id": f"msg_{id(frame)}", **frame}))
            await rude.send(message("msg_1", "red", task_id=task, correlation_id="msg_0"))
            await rude.send(message("msg_2", "done?", correlation_id="msg_2"))
            await heard(rude, "acp.reply", correlation_id="msg_2")
        await guest.post(f"/tasks/{task}:continue", {"text": "blue"})
        await guest.state(task, "completed")
        assert (await guest.get(f"/tasks/{task}"))["artifact"]["parts"] == text("x in blue")
        held = await host.get(f"/tasks/{mine}")
        assert (held["status"], held.get("artifact")) == ("working", None)


async def test_the_id_of_anothers_message_is_not_used_up_by_it() -> None:
    async with crowd() as all_, all_.rude() as rude:
        await rude.send(message("msg_same", "mine", correlation_id="msg_same"))
        assert (await heard(rude, "acp.reply"))["parts"] == text("you said mine")
        answer = await all_.guest.post(
            "/message:send", {"role": "user", "text": "mine too", "message_id": "msg_same", "sync": True}
        )
        assert answer["reply"]["parts"] == text("you said mine too")


async def test_what_somebody_comes_back_with_cannot_be_guessed() -> None:
    async with crowd() as all_:
        (guest,) = list(all_.host.node.peers)
        assert guest.known.resume is not None
        async with connect(address(all_.host), close_timeout=0.1, ping_interval=None) as rude:
            for n in range(1000):
                await rude.send(json.dumps({"type": "acp.resume", "token": f"guess{n}"}))
            await rude.send(json.dumps({"type": "acp.resume", "token": guest.known.resume}))  # nor is its hash enough
            await rude.send(Reference("Guest").introduction())
            await all_.host.until(lambda event: event.get("event") == "card" and event["peer_id"] == "peer_002")
            await all_.unharmed()
            rude.transport.abort()


async def test_a_copied_card_does_not_get_what_waits_for_its_owner(tmp_path: Path) -> None:
    async with running_node("Host") as host:
        async with running_node("Owner", identity=tmp_path / "key.json") as owner:
            await owner.connect(host)
            await owner.post("/message:send", {"role": "user", "text": "signed by me"})
            await host.message(direction="inbound")
            card = owner.node.own_card.view()
        await host.until(lambda event: event.get("event") == "disconnected")
        assert card["identity"]["card_sig"]
        await host.post("/peer/peer_001/send", {"role": "user", "text": "for the owner alone"}, 503)
        async with connect(address(host), close_timeout=0.1, ping_interval=None) as thief:
            await thief.send(json.dumps({"type": "acp.agent_card", "message_id": "card_1", "card": card}))
            came = await host.until(lambda event: event.get("event") == "card" and event["peer_id"] != "peer_001")
            await host.post(f"/peer/{came['peer_id']}/send", {"role": "user", "text": "for you"})
            assert (await heard(thief, "acp.message"))["parts"] == text("for you")
            thief.transport.abort()
        assert (await host.get("/offline-queue"))["total_queued"] >= 1


async def test_what_was_signed_by_another_and_is_sent_on_makes_nobody_that_one(tmp_path: Path) -> None:
    """A message that was signed long ago proves nothing about who sends it now."""
    async with running_node("Host") as host:
        async with running_node("Owner", identity=tmp_path / "key.json") as owner:
            await owner.connect(host)
            await owner.post("/message:send", {"role": "user", "text": "signed by me"})
            await host.message(direction="inbound")
            card = owner.node.own_card.view()
            old = owner.node.trust.sign(
                json.loads(message("msg_old", "signed", **{"from": "Owner", "ts": "2020-01-01T00:00:00Z"}))
            )
        await host.until(lambda event: event.get("event") == "disconnected")
        async with connect(address(host), close_timeout=0.1, ping_interval=None) as thief:
            await thief.send(json.dumps({"type": "acp.agent_card", "message_id": "card_1", "card": card}))
            await thief.send(json.dumps(old))
            await host.until(lambda event: event.get("event") == "card" and event["peer_id"] != "peer_001")
            await host.message(message_id="msg_old")
            assert (await host.get("/peers/peer_001"))["connected"] is False
            thief.transport.abort()

"""Messages of text are read in one step, and mean what they mean when they are read like any other frame."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect

from interlingua.protocols.peer import frames, plain

from .common import Running, running_node, text
from .reference import Reference

PLAIN: dict[str, Any] = {
    "type": "acp.message", "message_id": "msg_1", "ts": "2026-11-15T00:00:00Z", "from": "Ann", "role": "user",
    "parts": text("hi"), "priority": "normal", "server_seq": 7,
}  # fmt: skip

WORDS = st.text(st.characters(codec="utf-8"), max_size=20)


def written(**members: Any) -> bytes:
    return msgspec.json.encode({**PLAIN, **members})


# -- reading ----------------------------------------------------------------------------------------------------


@given(
    WORDS.filter(lambda id_: bool(id_) and id_.isprintable()), WORDS, st.sampled_from(frames.ROLES),
    st.lists(WORDS, min_size=1, max_size=3), st.sampled_from(frames.PRIORITIES), st.integers(0, 2**63 - 1),
)  # fmt: skip
def test_a_message_of_text_says_the_same_in_one_step_as_it_does_in_two(
    id_: str, sender: str, role: str, said: list[str], priority: str, number: int
) -> None:
    parts = [part for words in said for part in text(words)]
    more = {"from": sender, "role": role, "parts": parts, "priority": priority, "server_seq": number}
    data = written(message_id=id_, **more)
    quick, slow = plain.read(data), frames.read(frames.decode(data))
    assert quick is not None
    assert isinstance(slow, frames.Message)
    assert (quick.message_id, quick.sender, quick.role) == (slow.message_id, slow.sender, slow.role)
    assert (quick.priority, quick.server_seq, quick.ts) == (slow.priority, slow.server_seq, slow.ts)
    assert msgspec.to_builtins(quick.parts) == slow.parts == parts


@pytest.mark.parametrize(
    "odd",
    [
        {"role": "boss"}, {"role": None}, {"from": 3}, {"ts": 5}, {"priority": "soon"}, {"server_seq": -1},
        {"server_seq": 2**63}, {"server_seq": "7"}, {"message_id": ""}, {"message_id": "a\nb"}, {"message_id": 1},
        {"message_id": "x" * 257}, {"from": "x" * 257}, {"parts": []}, {"parts": None}, {"parts": text("x") * 1001},
        {"parts": [{"type": "data", "content": "x"}]}, {"parts": [{"type": "text", "content": 1}]},
        {"parts": [{"type": "text", "content": "x", "media_type": "text/plain"}]}, {"sig": "00"}, {"identity": {}},
        {"context_id": "c"}, {"task_id": "t"}, {"correlation_id": "c"}, {"delivery_ack": True}, {"_was_queued": True},
        {"_ed25519_verified": True}, {"type": "acp.reply"},
    ],
)  # fmt: skip
def test_whatever_is_not_plain_is_left_to_those_who_look_closer(odd: dict[str, Any]) -> None:
    assert plain.read(written()) is not None
    assert plain.read(written(**odd)) is None


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", written()[:-1], written().replace(b"hi", b"\\ud800"), written().replace(b"hi", b"\xff")]
)
def test_what_is_no_json_is_left_to_those_who_complain(data: bytes) -> None:
    assert plain.read(data) is None


# -- taking -----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def guest(host: Running, name: str) -> AsyncIterator[ClientConnection]:
    """A connection whose card says that it wants confirmations."""
    before = await host.node.journal.feed().head()
    card = json.loads(Reference(name).introduction())
    card["card"]["capabilities"] = {"delivery_ack": True}
    async with connect(str(host.node.link).replace("acp://", "ws://"), ping_interval=None) as socket:
        await socket.send(json.dumps(card))
        await host.until(lambda event: event.get("event") == "card" and event.get("name") == name, before)
        yield socket


async def confirmed(socket: ClientConnection, count: int) -> list[str]:
    found: list[str] = []
    async with asyncio.timeout(15):
        while len(found) < count:
            frame = json.loads(await socket.recv())
            if frame["type"] == "acp.delivered":
                found.append(frame["message_id"])
    return found


async def read(host: Running, count: int) -> list[tuple[str, str, str]]:
    """The messages that the owner is given: who sent it, its id, what it says."""
    found: list[tuple[str, str, str]] = []
    while len(found) < count:
        page = (await host.get("/message:recv", wait=5, limit=100))["messages"]
        assert page, f"only {len(found)} came"
        found += [(one["from"], one["message_id"], one["parts"][0]["content"]) for one in page]
    return found


async def test_texts_and_other_messages_that_come_mixed_are_kept_in_order_and_confirmed_each() -> None:
    async with running_node("Host") as host, guest(host, "Ann") as ann:
        ids = [f"msg_{n}" for n in range(300)]
        for n, id_ in enumerate(ids):
            more = {"context_id": "c"} if n % 7 == 3 else {}
            await ann.send(written(message_id=id_, parts=text(str(n)), server_seq=n, **more).decode())
        assert sorted(await confirmed(ann, 300)) == sorted(ids)
        assert await read(host, 300) == [("Ann", id_, str(n)) for n, id_ in enumerate(ids)]


async def test_a_text_that_comes_again_is_confirmed_again_and_counts_once_and_anothers_of_that_id_counts_too() -> None:
    async with running_node("Host") as host, guest(host, "Ann") as ann, guest(host, "Bob") as bob:
        for n in (1, 1, 2):
            await ann.send(written(message_id=f"msg_{n}", parts=text("mine")).decode())
        assert await confirmed(ann, 3) == ["msg_1", "msg_1", "msg_2"]
        await ann.send(written(message_id="msg_1", parts=text("once more")).decode())
        await bob.send(written(message_id="msg_1", parts=text("too"), **{"from": "Bob"}).decode())
        assert await confirmed(ann, 1) == await confirmed(bob, 1) == ["msg_1"]
        assert await read(host, 3) == [("Ann", "msg_1", "mine"), ("Ann", "msg_2", "mine"), ("Bob", "msg_1", "too")]
        assert host.node.inbound.deduplicated == 2


async def test_texts_of_one_peer_that_nobody_reads_wait_with_it_once_there_is_no_more_room() -> None:
    async with running_node("Host", max_unread=10) as host, guest(host, "Ann") as ann:
        for n in range(30):
            await ann.send(written(message_id=f"msg_{n}").decode())
        await host.until(lambda event: event.get("event") == "inbox_full")
        store, journal = host.node.engine.core.store, host.node.journal
        assert await store.documents.count_letters(journal.box_in, states=["new"]) == 10
        assert [id_ for _, id_, _ in await read(host, 30)] == [f"msg_{n}" for n in range(30)]


async def test_what_many_send_at_once_arrives_in_the_order_of_its_numbers_and_is_confirmed() -> None:
    async with running_node("Host") as host, running_node("Guest") as node:
        await node.connect(host)
        sent = await asyncio.gather(*(node.node.sending.send({"role": "user", "text": str(n)}) for n in range(500)))
        assert [one["server_seq"] for one in sent] == list(range(1, 501))
        found = await read(host, 500)
        assert [(id_, said) for _, id_, said in found] == [(one["message_id"], str(n)) for n, one in enumerate(sent)]
        store, journal = node.node.engine.core.store, node.node.journal
        async with asyncio.timeout(15):  # the confirmation of the last one is on its way, and then to the disk
            while await store.documents.count_letters(journal.box_out, states=["delivered"]) < 500:
                await asyncio.sleep(0)
        assert node.node.peers.get("peer_001").outbox.waiting == 0

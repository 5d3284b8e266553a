"""Batches, sentence by sentence: what a receiver may do with them, and what a sender may send."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from interlingua.transports.jsonrpc.core import INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, Notice, Rpc, RpcError

from .test_jsonrpc import call, note, sent, take
from .test_rpc import SOON, echo, result, serving
from .test_rpc import call as asked
from .test_rpc import note as told


def test_a_batch_of_nothing_cannot_be_made() -> None:
    rpc = Rpc()
    with pytest.raises(ValueError, match="at least one"):
        rpc.batch([])
    with pytest.raises(ValueError, match="at least one"):
        rpc.batch(iter(()))
    assert rpc.sends == []


def test_an_array_of_nothing_is_an_invalid_request() -> None:
    for frame in (b"[]", b" [ ] ", b"[\t]\r"):
        rpc = Rpc()
        assert rpc.receive(frame) == []
        [answer] = sent(rpc)
        assert type(answer) is dict, "one response, and no array"
        assert answer["id"] is None
        assert answer["error"]["code"] == INVALID_REQUEST


@pytest.mark.parametrize("frame", [b"[", b"[1,]", b'[{"jsonrpc":"2.0","id":1,"method":"m"}', b'[{"a":}]', b"[1]]"])
def test_a_batch_that_is_no_json_gets_one_parse_error_and_no_array(frame: bytes) -> None:
    rpc = Rpc()
    assert rpc.receive(frame) == [], "nothing of it is carried out"
    [answer] = sent(rpc)
    assert type(answer) is dict
    assert (answer["id"], answer["error"]["code"]) == (None, PARSE_ERROR)


def test_a_request_without_an_id_is_a_notification_and_one_with_an_id_is_not() -> None:
    rpc = Rpc()
    first, second, third = take(rpc, [note("a"), call(0, "a"), call("", "a")])
    assert first == Notice("a")
    assert (second.id, third.id) == (0, ""), "an id that counts as false is still an id"


def test_a_notification_by_itself_gets_no_reply_however_wrong_it_is() -> None:
    rpc = Rpc()
    for message in (note("unknown/method"), note("session/new", params={}), note("$/cancel_request"), note("")):
        take(rpc, message)
    assert sent(rpc) == []


def test_a_notification_in_a_batch_gets_no_reply_however_wrong_it_is() -> None:
    rpc = Rpc()
    came = take(rpc, [note("unknown/method"), call(1), note("session/new", params={}), note("$/cancel_request")])
    [asked_] = [one for one in came if not isinstance(one, Notice)]
    rpc.answer(asked_, {})
    [answers] = sent(rpc)
    assert [answer["id"] for answer in answers] == [1]


@pytest.mark.parametrize(
    "batch",
    [
        [note("a")],
        [note("a"), note("b"), note("c")],
        [note("$/cancel_request", params={"requestId": 1})],
        [{"jsonrpc": "2.0", "id": 1, "result": {}}],
        [{"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "no"}}, {"id": 2, "result": 1}],
    ],
)
def test_there_is_never_an_array_of_no_responses(batch: list[Any]) -> None:
    rpc = Rpc()
    take(rpc, batch)
    assert rpc.sends == []


async def test_an_array_of_no_responses_is_not_sent_when_its_notifications_are_done() -> None:
    async with serving() as (_, channel, handler):
        handler.methods = {"m": echo}
        channel.bring([told("a"), told("b")], asked(1))
        assert await channel.next() == result(1, None), "the first thing that is sent belongs to the line behind it"
        assert handler.order == ["a", "b", 1]


# -- how a receiver may go about it ---------------------------------------------------------------------------


async def test_the_entries_of_a_batch_are_carried_out_at_the_same_time() -> None:
    """Each waits for all the others to have begun: one after the other would wait for ever."""
    many = 100
    async with serving() as (_, channel, handler):
        barrier = asyncio.Barrier(many)

        async def meets(_: Any) -> str:
            async with asyncio.timeout(SOON):
                await barrier.wait()
            return "met"

        handler.methods = {"m": meets}
        channel.bring([asked(number) for number in range(many)])
        answers = await channel.next()
        assert {answer["id"]: answer.get("result") for answer in answers} == dict.fromkeys(range(many), "met")


async def test_the_entries_of_a_batch_may_end_in_any_order() -> None:
    async with serving() as (_, channel, handler):
        ended: list[str] = []
        last_is_done = asyncio.Event()

        async def first(_: Any) -> None:
            await last_is_done.wait()
            ended.append("first")

        async def last(_: Any) -> None:
            ended.append("last")
            last_is_done.set()

        handler.methods = {"first": first, "last": last}
        channel.bring([asked(1, "first"), asked(2, "last")])
        answers = await channel.next()
        assert ended == ["last", "first"]
        assert [answer["id"] for answer in answers] == [2, 1], "in the order in which they ended"


async def test_a_response_array_waits_for_the_slowest_and_has_one_entry_for_each_request() -> None:
    async with serving() as (_, channel, handler):
        go = asyncio.Event()

        async def slow(_: Any) -> str:
            await go.wait()
            return "slow"

        handler.methods = {"slow": slow, "m": echo}
        channel.bring([asked(1), asked(2, "slow"), told("n"), asked(3), 7], asked("behind"))
        assert await channel.next() == result("behind", None)
        assert channel.outgoing.empty(), "the array is not sent in parts"
        go.set()
        answers = await channel.next()
        assert sorted((answer["id"] for answer in answers), key=str) == [1, 2, 3, None]


# -- how a sender must go about it ----------------------------------------------------------------------------


async def test_answers_to_a_batch_of_ours_are_matched_by_id_in_whatever_order_they_stand() -> None:
    async with serving() as (connection, channel, _):
        asking = asyncio.create_task(connection.batch([(name, None, True) for name in "abc"]))
        a, b, c = await channel.next()
        channel.bring([result(c["id"], "c"), result(a["id"], "a"), result(b["id"], "b")])
        assert await asking == ["a", "b", "c"]


async def test_answers_to_a_batch_of_ours_may_also_come_one_by_one() -> None:
    async with serving() as (connection, channel, _):
        asking = asyncio.create_task(connection.batch([("a", None, True), ("b", None, True)]))
        a, b = await channel.next()
        channel.bring(result(b["id"], "b"), result(a["id"], "a"))
        assert await asking == ["a", "b"]


async def test_both_sides_send_batches_to_each_other() -> None:
    """A client and an agent of ours: each sends an array while the other's is open."""
    async with serving() as (one, left, left_handler), serving() as (other, right, right_handler):
        for handler, name in ((left_handler, "left"), (right_handler, "right")):
            handler.methods = {"who": lambda _, name=name: answer(name)}  # type: ignore[misc]
        first = asyncio.create_task(one.batch([("who", None, True), ("news", None, False), ("who", {}, True)]))
        second = asyncio.create_task(other.batch([("who", None, True), ("nothing", None, True)]))
        to_right, to_left = await left.next(), await right.next()
        assert all(isinstance(frame, list) for frame in (to_right, to_left))
        right.bring(to_right)
        left.bring(to_left)
        left_says, right_says = await left.next(), await right.next()
        right.bring(left_says)
        left.bring(right_says)
        assert await first == ["right", "right"]
        told_left, failed = await second
        assert told_left == "left"
        assert isinstance(failed, RpcError)
        assert "news" in right_handler.order


async def answer(value: Any) -> Any:
    return value


async def test_two_requests_of_one_batch_of_ours_never_share_an_id() -> None:
    rpc = Rpc()
    ids = [rpc.request("before")[0]]
    for _ in range(3):
        made, frame = rpc.batch([("a", None, True)] * 50 + [("b", None, False)])
        assert [entry["id"] for entry in json.loads(frame) if "id" in entry] == made
        ids += made
    assert len(set(ids)) == len(ids)


def test_a_method_that_is_unknown_inside_a_batch_is_an_error_in_its_place() -> None:
    rpc = Rpc()
    one, two = take(rpc, [call(1), call(2, "unknown")])
    rpc.fail(two, RpcError(METHOD_NOT_FOUND, "unknown"))
    rpc.answer(one, {})
    [answers] = sent(rpc)
    assert {answer["id"]: "error" in answer for answer in answers} == {1: False, 2: True}

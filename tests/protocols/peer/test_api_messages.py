"""Messages over HTTP: sending to peers, receiving, and the door to agents."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from tests.kit.peer_nodes import (
    WAIT,
    Keys,
    Running,
    at_door,
    breaks,
    checked,
    client,
    echo,
    events,
    painter,
    running_door,
    running_node,
    shout,
    stuck,
    text,
)
from tests.kit.wait_for import wait_for


class Words(msgspec.Struct):
    said: list[str] = []


@il.agent
async def remembers(text: str, ctx: il.Context[Words, None]) -> str:
    ctx.state.said.append(text)
    return " ".join(ctx.state.said)


# -- the owner's ----------------------------------------------------------------------------------------------


async def test_a_message_goes_to_the_connected_peer_and_is_received_there_once() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        await ann.connect(ben)
        sent = await ann.post("/message:send", {"role": "user", "parts": text("hello"), "message_id": "msg_mine"})
        assert sent["ok"] is True
        assert (sent["message_id"], sent["server_seq"], sent["task"]) == ("msg_mine", 1, None)
        await ben.message(message_id="msg_mine")
        got = await ben.get("/message:recv")
        assert (got["count"], got["remaining"], got["timed_out"]) == (1, 0, False)
        message = got["messages"][0]
        assert (message["message_id"], message["role"], message["parts"]) == ("msg_mine", "user", text("hello"))
        assert (message["raw"]["type"], message["raw"]["from"]) == ("acp.message", "Ann")
        assert message["raw"]["server_seq"] == 1
        assert (await ben.get("/recv"))["messages"] == []
        assert (await ann.get("/message:recv"))["messages"] == []  # what one sends oneself does not come back


WRONG: list[Any] = [
    {"text": "hi"},
    {"role": None, "text": "hi"},
    {"role": "robot", "text": "hi"},
    {"role": ["user"], "text": "hi"},
    {"role": "user"},
    {"role": "user", "parts": []},
    {"role": "user", "parts": "hi"},
    {"role": "user", "parts": [{"type": "text", "content": 5}]},
    {"role": "user", "parts": [{"type": "file"}]},
    {"role": "user", "parts": [{"type": "file", "url": "ftp://host/file"}]},
    {"role": "user", "parts": [{"type": "data"}]},
    {"role": "user", "parts": [{"type": "video", "content": ""}]},
    {"role": "user", "text": "hi", "task_id": "task_unknown"},
    {"role": "user", "text": "hi", "message_id": ""},
    {"role": "user", "text": "hi", "context_id": 5},
    {"role": "user", "text": "hi", "priority": "urgent"},
    {"role": "user", "text": "hi", "sync": "yes"},
    {"role": "user", "text": "hi", "sync": True, "timeout": -1},
    [],
    "hi",
    7,
]


async def test_what_is_wrong_with_a_message_is_told_and_nothing_is_sent() -> None:
    async with running_node("Ann") as ann, running_node("Agents", agents=[echo]) as agents:
        async with running_door(agents.node) as door, client(door) as http:
            for body in WRONG:
                for to in (ann.http, http):
                    error = checked(await to.post("/message:send", json=body), 400)
                    assert (error["ok"], error["error_code"]) == (False, "ERR_INVALID_REQUEST"), body
                    assert error["error"] == error["message"] != ""
                    assert "failed_message_id" not in error
        assert (await ann.get("/offline-queue"))["total_queued"] == 0
        assert await agents.node.journal.feed().head() == 0


async def test_a_short_form_becomes_a_part_and_an_id_is_made_where_none_is_given() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        await ann.connect(ben)
        for body, expected in (
            ({"text": "short"}, {"type": "text", "content": "short"}),
            ({"content": "shorter"}, {"type": "text", "content": "shorter"}),
            ({"content": {"a": [1]}}, {"type": "data", "content": {"a": [1]}}),
        ):
            sent = await ann.post("/message:send", {"role": "agent", "unknown_member": 1, **body})
            assert len(sent["message_id"]) == len("msg_") + 16
            int(sent["message_id"].removeprefix("msg_"), 16)
            came = await ben.message(message_id=sent["message_id"])
            assert (came["parts"], came["role"]) == ([expected], "agent")


async def test_a_message_sent_again_is_the_same_message() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        await ann.connect(ben)
        body = {"role": "user", "text": "once", "message_id": "msg_once"}
        first = await ann.post("/message:send", body)
        again = await ann.post("/message:send", body)
        assert (again["message_id"], again["server_seq"]) == ("msg_once", first["server_seq"])
        assert again["deduplicated"] is True
        other = await ann.post("/message:send", {"role": "user", "text": "two"})
        assert other["server_seq"] > first["server_seq"]
        await ben.message(message_id=other["message_id"])
        assert [one["message_id"] for one in (await ben.get("/message:recv"))["messages"]] == [
            "msg_once",
            other["message_id"],
        ]


async def test_a_message_for_a_peer_that_is_away_waits_for_it_by_priority_and_says_so(tmp_path: Path) -> None:
    async with running_node("Ann") as ann:
        async with running_node("Ben", store=tmp_path / "ben.db") as ben:
            await ben.connect(ann)
            peer = (await ann.get("/peers"))["peers"][0]["id"]
            await ben.until(lambda event: event.get("event") == "card")
            head = await ann.node.journal.feed().head()
        await ann.until(lambda event: event.get("event") == "disconnected", head)
        for id_, priority in (("a", "low"), ("b", "normal"), ("c", "critical"), ("d", "normal")):
            body = {"role": "user", "text": id_, "message_id": id_, "priority": priority}
            for _ in range(2):  # the second does not queue it again
                error = await ann.post("/message:send", body, 503)
                assert (error["error_code"], error["queued"], error["message_id"]) == ("ERR_NOT_CONNECTED", True, id_)
                assert "failed_message_id" not in error
        queue = await ann.get("/offline-queue")
        assert queue["total_queued"] == 4
        assert [one["id"] for one in queue["queue"][peer]["messages"]] == ["c", "b", "d", "a"]
        async with running_node("Ben", store=tmp_path / "ben.db") as ben:  # which calls again by itself
            await ben.message(message_id="a")
            came = (await ben.get("/history"))["history"]
            assert [one["message_id"] for one in came] == ["c", "b", "d", "a"]
            assert (await ann.get("/peers"))["total"] == 1
            sent = await ann.post("/message:send", body)
            assert (sent["deduplicated"], sent["message_id"]) == (True, "d")


async def test_a_reply_ends_a_sync_send_and_none_in_time_is_a_timeout() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        await ann.connect(ben)
        body = {"role": "user", "text": "well?", "message_id": "msg_ask", "sync": True, "timeout": 10}
        asking = asyncio.ensure_future(ann.post("/message:send", body))
        asked = await ben.message(message_id="msg_ask")
        assert asked["correlation_id"] == "msg_ask"
        assert (await ben.post("/reply", {"correlation_id": "msg_ask", "content": "yes"}))["ok"] is True
        answer = await asking
        assert answer["ok"] is True
        assert answer["reply"]["correlation_id"] == "msg_ask"
        assert answer["reply"]["parts"] == text("yes")
        assert (await ann.get("/wait/msg_ask"))["reply"]["parts"] == text("yes")
        again = await ann.post("/message:send", body)
        assert (again["deduplicated"], again["reply"]["parts"]) == (True, text("yes"))
        late = {**body, "message_id": "msg_late", "timeout": 0.05}
        error = await ann.post("/message:send", late, 408)
        assert (error["error_code"], error["failed_message_id"]) == ("ERR_TIMEOUT", "msg_late")
        error = await ann.get("/wait/msg_late", 408, timeout=0)
        assert error["error_code"] == "ERR_TIMEOUT"
        assert (await ann.get("/wait/msg_never", 404))["error_code"] == "ERR_NOT_FOUND"
        assert (await ben.post("/reply", {"correlation_id": "nothing", "text": "x"}, 404))["ok"] is False


async def test_a_message_that_is_too_large_is_refused_with_its_id() -> None:
    async with running_node("Ann", max_msg_bytes=2000) as ann, running_node("Agents", agents=[echo]) as agents:
        body = {"role": "user", "text": "x" * 2000, "message_id": "msg_big"}
        error = await ann.post("/message:send", body, 413)
        assert (error["error_code"], error["failed_message_id"]) == ("ERR_MSG_TOO_LARGE", "msg_big")
        assert (await ann.post("/message:send", {**body, "text": "x" * 500_000}, 413))["ok"] is False
        async with running_door(agents.node) as door, client(door) as http:
            big = {**body, "text": "x" * agents.node.settings.max_msg_bytes}
            error = checked(await http.post("/message:send", json=big), 413)
            assert (error["error_code"], error["failed_message_id"]) == ("ERR_MSG_TOO_LARGE", "msg_big")


async def test_one_of_several_peers_has_to_be_named() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben, running_node("Cid") as cid:
        first, second = await ann.connect(ben), await ann.connect(cid)
        error = await ann.post("/message:send", {"role": "user", "text": "who?"}, 400)
        assert (error["error_code"], error["connected_peers"]) == ("ERR_AMBIGUOUS_PEER", [first, second])
        await ann.post("/message:send", {"role": "user", "text": "in the body", "peer_id": second})
        body = {"role": "user", "text": "in the path", "context_id": "ctx", "message_id": "msg_path"}
        sent = await ann.post(f"/peer/{second}/send", body)
        assert sent["peer_id"] == second
        came = await cid.message(message_id="msg_path")
        assert came["context_id"] == "ctx"
        assert (await ann.post(f"/peer/{second}/send", {"text": "no role"}, 400))["ok"] is False
        assert (await ann.post("/peer/peer_999/send", body, 404))["error_code"] == "ERR_NOT_FOUND"
        assert [one["parts"] for one in (await cid.get("/message:recv"))["messages"]] == [
            text("in the body"),
            text("in the path"),
        ]
        assert (await ben.get("/message:recv"))["count"] == 0
        told = await ann.post("/peers/broadcast", {"role": "user", "text": "all of you"})
        assert (told["delivered"], told["failed"], told["total_peers"]) == (2, 0, 2)
        await ben.message(parts=text("all of you"))
        await cid.message(parts=text("all of you"))


async def test_every_way_of_sending_signs_and_who_shares_the_secret_finds_nothing_odd() -> None:
    async with running_node("Ann", secret="same") as ann, running_node("Ben", secret="same") as ben:
        peer = await ann.connect(ben)
        body = {"role": "user", "text": "x"}
        await ann.post("/message:send", {**body, "message_id": "a"})
        await ann.post(f"/peer/{peer}/send", {**body, "message_id": "b"})
        await ann.post("/send", {"text": "x", "id": "c"})
        told = await ann.post("/peers/broadcast", body)
        last = told["results"][0]["message_id"]
        await ben.message(message_id=last)
        got = (await ben.get("/message:recv"))["messages"]
        assert [one["message_id"] for one in got] == ["a", "b", "c", last]
        for one in got:
            signed = hmac.new(b"same", f"{one['message_id']}:{one['raw']['ts']}".encode(), hashlib.sha256)
            assert one["raw"]["sig"] == signed.hexdigest()
            assert "_sig_invalid" not in one["raw"]


async def test_a_signature_that_does_not_match_is_a_warning_and_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    async with running_node("Ann", secret="one") as ann, running_node("Ben", secret="another") as ben:
        await ann.connect(ben)
        await ann.post("/message:send", {"role": "user", "text": "x", "message_id": "a"})
        await ben.message(message_id="a")
        (got,) = (await ben.get("/message:recv"))["messages"]
        assert got["raw"]["_sig_invalid"] is True
        assert got["parts"] == text("x")
        assert any(record.levelname == "WARNING" for record in caplog.records)


async def test_a_strict_node_drops_what_is_badly_signed() -> None:
    async with running_node("Ann", secret="one") as ann, running_node("Ben", secret="other", strict=True) as ben:
        await ann.connect(ben)
        await ann.post("/message:send", {"role": "user", "text": "x", "message_id": "a"})
        await ann.until(lambda event: event.get("event") == "error" and event["code"] == "bad_signature")
        assert (await ben.get("/message:recv"))["messages"] == []


async def test_whoever_wants_to_know_is_told_that_a_message_has_arrived() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        peer = await ann.connect(ben)
        body = {"role": "user", "text": "x", "message_id": "a", "delivery_ack": True}
        await ann.post("/message:send", body)
        came = await ben.message(message_id="a")
        assert came["message_id"] == "a"
        async with asyncio.timeout(WAIT):
            while not (await ann.get(f"/peer/{peer}"))["messages_delivered"]:
                await asyncio.sleep(0)
        assert (await ann.post("/message:send", body))["message_id"] == "a"
        (raw,) = [one["raw"] for one in (await ben.get("/message:recv"))["messages"]]
        assert raw["delivery_ack"] is True


async def test_the_numbers_of_messages_and_of_events_are_separate() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        await ann.connect(ben)
        sent = [(await ann.post("/message:send", {"role": "user", "text": "x"}))["server_seq"] for _ in range(3)]
        assert sent == [1, 2, 3]
        assert (await ann.get("/status"))["server_seq"] == 3
        assert (await ann.get("/status"))["seq"] > 3  # the peer's coming was told, too


async def test_nothing_is_sent_to_a_peer_that_requires_an_extension_that_we_do_not_have() -> None:
    billing = {"uri": "https://corp.example.com/ext/billing", "required": True, "params": {}}
    async with running_node("Ann") as ann, running_node("Ben", extensions=(billing,)) as ben:
        await ann.connect(ben)
        error = await ann.post("/message:send", {"role": "user", "text": "x"}, 400)
        assert error["missing_extensions"] == [billing["uri"]]
        # Whoever requires it does not enforce it: what arrives is taken.
        await ben.post("/message:send", {"role": "user", "text": "from us"})
        await ann.message(parts=text("from us"))


async def test_a_program_of_before_the_envelope_can_send() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        await ann.connect(ben)
        sent = await ann.post("/send", {"id": "old_1", "action": "go", "to": "there"})
        assert (sent["ok"], sent["id"]) == (True, "old_1")
        came = await ben.message(message_id="old_1")
        assert came["parts"] == [{"type": "data", "content": {"id": "old_1", "action": "go", "to": "there"}}]
        await ann.post("/send", {"text": "plain"})
        await ben.message(parts=text("plain"))


# -- receiving ------------------------------------------------------------------------------------------------


async def _deliver(ann: Running, ben: Running, *ids: str, **more: Any) -> None:
    for id_ in ids:
        await ann.post("/message:send", {"role": "user", "text": id_, "message_id": id_, **more})
    for id_ in ids:
        await ben.message(message_id=id_)


async def test_messages_are_kept_until_they_are_confirmed_where_the_reader_wants_that() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        await ann.connect(ben)
        await _deliver(ann, ben, "a", "b")
        await _deliver(ann, ben, "c", priority="critical")
        first = await ben.get("/message:recv", ack=0, limit=2)
        assert [one["message_id"] for one in first["messages"]] == ["a", "b"]
        assert first["remaining"] == 1
        assert (await ben.get("/message:recv", ack=0, limit=2))["messages"] == first["messages"]
        second = await ben.get("/message:recv", ack=first["last_seq"])
        assert [one["message_id"] for one in second["messages"]] == ["c"]
        assert (await ben.get("/message:recv", ack=second["last_seq"]))["messages"] == []
        assert (await ben.get("/message:recv"))["messages"] == []


async def test_the_most_urgent_message_is_received_first() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        await ann.connect(ben)
        await _deliver(ann, ben, "a", priority="low")
        await _deliver(ann, ben, "b", "c")
        await _deliver(ann, ben, "d", priority="critical")
        got = await ben.get("/message:recv", limit=3)
        assert [one["message_id"] for one in got["messages"]] == ["d", "b", "c"]
        assert got["remaining"] == 1


async def test_a_reader_can_wait_for_a_message() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        await ann.connect(ben)
        empty = await ben.get("/message:recv", wait=0.01)
        assert (empty["messages"], empty["timed_out"]) == ([], True)
        waiting = asyncio.ensure_future(ben.get("/message:recv", wait=10))
        await _deliver(ann, ben, "a")
        got = await waiting
        assert ([one["message_id"] for one in got["messages"]], got["timed_out"]) == (["a"], False)


async def test_a_message_is_not_lost_with_a_reader_that_leaves_before_it_was_answered() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        await ann.connect(ben)
        host, _, port = ben.base.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /message:recv?wait=10 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        await writer.drain()
        await wait_for(lambda: ben.node._news)
        writer.transport.abort()
        await _deliver(ann, ben, "a")
        got = await ben.get("/message:recv", wait=10)
        assert [one["message_id"] for one in got["messages"]] == ["a"]


async def test_a_query_that_makes_no_sense_is_refused() -> None:
    async with running_node("Ann") as ann:
        for query in ("limit=abc", "limit=0", "limit=-1", "wait=soon", "wait=-1", "ack=x", "limit=1e3"):
            error = await ann.get(f"/message:recv?{query}", 400)
            assert error["error_code"] == "ERR_INVALID_REQUEST"
            assert query.partition("=")[0] in error["error"]


async def test_what_was_said_can_be_read_again_after_it_was_received() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        peer = await ann.connect(ben)
        await _deliver(ann, ben, "a", "b", context_id="ctx")
        await _deliver(ann, ben, "c")
        other = (await ben.get("/peers"))["peers"][0]["id"]
        await ben.post("/message:send", {"role": "agent", "text": "d", "message_id": "d", "context_id": "ctx"})
        await ann.message(message_id="d")
        assert (await ben.get("/message:recv"))["count"] == 3
        told = await ben.get("/messages")
        assert [one["message_id"] for one in told["messages"]] == ["d", "c", "b", "a"]
        assert [one["direction"] for one in told["messages"]] == ["outbound", *["inbound"] * 3]
        assert (told["total"], told["has_more"]) == (4, False)
        page = await ben.get("/messages", limit=2, offset=1, sort="asc")
        assert [one["message_id"] for one in page["messages"]] == ["b", "c"]
        assert (page["has_more"], page["next_offset"]) == (True, 3)
        assert [one["message_id"] for one in (await ben.get("/messages", role="agent"))["messages"]] == ["d"]
        context = await ben.get("/context/ctx/messages")
        assert [one["message_id"] for one in context["messages"]] == ["a", "b", "d"]
        assert (context["context_id"], context["count"], context["total"]) == ("ctx", 3, 3)
        assert (await ben.get("/history", limit=2))["history"][-1]["message_id"] == "d"
        assert (await ben.get("/history"))["total"] == 4
        of_peer = await ben.get(f"/peers/{other}/messages", direction="outbound")
        assert [one["message_id"] for one in of_peer["messages"]] == ["d"]
        assert (await ann.get("/messages", peer_id=peer))["total"] == 4
        assert (await ann.get("/messages", 404, peer_id="peer_999"))["error_code"] == "ERR_NOT_FOUND"
        later = (await ben.get("/messages", received_after="2100-01-01T00:00:00Z"))["messages"]
        assert later == []
        assert isinstance(await ben.get("/messages", format="array"), list)


async def test_that_somebody_types_is_told_to_a_peer_that_wants_to_know() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        await ann.connect(ben)
        told = await ann.post("/message:typing", {"typing": True})
        assert (told["ok"], told["typing"], told["sent"]) == (True, True, True)
        await ben.until(lambda event: event.get("event") == "typing" and event["typing"] is True)
        assert (await ben.get("/peers"))["peers"][0]["typing"] is True
        assert (await ann.post("/message:typing", {"typing": 3}, 400))["ok"] is False


# -- the door -------------------------------------------------------------------------------------------------


async def test_a_message_at_the_door_is_answered_by_an_agent() -> None:
    async with at_door(echo, shout) as (_, http), events(http) as stream:
        body = {"role": "user", "text": "hello", "sync": True, "message_id": "msg_1"}
        answer = checked(await http.post("/message:send", json=body), 200)
        assert (answer["ok"], answer["message_id"], answer["server_seq"]) == (True, "msg_1", 1)
        assert answer["reply"]["type"] == "acp.reply"
        assert answer["reply"]["parts"] == text("you said hello")
        assert answer["reply"]["correlation_id"] == "msg_1"
        skilled = {"role": "user", "text": "loud", "skill_id": "shout", "sync": True}
        assert checked(await http.post("/message:send", json=skilled), 200)["reply"]["parts"] == text("LOUD")
        missing = {"role": "user", "text": "loud", "skill_id": "sing"}
        assert checked(await http.post("/message:send", json=missing), 404)["error_code"] == "ERR_NOT_FOUND"
        assert (await http.get("/message:recv")).json()["messages"] == []  # the answer was the answer
        said = [await stream.next() for _ in range(4)]
        assert [event["direction"] for event in said] == ["inbound", "outbound", "inbound", "outbound"]
        assert said[0]["message_id"] == "msg_1"


async def test_a_reply_to_a_message_that_nobody_waits_for_is_received_later() -> None:
    async with at_door(echo) as (_, http):
        sent = checked(await http.post("/message:send", json={"role": "user", "text": "hi", "context_id": "c"}), 200)
        assert "reply" not in sent
        got = checked(await http.get("/message:recv", params={"wait": 10}), 200)
        (message,) = got["messages"]
        assert message["parts"] == text("you said hi")
        assert (message["correlation_id"], message["context_id"]) == (sent["message_id"], "c")
        assert message["peer_id"] is None
        assert checked(await http.get("/message:recv"), 200)["count"] == 0
        waited = checked(await http.get(f"/wait/{sent['message_id']}"), 200)
        assert waited["reply"]["parts"] == text("you said hi")
        told = checked(await http.get("/context/c/messages"), 200)
        assert [one["direction"] for one in told["messages"]] == ["inbound", "outbound"]
        assert "_run" not in json.dumps(told)


async def test_a_message_sent_again_to_the_door_gets_the_first_answer_also_after_a_restart(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    body = {"role": "user", "text": "hello", "sync": True, "message_id": "msg_1"}
    async with at_door(echo, store=store) as (_, http):
        many = await asyncio.gather(*(http.post("/message:send", json=body) for _ in range(5)))
        first = [checked(answer, 200) for answer in many]
        assert len({answer["reply"]["message_id"] for answer in first}) == 1
        assert {answer["server_seq"] for answer in first} == {1}
    async with at_door(echo, store=store) as (_, http):
        again = checked(await http.post("/message:send", json=body), 200)
        assert (again["reply"], again["deduplicated"]) == (first[0]["reply"], True)
        assert again["server_seq"] == 1
        other = checked(await http.post("/message:send", json={**body, "message_id": "msg_2"}), 200)
        assert other["server_seq"] == 2


async def test_a_reply_that_comes_while_it_is_looked_for_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent again, a message that has led to a question gets the reply, whenever the question is answered: also between
    the look for a reply and the look at the task."""
    async with at_door(painter) as (node, http):
        journal = node.node.journal
        body = {"role": "user", "text": "a house", "sync": True, "message_id": "msg_1"}
        task = checked(await http.post("/message:send", json=body), 200)["task"]
        assert task["status"] == "input_required"
        look = {"letter": journal.letter, "task": journal.task}
        answered = asyncio.Event()

        async def answer_after(name: str, *place: Any) -> Any:
            found = await look[name](*place)
            first_look = not answered.is_set() and place[0] != journal.box_asked
            if first_look:
                answered.set()
                blue = {"role": "user", "text": "blue", "task_id": task["id"], "sync": True}
                ended = checked(await http.post("/message:send", json=blue), 200)
                assert ended["task"]["status"] == "completed"
            return found

        for name in look:
            monkeypatch.setattr(journal, name, partial(answer_after, name))
        again = checked(await http.post("/message:send", json=body), 200)
        assert again["reply"]["parts"] == text("a house in blue")
        assert again["task"]["status"] == "completed"


async def test_a_context_is_a_thread_of_its_caller() -> None:
    keys = Keys()
    ann, ben = keys.add("ann"), keys.add("ben")
    async with at_door(remembers, keys=keys) as (_, http):

        async def say(what: str, context: str, who: dict[str, str]) -> str:
            body = {"role": "user", "text": what, "context_id": context, "sync": True}
            answer = checked(await http.post("/message:send", json=body, headers=who), 200)
            return str(answer["reply"]["parts"][0]["content"])

        assert await say("one", "c", ann) == "one"
        assert await say("two", "c", ann) == "one two"
        assert await say("three", "d", ann) == "three"
        assert await say("four", "c", ben) == "four"


async def test_a_message_that_leads_to_a_question_becomes_a_task_that_can_be_continued() -> None:
    async with at_door(painter) as (_, http):
        body = {"role": "user", "text": "a wall", "sync": True, "message_id": "msg_1"}
        answer = checked(await http.post("/message:send", json=body), 200)
        assert answer["reply"] is None
        task = answer["task"]
        assert (task["status"], task["message_id"]) == ("input_required", "msg_1")
        more = {"role": "user", "text": "red", "task_id": task["id"], "sync": True}
        done = checked(await http.post("/message:send", json=more), 200)
        assert done["task"]["status"] == "completed"
        assert done["task"]["artifact"]["parts"] == text("a wall in red")
        late = checked(await http.post("/message:send", json={**more, "text": "blue"}), 400)
        assert late["error_code"] == "ERR_INVALID_REQUEST"


async def test_a_message_can_make_a_task_and_the_same_one_when_it_is_sent_again() -> None:
    async with at_door(echo) as (_, http):
        body = {"role": "user", "text": "hi", "create_task": True, "message_id": "msg_1"}
        first = checked(await http.post("/message:send", json=body), 200)
        assert first["task"]["status"] == "submitted"
        assert first["task"]["message_id"] == "msg_1"
        again = checked(await http.post("/message:send", json={**body, "sync": True}), 200)
        assert again["task"]["id"] == first["task"]["id"]
        assert again["task"]["artifact"]["parts"] == text("you said hi")
        assert len(checked(await http.get("/tasks"), 200)["tasks"]) == 1


async def test_a_message_that_comes_while_old_ones_are_forgotten_is_the_same_when_it_is_sent_again() -> None:
    """A message can come between two reads of the upkeep, which begins with the node."""
    async with at_door(echo) as (node, http):
        store, box = node.node.engine.core.store, node.node.journal.box_asked
        loop, read = asyncio.get_running_loop(), store.database.read  # type: ignore[attr-defined]
        body = {"role": "user", "text": "hi", "create_task": True, "message_id": "msg_1", "sync": True}
        firsts: list[Any] = []

        class Reading:
            """A connection after whose first statement a client sends its message."""

            def __init__(self, conn: Any) -> None:
                self.dialect, self._conn = conn.dialect, conn

            def execute(self, *statement: Any) -> Any:
                rows = self._conn.execute(*statement).fetchall()
                if not firsts:
                    sent = asyncio.run_coroutine_threadsafe(http.post("/message:send", json=body), loop)
                    firsts.append(sent.result(WAIT))
                return _Rows(rows)

        def once(fn: Any) -> Any:
            store.database.read = read  # type: ignore[attr-defined]
            return read(lambda conn: fn(Reading(conn)))

        store.database.read = once  # type: ignore[attr-defined]
        await store.documents.forget_letters(box, int(time.time() * 1_000_000) - 60_000_000, ["done", "run"])
        first = checked(firsts[0], 200)
        again = checked(await http.post("/message:send", json=body), 200)
        assert (again["deduplicated"], again["task"], again["reply"]) == (True, first["task"], first["reply"])


class _Rows(list[Any]):
    def fetchone(self) -> Any:
        return self[0] if self else None


async def test_a_run_that_fails_is_a_reply_with_an_error_and_one_that_takes_too_long_a_timeout() -> None:
    async with at_door(breaks, stuck) as (_, http):
        body = {"role": "user", "text": "go", "sync": True}
        failed = checked(await http.post("/message:send", json=body), 200)
        assert failed["reply"]["error"]["message"] == "it cannot be done"
        late = {**body, "skill_id": "stuck", "timeout": 0.05, "message_id": "msg_late"}
        error = checked(await http.post("/message:send", json=late), 408)
        assert (error["error_code"], error["failed_message_id"]) == ("ERR_TIMEOUT", "msg_late")


async def test_one_caller_of_the_door_sees_nothing_of_another() -> None:
    keys = Keys()
    ann, ben = keys.add("ann"), keys.add("ben")
    async with at_door(echo, keys=keys) as (node, http), events(http, headers=ben) as stream:
        body = {"role": "user", "text": "secret", "message_id": "msg_1"}
        sent = checked(await http.post("/message:send", json=body, headers=ann), 200)
        await asyncio.wait_for(http.get("/wait/msg_1", headers=ann), WAIT)
        assert checked(await http.get("/message:recv", headers=ben), 200)["messages"] == []
        for path in ("/messages", "/history"):
            assert checked(await http.get(path, headers=ben), 200)["total"] == 0
        assert checked(await http.get("/wait/msg_1", headers=ben), 404)["error_code"] == "ERR_NOT_FOUND"
        mine = checked(await http.post("/message:send", json={**body, "text": "mine"}, headers=ben), 200)
        assert "deduplicated" not in mine  # another's id is no id of ours
        first = await stream.next()
        assert (first["parts"], first["seq"]) == (text("mine"), 1)
        assert (
            checked(await http.get("/message:recv", headers=ann), 200)["messages"][0]["correlation_id"]
            == (sent["message_id"])
        )
        assert checked(await http.post("/message:send", json=body), 401)["error_code"] == "ERR_UNAUTHORIZED"
        assert (await node.get("/messages"))["total"] == 0


async def test_what_is_the_owners_is_not_at_the_door() -> None:
    async with at_door(echo) as (node, http):
        for method, path in (
            ("GET", "/peers"),
            ("POST", "/peers/connect"),
            ("GET", "/link"),
            ("GET", "/offline-queue"),
            ("POST", "/reply"),
            ("POST", "/peer/peer_001/send"),
            ("GET", "/discover"),
            ("PATCH", "/.well-known/acp.json"),
        ):
            error = checked(await http.request(method, path, json={}), 404)
            assert error["error_code"] == "ERR_NOT_FOUND"
            assert "control API" in error["error"]
        assert node.node.link not in (await http.get("/status")).text


async def test_what_is_handed_over_while_another_reads_the_shelf_is_not_handed_out_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_node("Here") as here, running_node("There") as there:
        await here.connect(there)
        await here.post("/message:send", {"role": "user", "text": "x"})
        await there.message()
        node, store = there.node, there.node.engine.core.store
        (first,), _, settle = await node.sending.receive(node.journal.box_in, None, 1)
        letters, has_read, may_go_on = store.documents.letters, asyncio.Event(), asyncio.Event()

        async def slow(*args: Any, **options: Any) -> Any:
            found = await letters(*args, **options)
            has_read.set()
            await may_go_on.wait()
            return found

        monkeypatch.setattr(store.documents, "letters", slow)
        second = asyncio.ensure_future(there.get("/message:recv"))
        await asyncio.wait_for(has_read.wait(), WAIT)  # the message is new there, and on its way to the first
        node.read.clear()
        settle(True)
        await asyncio.wait_for(node.read.wait(), WAIT)
        may_go_on.set()
        assert (await second)["messages"] == []
        assert first["parts"] == text("x")


async def test_many_who_read_at_once_are_handed_each_message_once() -> None:
    async with running_node("Here") as here, running_node("There") as there:
        await here.connect(there)
        count, given = 300, list[str]()

        async def read() -> None:
            while len(given) < count:
                page = await there.get("/message:recv", limit=1, wait=1)
                given.extend(one["message_id"] for one in page["messages"])

        readers = [asyncio.ensure_future(read()) for _ in range(6)]
        await asyncio.gather(
            *(here.post("/message:send", {"role": "user", "text": "x", "message_id": f"msg_{n}"}) for n in range(count))
        )
        await asyncio.gather(*readers)
        assert sorted(given) == sorted(f"msg_{n}" for n in range(count))

"""Frames are made as the reference makes them, and read whatever version sent them."""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.model.errors import Invalid, InvalidRequest
from interlingua.protocols.peer.wire import frames
from interlingua.protocols.peer.wire.frames import (
    Cancel,
    Card,
    Delegate,
    Delivered,
    Hello,
    Legacy,
    Message,
    Ping,
    Pong,
    Read,
    Refused,
    Reply,
    Typing,
    Updated,
    decode,
    new_id,
    now_z,
    read,
    seconds_of,
    stamp,
)

HELLO = [{"type": "text", "content": "hello"}]
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")

# The envelope that the specification shows, with every optional member.
EXAMPLE = {
    "type": "acp.message",
    "message_id": "msg_7a3f9c2b",
    "server_seq": 42,
    "ts": "2026-03-21T07:00:00Z",
    "from": "AgentA",
    "role": "user",
    "parts": HELLO,
    "task_id": "task_abc123",
    "context_id": "ctx_xyz456",
    "sig": "a3f9",
    "identity": {},
}


# -- time and ids ---------------------------------------------------------------------------------------------


def test_the_present_time_is_in_utc_with_microseconds_and_ends_in_z() -> None:
    before = datetime.datetime.now(datetime.UTC).timestamp()
    told = now_z()
    after = datetime.datetime.now(datetime.UTC).timestamp()
    assert STAMP.fullmatch(told)
    assert before - 0.001 <= (seconds_of(told) or 0) <= after + 0.001


def test_every_time_knows_its_zone() -> None:
    assert datetime.datetime.fromisoformat(now_z()).utcoffset() == datetime.timedelta(0)
    assert stamp(1774076400_000001) == "2026-03-21T07:00:00.000001Z"
    assert stamp(0) == "1970-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("ts", "seconds"),
    [
        ("2026-03-21T07:00:00Z", 1774076400.0),
        ("2026-03-21T07:00:00.5Z", 1774076400.5),
        ("2026-03-21T07:00:00.123456789Z", 1774076400.123456789),
        ("2026-03-21T08:00:00+01:00", 1774076400.0),
        ("2026-03-21T01:30:00-0530", 1774076400.0),
        ("2026-03-21 07:00:00", 1774076400.0),
        ("2026-03-21t07:00:00z", 1774076400.0),
        (1774076400_000, 1774076400.0),
        (1774076400_500, 1774076400.5),
        ("", None),
        ("yesterday", None),
        ("2026-13-21T07:00:00Z", None),
        ("2026-03-21T25:00:00Z", None),
        ("2026-03-21T07:00:00+99:00", None),
        ("2026-03-21", None),
        ("٢026-03-21T07:00:00Z", None),
        ("2026-03-21T07:00:00." + "9" * 100 + "Z", None),
        (True, None),
        (None, None),
        (-5, None),
        (float("inf"), None),
        ({}, None),
    ],
)
def test_times_of_all_versions_and_of_relays_are_read(ts: Any, seconds: float | None) -> None:
    found = seconds_of(ts)
    assert found == (None if seconds is None else pytest.approx(seconds, abs=1e-6))


@given(st.integers(0, 4_000_000_000_000_000))
def test_a_time_that_was_written_is_read_again(microseconds: int) -> None:
    assert seconds_of(stamp(microseconds)) == pytest.approx(microseconds / 1e6, abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("msg", r"msg_[0-9a-f]{16}"),
        ("task", r"task_[0-9a-f]{12}"),
        ("card", r"card_[0-9a-f]{12}"),
        ("ping", r"ping_[0-9a-f]{12}"),
    ],
)
def test_new_ids_have_their_form_and_never_come_twice(kind: str, form: str) -> None:
    made = {new_id(kind) for _ in range(500)}
    assert len(made) == 500
    assert all(re.fullmatch(form, id_) for id_ in made)
    assert re.fullmatch(r"msg_[0-9a-f]{16}", new_id())


# -- making ---------------------------------------------------------------------------------------------------


def test_a_message_has_the_envelope_of_the_specification() -> None:
    told = frames.message("AgentA", "user", HELLO, server_seq=42)
    assert list(told) == ["type", "message_id", "server_seq", "ts", "from", "role", "parts", "priority"]
    assert (told["type"], told["from"], told["role"], told["parts"]) == ("acp.message", "AgentA", "user", HELLO)
    assert re.fullmatch(r"msg_[0-9a-f]{16}", told["message_id"])
    assert STAMP.fullmatch(told["ts"])


@pytest.mark.parametrize(
    ("member", "fits"),
    [
        ("type", lambda value: value == "acp.message"),
        ("message_id", lambda value: re.fullmatch(r"msg_[0-9a-f]{16}", value)),
        ("ts", STAMP.fullmatch),
        ("from", lambda value: value == "A"),
        ("role", lambda value: value == "user"),
        ("parts", lambda value: value == HELLO),
    ],
    ids=["type", "message_id", "ts", "from", "role", "parts"],
)
def test_a_message_always_has(member: str, fits: Callable[[Any], Any]) -> None:
    assert fits(frames.message("A", "user", HELLO)[member])


def test_a_message_holds_what_is_given_and_nothing_else() -> None:
    told = frames.message(
        "A", "agent", HELLO, message_id="mine", ts="2026-03-21T07:00:00Z", task_id="t", context_id="c",
        correlation_id="m", to_peer="peer_001", priority="high", delivery_ack=True, broadcast=True, absent=None,
    )  # fmt: skip
    assert told == {
        "type": "acp.message", "message_id": "mine", "ts": "2026-03-21T07:00:00Z", "from": "A", "role": "agent",
        "parts": HELLO, "priority": "high", "task_id": "t", "context_id": "c", "correlation_id": "m",
        "to_peer": "peer_001", "delivery_ack": True, "broadcast": True,
    }  # fmt: skip


def shape(frame: dict[str, Any]) -> dict[str, Any]:
    """The frame without what is new each time."""
    assert "ts" not in frame or STAMP.fullmatch(frame["ts"])
    return {name: value for name, value in frame.items() if name not in ("ts", "message_id", "timestamp")}


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (frames.agent_card({"name": "A"}), {"type": "acp.agent_card", "card": {"name": "A"}}),
        (
            frames.reply("A", "m1", content="yes"),
            {"type": "acp.reply", "from": "A", "correlation_id": "m1", "content": "yes", "parts": None},
        ),
        (
            frames.reply("A", "m1", parts=HELLO, context_id="c"),
            {
                "type": "acp.reply",
                "from": "A",
                "correlation_id": "m1",
                "content": None,
                "parts": HELLO,
                "context_id": "c",
            },
        ),
        (
            frames.delegate("A", "t1", {"x": 1}),
            {"type": "task.delegate", "from": "A", "task_id": "t1", "payload": {"x": 1}},
        ),
        (
            frames.updated("A", "t1", "working"),
            {"type": "task.updated", "from": "A", "task_id": "t1", "status": "working", "artifact": None},
        ),
        (
            frames.updated("A", "t1", "failed", error="no"),
            {"type": "task.updated", "from": "A", "task_id": "t1", "status": "failed", "artifact": None, "error": "no"},
        ),
        (frames.cancel("A", "t1"), {"type": "task.cancel", "from": "A", "task_id": "t1"}),
        (frames.error("invalid_token"), {"type": "error", "code": "invalid_token"}),
        (frames.error("bad", "why"), {"type": "error", "code": "bad", "message": "why"}),
        (frames.ping("A", "ping_1"), {"type": "acp.ping", "nonce": "ping_1", "from": "A"}),
        (frames.pong("A", "ping_1"), {"type": "acp.pong", "nonce": "ping_1", "from": "A"}),
        (frames.delivered("A", "m1"), {"type": "acp.delivered", "from": "A"}),
        (frames.read_receipt("A", "m1"), {"type": "acp.read", "from": "A"}),
        (frames.typing("A", False), {"type": "acp.typing", "from": "A", "typing": False}),
        (frames.ack("A", "m1"), {"type": "acp.ack", "ack_message_id": "m1", "from": "A"}),
        (frames.hello("tok_1"), {"type": "acp.hello", "token": "tok_1"}),
    ],
)
def test_a_frame_has_the_members_of_the_reference(frame: dict[str, Any], told: dict[str, Any]) -> None:
    assert shape(frame) == told


def test_an_acknowledgement_names_the_message_and_a_frame_of_its_own_has_an_id_of_its_own() -> None:
    assert frames.delivered("A", "m1")["message_id"] == "m1"
    assert frames.read_receipt("A", "m1")["message_id"] == "m1"
    assert re.fullmatch(r"card_[0-9a-f]{12}", frames.agent_card({})["message_id"])
    assert re.fullmatch(r"msg_[0-9a-f]{16}", frames.cancel("A", "t")["message_id"])
    assert re.fullmatch(r"ping_[0-9a-f]{12}", frames.ping("A")["nonce"])
    assert frames.delegate("A", "t", {}, message_id="mine")["message_id"] == "mine"


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (frames.message("A", "user", HELLO), Message),
        (frames.agent_card({"name": "A"}), Card),
        (frames.reply("A", "m1", parts=HELLO), Reply),
        (frames.delegate("A", "t1", {"text": "a"}), Delegate),
        (frames.updated("A", "t1", "completed", artifact={"parts": HELLO}), Updated),
        (frames.cancel("A", "t1"), Cancel),
        (frames.error("x"), Refused),
        (frames.ping("A"), Ping),
        (frames.pong("A", "n"), Pong),
        (frames.delivered("A", "m1"), Delivered),
        (frames.ack("A", "m1"), Delivered),
        (frames.read_receipt("A", "m1"), Read),
        (frames.typing("A", True), Typing),
        (frames.hello("tok_1"), Hello),
    ],
)
def test_what_we_make_we_can_read(frame: dict[str, Any], kind: type) -> None:
    assert type(read(decode(frames.encode(frame)))) is kind


# -- reading --------------------------------------------------------------------------------------------------


def test_the_example_envelope_is_read_as_it_stands() -> None:
    told = read(EXAMPLE)
    assert told == Message(
        message_id="msg_7a3f9c2b", sender="AgentA", role="user", parts=HELLO, ts="2026-03-21T07:00:00Z", server_seq=42,
        task_id="task_abc123", context_id="ctx_xyz456",
    )  # fmt: skip


def test_members_that_are_not_known_are_ignored() -> None:
    assert read({**EXAMPLE, "mood": "blue", "hops": [1]}) == read(EXAMPLE)


def test_fields_of_older_and_newer_peers_are_ignored_silently() -> None:
    for frame in (frames.ping("A", "n"), frames.delivered("A", "m"), frames.updated("A", "t", "working")):
        assert read({**frame, "ext": {"x": 1}, "v": 9}) == read(frame)


@pytest.mark.parametrize(
    ("change", "member", "value"),
    [
        ({"delivery_ack": True}, "delivery_ack", True),
        ({"delivery_ack": "yes"}, "delivery_ack", False),
        ({"_was_queued": True}, "was_queued", True),
        ({"broadcast": True}, "broadcast", True),
        ({"correlation_id": "m0"}, "correlation_id", "m0"),
        ({"priority": "critical"}, "priority", "critical"),
        ({"priority": "urgent"}, "priority", "normal"),
        ({"server_seq": "7"}, "server_seq", None),
        ({"server_seq": True}, "server_seq", None),
        ({"from": 5}, "sender", None),
        ({"task_id": None}, "task_id", None),
        ({"ts": 1774076400_000}, "ts", 1774076400_000),
    ],
)
def test_optional_members_of_a_message(change: dict[str, Any], member: str, value: Any) -> None:
    assert getattr(read({**EXAMPLE, **change}), member) == value


def test_a_peer_of_v0_5_needs_neither_role_nor_message_id() -> None:
    old = {"type": "acp.message", "id": "abc", "from": "Old", "parts": HELLO}
    told = read(old)
    assert isinstance(told, Message)
    assert (told.message_id, told.role, told.priority) == ("abc", "user", "normal")
    assert read({"type": "acp.message", "text": "hi"}).parts == [{"type": "text", "content": "hi"}]  # type: ignore[union-attr]


def test_text_file_and_data_stand_together_in_one_message() -> None:
    mixed = [*HELLO, {"type": "file", "url": "http://h/a"}, {"type": "data", "content": [1]}]
    told = read({**EXAMPLE, "parts": mixed})
    assert isinstance(told, Message)
    assert told.parts == mixed


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"role": "system"}, "/role"),
        ({"role": ["user"]}, "/role"),
        ({"parts": []}, "/parts"),
        ({"parts": "hello"}, "/parts"),
        ({"parts": None}, "/parts"),
        ({"parts": [{"type": "text", "content": 5}]}, "/parts/0/content"),
        ({"parts": [{"type": "file", "url": "file:///x"}]}, "/parts/0/url"),
        ({"message_id": 5}, "/message_id"),
        ({"message_id": ""}, "/message_id"),
        ({"message_id": "a\nb"}, "/message_id"),
        ({"message_id": "m" * 257}, "/message_id"),
        ({"task_id": {}}, "/task_id"),
        ({"context_id": 7}, "/context_id"),
    ],
)
def test_a_message_that_would_mislead_is_refused(change: dict[str, Any], path: str) -> None:
    with pytest.raises(Invalid) as caught:
        read({**EXAMPLE, **change})
    assert caught.value.path == path


def test_a_frame_of_another_type_with_parts_is_a_message() -> None:
    assert isinstance(read({"type": "chat.later", "parts": HELLO}), Message)
    assert isinstance(read({"parts": HELLO}), Message)


@pytest.mark.parametrize(
    "frame", [{}, {"text": "hi"}, {"type": "chat", "text": "hi", "id": "x1"}, {"type": 5}, {"type": ["acp.message"]}]
)
def test_what_has_neither_a_known_type_nor_parts_is_kept_whole(frame: dict[str, Any]) -> None:
    assert read(frame) == Legacy(frame.get("id"), frame)


def test_an_answer_is_read() -> None:
    told = read({"type": "acp.reply", "correlation_id": "m1", "content": {"a": 1}, "parts": None, "from": "A"})
    assert told == Reply(correlation_id="m1", message_id=None, sender="A", parts=None, content={"a": 1})


@pytest.mark.parametrize(
    ("payload", "parts"),
    [
        ({"parts": HELLO, "role": "user"}, HELLO),
        ({"input": {"parts": HELLO}}, HELLO),
        ({"text": "hello"}, HELLO),
        ({"city": "Paris"}, [{"type": "data", "content": {"city": "Paris"}}]),
        ({}, None),
        (None, None),
        ("hello", HELLO),
    ],
)
def test_the_work_of_a_delegated_task_is_found(payload: Any, parts: Any) -> None:
    told = read({"type": "task.delegate", "task_id": "t1", "message_id": "m1", "payload": payload})
    assert isinstance(told, Delegate)
    assert (told.task_id, told.message_id, told.parts) == ("t1", "m1", parts)


@pytest.mark.parametrize(
    ("change", "artifact", "error"),
    [
        ({}, None, None),
        ({"artifact": None, "error": None}, None, None),
        (
            {"artifact": {"parts": HELLO, "append": True, "last_chunk": False}},
            {"parts": HELLO, "append": True, "last_chunk": False},
            None,
        ),
        ({"artifact": {"sum": 3}}, {"parts": [{"type": "data", "content": {"sum": 3}}]}, None),
        ({"error": "too late"}, None, "too late"),
        ({"error": {"code": 5}}, None, '{"code":5}'),
    ],
)
def test_news_of_a_task_are_read(change: dict[str, Any], artifact: Any, error: Any) -> None:
    told = read({"type": "task.updated", "task_id": "t1", "status": "working", "from": "A", **change})
    assert told == Updated(task_id="t1", status="working", message_id=None, sender="A", artifact=artifact, error=error)


def test_the_state_of_a_task_may_be_called_state() -> None:
    told = read({"type": "task.updated", "task_id": "t1", "state": "canceled"})
    assert isinstance(told, Updated)
    assert told.status == "canceled"


@pytest.mark.parametrize(
    ("frame", "path"),
    [
        ({"type": "acp.agent_card"}, "/card"),
        ({"type": "acp.agent_card", "card": "x"}, "/card"),
        ({"type": "acp.reply"}, "/correlation_id"),
        ({"type": "acp.reply", "correlation_id": "m", "parts": "x"}, "/parts"),
        ({"type": "task.delegate"}, "/task_id"),
        ({"type": "task.updated", "task_id": "t", "status": "banana"}, "/status"),
        ({"type": "task.updated", "task_id": "t"}, "/status"),
        ({"type": "task.updated", "task_id": "t", "status": "working", "artifact": []}, "/artifact"),
        (
            {"type": "task.updated", "task_id": "t", "status": "working", "artifact": {"parts": [5]}},
            "/artifact/parts/0",
        ),
        ({"type": "task.cancel"}, "/task_id"),
        ({"type": "acp.ping"}, "/nonce"),
        ({"type": "acp.pong", "nonce": 5}, "/nonce"),
        ({"type": "acp.delivered"}, "/message_id"),
        ({"type": "acp.ack"}, "/ack_message_id"),
        ({"type": "acp.read"}, "/message_id"),
        ({"type": "acp.hello"}, "/token"),
    ],
)
def test_a_frame_without_what_it_needs_is_refused(frame: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(frame)
    assert caught.value.path == path


def test_an_error_frame_is_read_in_every_spelling() -> None:
    assert read({"type": "error", "code": "invalid_token"}) == Refused("invalid_token", None)
    assert read({"type": "error", "error_code": "E", "error": "why"}) == Refused("E", "why")
    assert read({"type": "error"}) == Refused("unknown", None)


@pytest.mark.parametrize("priority", ["critical", "high", "normal", "low"])
def test_the_four_priorities(priority: str) -> None:
    assert frames.check_priority(priority) == priority


def test_a_priority_that_does_not_exist_is_refused_and_none_is_normal() -> None:
    assert frames.check_priority(None) == "normal"
    for value in ("urgent", "", 1, ["high"]):
        with pytest.raises(InvalidRequest, match="critical, high, normal, low"):
            frames.check_priority(value)


@pytest.mark.parametrize("role", ["user", "agent"])
def test_the_two_roles(role: str) -> None:
    assert frames.check_role(role) == role


@pytest.mark.parametrize("role", [None, "", "system", "USER", 5, ["user"], {}])
def test_a_role_that_is_missing_or_another_is_refused_and_never_assumed(role: Any) -> None:
    with pytest.raises(InvalidRequest, match="/role is user or agent"):
        frames.check_role(role)


# -- bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [b"", b"hello", b"[1]", b"5", b"null", b'"text"', b"{", b"\xff\xfe", b'{"a":1}{"b":2}', b"[" * 100_000, "\ud800"],
)
def test_what_is_no_json_object_is_refused(data: Any) -> None:
    with pytest.raises(InvalidRequest):
        decode(data)


def test_a_frame_may_come_as_text_or_as_bytes() -> None:
    assert decode('{"type":"grüße"}') == decode('{"type":"grüße"}'.encode()) == {"type": "grüße"}


def test_bottomless_nesting_is_refused() -> None:
    with pytest.raises(Invalid):
        decode(b'{"a":' * 300 + b"1" + b"}" * 300)


@given(
    st.dictionaries(
        st.text(max_size=12),
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just([]) | st.just({}),
    ),
    st.sampled_from(sorted(frames._READERS)),
)
def test_any_object_is_read_or_refused(frame: dict[str, Any], kind: str) -> None:
    for given_frame in (frame, {**frame, "type": kind}, {**EXAMPLE, **frame}):
        with contextlib.suppress(Invalid):
            assert type(read(given_frame)) in frames.Content.__args__

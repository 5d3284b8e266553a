"""The rules of JSON-RPC without I/O: every kind of odd input, every rule of batches, and random ones."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.transports.channel import TooLong
from interlingua.transports.jsonrpc.core import (
    CANCELLED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    Call,
    CancelWanted,
    Notice,
    Refused,
    Reply,
    Rpc,
    RpcError,
)
from interlingua.transports.jsonrpc.limits import Limits
from tests.kit.clients.editor import check_frame
from tests.kit.examples import many


def sent(rpc: Rpc) -> list[Any]:
    """What must go out now, each frame checked."""
    frames, rpc.sends = rpc.sends, []
    for frame in frames:
        assert b"\n" not in frame
        assert not frame.startswith(b"\xef\xbb\xbf")
    told = [json.loads(frame) for frame in frames]
    for frame in told:
        check_frame(frame)
    return told


def call(id_: Any, method: str = "m", **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "method": method, **more}


def note(method: str = "n", **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, **more}


def take(rpc: Rpc, message: Any) -> list[Any]:
    return rpc.receive(message if isinstance(message, bytes) else json.dumps(message).encode())


def refused(rpc: Rpc, message: Any, id_: Any = None) -> int:
    """The code of the one error that is all that comes of a message."""
    assert take(rpc, message) == []
    [answer] = sent(rpc)
    assert answer["id"] == id_
    assert isinstance(answer["error"]["code"], int)
    [alive] = take(rpc, call("still alive"))
    rpc.answer(alive, {})
    assert sent(rpc) == [{"jsonrpc": "2.0", "id": "still alive", "result": {}}]
    return int(answer["error"]["code"])


def _cut(head: bytes, tail: bytes) -> TooLong:
    return TooLong.of(head, 16 * 1024 * 1024, tail=tail)


# -- single messages ------------------------------------------------------------------------------------------


def test_a_request_is_answered_once_with_its_id() -> None:
    rpc = Rpc()
    [asked] = take(rpc, call(7, "initialize", params={"a": 1}))
    assert (asked.id, asked.method, asked.params) == (7, "initialize", {"a": 1})
    rpc.answer(asked, {"ok": True})
    rpc.answer(asked, {"again": True})
    rpc.fail(asked, RpcError(1, "again"))
    assert sent(rpc) == [{"jsonrpc": "2.0", "id": 7, "result": {"ok": True}}]
    assert rpc.open_calls == 0


def test_a_notification_is_never_answered() -> None:
    rpc = Rpc()
    assert take(rpc, note("anything", params=[1])) == [Notice("anything", [1])]
    assert take(rpc, note("_extension/of/somebody")) == [Notice("_extension/of/somebody")]
    assert sent(rpc) == []


def test_an_error_carries_its_data() -> None:
    rpc = Rpc()
    [asked] = take(rpc, call(1))
    rpc.fail(asked, RpcError(-32000, "log in first", {"methods": ["key"]}))
    [answer] = sent(rpc)
    assert answer["error"] == {"code": -32000, "message": "log in first", "data": {"methods": ["key"]}}


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        pytest.param(b"not json", PARSE_ERROR, id="words"),
        pytest.param(b'[{"jsonrpc": "2.0", "id": 1, "method": "m"}', PARSE_ERROR, id="a broken array"),
        pytest.param(b"\xff\xfe\x00", PARSE_ERROR, id="invalid UTF-8"),
        pytest.param(b"\xef\xbb\xbf" + json.dumps(call(1)).encode(), PARSE_ERROR, id="a byte order mark"),
        pytest.param(json.dumps(call(1)).encode("utf-16"), PARSE_ERROR, id="UTF-16"),
        pytest.param(b"[" * 50_000, PARSE_ERROR, id="50k arrays that stay open"),
        pytest.param(b"[" * 50_000 + b"]" * 50_000, PARSE_ERROR, id="50k arrays"),
        pytest.param(b'{"a":' * 50_000 + b"1" + b"}" * 50_000, PARSE_ERROR, id="50k objects"),
        pytest.param(
            b'{"jsonrpc":"2.0","id":' + b"1" * 5000 + b',"method":"m"}', INVALID_REQUEST, id="5000 digits as an id"
        ),
        pytest.param(b"1e999", INVALID_REQUEST, id="a number that is too big"),
        pytest.param(b"1 2", PARSE_ERROR, id="two values"),
        pytest.param(b"1", INVALID_REQUEST, id="a number"),
        pytest.param(b'"x"', INVALID_REQUEST, id="a string"),
        pytest.param(b"null", INVALID_REQUEST, id="null"),
        pytest.param(b"true", INVALID_REQUEST, id="true"),
        pytest.param(b"{}", INVALID_REQUEST, id="an empty object"),
        pytest.param(b"[]", INVALID_REQUEST, id="an empty batch"),
        pytest.param(b'{"jsonrpc":"2.0","id":null,"method":"m"}', INVALID_REQUEST, id="id null"),
        pytest.param(b'{"jsonrpc":"2.0","id":1.5,"method":"m"}', INVALID_REQUEST, id="id 1.5"),
        pytest.param(b'{"jsonrpc":"2.0","id":true,"method":"m"}', INVALID_REQUEST, id="id true"),
        pytest.param(b'{"jsonrpc":"2.0","id":[1],"method":"m"}', INVALID_REQUEST, id="an array as the id"),
        pytest.param(b'{"jsonrpc":"2.0","id":{},"method":"m"}', INVALID_REQUEST, id="an object as the id"),
        pytest.param(b'{"jsonrpc":"2.0","method":"m","params":"x"}', INVALID_REQUEST, id="a notification's params x"),
    ],
)
def test_what_cannot_be_read_is_answered_once_with_id_null_and_the_connection_goes_on(frame: bytes, code: int) -> None:
    assert refused(Rpc(), frame) == code


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        pytest.param(b'{"jsonrpc": "2.0", "id": 1, "method"', PARSE_ERROR, id="a broken object"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":NaN}}', PARSE_ERROR, id="NaN"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":Infinity}}', PARSE_ERROR, id="Infinity"),
        pytest.param(b'{"id":1,"method":"m"}', INVALID_REQUEST, id="no jsonrpc"),
        pytest.param(b'{"jsonrpc":"1.0","id":1,"method":"m"}', INVALID_REQUEST, id="an old jsonrpc"),
        pytest.param(b'{"jsonrpc":2.0,"id":1,"method":"m"}', INVALID_REQUEST, id="jsonrpc as a number"),
        pytest.param(b'{"jsonrpc":"2.0","id":1}', INVALID_REQUEST, id="no method"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":1}', INVALID_REQUEST, id="a number as the method"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":null}', INVALID_REQUEST, id="null as the method"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"m","params":1}', INVALID_REQUEST, id="params 1"),
        pytest.param(
            b'{"method":"m","params":{"id":2,"a":no},"jsonrpc":"2.0","id":1}', PARSE_ERROR, id="id at the end"
        ),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1e999}}', PARSE_ERROR, id="1e999"),
        pytest.param(b'{"id":1,"method":"m","params":' + b"[" * 50_000, PARSE_ERROR, id="50k arrays in params"),
        pytest.param(_cut(b'{"id":1,"method":"m","params":{"a":"', b'"}}'), INVALID_REQUEST, id="head of a line"),
        pytest.param(_cut(b'{"method":"m","params":{"a":"', b'"},"id":1}'), INVALID_REQUEST, id="end of a line"),
    ],
)
def test_what_cannot_be_read_is_answered_with_its_id_where_that_can_be_read(frame: bytes, code: int) -> None:
    assert refused(Rpc(), frame, 1) == code


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        pytest.param(b'"a\\ud83d"', "a\ufffd", id="half a character"),
        pytest.param(b'"\\ude00a"', "\ufffda", id="the other half"),
        pytest.param(b'"\\ud83d\\ude00"', "\U0001f600", id="a pair"),
        pytest.param(b'"a\xffb"', "a\ufffdb", id="invalid UTF-8"),
        pytest.param(b'"a\\ud83d\xff"', "a\ufffd\ufffd", id="both"),
        pytest.param(b"1" * 40, int("1" * 40), id="a long number"),
    ],
)
def test_text_that_is_not_clean_reaches_the_handler_and_its_answer_the_peer(frame: bytes, text: Any) -> None:
    rpc = Rpc()
    [asked] = take(rpc, b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"text":%s}}' % frame)
    assert asked.params == {"text": text}
    rpc.answer(asked, asked.params)
    assert sent(rpc) == [{"jsonrpc": "2.0", "id": 1, "result": {"text": text}}]


def test_a_number_that_json_does_not_have_is_named_in_a_request_and_null_in_an_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rpc = Rpc()
    take(rpc, b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":-Infinity}}')
    assert sent(rpc)[0]["error"]["message"] == "-Infinity is no number of JSON; send null, or text"
    id_, _ = rpc.request("m")
    came = take(rpc, b'{"jsonrpc":"2.0","id":%d,"result":{"a":NaN,"b":1e999}}' % id_)
    assert came == [Reply(id_, {"a": None, "b": None})]
    assert "NaN became null; 1e999 became null" in caplog.text


@pytest.mark.parametrize("keeps", [True, False])
def test_halves_of_characters_are_kept_in_notifications_where_somebody_joins_them(keeps: bool) -> None:
    rpc = Rpc(is_piece=lambda message: keeps and message["method"] == "m")
    last = chr(0xD83D if keeps else 0xFFFD)
    assert take(rpc, b'{"jsonrpc":"2.0","method":"m","params":["a\\ud83d"]}') == [Notice("m", [f"a{last}"])]
    assert take(rpc, b'{"jsonrpc":"2.0","method":"n","params":["a\\ud83d"]}') == [Notice("n", ["a\ufffd"])]
    [asked] = take(rpc, b'{"jsonrpc":"2.0","id":1,"method":"m","params":["a\\ud83d"]}')
    assert asked.params == ["a\ufffd"]


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":"x', "cut off at byte 40"),
        (b'{"jsonrpc":"2.0","result":{"a":nope},"id":1}', "expecting value at byte 31"),
        (b'{"jsonrpc":"2.0","result":{"a":nope}}', "expecting value at byte 31"),
        (b'{"jsonrpc":"2.0","id":1 "result":{}}', "expecting ',' delimiter at byte 24"),
        (_cut(b'{"result":{"a":"', b'"},"jsonrpc":"2.0","id":1}'), "line longer than 16 MiB"),
    ],
)
def test_an_answer_that_cannot_be_read_ends_its_request_with_an_error_and_is_not_answered(
    frame: bytes, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    rpc = Rpc()
    id_, _ = rpc.request("m")
    assert id_ == 1
    [reply] = take(rpc, frame)
    assert (reply.id, type(reply.error)) == (1, RpcError)
    assert reply.error.message.startswith("the answer cannot be read: ")
    assert says in reply.error.message
    assert says in caplog.text
    assert sent(rpc) == []
    assert take(rpc, frame) == []
    assert sent(rpc) == [], "an answer to nothing is not answered"


@pytest.mark.parametrize("frame", [b"", b" ", b"\r", b"\t  \r"])
def test_blank_lines_are_ignored(frame: bytes) -> None:
    rpc = Rpc()
    assert take(rpc, frame) == []
    assert sent(rpc) == []
    assert rpc.odd == 0


@pytest.mark.parametrize(
    "id_", [0, -1, 2**53 + 1, 2**63, 2**63 - 1, -(2**63), 2**64, 10**40, "", "x", "1", "ü\u2028\U0001f600", "a" * 5000]
)
def test_ids_come_back_exactly_as_they_were(id_: Any) -> None:
    rpc = Rpc()
    [asked] = take(rpc, call(id_))
    rpc.answer(asked, None)
    [answer] = sent(rpc)
    assert answer == {"jsonrpc": "2.0", "id": id_, "result": None}
    assert type(answer["id"]) is type(id_)
    [asked] = take(rpc, call(id_))
    rpc.fail(asked, RpcError(1, "no"))
    assert sent(rpc)[0]["id"] == id_


def test_of_a_duplicate_key_the_last_wins() -> None:
    [asked] = take(Rpc(), b'{"jsonrpc":"2.0","id":1,"id":2,"method":"a","method":"b","params":{"x":1,"x":2}}')
    assert (asked.id, asked.method, asked.params) == (2, "b", {"x": 2})


def test_carriage_returns_line_separators_and_long_lines_are_nothing_special() -> None:
    rpc = Rpc()
    text = "\u2028\u2029\x85" + "x" * 5_000_000
    frame = json.dumps(call(1, params={"text": text}), ensure_ascii=False).encode() + b"\r"
    [asked] = take(rpc, frame)
    assert asked.params == {"text": text}
    rpc.answer(asked, {"text": text})
    assert sent(rpc)[0]["result"] == {"text": text}


def test_a_frame_above_the_limit_is_refused_whether_the_transport_kept_it_or_not() -> None:
    rpc = Rpc(Limits(max_frame_bytes=100))
    assert refused(rpc, b"x" * 101) == INVALID_REQUEST
    assert refused(rpc, b" " * 101) == INVALID_REQUEST
    assert rpc.receive(TooLong.of(b"", 100)) == []
    [answer] = sent(rpc)
    assert (answer["id"], answer["error"]["code"]) == (None, INVALID_REQUEST)
    assert answer["error"]["message"] == "line longer than 100 bytes"


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": None, "result": {}},
        {"jsonrpc": "2.0", "result": {}},
        {"id": 1, "result": {}},
        {"jsonrpc": "1.0", "id": [1], "result": None},
        {"jsonrpc": "2.0", "id": 99, "error": {"code": -32600, "message": "?"}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "?"}},
        {"jsonrpc": "2.0", "error": {"code": -32700, "message": "?"}},
        {"jsonrpc": "2.0", "error": None},
        {"jsonrpc": "2.0", "id": True, "error": 5},
        {"result": 1, "error": 2},
    ],
)
def test_nothing_that_looks_like_a_response_is_ever_answered(message: Any) -> None:
    for frame in (message, [message], [message, message]):
        rpc = Rpc()
        assert [entry for entry in take(rpc, frame) if type(entry) is not Refused] == []
        assert sent(rpc) == []
        assert rpc.odd > 0


def test_two_peers_do_not_answer_each_others_errors() -> None:
    one, other = Rpc(), Rpc()
    one.receive(b"garbage")
    for frame in one.sends:
        other.receive(frame)
    assert other.sends == []


# -- answers that cannot be written ---------------------------------------------------------------------------


@pytest.mark.parametrize("result", [object(), {"a": {object()}}, {("a",): 1}])
def test_a_result_that_is_not_json_becomes_an_error_of_that_request_alone(result: Any) -> None:
    rpc = Rpc()
    [asked] = take(rpc, call(1))
    rpc.answer(asked, result)
    [answer] = sent(rpc)
    assert (answer["id"], answer["error"]["code"]) == (1, INTERNAL_ERROR)
    first, second = take(rpc, [call(1), call(2)])
    rpc.answer(first, result)
    rpc.answer(second, 2)
    [[failed, done]] = sent(rpc)
    assert (failed["id"], failed["error"]["code"]) == (1, INTERNAL_ERROR)
    assert done == {"jsonrpc": "2.0", "id": 2, "result": 2}


def test_an_error_whose_data_or_message_cannot_be_written_is_still_told() -> None:
    rpc = Rpc()
    first, second = take(rpc, [call(1), call(2)])
    rpc.fail(first, RpcError(5, "no", object()))
    rpc.fail(second, RpcError(6, "half \ud800", "data"))
    [[one, two]] = sent(rpc)
    assert one["error"] == {"code": 5, "message": "no"}
    assert two["error"] == {"code": 6, "message": "half \ufffd", "data": "data"}


def test_not_a_number_is_never_sent() -> None:
    rpc = Rpc()
    [asked] = take(rpc, call(1))
    rpc.answer(asked, {"a": float("nan"), "b": float("inf")})
    assert sent(rpc)[0]["result"] == {"a": None, "b": None}


# -- batches --------------------------------------------------------------------------------------------------


def test_a_batch_is_answered_by_one_array_when_its_last_request_is_done() -> None:
    rpc = Rpc()
    one, heard, two = take(rpc, [call(1), note(), call("2")])
    assert heard == Notice("n")
    rpc.answer(two, "second")
    assert sent(rpc) == []
    rpc.fail(one, RpcError(-32601, "no"))
    [answers] = sent(rpc)
    assert {answer["id"]: answer.get("result", "failed") for answer in answers} == {1: "failed", "2": "second"}
    assert len(answers) == 2


def test_a_batch_of_one_request_is_answered_by_an_array_of_one() -> None:
    rpc = Rpc()
    [asked] = take(rpc, [call(1)])
    rpc.answer(asked, {})
    assert sent(rpc) == [[{"jsonrpc": "2.0", "id": 1, "result": {}}]]


def test_a_batch_of_notifications_is_answered_by_nothing_at_all() -> None:
    rpc = Rpc()
    assert take(rpc, [note("a"), note("b")]) == [Notice("a"), Notice("b")]
    assert take(rpc, [note("$/cancel_request", params={"requestId": 1})]) == []
    assert rpc.sends == []


@pytest.mark.parametrize("entry", [1, "x", None, True, [], [call(1)], {}, {"jsonrpc": "2.0", "id": 1}, {"method": "m"}])
def test_an_invalid_entry_gets_an_error_of_its_own_and_its_siblings_run(entry: Any) -> None:
    rpc = Rpc()
    [asked] = take(rpc, [entry, call(5), entry])
    assert sent(rpc) == []
    rpc.answer(asked, {})
    [answers] = sent(rpc)
    id_ = entry.get("id") if isinstance(entry, dict) else None
    assert [answer["id"] for answer in answers] == [id_, id_, 5]
    assert [answer["error"]["code"] for answer in answers[:2]] == [INVALID_REQUEST, INVALID_REQUEST]


@pytest.mark.parametrize("entry", [{**call(1), "jsonrpc": "1"}, {**call(1), "id": 1.5}, {**call(1), "id": None}])
def test_an_entry_with_a_bad_id_or_version_is_invalid_too(entry: Any) -> None:
    rpc = Rpc()
    assert take(rpc, [entry]) == []
    [[answer]] = sent(rpc)
    id_ = 1 if entry["id"] == 1 else None
    assert (answer["id"], answer["error"]["code"]) == (id_, INVALID_REQUEST)


def test_three_numbers_are_three_errors_in_one_array() -> None:
    rpc = Rpc()
    assert take(rpc, [1, 2, 3]) == []
    [answers] = sent(rpc)
    assert [(answer["id"], answer["error"]["code"]) for answer in answers] == [(None, INVALID_REQUEST)] * 3


def test_an_empty_batch_gets_one_object_and_no_array() -> None:
    rpc = Rpc()
    take(rpc, [])
    [answer] = sent(rpc)
    assert isinstance(answer, dict)
    assert (answer["id"], answer["error"]["code"]) == (None, INVALID_REQUEST)


def test_of_two_requests_with_one_id_both_are_answered() -> None:
    rpc = Rpc()
    one, two = take(rpc, [call(1, "a"), call(1, "b")])
    rpc.answer(one, "a")
    rpc.answer(two, "b")
    [answers] = sent(rpc)
    assert [answer["result"] for answer in answers] == ["a", "b"]
    assert rpc.open_calls == 0


def test_a_response_among_calls_is_an_invalid_entry() -> None:
    rpc = Rpc()
    id_, _ = rpc.request("ours")
    [asked] = take(rpc, [{"jsonrpc": "2.0", "id": id_, "result": 1}, call(1)])
    rpc.answer(asked, {})
    [answers] = sent(rpc)
    assert [answer["id"] for answer in answers] == [None, 1]
    assert take(rpc, {"jsonrpc": "2.0", "id": id_, "result": 1}) == [Reply(id_, 1)]


def test_a_batch_of_responses_is_routed_and_never_answered() -> None:
    rpc = Rpc()
    first, _ = rpc.request("a")
    second, _ = rpc.request("b")
    came = take(
        rpc,
        [
            {"jsonrpc": "2.0", "id": second, "error": {"code": 5, "message": "no", "data": 1}},
            {"id": "nobody's", "result": 1},
            {"error": "strange"},
            {"jsonrpc": "2.0", "id": first, "result": "yes"},
        ],
    )
    failed, strange, done = came
    assert (failed.id, failed.error.code, failed.error.data) == (second, 5, 1)
    assert type(strange) is Refused
    assert done == Reply(first, "yes")
    assert rpc.sends == []


def test_a_sibling_can_be_cancelled_inside_a_batch() -> None:
    rpc = Rpc()
    slow, quick, wanted = take(
        rpc, [call("slow"), call("quick"), note("$/cancel_request", params={"requestId": "slow"})]
    )
    assert type(wanted) is CancelWanted
    assert wanted.call is slow
    rpc.answer(quick, {})
    assert sent(rpc) == []
    rpc.fail(slow, RpcError(CANCELLED, "cancelled"))
    [answers] = sent(rpc)
    assert [(a["id"], a.get("error", {}).get("code")) for a in answers] == [("quick", None), ("slow", CANCELLED)]


def test_single_answers_may_overtake_an_array() -> None:
    rpc = Rpc()
    [slow] = take(rpc, [call(1)])
    [quick] = take(rpc, call(2))
    rpc.answer(quick, {})
    assert [answer["id"] for answer in sent(rpc)] == [2]
    rpc.answer(slow, {})
    assert [[answer["id"] for answer in frame] for frame in sent(rpc)] == [[1]]


def test_a_batch_with_too_many_entries_is_one_error() -> None:
    rpc = Rpc(Limits(max_batch=3))
    assert refused(rpc, [call(1)] * 4) == INVALID_REQUEST
    assert len(take(rpc, [call(1)] * 3)) == 3


def test_where_batches_are_not_taken_an_array_is_one_error() -> None:
    assert refused(Rpc(batches=False), [call(1), note()]) == INVALID_REQUEST


def test_a_batch_tells_how_many_entries_it_had() -> None:
    asked, _heard = take(Rpc(), [call(1), note()])
    assert asked.batch.size == 2


# -- limits ---------------------------------------------------------------------------------------------------


def test_requests_beyond_the_limit_are_refused_with_their_own_ids() -> None:
    rpc = Rpc(Limits(max_open=2))
    one, _two = take(rpc, [call(1), call(2), call(3), call(4)])
    assert sent(rpc) == [], "the array is not complete"
    assert take(rpc, call(5)) == []
    [answer] = sent(rpc)
    assert (answer["id"], answer["error"]["code"]) == (5, INVALID_REQUEST)
    rpc.answer(one, {})
    assert len(take(rpc, call(6))) == 1


def test_a_batch_that_is_refused_entry_by_entry_is_still_one_array() -> None:
    rpc = Rpc(Limits(max_open=0))
    assert take(rpc, [call(1), call(2), 3]) == []
    [answers] = sent(rpc)
    assert [answer["id"] for answer in answers] == [1, 2, None]


def test_using_one_id_again_and_again_does_not_get_around_the_limit() -> None:
    rpc = Rpc(Limits(max_open=3))
    assert len([came for _ in range(5) for came in take(rpc, call(1))]) == 3
    assert [answer["error"]["code"] for answer in sent(rpc)] == [INVALID_REQUEST] * 2


# -- cancelling -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{"requestId": 2}, {"requestId": "1"}, {"requestId": [1]}, {}, [1], None])
def test_cancelling_what_is_not_open_is_nothing(params: Any) -> None:
    rpc = Rpc()
    take(rpc, call(1))
    assert take(rpc, note("$/cancel_request", params=params)) == []
    assert sent(rpc) == []


def test_cancelling_after_the_answer_is_nothing() -> None:
    rpc = Rpc()
    [asked] = take(rpc, call(1))
    rpc.answer(asked, {})
    assert take(rpc, note("$/cancel_request", params={"requestId": 1})) == []


def test_how_requests_are_taken_back_is_the_protocols_choice() -> None:
    rpc = Rpc(cancel=("notifications/cancelled", "requestId"))
    [asked] = take(rpc, call(1))
    assert take(rpc, note("notifications/cancelled", params={"requestId": 1})) == [CancelWanted(asked)]
    assert take(rpc, note("$/cancel_request", params={"requestId": 1})) == [
        Notice("$/cancel_request", {"requestId": 1})
    ]
    id_, _ = rpc.request("ours")
    frame = rpc.cancel(id_)
    assert frame is not None
    assert json.loads(frame)["method"] == "notifications/cancelled"
    rpc.forget(id_)
    assert rpc.cancel(id_) is None
    assert Rpc(cancel=None).cancel(1) is None


# -- asking ---------------------------------------------------------------------------------------------------


def test_our_requests_have_ids_of_their_own_and_their_answers_come_once() -> None:
    rpc = Rpc()
    (first, frame), (second, _) = rpc.request("a", {"x": 1}), rpc.request("b")
    assert first != second
    assert json.loads(frame) == call(first, "a", params={"x": 1})
    answer = {"jsonrpc": "2.0", "id": first, "result": {"y": 2}}
    assert take(rpc, answer) == [Reply(first, {"y": 2})]
    assert take(rpc, answer) == []
    rpc.forget(second)
    assert take(rpc, {"jsonrpc": "2.0", "id": second, "result": 1}) == []
    assert sent(rpc) == []


@pytest.mark.parametrize("error", [5, "x", [], {}, {"code": "x"}, {"code": 1.5, "message": 3}, True])
def test_an_error_of_any_shape_fails_the_request(error: Any) -> None:
    rpc = Rpc()
    id_, _ = rpc.request("a")
    [reply] = take(rpc, {"jsonrpc": "2.0", "id": id_, "error": error})
    assert (reply.id, reply.error.code) == (id_, INTERNAL_ERROR)


def test_a_batch_of_ours_holds_requests_and_notifications_with_different_ids() -> None:
    rpc = Rpc()
    ids, frame = rpc.batch([("a", {"x": 1}, True), ("b", None, False), ("c", None, True)])
    assert json.loads(frame) == [call(ids[0], "a", params={"x": 1}), note("b"), call(ids[1], "c")]
    assert len(set(ids)) == 2
    assert len(take(rpc, [{"jsonrpc": "2.0", "id": id_, "result": id_} for id_ in ids])) == 2


def test_a_request_that_cannot_be_written_is_not_open() -> None:
    rpc = Rpc()
    with pytest.raises(TypeError):
        rpc.request("a", object())
    with pytest.raises(TypeError):
        rpc.batch([("a", None, True), ("b", object(), True)])
    with pytest.raises(ValueError, match="at least one"):
        rpc.batch([])
    assert [came for id_ in range(5) for came in take(rpc, {"jsonrpc": "2.0", "id": id_, "result": 1})] == []


# -- random input ---------------------------------------------------------------------------------------------

_floats = st.floats(allow_nan=False, allow_infinity=False)  # neither is JSON
_ids = st.one_of(st.integers(), st.text(), st.none(), st.booleans(), _floats, st.just([1]))
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | _floats | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_good_ids = st.integers(0, 5) | st.sampled_from(["a", "b"])
_calls = st.builds(lambda id_, params: call(id_, params=params), _good_ids, st.dictionaries(st.text(), _values))
_notes = st.builds(lambda params: note(params=params), st.lists(_values, max_size=2))
_cancels = st.builds(lambda id_: note("$/cancel_request", params={"requestId": id_}), _good_ids | _values)
_almost = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "1.0", 2, None]),
        "id": _ids,
        "method": st.sampled_from(["m", "$/cancel_request", 1, None]),
        "params": _values,
        "result": _values,
        "error": _values,
    },
)
_entries = st.one_of(_calls, _notes, _cancels, _almost, _values)
_messages = st.one_of(_entries, st.lists(_entries, max_size=6))


def _valid_calls(message: Any) -> list[Any]:
    """The ids of the requests in a message, told apart from the code under test."""

    def is_call(entry: Any) -> bool:
        return (
            isinstance(entry, dict)
            and entry.get("jsonrpc") == "2.0"
            and isinstance(entry.get("method"), str)
            and type(entry.get("id")) in (int, str)
            and (entry.get("params") is None or isinstance(entry["params"], dict | list))
        )

    entries = message if isinstance(message, list) else [message]
    return [entry["id"] for entry in entries if is_call(entry)]


@given(st.lists(_messages, max_size=8), st.randoms(use_true_random=False))
@many(120)
def test_each_request_is_answered_exactly_once_whatever_else_comes(messages: list[Any], dice: random.Random) -> None:
    rpc = Rpc()
    open_: list[Call] = []
    asked: list[Any] = []
    frames: list[Any] = []
    for message in messages:
        asked += _valid_calls(message)
        open_ += [came for came in take(rpc, message) if type(came) is Call]
        frames += sent(rpc)
        while open_ and dice.random() < 0.5:
            answered = open_.pop(dice.randrange(len(open_)))
            if dice.random() < 0.5:
                rpc.answer(answered, {"for": answered.id})
            else:
                rpc.fail(answered, RpcError(1, "no"))
            frames += sent(rpc)
    for last in open_:
        rpc.answer(last, None)
    frames += sent(rpc)
    answers = [entry for frame in frames for entry in (frame if isinstance(frame, list) else [frame])]
    read = [answer for answer in answers if answer.get("error", {}).get("code") != INVALID_REQUEST]
    ids = [answer["id"] for answer in read if answer["id"] is not None]
    assert sorted(map(repr, ids)) == sorted(map(repr, asked))
    assert rpc.open_calls == 0


@given(st.lists(_entries, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_a_batch_is_answered_by_at_most_one_frame_and_only_when_all_are_done(
    entries: list[Any], dice: random.Random
) -> None:
    rpc = Rpc()
    came = [one for one in take(rpc, entries) if type(one) is Call]
    dice.shuffle(came)
    for number, asked in enumerate(came):
        assert rpc.sends == [], f"sent before the last {len(came) - number} were done"
        rpc.answer(asked, {})
    frames = sent(rpc)
    assert len(frames) <= 1
    assert bool(frames) or not came
    for frame in frames:
        assert isinstance(frame, list)
        assert frame


@given(st.binary(max_size=200))
@many(500)
def test_random_bytes_get_at_most_one_error_and_nothing_else(frame: bytes) -> None:
    rpc = Rpc()
    came = rpc.receive(frame)
    frames = sent(rpc)
    assert len(frames) + len(came) <= 1


@given(_messages, st.data())
@many(120)
def test_damaged_messages_give_only_valid_frames(message: Any, data: st.DataObject) -> None:
    frame = bytearray(json.dumps(message, ensure_ascii=data.draw(st.booleans())).encode("utf-8", "surrogatepass"))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(frame)))
        frame[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    rpc = Rpc()
    for came in rpc.receive(bytes(frame)):
        if type(came) is Call:
            rpc.answer(came, came.params)
    sent(rpc)
    assert rpc.open_calls == 0


@pytest.mark.parametrize(
    ("message", "data", "shown"),
    [
        ("Internal error", {"details": "no credit"}, "Internal error: no credit"),
        ("Internal error", "no credit", "Internal error: no credit"),
        ("Internal error", {"message": " no credit "}, "Internal error: no credit"),
        ("", {"reason": "no credit"}, "no credit"),
        ("there is no credit", {"details": "no credit"}, "there is no credit"),
        ("Internal error", {"details": {"a": 1}}, "Internal error"),
        ("Internal error", None, "Internal error"),
    ],
)
def test_an_error_shows_the_reason_that_its_data_tells(message: str, data: Any, shown: str) -> None:
    error = RpcError(INTERNAL_ERROR, message, data)
    assert error.full_message == shown
    assert str(error) == f"{shown} ({INTERNAL_ERROR})"
    assert error.plain()["message"] == message, "what is sent on stays as it is"

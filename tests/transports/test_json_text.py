"""Reading JSON that is not clean: what is repaired, what is said of the rest, and what can still be read of it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.model.whole_text import has_halves, whole_value
from interlingua.transports.channel import TooLong, size
from interlingua.transports.json_text import (
    TooDeep,
    Unreadable,
    clean,
    decode,
    decode_as,
    decode_pieces,
    glimpse,
    members,
)


class Known(msgspec.Struct):
    text: str
    raw: msgspec.Raw = msgspec.Raw(b"null")


_known = msgspec.json.Decoder(Known).decode


def test_a_type_is_read_out_of_text_that_is_not_clean() -> None:
    read = decode_as(b'{"text":"a\\ud83d","raw":{"x":[NaN,"\xff"]}}', _known)
    assert (read.text, bytes(read.raw)) == ("a\ufffd", '{"x":[null,"\ufffd"]}'.encode())
    with pytest.raises(msgspec.ValidationError, match="Expected `str`"):
        decode_as(b'{"text":1}', _known)
    with pytest.raises(Unreadable, match="cut off at byte 9"):
        decode_as(b'{"text":"', _known)


def test_halves_are_kept_in_pieces_alone() -> None:
    assert decode_pieces(b'"a\\ud83d"', lambda _: True) == "a\ud83d"
    assert decode_pieces(b'"a\\ud83d"', lambda _: False) == "a\ufffd"
    assert decode_pieces("a\ud83d".join('""'), lambda _: True) == "a\ud83d"


@pytest.mark.parametrize(
    ("number", "value"),
    [
        ("1" * 308, int("1" * 308)), ("-" + "1" * 300, -int("1" * 300)), ("1" * 400, None), ("1" * 5000, None),
        ("1e308", 1e308), ("1e309", None), ("-1e309", None), ("NaN", None), ("-Infinity", None),
    ],
)  # fmt: skip
def test_numbers_are_kept_as_long_as_a_double_could_hold_them(number: str, value: Any) -> None:
    assert decode(f'{{"a": {number}, "b": "\\ud83d"}}')["a"] == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a":"\\u12', "the message is cut off at byte 10"), ('{"a":tr', "the message is cut off at byte 7"),
        ('{"a":1.', "the message is cut off at byte 7"), ('{"ä":"', "the message is cut off at byte 7"),
        ("[1,", "the message is cut off at byte 3"), ("  ", "the message is empty"),
        ('{"ä":x}', "the message is not JSON: expecting value at byte 6"),
        ("{} {}", "the message is not JSON: extra data at byte 3"),
        ("[" * 5000, "the message is nested too deeply"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(text: str, says: str) -> None:
    for data in (text, text.encode()):
        with pytest.raises(Unreadable) as caught:
            decode(data)
        assert str(caught.value) == says
    assert issubclass(TooDeep, Unreadable)


def test_a_line_that_is_too_long_says_so() -> None:
    line = TooLong.of(b'{"jsonrpc":"2.0","method":"m","params":{"a":"' + b"x" * 9000 + b'"},"id":"me"}', 1 << 24)
    assert (glimpse(line).id, glimpse(line).kind) == ("me", "request")
    with pytest.raises(Unreadable, match="line longer than 16 MiB"):
        decode(line)
    assert [size(count) for count in (3 << 30, 1 << 24, 2048, 1000)] == ["3 GiB", "16 MiB", "2 KiB", "1000 bytes"]


_MESSAGE = st.dictionaries(
    st.sampled_from(["id", "method", "params", "result", "error", "jsonrpc", 'odd "key\\', "x"]),
    st.integers() | st.text(max_size=5) | st.recursive(
        st.integers() | st.just({"id": 99}) | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=4,
    ),
    max_size=6,
)  # fmt: skip


@given(_MESSAGE, st.data())
def test_of_a_message_that_is_cut_nothing_is_read_that_is_not_there(
    message: dict[str, Any], data: st.DataObject
) -> None:
    text = json.dumps(message).encode()
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    for key, value in members(cut, "id").items():
        assert key in message
        assert value is None or value == message[key]
    whole = glimpse(text + b" x")  # all of it is there, and it cannot be read
    id_ = message.get("id")
    assert whole.id == (id_ if type(id_) in (int, str) else None)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_as_clean_json_or_said_to_be_none(data: bytes) -> None:
    glimpse(data)
    try:
        value = decode(data)
    except Unreadable:
        return
    assert not has_halves(value)
    assert msgspec.json.decode(clean(data)) == value


@given(
    st.recursive(st.text("ab\ud83d\ude00\u00e9", max_size=4) | st.integers(), lambda inner: st.lists(inner, max_size=4))
)
def test_halves_anywhere_are_replaced(value: Any) -> None:
    assert decode(json.dumps(value)) == whole_value(json.loads(json.dumps(value)))

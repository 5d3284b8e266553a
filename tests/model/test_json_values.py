"""What counts as JSON, with the path of what does not; schemas; hashes; the chain."""

from __future__ import annotations

import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.model import hash_chain
from interlingua.model import json_values as values
from interlingua.model.card import AgentCard
from interlingua.model.content import DataPart, FilePart, Message, TextPart, ToolResultPart, text_of
from interlingua.model.errors import (
    AgentCrashed,
    AgentError,
    ChildFailed,
    DefinitionError,
    ErrorInfo,
    InterlinguaError,
    Invalid,
    InvalidInput,
    StepFailed,
    TooLarge,
    all_errors,
    describe,
)
from interlingua.model.events import EMISSIONS, KINDS, Body, body_decoder, body_encoder
from interlingua.model.schemas import Validator, check_refs_local

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(2**1023), 2**1023)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(json_values)
def test_json_passes_and_survives_being_written(value: Any) -> None:
    values.check(value)
    assert values.decode(values.encode(value)) == value
    assert values.copy(value) == value
    assert values.contains(value, value)


@given(json_values)
def test_equal_values_have_equal_digests_whatever_the_order_of_keys(value: Any) -> None:
    def reversed_keys(v: Any) -> Any:
        if isinstance(v, dict):
            return {k: reversed_keys(v[k]) for k in reversed(list(v))}
        return [reversed_keys(x) for x in v] if isinstance(v, list) else v

    assert values.digest(value) == values.digest(reversed_keys(value))


@pytest.mark.parametrize(
    ("value", "path", "says"),
    [
        ({"a": [1, {"b": float("nan")}]}, "/a/1/b", "nan"),
        ({"a": float("-inf")}, "/a", "inf"),
        ("\ud800", "", "surrogate"),
        (["fine", "\udc00"], "/1", "surrogate"),
        ({"\udc00": 1}, "", "surrogate"),
        ({"a": {1: 2}}, "/a", "key 1"),
        ({"a": {1, 2}}, "/a", "set"),
        ((1, 2), "", "tuple"),
        ({"a": b"x"}, "/a", "bytes"),
        (2**1024, "", "1.8e308"),
        ({"a": [-(2**1024)]}, "/a/0", "1.8e308"),
    ],
)
def test_what_is_no_json_is_named_with_its_path(value: Any, path: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        values.check(value, InvalidInput)
    assert caught.value.path == path


def test_halves_of_characters_are_let_through_or_replaced_where_that_is_wanted(caplog: Any) -> None:
    odd = {"a": ["fine", "x\ud83d"], "\udc00": 1}
    assert values.check(odd, halves=True)
    assert not values.check({"a": ["fine", "\U0001f600"]}, halves=True)
    assert values.clean(odd, what="the result") == {"a": ["fine", "x\ufffd"], "\ufffd": 1}
    assert "the result: a lone surrogate was replaced by U+FFFD" in caplog.text
    whole = {"a": "\U0001f600"}
    assert values.clean(whole) is whole


def test_a_set_is_a_list_in_an_order_of_its_own() -> None:
    class Pair(msgspec.Struct, frozen=True):
        one: Any
        other: Any = None

    for first, second in ([0, 8], [8, 0]), ([8, 0], [0, 8]):
        numbers = set[int]()
        for number in first:
            numbers.add(number)
        pairs = {Pair(number) for number in second}
        value = {"n": numbers, "p": [Pair(pairs, (numbers, 1))], "m": {"text", None, 1, ("a", 2)}}
        assert values.to_plain(value) == {
            "n": [0, 8],
            "p": [{"one": [{"one": 0, "other": None}, {"one": 8, "other": None}], "other": [[0, 8], 1]}],
            "m": ["text", 1, ("a", 2), None],
        }
        assert value["n"] is numbers
        assert value["p"][0].other[0] is numbers, "what was given is as it was"


def test_nesting_has_a_floor() -> None:
    def nest(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = {"a": value}
        return value

    values.check(nest(values.MAX_DEPTH))
    with pytest.raises(TooLarge):
        values.check(nest(values.MAX_DEPTH + 1))
    with pytest.raises(TooLarge):
        values.check(nest(100_000))


def test_containment_is_by_member_and_by_type() -> None:
    whole = {"a": 1, "b": {"c": [1, 2], "d": True}}
    assert values.contains(whole, {"b": {"d": True}})
    assert not values.contains(whole, {"b": {"d": 1}})
    assert not values.contains(whole, {"b": {"c": [1]}})
    assert not values.contains(whole, {"x": None})


def test_a_schema_says_where_a_value_does_not_fit() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    check = Validator(schema, what="input")
    check.check({"a": [1, 2]}, InvalidInput)
    with pytest.raises(InvalidInput, match=r"input: .*integer.* \(at /a/1\)") as caught:
        check.check({"a": [1, "x"]}, InvalidInput)
    assert caught.value.path == "/a/1"
    assert caught.value.info().details["path"] == "/a/1"


def test_a_schema_that_is_none_or_looks_outside_is_refused() -> None:
    with pytest.raises(DefinitionError):
        Validator({"type": 5}, what="input")
    with pytest.raises(DefinitionError, match=r"https://example.org"):
        check_refs_local({"properties": {"a": {"$ref": "https://example.org/x"}}}, "input")
    check_refs_local({"properties": {"a": {"$ref": "#/$defs/x"}}}, "input")


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [cls.code for cls in all_errors()]
    assert len(codes) == len(set(codes))
    assert InterlinguaError in all_errors()


def test_the_details_of_an_error_fit_their_schema() -> None:
    inner = ErrorInfo("x", "y")
    samples = [InvalidInput("no", path="/a"), ChildFailed("no", error=inner, run="r"), StepFailed("s", inner)]
    for error in samples:
        assert error.details_schema is not None
        Validator(error.details_schema, what="details").check(error.info().details, Invalid)
    assert all(cls.details_schema is None or cls.details_schema["type"] == "object" for cls in all_errors())


def test_exceptions_of_others_are_described_by_type_and_text() -> None:
    assert describe(ValueError("no")).message == "ValueError: no"
    assert describe(KeyError()).message == "KeyError"
    assert describe(ValueError("no")).code == AgentCrashed.code

    class Mine(AgentError):
        code = "mine"
        transient = True

    told = describe(Mine("x", details={"a": 1}))
    assert (told.code, told.transient, told.details) == ("mine", True, {"a": 1})


def test_details_carry_the_path() -> None:
    assert Invalid("x", path="/a").info().details == {"path": "/a"}


def test_content_survives_being_written() -> None:
    message = Message(
        "user",
        [
            TextPart("a"),
            FilePart(data=b"\x00\xff", media_type="image/png"),
            FilePart(url="https://example.org/x", name="x"),
            DataPart([1, {"a": None}]),
            ToolResultPart("read", {"ok": True}, server="Docs"),
            TextPart("b"),
        ],
    )
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message
    assert message.text == "ab" == text_of(message.parts)


def test_every_kind_of_event_has_its_own_tag_and_is_written_and_read() -> None:
    assert len(set(KINDS.values())) == len(Body.__args__)
    assert set(EMISSIONS) <= set(KINDS)
    for kind, tag in KINDS.items():
        fields = {f.name: _sample(f.type) for f in msgspec.structs.fields(kind) if f.required}
        body = kind(**fields)
        written = body_encoder.encode(body)
        assert msgspec.json.decode(written)["kind"] == tag
        assert type(body_decoder.decode(written)) is kind


def _sample(type_: Any) -> Any:
    samples: dict[Any, Any] = {str: "x", int: 1, bool: True, Any: {"a": 1}}
    if type_ in samples:
        return samples[type_]
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return type_(**{f.name: _sample(f.type) for f in msgspec.structs.fields(type_) if f.required})
    if typing.get_origin(type_) is dict:
        return {}
    if isinstance(type_, type):
        return next(iter(type_))  # type: ignore[call-overload]
    return typing.get_args(type_)[0] if typing.get_origin(type_) is typing.Literal else []


def test_the_chain_names_the_first_event_that_was_touched() -> None:
    head, rows = hash_chain.GENESIS, []
    for seq in range(1, 6):
        body = hash_chain.body_hash(f"body {seq}".encode())
        head = hash_chain.link(head, "run", seq, "delta", 1000 + seq, body)
        rows.append(("run", seq, "delta", 1000 + seq, body, head))
    assert hash_chain.first_broken(rows) is None
    for place in range(5):
        for column, other in ((2, "thought"), (3, 5), (4, b"\x00" * 32), (5, b"\x00" * 32)):
            touched = list(rows)
            row = list(touched[place])
            row[column] = other
            touched[place] = tuple(row)  # type: ignore[call-overload]
            assert hash_chain.first_broken(touched) == place + 1
    assert hash_chain.first_broken(rows[:2] + rows[3:]) == 3


def test_a_card_is_known_by_name_and_version() -> None:
    assert AgentCard("a", "1.2.3").key == "a@1.2.3"

"""Answers as people type them, and the shapes that schemas ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pytest

from interlingua import Option, Verdict
from interlingua.model.errors import InvalidAnswer
from interlingua.terminal import times, typed_answers


@dataclass
class Person:
    name: str
    age: int | None = None


@dataclass
class Nested:
    who: Person
    mood: Literal["good", "bad"]


def schema(type_: Any) -> dict[str, Any]:
    (root,), definitions = msgspec.json.schema_components([type_], ref_template="#/$defs/{name}")
    return {**root, "$defs": definitions}


@pytest.mark.parametrize(
    ("type_", "shape"),
    [
        (bool, typed_answers.YesNo(None, None)),
        (Verdict, typed_answers.YesNo("approved", "reason")),
        (Literal["a", "b"], typed_answers.Pick(None, [("a", "a"), ("b", "b")])),
    ],
)
def test_shapes(type_: Any, shape: typed_answers.Shape) -> None:
    assert typed_answers.shape_of(schema(type_)) == shape


def test_options_make_a_choice_of_any_schema_with_one_place_for_it() -> None:
    options = [Option("x", "The X")]
    assert typed_answers.shape_of({"type": "string"}, options) == typed_answers.Pick(None, [("x", "The X")])
    one = {"type": "object", "properties": {"pick": {"type": "string"}}, "required": ["pick"]}
    assert typed_answers.shape_of(one, options) == typed_answers.Pick("pick", [("x", "The X")])


YES_OR_NO = [Option("yes", "Yes", "allow_once"), Option("no", "No", "reject_once")]
SHIP = [Option("ship", "Ship it", "allow_once"), Option("hold", "Hold it", "reject_once")]


@pytest.mark.parametrize(
    ("options", "text", "reason", "value"),
    [
        (YES_OR_NO, "y", None, {"approved": True}),
        (YES_OR_NO, "no, too dear", None, {"approved": False, "reason": "too dear"}),
        (YES_OR_NO, "no", "too dear", {"approved": False, "reason": "too dear"}),
        (SHIP, "ship", None, {"approved": True}),
        (SHIP, "Hold it", None, {"approved": False}),
        (SHIP, "2", "too dear", {"approved": False, "reason": "too dear"}),
        (SHIP, '{"approved": false, "reason": "too dear"}', None, {"approved": False, "reason": "too dear"}),
    ],
)
def test_options_that_mean_yes_or_no_are_answered_so(
    options: list[Option], text: str, reason: str | None, value: Any
) -> None:
    assert typed_answers.answer_from(schema(Verdict), options, text, reason) == value


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (Verdict, "y", {"approved": True}),
        (Verdict, "No, because", {"approved": False, "reason": "because"}),
        (Verdict, '{"approved": true}', {"approved": True}),
        (bool, "n", False),
        (Literal["a", "b"], "2", "b"),
        (Literal["a", "b"], "b", "b"),
        (Literal[10, 20], "1", 10),
        (Literal[10, 20], "20", 20),
        (Person, "Ada", {"name": "Ada"}),
        (Person, '{"name": "Ada", "age": null}', {"name": "Ada", "age": None}),
        (Nested, '{"who": {"name": "Ada"}, "mood": "good"}', {"who": {"name": "Ada"}, "mood": "good"}),
    ],
)
def test_answers_given_in_one_piece(type_: Any, text: str, value: Any) -> None:
    assert typed_answers.answer_from(schema(type_), [], text) == value


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (Verdict, "perhaps"),
        (Verdict, '{"approved": "yes"}'),
        (Literal["a", "b"], "3"),
        (Nested, "text"),
        (Nested, '{"who": {}, "mood": "good"}'),
    ],
)
def test_answers_that_do_not_fit(type_: Any, text: str) -> None:
    with pytest.raises(InvalidAnswer):
        typed_answers.answer_from(schema(type_), [], text)


@pytest.mark.parametrize(
    ("member", "text", "value"),
    [
        ({"type": "string"}, "12", "12"),
        ({"type": "integer"}, " 12 ", 12),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "number"}, "-2", -2),
        ({"type": "boolean"}, "yes", True),
        ({"enum": ["a", "b"]}, "2", "b"),
        ({"type": "array", "items": {"type": "integer"}}, "1, 2,3", [1, 2, 3]),
        ({"type": "array", "items": {"type": "string"}}, '["a, b"]', ["a, b"]),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
    ],
)
def test_fields(member: dict[str, Any], text: str, value: Any) -> None:
    read = typed_answers.read_field(member, text)
    assert (read, type(read)) == (value, type(value))


def test_times_as_people_say_them() -> None:
    minute = 60_000_000
    said = {0: "just now", 0.5: "30 s ago", 3: "3 min ago", 150: "2 h ago", 3 * 1440: "3 d ago", -1: "just now"}
    for minutes, words in said.items():
        assert times.ago(0, int(minutes * minute)) == words
    assert times.span(1_500_000) == "1.5 s"
    assert times.span(61 * minute) == "1 h 1 min"
    assert times.iso(1_700_000_000_000_001) == "2023-11-14T22:13:20.000001Z"

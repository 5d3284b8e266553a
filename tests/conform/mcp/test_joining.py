"""How the deltas of a server are judged: the algorithm, which rules were needed, and which one a server got wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.model.delta import DeltaError, Joiner
from interlingua_conform.mcp.joining import MISTAKES, ORDERED, TYPES, joined, judged
from interlingua_conform.mcp.shapes import strange
from tests.kit.examples import many

LEAVES = st.none() | st.integers(-3, 3) | st.sampled_from(["", "a", "bc"])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
)
DELTAS = st.lists(st.dictionaries(st.sampled_from("xyz"), VALUES, max_size=3), max_size=5)


@many(300)
@given(DELTAS)
def test_deltas_join_as_the_model_joins_them(deltas: list[Any]) -> None:
    """Written twice from one text, with the same result: what one of them got wrong would be seen."""
    joiner = Joiner({})
    found = joined(deltas)
    for delta in deltas:
        try:
            joiner.add(delta)
        except DeltaError:
            assert found.problem is not None
            return
    assert found.problem is None
    assert found.value == joiner.value


@pytest.mark.parametrize(
    ("rule", "deltas", "output"),
    [
        ("strings-concatenate", [{"a": "x"}, {"a": "xy"}], {"a": "xy"}),
        ("numbers-add", [{"a": 1}, {"a": 3}], {"a": 3}),
        ("arrays-join-edge", [{"a": ["x"]}, {"a": ["y"]}], {"a": ["x", "y"]}),
        ("arrays-append-rest", [{"a": ["x"]}, {"a": [None, "y"]}], {"a": ["x"]}),
        ("exception-append-blind", [{"a": ["x"]}, {"a": [None, "y"]}], {"a": ["x", None, "y"]}),
        ("exception-empty-output", [{"a": []}, {"a": [None, "y"]}], {"a": [None, "y"]}),
        ("exception-null-output", [{"a": None}, {"a": [None, "y"]}], {"a": [None, "y"]}),
        ("exception-undefined-output", [{"a": [None, "y"]}], {"a": [None, "y"]}),
        ("empty-array-is-neutral", [{"a": ["x"]}, {"a": []}], {"a": []}),
        ("null-is-neutral", [{"a": "x"}, {"a": None}], {"a": None}),
        ("objects-common-keys", [{"a": ["x", "z"]}, {"a": ["y"]}], {"a": ["y"]}),
        ("objects-merge", [{"a": {"b": "x"}}, {"a": {"c": "y"}}], {"a": {"c": "y"}}),
        (ORDERED, [{"a": "b"}, {"a": "a"}], {"a": "ab"}),
        (TYPES, [{"a": "b"}, {"a": 1}], {"a": "b1"}),
    ],
)
def test_the_rule_that_was_got_wrong_is_named(rule: str, deltas: list[Any], output: Any) -> None:
    found = judged(deltas, output)
    assert list(found.wrong) == [rule]
    assert rule in found.needed
    assert found.problem


def test_every_mistake_is_of_a_rule_that_is_looked_at() -> None:
    from interlingua_conform.mcp import suite

    assert {f"mcp.delta.{rule}" for rule in (*MISTAKES, ORDERED, TYPES)} == {
        name for name in suite.ids if name.startswith("mcp.delta.")
    }


@pytest.mark.parametrize(
    ("deltas", "output"),
    [
        ([{"a": {"l": [None, "x"]}}], {"a": {"l": ["x"]}}),  # what lies inside of something new is new
        ([{"a": {"l": [None, "x"]}}], {"a": {"l": [None, "x"]}}),  # or only what meets nothing itself
        ([{"a": "x", "b": None}], {"a": "x"}),
        ([{"a": 0.1}, {"a": 0.2}], {"a": 0.3}),
        ([{"a": 1}, {"a": 2.0}], {"a": 3}),
        ([{"a": True}, {"a": False}], {"a": False}),  # of which the text does not speak
        ([{"a": True}, {"a": False}], {"a": True}),
    ],
)
def test_what_can_be_read_in_two_ways_is_right_in_both(deltas: list[Any], output: Any) -> None:
    assert judged(deltas, output).problem == ""


def test_a_mistake_that_nothing_explains_is_of_no_rule() -> None:
    found = judged([{"a": "x"}, {"a": "y"}], {"a": "something else"})
    assert found.wrong == {}
    assert found.problem == 'the deltas join to {"a": "xy"}, and the output is {"a": "something else"}'


def test_numbers_and_depths_beyond_all_measure_are_told() -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    assert judged([{"a": deep}, {"a": deep}], {"a": 1}).problem
    assert "no number any more" in judged([{"a": 10**400}, {"a": 0.5}], {"a": 1}).problem
    assert judged([{"a": 10**400}], {"a": 0.5}).problem


OUTPUT = {
    "type": "object",
    "properties": {
        "text": {"type": "string"}, "log": {"type": "array", "items": {"$ref": "#/$defs/Log"}},
        "score": {"anyOf": [{"type": "number"}, {"type": "null"}]}, "more": {"type": "object"},
    },
    "$defs": {"Log": {"type": "object", "properties": {"level": {"type": "string"}}, "additionalProperties": False}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("delta", "wrong"),
    [
        ({"text": "x"}, None),
        ({"log": [None, {"level": "x"}, {}], "score": None, "more": {"anything": [1]}}, None),
        ({"other": 1}, "$.other is no member of outputSchema"),
        ({"extra": 1}, None),  # the output has it, whatever its schema says
        ({"text": 1}, "$.text is a number, where outputSchema has a string"),
        ({"score": "x"}, "$.score is a string, where outputSchema has a number"),
        ({"log": [{"level": 1}]}, "$.log[0].level is a number, where outputSchema has a string"),
        ({"log": [{"depth": 1}]}, "$.log[0].depth is no member of outputSchema"),
    ],
)
def test_a_delta_follows_the_schema_of_the_output(delta: Any, wrong: str | None) -> None:
    assert strange(delta, {"text": "x", "extra": 1}, OUTPUT) == wrong


@pytest.mark.parametrize("schema", [None, 5, {"$ref": "#"}, {"$ref": "#/nowhere"}, {"properties": 5}, {"type": [5]}])
def test_a_delta_cannot_be_strange_to_what_is_no_schema(schema: Any) -> None:
    assert strange({"a": 1}, {}, schema) is None

"""Plain schemas: what is checked without the schema library is checked as the library would."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.model import simple_schemas
from interlingua.model.errors import DefinitionError, InvalidInput
from interlingua.model.schemas import Validator

NAMES = st.sampled_from(["a", "b", "c"])
SCALARS: st.SearchStrategy[Any] = st.sampled_from(["string", "integer", "number", "boolean", "null"]).map(
    lambda kind: {"type": kind}
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.5, 1.0]) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "required": st.lists(NAMES, unique=True, max_size=2),
            "additionalProperties": st.booleans() | inner,
            "title": st.just("something"),
        },
    )


SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    SCALARS | st.just({}) | st.just({"description": "anything", "default": 3}),
    lambda inner: (
        _objects(inner)
        | st.fixed_dictionaries({"type": st.just("array")}, optional={"items": inner})
        | st.lists(inner, min_size=1, max_size=3).map(lambda schemas: {"anyOf": schemas})
    ),
    max_leaves=6,
)


def _whole(value: Any) -> bool:
    """Whether a float is in it that JSON Schema may take for an integer."""
    if isinstance(value, dict | list):
        return any(map(_whole, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and value.is_integer()


@given(SCHEMAS, VALUES)
def test_a_plain_schema_is_checked_as_the_library_does(schema: Any, value: Any) -> None:
    check = simple_schemas.compile_check(schema)
    assert check is not None
    fits = jsonschema_rs.validator_for(schema).is_valid(value)
    if _whole(value):
        assert fits or not check(value)  # left to the library where it is not sure
    else:
        assert check(value) is fits


@given(SCHEMAS, VALUES)
def test_a_validator_says_what_the_library_says(schema: Any, value: Any) -> None:
    validator = Validator(schema, what="input")
    if jsonschema_rs.validator_for(schema).is_valid(value):
        validator.check(value, InvalidInput)
    else:
        with pytest.raises(InvalidInput):
            validator.check(value, InvalidInput)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "text"},
        {"type": ["string", "null"]},
        {"type": "string", "minLength": 1},
        {"type": "object", "required": "a"},
        {"type": "object", "required": ["a", "a"]},
        {"type": "object", "required": [1]},
        {"type": "object", "properties": []},
        {"type": "object", "properties": {"a": {"enum": [1]}}},
        {"type": "object", "additionalProperties": {"const": 1}},
        {"type": "object", "additionalProperties": None},
        {"type": "array", "items": [{}]},
        {"type": "array", "maxItems": 1},
        {"anyOf": []},
        {"anyOf": [{"$ref": "#"}]},
        {"anyOf": [{}], "type": "string"},
        {"title": 1},
        {"examples": 1},
        {"properties": {}},
        {"$ref": "#/$defs/a"},
    ],
)
def test_what_is_not_plain_is_left_to_the_library(schema: Any) -> None:
    assert simple_schemas.compile_check(schema) is None


def test_a_schema_that_is_nested_deeply_is_left_to_the_library() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(50):
        schema = {"type": "array", "items": schema}
    assert simple_schemas.compile_check(schema) is None
    with pytest.raises(InvalidInput):
        Validator(schema, what="input").check([1], InvalidInput)


@pytest.mark.parametrize("schema", [{"type": "object", "required": "a"}, {"type": "text"}, {"title": 1}])
def test_a_broken_schema_is_refused_when_it_is_defined(schema: Any) -> None:
    with pytest.raises(DefinitionError):
        Validator(schema, what="input")


def test_an_agent_with_plain_schemas_is_defined_without_the_library() -> None:
    code = """
import sys
import interlingua as il

@il.agent
async def echo(text: str, times: int = 1) -> str:
    return text * times

echo.check_input.check({"text": "hello", "times": 2}, ValueError)
print("jsonschema_rs" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

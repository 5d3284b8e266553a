"""Where something is wrong is said as a JSON pointer, whatever the names on the way are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from interlingua.model import json_values
from interlingua.model.errors import Invalid, InvalidInput, InvalidRequest
from interlingua.model.pointers import first_step, pointer, split_message, truncate
from interlingua.model.schemas import Validator
from interlingua.transports.http.body import decode_json


def resolve(value: Any, path: str) -> Any:
    assert path == "" or path.startswith("/")
    for step in path.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


@pytest.mark.parametrize("name", ["", "/", "//", "a/b", "~", "~1", "~0/", ".", "...", "[0]", "$", "ä b"])
def test_any_name_can_be_pointed_at(name: str) -> None:
    value = {"outer": [{name: {name: "wrong"}}]}
    assert resolve(value, pointer("outer", 0, name, name)) == "wrong"
    assert first_step(pointer(name, "x")) == name
    numbers = {"additionalProperties": {"additionalProperties": {"type": "number"}}}
    schema = {"properties": {"outer": {"items": numbers}}}
    with pytest.raises(InvalidInput) as refused:
        Validator(schema, what="input").check(value, InvalidInput)
    if name:  # the library for schemas leaves empty names out of its paths
        assert resolve(value, refused.value.path) == "wrong"
    odd = {"outer": [{name: {name: float("nan")}}]}
    with pytest.raises(Invalid) as refused_value:
        json_values.check(odd)
    assert str(resolve(odd, refused_value.value.path)) == "nan"


@pytest.mark.parametrize("value", [{}, {"name": 7}, {"name": "x", "": 7}])
def test_the_value_itself_is_named_in_words(value: Any) -> None:
    schema = {"required": ["name"], "properties": {"name": {"type": "string"}, "": {"type": "string"}}}
    with pytest.raises(InvalidInput) as refused:
        Validator(schema, what="input").check(value, InvalidInput)
    where = refused.value.path or "the top level"
    assert refused.value.message.endswith(f"(at {where})")
    with pytest.raises(Invalid) as refused_value:
        json_values.check(float("nan"))
    assert "at the top level is not a JSON number" in refused_value.value.message


def test_a_pointer_is_cut_between_two_steps() -> None:
    assert truncate("/abc/def", 8) == "/abc/def"
    assert truncate("/abc/def", 6) == "/abc"
    assert truncate("/a~1b", 3) == ""


class Inner(msgspec.Struct):
    count: int = 0


class Body(msgspec.Struct):
    name: str
    things: list[Inner] = []
    named: dict[str, Inner] = {}
    numbered: dict[int, int] = {}
    input: dict[str, dict[str, int]] = {}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b"[]", ""),
        (b"{}", ""),
        (b'{"name": 1}', "/name"),
        (b'{"name": "", "things": [{}, {"count": "x"}]}', "/things/1/count"),
        (b'{"name": "", "named": {"a/b": {"count": "x"}}}', "/named"),
        (b'{"name": "", "named": {"a": 1}}', "/named"),
        (b'{"name": "", "numbered": {"x": 1}}', "/numbered"),
        (b'{"name": "", "input": {"a": {"b": "x"}}}', "/input"),
    ],
)
def test_a_body_that_does_not_fit_is_pointed_into(body: bytes, path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_json(body, Body)
    assert refused.value.path == path
    assert "..." not in refused.value.message
    assert "$" not in refused.value.message


def test_a_message_without_a_path_stays_as_it_is() -> None:
    assert split_message("Expected `int`, got `str`") == ("Expected `int`, got `str`", "")

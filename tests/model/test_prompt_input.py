"""What somebody says, as the input of a run: which of the objects in it are input, and which go along with it."""

from __future__ import annotations

from typing import Any

import pytest

import interlingua as il
from interlingua.model.content import DataPart, TextPart
from interlingua.model.prompt_input import add_data_parts, prompt_input


@il.agent
async def closed(numbers: list[int], note: str = "") -> str:
    return note


@il.agent
async def takes_more(numbers: list[int], note: str = "", **more: Any) -> str:
    return note


@il.agent
async def speaks(text: str, **more: Any) -> str:
    return text


WHOLE = {"numbers": [1], "note": "n", "more": {"z": 1}}


def test_an_agent_that_takes_more_than_it_names_gets_all_of_an_object() -> None:
    assert prompt_input(takes_more.card, [DataPart(WHOLE)]) == WHOLE
    assert add_data_parts(takes_more.card, {}, [DataPart(WHOLE)]) == WHOLE
    assert prompt_input(speaks.card, [DataPart({"text": "hi", "more": 1})]) == {"text": "hi", "more": 1}


@pytest.mark.parametrize("beside", [{"more": 1}, {"note": "n", "more": 1}])
def test_an_object_that_cannot_be_its_input_goes_along_with_it(beside: dict[str, Any]) -> None:
    given = [DataPart({"numbers": [1]}), DataPart(beside)]
    assert prompt_input(takes_more.card, given) == {"numbers": [1]}
    assert prompt_input(closed.card, given) == {"numbers": [1]}
    assert add_data_parts(takes_more.card, {"numbers": [1]}, [DataPart(beside)]) == {"numbers": [1]}


def test_one_who_takes_text_and_more_takes_no_object_that_has_nothing_it_names() -> None:
    assert prompt_input(speaks.card, [TextPart("hi"), DataPart({"more": 1})]) == {"text": "hi"}

"""Rows: the sentence that each kind of mistake gets, what may be left out, and what shows nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from interlingua_conform.base import Broken, NotApplicable, Suite, expect
from interlingua_conform.rows import Played, Row, Source, add


def source(seen: Any, **more: Any) -> Source:
    async def play(driver: object) -> Any:
        return seen

    return Source(play, "the card", **more)


def _even(value: int, where: str) -> None:
    expect(value % 2 == 0, f"{where} is {value}, which is odd")


CARD = {"name": "echo", "count": 3, "on": True, "tags": ["a"], "nested": {"inner": "x"}, "blank": " ", "none": None}
HEX = re.compile("[0-9a-f]+")


@pytest.mark.parametrize(
    "row",
    [
        Row("x", source(CARD), "name", str, filled=True, equals="echo", one_of=("echo", "other")),
        Row("x", source(CARD), "nested.inner", str),
        Row("x", source(CARD), "on", bool, equals=True),
        Row("x", source(CARD), "tags", list, items=str),
        Row("x", source(CARD), has=("name", "count")),
        Row("x", source("beef"), matches=HEX, form="hexadecimal number"),
        Row("x", source([CARD, {"name": "b"}], each=True), "name", str),
        Row("x", source([CARD, {}], each=True), "count", int, optional=True),
        Row("x", source([("first", {"n": 4})], each=True, value=lambda pair: pair[1]), "n", fits=_even),
    ],
)  # fmt: skip
async def test_a_row_passes_where_the_value_is_as_it_has_to_be(row: Row) -> None:
    await row.check(None)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (Row("x", source(CARD), "missing"), "the card has no missing"),
        (Row("x", source(CARD), "nested.missing"), "the card has no nested.missing"),
        (Row("x", source(CARD), "name", int), "name of the card is a string, not an integer"),
        (Row("x", source([]), kind=dict), "what came of the card is an array, not an object"),
        (Row("x", source(CARD), "blank", str, filled=True), "blank of the card is empty"),
        (Row("x", source(CARD), "name", equals="other"), "name of the card is echo, not other"),
        (Row("x", source(CARD), "on", equals=1), "on of the card is true, not 1"),
        (Row("x", source(CARD), "name", one_of=("a", "b")), "name of the card is echo, which is none of a, b"),
        (Row("x", source(CARD), "name", matches=HEX, form="number"), "name of the card is echo, which is no number"),
        (Row("x", source(CARD), "tags", list, items=dict), "tags of the card has an entry that is not an object: a"),
        (Row("x", source({"n": [True]}), "n", items=int), "n of the card has an entry that is not an integer: true"),
        (Row("x", source(CARD), has=("name", "gone", "lost")), "the card has no gone, lost"),
        (Row("x", source(CARD), "count", fits=_even), "count of the card is 3, which is odd"),
        (Row("x", source([CARD, {}], each=True), "name"), "the card has no name"),
        (Row("x", source({"on": None}), "on", bool, optional=True), "on of the card is null, not a boolean"),
        (Row("x", source({}), "nested.inner", optional=True), "the card has no nested.inner"),
        (Row("x", source(7), "name", optional=True), "the card has no name"),
    ],
)
async def test_a_row_says_what_is_wrong(row: Row, said: str) -> None:
    with pytest.raises(Broken) as broken:
        await row.check(None)
    assert str(broken.value).startswith(said)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (Row("x", source({}), "on", optional=True), "on is nowhere to be seen, and may be left out"),
        (Row("x", source({"on": None}), "on", optional=True, null=True), "on is nowhere to be seen"),
        (Row("x", source([{}, {}], each=True), "on", optional=True), "on is nowhere to be seen"),
        (Row("x", source([], each=True), "on"), "there is none to look at"),
    ],
)
async def test_a_row_that_sees_nothing_does_not_apply(row: Row, said: str) -> None:
    with pytest.raises(NotApplicable, match=said):
        await row.check(None)


async def test_each_entry_has_a_name_of_its_own() -> None:
    row = Row("x", source([("first", {"n": 1}), ("second", {})], each=True, value=lambda pair: pair[1]), "n")
    named = Row("x", Source(row.source.play, lambda pair: pair[0], each=True, value=lambda pair: pair[1]), "n")
    with pytest.raises(Broken, match=r"^second has no n"):
        await named.check(None)


async def test_rows_are_checks_of_a_suite() -> None:
    played: list[object] = []

    async def scene(driver: object) -> None:
        played.append(driver)

    suite: Suite[Any] = Suite("x", lambda subject: pytest.fail("nobody connects"))
    add(suite, Row("x.a x.b", source(CARD), "name"), Played("x.c", scene), calm=True)
    assert [(check.ids, check.calm) for check in suite.checks] == [(("x.a", "x.b"), True), (("x.c",), True)]
    for check in suite.checks:
        await check.function("the driver")
    assert played == ["the driver"]

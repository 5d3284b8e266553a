"""Reads queries: numbers, seconds, flags, choices, times, cursors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from interlingua.doors import query
from interlingua.model.errors import InvalidRequest

Read = Callable[[QueryParams], Any]
READERS: dict[str, Read] = {
    "number": lambda asked: query.number(asked, "x", 7, 1, 100),
    "lowered": lambda asked: query.number(asked, "x", 7, 1, 100, lowers=True),
    "seconds": lambda asked: query.seconds(asked, "x", None),
    "at most": lambda asked: query.seconds(asked, "x", 5.0, 60.0),
    "flag": lambda asked: query.flag(asked, "x"),
    "on": lambda asked: query.flag(asked, "x", True),
    "choice": lambda asked: query.choice(asked, "x", ("all", "here", "there"), "all"),
    "time": lambda asked: query.time(asked, "x"),
    "cursor": lambda asked: query.cursor(asked, "x"),
}


@pytest.mark.parametrize(
    ("reader", "text", "value"),
    [
        ("number", "", 7), ("number", "x=1", 1), ("number", "x=100", 100),
        ("lowered", "x=101", 100), ("lowered", "x=999999999999999", 100),
        ("seconds", "", None), ("seconds", "x=0", 0.0), ("seconds", "x=.5", 0.5), ("seconds", "x=1e3", 1000.0),
        ("at most", "", 5.0), ("at most", "x=60", 60.0),
        ("flag", "", False), ("flag", "x=True", True), ("flag", "x=off", False),
        ("on", "", True), ("on", "x=no", False),
        ("choice", "", "all"), ("choice", "x=there", "there"),
        ("time", "", None), ("time", "x=1970-01-01T00:00:01Z", 1_000_000), ("time", "x=1970-01-01T00:00:01", 1_000_000),
        ("time", "x=1970-01-01t02:00:01.5%2B02:00", 1_500_000), ("time", "x=1.25", 1_250_000),
        ("cursor", "", 0), ("cursor", f"x={query.cursor_of(30)}", 30),
    ],
)  # fmt: skip
def test_a_value_is_read(reader: str, text: str, value: Any) -> None:
    assert READERS[reader](QueryParams(text)) == value


@pytest.mark.parametrize(
    ("reader", "text", "wanted"),
    [
        ("number", "x=", "a whole number"),
        ("number", "x=0", "a whole number from 1 to 100"), ("number", "x=101", "a whole number from 1 to 100"),
        ("number", "x=1.0", "a whole number"), ("number", "x=-1", "a whole number"), ("number", "x=%D9%A1", "a whole"),
        ("lowered", "x=0", "a whole number"), ("lowered", "x=1000000000000000", "a whole number"),
        ("seconds", "x=-1", "a number of seconds, 0 or more"), ("seconds", "x=inf", "a number of seconds"),
        ("seconds", "x=1e400", "a number of seconds"), ("at most", "x=61", "a number of seconds, from 0 to 60"),
        ("flag", "x=", "true or false"), ("flag", "x=maybe", "true or false"), ("time", "x=", "a time"),
        ("choice", "x=gone", "all, here or there"),
        ("time", "x=yesterday", "a time of ISO 8601"), ("time", "x=1e300", "a time of ISO 8601"),
        ("cursor", "x=%3F", "one that came with a page"), ("cursor", "x=bm8=", "one that came with a page"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused_by_name(reader: str, text: str, wanted: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^x is '") as refused:
        READERS[reader](QueryParams(text))
    assert wanted in refused.value.message
    assert refused.value.path == "/x"


def test_a_long_value_is_shown_in_part() -> None:
    with pytest.raises(InvalidRequest) as refused:
        query.number(QueryParams("x=" + "9" * 1000), "x", 0)
    assert len(refused.value.message) < 200

"""The output that was told in chunks: short ones are held, of long ones only as much as comparing needs."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from interlingua.model.delta import ABSENT, DeltaError, combine
from interlingua.protocols.peer.node.output_chunks import ToldOutput

LONG = "x" * 300_000


def told(*deltas: Any) -> ToldOutput:
    output = ToldOutput()
    for seq, delta in enumerate(deltas, 1):
        output.add(seq, delta)
        output.shorten()
    return output


@pytest.mark.parametrize("text", ["short", LONG])
@pytest.mark.parametrize(
    ("more", "rest"),
    [({}, ABSENT), ({"text": " and more"}, {"text": " and more"}), ({"count": 3}, {"count": 3}), ({"list": [7]}, None)],
)
def test_the_rest_leads_to_the_output(text: str, more: dict[str, Any], rest: Any) -> None:
    output = told({"text": text, "list": [1]}, {"text": "é"}, {"count": 2})
    so_far = {"text": f"{text}é", "list": [1], "count": 2}
    final = combine(so_far, more)
    delta = output.rest(final)
    assert combine(so_far, delta) == final
    if rest is not None:
        assert delta == rest


@pytest.mark.parametrize("final", [{"text": "y" * 300_000}, {"text": LONG[:-1]}, {"other": LONG}, LONG, {"text": 7}])
def test_another_output_is_no_continuation(final: Any) -> None:
    with pytest.raises(DeltaError):
        told({"text": LONG}).rest(final)


def test_a_delta_that_does_not_fit_a_long_text_changes_nothing() -> None:
    output = told({"text": LONG})
    with pytest.raises(DeltaError):
        output.add(2, {"text": 7})
    output.add(3, {"text": "!"})
    assert output.rest({"text": LONG + "!"}) is ABSENT


def test_a_restart_keeps_what_stands() -> None:
    short = told({"text": "a"}, {"text": "b"}, {"text": "c"})
    assert not short.is_long_with(0)
    short.restart(2, ABSENT)
    assert short.joined == {"text": "ab"}
    long = told({"text": LONG}, {"text": "b"}, {"text": "c"})
    assert long.is_long_with(0)
    long.restart(2, {"text": LONG + "b"})
    long.add(5, {"text": "d"})
    assert long.joined == {"text": LONG + "bd"}
    long.shorten()
    assert long.rest({"text": LONG + "bd!"}) == {"text": "!"}


def test_a_long_text_is_not_held() -> None:
    text = "".join(["z", LONG])
    before = sys.getrefcount(text)
    output = told({"text": text})
    assert sys.getrefcount(text) == before
    assert output.joined == {}

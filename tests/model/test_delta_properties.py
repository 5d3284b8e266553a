"""The laws of the delta algebra, on generated values, and the cost of long joins.

The rules are written down a second time here, as plainly as possible, to hold the real thing against.
"""

from __future__ import annotations

import copy
import gc
import math
import time
from collections.abc import Callable, Iterable
from functools import reduce
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.model.delta import (
    ABSENT,
    Composer,
    DeltaError,
    Joiner,
    NotAnExtension,
    combine,
    compose,
    compose_all,
    diff,
)

# --- the rules, plainly -------------------------------------------------------------------------------------


def kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return {int: "number", float: "number", str: "string", list: "array", dict: "object"}[type(value)]


def taken(value: Any) -> Any:
    """What becomes of a piece of a delta that lands on nothing."""
    if isinstance(value, list):
        return [taken(item) for item in (value[1:] if value and value[0] is None else value)]
    if isinstance(value, dict):
        return {key: taken(item) for key, item in value.items()}
    return value


def kept(value: Any) -> Any:
    return value


def plainly(output: Any, delta: Any, take: Callable[[Any], Any] = taken) -> Any:
    if delta is None:
        return None if output is ABSENT else output
    if output is None or output is ABSENT:
        return take(delta)
    kind = kind_of(output)
    if kind != kind_of(delta):
        raise DeltaError("kinds differ")
    if kind == "boolean":
        if output != delta:
            raise DeltaError("booleans differ")
        return output
    if kind == "string":
        # Only ends that meet may pair up, so a pair that was apart before within one argument stays apart.
        if "\ud800" <= output[-1:] <= "\udbff" and "\udc00" <= delta[:1] <= "\udfff":
            pair = (output[-1] + delta[0]).encode("utf-16", "surrogatepass").decode("utf-16")
            return output[:-1] + pair + delta[1:]
        return output + delta
    if kind == "array":
        if not output:
            return take(delta)
        if not delta:
            return output
        return [*output[:-1], plainly(output[-1], delta[0], take), *(take(item) for item in delta[1:])]
    if kind == "object":
        return {**output, **{key: plainly(output.get(key, ABSENT), delta[key], take) for key in delta}}
    return output + delta


# --- values, and deltas that fit them -----------------------------------------------------------------------

KEYS = st.sampled_from("abc")
# Halves of one pair and of another, so that they often meet; the first choices are what examples shrink to.
TEXTS = st.text(st.sampled_from("xy\ud83d\ude00\ud800\udc00"), max_size=3)
INTEGERS = st.integers(-3, 3)
FLOATS = st.floats(-1e6, 1e6)
EMPTIES: st.SearchStrategy[Any] = st.sampled_from([None, "", 0]) | st.builds(list) | st.builds(dict)


def arrays(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Arrays, half of them with the leading null that appends when they are deltas."""
    plain = st.lists(elements, max_size=3)
    return plain | plain.map(lambda items: [None, *items])


def values(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        EMPTIES | st.booleans() | numbers | TEXTS,
        lambda inner: arrays(inner) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=8,
    )


JSON = values(INTEGERS)
JSON_WITH_FLOATS = values(INTEGERS | FLOATS)


@st.composite
def fitting(draw: st.DrawFn, output: Any, anything: st.SearchStrategy[Any], numbers: Any) -> Any:
    """A delta that can be combined with `output`."""
    if output is None or output is ABSENT:
        return draw(anything)
    kind = kind_of(output)
    if draw(st.integers(0, 5)) == 0:  # the deltas that change nothing
        return None if kind == "boolean" else draw(st.sampled_from([None, type(output)()]))
    if kind == "boolean":
        return output
    if kind == "number":
        return draw(numbers)
    if kind == "string":
        return draw(TEXTS)
    if kind == "array":
        if not output:
            return draw(arrays(anything))
        first = draw(fitting(output[-1], anything, numbers))
        return [first, *draw(st.lists(anything, max_size=2))]
    chosen = draw(st.lists(KEYS, unique=True, min_size=1, max_size=3))
    return {key: draw(fitting(output.get(key, ABSENT), anything, numbers)) for key in chosen}


@st.composite
def streams(
    draw: st.DrawFn, deltas: int | None = None, anything: Any = JSON, numbers: Any = INTEGERS
) -> tuple[Any, list[Any]]:
    """An output and deltas for it: most fit what the earlier ones make of the output, some are arbitrary."""
    grown = arrays(anything) | st.dictionaries(KEYS, anything, min_size=1, max_size=3)
    start = draw(st.just(ABSENT) | anything | grown | grown)
    chain: list[Any] = []
    output = start
    for _ in range(draw(st.integers(0, 6)) if deltas is None else deltas):
        delta = draw(anything if draw(st.integers(0, 7)) == 7 else fitting(output, anything, numbers))
        chain.append(delta)
        try:
            output = plainly(output, delta)
        except DeltaError:
            output = start
    return start, chain


def outcome(operation: Callable[[], Any]) -> Any:
    """What an operation returns, in a form in which true and 1 differ; or that it fails."""
    try:
        return strictly(operation())
    except DeltaError:
        return "error"


def reason(operation: Callable[..., Any], *arguments: Any) -> tuple[str, Any] | None:
    """How an operation fails, if it does."""
    try:
        operation(*arguments)
    except DeltaError as error:
        return (str(error), error.path)
    return None


def strictly(value: Any) -> Any:
    if value is None or value is ABSENT:
        return value
    if isinstance(value, list):
        return ["array", *map(strictly, value)]
    if isinstance(value, dict):
        return {key: strictly(item) for key, item in value.items()}
    return (kind_of(value), value)


def close(left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(close, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(close(left[key], right[key]) for key in left)
    if isinstance(left, float) or isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-12, abs_tol=1e-6)
    return bool(strictly(left) == strictly(right))


def mutable_parts(value: Any) -> Iterable[int]:
    if isinstance(value, list | dict):
        yield id(value)
        for item in value.values() if isinstance(value, dict) else value:
            yield from mutable_parts(item)


# --- laws ---------------------------------------------------------------------------------------------------


@given(streams(1))
def test_combine_follows_the_rules_as_written_down_plainly(stream: tuple[Any, list[Any]]) -> None:
    output, (delta,) = stream
    assert outcome(lambda: combine(output, delta)) == outcome(lambda: plainly(output, delta))


@given(streams(2))
def test_compose_follows_the_rules_with_markers_kept(stream: tuple[Any, list[Any]]) -> None:
    _, (first, second) = stream
    assert outcome(lambda: compose(first, second)) == outcome(lambda: plainly(first, second, kept))


@given(TEXTS, TEXTS)
def test_strings_combine_with_only_their_meeting_ends_paired(left: str, right: str) -> None:
    assert combine(left, right) == compose(left, right) == plainly(left, right)


@given(JSON)
def test_null_and_absent_are_identities(value: Any) -> None:
    assert combine(value, None) == value
    assert combine(value, ABSENT) == value
    assert compose(value, None) == value
    assert compose(None, value) == value
    assert compose(value, ABSENT) == value
    assert compose(ABSENT, value) == value
    assert combine(None, value) == taken(value)
    assert combine(ABSENT, value) == taken(value)


@given(streams(2))
def test_a_composed_delta_acts_like_its_parts_and_fails_when_they_do(stream: tuple[Any, list[Any]]) -> None:
    output, (first, second) = stream
    one_by_one = outcome(lambda: combine(combine(output, first), second))
    assert outcome(lambda: combine(output, compose(first, second))) == one_by_one


@given(JSON, JSON, JSON)
def test_a_composed_delta_acts_like_its_parts_on_arbitrary_values(output: Any, first: Any, second: Any) -> None:
    one_by_one = outcome(lambda: combine(combine(output, first), second))
    assert outcome(lambda: combine(output, compose(first, second))) == one_by_one


@given(streams(2, JSON_WITH_FLOATS, INTEGERS | FLOATS))
def test_a_composed_delta_acts_like_its_parts_up_to_rounding(stream: tuple[Any, list[Any]]) -> None:
    output, (first, second) = stream
    try:
        one_by_one = combine(combine(output, first), second)
    except DeltaError:
        with pytest.raises(DeltaError):
            combine(output, compose(first, second))
    else:
        assert close(combine(output, compose(first, second)), one_by_one)


@given(streams(3))
def test_compose_is_associative(stream: tuple[Any, list[Any]]) -> None:
    _, (first, second, third) = stream
    left = outcome(lambda: compose(compose(first, second), third))
    assert outcome(lambda: compose(first, compose(second, third))) == left


# --- diff ---------------------------------------------------------------------------------------------------


@given(streams(1))
def test_diff_leads_to_every_value_that_a_delta_can_reach(stream: tuple[Any, list[Any]]) -> None:
    old, (delta,) = stream
    try:
        new = combine(old, delta)
    except DeltaError:
        return
    found = diff(old, new)
    assert strictly(combine(old, found)) == strictly(new)
    assert (found is ABSENT) == (strictly(old) == strictly(new))


@given(st.just(ABSENT) | JSON, JSON)
def test_diff_of_arbitrary_values_leads_to_the_new_one_or_is_refused(old: Any, new: Any) -> None:
    try:
        delta = diff(old, new)
    except NotAnExtension:
        assert old is not ABSENT
        assert strictly(old) != strictly(new)
    else:
        assert strictly(combine(old, delta)) == strictly(new)


@given(streams(2))
def test_diffs_can_be_composed(stream: tuple[Any, list[Any]]) -> None:
    old, (first, second) = stream
    try:
        middle = combine(old, first)
        new = combine(middle, second)
    except DeltaError:
        return
    assert strictly(combine(old, compose(diff(old, middle), diff(middle, new)))) == strictly(new)


ANY_NUMBER = st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.integers(-(2**70), 2**70) | FLOATS


@given(ANY_NUMBER, ANY_NUMBER)
def test_diff_finds_every_difference_between_numbers_that_an_addition_can_bridge(old: Any, step: Any) -> None:
    try:
        new = combine(old, step)
    except DeltaError:
        return
    assert combine(old, diff(old, new)) == new


@given(ANY_NUMBER, ANY_NUMBER)
def test_diff_of_arbitrary_numbers_is_exact_or_refused(old: Any, new: Any) -> None:
    try:
        delta = diff(old, new)
    except NotAnExtension:
        below = above = float(new) - float(old)
        for _ in range(20):  # no number near the difference would have done
            below, above = math.nextafter(below, -math.inf), math.nextafter(above, math.inf)
            assert old + below != new
            assert old + above != new
    else:
        assert combine(old, delta) == new


# --- accumulators -------------------------------------------------------------------------------------------


@given(streams(), st.sets(st.integers(0, 6)))
def test_a_joiner_is_a_fold_of_combine_wherever_it_is_read(stream: tuple[Any, list[Any]], reads: set[int]) -> None:
    start, deltas = stream
    joiner = Joiner(start)
    expected = start
    snapshots = []
    for number, delta in enumerate(deltas):
        refused = reason(combine, expected, delta)
        assert reason(joiner.add, delta) == refused
        if not refused:
            expected = combine(expected, delta)
        if number in reads:
            snapshots.append((joiner.value, copy.deepcopy(joiner.value)))
            assert strictly(joiner.value) == strictly(expected)
    assert strictly(joiner.value) == strictly(expected)
    assert all(strictly(seen) == strictly(then) for seen, then in snapshots)


@given(st.text(st.sampled_from("xž😀𐀀\ue000\uffff")), st.data())
def test_a_text_cut_anywhere_between_its_utf_16_units_is_whole_again(whole: str, data: st.DataObject) -> None:
    units = whole.encode("utf-16-le")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(units) // 2), max_size=8)))
    edges = [0, *(2 * cut for cut in cuts), len(units)]
    pieces = [units[begin:end].decode("utf-16-le", "surrogatepass") for begin, end in pairwise(edges)]
    joiner = Joiner()
    so_far = ""
    for piece in pieces:
        joiner.add({"text": piece})
        so_far = plainly(so_far, piece)
        if data.draw(st.booleans()):
            assert joiner.value == {"text": so_far}
    assert joiner.value == {"text": whole}
    assert compose_all(pieces) == whole


@given(streams())
def test_a_composer_is_a_fold_of_compose(stream: tuple[Any, list[Any]]) -> None:
    start, deltas = stream
    any_compose: Callable[[Any, Any], Any] = compose
    folded = outcome(lambda: reduce(any_compose, deltas, ABSENT))
    assert outcome(lambda: compose_all(deltas)) == folded
    assert outcome(lambda: combine(start, compose_all(deltas))) == outcome(lambda: reduce(combine, deltas, start))


@given(streams(2))
def test_arguments_are_neither_changed_nor_shared(stream: tuple[Any, list[Any]]) -> None:
    output, (first, second) = stream
    arguments = (output, first, second)
    before = copy.deepcopy(arguments)
    theirs = {part for argument in arguments for part in mutable_parts(argument)}
    operations: list[Callable[[], Any]] = [
        lambda: combine(output, first),
        lambda: compose(first, second),
        lambda: diff(output, first),
        lambda: Joiner(output).value,
        lambda: compose_all([first, second]),
    ]
    for operation in operations:
        try:
            result = operation()
        except DeltaError:
            continue
        finally:
            assert [strictly(argument) for argument in arguments] == [strictly(value) for value in before]
        assert theirs.isdisjoint(mutable_parts(result))


@given(st.data(), st.dictionaries(KEYS, JSON, max_size=3), st.sampled_from([Joiner, Composer]))
def test_a_delta_that_fails_at_its_very_end_has_changed_nothing(
    data: st.DataObject, members: dict[str, Any], accumulator: type[Joiner] | type[Composer]
) -> None:
    joiner = accumulator({**members, "end": 1})
    fit = data.draw(fitting({**members, "end": 1}, JSON, INTEGERS)) or {}
    joiner.add(fit)
    before = copy.deepcopy(joiner.value)
    again = data.draw(fitting(before, JSON, INTEGERS)) or {}
    failures: list[Any] = ["not a number", math.nan, [], True, {"a": ()}]
    for bad in failures:
        with pytest.raises(DeltaError):
            joiner.add({**again, "end": bad})
        assert strictly(joiner.value) == strictly(before)
    joiner.add(again)
    assert strictly(joiner.value) == strictly(plainly(before, again, taken if accumulator is Joiner else kept))


# --- cost ---------------------------------------------------------------------------------------------------


def messages(count: int) -> Any:
    return {"messages": [{"role": "user", "content": "hello"} for _ in range(count)]}


GROWTH: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "text": (ABSENT, lambda number: {"text": "word "}),
    "text-at-the-root": (ABSENT, lambda number: "word "),
    "text-with-other-members": (ABSENT, lambda number: {"text": "word ", "logs": [], "score": None}),
    "text-in-split-characters": (ABSENT, lambda number: {"text": "\ude00word\ud83d"}),
    "array": (ABSENT, lambda number: {"logs": [None, number]}),
    "array-of-objects": (ABSENT, lambda number: {"logs": [None, {"message": "m"}]}),
    "last-message-of-many": (messages(5_000), lambda number: {"messages": [{"content": "tok"}]}),
    "new-messages": (ABSENT, lambda number: {"messages": [None, {"content": "a"}, {"content": "b"}]}),
    "keys": (ABSENT, lambda number: {str(number): number}),
    "numbers": (ABSENT, lambda number: {"tokens": 1}),
}


def seconds(accumulator: type[Joiner] | type[Composer], start: Any, deltas: list[Any]) -> float:
    """The processor time of a join of the deltas."""
    joiner = accumulator(start)
    gc.disable()  # its passes over everything alive would be counted as ours
    try:
        begin = time.process_time()
        for delta in deltas:
            joiner.add(delta)
        assert joiner.value is not ABSENT
        return time.process_time() - begin
    finally:
        gc.enable()


@pytest.mark.parametrize("accumulator", [Joiner, Composer])
@pytest.mark.parametrize("shape", GROWTH)
def test_the_cost_of_a_join_grows_linearly(shape: str, accumulator: type[Joiner] | type[Composer]) -> None:
    start, delta = GROWTH[shape]
    deltas = [delta(number) for number in range(40_000)]
    few = min(seconds(accumulator, start, deltas[:5_000]) for _ in range(3))
    # About 8 times as long for 8 times the deltas if linear, about 64 times if quadratic: a machine that is busy with
    # something else may disturb one measurement, and not three.
    assert any(seconds(accumulator, start, deltas) < 25 * few for _ in range(3))


@pytest.mark.parametrize("accumulator", [Joiner, Composer])
def test_reading_without_a_change_costs_nothing(accumulator: type[Joiner] | type[Composer]) -> None:
    joiner = accumulator(messages(1_000))
    value = joiner.value
    assert all(joiner.value is value for _ in range(1_000))

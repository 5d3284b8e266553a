"""The delta algorithm rule by rule, example by example and ambiguous case by ambiguous case.

`test_rule_*` and `test_example_*` follow the published text in its order, `test_case_NN_*` the numbered table
of what that text leaves open; the rest is what this implementation adds.
"""

from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Any

import pytest

from interlingua.model.delta import (
    ABSENT,
    MAX_DEPTH,
    Absent,
    Composer,
    DeltaError,
    Joiner,
    NotAnExtension,
    combine,
    compose,
    compose_all,
    diff,
    format_path,
    require_object,
)

ONE_OF_EACH_KIND: dict[str, Any] = {
    "boolean": True,
    "number": 1,
    "string": "1",
    "array": [1],
    "object": {"1": 1},
}


def text_of(value: Any) -> str:
    """The value as JSON text, which unlike `==` tells true from 1 and 3 from 3.0, and keeps order."""
    return "ABSENT" if value is ABSENT else json.dumps(value, ensure_ascii=False)


def joins_to(output: Any, delta: Any, expected: Any) -> bool:
    return text_of(combine(output, delta)) == text_of(expected)


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


# --- rules and examples of the text -------------------------------------------------------------------------


def test_the_sequence_of_deltas_joins_to_the_output() -> None:
    joiner = Joiner()
    for fragment in ("Howd", "y back", " at ya!"):
        joiner.add({"text": fragment})
    assert joiner.value == {"text": "Howdy back at ya!"}


@pytest.mark.parametrize("output", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("delta", ONE_OF_EACH_KIND)
def test_rule_different_types_cannot_be_combined(output: str, delta: str) -> None:
    if output == delta:
        combine(ONE_OF_EACH_KIND[output], ONE_OF_EACH_KIND[delta])
        return
    with pytest.raises(DeltaError) as caught:
        combine(ONE_OF_EACH_KIND[output], ONE_OF_EACH_KIND[delta])
    assert str(caught.value) == f"cannot combine {output} with {delta} at $"
    assert caught.value.path == ()


def test_example_a_number_plus_an_array_is_an_error() -> None:
    with pytest.raises(DeltaError, match=r"^cannot combine number with array at \$$"):
        combine(1, ["hello"])


@pytest.mark.parametrize(
    ("output", "delta", "total"),
    [(1, 2, 3), (5, -7, -2), (0.5, 0.25, 0.75), (-1, 1, 0)],
    ids=["positive", "negative", "fractions", "to-zero"],
)
def test_rule_numbers_combine_by_addition(output: float, delta: float, total: float) -> None:
    assert joins_to(output, delta, total)


def test_example_one_plus_two_is_three() -> None:
    assert joins_to(1, 2, 3)


@pytest.mark.parametrize(
    ("output", "delta", "whole"),
    [("ab", "cd", "abcd"), ("", "a", "a"), ("a", "", "a"), ("ž", "😀", "ž😀"), ("1", "2", "12")],
    ids=["plain", "empty-output", "empty-delta", "unicode", "digits"],
)
def test_rule_strings_combine_by_concatenation(output: str, delta: str, whole: str) -> None:
    assert joins_to(output, delta, whole)


def test_example_hello_plus_there_is_hellothere() -> None:
    assert joins_to("hello", "there", "hellothere")


@pytest.mark.parametrize(
    ("output", "delta", "merged"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": 1}, {"a": 2}, {"a": 3}),
        ({"z": 1, "a": 1}, {"b": 1, "a": 1}, {"z": 1, "a": 2, "b": 1}),
        ({"a": {"b": {"c": "x"}}}, {"a": {"b": {"c": "y", "d": 1}}}, {"a": {"b": {"c": "xy", "d": 1}}}),
    ],
    ids=["other-keys", "common-key", "order-of-output-first", "nested"],
)
def test_rule_objects_combine_by_merging_and_combining_common_keys(output: Any, delta: Any, merged: Any) -> None:
    assert joins_to(output, delta, merged)


def test_example_objects_merge_and_combine_their_common_key() -> None:
    assert joins_to({"a": 1, "b": "hello"}, {"b": "world", "c": 2}, {"a": 1, "b": "helloworld", "c": 2})


@pytest.mark.parametrize("value", [None, *ONE_OF_EACH_KIND.values(), False, 0, "", [], {}], ids=text_of)
def test_rule_combining_a_value_with_null_results_in_the_value(value: Any) -> None:
    assert joins_to(value, None, value)
    assert joins_to(None, value, value)


def test_example_value_plus_null_is_the_value() -> None:
    assert joins_to("value", None, "value")


def test_example_null_plus_value_is_the_value() -> None:
    assert joins_to(None, "value", "value")


@pytest.mark.parametrize("array", [[], [1], ["a", None], [[1], {}]], ids=text_of)
def test_rule_combining_an_empty_array_with_another_array_results_in_the_other(array: list[Any]) -> None:
    assert joins_to([], array, array)
    assert joins_to(array, [], array)


@pytest.mark.parametrize("output", [[], None, ABSENT], ids=["empty", "null", "undefined"])
def test_rule_a_leading_null_is_dropped_when_there_is_no_array_to_append_to(output: Any) -> None:
    assert joins_to(output, [None, 1, 2], [1, 2])
    assert joins_to({} if output is ABSENT else {"a": output}, {"a": [None, 1, 2]}, {"a": [1, 2]})


def test_rule_appending_needs_no_knowledge_of_whether_the_array_is_empty() -> None:
    append = [None, "x"]
    for array in ([], ["a"], ["a", "b"], [["a"]], [7]):
        assert joins_to(array, append, [*array, "x"])


def test_example_array_plus_empty_array_is_the_array() -> None:
    assert joins_to(["array"], [], ["array"])


def test_example_empty_array_plus_array_is_the_array() -> None:
    assert joins_to([], ["array"], ["array"])


def test_example_empty_array_plus_null_general_kenobi_drops_the_null() -> None:
    assert joins_to([], [None, "general", "Kenobi"], ["general", "Kenobi"])


@pytest.mark.parametrize(
    ("output", "delta", "joined"),
    [
        ([1, 2], [3], [1, 5]),
        ([1], [2, 3, 4], [3, 3, 4]),
        ([{"a": "x"}], [{"a": "y", "b": 1}, {}], [{"a": "xy", "b": 1}, {}]),
        ([["a"], ["b"]], [["c", "d"], ["e"]], [["a"], ["bc", "d"], ["e"]]),
    ],
    ids=["only-last", "rest-is-appended", "objects", "arrays"],
)
def test_rule_non_empty_arrays_combine_last_with_first_and_append_the_rest(
    output: Any, delta: Any, joined: Any
) -> None:
    assert joins_to(output, delta, joined)


def test_example_the_last_element_is_combined_with_the_first_of_the_delta() -> None:
    assert joins_to(["hello", "there"], ["general", "Kenobi"], ["hello", "theregeneral", "Kenobi"])


def test_example_a_leading_null_appends_to_a_non_empty_array() -> None:
    output, delta = ["hello", "there"], [None, "general", "Kenobi"]
    assert joins_to(output, delta, ["hello", "there", "general", "Kenobi"])


def test_example_empty_array_plus_general_kenobi() -> None:
    assert joins_to([], ["general", "Kenobi"], ["general", "Kenobi"])


def test_example_empty_array_plus_null_general_kenobi_again_in_the_rule_of_non_empty_arrays() -> None:
    assert joins_to([], [None, "general", "Kenobi"], ["general", "Kenobi"])


# --- what the text leaves open ------------------------------------------------------------------------------


def test_case_01_null_creates_a_missing_key() -> None:
    assert joins_to({}, {"a": None}, {"a": None})


def test_case_02_null_neither_deletes_nor_resets() -> None:
    assert joins_to({"a": 1}, {"a": None}, {"a": 1})


def test_case_03_a_null_member_takes_any_value() -> None:
    assert joins_to({"a": None}, {"a": 1}, {"a": 1})


def test_case_04_the_marker_is_dropped_for_a_missing_key_and_for_a_null_member() -> None:
    assert joins_to({}, {"l": [None, "x"]}, {"l": ["x"]})
    assert joins_to({"l": None}, {"l": [None, "x"]}, {"l": ["x"]})


def test_case_05_the_marker_is_dropped_inside_a_new_object() -> None:
    assert joins_to({}, {"a": {"l": [None, "x"]}}, {"a": {"l": ["x"]}})


def test_case_06_a_marker_alone_leaves_an_empty_array() -> None:
    assert joins_to([], [None], [])


def test_case_07_a_marker_alone_appends_nothing() -> None:
    assert joins_to(["x"], [None], ["x"])


def test_case_08_only_one_null_is_a_marker() -> None:
    assert joins_to([], [None, None], [None])
    assert joins_to(["x"], [None, None], ["x", None])


def test_case_09_a_null_at_the_end_of_the_output_is_an_open_slot() -> None:
    assert joins_to([None], ["x"], ["x"])


def test_case_10_appending_after_a_null_keeps_it() -> None:
    assert joins_to([None], [None, "x"], [None, "x"])


def test_case_11_the_marker_is_dropped_inside_a_new_array() -> None:
    assert joins_to([], [[None, "x"]], [["x"]])


def test_case_12_the_marker_is_dropped_inside_an_appended_element() -> None:
    assert joins_to(["a"], [None, [None, "x"]], ["a", ["x"]])


def test_case_13_an_inner_marker_appends_to_the_last_inner_array() -> None:
    assert joins_to([[]], [[None, "x"]], [["x"]])
    assert joins_to([["a"]], [[None, "x"]], [["a", "x"]])


def test_case_14_inner_arrays_combine_like_outer_ones() -> None:
    assert joins_to([["a"]], [["b"]], [["ab"]])


def test_case_15_inner_nulls_are_data() -> None:
    assert joins_to(["a"], ["b", None, "c"], ["ab", None, "c"])


def test_case_16_an_element_of_another_type_needs_the_marker() -> None:
    with pytest.raises(DeltaError, match=r"^cannot combine number with string at \$\[0\]$"):
        combine([1], ["x"])
    assert joins_to([1], [None, "x"], [1, "x"])


def test_case_17_equal_booleans_combine_and_different_ones_do_not() -> None:
    assert joins_to(True, True, True)
    assert joins_to(False, False, False)
    with pytest.raises(DeltaError, match=r"^cannot combine true with false at \$\.done$"):
        combine({"done": True}, {"done": False})
    with pytest.raises(DeltaError, match=r"^cannot combine false with true at \$\.done$"):
        combine({"done": False}, {"done": True})


@pytest.mark.parametrize(("output", "delta"), [(True, 1), (1, True), (False, 0), (0, False), (1.0, True)], ids=repr)
def test_case_18_a_boolean_is_not_a_number(output: Any, delta: Any) -> None:
    with pytest.raises(DeltaError, match=r"^cannot combine (boolean with number|number with boolean) at"):
        combine(output, delta)


def test_case_19_integers_and_fractions_are_one_type_and_integers_stay_integers() -> None:
    assert joins_to(1, 2.0, 3.0)
    assert joins_to(1.5, 2, 3.5)
    assert joins_to(1, 2, 3)


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, json.loads("1E400")], ids=["nan", "inf", "-inf", "1E400"]
)
@pytest.mark.parametrize("output", [ABSENT, None, 1, 1.5, []], ids=["absent", "null", "int", "float", "array"])
def test_case_20_a_number_that_is_not_finite_is_an_error(output: Any, bad: float) -> None:
    delta: Any = [bad] if isinstance(output, list) else bad
    with pytest.raises(DeltaError, match="not finite"):
        combine(output, delta)


@pytest.mark.parametrize(
    ("output", "delta"), [(1e308, 1e308), (10**400, 0.5), (0.5, 10**400), (-1e308, -(10**308))], ids=str
)
def test_case_20_a_sum_that_is_not_finite_is_an_error(output: float, delta: float) -> None:
    with pytest.raises(DeltaError) as caught:
        combine({"n": output}, {"n": delta})
    assert str(caught.value) == "cannot combine number with number: the sum is not finite at $.n"


def test_case_20_an_output_that_is_not_finite_is_an_error() -> None:
    with pytest.raises(DeltaError, match=r"^number is not finite \(nan\) at \$\.a\[1\]$"):
        combine({"a": [0, math.nan]}, None)


def test_case_21_integers_of_any_size_are_exact() -> None:
    assert joins_to(2**53, 1, 2**53 + 1)
    assert joins_to(10**400, 1, 10**400 + 1)


@pytest.mark.parametrize(
    ("output", "delta"),
    [
        ("a", ""),
        (7, 0),
        (0.5, 0),
        (["a"], []),
        ([None], []),
        ({"a": 1}, {}),
        (2**60 + 1, 0.0),
        (10**400, 0.0),
    ],
    ids=["string", "integer", "fraction", "array", "array-of-null", "object", "beyond-2^53", "beyond-floats"],
)
def test_case_22_empty_deltas_change_nothing(output: Any, delta: Any) -> None:
    assert joins_to(output, delta, output)


@pytest.mark.parametrize("empty", ["", 0, [], {}, False], ids=text_of)
def test_case_22_empty_deltas_create_a_missing_value(empty: Any) -> None:
    assert joins_to(ABSENT, empty, empty)
    assert joins_to({}, {"a": empty}, {"a": empty})


def test_case_23_null_or_nothing_plus_an_empty_array_is_an_empty_array() -> None:
    assert joins_to(None, [], [])
    assert joins_to(ABSENT, [], [])


@pytest.mark.parametrize(
    ("output", "delta"), [({}, []), ([], {}), ([], ""), ("", []), ([], 0), ([], False)], ids=text_of
)
def test_case_24_an_empty_array_is_still_an_array(output: Any, delta: Any) -> None:
    with pytest.raises(DeltaError, match=r"^cannot combine .*array.* at"):
        combine(output, delta)


def test_case_25_null_leaves_an_array_in_an_object_alone() -> None:
    assert joins_to({"l": ["x"]}, {"l": None}, {"l": ["x"]})


def test_case_26_characters_split_between_their_surrogates_are_made_whole() -> None:
    assert joins_to("a\ud83d", "\ude00b", "a😀b")
    assert joins_to({"l": ["\ud83d"]}, {"l": ["\ude00"]}, {"l": ["😀"]})
    assert compose("\ud83d", "\ude00") == "😀"


def test_case_26_surrogates_are_made_whole_in_a_joiner_with_fragments_between_them() -> None:
    joiner = Joiner()
    for fragment in ("a", "b\ud83d", "", "\ude00", "\ud83d", "\ude00c", "d"):
        joiner.add({"text": fragment})
    assert joiner.value == {"text": "ab😀😀cd"}


def test_case_26_surrogates_that_are_no_pair_stay_as_they_are() -> None:
    for left, right in (
        ("\ude00", "\ud83d"),
        ("\ud83d", "\ud83d"),
        ("a", "\ude00"),
        ("", "\ude00"),
        ("\ude00", "\ude00"),
        ("😀", "\ude00"),
        ("\uffff", "\ude00"),
        ("\ud83d", "\ue000"),
    ):
        assert combine(left, right) == left + right


def test_case_27_the_last_of_duplicate_keys_wins_and_no_key_is_special() -> None:
    delta = json.loads('{"a": 1, "a": 2, "__proto__": {"b": 1}, "": 0}')
    assert joins_to({}, delta, {"a": 2, "__proto__": {"b": 1}, "": 0})


@pytest.mark.parametrize(
    "bad",
    [
        {"text": "more", "n": 1, "new": [], "l": [None, "x"], "score": "high"},
        {"l": [{"deep": "y"}, math.nan]},
        {"l": [{"deep": "y", "n": "x"}]},
        {"new": {"a": [None, (1,)]}},
        {"text": 5},
        "text",
    ],
    ids=["last-member", "appended-element", "inside-last-element", "not-json", "only-member", "root"],
)
def test_case_28_a_delta_that_fails_leaves_the_last_good_value(bad: Any) -> None:
    joiner = Joiner()
    joiner.add({"text": "a", "l": [{"deep": "x", "n": 1}]})
    joiner.add({"text": "b", "score": 1})
    before = copy.deepcopy(joiner.value)
    with pytest.raises(DeltaError):
        joiner.add(bad)
    assert joiner.value == before
    joiner.add({"text": "c", "l": [{"deep": "z"}, 2]})
    assert joiner.value == {"text": "abc", "l": [{"deep": "xz", "n": 1}, 2], "score": 1}


@pytest.mark.parametrize(
    ("root", "kind"),
    [(None, "null"), (True, "boolean"), (1, "number"), ("a", "string"), ([], "array"), ((), "tuple")],
    ids=["null", "boolean", "number", "string", "array", "not-json"],
)
def test_case_31_the_root_of_a_delta_must_be_an_object(root: Any, kind: str) -> None:
    with pytest.raises(DeltaError, match=rf"^a delta must be an object, not {kind} at \$$"):
        require_object(root)


def test_case_31_an_object_passes_as_the_root_of_a_delta() -> None:
    delta = {"a": 1}
    assert require_object(delta) is delta


# --- absent -------------------------------------------------------------------------------------------------


def test_absent_is_one_true_value_that_survives_copying() -> None:
    assert repr(ABSENT) == "ABSENT"
    assert bool(ABSENT) is True
    assert copy.deepcopy(ABSENT) is ABSENT
    assert pickle.loads(pickle.dumps(ABSENT)) is ABSENT
    assert isinstance(ABSENT, Absent)


def test_nothing_joined_or_composed_is_absent() -> None:
    assert Joiner().value is ABSENT
    assert Composer().value is ABSENT
    assert compose_all([]) is ABSENT


# --- errors -------------------------------------------------------------------------------------------------


def test_an_error_names_the_kinds_and_the_place_in_the_output() -> None:
    with pytest.raises(DeltaError) as caught:
        combine({"a": ["x", [], {}, 1]}, {"a": [["y"]]})
    assert str(caught.value) == "cannot combine number with array at $.a[3]"
    assert caught.value.path == ("a", 3)
    assert caught.value.problem == "cannot combine number with array"


def test_an_error_in_a_new_element_is_placed_where_the_element_would_be() -> None:
    with pytest.raises(DeltaError) as appended:
        combine({"a": ["x"]}, {"a": [None, "y", [None, math.inf]]})
    assert appended.value.path == ("a", 2, 0)
    with pytest.raises(DeltaError) as added:
        compose({"a": ["x"]}, {"a": [None, "y", [None, math.inf]]})
    assert added.value.path == ("a", 2, 1)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": (1, 2)}, "not a JSON value (tuple) at $.a"),
        ({"a": [b""]}, "not a JSON value (bytes) at $.a[0]"),
        ({"a": {1: 2}}, "object key is not a string (int) at $.a"),
        ({"a": ABSENT}, "not a JSON value (Absent) at $.a"),
    ],
    ids=["tuple", "bytes", "key", "absent"],
)
def test_what_is_not_json_is_an_error_wherever_it_comes_in(value: Any, problem: str) -> None:
    for attempt in (
        lambda: combine({}, value),
        lambda: combine(value, {}),
        lambda: compose({}, value),
        lambda: diff({}, value),
        lambda: diff(ABSENT, value),
    ):
        with pytest.raises(DeltaError) as caught:
            attempt()
        assert str(caught.value) == problem
        assert not isinstance(caught.value, NotAnExtension)


@pytest.mark.parametrize(
    ("operation", "value", "other", "problem"),
    [
        (combine, {"a": "x"}, {"a": ()}, "not a JSON value (tuple) at $.a"),
        (combine, {"a": {"x": 1}}, {"a": {1: 1}}, "object key is not a string (int) at $.a"),
        (diff, {"a": "x"}, {"a": ()}, "not a JSON value (tuple) at $.a"),
        (diff, {"a": 1}, {"a": math.nan}, "number is not finite (nan) at $.a"),
        (diff, {"a": 1}, {"a": 1, 2: 2}, "object key is not a string (int) at $"),
    ],
    ids=["combine-value", "combine-key", "diff-value", "diff-number", "diff-key"],
)
def test_what_is_not_json_is_an_error_where_it_meets_a_value(
    operation: Any, value: Any, other: Any, problem: str
) -> None:
    with pytest.raises(DeltaError) as caught:
        operation(value, other)
    assert str(caught.value) == problem
    assert not isinstance(caught.value, NotAnExtension)


def test_an_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(DeltaError("cannot combine number with array", ("a", 3))))
    assert str(error) == "cannot combine number with array at $.a[3]"
    assert error.path == ("a", 3)


def test_paths_quote_keys_that_are_not_plain_words() -> None:
    assert format_path(()) == "$"
    assert format_path(("a", 0, "b c", "", "ž", '"')) == '$.a[0]["b c"][""].ž["\\""]'


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 5_000])
def test_nesting_beyond_the_limit_is_an_error_and_not_a_crash(levels: int) -> None:
    deep = nested(levels)
    for attempt in (
        lambda: combine(ABSENT, deep),
        lambda: combine(deep, None),
        lambda: combine([], deep),
        lambda: compose(deep, deep),
        lambda: diff(deep, deep),
        lambda: diff(ABSENT, deep),
        lambda: Joiner(nested(MAX_DEPTH)).add(deep),
    ):
        with pytest.raises(DeltaError, match=f"^nested deeper than {MAX_DEPTH} levels at"):
            attempt()


def test_nesting_up_to_the_limit_works() -> None:
    deep = nested(MAX_DEPTH)
    assert combine(deep, deep) == deep
    assert compose(deep, deep) == deep
    assert diff(deep, deep) is ABSENT
    assert combine(ABSENT, deep) == deep


def test_a_value_that_contains_itself_is_an_error_and_not_a_crash() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(DeltaError, match=r"^nested deeper than"):
        combine(ABSENT, loop)


# --- compose ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "first", "second", "composed"),
    [
        (["x"], [], [None, "b"], [None, "b"]),
        (["x"], None, [None, "b"], [None, "b"]),
        ({"a": ["x"]}, {}, {"a": [None, "b"]}, {"a": [None, "b"]}),
        ([1], [], [None, {}], [None, {}]),
        ([None], [], [None, 2], [None, 2]),
        (["x"], [None], ["b"], ["b"]),
        (["x"], [None, "a"], [None, "b"], [None, "a", "b"]),
        ([], [[None, "a"]], [[None, "b"]], [[None, "a", "b"]]),
    ],
    ids=text_of,
)
def test_compose_keeps_the_markers_that_combine_would_drop(output: Any, first: Any, second: Any, composed: Any) -> None:
    assert text_of(compose(first, second)) == text_of(composed)
    assert combine(output, composed) == combine(combine(output, first), second)


def test_compose_fails_where_the_deltas_contradict_each_other() -> None:
    with pytest.raises(DeltaError, match=r"^cannot combine string with number at \$\.a$"):
        compose({"a": "x"}, {"a": 1})


def test_compose_all_joins_deltas_in_order() -> None:
    assert compose_all([{"t": "a"}, ABSENT, {"t": "b"}, None, {"l": [None, 1]}]) == {
        "t": "ab",
        "l": [None, 1],
    }


# --- diff ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "delta"),
    [
        (ABSENT, ABSENT, ABSENT),
        (ABSENT, None, None),
        (ABSENT, {"a": 1}, {"a": 1}),
        (None, None, ABSENT),
        (None, [], []),
        ("ab", "abc", "c"),
        ("ab", "ab", ABSENT),
        ("a\ud83d", "a😀b", "\ude00b"),
        (1, 3, 2),
        (1, 1.0, ABSENT),
        (1, 3.0, 2.0),
        (True, True, ABSENT),
        ({"a": 1}, {"a": 1}, ABSENT),
        ({"a": 1, "b": "x"}, {"a": 1, "b": "xy", "c": None}, {"b": "y", "c": None}),
        ({"a": None}, {"a": {}}, {"a": {}}),
        ([], [], ABSENT),
        ([], [1], [1]),
        ([1], [1], ABSENT),
        ([1], [1, 2], [None, 2]),
        ([1], [1, None], [None, None]),
        (["a"], ["ab", "c"], ["b", "c"]),
        ([None], ["x"], ["x"]),
        ([None], [None, 1], [None, 1]),
        ([], [None], [None, None]),
        ([], [[None, 1]], [[None, None, 1]]),
        ([0], [0, [None]], [None, [None, None]]),
        ({}, {"a": {"l": [None]}}, {"a": {"l": [None, None]}}),
    ],
    ids=lambda value: json.dumps(value) if value is not ABSENT else "ABSENT",
)
def test_diff_finds_the_delta_and_the_delta_leads_to_the_new_value(old: Any, new: Any, delta: Any) -> None:
    assert text_of(diff(old, new)) == text_of(delta)
    assert combine(old, diff(old, new)) == new


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ({"a": 1, "b": 2}, {"b": 2}, "number cannot be removed at $.a"),
        ({"a": "x"}, {"a": None}, "string cannot become null at $.a"),
        ({"a": "x"}, ABSENT, "object cannot be removed at $"),
        (None, ABSENT, "null cannot be removed at $"),
        ([1, 2], [1], "array of 2 cannot become array of 1 at $"),
        (["a", "b"], ["ax", "b"], "string cannot change before the end of its array at $[0]"),
        ([True, 0], [1, 0], "boolean cannot become number at $[0]"),
        ("abc", "xbc", "no string can be added to the old string to get the new one at $"),
        ("abc", "ab", "no string can be added to the old string to get the new one at $"),
        ("\ud83d", "\ud83d\ude00", "no string can be added to the old string to get the new one at $"),
        ({"a": [1]}, {"a": {}}, "array cannot become object at $.a"),
        ({"a": True}, {"a": False}, "no boolean can be added to the old boolean to get the new one at $.a"),
        (1e16, 0.1, "no number can be added to the old number to get the new one at $"),
        (0.5, 2**53 + 1, "no number can be added to the old number to get the new one at $"),
        (0.5, 10**400, "no number can be added to the old number to get the new one at $"),
        (-1e308, 1e308, "no number can be added to the old number to get the new one at $"),
    ],
    ids=[
        "key-removed",
        "value-to-null",
        "value-to-nothing",
        "null-to-nothing",
        "array-shrinks",
        "element-before-the-last",
        "element-of-other-kind",
        "string-edited",
        "string-shortened",
        "surrogates-left-apart",
        "type-changes",
        "boolean-flips",
        "difference-is-rounded-away",
        "integer-no-fraction-reaches",
        "integer-beyond-fractions",
        "difference-too-large",
    ],
)
def test_diff_says_why_no_delta_leads_to_the_new_value(old: Any, new: Any, problem: str) -> None:
    with pytest.raises(NotAnExtension) as caught:
        diff(old, new)
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (0.1, 0.3),
        (0.3, 0.1),
        (1e16, 1e16 + 2),
        (1, 2.5),
        (2.5, 4),
        (10**400, 1.0),
        (2**60 + 1, 2.0**60),
        (-5e-324, 5e-324),
        (1e308, -5e307),
    ],
    ids=str,
)
def test_diff_of_numbers_hits_the_new_number_exactly(old: float, new: float) -> None:
    assert combine(old, diff(old, new)) == new


@pytest.mark.parametrize(("old", "new"), [(-(2**-53), 1.0), (2**-52, -2.0)], ids=str)
def test_diff_tries_the_neighbours_when_the_rounded_difference_misses(old: float, new: float) -> None:
    assert old + (new - old) != new
    assert combine(old, diff(old, new)) == new


# --- joiner and composer ------------------------------------------------------------------------------------


def test_a_joiner_can_be_read_in_the_middle_and_added_to_afterwards() -> None:
    joiner = Joiner({"text": "a"})
    seen = []
    for fragment in ("b", "c"):
        joiner.add({"text": fragment, "l": [None, {"t": fragment}]})
        seen.append(joiner.value)
    joiner.add({"l": [{"t": "!"}]})
    assert seen == [
        {"text": "ab", "l": [{"t": "b"}]},
        {"text": "abc", "l": [{"t": "b"}, {"t": "c"}]},
    ]
    assert joiner.value == {"text": "abc", "l": [{"t": "b"}, {"t": "c!"}]}


def test_reading_again_without_a_change_returns_the_same_object() -> None:
    joiner = Joiner()
    joiner.add({"l": [1, 2, 3]})
    value = joiner.value
    joiner.add({})
    joiner.add(None)
    joiner.add(ABSENT)
    joiner.add({"l": []})
    assert joiner.value is value
    joiner.add({"l": [None, 4]})
    assert joiner.value is not value


def test_a_joiner_keeps_nothing_of_the_caller() -> None:
    start: dict[str, Any] = {"l": [[1]]}
    delta: dict[str, Any] = {"l": [None, [2]], "o": {"p": []}}
    joiner = Joiner(start)
    joiner.add(delta)
    start["l"][0].append("mine")
    delta["l"][1].append("mine")
    delta["o"]["p"].append("mine")
    assert joiner.value == {"l": [[1], [2]], "o": {"p": []}}


def test_the_same_object_twice_in_a_delta_becomes_two() -> None:
    twin: list[Any] = [1]
    joiner = Joiner()
    joiner.add({"a": twin, "b": twin})
    joiner.add({"a": [None, 2]})
    assert joiner.value == {"a": [1, 2], "b": [1]}


def test_a_composer_keeps_markers_and_a_joiner_drops_them() -> None:
    joiner, composer = Joiner(), Composer()
    for accumulator in (joiner, composer):
        accumulator.add({"logs": [None, "a"]})
        accumulator.add({"logs": [None, "b"]})
        accumulator.add({"logs": ["c"]})
    assert joiner.value == {"logs": ["a", "bc"]}
    assert composer.value == {"logs": [None, "a", "bc"]}

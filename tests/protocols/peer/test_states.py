"""The life of a task is a table; everything else follows from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.model.errors import InvalidRequest
from interlingua.protocols.peer.translate.task_states import (
    STATES,
    TABLE,
    TERMINAL,
    IllegalState,
    check_state,
    diagram,
    may,
    move,
    route,
    takes_artifact,
)

MOVES = [(old, new) for old, following in TABLE.items() for new in following]
ALL = sorted(STATES)


def test_there_are_seven_states_and_none_is_called_unknown() -> None:
    assert set(TABLE) == STATES
    assert len(STATES) == 7
    assert "cancelling" in STATES
    assert "unknown" not in STATES


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("submitted", "working"),
        ("working", "completed"),
        ("working", "failed"),
        ("working", "input_required"),
        ("input_required", "working"),
        ("input_required", "cancelling"),
        ("working", "cancelling"),
        ("submitted", "cancelling"),
        ("cancelling", "canceled"),
    ],
)
def test_a_task_goes_along_every_arrow_of_the_diagram(old: str, new: str) -> None:
    assert may(old, new)
    move(old, new)


def test_every_pair_of_states_is_either_in_the_table_or_refused() -> None:
    for old in ALL:
        for new in ALL:
            assert may(old, new) is ((old, new) in MOVES)
            if (old, new) not in MOVES:
                with pytest.raises(IllegalState, match=old):
                    move(old, new)


def test_an_illegal_move_is_a_bad_request_that_says_what_would_be_legal() -> None:
    with pytest.raises(
        InvalidRequest, match=r"a submitted task cannot become completed, only working or cancelling"
    ) as e:
        move("submitted", "completed")
    assert e.value.code == "invalid_request"
    assert e.value.path == "/status"


@pytest.mark.parametrize("ended", sorted(TERMINAL))
@pytest.mark.parametrize("new", ALL)
def test_a_terminal_task_moves_nowhere(ended: str, new: str) -> None:
    assert not may(ended, new)
    with pytest.raises(IllegalState, match=f"the task is {ended}, and stays so"):
        move(ended, new)


def test_completed_is_final() -> None:
    assert [new for new in ALL if may("completed", new)] == []


def test_failed_is_final() -> None:
    assert [new for new in ALL if may("failed", new)] == []


def test_canceled_is_final() -> None:
    assert [new for new in ALL if may("canceled", new)] == []


@pytest.mark.parametrize(
    ("state", "terminal"),
    [
        ("submitted", False),
        ("working", False),
        ("completed", True),
        ("failed", True),
        ("input_required", False),
        ("cancelling", False),
        ("canceled", True),
    ],
)
def test_which_states_are_terminal(state: str, terminal: bool) -> None:
    assert (state in TERMINAL) is terminal
    assert bool([new for new in ALL if may(state, new)]) is not terminal


@pytest.mark.parametrize("state", sorted(STATES - TERMINAL))
def test_to_stay_in_a_state_is_no_move(state: str) -> None:
    assert not may(state, state)
    with pytest.raises(IllegalState, match=f"the task is {state} already"):
        move(state, state)


def test_a_task_is_canceled_by_way_of_cancelling_alone() -> None:
    assert [old for old, new in MOVES if new == "canceled"] == ["cancelling"]
    assert TABLE["cancelling"] == ("canceled",)


def test_every_state_that_has_not_ended_can_be_cancelled() -> None:
    assert {old for old, new in MOVES if new == "cancelling"} == STATES - TERMINAL - {"cancelling"}


@pytest.mark.parametrize(
    ("old", "new", "way"),
    [
        ("submitted", "working", ["working"]),
        ("submitted", "completed", ["working", "completed"]),
        ("submitted", "failed", ["working", "failed"]),
        ("submitted", "input_required", ["working", "input_required"]),
        ("submitted", "canceled", ["cancelling", "canceled"]),
        ("input_required", "completed", ["working", "completed"]),
        ("working", "canceled", ["cancelling", "canceled"]),
        ("cancelling", "completed", []),
        ("cancelling", "working", []),
        ("completed", "failed", []),
        ("working", "working", []),
        ("working", "submitted", []),
        ("working", "banana", []),
        ("banana", "working", []),
    ],
)
def test_steps_that_a_peer_left_out_are_filled_in(old: str, new: str, way: list[str]) -> None:
    assert route(old, new) == way


@given(st.lists(st.sampled_from(ALL), max_size=20))
def test_no_history_of_reports_leaves_the_table(reports: list[str]) -> None:
    state = "submitted"
    for reported in reports:
        for step in route(state, reported):
            move(state, step)
            state = step
    assert state in STATES


@pytest.mark.parametrize("value", ["banana", "", None, 5, ["working"], "WORKING", "unknown", "x" * 500])
def test_what_is_no_state_is_refused_with_the_list_of_states(value: object) -> None:
    with pytest.raises(IllegalState, match=r"status is one of submitted, working, .*, got ") as caught:
        check_state(value)
    assert len(str(caught.value)) < 250


def test_artifacts_are_taken_while_a_task_is_working_and_at_no_other_time() -> None:
    assert [state for state in ALL if takes_artifact(state)] == ["working"]


def test_the_diagram_has_every_move() -> None:
    drawn = [line.strip() for line in diagram().splitlines()]
    assert drawn[1] == "[*] --> submitted"
    for old, new in MOVES:
        assert f"{old} --> {new}" in drawn
    assert sorted(line.split()[0] for line in drawn if line.endswith("[*]")) == sorted(TERMINAL)

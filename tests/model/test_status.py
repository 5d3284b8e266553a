"""The life of a run is a table; everything else follows from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.model.status import FINAL, OPEN, TABLE, IllegalMove, Move, Status, diagram, next_status


def test_every_pair_is_either_in_the_table_or_refused() -> None:
    for status in Status:
        for move in Move:
            if (status, move) in TABLE:
                assert next_status(status, move) is TABLE[status, move]
            else:
                with pytest.raises(IllegalMove, match=f"a {status.value} run"):
                    next_status(status, move)


def test_an_ended_run_never_moves_again() -> None:
    assert not [pair for pair in TABLE if pair[0] in FINAL]


def test_every_status_can_be_reached_and_every_open_one_can_end() -> None:
    reached = {Status.PENDING}
    while True:
        more = reached | {target for (source, _), target in TABLE.items() if source in reached}
        if more == reached:
            break
        reached = more
    assert reached == set(Status)
    for status in OPEN:
        seen = {status}
        for _ in Status:
            seen |= {target for (source, _), target in TABLE.items() if source in seen}
        assert seen & FINAL


def test_a_cancelling_run_can_only_end_as_cancelled() -> None:
    ends = {target for (source, _), target in TABLE.items() if source is Status.CANCELLING and target in FINAL}
    assert ends == {Status.CANCELLED}


@given(st.lists(st.sampled_from(list(Move)), max_size=30))
def test_no_history_leaves_the_table(moves: list[Move]) -> None:
    status = Status.PENDING
    for move in moves:
        try:
            status = next_status(status, move)
        except IllegalMove:
            assert (status, move) not in TABLE
    assert status in Status


def test_the_diagram_has_every_change_of_status() -> None:
    drawn = diagram()
    for (source, move), target in TABLE.items():
        if source is not target:
            assert any(
                line.strip().startswith(f"{source.value} --> {target.value}:") and move.value in line
                for line in drawn.splitlines()
            )

"""Which news of a task counts, when letters and answers to questions overtake each other."""

from __future__ import annotations

from typing import Any

from interlingua.protocols.peer.mount.stale_updates import Standing


class Asked:
    def __init__(self) -> None:
        self.times = 0
        self.standing = Standing(self._ask)

    def _ask(self) -> None:
        self.times += 1


def letter(status: str, *, queued: bool = False) -> dict[str, Any]:
    return {"status": status, "server_seq": 7, **({"_was_queued": True} if queued else {})}


def answer(status: str) -> dict[str, Any]:
    return {"status": status}


def test_letters_count_in_their_order_until_the_task_is_met_again() -> None:
    made = Asked()
    made.standing.asked(again=False)
    told = [letter("working"), letter("input_required"), letter("working", queued=True)]
    assert [made.standing.counts(one) for one in told] == [True, True, True]
    assert made.times == 0


def test_an_answer_counts_and_letters_that_it_overtook_do_not() -> None:
    made = Asked()
    made.standing.asked(again=True)
    made.standing.confirmed()
    assert made.standing.counts(answer("input_required"))
    assert not made.standing.counts(letter("working", queued=True))
    assert made.times == 1  # that may have been newer, after all
    assert not made.standing.counts(letter("input_required", queued=True))
    assert made.times == 1  # one question at a time
    made.standing.confirmed()
    assert made.times == 2
    assert made.standing.counts(answer("input_required"))


def test_letters_that_waited_are_asked_about_also_where_the_answer_is_silence() -> None:
    made = Asked()
    made.standing.asked(again=True)
    assert not made.standing.counts(letter("working", queued=True))
    assert made.times == 0
    made.standing.confirmed()
    assert made.times == 1


def test_an_answer_that_a_newer_letter_overtook_does_not_count() -> None:
    made = Asked()
    made.standing.asked(again=True)
    assert made.standing.counts(letter("input_required"))
    assert not made.standing.counts(answer("working"))
    assert made.times == 1
    assert made.standing.counts(answer("input_required"))
    assert made.times == 1


def test_an_end_always_counts() -> None:
    made = Asked()
    made.standing.asked(again=True)
    assert made.standing.counts(letter("completed", queued=True))
    assert made.standing.counts(answer("failed"))
    assert made.times == 0

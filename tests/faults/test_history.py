"""The checker of histories itself: one that keeps every promise passes, and one with a defect planted does not."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interlingua.model import hash_chain
from interlingua.model.errors import ErrorInfo
from interlingua.model.events import (
    KINDS,
    Body,
    CancelRequested,
    OutputDelta,
    QuestionAnswered,
    QuestionAsked,
    QuestionWithdrawn,
    Recorded,
    RunCreated,
    RunFinished,
    RunRestarted,
    RunStarted,
    body_encoder,
)
from interlingua.model.run import Answer, Question, RunRequest
from interlingua.model.status import Status
from interlingua.store.rows import EventRow

from .history import (
    Accepted,
    Answered,
    Fault,
    History,
    Piece,
    QuestionRow,
    Reader,
    Row,
    Sighting,
    Stopped,
    distribution,
    takeovers,
)
from .history_check import Defect, defects

SECOND = 1_000_000


def text(words: str) -> dict[str, str]:
    return {"text": words}


def log(run: str, *bodies: Body, times: list[int] | None = None) -> list[EventRow]:
    """A log as an owner would have written it, an event per second."""
    rows: list[EventRow] = []
    head = hash_chain.GENESIS
    for seq, body in enumerate(bodies, 1):
        written, time = body_encoder.encode(body), times[seq - 1] if times else seq * SECOND
        head = hash_chain.link(head, run, seq, KINDS[type(body)], time, hash_chain.body_hash(written))
        rows.append(EventRow(run, seq, KINDS[type(body)], time, head, written))
    return rows


def created(key: str) -> RunCreated:
    return RunCreated(RunRequest("agent", key=key), "card")


def put(history: History, run: str, *bodies: Body, epoch: int = 1, times: list[int] | None = None) -> None:
    rows = history.logs[run] = log(run, *bodies, times=times)
    last = bodies[-1]
    status = last.status if isinstance(last, RunFinished) else Status.RUNNING
    history.rows[run] = Row(run, status, epoch, len(rows) + 1, rows[-1].hash)


def pieces(*given: tuple[Any, ...]) -> list[Piece]:
    return [
        Piece(kind, value, None if seq is None else (seq, 0), status=Status.SUCCEEDED if kind == "end" else None)
        for kind, seq, value in given
    ]


STREAM = (
    created("k1"), RunStarted("w1", 1), OutputDelta(text("a ")), Recorded("step:one"), OutputDelta(text("b ")),
    OutputDelta(text("c ")), RunRestarted(3), OutputDelta(text("d ")),
    RunFinished(Status.SUCCEEDED, text("a d ")),
)  # fmt: skip
SEEN = (
    ("delta", 3, text("a ")), ("delta", 6, text("b c ")), ("reset", 7, text("a ")), ("delta", 8, text("d ")),
    ("end", 9, text("a d ")),
)  # fmt: skip
QUESTION = Question("q1", "r2", "pick", {"number": 1}, {"type": "object"}, 3 * SECOND)
ANSWER = {"who": "first"}


def good() -> History:
    """Three runs: one that was taken over and read over two connections, one that asked, and one that was cancelled."""
    history = History()
    put(history, "r1", *STREAM, epoch=3)
    put(
        history, "r2", created("k2"), RunStarted("w1", 1), QuestionAsked(QUESTION),
        QuestionAnswered("q1", Answer(ANSWER)), OutputDelta(text("first ")),
        RunFinished(Status.SUCCEEDED, text("first ")),
    )  # fmt: skip
    put(
        history, "r3", created("k3"), RunStarted("w2", 1), CancelRequested("somebody"),
        RunFinished(Status.CANCELLED, error=ErrorInfo("cancelled", "it was cancelled")),
    )  # fmt: skip
    history.questions["q1"] = QuestionRow("q1", "r2", "answered", ANSWER)
    history.accepted = [Accepted("r1", "k1", 1.0), Accepted("r1", "k1", 1.5), Accepted("r2", "k2", 1.0)]
    history.accepted.append(Accepted("r3", "k3", 1.0, "cap"))
    history.readers = [
        Reader("by place", "r1", pieces(*SEEN)),
        Reader("cut off", "r1", pieces(*SEEN[:2])),
        Reader("by value", "r1", pieces(("delta", None, text("a b c ")), ("end", None, text("a d ")))),
        Reader("asked twice", "r2", pieces(("asked", 3, None), ("asked", 3, None), ("delta", 5, text("first ")))),
        Reader("two at the end", "r2", [*pieces(("delta", 5, text("first ")), ("other", 6, None)),
                                        Piece("end", text("first "), (6, 1), status=Status.SUCCEEDED)]),
    ]  # fmt: skip
    history.answered = [Answered("r2", ANSWER, 4.5, "q1"), Answered("r2", ANSWER, 4.6)]
    history.stopped = [Stopped("r3", 3.5)]
    heads = [row.hash for row in history.logs["r1"]]
    history.sightings = [
        Sighting(3.5, "r1", 1, "w1", 4, heads[2]),
        Sighting(6.5, "r1", 2, None, 7, heads[5]),
        Sighting(7.5, "r1", 3, "w2", 8, heads[6]),
    ]
    history.faults = [Fault("killed", 6.2, ["r1"], within=1.0)]
    return history


def test_a_history_that_keeps_every_promise_passes() -> None:
    assert defects(good()) == []
    assert [(run, seconds) for _, run, seconds in takeovers(good())] == [("r1", pytest.approx(0.8))]


PLANTED: dict[str, tuple[str, Callable[[History], object]]] = {}


def planted(promise: str) -> Callable[[Callable[[History], object]], Callable[[History], object]]:
    def keep(plant: Callable[[History], object]) -> Callable[[History], object]:
        PLANTED[plant.__name__] = promise, plant
        return plant

    return keep


def reread(history: History, *given: tuple[Any, ...], run: str = "r1") -> None:
    history.readers = [Reader("reader", run, pieces(*given))]


# -- one log


@planted("a log has no gap")
def an_event_is_missing(history: History) -> None:
    del history.logs["r1"][4]


@planted("a log has no gap")
def an_event_is_there_twice(history: History) -> None:
    history.logs["r1"].insert(4, history.logs["r1"][3])


@planted("the chain of hashes holds")
def a_body_was_changed(history: History) -> None:
    history.logs["r1"][2].body = body_encoder.encode(OutputDelta(text("x ")))


@planted("the chain of hashes holds")
def two_owners_wrote_the_same_place(history: History) -> None:
    other = log("r1", *STREAM[:4], OutputDelta(text("other ")))
    history.logs["r1"][4] = other[4]


@planted("the row and the log agree")
def the_end_of_a_log_is_lost(history: History) -> None:
    history.logs["r1"].pop()


@planted("the row and the log agree")
def a_row_says_that_a_run_goes_on_that_has_ended(history: History) -> None:
    history.rows["r1"].status = Status.RUNNING


@planted("no run finishes twice")
def a_run_finishes_twice(history: History) -> None:
    put(history, "r1", *STREAM, RunFinished(Status.SUCCEEDED, text("a d ")))


@planted("nothing comes after the end")
def a_run_goes_on_after_its_end(history: History) -> None:
    put(history, "r1", *STREAM, OutputDelta(text("more ")))


@planted("a run is created once, first of all")
def a_run_is_created_twice(history: History) -> None:
    put(history, "r1", created("k1"), *STREAM)


@planted("time does not go back")
def an_event_is_earlier_than_the_one_before(history: History) -> None:
    put(history, "r3", created("k3"), RunStarted("w", 1), CancelRequested(), RunFinished(Status.CANCELLED),
        times=[4, 3, 5, 6])  # fmt: skip


@planted("epochs rise")
def a_run_starts_again_in_an_epoch_that_was_before(history: History) -> None:
    put(history, "r3", created("k3"), RunStarted("w1", 2), CancelRequested(), RunStarted("w2", 1),
        RunFinished(Status.CANCELLED), epoch=2)  # fmt: skip


@planted("epochs rise")
def a_run_started_in_an_epoch_that_its_row_never_had(history: History) -> None:
    history.rows["r2"].epoch = 0


@planted("a restart keeps what came before it")
def a_restart_keeps_what_is_not_there_yet(history: History) -> None:
    put(history, "r3", created("k3"), RunRestarted(7), CancelRequested(), RunFinished(Status.CANCELLED))


@planted("no log without its run")
def a_run_has_events_and_no_row(history: History) -> None:
    del history.rows["r1"]


# -- ends


@planted("every run ends")
def a_run_never_ends(history: History) -> None:
    put(history, "r1", *STREAM[:-1], epoch=3)


def fails(history: History, code: str, *, recorded: bool = False, times: int = 3) -> None:
    history.readers, history.sightings = [], []
    before = [body for body in STREAM[:-1] if recorded or not isinstance(body, Recorded | RunRestarted)]
    put(history, "r1", *before, RunFinished(Status.FAILED, error=ErrorInfo(code, "gone")), epoch=3)
    history.faults = [Fault("killed", 2.5, ["r1"])] * times


@planted("no run fails that could have gone on")
def a_run_fails(history: History) -> None:
    fails(history, "internal")


@planted("no run fails that could have gone on")
def a_run_is_given_up_too_early(history: History) -> None:
    fails(history, "run_lost", times=2)


@planted("no run fails that could have gone on")
def a_run_is_given_up_that_had_got_on(history: History) -> None:
    fails(history, "run_lost", recorded=True)


# -- clients


@planted("no acknowledged run is lost")
def an_acknowledged_run_is_not_there(history: History) -> None:
    history.accepted.append(Accepted("r9", "k9", 1.0))


@planted("one key, one run")
def a_request_that_was_sent_again_made_a_second_run(history: History) -> None:
    put(history, "r4", created("k1"), RunStarted("w", 1), RunFinished(Status.SUCCEEDED, {}))


@planted("a key leads to its run")
def a_client_was_given_the_run_of_another(history: History) -> None:
    history.accepted.append(Accepted("r2", "k1", 1.0))


# -- readers


@planted("readers see a prefix of the log")
def a_reader_missed_a_delta(history: History) -> None:
    reread(history, SEEN[0], ("delta", 6, text("c ")))


@planted("readers see a prefix of the log")
def a_reader_missed_the_reset(history: History) -> None:
    reread(history, *SEEN[:2], ("delta", 8, text("d ")))


@planted("readers see a prefix of the log")
def a_reader_missed_a_delta_before_the_end(history: History) -> None:
    reread(history, *SEEN[:3], SEEN[4])


@planted("readers see a prefix of the log")
def a_reader_missed_a_delta_before_something_else(history: History) -> None:
    reread(history, SEEN[0], ("other", 6, None))


@planted("readers see a prefix of the log")
def a_reader_missed_a_delta_before_a_question(history: History) -> None:
    reread(history, SEEN[0], ("asked", 6, None))


@planted("readers see a prefix of the log")
def a_reader_got_something_twice(history: History) -> None:
    reread(history, *SEEN[:2], SEEN[1])


@planted("readers see a prefix of the log")
def a_reader_got_something_again_in_a_larger_piece(history: History) -> None:
    reread(history, SEEN[0], ("delta", 5, text("b ")), ("delta", 6, text("b c ")))


@planted("readers see a prefix of the log")
def a_reader_was_told_what_was_never_committed(history: History) -> None:
    reread(history, *SEEN[:4], ("delta", 12, text("e ")))


@planted("readers see a prefix of the log")
def a_reader_was_told_an_event_that_is_none(history: History) -> None:
    reread(history, SEEN[0], ("delta", 4, text("b ")))


@planted("readers see a prefix of the log")
def a_reader_was_told_another_output_after_a_reset(history: History) -> None:
    reread(history, *SEEN[:2], ("reset", 7, text("a b ")))


@planted("readers see a prefix of the log")
def a_reader_was_told_another_output_at_the_end(history: History) -> None:
    reread(history, *SEEN[:4], ("end", 9, text("a b c d ")))


@planted("readers see a prefix of the log")
def a_reader_was_told_another_end(history: History) -> None:
    reread(history, *SEEN)
    history.readers[0].pieces[-1].status = Status.CANCELLED


@planted("readers see a prefix of the log")
def a_reader_without_places_missed_a_delta(history: History) -> None:
    reread(history, ("delta", None, text("a ")), ("delta", None, text("c ")))


@planted("readers see a prefix of the log")
def a_reader_without_places_got_a_delta_twice(history: History) -> None:
    reread(history, ("delta", None, text("a ")), ("delta", None, text("a ")))


@planted("readers see a prefix of the log")
def a_reader_without_places_was_told_deltas_after_a_restart(history: History) -> None:
    reread(history, ("delta", None, text("a b c ")), ("delta", None, text("d ")))


@planted("readers see a prefix of the log")
def a_reader_without_places_was_told_two_ends(history: History) -> None:
    reread(history, ("end", None, text("a d ")), ("end", None, text("a d ")))


@planted("readers see a prefix of the log")
def a_reader_without_places_was_told_another_output(history: History) -> None:
    reread(history, ("end", None, text("a ")))


@planted("readers see a prefix of the log")
def a_reader_was_told_an_end_that_never_was(history: History) -> None:
    history.unfinished = True
    put(history, "r1", *STREAM[:-1], epoch=3)
    reread(history, ("end", None, text("a d ")))


@planted("what was read is in the log")
def a_reader_read_of_a_run_that_is_not_there(history: History) -> None:
    reread(history, SEEN[0], run="r9")


# -- answers and cancels


@planted("no acknowledged answer is lost")
def an_acknowledged_answer_is_in_no_log(history: History) -> None:
    history.readers = []
    put(history, "r2", created("k2"), RunStarted("w1", 1), QuestionAsked(QUESTION), QuestionWithdrawn("q1", "why not"),
        RunFinished(Status.SUCCEEDED, text("first ")))  # fmt: skip


@planted("the first answer wins")
def two_answers_were_acknowledged(history: History) -> None:
    history.answered.append(Answered("r2", {"who": "second"}, 4.7, "q1"))


@planted("the first answer wins")
def an_answer_is_of_another_question(history: History) -> None:
    history.answered.append(Answered("r2", ANSWER, 4.7, "q2"))


@planted("the first answer wins")
def a_question_is_answered_twice(history: History) -> None:
    history.readers = []
    twice = QuestionAnswered("q1", Answer(ANSWER))
    put(history, "r2", created("k2"), RunStarted("w1", 1), QuestionAsked(QUESTION), twice, twice,
        RunFinished(Status.SUCCEEDED, text("first ")))  # fmt: skip


@planted("the first answer wins")
def the_log_has_another_answer_than_the_row(history: History) -> None:
    history.questions["q1"].answer = {"who": "second"}


@planted("what is answered was asked")
def an_answer_is_to_a_question_that_was_never_asked(history: History) -> None:
    history.readers = []
    put(history, "r2", created("k2"), RunStarted("w1", 1), QuestionAnswered("q1", Answer(ANSWER)),
        RunFinished(Status.SUCCEEDED, text("first ")))  # fmt: skip


@planted("no acknowledged cancel is lost")
def a_run_goes_on_after_an_acknowledged_cancel(history: History) -> None:
    put(history, "r3", created("k3"), RunStarted("w2", 1), RunFinished(Status.SUCCEEDED, {}),
        times=[SECOND, 2 * SECOND, 60 * SECOND])  # fmt: skip


# -- owners


@planted("epochs rise")
def an_epoch_goes_back(history: History) -> None:
    history.sightings[2].epoch = 1


@planted("epochs rise")
def a_run_ends_in_an_epoch_before_the_one_that_was_seen(history: History) -> None:
    history.rows["r1"].epoch = 2


@planted("an epoch has one owner")
def two_workers_own_one_epoch(history: History) -> None:
    history.sightings[2].epoch = 1
    history.sightings = [history.sightings[0], history.sightings[2]]


@planted("logs only grow")
def a_log_gets_shorter(history: History) -> None:
    history.sightings[2].next_seq, history.sightings[2].head = 5, history.logs["r1"][3].hash


@planted("logs only grow")
def an_event_was_another_one_when_it_was_seen(history: History) -> None:
    history.sightings[1].head = bytes(32)


@planted("taken over in time")
def a_run_is_taken_over_late(history: History) -> None:
    history.faults[0].within = 0.5


@planted("taken over in time")
def a_run_is_never_taken_over(history: History) -> None:
    history.unfinished = True
    history.readers = []
    put(history, "r1", *STREAM[:6], epoch=3)
    history.sightings = history.sightings[:2]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_found(name: str) -> None:
    promise, plant = PLANTED[name]
    history = good()
    plant(history)
    assert promise in [defect.promise for defect in defects(history)]


def test_planting_changes_only_what_is_planted() -> None:
    """What each defect is reported as is what it is: most of them break one promise alone."""
    alone = 0
    for _, plant in PLANTED.values():
        history = good()
        plant(history)
        alone += len({defect.promise for defect in defects(history)}) == 1
    assert alone > 0.7 * len(PLANTED)


def test_every_promise_has_a_defect_that_breaks_it() -> None:
    tree = ast.parse(Path(__file__).with_name("history_check.py").read_text())
    promises = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Defect", "wrong"):
            promises |= {one.value for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant)}
    promises |= {"the first answer wins", "no acknowledged answer is lost"}  # one of the two, as it turns out
    assert promises == {promise for promise, _ in PLANTED.values()}


def test_runs_may_fail_or_be_under_way_where_that_is_allowed() -> None:
    history = good()
    fails(history, "run_lost")
    assert defects(history) == []
    history = good()
    history.unfinished, history.faults = True, []
    put(history, "r4", created("k4"), RunStarted("w", 1))
    assert defects(history) == []


def test_a_run_that_ended_before_a_fault_was_not_taken_over() -> None:
    history = good()
    history.faults = [Fault("killed", 9.5, ["r1", "r2"], within=0.1)]
    assert takeovers(history) == []


def test_a_cancel_that_comes_too_late_is_not_lost() -> None:
    history = good()
    put(history, "r3", created("k3"), RunStarted("w2", 1), RunFinished(Status.SUCCEEDED, {}))
    assert defects(history) == []


def test_a_defect_says_what_is_wrong_and_where() -> None:
    assert str(Defect("epochs rise", "r1", "2, and then 1")) == "epochs rise: 2, and then 1 (run r1)"


def test_a_distribution_is_short() -> None:
    assert distribution([]) == "none"
    assert distribution([3.0, 1.0, 2.0]) == "3: 1.00 to 3.00 s, half within 2.00 s"


def test_checking_changes_nothing() -> None:
    history = good()
    before = copy.deepcopy(history)
    defects(history)
    assert history == before

"""A history held against the promises: every one that it breaks is named. An empty list is the proof.

Pure, as the history is. `broken_log` is about one log by itself, and needs no notes of anybody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import msgspec

from interlingua.model import hash_chain
from interlingua.model.delta import ABSENT, Joiner, compose_all
from interlingua.model.events import (
    Body,
    CancelRequested,
    OutputDelta,
    QuestionAnswered,
    QuestionAsked,
    Recorded,
    RunCreated,
    RunFinished,
    RunRestarted,
    RunStarted,
    body_decoder,
)
from interlingua.model.status import FINAL, Status
from interlingua.store.rows import EventRow

from .history import History, Kind, Piece, Place, Reader, Row, Sighting, takeovers


class Defect(msgspec.Struct, frozen=True):
    promise: str
    run: str
    detail: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.detail} (run {self.run})"


def defects(history: History) -> list[Defect]:
    """Every promise that this history breaks."""
    found: list[Defect] = []
    logs = {run: _Log(run, rows) for run, rows in history.logs.items()}
    for row in history.rows.values():
        found += broken_log(row, history.logs.get(row.id, []))
        found += _ended(row, logs.get(row.id), history)
    for run in history.logs.keys() - history.rows.keys():
        found.append(Defect("no log without its run", run, "there are events of it, and no row"))
    found += _acknowledged(history, logs)
    for reader in history.readers:
        log = logs.get(reader.run)
        if log is None:
            found.append(Defect("what was read is in the log", reader.run, f"{reader.name} read of it"))
        else:
            found += _read(reader, log)
    found += _answers(history, logs)
    found += _stops(history, logs)
    found += _owners(history, logs)
    for fault, run, seconds in takeovers(history):
        if fault.within is not None and (seconds is None or seconds > fault.within):
            how_long = "never" if seconds is None else f"after {seconds:.2f} s"
            found.append(
                Defect("taken over in time", run, f"{fault.what}: taken up {how_long}, and {fault.within:.1f} s is due")
            )
    return found


# -- one log ----------------------------------------------------------------------------------------------------


def broken_log(row: Row, events: list[EventRow]) -> list[Defect]:
    """What is wrong with the log of one run, by itself: numbers, hashes, beginning, end, and its row."""
    found: list[Defect] = []

    def wrong(promise: str, detail: str) -> None:
        found.append(Defect(promise, row.id, detail))

    numbers = [event.seq for event in events]
    if numbers != list(range(1, len(numbers) + 1)):
        gap = next((n for n, seq in enumerate(numbers, 1) if n != seq), len(numbers))
        wrong("a log has no gap", f"event {gap} is not where it belongs")
    else:
        broken = hash_chain.first_broken(
            (
                e.run,
                e.seq,
                e.kind,
                e.time,
                hash_chain.body_hash(e.body) if e.body is not None else e.erased or b"",
                e.hash,
            )
            for e in events
        )
        if broken is not None:
            wrong("the chain of hashes holds", f"event {broken} does not follow from the one before")
    if events and (events[-1].seq + 1, events[-1].hash) != (row.next_seq, row.head):
        wrong("the row and the log agree", f"the log ends at {events[-1].seq}, the row at {row.next_seq - 1}")
    for one, next_ in pairwise(events):
        if next_.time < one.time:
            wrong("time does not go back", f"event {next_.seq} is earlier than the one before")
    kinds = [event.kind for event in events]
    if kinds.count("created") != 1 or kinds[:1] != ["created"]:
        wrong("a run is created once, first of all", f"{kinds.count('created')} times, first is {kinds[:1]}")
    if kinds.count("finished") > 1:
        wrong("no run finishes twice", f"{kinds.count('finished')} times")
    if "finished" in kinds[:-1]:
        wrong("nothing comes after the end", f"{kinds[-1]} after finished")
    if (row.status in FINAL) != ("finished" in kinds):
        wrong("the row and the log agree", f"the row says {row.status.value}, the log ends with {kinds[-1:]}")
    started = [body.epoch for body in _bodies(events) if isinstance(body, RunStarted)]
    if started != sorted(set(started)) or (started and started[-1] > row.epoch):
        wrong("epochs rise", f"started in {started}, and the row is in {row.epoch}")
    for body, seq in zip(_bodies(events), numbers, strict=False):
        if isinstance(body, RunRestarted) and body.keep >= seq:
            wrong("a restart keeps what came before it", f"event {seq} keeps {body.keep}")
    return found


def _bodies(events: Iterable[EventRow]) -> Iterator[Body | None]:
    for event in events:
        yield None if event.body is None else body_decoder.decode(event.body)


class _Log:
    """A log with its bodies, and what readers are told of it."""

    def __init__(self, run: str, rows: list[EventRow]) -> None:
        self.run = run
        self.rows = rows
        self.bodies = list(_bodies(rows))
        self.told: list[tuple[int, Kind, Any]] = []  # seq, kind and value
        standing: list[tuple[int, Any]] = []
        for row, body in zip(rows, self.bodies, strict=True):
            if isinstance(body, OutputDelta):
                standing.append((row.seq, body.delta))
                self.told.append((row.seq, "delta", body.delta))
            elif isinstance(body, RunRestarted):
                standing = [(seq, delta) for seq, delta in standing if seq <= body.keep]
                self.told.append((row.seq, "reset", _joined(delta for _, delta in standing)))
            elif isinstance(body, RunFinished):
                self.told.append((row.seq, "end", body))

    @property
    def finished(self) -> tuple[EventRow, RunFinished] | None:
        for row, body in zip(self.rows, self.bodies, strict=True):
            if isinstance(body, RunFinished):
                return row, body
        return None


def _joined(deltas: Iterable[Any]) -> Any:
    joiner = Joiner()
    for delta in deltas:
        joiner.add(delta)
    return {} if joiner.value is ABSENT else joiner.value


def _ended(row: Row, log: _Log | None, history: History) -> list[Defect]:
    finished = log.finished if log is not None else None
    if finished is None:
        if history.unfinished:
            return []
        return [Defect("every run ends", row.id, f"it is {row.status.value}, of worker {row.worker}")]
    error = finished[1].error
    if finished[1].status is not Status.FAILED:
        return []
    if error is not None and error.code == "run_lost":
        # What is on record shows that it gets on: only who never gets anywhere is given up.
        times = sum(row.id in fault.runs for fault in history.faults)
        recorded = any(isinstance(body, Recorded) for body in log.bodies) if log is not None else False
        if times >= history.crashes and not recorded:
            return []
    return [Defect("no run fails that could have gone on", row.id, f"it failed: {error}")]


# -- clients ------------------------------------------------------------------------------------------------------


def _acknowledged(history: History, logs: dict[str, _Log]) -> list[Defect]:
    found = []
    of_key: dict[str, set[str]] = defaultdict(set)
    for run, log in logs.items():
        created = log.bodies[0] if log.bodies else None
        if isinstance(created, RunCreated) and created.request.key is not None:
            of_key[created.request.key].add(run)
    for note in history.accepted:
        if note.run not in history.rows:
            found.append(Defect("no acknowledged run is lost", note.run, f"it was accepted by {note.door}"))
        elif note.run not in of_key[note.key]:
            found.append(Defect("a key leads to its run", note.run, f"{note.key} is the key of {of_key[note.key]}"))
    for key, runs in of_key.items():
        if len(runs) > 1:
            found.append(Defect("one key, one run", min(runs), f"{key} made {len(runs)} runs"))
    return found


def _read(reader: Reader, log: _Log) -> list[Defect]:
    placed = [piece for piece in reader.pieces if piece.place is not None]
    problem = _read_by_place(placed, log) if placed else _read_by_value(reader.pieces, log)
    return [] if problem is None else [Defect("readers see a prefix of the log", log.run, f"{reader.name}: {problem}")]


def _read_by_place(pieces: list[Piece], log: _Log) -> str | None:
    """Each piece stands for all that is told of the events after the one before it, up to its own place."""
    last: Place = (0, 0)
    covered = 0  # all that the log tells up to here was told
    for piece in pieces:
        assert piece.place is not None
        # A question is asked again where a stream is taken up at it.
        if piece.place < last or (piece.place == last and piece.kind != "asked"):
            return f"{piece.kind} at {piece.place} came after {last}"
        last, seq = piece.place, piece.place[0]
        if seq > len(log.rows):
            return f"{piece.kind} at {seq} is beyond the end of the log, which is {len(log.rows)}"
        there = [told for told in log.told if covered < told[0] <= seq]
        if piece.kind in ("asked", "other"):
            if [told[:2] for told in there] == [(seq, "end")] and piece.kind == "other":
                continue  # something else that is told of the end, which comes yet
            if there:
                return f"what the log tells at {there[0][0]} was left out before {piece.kind} at {seq}"
            covered = seq
            continue
        covered = seq
        if not there or there[-1][0] != seq or there[-1][1] != piece.kind:
            return f"{piece.kind} at {seq} is not in the log"
        if piece.kind == "delta":
            if any(kind != "delta" for _, kind, _ in there):
                return f"what the log tells at {there[0][0]} was left out before {piece.kind} at {seq}"
            if compose_all(delta for _, _, delta in there) != piece.value:
                return f"the delta up to {seq} is {piece.value!r}, and not what the log holds after the one before"
        elif len(there) > 1:
            return f"what the log tells at {there[0][0]} was left out before {piece.kind} at {seq}"
        elif piece.kind == "reset" and there[0][2] != piece.value:
            return f"the output after the reset at {seq} is {piece.value!r}, and not {there[0][2]!r}"
        elif piece.kind == "end" and (problem := _same_end(piece, there[0][2])) is not None:
            return problem
    return None


def _read_by_value(pieces: list[Piece], log: _Log) -> str | None:
    """Where a wire numbers by itself: all deltas together are what the log holds up to some event. After a restart such
    a wire tells no more deltas, because it cannot take any back: the result counts."""
    seen: Any = _joined(piece.value for piece in pieces if piece.kind == "delta")
    so_far = Joiner()
    prefixes: list[Any] = [{}]
    for _, kind, value in log.told:
        if kind != "delta":
            break
        so_far.add(value)
        prefixes.append(so_far.value)
    if seen not in prefixes:
        return f"its deltas join to {seen!r}, and the log's to {prefixes[-1]!r}"
    ends = [piece for piece in pieces if piece.kind == "end"]
    if len(ends) > 1 or (ends and pieces[-1] is not ends[0]):
        return f"it was told {len(ends)} ends"
    finished = log.finished
    if ends:
        return "it was told an end that is not in the log" if finished is None else _same_end(ends[0], finished[1])
    return None


def _same_end(piece: Piece, finished: RunFinished) -> str | None:
    if piece.status is not None and piece.status is not finished.status:
        return f"the end was told as {piece.status.value}, and is {finished.status.value}"
    if finished.status is Status.SUCCEEDED and piece.value != finished.output:
        return f"the output was told as {piece.value!r}, and is {finished.output!r}"
    return None


def _answers(history: History, logs: dict[str, _Log]) -> list[Defect]:
    found = []
    given: dict[str, list[tuple[str, Any]]] = defaultdict(list)  # by run: question and value
    for run, log in logs.items():
        asked = {body.question.id for body in log.bodies if isinstance(body, QuestionAsked)}
        for body in log.bodies:
            if isinstance(body, QuestionAnswered):
                if body.question not in asked:
                    found.append(Defect("what is answered was asked", run, body.question))
                if any(question == body.question for question, _ in given[run]):
                    found.append(Defect("the first answer wins", run, f"{body.question} is answered twice"))
                given[run].append((body.question, body.answer.value))
                row = history.questions.get(body.question)
                if row is None or row.state != "answered" or row.answer != body.answer.value:
                    found.append(
                        Defect("the first answer wins", run, f"{body.question} has another answer in its row: {row}")
                    )
    for note in history.answered:
        there = given.get(note.run, [])
        if not any(value == note.value and note.question in (None, question) for question, value in there):
            promise = "the first answer wins" if there else "no acknowledged answer is lost"
            found.append(Defect(promise, note.run, f"{note.value!r} was taken, and the log has {there}"))
    return found


def _stops(history: History, logs: dict[str, _Log]) -> list[Defect]:
    found = []
    for note in history.stopped:
        log = logs.get(note.run)
        if log is None or any(isinstance(body, CancelRequested) for body in log.bodies):
            continue
        finished = log.finished
        if finished is None or finished[0].time / 1e6 > note.time + history.cancel_within:
            found.append(Defect("no acknowledged cancel is lost", note.run, "it is not in the log"))
    return found


# -- owners -------------------------------------------------------------------------------------------------------


def _owners(history: History, logs: dict[str, _Log]) -> list[Defect]:
    """Nothing that was there is ever another way: epochs rise, each has one owner, and logs only grow."""
    found = []
    last: dict[str, Sighting] = {}
    owners: dict[tuple[str, int], str] = {}
    for sighting in history.sightings:
        run, before = sighting.run, last.get(sighting.run)
        last[run] = sighting
        if before is not None and sighting.epoch < before.epoch:
            found.append(
                Defect("epochs rise", run, f"{before.epoch}, and {sighting.epoch} later; up to {sighting.next_seq - 1}")
            )
        if before is not None and sighting.next_seq < before.next_seq:
            found.append(
                Defect("logs only grow", run, f"{before.next_seq - 1} events, and then {sighting.next_seq - 1}")
            )
        if sighting.worker is not None:
            owner = owners.setdefault((run, sighting.epoch), sighting.worker)
            if owner != sighting.worker:
                found.append(
                    Defect("an epoch has one owner", run, f"epoch {sighting.epoch}: {owner} and {sighting.worker}")
                )
        log, at = logs.get(run), sighting.next_seq - 2
        if log is not None and (at >= len(log.rows) or (at >= 0 and log.rows[at].hash != sighting.head)):
            found.append(Defect("logs only grow", run, f"event {at + 1} was another one when it was seen"))
    for run, sighting in last.items():
        row = history.rows.get(run)
        if row is not None and row.epoch < sighting.epoch:
            found.append(Defect("epochs rise", run, f"{sighting.epoch} was seen, and it ended in {row.epoch}"))
    return found

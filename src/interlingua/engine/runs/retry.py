"""Retrying: a blocked run goes on at once, and a failed one goes on from its last good record, as a new run.

The failed run stays as it ended. The new one has copies of its records, so that nothing that succeeded is done again.
What made the run fail is not copied: it is tried again.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ...model import hash_chain
from ...model.errors import Conflict, ErrorInfo, RunNotFound
from ...model.events import (
    EMISSIONS,
    KINDS,
    Body,
    ChildCalled,
    ChildEnded,
    Continued,
    DelegationRefused,
    ErrorHandled,
    Event,
    MessageReceived,
    QuestionAnswered,
    QuestionAsked,
    QuestionWithdrawn,
    Recorded,
    RunCreated,
    RunFinished,
    RunRestarted,
    Said,
    ToolRefused,
)
from ...model.status import Status
from ...store.changes import Submission
from ...store.rows import EventRow, RunRow
from ..ids import new_id
from ..log.run_log import encode

_RETRIED = (Status.FAILED, Status.TIMED_OUT)
_COPIED = (
    *EMISSIONS, RunRestarted, Recorded, QuestionAsked, QuestionAnswered, QuestionWithdrawn, MessageReceived,
    ChildCalled, ChildEnded, DelegationRefused, ToolRefused, Said, ErrorHandled,
)  # fmt: skip


def check_retry(row: RunRow) -> None:
    """Raises Conflict for a run that ended in a way that cannot be continued."""
    if row.status not in _RETRIED:
        raise Conflict(f"run {row.id} has {row.status.value}; only a run that is blocked or has failed can be retried")
    if row.parent is not None:
        root = row.path.split("/")[1]
        raise Conflict(f"run {row.id} was called by another one; retry the root: interlingua runs retry {root}")


def continuation(failed: RunRow, events: list[Event], time: int) -> tuple[Submission, RunCreated]:
    """Returns the run that continues a failed one from `time` on, and its first event."""
    created = events[0].body if events else None
    if not isinstance(created, RunCreated):
        raise RunNotFound(f"what run {failed.id} was asked for was erased; start a new run")
    run = new_id()
    good = _good_records(events)
    if any(event.body is None for event in events[: good[-1].seq if good else 0]):
        raise Conflict(f"a part of the log of run {failed.id} was erased; start a new run")
    request = msgspec.structs.replace(created.request, key=None, delay=0.0)
    if request.authority is not None and request.authority.deadline is not None:
        left = request.authority.deadline - failed.created_at
        request.authority = msgspec.structs.replace(request.authority, deadline=time + left)
    last = good[-1] if good else events[0]
    first = created.continues.first if created.continues is not None else failed.id
    began = msgspec.structs.replace(
        created, request=request, origin=failed.origin or created.origin,
        continues=Continued(failed.id, last.seq, last.hash.hex(), first, len(good)),
    )  # fmt: skip
    rows = list(_chained(run, time, [began, *_renumbered(good, run)]))
    row = msgspec.structs.replace(
        failed, id=run, status=Status.PENDING, created_at=time, updated_at=time, worker=None, epoch=0,
        next_seq=len(rows) + 1, head=rows[-1].hash, wake_at=0, crashes=0, ran=0, queued=None, turn=0,
        blocked=None, blocked_reason=None,
    )  # fmt: skip
    # It waits for its thread where another run has that: nobody is told to give way for it once more.
    asks = request if request.when_busy == "reject" else msgspec.structs.replace(request, when_busy="enqueue")
    return Submission(row, asks, "", rows, None, time, continues=failed.id), began


def _good_records(events: list[Event]) -> list[Event]:
    """Returns the events of a failed run that are copied: all up to its last good record, without the failure."""
    finished = events[-1].body
    error = finished.error if isinstance(finished, RunFinished) else None
    upto = max((event.seq for event in events if _is_good(event.body)), default=0)
    copied = [event for event in events if event.seq <= upto and isinstance(event.body, _COPIED)]
    copied = [event for event in copied if getattr(event.body, "run", None) is None or _is_of_child(event.body)]
    copied = [event for event in copied if not _is_culprit(event.body, error)]
    records = {body.key for event in copied if isinstance(body := event.body, Recorded)}
    closed = {body.question for event in copied if isinstance(body := event.body, QuestionAnswered | QuestionWithdrawn)}
    ended = {body.run for event in copied if isinstance(body := event.body, ChildEnded)}

    def is_whole(body: Body | None) -> bool:
        match body:
            case QuestionAsked(question=question):
                return question.id in closed
            case ChildCalled(run=run):
                return run in ended
        step = getattr(body, "step", None) if isinstance(body, EMISSIONS) else None
        return step is None or step in records

    return [event for event in copied if is_whole(event.body)]


def _is_of_child(body: Body | None) -> bool:
    return isinstance(body, ChildCalled | ChildEnded | DelegationRefused)


def _is_good(body: Body | None) -> bool:
    match body:
        case Recorded(error=error):
            return error is None
        case ChildEnded(status=status):
            return status is Status.SUCCEEDED
        case QuestionAnswered(run=run):
            return run is None
        case MessageReceived():
            return True
    return False


def _is_culprit(body: Body | None, error: ErrorInfo | None) -> bool:
    """Returns True if this is the record of the failure that ended the run."""
    if error is None:
        return False
    match body:
        case Recorded(error=ErrorInfo() as failed):
            return error.details == msgspec.to_builtins(failed) or error == failed
        case ChildEnded(run=run, status=status):
            return (
                status is not Status.SUCCEEDED and isinstance(error.details, dict) and error.details.get("run") == run
            )
        case QuestionWithdrawn():
            return error.code == "question_expired"
    return False


def _renumbered(events: list[Event], run: str) -> Iterator[Body]:
    """The bodies as they stand in the log of another run, after its first event."""
    for event in events:
        body = event.body
        assert body is not None
        if isinstance(body, RunRestarted):
            kept = sum(one.seq <= body.keep for one in events)
            body = msgspec.structs.replace(body, keep=kept + 1)
        elif isinstance(body, QuestionAsked):
            body = msgspec.structs.replace(body, question=msgspec.structs.replace(body.question, run=run))
        yield body


def _chained(run: str, time: int, bodies: list[Body]) -> Iterator[EventRow]:
    head = hash_chain.GENESIS
    for seq, body in enumerate(bodies, 1):
        written, kind = encode(body), KINDS[type(body)]
        head = hash_chain.link(head, run, seq, kind, time, hash_chain.body_hash(written))
        yield EventRow(run, seq, kind, time, head, written)

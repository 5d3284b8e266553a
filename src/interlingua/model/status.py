"""The status machine of a run, as one table: status × move → status.

The engine changes the status by this table alone, the diagram in docs/engine.md is drawn from it, and the tests walk
it. A move that is not in the table is a bug.
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    PENDING = "pending"  # admitted, not started (waits for a slot, a time, or its thread)
    RUNNING = "running"
    WAITING = "waiting"  # at least one question is open
    CANCELLING = "cancelling"  # a cancel was requested; the agent is stopping
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"

    @property
    def final(self) -> bool:
        return self in FINAL


class Move(StrEnum):
    """An occurrence that may change the status of a run."""

    STARTED = "started"
    RESTARTED = "restarted"
    ASKED = "asked"
    ANSWERED = "answered"  # an answer (or withdrawal), and no question is open any more
    STILL_OPEN = "still_open"  # an answer (or withdrawal), and another question is still open
    CANCEL_REQUESTED = "cancel_requested"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


S, M = Status, Move

FINAL = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED, S.TIMED_OUT})
OPEN = frozenset(S) - FINAL

TABLE: dict[tuple[Status, Move], Status] = {
    (S.PENDING, M.STARTED): S.RUNNING,
    (S.PENDING, M.CANCEL_REQUESTED): S.CANCELLING,
    (S.PENDING, M.FAILED): S.FAILED,
    (S.RUNNING, M.STARTED): S.RUNNING,
    (S.RUNNING, M.RESTARTED): S.RUNNING,
    (S.RUNNING, M.ASKED): S.WAITING,
    (S.RUNNING, M.ANSWERED): S.RUNNING,
    (S.RUNNING, M.CANCEL_REQUESTED): S.CANCELLING,
    (S.RUNNING, M.SUCCEEDED): S.SUCCEEDED,
    (S.RUNNING, M.FAILED): S.FAILED,
    (S.RUNNING, M.TIMED_OUT): S.TIMED_OUT,
    (S.WAITING, M.STARTED): S.WAITING,
    (S.WAITING, M.RESTARTED): S.WAITING,
    (S.WAITING, M.ASKED): S.WAITING,
    (S.WAITING, M.ANSWERED): S.RUNNING,
    (S.WAITING, M.STILL_OPEN): S.WAITING,
    (S.WAITING, M.CANCEL_REQUESTED): S.CANCELLING,
    (S.CANCELLING, M.STARTED): S.CANCELLING,
    (S.CANCELLING, M.RESTARTED): S.CANCELLING,
    (S.CANCELLING, M.ANSWERED): S.CANCELLING,
    (S.CANCELLING, M.STILL_OPEN): S.CANCELLING,
    (S.CANCELLING, M.CANCEL_REQUESTED): S.CANCELLING,
    (S.CANCELLING, M.CANCELLED): S.CANCELLED,
}


class IllegalMove(RuntimeError):
    """A move that the table does not allow: a bug of the engine, never a mistake of a caller."""


def next_status(status: Status, move: Move) -> Status:
    try:
        return TABLE[status, move]
    except KeyError:
        raise IllegalMove(f"a {status.value} run cannot be moved by {move.value!r}") from None


def diagram() -> str:
    """Renders the table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> pending"]
    edges: dict[tuple[Status, Status], list[str]] = {}
    for (source, move), target in TABLE.items():
        if source is not target:
            edges.setdefault((source, target), []).append(move.value)
    for (source, target), moves in edges.items():
        lines.append(f"    {source.value} --> {target.value}: {', '.join(moves)}")
    lines.extend(f"    {status.value} --> [*]" for status in Status if status.final)
    return "\n".join(lines)

"""The life of a run, as one table: status × what happened → status.

The engine moves runs by this table alone, the diagram in docs/engine.md is drawn from it, and the tests walk it.
What is not in the table cannot happen.
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    PENDING = "pending"  # accepted; not started (waiting for a slot, a time, or its thread)
    RUNNING = "running"
    WAITING = "waiting"  # at least one question is open
    CANCELLING = "cancelling"  # cancel was requested, the agent is stopping
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"

    @property
    def final(self) -> bool:
        return self in FINAL


class Move(StrEnum):
    """What can happen to a run, as far as its status is concerned."""

    STARTED = "started"
    RESTARTED = "restarted"
    ASKED = "asked"
    ANSWERED = "answered"  # an answer (or withdrawal), and nothing is open any more
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
    """The engine tried what the table does not allow: a bug of ours, never of a caller."""


def after(status: Status, move: Move) -> Status:
    try:
        return TABLE[status, move]
    except KeyError:
        raise IllegalMove(f"a {status.value} run cannot be moved by {move.value!r}") from None


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> pending"]
    edges: dict[tuple[Status, Status], list[str]] = {}
    for (source, move), target in TABLE.items():
        if source is not target:
            edges.setdefault((source, target), []).append(move.value)
    for (source, target), moves in edges.items():
        lines.append(f"    {source.value} --> {target.value}: {', '.join(moves)}")
    lines.extend(f"    {status.value} --> [*]" for status in Status if status.final)
    return "\n".join(lines)

"""Ids of tasks: T1 is a whole task, T1.1 and T1.2 are its subtasks, T1.1.1 is a subtask of T1.1."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import InvalidRequest

_TASK = re.compile(r"T[1-9][0-9]{0,17}(\.[1-9][0-9]{0,17})*")


def is_task(id_: str) -> bool:
    """True for an id of the tree: T1, T1.1, T1.1.1 and so on."""
    return _TASK.fullmatch(id_) is not None


def child_of(parent: str, number: int) -> str:
    if number < 1:
        raise InvalidRequest(f"the subtasks of {parent} are counted from 1, got {number}", path="/task_id")
    return f"{_task(parent)}.{number}"


def parent_of(id_: str) -> str | None:
    """The id of the parent task; None for a whole task."""
    return _task(id_).rpartition(".")[0] or None


def next_child(parent: str | None, existing: Iterable[str]) -> str:
    """The next free id of a subtask, or of a whole task if there is no parent."""
    start = "T" if parent is None else f"{_task(parent)}."
    below = (id_.removeprefix(start).partition(".")[0] for id_ in existing if id_.startswith(start) and is_task(id_))
    return f"{start}{max(map(int, below), default=0) + 1}"


def lineage(id_: str) -> list[str]:
    """The ids on the path from the whole task down to this one."""
    steps = _task(id_).split(".")
    return [".".join(steps[: count + 1]) for count in range(len(steps))]


def _task(id_: str) -> str:
    if not is_task(id_):
        raise InvalidRequest(f"{id_[:80]!r} is no id of a task such as T1.2", path="/task_id")
    return id_

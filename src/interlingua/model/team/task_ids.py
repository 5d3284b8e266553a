"""Ids of tasks: T1 is a whole task, T1.1 and T1.2 are handed over within it, T1.1.1 within those."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import InvalidRequest

_TASK = re.compile(r"T[1-9][0-9]{0,17}(\.[1-9][0-9]{0,17})*")


def is_task(id_: str) -> bool:
    """Whether it is an id of the tree: T1, and below it T1.1, T1.1.1 and so on."""
    return _TASK.fullmatch(id_) is not None


def child_of(parent: str, number: int) -> str:
    if number < 1:
        raise InvalidRequest(f"the subtasks of {parent} are counted from 1, got {number}", path="/task_id")
    return f"{_task(parent)}.{number}"


def parent_of(id_: str) -> str | None:
    """The task that this one is part of; None for a whole task."""
    return _task(id_).rpartition(".")[0] or None


def next_child(parent: str | None, existing: Iterable[str]) -> str:
    """The id for one more subtask, or for one more whole task where there is no parent. No id is used twice."""
    start = "T" if parent is None else f"{_task(parent)}."
    below = (id_.removeprefix(start).partition(".")[0] for id_ in existing if id_.startswith(start) and is_task(id_))
    return f"{start}{max(map(int, below), default=0) + 1}"


def lineage(id_: str) -> list[str]:
    """The whole task, and all tasks on the way down to this one."""
    steps = _task(id_).split(".")
    return [".".join(steps[: count + 1]) for count in range(len(steps))]


def _task(id_: str) -> str:
    if not is_task(id_):
        raise InvalidRequest(f"{id_[:80]!r} is no id of a task such as T1.2", path="/task_id")
    return id_

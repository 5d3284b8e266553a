"""Checks objects by the published OpenAPI document (0.2.3): the members that it requires, and their types.

Formats that the document only names (a UUID, a date-time) are enforced where a reader could not do without.
"""

from __future__ import annotations

import datetime
from typing import Any

from ..base import Broken, expect, member, shown

RUN_STATUSES = ("pending", "error", "success", "timeout", "interrupted")
THREAD_STATUSES = ("idle", "busy", "interrupted", "error")
OUTPUTS = ("result", "interrupt", "error")
UPDATES = ("values", "custom", "interrupt", "error")


def _one_of(value: Any, name: str, allowed: tuple[str, ...], where: str) -> str:
    found = member(value, name, str, where)
    expect(found in allowed, f"{name} of {where} is {shown(found)}, which is none of {', '.join(allowed)}")
    return found


def _moments(value: Any, where: str) -> None:
    for name in ("created_at", "updated_at"):
        told = member(value, name, str, where)
        try:
            datetime.datetime.fromisoformat(told)
        except ValueError:
            raise Broken(f"{name} of {where} is no time: {shown(told)}") from None


def agent(value: Any, where: str) -> None:
    member(value, "agent_id", str, where)
    metadata(member(value, "metadata", dict, where), f"the metadata of {where}")


def metadata(value: Any, where: str) -> None:
    for name in ("ref.name", "ref.version", "description"):
        member(value, name, str, where)


def descriptor(value: Any, where: str) -> None:
    metadata(member(value, "metadata", dict, where), f"the metadata of {where}")
    for name in ("capabilities", "input", "output", "config"):
        member(value, f"specs.{name}", dict, where)


def run(value: Any, where: str) -> None:
    for name in ("run_id", "agent_id"):
        member(value, name, str, where)
    _moments(value, where)
    _one_of(value, "status", RUN_STATUSES, where)
    member(value, "creation", dict, where)


def thread(value: Any, where: str) -> None:
    member(value, "thread_id", str, where)
    _moments(value, where)
    member(value, "metadata", dict, where)
    _one_of(value, "status", THREAD_STATUSES, where)


def state(value: Any, where: str) -> None:
    member(value, "checkpoint.checkpoint_id", str, where)
    member(value, "values", object, where)


def output(value: Any, where: str) -> None:
    kind = _one_of(value, "type", OUTPUTS, where)
    if kind == "interrupt":
        member(value, "interrupt", object, where)
    elif kind == "error":
        _error(value, where)


def _error(value: Any, where: str) -> None:
    for name in ("run_id", "description"):
        member(value, name, str, where)
    member(value, "errcode", int, where)


def waited(value: Any, where: str) -> None:
    """Neither part of the answer is required; where one is there, it is what it should be."""
    told = member(value, "", dict, where)
    if told.get("run") is not None:
        run(told["run"], f"the run in {where}")
    output(member(told, "output", dict, where), f"the output in {where}")


def update(value: Any, where: str) -> None:
    kind = _one_of(value, "type", UPDATES, where)
    _one_of(value, "status", RUN_STATUSES, where)
    if kind != "custom":
        member(value, "run_id", str, where)
    if kind == "error":
        _error(value, where)
    else:
        member(value, {"custom": "update"}.get(kind, kind), dict if kind == "custom" else object, where)

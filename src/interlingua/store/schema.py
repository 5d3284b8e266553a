"""Versions of a store's tables: that of a store, that of this program, and the steps in between.

A step is a numbered `.sql` file. One that begins with `-- alone: WHY` may not be taken while older processes use the
store: they would go on writing as before. Taking the steps is for the store of each kind.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ..model.errors import Conflict
from .rows import WorkerRow

_ALONE = "-- alone: "


class Step(msgspec.Struct, frozen=True):
    number: int
    name: str
    sql: str
    alone: str = ""  # why no older process may be there


class Plan(msgspec.Struct, frozen=True):
    """The steps from a store's version to this program's."""

    found: int  # the version of the store; 0: there is nothing yet
    known: int
    ahead: list[Step]
    alive: list[WorkerRow] = []  # workers that use the store, if a step must be taken alone


def steps(kind: str) -> list[Step]:
    files = sorted((Path(__file__).parent / "migrations" / kind).glob("*.sql"))
    return [step(number, file.name, file.read_text(encoding="utf-8")) for number, file in enumerate(files, 1)]


def step(number: int, name: str, sql: str) -> Step:
    first = sql.partition("\n")[0]
    return Step(number, name, sql, first.removeprefix(_ALONE) if first.startswith(_ALONE) else "")


def plan(where: str, found: int, known: list[Step], alive: Callable[[], list[WorkerRow]]) -> Plan:
    """Raises where the store is of a newer program."""
    if found > len(known):
        raise Conflict(
            f"{where} was written by a newer version of Interlingua: its schema is {found}, and this program knows "
            f"{len(known)}; upgrade this one first. The store was not changed"
        )
    ahead = known[found:]
    alone = bool(found) and any(step.alone for step in ahead)
    return Plan(found, len(known), ahead, alive() if alone else [])


def check_readable(where: str, plan: Plan) -> None:
    """Raises where a store cannot be read as it is: only a process that may write can migrate it."""
    if plan.ahead:
        raise Conflict(
            f"{where} has schema {plan.found}, and this program reads schema {plan.known}; run `interlingua store "
            "migrate` first"
        )


def too_old(where: str, instead: str) -> Conflict:
    """The error for a store of the time before the first release."""
    return Conflict(
        f"{where} was written by an early version of Interlingua, before its first release, and cannot be read by this "
        f"one. It was not changed; use {instead}"
    )


def refuse_beside_others(where: str, plan: Plan) -> None:
    """Raises if a step must be taken alone, and workers use the store."""
    if not plan.alive:
        return
    why = "; ".join(f"{step.name}: {step.alone}" for step in plan.ahead if step.alone)
    there = ", ".join(f"{worker.host} pid {worker.pid}" for worker in plan.alive)
    raise Conflict(
        f"{where} cannot be migrated from schema {plan.found} to {plan.known} while older processes use it ({why}). "
        f"Stop them first: {there}"
    )

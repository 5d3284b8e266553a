"""Only the clock reads time, and every task has an owner: in the engine, the store, the bus and the model."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "interlingua"
PACKAGES = ("engine", "store", "bus", "model")

READS_TIME = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}  # of module time
SETS_TIMERS = {"call_later", "call_at"}
STARTS_TASKS = {"create_task", "ensure_future"}

# Ids hold the time at which they were made; they are no clock.
IDS = "engine/ids.py"

# Tasks that belong to one object, which ends them itself.
OWNERS = {
    "engine/execution/execution.py": 1,  # the handler, which the worker leaves
    "engine/handler/child_runs.py": 1, "engine/handler/mounted_run.py": 3,  # they end with the call that starts them
}  # fmt: skip


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((SOURCE / package).rglob("*.py")):
            yield path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text())


def calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str, str]]:
    """All calls of attributes, with the source of what has the attribute, and its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node, ast.unparse(node.func.value), node.func.attr


def reads_time(tree: ast.Module) -> Iterator[int]:
    for node, owner, name in calls(tree):
        of_module = owner == "time" and name in READS_TIME
        of_loop = name == "time" and owner.endswith(("loop", "loop()")) and not node.args
        of_date = name in ("now", "utcnow", "today") and owner.endswith(("datetime", "date"))
        if of_module or of_loop or of_date:
            yield node.lineno
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("ids"):
            yield from (node.lineno for name in node.names if name.name == "now")
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (node.lineno for name in node.names if name.name in READS_TIME)


def sets_timers(tree: ast.Module) -> Iterator[int]:
    for node, owner, name in calls(tree):
        if name in SETS_TIMERS and not owner.endswith(("clock", "replay")):  # a replay has calls of the handler
            yield node.lineno


def starts_tasks(tree: ast.Module) -> Iterator[int]:
    for node, _, name in calls(tree):
        if name in STARTS_TASKS:
            yield node.lineno


def test_only_the_clock_reads_time() -> None:
    found = [f"{name}:{line}" for name, tree in modules() if name != IDS for line in reads_time(tree)]
    assert found == [], "read the clock that the engine and the store are given"


def test_only_the_clock_sets_timers() -> None:
    found = [f"{name}:{line}" for name, tree in modules() for line in sets_timers(tree)]
    assert found == [], "set timers with call_at of the clock"


def sleeps(tree: ast.Module) -> Iterator[int]:
    for node, owner, name in calls(tree):
        if owner == "asyncio" and name == "sleep" and ast.unparse(node.args[0]) != "0":  # a turn of the loop is no time
            yield node.lineno


def test_only_the_clock_sleeps() -> None:
    found = [f"{name}:{line}" for name, tree in modules() for line in sleeps(tree)]
    assert found == [], "sleep by the clock that the engine and the store are given"


def test_every_task_has_an_owner() -> None:
    found = {name: len(lines) for name, tree in modules() if (lines := list(starts_tasks(tree)))}
    assert found == OWNERS, "start tasks in a JobGroup"

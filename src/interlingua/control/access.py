"""Decides what a caller of the control API sees. What it may not see does not exist for it."""

from __future__ import annotations

from ..engine.engine import Engine
from ..model.errors import QuestionNotFound, RunNotFound, ThreadNotFound
from ..model.run import Caller, QuestionRecord, Run, Thread
from ..security import scopes


def is_owner(caller: Caller) -> bool:
    """Returns whether a caller sees everything: also sealed runs, which only overseers and the owner may read."""
    return scopes.EVERYTHING in caller.scopes


def reach(caller: Caller) -> list[str] | None:
    """Returns the patterns of the agents whose runs a caller may find; None: all of them."""
    patterns = [scope.removeprefix("agents:") for scope in caller.scopes if scope.startswith("agents:")]
    return None if is_owner(caller) or not patterns else patterns


def own(caller: Caller) -> str | None:
    """Returns the caller whose runs are found; None: those of all callers."""
    return None if scopes.sees(caller, "*") else caller.id


def allows(caller: Caller, action: scopes.Action, owner: str, agent: str) -> bool:
    """Returns whether a run of this owner and agent is there for a caller that wants to do this."""
    return scopes.sees(caller, owner) and bool(scopes.may(caller, action, agent))


async def find_run(engine: Engine, run: str, caller: Caller, action: scopes.Action = "read") -> Run:
    """Returns a run. One that the caller may not see, or whose agent it may not reach, is not there."""
    view = await engine.runs.get(run, sealed=is_owner(caller))
    if scopes.sees(caller, view.caller):
        scopes.require(caller, action)
    if not allows(caller, action, view.caller, f"{view.agent}@{view.version}"):
        raise RunNotFound(f"there is no run {run}")
    return view


async def find_question(
    engine: Engine, question: str, caller: Caller, action: scopes.Action = "read"
) -> QuestionRecord:
    record = await engine.questions.get(question)
    row = await engine.runs.find_row(record.question.run)
    answerer = record.question.answerer
    if row is None or (row.sealed and not is_owner(caller) and answerer != caller.id):
        raise QuestionNotFound(f"there is no question {question}")
    scopes.require(caller, action)
    if answerer != caller.id and not allows(caller, action, row.caller, f"{row.agent}@{row.version}"):
        raise QuestionNotFound(f"there is no question {question}")
    return record


async def visible(engine: Engine, records: list[QuestionRecord], caller: Caller) -> list[QuestionRecord]:
    """Returns the questions of agents that a caller may reach."""
    if reach(caller) is None:
        return records
    shown = []
    for record in records:
        row = await engine.runs.find_row(record.question.run)
        if row is not None and scopes.may(caller, "read", f"{row.agent}@{row.version}"):
            shown.append(record)
    return shown


async def find_thread(engine: Engine, thread: str, caller: Caller, action: scopes.Action = "read") -> Thread:
    found = await engine.threads.get(thread)
    if not scopes.sees(caller, found.caller):
        raise ThreadNotFound(f"there is no thread {thread}")
    scopes.require(caller, action)
    return found

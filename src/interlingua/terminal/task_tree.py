"""The tree of a task on a terminal, and as JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.text import Text
from rich.tree import Tree

from ..server.audit import Branch, Judged
from . import times
from .console import clean
from .short_ids import short

_TIMES = ("time", "started_at", "ended_at")
_STYLES = {"succeeded": "green", "failed": "red", "timed_out": "red", "cancelled": "dim", "waiting": "bold magenta"}


def plain(branch: Branch) -> dict[str, Any]:
    """Returns the tree as JSON, with times that programs can read."""
    data: dict[str, Any] = msgspec.to_builtins(branch)
    stack: list[dict[str, Any]] = [data]
    while stack:
        one = stack.pop()
        if isinstance(one.get("started_at"), int) and isinstance(one.get("ended_at"), int):
            one["seconds"] = (one["ended_at"] - one["started_at"]) / 1e6
        for name in _TIMES:
            if isinstance(one.get(name), int):
                one[name] = times.iso(one[name])
        for member in one.values():
            stack.extend(each for each in (member if isinstance(member, list) else [member]) if isinstance(each, dict))
    return data


def view(branch: Branch, now: int) -> Tree:
    root = Tree(_head(branch, now), guide_style="dim")
    stack = [(branch, root)]
    while stack:
        one, tree = stack.pop()
        for text in _details(one):
            tree.add(text)
        stack.extend((child, tree.add(_head(child, now))) for child in one.children)
    return root


def _head(branch: Branch, now: int) -> Text:
    head = Text.assemble((f"{branch.task}  " if branch.task else "", "bold cyan"))
    head.append(clean(branch.participant or branch.agent), "bold")
    if branch.participant:
        head.append(f"  {clean(branch.agent)}", "dim")
    if branch.deleted:
        head.append("  deleted", "red")
    status = branch.status.value if branch.status is not None else ""
    head.append(f"  {status.replace('_', ' ')}", _STYLES.get(status, "yellow"))
    if branch.started_at is not None:
        took = times.span((branch.ended_at or now) - branch.started_at)
        head.append(f"  {times.iso(branch.started_at)[:19]}Z  {took}")
        if branch.ended_at is None:
            head.append(", not finished", "yellow")
    head.append(f"  {short(branch.run)}", "dim")
    if branch.sealed:
        head.append("  sealed", "magenta")
    return head


def _details(branch: Branch) -> list[Text]:
    """Returns the further facts about a run, one line each."""
    told: list[Text] = []

    def say(what: str, text: str, style: str = "") -> None:
        told.append(Text.assemble((f"{what} ", style or "dim"), _line(text)))

    if branch.delegated_by is not None:
        why = branch.reason or (f"rule: {branch.rule}" if branch.rule else "")
        say("delegated by", f"{branch.delegated_by}{f': {why}' if why else ''}")
    if branch.asked:
        say("judges" if branch.proposal is not None else "asked", branch.asked)
    if branch.verdict is not None:
        say("verdict", _judged(branch.verdict))
    for review in branch.reviews:
        say("reviewed", f"by {review.by}: {_judged(review)}")
    for refusal in branch.refusals:
        say("refused", f"{refusal.what}: {refusal.reason} ({refusal.code})", "red")
    for step in branch.handled:
        say("handled", f"{step.code} of {step.agent}: {step.do}{f' to {step.to}' if step.to else ''}")
    if branch.error is not None:
        say("error", f"{branch.error.message} ({branch.error.code})", "red")
    return told


def _judged(judged: Judged) -> str:
    return f"{judged.decision}{f', {judged.text}' if judged.text else ''}"


def _line(text: str) -> str:
    text = " ".join(clean(text).split())
    return text if len(text) <= 200 else text[:199] + "…"

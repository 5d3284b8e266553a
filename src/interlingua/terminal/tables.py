"""Runs, threads and questions on stdout: tables for people, JSON for programs."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..model.content import Message
from ..model.events import Event, RunCreated
from ..model.run import Blocked, Checkpoint, Question, Run, Thread
from . import inbox, times
from .console import as_json, clean, console
from .events.as_json import event_json, plain
from .events.log_lines import line_of
from .inbox import Context, Entry
from .parts import parts_view, question_view
from .short_ids import short
from .typed_answers import describe_fields, example_of

_STYLES = {
    "pending": "dim",
    "running": "yellow",
    "waiting": "bold magenta",
    "cancelling": "yellow",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "dim",
    "timed_out": "red",
    "open": "bold magenta",
    "answered": "green",
    "expired": "red",
    "withdrawn": "dim",
    "busy": "yellow",
    "interrupted": "magenta",
    "error": "red",
}


def _now() -> int:
    return time.time_ns() // 1000


def _print_json(value: Any) -> None:
    sys.stdout.write(as_json(value) + "\n")


def _status(status: str) -> Text:
    return Text(status.replace("_", " "), _STYLES.get(status, ""))


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, show_edge=False)
    for column in columns:
        fixed = column in ("id", "run", "status", "when", "age", "deadline", "seq", "time", "kind")
        table.add_column(column, no_wrap=fixed, overflow="fold" if fixed else "ellipsis")
    return table


def _cell(text: str, length: int = 60) -> Text:
    text = " ".join(clean(text).split())
    return Text(text if len(text) <= length else text[: length - 1] + "…")


def _said(run: Run) -> str:
    """Returns the input of a run, in a few words."""
    if run.request is None:
        return ""
    members = run.request.input
    if isinstance(members, dict) and len(members) == 1:
        value = next(iter(members.values()))
        if isinstance(value, str):
            return value
    return as_json(members, pretty=False)


def _blocked(blocked: Blocked) -> Text:
    return Text.assemble(("blocked ", "bold yellow"), _cell(blocked.message, 100))


def runs(found: list[Run], *, json: bool, filtered: bool) -> None:
    if json:
        _print_json([plain(run) for run in found])
    elif not found:
        console().print("No such runs." if filtered else "No runs yet. Try: interlingua demo")
    else:
        now = _now()
        table = _table("id", "agent", "status", "when", "thread", "input")
        for run in found:
            table.add_row(
                short(run.id), _cell(run.agent, 40), _status(run.status), times.ago(run.created_at, now),
                _cell(short(run.thread or ""), 20), _cell(_said(run)) if run.blocked is None else _blocked(run.blocked),
            )  # fmt: skip
        console().print(table)


def run(run: Run, events: list[Event], *, json: bool, sealed: bool = False) -> None:
    if json:
        _print_json(
            {
                **plain(run),
                **({"sealed": True} if sealed else {}),
                "events": [event_json(event) for event in events],
            }
        )
        return
    now = _now()
    _title("run", run.id)
    _row("agent", f"{run.agent} {run.version}")
    _row("origin", run.origin.strip())
    _row("status", _status(run.status))
    if run.blocked is not None:
        _row("blocked", f"{run.blocked.message} ({run.blocked.reason})")
        if run.blocked.reason != "no_code":
            _row("goes on", f"with other code, or after: interlingua runs retry {short(run.id)}")
    if sealed:
        _row("sealed", "nobody but the owner reads this: it is the work of an overseen agent, or about it")
    _row("created", f"{times.ago(run.created_at, now)} ({times.iso(run.created_at)})")
    if run.status.final:
        _row("took", times.span(run.updated_at - run.created_at))
    for name, value in _facts(run, events).items():
        if value:
            _row(name, value)
    for question_ in run.questions:
        console().print(question_view(question_))
        _row("answer with", _how(question_))
    console().print()
    _log_table(run, events)


def _facts(run: Run, events: list[Event]) -> dict[str, str | None]:
    """Returns what is only shown of runs that have it."""
    created = events[0].body if events else None
    continues = created.continues if isinstance(created, RunCreated) else None
    request = run.request
    return {
        "thread": run.thread,
        "called by": run.parent,
        "continues": f"run {continues.run}, from event {continues.seq}" if continues is not None else None,
        "input": as_json(request.input) if request is not None else None,
        "config": as_json(request.config) if request is not None and request.config is not None else None,
        "metadata": as_json(run.metadata) if run.metadata else None,
        "output": as_json(run.output) if run.output is not None else None,
        "error": f"{run.error.message} ({run.error.code})" if run.error is not None else None,
        "usage": as_json(run.usage) if run.usage else None,
    }


def _log_table(run: Run, events: list[Event]) -> None:
    table = _table("seq", "time", "kind", "what")
    for event in events:
        seq = str(event.seq) if event.first in (0, event.seq) else f"{event.first}-{event.seq}"
        after = f"+{(event.time - run.created_at) / 1e6:.3f}"
        table.add_row(seq, after, event.kind, _cell(line_of(event), 120))
    console().print(table)


def ended(found: list[Run], *, json: bool) -> None:
    if json:
        _print_json([plain(run) for run in found])
        return
    for run in found:
        console().print(Text.assemble(f"run {short(run.id)} ", _status(run.status)))


def retried(found: list[tuple[str, Run]], *, json: bool) -> None:
    if json:
        _print_json([plain(run) for _, run in found])
        return
    for before, run in found:
        if run.id == before:
            console().print(f"run {short(run.id)} goes on")
        else:
            ended = f"; it has {run.status.value}" if run.status.final else ""
            console().print(f"run {run.id} continues run {short(before)}{ended}")


def threads(found: list[Thread], *, json: bool, filtered: bool) -> None:
    if json:
        _print_json([plain(thread) for thread in found])
    elif not found:
        console().print("No such threads." if filtered else "No threads yet. Try: interlingua run FILE --thread NAME")
    else:
        now = _now()
        table = _table("id", "status", "when", "state")
        for thread in found:
            state = "" if thread.values is None else as_json(thread.values, pretty=False)
            updated = times.ago(thread.updated_at, now)
            table.add_row(Text(clean(short(thread.id))), _status(thread.status), updated, _cell(state))
        console().print(table)


def thread(thread: Thread, messages: list[Message], runs: list[Run], *, json: bool) -> None:
    if json:
        import msgspec

        extra = {"messages": msgspec.to_builtins(messages), "runs": [run.id for run in runs]}
        _print_json({**plain(thread), **extra})
        return
    now = _now()
    _title("thread", thread.id)
    _row("status", _status(thread.status))
    _row("created", times.ago(thread.created_at, now))
    _row("changed", times.ago(thread.updated_at, now))
    if thread.active:
        _row("active run", thread.active)
    if thread.metadata:
        _row("metadata", as_json(thread.metadata))
    _row("state", "(none yet)" if thread.values is None else as_json(thread.values))
    if messages:
        console().print()
        table = _table("who", "said")
        for message in messages:
            table.add_row(message.role, _cell(message.text or "(no text)", 200))
        console().print(table)
    if runs:
        console().print()
        table = _table("run", "status", "when", "agent")
        for run in runs:
            created = times.ago(run.created_at, now)
            table.add_row(short(run.id), _status(run.status), created, _cell(run.agent, 40))
        console().print(table)


def history(checkpoints: list[Checkpoint], *, json: bool) -> None:
    if json:
        _print_json([plain(checkpoint) for checkpoint in checkpoints])
    elif not checkpoints:
        console().print("No history yet: no run on this thread has succeeded.")
    else:
        now = _now()
        table = _table("version", "id", "when", "run", "state")
        for point in checkpoints:
            table.add_row(
                str(point.version), short(point.id), times.ago(point.created_at, now), short(point.run or "–"),
                _cell(as_json(point.values, pretty=False), 100),
            )  # fmt: skip
        console().print(table)


def questions(found: list[Entry], *, json: bool, all_: bool) -> None:
    if json:
        _print_json([inbox.plain(entry) for entry in found])
    elif not found:
        console().print("No such questions." if all_ else "Nothing waits for an answer.")
    else:
        now = _now()
        table = _table("id", "age", *(["status"] if all_ else []), "asked by", "question", "may answer", "deadline")
        for entry in found:
            asked = entry.record.question
            mount = f" ({entry.mount})" if entry.mount else ""
            table.add_row(
                short(asked.id), times.age(asked.asked_at, now),
                *([_status(entry.record.state)] if all_ else []), _cell(entry.way + mount, 60),
                _cell(f"{asked.prompt or asked.type}  ({asked.type})", 80), _cell(entry.may_answer(), 40),
                times.until(asked.deadline, now) if asked.deadline and entry.record.state == "open" else "–",
            )  # fmt: skip
        console().print(table)


def question(entry: Entry, context: Context, *, json: bool) -> None:
    if json:
        _print_json({**inbox.plain(entry), **inbox.plain_context(context)})
        return
    now = _now()
    record, asked = entry.record, entry.record.question
    _title("question", asked.id)
    _row("status", _status(record.state))
    _row("asked", f"{times.ago(asked.asked_at, now)} ({times.iso(asked.asked_at)})")
    _row("by", f"{entry.way}{f', {context.participant}' if context.participant else ''}")
    for link in entry.lineage:
        where = f", mounted from {link.mounted_from}" if link.mounted_from else ""
        thread = f", thread {link.thread}" if link.thread else ""
        _row("run", f"{link.run}  {link.agent} {link.version}, {link.status.replace('_', ' ')}{thread}{where}")
    if asked.deadline is not None:
        left = f"{times.until(asked.deadline, now)}, " if record.state == "open" else ""
        _row("deadline", f"{left}{times.iso(asked.deadline)}")
    if record.reminders:
        _row("reminders", _reminders(entry, now))
    for number, (kind, text) in enumerate(context.said):
        _row("before that" if number == 0 else "", Text.assemble((f"{kind} ", "dim"), clean(text)))
    console().print(question_view(asked))
    for number, option in enumerate(asked.options, 1):
        console().print(Text(f"  {number}) {clean(option.label)}  ({clean(option.id)})"))
    if context.attachments:
        _row("attached", "")
        console().print(Padding(parts_view(context.attachments), (0, 0, 0, 12), expand=False))
    if record.answer is not None:
        through = f" through {record.answer.door}" if record.answer.door else ""
        when = f", {times.ago(record.closed_at, now)}" if record.closed_at is not None else ""
        _row("answer", as_json(record.answer.value))
        _row("answered", f"by {entry.name(record.answer.by) or 'somebody'}{through}{when}")
    elif record.state != "open":
        _row(record.state, record.reason or "nobody answered in time")
    else:
        _row("may answer", entry.may_answer_fully())
        for line in describe_fields(asked.answer_schema):
            _row("answer has", line)
        _row("answer with", _how(asked))


def _reminders(entry: Entry, now: int) -> str:
    record = entry.record
    told = f"{record.reminded} of {record.reminders} sent"
    if record.reminded_at is not None:
        told += f", the last {times.ago(record.reminded_at, now)}"
    return told + (f", the next {times.until(record.remind_at, now)}" if record.remind_at is not None else "")


def callbacks(found: list[dict[str, Any]], *, filtered: bool) -> None:
    if not found:
        console().print("No callback has failed." if filtered else "No callbacks.")
        return
    table = _table("id", "run", "status", "state", "tries", "next try", "where to", "last error")
    for row in found:
        table.add_row(
            str(row["id"]), short(row["run"]), _status(row["status"]), row["state"], str(row["tries"]),
            (row["next_try"] or "")[:19], _cell(row["url"], 60), _cell(row["last_error"] or "", 60),
        )  # fmt: skip
    console().print(table)


def _how(question: Question) -> str:
    example = example_of(question.answer_schema, question.options)
    return f"interlingua questions answer {short(question.id)} {example}"


def _title(what: str, id_: str) -> None:
    console().print(Text.assemble((f"{what} ", "bold"), clean(id_)))


def _row(name: str, value: str | Text) -> None:
    text = Text(clean(value)) if isinstance(value, str) else value
    lines = text.split("\n")
    for number, line in enumerate(lines):
        head = f"{name:<12}" if number == 0 else " " * 12
        console().print(Text.assemble((head, "dim"), line), soft_wrap=True)

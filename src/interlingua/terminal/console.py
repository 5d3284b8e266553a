"""Renders consoles, questions, and the activity of an agent while it runs.

Everything that an agent says passes through `clean` first: text must not be able to drive the terminal.
"""

from __future__ import annotations

import difflib
import re
import sys
from functools import lru_cache
from typing import Any

import msgspec
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from ..model import json_values
from ..model.content import DataPart, FilePart, Part, TextPart, ToolResultPart
from ..model.events import (
    ArtifactAdded,
    CancelRequested,
    ChildCalled,
    ChildEnded,
    DelegationRefused,
    Diff,
    Event,
    MessageReceived,
    MessageSent,
    Plan,
    RunBlocked,
    RunRestarted,
    Thought,
    ToolCall,
    Warned,
)
from ..model.run import Question

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_MARKS = {
    "pending": ("○", "dim"),
    "in_progress": ("▸", "yellow"),
    "completed": ("✓", "green"),
    "failed": ("✗", "red"),
    "cancelled": ("–", "dim"),
}
_LONG = 12  # lines of a diff, a tool's output or an artifact


def clean(text: str) -> str:
    """Removes characters that move cursors, change colours or turn the direction of writing."""
    return _CONTROL.sub("", text)


@lru_cache(maxsize=2)
def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    # Without a terminal there is no width to fit; what is piped should not be cut.
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else 160)


def console() -> Console:
    return _console(False)


def error_console() -> Console:
    return _console(True)


def note(text: str) -> None:
    """Prints a remark of the program on stderr."""
    error_console().print(Text(clean(text), "dim"), soft_wrap=True)


def as_json(value: Any, *, pretty: bool = True) -> str:
    data = json_values.encode(value)
    return (msgspec.json.format(data, indent=2) if pretty else data).decode()


def question_view(question: Question) -> RenderableType:
    """Renders a question, with everything that a person should know before answering."""
    lines: list[RenderableType] = [Text(clean(question.prompt or question.type), "bold")]
    payload = question.payload if isinstance(question.payload, dict) else {"": question.payload}
    for name, value in payload.items():
        if value == question.prompt or (name == "options" and question.options):
            continue
        diffs = _diffs_in(name, value)
        if diffs:
            lines += [Padding(view, (0, 0, 0, 2), expand=False) for view in diffs]
            continue
        text = value if isinstance(value, str) else _short_value(value)
        if "\n" in text:
            lines += [Text(f"{clean(name)}:", "cyan"), Padding(Text(clean(text)), (0, 0, 0, 2), expand=False)]
        else:
            lines.append(Text.assemble((f"{clean(name)}: " if name else "", "cyan"), clean(text)))
    title = Text(f"question · {clean(question.type)}", "yellow")
    if not error_console().is_terminal:
        return Group(title, *lines)
    return Panel(Group(*lines), title=title, title_align="left", border_style="yellow", expand=False)


def _diffs_in(name: str, value: Any) -> list[RenderableType]:
    """Changes that a question is about: `diffs` as agents tell them, or `diff` as text."""
    if name == "diff" and isinstance(value, str):
        return [patch_view(value)]
    if name != "diffs" or not isinstance(value, list):
        return []
    try:
        return [diff_view(diff) for diff in msgspec.convert(value, list[Diff])]
    except msgspec.ValidationError:
        return []


def _short_value(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return ", ".join(str(item) for item in value)
    return as_json(value)


class Activity:
    """Renders what an agent does beside its output, as it goes on."""

    def __init__(self) -> None:
        self._plan: list[tuple[str, str]] = []
        self._tools: dict[str, ToolCall] = {}

    def view(self, event: Event) -> RenderableType | None:
        """Renders an event; returns None if there is nothing to show."""
        match event.body:
            case Thought(text=text):
                return Text(f"· {clean(text)}", "dim italic")
            case Plan() as plan:
                return self._plan_view(plan)
            case ToolCall() as call:
                return self._tool_view(call)
            case ArtifactAdded(artifact=artifact):
                head = Text.assemble(("artifact ", "magenta"), clean(artifact.name or artifact.id))
                return Group(head, Padding(parts_view(artifact.parts), (0, 0, 0, 2), expand=False))
            case MessageSent(message=message):
                return Group(Text("message", "blue"), Padding(parts_view(message.parts), (0, 0, 0, 2), expand=False))
            case MessageReceived(message=message):
                return Text.assemble(("received ", "blue"), clean(message.text))
            case Warned(message=message):
                return Text.assemble(("warning: ", "bold yellow"), clean(message))
            case RunBlocked(message=message):
                return Text.assemble(("blocked: ", "bold yellow"), clean(message))
            case ChildCalled(agent=agent):
                return Text.assemble(("→ calls ", "dim"), clean(agent))
            case ChildEnded(status=status, key=key):
                return Text.assemble(("← ", "dim"), f"{clean(key.split(':')[1] if ':' in key else key)} {status.value}")
            case DelegationRefused(agent=agent, reason=reason):
                return Text.assemble(("refused ", "red"), f"{clean(agent)}: {clean(reason)}")
            case RunRestarted(reason=reason):
                return Text(f"the agent started again: {clean(reason)}", "yellow")
            case CancelRequested(reason=reason):
                return Text(f"cancelling{f': {clean(reason)}' if reason else ''} …", "yellow")
        return None

    def _plan_view(self, plan: Plan) -> RenderableType | None:
        entries: list[tuple[str, str]] = [(entry.content, entry.status) for entry in plan.entries]
        if entries == self._plan:
            return None
        self._plan = entries
        lines: list[RenderableType] = [Text("plan", "cyan")]
        for content, status in entries:
            mark, style = _MARKS[status]
            lines.append(Text.assemble(f"  {mark} ", clean(content), style=style))
        return Group(*lines)

    def _tool_view(self, news: ToolCall) -> RenderableType:
        known = self._tools.get(news.id)
        if known is not None:
            changes = {name: value for name in news.__struct_fields__ if (value := getattr(news, name)) is not None}
            call = msgspec.structs.replace(known, **changes)
        else:
            call = news
        self._tools[news.id] = call
        mark, style = _MARKS[call.status or "pending"]
        head = Text.assemble((f"{mark} ", style), (clean(call.title or call.tool or call.id), "bold"))
        if call.status:
            head.append(f" {call.status.replace('_', ' ')}", style)
        for location in news.locations or []:
            head.append(f" {clean(location.path)}{f':{location.line}' if location.line else ''}", "dim")
        lines: list[RenderableType] = [head]
        if news.input is not None:
            lines.append(
                Padding(Text(clean(_cut(as_json(news.input, pretty=False), 200)), "dim"), (0, 0, 0, 2), expand=False)
            )
        for diff in news.diffs or []:
            lines.append(Padding(diff_view(diff), (0, 0, 0, 2), expand=False))
        if news.content:
            lines.append(Padding(parts_view([_as_part(part) for part in news.content]), (0, 0, 0, 2), expand=False))
        if news.output is not None and not news.content:
            text = news.output if isinstance(news.output, str) else as_json(news.output)
            lines.append(Padding(Text(clean(_some_lines(text)), "dim"), (0, 0, 0, 2), expand=False))
        return lines[0] if len(lines) == 1 else Group(*lines)


def diff_view(diff: Diff) -> RenderableType:
    old, new = (diff.old or "").splitlines(), diff.new.splitlines()
    lines = list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]
    return Group(Text(clean(diff.path), "bold"), patch_view("\n".join(lines)))


def patch_view(patch: str) -> Text:
    """Lines of a diff, in colour."""
    lines = patch.split("\n")
    view = Text()
    for number, line in enumerate(lines[: _LONG * 3]):
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        view.append(("\n" if number else "") + clean(line), style)
    if len(lines) > _LONG * 3:
        view.append(f"\n… {len(lines) - _LONG * 3} more lines", "dim")
    return view


def parts_view(parts: list[Part]) -> RenderableType:
    return Group(*(_part_view(part) for part in parts))


def _part_view(part: Part) -> Text:
    match part:
        case TextPart(text=text):
            if text.startswith("```diff\n") and text.endswith("```"):
                return patch_view(text[8:-3].rstrip("\n"))
            return Text(clean(_some_lines(text)))
        case FilePart():
            size = part.size or len(part.data or part.text or "")
            what = part.url or part.name or part.title or part.media_type or "file"
            return Text(f"file {clean(what)}" + (f" ({size} bytes)" if size else ""))
        case DataPart(data=data):
            return Text(clean(_some_lines(as_json(data))))
        case ToolResultPart(tool=tool, result=result, failed=failed):
            return Text(f"{clean(tool)}{' failed' if failed else ''}: {clean(_some_lines(as_json(result)))}")


def _as_part(value: Any) -> Part:
    """Turns a value into a part: tool content comes back from the log as plain JSON."""
    if isinstance(value, dict):
        try:
            part: Part = msgspec.convert(value, Part)
            return part
        except msgspec.ValidationError:
            return DataPart(value)
    return value if isinstance(value, TextPart | FilePart | DataPart | ToolResultPart) else DataPart(value)


def _some_lines(text: str) -> str:
    lines = text.rstrip("\n").split("\n")
    return "\n".join([*lines[:_LONG], f"… {len(lines) - _LONG} more lines"] if len(lines) > _LONG else lines)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"

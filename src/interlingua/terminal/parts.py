"""Renders questions, and the content of messages, artifacts and tool calls: text, files, objects, results and diffs."""

from __future__ import annotations

import difflib
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from ..model.content import DataPart, FilePart, Part, TextPart, ToolResultPart
from ..model.events import Diff
from ..model.run import Question
from .console import as_json, clean, error_console

LONG = 12  # lines of a diff, a tool's output, a message or an artifact
LINE = 120  # characters of what stands in one line


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


def diff_view(diff: Diff) -> RenderableType:
    old, new = (diff.old or "").splitlines(), diff.new.splitlines()
    lines = list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]
    return Group(Text(clean(diff.path), "bold"), patch_view("\n".join(lines)))


def patch_view(patch: str) -> Text:
    """Lines of a diff, in colour."""
    lines = patch.split("\n")
    view = Text()
    for number, line in enumerate(lines[: LONG * 3]):
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        view.append(("\n" if number else "") + clean(line), style)
    if len(lines) > LONG * 3:
        view.append(f"\n… {len(lines) - LONG * 3} more lines", "dim")
    return view


def parts_view(parts: list[Part]) -> RenderableType:
    return Group(*(_part_view(part) for part in parts))


def _part_view(part: Part) -> Text:
    match part:
        case TextPart(text=text):
            if text.startswith("```diff\n") and text.endswith("```"):
                return patch_view(text[8:-3].rstrip("\n"))
            return Text(clean(some_lines(text)))
        case FilePart():
            return Text(file_text(part))
        case DataPart(data=data):
            return Text(clean(some_lines(as_json(data))))
        case ToolResultPart(tool=tool, result=result, failed=failed):
            return Text(f"{clean(tool)}{' failed' if failed else ''}: {clean(some_lines(as_json(result)))}")


def as_part(value: Any) -> Part:
    """Turns a value into a part: tool content comes back from the log as plain JSON."""
    if isinstance(value, dict):
        try:
            part: Part = msgspec.convert(value, Part)
            return part
        except msgspec.ValidationError:
            return DataPart(value)
    return value if isinstance(value, TextPart | FilePart | DataPart | ToolResultPart) else DataPart(value)


def some_lines(text: str) -> str:
    lines = text.rstrip("\n").split("\n")
    return "\n".join([*lines[:LONG], f"… {len(lines) - LONG} more lines"] if len(lines) > LONG else lines)


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def one_line(text: str, length: int = LINE) -> str:
    return cut(" ".join(clean(text).split()), length)


def short_value(value: Any) -> str:
    return one_line(value if isinstance(value, str) else as_json(value, pretty=False))


def file_text(part: FilePart) -> str:
    """Returns a file in one line: its place or name, and its size."""
    size = part.size or len(part.data or part.text or "")
    name = part.url or part.name or part.title or part.media_type or "without a name"
    return f"file {one_line(name)}" + (f" ({size} bytes)" if size else "")

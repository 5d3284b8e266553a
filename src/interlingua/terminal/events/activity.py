"""Renders what an agent does beside its output, as it goes on."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ...model.events import ArtifactAdded, Event, MessageSent, Plan, ToolCall
from ..console import as_json, clean
from ..parts import as_part, cut, diff_view, parts_view, some_lines
from .heads import MARKS, ToolCalls, head


class Activity:
    def __init__(self) -> None:
        self._plan: list[tuple[str, str]] = []
        self._tools = ToolCalls()

    def view(self, event: Event) -> RenderableType | None:
        """Renders an event; returns None if there is nothing to show."""
        match event.body:
            case Plan() as plan:
                return self._plan_view(plan)
            case ToolCall() as call:
                return self._tool_view(event.run, call)
            case ArtifactAdded(artifact=artifact):
                return _below(head(event) or Text(), parts_view(artifact.parts))
            case MessageSent(message=message):
                return _below(Text("says", "blue"), parts_view(message.parts))
        return head(event)

    def _plan_view(self, plan: Plan) -> RenderableType | None:
        entries: list[tuple[str, str]] = [(entry.content, entry.status) for entry in plan.entries]
        if entries == self._plan:
            return None
        self._plan = entries
        lines: list[RenderableType] = [Text("plan", "cyan")]
        for content, status in entries:
            mark, style = MARKS[status]
            lines.append(Text.assemble(f"  {mark} ", clean(content), style=style))
        return Group(*lines)

    def _tool_view(self, run: str, news: ToolCall) -> RenderableType:
        call, _ = self._tools.joined(run, news)
        mark, style = MARKS[call.status or "pending"]
        first = Text.assemble((f"{mark} ", style), (clean(call.title or call.tool or call.id), "bold"))
        if call.status:
            first.append(f" {call.status.replace('_', ' ')}", style)
        for location in news.locations or []:
            first.append(f" {clean(location.path)}{f':{location.line}' if location.line else ''}", "dim")
        details: list[RenderableType] = []
        if news.input is not None:
            details.append(Text(clean(cut(as_json(news.input, pretty=False), 200)), "dim"))
        details += [diff_view(diff) for diff in news.diffs or []]
        if news.content:
            details.append(parts_view([as_part(part) for part in news.content]))
        elif news.output is not None:
            text = news.output if isinstance(news.output, str) else as_json(news.output)
            details.append(Text(clean(some_lines(text)), "dim"))
        return _below(first, *details)


def _below(first: Text, *details: RenderableType) -> RenderableType:
    """Renders details, indented, below the first line."""
    if not details:
        return first
    return Group(first, *(Padding(view, (0, 0, 0, 2), expand=False) for view in details))

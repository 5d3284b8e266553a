"""The first line of an event, in colour: the activity of one run and the conversation of a team show it alike.

`HEADS` has a row for each kind of event that is shown so. The activity adds details below; the conversation cuts the
text to one line and names the agent before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from rich.text import Text

from ...model.events import (
    ArtifactAdded,
    CancelRequested,
    ChildCalled,
    ChildEnded,
    DelegationRefused,
    ErrorHandled,
    Event,
    MessageReceived,
    MessageSent,
    RunBlocked,
    RunRestarted,
    Thought,
    ToolCall,
    ToolRefused,
    Warned,
)
from ..console import clean
from ..parts import LINE, one_line

Pieces = list[str | tuple[str, str]]
Shorten = Callable[[str], str]

MARKS = {
    "pending": ("○", "dim"),
    "in_progress": ("▸", "yellow"),
    "completed": ("✓", "green"),
    "failed": ("✗", "red"),
    "cancelled": ("–", "dim"),
}


def head(event: Event, shorten: Shorten = clean) -> Text | None:
    """Returns the first line of an event; None: it is shown otherwise, or not at all. `shorten` makes text fit."""
    row = HEADS.get(type(event.body))
    return None if row is None else Text.assemble(*row(event.body, shorten))


def _blocked(body: RunBlocked, shorten: Shorten) -> Pieces:
    return [("blocked: ", "bold yellow"), shorten(body.message)]


def _cancelling(body: CancelRequested, shorten: Shorten) -> Pieces:
    return [(f"cancelling{f': {shorten(body.reason)}' if body.reason else ''} …", "yellow")]


def _child_ended(body: ChildEnded, shorten: Shorten) -> Pieces:
    name = body.key.split(":")[1] if ":" in body.key else body.key
    return [("← ", "dim"), f"{shorten(name)} {body.status.value}"]


def _delegation_refused(body: DelegationRefused, shorten: Shorten) -> Pieces:
    return _refused(f"to delegate to {body.agent}", body.reason, body.code)


def _tool_refused(body: ToolRefused, shorten: Shorten) -> Pieces:
    return _refused(f"{body.server}.{body.tool}", body.reason, body.code)


def _refused(action: str, reason: str, code: str) -> Pieces:
    return [
        ("✗ refused ", "red"),
        (one_line(action), "bold"),
        f": {one_line(reason, 4 * LINE)}",
        (f" ({clean(code)})", "dim"),
    ]


HEADS: dict[type, Callable[[Any, Shorten], Pieces]] = {
    Thought: lambda body, shorten: [(f"· {shorten(body.text)}", "dim italic")],
    Warned: lambda body, shorten: [("warning: ", "bold yellow"), shorten(body.message)],
    ArtifactAdded: lambda body, shorten: [("artifact ", "magenta"), shorten(body.artifact.name or body.artifact.id)],
    MessageSent: lambda body, shorten: [("says ", "blue"), shorten(body.message.text)],
    MessageReceived: lambda body, shorten: [("received ", "blue"), shorten(body.message.text)],
    ChildCalled: lambda body, shorten: [("→ calls ", "dim"), shorten(body.agent)],
    ChildEnded: _child_ended,
    DelegationRefused: _delegation_refused,
    ToolRefused: _tool_refused,
    ErrorHandled: lambda body, shorten: [("policy ", "magenta"), policy(body)],
    RunBlocked: _blocked,
    RunRestarted: lambda body, shorten: [(f"started again: {shorten(body.reason)}", "yellow")],
    CancelRequested: _cancelling,
}


def policy(decision: ErrorHandled) -> str:
    """Describes what the policy of the team does about an error."""
    then = {
        "retry": f"retry in {decision.delay:g} s" if decision.delay else "retry at once",
        "reassign": f"reassign to {decision.to or 'the next one that is allowed'}",
        "escalate": f"escalate to {decision.to or 'nobody'}",
        "fail": "give up",
    }[decision.do]
    return one_line(f"{decision.agent} failed with {decision.number} {decision.code}: {then}") + (
        f" (step {decision.attempt})" if decision.attempt > 1 else ""
    )


class ToolCalls:
    """Joins the pieces in which a tool call is reported."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], ToolCall] = {}

    def joined(self, run: str, news: ToolCall) -> tuple[ToolCall, bool]:
        """Returns the call as it is now, and whether it is new."""
        known = self._calls.get((run, news.id))
        changes = {name: value for name in news.__struct_fields__ if (value := getattr(news, name)) is not None}
        call = self._calls[run, news.id] = news if known is None else msgspec.structs.replace(known, **changes)
        return call, known is None

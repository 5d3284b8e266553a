"""Turns the updates of a mounted agent into events of its run. Pure, both versions at once.

Version 1 appends and version 2 also replaces: there null clears and an absent member stays. Text that was streamed and
then replaced cannot be taken back from the log; the run's output at the end has the final text, which counts.

Lost are user messages (the run's request has them), unknown kinds and states, and patches as files (they show as text,
because they do not hold the files' whole content).
"""

from __future__ import annotations

import base64
import binascii
import codecs
from typing import Any, get_args

from ....model.content import DataPart, FilePart, Message, Part, TextPart
from ....model.errors import InvalidInput
from ....model.events import (
    Diff,
    Emission,
    Location,
    MessageSent,
    OutputDelta,
    Plan,
    PlanEntry,
    Thought,
    ToolCall,
    ToolKind,
    ToolStatus,
    Warned,
)
from ....model.whole_text import whole
from .. import translate

_KINDS = frozenset(get_args(ToolKind))
_STATUSES = frozenset(get_args(ToolStatus))
_PLAN_STATUSES = frozenset({"pending", "in_progress", "completed", "cancelled"})
_PRIORITIES = frozenset({"high", "medium", "low"})
_TERMINAL_KEEPS = 100_000  # characters of a terminal's output


class Incoming:
    """One turn. `place` names the step that all its events belong to."""

    def __init__(self, version: int, place: str) -> None:
        self._v2 = version >= 2
        self._place = place
        self._pieces: dict[str, list[str]] = {}  # the agent's messages, by id, in order
        self._level = True  # the streamed text equals the messages
        self._last = ""  # the end of the streamed text
        self._spoken_to = ""  # the message in progress, where the agent gives no ids
        self._unnamed = 0
        self._thought = 0
        self._contents: dict[str, list[Any]] = {}  # of tool calls
        self._plans: dict[str, list[PlanEntry]] = {}
        self._terminals: dict[str, _Terminal] = {}
        self.running_calls: set[str] = set()
        self.usage: dict[str, Any] = {}

    def speaks(self, version: int) -> None:
        self._v2 = version >= 2

    def go_on_from(self, shown: list[Emission]) -> None:
        """Takes the events that the log already holds, after a restart. The next message continues the last one,
        because ids are not in the log."""
        for body in shown:
            if isinstance(body, OutputDelta) and isinstance(body.delta, dict):
                self._pieces.setdefault("", []).append(str(body.delta.get("text", "")))

    @property
    def text(self) -> str:
        return whole("".join(piece for pieces in self._pieces.values() for piece in pieces))

    def take(self, update: dict[str, Any]) -> list[Emission]:
        """Returns the emissions of an update for the log. An update that makes no sense adds nothing."""
        kind = update.get("sessionUpdate")
        match kind:
            case "agent_message_chunk":
                return self._said(update)
            case "agent_message":
                return self._replaced(update)
            case "agent_thought_chunk" | "agent_thought":
                return self._thinks(update)
            case "tool_call" | "tool_call_update":
                return self._tool_call(update)
            case "tool_call_content_chunk":
                return self._tool_content(update)
            case "plan":
                return [self._plan("", update.get("entries"))]
            case "plan_update":
                plan = update.get("plan")
                if isinstance(plan, dict) and plan.get("type") == "items":
                    return [self._plan(str(plan.get("planId")), plan.get("entries"))]
            case "terminal_update" | "terminal_output_chunk":
                return self._terminal(update)
            case "usage_update":
                self._used(update)
            case "notice":
                text = ": ".join(str(update[name]) for name in ("title", "description") if update.get(name))
                return [Warned(text or "the agent gives notice", step=self._place)]
        return []

    # -- messages -----------------------------------------------------------------------------------------

    def _said(self, update: dict[str, Any]) -> list[Emission]:
        part = _part(update.get("content"))
        if not isinstance(part, TextPart):
            return [MessageSent(Message("agent", [part]), step=self._place)] if part is not None else []
        return self._append(self._message_of(update), part.text)

    def _message_of(self, update: dict[str, Any]) -> str:
        id_ = update.get("messageId")
        if isinstance(id_, str):
            return id_
        if not self._spoken_to:
            self._unnamed += 1
            self._spoken_to = f"#{self._unnamed}"
        return self._spoken_to

    def _append(self, message: str, text: str) -> list[Emission]:
        if not text:
            return []
        if message not in self._pieces:
            # Two messages are two paragraphs: agents write one, use a tool, and write the next.
            text = f"\n\n{text}" if self._last and self._last != "\n" else text
            self._pieces[message] = []
        elif self._level and next(reversed(self._pieces)) != message:
            self._level = False  # it goes on in the middle
        self._pieces[message].append(text)
        self._last = text[-1]
        return [OutputDelta({"text": text}, self._place)] if self._level else []

    def _replaced(self, update: dict[str, Any]) -> list[Emission]:
        """Takes a whole message. Where it continues the streamed text, the rest is streamed."""
        if "content" not in update:
            return []
        message = self._message_of(update)
        parts = [_part(entry) for entry in update["content"] or []]
        text = "".join(part.text for part in parts if isinstance(part, TextPart))
        others: list[Part] = [part for part in parts if part is not None and not isinstance(part, TextPart)]
        out: list[Emission] = [MessageSent(Message("agent", others), step=self._place)] if others else []
        known = "".join(self._pieces.get(message, []))
        gap = "\n\n" if known.startswith("\n\n") else ""
        if message not in self._pieces:
            return out + self._append(message, text)
        if (gap + text).startswith(known):
            return out + self._append(message, (gap + text)[len(known) :])
        if text:
            self._pieces[message] = [gap + text]
        else:
            del self._pieces[message]
        self._level = False
        return out

    def _thinks(self, update: dict[str, Any]) -> list[Emission]:
        message = update.get("messageId")
        blocks = update.get("content")
        texts = [_text_of(block) for block in (blocks if isinstance(blocks, list) else [blocks])]
        text = "".join(text for text in texts if text)
        if not text:
            return []
        id_ = message if isinstance(message, str) else f"thought-{self._thought}"
        return [Thought(text, id_, self._place)]

    # -- tools --------------------------------------------------------------------------------------------

    def _tool_call(self, update: dict[str, Any]) -> list[Emission]:
        id_ = update.get("toolCallId")
        if not isinstance(id_, str):
            return []
        self._thought += 1
        self._spoken_to = ""
        content: list[Any] | None = None
        if "content" in update and (self._v2 or update["content"] is not None):
            entries = update["content"]
            content = self._contents[id_] = list(entries) if isinstance(entries, list) else []
        return [self._news(id_, update, content)]

    def _tool_content(self, update: dict[str, Any]) -> list[Emission]:
        id_ = update.get("toolCallId")
        if not isinstance(id_, str) or not isinstance(update.get("content"), dict):
            return []
        content = self._contents.setdefault(id_, [])
        content.append(update["content"])
        return [self._news(id_, {}, content)]

    def _news(self, id_: str, update: dict[str, Any], content: list[Any] | None) -> ToolCall:
        title, kind, status, name = (update.get(key) for key in ("title", "kind", "status", "name"))
        if title is None and "title" in update and self._v2:
            title = ""
        if status in ("completed", "failed", "cancelled"):
            self.running_calls.discard(id_)
        elif id_ not in self.running_calls and update:
            self.running_calls.add(id_)
        locations = update.get("locations")
        if locations is None and "locations" in update and self._v2:
            locations = []
        call = ToolCall(
            id_,
            title if isinstance(title, str) else None,
            name if isinstance(name, str) else None,
            None if kind is None else kind if kind in _KINDS else "other",
            status if status in _STATUSES else "in_progress" if status == "paused" else None,
            update.get("rawInput"),
            update.get("rawOutput"),
            locations=_locations(locations),
            step=self._place,
        )
        if content is not None:
            call.content, call.diffs = self.content(content)
        return call

    def content(self, content: list[Any]) -> tuple[list[Any], list[Diff]]:
        parts: list[Any] = []
        diffs: list[Diff] = []
        for entry in content:
            if not isinstance(entry, dict):
                continue
            kind = entry.get("type")
            if kind == "diff":
                diff, patch = _diff(entry)
                diffs += diff
                parts += patch
            elif kind == "terminal":
                parts.append(DataPart({"type": "terminal", "terminalId": str(entry.get("terminalId"))}))
            else:  # the specification's own example has a bare text block here
                part = _part(entry.get("content") if kind == "content" else entry)
                if part is not None:
                    parts.append(part)
        return parts, diffs

    def _terminal(self, update: dict[str, Any]) -> list[Emission]:
        """Takes a terminal of the agent's own, shown as a tool call. Its output is shown when it ends."""
        id_ = update.get("terminalId")
        if not isinstance(id_, str):
            return []
        terminal = self._terminals.setdefault(id_, _Terminal())
        if update["sessionUpdate"] == "terminal_output_chunk":
            terminal.add(update.get("data"))
            return []
        if isinstance(update.get("command"), str):
            terminal.command = update["command"]
        if "output" in update:
            terminal.clear()
            output = update["output"]
            terminal.add(output.get("data") if isinstance(output, dict) else None)
        status = update.get("exitStatus")
        ended = isinstance(status, dict)
        failed = isinstance(status, dict) and (status.get("exitCode") or status.get("signal"))
        return [
            ToolCall(
                f"terminal-{id_}",
                terminal.command or id_,
                kind_="execute",
                status=("failed" if failed else "completed") if ended else "in_progress",
                output=terminal.text or None if ended else None,
                step=self._place,
            )
        ]

    # -- plans and counts ---------------------------------------------------------------------------------

    def _plan(self, id_: str, entries: Any) -> Plan:
        self._plans[id_] = [
            PlanEntry(
                str(entry.get("content", "")),
                status if (status := entry.get("status")) in _PLAN_STATUSES else "pending",
                priority if (priority := entry.get("priority")) in _PRIORITIES else "medium",
            )
            for entry in (entries if isinstance(entries, list) else [])
            if isinstance(entry, dict)
        ]
        return Plan([entry for plan in self._plans.values() for entry in plan], self._place)

    def _used(self, update: dict[str, Any]) -> None:
        for name in ("used", "size"):
            if type(update.get(name)) is int:
                self.usage[name] = update[name]
        cost = update.get("cost")
        if isinstance(cost, dict) and isinstance(cost.get("amount"), int | float):
            self.usage |= {"cost": cost["amount"], "currency": str(cost.get("currency", "USD"))}


class _Terminal:
    def __init__(self) -> None:
        self.command = ""
        self.clear()

    def clear(self) -> None:
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # chunks may split a character

    def add(self, data: Any) -> None:
        if isinstance(data, str):
            try:
                self.text = (self.text + self._decoder.decode(base64.b64decode(data)))[-_TERMINAL_KEEPS:]
            except (binascii.Error, ValueError):
                return


def as_update(call: ToolCall) -> dict[str, Any]:
    """Returns an event of a tool call from the log, as the agent had sent it."""
    update: dict[str, Any] = {"title": call.title, "kind": call.kind_, "status": call.status, "rawInput": call.input}
    if call.content is not None or call.diffs is not None:
        update["content"] = [
            {"type": "content", "content": part if isinstance(part, dict) else translate.block(part)}
            for part in call.content or []
        ]
        for diff in call.diffs or []:
            update["content"].append({"type": "diff", "path": diff.path, "oldText": diff.old, "newText": diff.new})
    return {name: value for name, value in update.items() if value is not None}


def counts_of(result: Any) -> dict[str, int]:
    """Returns the token counts in the answer to a prompt."""
    usage = result.get("usage") if isinstance(result, dict) else None
    if not isinstance(usage, dict):
        return {}
    names = {
        "totalTokens": "total_tokens", "inputTokens": "input_tokens", "outputTokens": "output_tokens",
        "thoughtTokens": "thought_tokens", "cachedReadTokens": "cached_read_tokens",
        "cachedWriteTokens": "cached_write_tokens",
    }  # fmt: skip
    return {ours: usage[theirs] for theirs, ours in names.items() if type(usage.get(theirs)) is int}


def _part(block: Any) -> Part | None:
    if not isinstance(block, dict):
        return None
    if block.get("type") == "text" and isinstance(block.get("text"), str) and len(block) == 2:
        return TextPart(block["text"])
    try:
        (part,) = translate.parts([block], open_types=True)
    except InvalidInput:
        return DataPart(block)
    return part


def _text_of(block: Any) -> str:
    part = _part(block)
    return part.text if isinstance(part, TextPart | FilePart) and part.text else ""


def _locations(given: Any) -> list[Location] | None:
    if not isinstance(given, list):
        return None
    return [
        Location(entry["path"], entry.get("line") if type(entry.get("line")) is int else None)
        for entry in given
        if isinstance(entry, dict) and isinstance(entry.get("path"), str)
    ]


def _diff(entry: dict[str, Any]) -> tuple[list[Diff], list[Part]]:
    """Returns a diff. In version 1 it is two texts; in version 2 it names changes, and may hold a patch."""
    if isinstance(entry.get("newText"), str):
        old = entry.get("oldText")
        return [Diff(str(entry.get("path", "")), entry["newText"], old if isinstance(old, str) else None)], []
    patch = entry.get("patch")
    if isinstance(patch, dict) and isinstance(patch.get("text"), str):
        return [], [TextPart(f"```diff\n{patch['text'].rstrip()}\n```")]
    changes = entry.get("changes")
    lines = [
        " ".join(str(change[name]) for name in ("operation", "oldPath", "path") if change.get(name))
        for change in (changes if isinstance(changes, list) else [])
        if isinstance(change, dict)
    ]
    return [], [TextPart("\n".join(lines))] if lines else []

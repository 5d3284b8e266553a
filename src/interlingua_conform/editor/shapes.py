"""Checks updates and questions against the published schemas, as far as a client relies on them.

Only members that are there and kinds that are known are checked: version 1 has fixed names, version 2 lets everybody
add some.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..base import Broken, expect, member, shown
from .links import Message

_STATUS = ("pending", "in_progress", "completed", "failed")
_KINDS = ("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other")
_PRIORITIES = ("high", "medium", "low")
OPTION_KINDS = ("allow_once", "allow_always", "reject_once", "reject_always")
STOPS = ("end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled")

ACTIVITY = ("agent_thought_chunk", "agent_thought", "plan", "plan_update", "tool_call", "tool_call_update",
            "tool_call_content_chunk", "usage_update")  # fmt: skip


def update(told: Message, version: int) -> None:
    """Raises Broken if an update of a known kind has a mistake."""
    kind = member(told, "sessionUpdate", str, "a session update")
    shape = (_V1 if version == 1 else _V2).get(kind)
    if shape is not None:
        shape(told, version, f"an update of kind {kind}")


def content(told: Any, version: int, where: str) -> None:
    """A block of content."""
    if not isinstance(told, dict):
        raise Broken(f"the content of {where} is no object: {shown(told)}")
    match member(told, "type", str, f"the content of {where}"):
        case "text":
            member(told, "text", str, f"a text block of {where}")
        case "image" | "audio":
            for name in ("data", "mimeType"):
                member(told, name, str, f"a block of {where}")
        case "resource_link":
            for name in ("name", "uri"):
                member(told, name, str, f"a resource_link of {where}")
        case "resource":
            inner = member(told, "resource", dict, f"a resource of {where}")
            member(inner, "uri", str, f"a resource of {where}")
            expect(
                isinstance(inner.get("text"), str) or isinstance(inner.get("blob"), str),
                f"a resource of {where} has neither text nor blob: {shown(told)}",
            )
        case other:
            expect(version == 2, f"the content of {where} has the type {shown(other)}, which version 1 does not know")


def permission(request: Message, version: int) -> list[Message]:
    """A permission request; gives its options."""
    params = member(request, "params", dict, "session/request_permission")
    where = "session/request_permission"
    member(params, "sessionId", str, where)
    if version == 1:
        call = member(params, "toolCall", dict, where)
        member(call, "toolCallId", str, f"the toolCall of {where}")
        _tool_call(call, version, f"the toolCall of {where}")
    else:
        member(params, "title", str, where)
        if params.get("subject") is not None:
            member(params, "subject.type", str, where)
    options = member(params, "options", list, where)
    expect(options, f"{where} has no options")
    for option in options:
        expect(isinstance(option, dict), f"an option of {where} is no object: {shown(option)}")
        for name in ("optionId", "name"):
            member(option, name, str, f"an option of {where}")
        kind = member(option, "kind", str, f"an option of {where}")
        _one_of(kind, OPTION_KINDS, version, f"the kind of an option of {where}")
    ids = [option["optionId"] for option in options]
    expect(len(set(ids)) == len(ids), f"two options of {where} have the same optionId: {shown(ids)}")
    return options


def option(told: Any, version: int) -> None:
    """A config option of a session."""
    where = "a config option"
    if not isinstance(told, dict):
        raise Broken(f"{where} is no object: {shown(told)}")
    member(told, "configId" if version == 2 else "id", str, where)
    member(told, "name", str, where)
    kind = member(told, "type", str, where)
    if kind == "boolean":
        member(told, "currentValue", bool, where)
    elif kind == "select":
        current = member(told, "currentValue", str, where)
        values = []
        for choice in member(told, "options", list, where):
            expect(isinstance(choice, dict), f"a choice of {where} is no object: {shown(choice)}")
            inner = choice.get("options") if "options" in choice else [choice]
            for one in inner if isinstance(inner, list) else []:
                values.append(member(one, "value", str, f"a choice of {where}"))
                member(one, "name", str, f"a choice of {where}")
        expect(current in values, f"the currentValue of {where} is {shown(current)}, which is none of {shown(values)}")
    else:
        expect(version == 2, f"{where} has the type {shown(kind)}, which version 1 does not know")


def _chunk(told: Message, version: int, where: str) -> None:
    content(told.get("content"), version, where)
    if version == 2:
        member(told, "messageId", str, where)


def _message(told: Message, version: int, where: str) -> None:
    member(told, "messageId", str, where)
    for block in member(told, "content", list, where) if told.get("content") is not None else []:
        content(block, version, where)


def _new_tool_call(told: Message, version: int, where: str) -> None:
    member(told, "title", str, where)
    _tool_call_update(told, version, where)


def _tool_call_update(told: Message, version: int, where: str) -> None:
    member(told, "toolCallId", str, where)
    _tool_call(told, version, where)


def _tool_call(told: Message, version: int, where: str) -> None:
    if told.get("title") is not None:
        member(told, "title", str, where)
    for name, known in (("kind", _KINDS), ("status", _STATUS)):
        if told.get(name) is not None:
            _one_of(member(told, name, str, where), known, version, f"the {name} of {where}")
    for entry in member(told, "content", list, where) if told.get("content") is not None else []:
        expect(isinstance(entry, dict), f"the content of {where} has an entry that is no object: {shown(entry)}")
        kind = member(entry, "type", str, f"the content of {where}")
        if kind == "content":
            content(entry.get("content"), version, where)
        elif kind == "diff":
            for name, type_ in (("path", str), ("newText", str)) if version == 1 else (("changes", list),):
                member(entry, name, type_, f"a diff of {where}")
    for place in member(told, "locations", list, where) if told.get("locations") is not None else []:
        member(place, "path", str, f"a location of {where}")


def _entries(entries: list[Any], version: int, where: str) -> None:
    for entry in entries:
        member(entry, "content", str, f"an entry of {where}")
        _one_of(
            member(entry, "priority", str, f"an entry of {where}"), _PRIORITIES, version, "the priority of an entry"
        )
        _one_of(member(entry, "status", str, f"an entry of {where}"), _STATUS[:3], version, "the status of an entry")


def _plan(told: Message, version: int, where: str) -> None:
    _entries(member(told, "entries", list, where), version, where)


def _plan_update(told: Message, version: int, where: str) -> None:
    plan = member(told, "plan", dict, where)
    member(plan, "planId", str, where)
    if member(plan, "type", str, where) == "items":
        _entries(member(plan, "entries", list, where), version, where)


def _commands(told: Message, version: int, where: str) -> None:
    for command in member(told, "availableCommands", list, where):
        member(command, "name", str, f"a command of {where}")
        member(command, "description", str, f"a command of {where}")


def _options(told: Message, version: int, where: str) -> None:
    for one in member(told, "configOptions", list, where):
        option(one, version)


def _mode(told: Message, version: int, where: str) -> None:
    if "modeId" not in told:  # as an example of the specification has it
        member(told, "currentModeId", str, where)


def _info(told: Message, version: int, where: str) -> None:
    for name in ("title", "updatedAt"):
        if told.get(name) is not None:
            member(told, name, str, where)


def _usage(told: Message, version: int, where: str) -> None:
    for name in ("used", "size"):
        member(told, name, int, where)


def _state(told: Message, version: int, where: str) -> None:
    member(told, "state", str, where)


def _one_of(value: str, known: tuple[str, ...], version: int, where: str) -> None:
    if version == 1:
        expect(value in known, f"{where} is {shown(value)}, which is none of {', '.join(known)}")


_Shape = Callable[[Message, int, str], None]
_BOTH: dict[str, _Shape] = {
    "user_message_chunk": _chunk, "agent_message_chunk": _chunk, "agent_thought_chunk": _chunk,
    "tool_call_update": _tool_call_update, "available_commands_update": _commands, "config_option_update": _options,
    "session_info_update": _info, "usage_update": _usage,
}  # fmt: skip
_V1 = {**_BOTH, "tool_call": _new_tool_call, "plan": _plan, "current_mode_update": _mode}
_V2 = {
    **_BOTH, "user_message": _message, "agent_message": _message, "agent_thought": _message,
    "plan_update": _plan_update, "state_update": _state,
}  # fmt: skip

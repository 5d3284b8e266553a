"""The tools that a manifest binds for a model, and the model's calls.

`team_moves` adds the tools for working with others. Nothing is allowed or refused here: every call passes the engine's
gate, also a call of a tool that was never offered.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from ..engine.handler.context import Context
from ..model import json_values
from ..model.card import Schema
from ..model.content import Message, Part, ToolResultPart
from ..model.errors import DefinitionError, InterlinguaError, InvalidInput, InvalidRequest, Rejected, StoreError
from ..model.schemas import Validator
from ..model.team.attachments import attachment_of, part_of, read_attachment, text_and_attached, write_attachment
from ..model.team.manifest import USER, Manifest, Team, agent_name, cap_id
from ..model.team.tools import ToolSpec
from .provider import Call, Tool

LONGEST_NAME = 64  # that model APIs take
INSET = "    "
_SHOWN = 200  # characters of a name that a model made up

_ATTACHMENTS = "attachments"
ATTACHMENTS: Schema = {
    "type": "array",
    "description": (
        "What goes along. tool_call_result: a result of a tool that you called, by its call_id. text_snippet: text. "
        "file: path or URL of a file. python_object: a JSON value, in object."
    ),
    "items": {
        "type": "object",
        "properties": {
            "type": {"enum": ["tool_call_result", "text_snippet", "file", "python_object"]},
            "call_id": {"type": "string"},
            "text": {"type": "string"},
            "path": {"type": "string"},
            "object": {},
        },
        "required": ["type"],
    },
}


class Given(msgspec.Struct):
    """The result of a call for the model; or `end`, the output with which the call ends the run."""

    content: str
    failed: bool = False
    end: Any = None


Work = Callable[[], Awaitable[Given]]
Do = Callable[[dict[str, Any], str], Awaitable[Given]]  # with the arguments, and the key of the call


class Entry(msgspec.Struct):
    tool: Tool
    do: Do
    check: Validator | None
    alone: bool = False  # after all others of the same turn
    only: bool = False  # with no others in the same turn


class Toolbox:
    """The tools of one run."""

    def __init__(self, ctx: Context[Any, Any], team: Team, manifest: Manifest, specs: list[ToolSpec]) -> None:
        self._ctx = ctx
        self._team = team
        self._manifest = manifest
        self._entries: dict[str, Entry] = {}
        self._origins: dict[tuple[str, str], str] = {}  # server and tool → the name that it was offered under
        self._results: dict[str, ToolResultPart] = {}  # by the key of the call
        self._keys: set[str] = set()
        for spec in specs:
            self._offer_server_tool(spec)

    @property
    def offered(self) -> list[Tool]:
        return [entry.tool for entry in self._entries.values()]

    def offer(
        self, name: str, description: str, schema: Schema, do: Do, *, alone: bool = False, only: bool = False
    ) -> None:
        try:
            check = Validator(schema, what=f"the arguments of {name}")
        except DefinitionError:
            check = None  # a server's schema that we cannot read: it will check its arguments itself
        self._entries[name] = Entry(Tool(name, description, schema), do, check, alone, only)

    # -- calls --------------------------------------------------------------------------------------------

    async def run(self, calls: list[Call]) -> list[Given]:
        """Makes all calls of one turn at once, and returns their results."""
        given: dict[int, Given] = {}
        works: dict[int, Work] = {}
        last: dict[int, Work] = {}
        for index, call in enumerate(calls):
            try:
                work, alone = self._prepared(call, self._key(call), len(calls))
            except InterlinguaError as error:
                # Here and not where it is called, so that it is said in the same order when it is said again.
                told = f"{self._ctx.me} called {call.name[:_SHOWN]}: {error.message}"
                await self._ctx.warn(told, {"call": call.id})
                given[index] = Given(error_text(error), failed=True)
            else:
                (last if alone else works)[index] = work
        tasks = [asyncio.create_task(self.do(work)) for work in works.values()]
        try:
            given |= dict(zip(works, await asyncio.gather(*tasks), strict=True))
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
        for index, work in last.items():
            given[index] = await self.do(work)
        return [given[index] for index in range(len(calls))]

    async def do(self, work: Work) -> Given:
        """Does the work of a call. Its failure becomes a result for the model, but a rejection by the overseer or a
        failure of the store is raised."""
        try:
            return await work()
        except (Rejected, StoreError):
            raise
        except InterlinguaError as error:
            return Given(error_text(error), failed=True)

    def _key(self, call: Call) -> str:
        """Returns the id of the call. Some providers use an id again in the next turn."""
        key, count = call.id, 1
        while key in self._keys:
            count += 1
            key = f"{call.id}~{count}"
        self._keys.add(key)
        return key

    def _prepared(self, call: Call, key: str, calls: int) -> tuple[Work, bool]:
        if call.arguments is None:
            raise InvalidInput(f"the arguments are no JSON object: {call.raw[:200]!r}")
        arguments, entry = call.arguments, self._entries.get(call.name)
        if entry is None:
            return self._not_offered(call.name, arguments, key), False
        if entry.check is not None:
            entry.check.check(arguments, InvalidInput)
        if entry.tool.schema.get("properties", {}).get(_ATTACHMENTS) is ATTACHMENTS:
            self.attached(arguments)
        if entry.only and calls > 1:
            raise InvalidRequest(f"{call.name} stands alone: see first what the other calls give, then call it again")
        return lambda: entry.do(arguments, key), entry.alone

    def _not_offered(self, name: str, arguments: dict[str, Any], key: str) -> Work:
        """Returns the call of a tool that was never offered. Where the tool exists, the call is made, so that the gate
        refuses it and the refusal is recorded."""
        found = self._origin(name)
        if found is None:
            raise InvalidRequest(f"there is no tool {name[:_SHOWN]!r}; there are {', '.join(self._entries)}")
        if found in self._origins:
            raise InvalidRequest(f"there is no tool {name[:_SHOWN]!r}; it is called {self._origins[found]}")
        return lambda: self._call_tool(*found, arguments, key)

    def _origin(self, name: str) -> tuple[str, str] | None:
        """Returns the server and the tool of a name that was not offered."""
        bindings = [binding for manifest in self._team.manifests.values() for binding in manifest.mcp_bindings]
        servers = {*self._team.servers, *(binding.server_id for binding in bindings)}
        bare = next(((binding.server_id, name) for binding in bindings if name in binding.allowed_tools), None)
        return origin(name, servers) or bare

    # -- tools of servers ---------------------------------------------------------------------------------

    def _offer_server_tool(self, spec: ToolSpec) -> None:
        name = api_name(spec.server, spec.name)
        if name in self._entries:  # a__b and c, or a and b__c
            name = api_name(spec.server, spec.name, short=True)
        self._origins[spec.server, spec.name] = name
        binding = self._manifest.binding(spec.server)
        about = [spec.description, binding.description if binding is not None else ""]

        async def do(arguments: dict[str, Any], key: str) -> Given:
            return await self._call_tool(spec.server, spec.name, arguments, key)

        schema = spec.input_schema or {"type": "object", "properties": {}}
        self.offer(name, "\n".join(filter(None, about)), schema, do)

    async def _call_tool(self, server: str, tool: str, arguments: dict[str, Any], key: str) -> Given:
        result = await self._ctx.tool(server, tool, arguments, key=key)
        self._results[key] = ToolResultPart(tool, result, server, key)
        return Given(json_values.encode({"call_id": key, "result": result}).decode())

    def attached(self, arguments: dict[str, Any]) -> list[Part]:
        """Returns the attachments that the model names, as parts."""
        parts: list[Part] = []
        for index, one in enumerate(arguments.get(_ATTACHMENTS) or ()):
            if one["type"] != "tool_call_result":
                parts.append(part_of(read_attachment(one, f"/{_ATTACHMENTS}/{index}")))
            elif (result := self._results.get(one.get("call_id", ""))) is not None:
                parts.append(result)
            else:
                known = ", ".join(self._results) or "none"
                raise InvalidRequest(f"/{_ATTACHMENTS}/{index}/call_id names no result of yours; there are: {known}")
        return parts


# -- names and texts ------------------------------------------------------------------------------------------


def api_name(*parts: str, short: bool = False) -> str:
    """Returns a name that model APIs take. Parts are written as ids are, with two underscores between them."""
    name = "__".join(map(cap_id, parts))
    if len(name) <= LONGEST_NAME and not short:
        return name
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9]}-{digest}"


def origin(name: str, servers: Iterable[str]) -> tuple[str, str] | None:
    """Returns the server and the tool of a name. Reverses `api_name`, except for names that were too long."""
    for server in sorted(servers, key=len, reverse=True):
        prefix = f"{cap_id(server)}__"
        if name.startswith(prefix) and name != prefix:
            return server, from_id(name.removeprefix(prefix))
    return None


def from_id(id_: str) -> str:
    try:
        return agent_name(id_)
    except InvalidRequest:
        return id_


def as_text(value: Any) -> str:
    """Returns an output or a result as text for a model."""
    if isinstance(value, dict) and list(value) == ["text"]:
        value = value["text"]
    return value if isinstance(value, str) else json_values.encode(value).decode()


def error_text(error: InterlinguaError) -> str:
    return f"{error.code}: {error.message}"


def message_text(message: Message) -> str:
    said, attached = text_and_attached(message)
    task = message.metadata.get("task")
    told = f"Message from {message.sender or USER}{f' ({task})' if isinstance(task, str) else ''}: {inset(said)}"
    return with_attachments(told, attached)


def with_attachments(told: str, attached: list[Part]) -> str:
    return f"{told}\n{parts_text(attached)}" if attached else told


def inset(text: str) -> str:
    """Indents all lines of a foreign text but the first, so that none of them looks like a line of this project, such
    as the beginning of a message."""
    return f"\n{INSET}".join(text.splitlines())


def parts_text(parts: list[Part]) -> str:
    """Returns attachments in their wire form, because a model reads JSON."""
    lines = (json_values.encode(write_attachment(attachment_of(part))).decode() for part in parts)
    return "\n".join(["Attachments:", *lines])

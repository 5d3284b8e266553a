"""Tools of a team's servers, called through the gate: only what the authority of a run allows, and each call once.

A call is a step: what it gave is recorded, and after a crash it is not made again. Where the servers are, and how they
are spoken to, is behind the port `ToolServers`.
"""

from __future__ import annotations

from typing import Any

from ...model import json_values
from ...model.errors import (
    Denied,
    ErrorInfo,
    InterlinguaError,
    InvalidInput,
    InvalidRequest,
    RunTimedOut,
    StepFailed,
    ToolFailed,
    Unavailable,
)
from ...model.events import ToolCall, ToolRefused
from ...model.team.authority import Authority, may_call
from ...model.team.manifest import Server
from ...model.team.tools import ToolServers, ToolSpec
from ..handler.calls import Calls
from ..handler.output import Output
from ..handler.run_data import RunData
from ..handler.steps import StepCall, Steps
from ..handler.waits import Waits
from ..log.record_keys import Arguments, show
from .conversation import Conversation, sound
from .error_policy import ErrorPolicy
from .ports import TeamPorts

ERRORS: dict[str, type[InterlinguaError]] = {cls.code: cls for cls in (RunTimedOut, Unavailable, ToolFailed)}


class ToolCalls:
    """Calls tools for a member of a team."""

    __slots__ = ("_calls", "_conversation", "_data", "_errors", "_output", "_ports", "_replay", "_steps", "_waits")

    def __init__(
        self, data: RunData, waits: Waits, calls: Calls, output: Output, steps: Steps, conversation: Conversation,
        errors: ErrorPolicy, ports: TeamPorts,
    ) -> None:  # fmt: skip
        self._data = data
        self._replay = data.replay
        self._waits = waits
        self._calls = calls
        self._output = output
        self._steps = steps
        self._conversation = conversation
        self._errors = errors
        self._ports = ports

    async def call(
        self, server: str, tool: str, arguments: dict[str, Any] | None, key: str | None, timeout: float | None
    ) -> Any:
        self._waits.check_open()
        authority = self._bound()
        sent: dict[str, Any] = sound(arguments if arguments is not None else {}, dict[str, Any], "arguments")
        sent = json_values.clean(sent, InvalidInput, what="arguments")
        digest = json_values.digest([server, tool, sent])
        place = self._calls.place("tool", f"{server}.{tool}", key, Arguments(digest, show(sent)))
        await self._may_call(authority, server, tool, place, digest)
        servers, known = self._servers(), self._ports.directory.teams[authority.team].servers[server]
        taken = 0
        while True:
            at = place if not taken else f"{place}:again:{taken}"
            try:
                result = await self._call_once(servers, known, server, tool, sent, digest, at, timeout)
            except InterlinguaError as error:
                if type(error) not in ERRORS.values():
                    raise
                action = self._errors.decide(f"{server}.{tool}", place, error.info(), taken, tool=True)
                if action.do != "retry":
                    raise
                taken += 1
                await self._steps.sleep(action.delay, f"{place}:{taken}")
            else:
                self._conversation.note_tool(server, tool, result)
                return result

    async def _call_once(
        self, servers: ToolServers, known: Server, server: str, tool: str, sent: dict[str, Any], digest: str,
        place: str, timeout: float | None,
    ) -> Any:  # fmt: skip
        authority = self._bound()
        name = f"{server}.{tool}"

        async def call() -> Any:
            self._output.emit(ToolCall(place, name, name, "other", "in_progress", sent, step=place))
            try:
                outcome = await servers.call(
                    server, known, tool, sent, scopes=authority.scopes.get(server, ()), timeout=timeout
                )
            except InterlinguaError as error:
                failed = {"code": error.code, "message": error.message}
                self._output.emit(ToolCall(place, status="failed", output=failed, step=place))
                raise
            self._output.emit(ToolCall(place, status="completed", output=outcome.result, step=place))
            return outcome.result

        try:
            return await self._steps.step_at(place, StepCall("tool", call, called_with=Arguments(digest, show(sent))))
        except StepFailed as failure:
            raise _again(failure.error) from failure

    async def _may_call(self, authority: Authority, server: str, tool: str, place: str, digest: str) -> None:
        """The gate. What it refuses is on record, and stays refused."""
        past = self._replay.refused.get(place)
        if past is not None:
            self._calls.passed(past[0])
            raise _refusal(past[1].code, past[1].reason)
        if place in self._replay.records:
            return  # it was allowed, and done
        team = self._ports.directory.teams[authority.team]
        needs = team.servers[server].needs.get(tool, ()) if server in team.servers else ()
        decision = may_call(authority, server, tool, needs, now=self._data.clock.now())
        if decision.allowed:
            return
        body = ToolRefused(server, tool, decision.reason, decision.code or Denied.code, place, digest)
        self._data.log.append(body)
        self._replay.refused[place] = (0, body)
        await self._data.log.flush()
        raise _refusal(body.code, body.reason)

    async def list(self) -> list[ToolSpec]:
        """The tools that this run may call, as their servers describe them."""
        self._waits.check_open()
        authority = self._bound()
        if not authority.tools:
            return []
        servers, known = self._servers(), self._ports.directory.teams[authority.team].servers

        async def look() -> list[ToolSpec]:
            specs: list[ToolSpec] = []
            for server, names in authority.tools.items():
                listed = {spec.name: spec for spec in await servers.list(server, known[server])}
                needs = known[server].needs
                for name in names:
                    if name in listed and may_call(authority, server, name, needs.get(name, ())).allowed:
                        specs.append(listed[name])
            return specs

        try:
            specs: list[ToolSpec] = await self._steps.step("tools", look, (), {}, None, 0, 1.0, None)
        except StepFailed as failure:
            raise _again(failure.error) from failure
        return specs

    def _bound(self) -> Authority:
        if self._data.authority is None:
            raise InvalidRequest("only members of a team have tools bound to them")
        return self._data.authority

    def _servers(self) -> ToolServers:
        servers = self._ports.directory.tool_servers
        if servers is None:
            raise Unavailable(
                "this engine reaches no tool servers; load the team with il.team, or set engine.teams.tool_servers"
            )
        return servers


def _again(error: ErrorInfo) -> InterlinguaError:
    kind = ERRORS.get(error.code, ToolFailed)
    return kind(error.message, details=error.details, transient=error.transient)


def _refusal(code: str, reason: str) -> InterlinguaError:
    return RunTimedOut(reason) if code == RunTimedOut.code else Denied(reason)

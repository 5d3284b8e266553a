"""Tools of a team's servers, called through the gate: only what the authority of a run allows, and each call once.

A call is a step: what it gave is recorded, and after a crash it is not made again. Where the servers are, and how they
are spoken to, is behind the port `ToolServers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
from ...model.events import Emission, ToolCall, ToolRefused
from ...model.team.authority import Authority, may_call
from ...model.team.manifest import Server
from ...model.team.tools import ToolServers, ToolSpec
from ..ids import now
from ..log.record_keys import Arguments, show
from .conversation import sound, tool_digest
from .error_policy import Handling

ERRORS: dict[str, type[InterlinguaError]] = {cls.code: cls for cls in (RunTimedOut, Unavailable, ToolFailed)}


class Tooling(Handling):
    """The part of an Execution that calls tools."""

    if TYPE_CHECKING:

        def emit(self, body: Emission) -> None: ...
        async def step(
            self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], key: str | None,
            retries: int, backoff: float, timeout: float | None,
        ) -> Any: ...  # fmt: skip
        async def step_at(
            self, place: str, name: str, fn: Callable[..., Any], *, called_with: Arguments
        ) -> Any: ...  # fmt: skip

    async def tool(
        self, server: str, tool: str, arguments: dict[str, Any] | None, key: str | None, timeout: float | None
    ) -> Any:
        self._check_alive()
        authority = self._bound()
        given: dict[str, Any] = sound(arguments if arguments is not None else {}, dict[str, Any], "arguments")
        given = json_values.clean(given, InvalidInput, what="arguments")
        digest = json_values.digest([server, tool, given])
        place = self.place("tool", f"{server}.{tool}", key, Arguments(digest, show(given)))
        await self._may_call(authority, server, tool, place, digest)
        servers, known = self._servers(), self.worker.engine.directory.teams[authority.team].servers[server]
        taken = 0
        while True:
            at = place if not taken else f"{place}:again:{taken}"
            try:
                result = await self._call_once(servers, known, server, tool, given, digest, at, timeout)
            except InterlinguaError as error:
                if type(error) not in ERRORS.values():
                    raise
                action = self.decide(f"{server}.{tool}", place, error.info(), taken, tool=True)
                if action.do != "retry":
                    raise
                taken += 1
                await self.sleep(action.delay, f"{place}:{taken}")
            else:
                self._called_tools.add(tool_digest(server, tool, result))
                return result

    async def _call_once(
        self, servers: ToolServers, known: Server, server: str, tool: str, given: dict[str, Any], digest: str,
        place: str, timeout: float | None,
    ) -> Any:  # fmt: skip
        authority = self._bound()
        name = f"{server}.{tool}"

        async def call() -> Any:
            self.emit(ToolCall(place, name, name, "other", "in_progress", given, step=place))
            try:
                outcome = await servers.call(
                    server, known, tool, given, scopes=authority.scopes.get(server, ()), timeout=timeout
                )
            except InterlinguaError as error:
                failed = {"code": error.code, "message": error.message}
                self.emit(ToolCall(place, status="failed", output=failed, step=place))
                raise
            self.emit(ToolCall(place, status="completed", output=outcome.result, step=place))
            return outcome.result

        try:
            return await self.step_at(place, "tool", call, called_with=Arguments(digest, show(given)))
        except StepFailed as failure:
            raise _again(failure.error) from failure

    async def _may_call(self, authority: Authority, server: str, tool: str, place: str, digest: str) -> None:
        """The gate. What it refuses is on record, and stays refused."""
        past = self.replay.refused.get(place)
        if past is not None:
            self._passed(past[0])
            raise _refusal(past[1].code, past[1].reason)
        if place in self.replay.records:
            return  # it was allowed, and done
        team = self.worker.engine.directory.teams[authority.team]
        needs = team.servers[server].needs.get(tool, ()) if server in team.servers else ()
        decision = may_call(authority, server, tool, needs, now=now())
        if decision.allowed:
            return
        body = ToolRefused(server, tool, decision.reason, decision.code or Denied.code, place, digest)
        self.log.append(body)
        self.replay.refused[place] = (0, body)
        await self.log.flush()
        raise _refusal(body.code, body.reason)

    async def tools(self) -> list[ToolSpec]:
        """Those that this run may call, as their servers describe them."""
        self._check_alive()
        authority = self._bound()
        if not authority.tools:
            return []
        servers, known = self._servers(), self.worker.engine.directory.teams[authority.team].servers

        async def look() -> list[ToolSpec]:
            found: list[ToolSpec] = []
            for server, names in authority.tools.items():
                listed = {spec.name: spec for spec in await servers.list(server, known[server])}
                needs = known[server].needs
                for name in names:
                    if name in listed and may_call(authority, server, name, needs.get(name, ())).allowed:
                        found.append(listed[name])
            return found

        try:
            found: list[ToolSpec] = await self.step("tools", look, (), {}, None, 0, 1.0, None)
        except StepFailed as failure:
            raise _again(failure.error) from failure
        return found

    def _bound(self) -> Authority:
        if self.authority is None:
            raise InvalidRequest("only members of a team have tools bound to them")
        return self.authority

    def _servers(self) -> ToolServers:
        servers = self.worker.engine.directory.tool_servers
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

"""One client of the MCP door, over any channel.

Clients of revisions with a handshake report their abilities at `initialize`; those of the revision without one report
them in every request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ....model.errors import InterlinguaError
from ....model.run import OWNER, Caller
from ....transports.channel import Channel
from ....transports.jsonrpc.connection import Connection, Trace
from ....transports.jsonrpc.core import (
    CANCELLED,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Call,
    Id,
    Notice,
    RpcError,
)
from .. import translate, wire
from .named_agents import NamedAgents
from .shared import Shared
from .subscriptions import Subscriptions

log = logging.getLogger("interlingua.mcp")

Operation = Callable[["McpConnection", Call], Awaitable[Any]]

_HANDSHAKE_ONLY = ("initialize", "ping", "logging/setLevel")
_MODERN_ONLY = ("server/discover", "subscriptions/listen")


class McpConnection:
    """The connection to one client."""

    def __init__(
        self, shared: Shared, operations: Mapping[str, Operation], channel: Channel, *, caller: Caller = OWNER,
        trace: Trace | None = None, silent_cancel: bool = True,
    ) -> None:  # fmt: skip
        self.shared = shared
        self.engine = shared.engine
        self.caller = caller
        self.agents = NamedAgents(shared.engine, caller)
        self.rpc = Connection(
            channel, self, limits=shared.settings, cancel=("notifications/cancelled", "requestId"),
            silent_cancel=silent_cancel, trace=trace,
        )  # fmt: skip
        self.version = ""  # once a handshake has been made
        self.able = wire.ClientCapabilities()
        self.level: str | None = None  # of the log messages that it wants; none before it has asked
        self.subscriptions = Subscriptions(shared, self.rpc)
        self.awaits_cancelled = False  # the client waits for answers to requests that it has taken back
        self.runs: dict[Id, str] = {}  # of requests that are open, where it is known
        self.run_began: Callable[[Id, str], None] | None = None  # called for each of them
        self.changed: Callable[[], Awaitable[Any]] | None = None  # called when the client's own description changes
        # Requests that another process began to answer: the number of its messages, and the last event of the run in
        # them.
        self.again: dict[Call, tuple[int, int | None]] = {}
        self.runs_go_on = True  # when the client is gone silently; False where going is how it cancels
        self._operations = operations
        shared.listeners.add(self)

    def gone(self) -> None:
        self.shared.listeners.discard(self)

    # -- notifications ------------------------------------------------------------------------------------

    def send_changed(self) -> None:
        """Tells the client that the lists of agents and tools have changed."""
        self.subscriptions.wake()
        if self.version:
            self.rpc.notify("notifications/agents/list_changed")
            self.rpc.notify("notifications/tools/list_changed")

    def wake_subscriptions(self) -> list[asyncio.Task[Any]]:
        return self.subscriptions.wake()

    def warn(self, agent: str, message: str, about: Id) -> None:
        """Sends a warning of a run as a log message. Clients that never asked for log messages get none: those of
        acp-sdk 0.0.6 stop at a notification that they do not know."""
        if self.level is not None and wire.LEVELS.index(self.level) <= wire.LEVELS.index("warning"):
            params = {"level": "warning", "logger": agent, "data": message}
            self.rpc.notify("notifications/message", params, about=about)

    # -- callbacks of the JSON-RPC connection -------------------------------------------------------------

    async def called(self, call: Call) -> Any:
        operation = self._operations.get(call.method)
        if operation is None:
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {call.method!r}")
        if call.params is not None and not isinstance(call.params, dict):
            raise RpcError(INVALID_PARAMS, "params is an array; it is an object")
        modern = self.is_modern(call)
        if modern and call.method in _HANDSHAKE_ONLY:
            raise RpcError(METHOD_NOT_FOUND, f"there is no {call.method} in {wire.MODERN}")
        if not modern and call.method in _MODERN_ONLY:
            raise RpcError(METHOD_NOT_FOUND, f"{call.method} belongs to {wire.MODERN}; name it in _meta")
        if not modern and not self.version and call.method not in ("initialize", "ping"):
            raise RpcError(INVALID_REQUEST, f'expected "initialize" first, but got {call.method!r}')
        try:
            result = await operation(self, call)
        except asyncio.CancelledError:
            if self.awaits_cancelled and not self.rpc.lost:
                raise RpcError(CANCELLED, "the request was cancelled") from None
            raise
        finally:
            self.runs.pop(call.id, None)
        return wire.complete(result) if modern and isinstance(result, dict) else result

    def noticed(self, notice: Notice) -> None:
        return None  # `initialized` needs no action, and unknown notifications are ignored

    def failure(self, error: Exception) -> RpcError:
        if isinstance(error, InterlinguaError):
            return translate.rpc_error(error)
        raise error

    # -- requests -----------------------------------------------------------------------------------------

    def meta(self, call: Call) -> dict[str, Any]:
        meta = call.params.get("_meta") if isinstance(call.params, dict) else None
        return meta if isinstance(meta, dict) else {}

    def is_modern(self, call: Call) -> bool:
        """Tells if a request is of the revision without sessions."""
        version = self.meta(call).get(wire.META_VERSION)
        if version is None:
            return False
        if version != wire.MODERN:
            data = {"requested": version, "supported": [wire.MODERN]}
            raise RpcError(wire.UNSUPPORTED_VERSION, f"revision {version!r} is not spoken in this way", data)
        if not isinstance(self.meta(call).get(wire.META_CAPABILITIES), dict):
            raise RpcError(INVALID_PARAMS, f"_meta needs {wire.META_CAPABILITIES!r}, an object")
        return True

    def version_of(self, call: Call) -> str:
        return wire.MODERN if self.is_modern(call) else self.version

    def can_ask(self, call: Call) -> bool:
        """Tells if this client can be asked by a form."""
        ability = self.able.elicitation
        if self.is_modern(call):
            ability = self.meta(call)[wire.META_CAPABILITIES].get("elicitation")
        if not isinstance(ability, dict):
            return False
        return not ability or isinstance(ability.get("form"), dict)  # at first the capability was an empty object

    def note_run(self, call: Call, run: str) -> None:
        """Notes the run that a request waits for."""
        self.runs[call.id] = run
        if self.run_began is not None:
            self.run_began(call.id, run)

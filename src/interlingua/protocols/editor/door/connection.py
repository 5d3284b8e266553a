"""One client of the editor door, over any channel, in version 1 or 2 of the protocol.

A session is a thread: it outlives the connection and the process, and other doors can go on with it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from ....engine.engine import Engine
from ....model.card import AgentCard
from ....model.errors import InterlinguaError
from ....model.run import OWNER, Caller
from ....security import scopes
from ....transports.channel import Channel
from ....transports.jsonrpc import params as params_
from ....transports.jsonrpc.batch import send_batch
from ....transports.jsonrpc.connection import Connection, Trace
from ....transports.jsonrpc.core import INVALID_REQUEST, METHOD_NOT_FOUND, Call, Notice, RpcError
from ....transports.jsonrpc.limits import RpcLimits
from .. import translate, wire
from ..versions import Dialect
from .prompts import Prompts
from .sessions import Session

log = logging.getLogger("interlingua.editor")

Operation = Callable[["EditorConnection", Call], Awaitable[Any]]


class EditorConnection:
    """The connection to one client."""

    dialect: Dialect  # once it has initialized

    def __init__(
        self, engine: Engine, operations: Mapping[int, Mapping[str, Operation]], channel: Channel, *,
        caller: Caller = OWNER, limits: RpcLimits | None = None, trace: Trace | None = None,
    ) -> None:  # fmt: skip
        """`operations` has the methods of each version; those of version 0 come before a version is agreed on."""
        self.engine = engine
        self.caller = caller
        self.rpc = Connection(channel, self, limits=limits, trace=trace)
        self.able = wire.ClientCapabilities()
        self.sessions: dict[str, Session] = {}
        self.changed: Callable[[], Awaitable[None]] | None = None  # called when sessions open or close, or are prompted
        self.left: Callable[[EditorConnection], None] | None = None  # called when the client has gone
        self.prompts = Prompts(self)
        self.is_ready = False
        self._operations = operations

    @property
    def forms(self) -> bool:
        """Tells if the client can show a form."""
        return self.able.elicitation is not None and self.able.elicitation.form is not None

    @property
    def booleans(self) -> bool:
        """Tells if the client can show an option that is true or false."""
        options = self.able.session.config_options if self.able.session is not None else None
        return options is not None and options.boolean is not None

    def agents(self) -> list[AgentCard]:
        """Returns the agents that this caller may run, in their given order."""
        return [a.card for a in self.engine.agents if scopes.may(self.caller, "run", a.card.key).allowed]

    # -- callbacks of the JSON-RPC connection -------------------------------------------------------------

    async def called(self, call: Call) -> Any:
        if call.method == "initialize":
            if call.batch is not None and call.batch.size > 1:
                raise RpcError(INVALID_REQUEST, "initialize comes alone, not in a batch with others")
            if self.is_ready:
                raise RpcError(INVALID_REQUEST, "this connection is initialized already")
        elif not self.is_ready:
            raise RpcError(INVALID_REQUEST, f'expected "initialize" first, but got {call.method!r}')
        operation = self._operations[self.dialect.number if self.is_ready else 0].get(call.method)
        if operation is None:
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {call.method!r}")
        return await operation(self, call)

    def noticed(self, notice: Notice) -> Awaitable[None] | None:
        if notice.method == "session/cancel" and self.is_ready:
            try:
                id_ = params_.read(notice.params, wire.SessionRequest).session_id
            except RpcError:
                return None
            session = self.sessions.get(id_)
            return session.cancel() if session is not None else None
        return None  # notifications that we do not know are ignored, extensions among them

    def failure(self, error: Exception) -> RpcError:
        if isinstance(error, InterlinguaError):
            return translate.rpc_error(error)
        raise error

    # -- what others need ---------------------------------------------------------------------------------

    async def batch(self, calls: Iterable[tuple[str, Any, bool]], *, timeout: float | None = None) -> list[Any]:
        """Sends several messages to the client as one array, where the agreed version knows arrays."""
        return await send_batch(self.rpc, self.dialect.number, calls, timeout=timeout)

    def gone(self) -> None:
        """Ends the connection of a client that has left: its sessions stay, its runs go on."""
        if self.left is not None:
            self.left(self)
        for session in self.sessions.values():
            session.forget()
        self.sessions.clear()

    def send_options(self) -> None:
        """Sends the choice of agents to the client when agents have come or gone."""
        for session in self.sessions.values():
            session.updates(self.dialect.option_updates(session.options(), booleans=self.booleans, agent=False))

    async def sessions_changed(self) -> None:
        if self.changed is not None:
            await self.changed()

    def session(self, id_: str) -> Session:
        session = self.sessions.get(id_)
        if session is None:
            raise RpcError(
                translate.NOT_FOUND, f"session {id_!r} is not open here; open it with session/load or session/resume"
            )
        return session

"""Logins of the agents behind the door, as one client can use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....engine.agents.logins import Login, LoginMethod, methods_of
from ....model.card import AgentCard
from ....transports.jsonrpc import params as params_
from ....transports.jsonrpc.core import INVALID_PARAMS, RpcError
from .. import translate, wire

if TYPE_CHECKING:
    from .connection import EditorConnection


class Logins:
    def __init__(self, connection: EditorConnection) -> None:
        self._connection = connection

    def available(self) -> list[tuple[Login, LoginMethod]]:
        """The ways to log in that this client can go."""
        terminal = self._connection.able.auth is not None and self._connection.able.auth.terminal not in (None, False)
        return [
            (login, method)
            for login, method in methods_of(self._connection.engine.agents)
            if method.kind != "terminal" or terminal
        ]

    async def login(self, params: Any) -> dict[str, Any]:
        wanted = params_.read(params, wire.AuthenticateRequest).method_id
        for login, method in self.available():
            if method.id == wanted and method.kind != "terminal":
                await login.login(wanted)
                return {}
        known = ", ".join(method.id for _, method in self.available()) or "none is needed here"
        raise RpcError(INVALID_PARAMS, f"there is no way to log in called {wanted!r} over the protocol: {known}")

    async def logout(self, params: Any) -> dict[str, Any]:
        for login in {id(login): login for login, _ in self.available()}.values():
            await login.logout()
        return {}

    async def check(self, card: AgentCard) -> None:
        """Refuse to open a session of an agent that wants a login first."""
        agent = self._connection.engine.agents.find(card.name, card.version)
        if agent is not None and agent.login is not None and await agent.login.needed():
            ways = ", ".join(method.id for method in agent.login.methods)
            raise RpcError(translate.AUTH_REQUIRED, f"{card.name} wants you to log in first: {ways}")

"""Logins of the agents behind the door, as one client can use them."""

from __future__ import annotations

from typing import Any

from ....engine.agents.logins import Login, LoginMethod, methods_of
from ....model.card import AgentCard
from ....transports.jsonrpc import params as params_
from ....transports.jsonrpc.core import INVALID_PARAMS, Call, RpcError
from .. import translate, wire
from .connection import EditorConnection


def available(connection: EditorConnection) -> list[tuple[Login, LoginMethod]]:
    """Returns the login methods that this client can use."""
    auth = connection.able.auth
    terminal = auth is not None and auth.terminal not in (None, False)
    methods = methods_of(connection.engine.agents)
    return [(login, method) for login, method in methods if method.kind != "terminal" or terminal]


async def log_in(connection: EditorConnection, call: Call) -> dict[str, Any]:
    id_ = params_.read(call.params, wire.AuthenticateRequest).method_id
    for login, method in available(connection):
        if method.id == id_ and method.kind != "terminal":
            await login.login(id_)
            return {}
    known = ", ".join(method.id for _, method in available(connection)) or "none is needed here"
    raise RpcError(INVALID_PARAMS, f"there is no login method {id_!r} over the protocol; there are: {known}")


async def log_out(connection: EditorConnection, call: Call) -> dict[str, Any]:
    for login in {id(login): login for login, _ in available(connection)}.values():
        await login.logout()
    return {}


async def check_login(connection: EditorConnection, card: AgentCard) -> None:
    """Refuses to open a session of an agent that wants a login first."""
    agent = connection.engine.agents.find(card.name, card.version)
    if agent is not None and agent.login is not None and await agent.login.needed():
        methods = ", ".join(method.id for method in agent.login.methods)
        raise RpcError(translate.AUTH_REQUIRED, f"{card.name} wants you to log in first: {methods}")

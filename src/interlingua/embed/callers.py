"""Callers as an outer app knows them: its own login decides who asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from inspect import isawaitable
from typing import Any

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from ..model.run import Caller
from ..security.auth import Authenticator
from ..security.errors import Unauthenticated

Login = Callable[[HTTPConnection], Caller | Awaitable[Caller | None] | None]
"""Returns the caller of a request, or of a WebSocket; None where nobody is logged in."""

_connection: ContextVar[HTTPConnection | None] = ContextVar("interlingua_connection", default=None)


class LoginAuthenticator(Authenticator):
    """Asks the outer app's login."""

    def __init__(self, login: Login) -> None:
        super().__init__()
        self._login = login

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        connection = _connection.get()
        caller: Any = None if connection is None else self._login(connection)
        if isawaitable(caller):
            caller = await caller
        if caller is None:
            raise Unauthenticated("nobody is logged in", rejected=False)
        if not isinstance(caller, Caller):
            raise TypeError(f"auth returned {type(caller).__name__}; it returns an il.Caller, or None")
        return caller

    def schemes(self) -> list[dict[str, Any]]:
        return []


class FixedCaller(Authenticator):
    """Everything is asked by one caller."""

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self._caller = caller

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        return self._caller


class RememberingConnection:
    """Wraps an app: its authenticator finds the request, whatever it looks at."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = _connection.set(HTTPConnection(scope)) if scope["type"] in ("http", "websocket") else None
        try:
            await self._app(scope, receive, send)
        finally:
            if token is not None:
                _connection.reset(token)

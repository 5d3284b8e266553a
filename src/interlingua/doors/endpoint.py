"""Puts the same frame around all operations of a door: authentication, scope, errors, log.

An operation is a plain function of the door, a request and its caller. The table of a door says which one answers
where.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from ..model.errors import InterlinguaError
from ..model.run import Caller
from ..security import scopes
from ..security.auth import ANONYMOUS, Authenticator
from .errors import HttpErrors

__all__ = ["Admit", "Operation", "authenticated", "route", "routes"]

_INTERNAL = "something went wrong here; the log of the server says what"

D = TypeVar("D")
C = TypeVar("C")


class Operation(msgspec.Struct, Generic[D, C], frozen=True):
    """A row of a door's table: method, path, and the function that answers there."""

    method: str  # several stand side by side: "GET POST"
    path: str
    handler: Callable[[D, Request, C], Awaitable[ASGIApp]]
    action: scopes.Action | None = None  # needed before anything is looked up; None: the handler checks what it finds
    public: bool = False  # also for callers without credentials
    head: bool = True  # HEAD is answered like GET; not where a GET has effects, or does not end


Admit = Callable[[Request, Any], Awaitable[C]]
"""Finds the caller of an operation, by a request and the operation. Raises the error for one that may not call it."""


def authenticated(auth: Authenticator) -> Admit[Caller]:
    """Admits callers by their credentials and scopes."""

    async def admit(request: Request, operation: Operation[Any, Caller]) -> Caller:
        if operation.public:
            return ANONYMOUS
        caller = await auth.authenticate(request.headers)
        if operation.action is not None:
            scopes.require(caller, operation.action)
        return caller

    return admit


def route(door: D, operation: Operation[D, C], admit: Admit[C], errors: HttpErrors, log: logging.Logger) -> Route:
    """Returns the route of an operation. Errors that are not of the tree are logged, and answered without details."""
    handler = operation.handler

    async def endpoint(request: Request) -> ASGIApp:
        try:
            return await handler(door, request, await admit(request, operation))
        except InterlinguaError as error:
            return errors.response(error, request)
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            return errors.response(InterlinguaError(_INTERNAL), request)

    methods = operation.method.split()
    path_route = Route(operation.path, endpoint, methods=methods)
    if not operation.head:
        path_route.methods = set(methods)
    return path_route


def routes(
    door: D, operations: Iterable[Operation[D, C]], admit: Admit[C], errors: HttpErrors, log: logging.Logger
) -> list[Route]:
    return [route(door, operation, admit, errors, log) for operation in operations]

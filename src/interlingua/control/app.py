"""The control API as an ASGI app: the table of its operations, below one prefix."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from ..transports.http.body import HttpLimits, json_response
from . import operations_questions, operations_runs, operations_server, operations_threads, wire
from .api import ControlApi
from .openapi import document
from .operation import Call, Operation, routes

__all__ = ["OPERATIONS", "control_app"]


async def _document(api: ControlApi, call: Call) -> Response:
    return json_response(document(OPERATIONS, call.request.scope.get("root_path", "")))


OPERATIONS = [
    *operations_server.OPERATIONS,
    *operations_runs.OPERATIONS,
    *operations_questions.OPERATIONS,
    *operations_threads.OPERATIONS,
    Operation(method="GET", path="/openapi.json", handler=_document, summary="Get this document"),
]


def control_app(api: ControlApi, limits: HttpLimits | None = None) -> ASGIApp:
    """Returns the operations as an app, which answers unknown paths as it answers all errors."""
    made = routes(api, OPERATIONS, limits or HttpLimits())
    return Starlette(routes=made, exception_handlers={HTTPException: _no_route})


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    message = f"{request.method} {request.url.path}: {error.detail}"
    failure = wire.Failure(error=wire.Problem(code=code, message=message))
    return json_response(failure, error.status_code, dict(error.headers or {}))

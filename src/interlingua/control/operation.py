"""An operation of the control API: a row that says which function answers where, and what goes in and out.

The query and the body are decoded by their types before the function is called, and the OpenAPI document is made of the
same rows, so that neither can differ from the other.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..doors import endpoint
from ..doors.errors import STATUSES, HttpErrors
from ..model.errors import InterlinguaError, Invalid, InvalidRequest
from ..model.pointers import split_message
from ..model.run import Caller
from ..security import scopes
from ..transports.http.body import HttpLimits, json_response, read_json
from . import wire

if TYPE_CHECKING:
    from .api import ControlApi

log = logging.getLogger("interlingua.control")

_METADATA = "metadata."


class Call(msgspec.Struct):
    """A request that was authenticated and decoded."""

    request: Request
    caller: Caller
    query: Any = None
    body: Any = None

    def path(self, name: str) -> str:
        """Returns a part of the path."""
        value: str = self.request.path_params[name]
        return value


Handler = Callable[["ControlApi", Call], Awaitable[Any]]


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    handler: Handler
    summary: str
    action: scopes.Action | None = None  # needed before anything is looked up
    query: type[Any] | None = None
    body: type[Any] | None = None
    optional: bool = False  # the body may be missing
    answer: Any = None  # the type of the body of the response; None: it has none
    status: int = 200
    media: str = "application/json"
    streams: bool = False  # answers with an event stream where the client asks for one


def _problem(error: InterlinguaError, status: int, request: HTTPConnection) -> Any:
    path = error.path if isinstance(error, Invalid) else ""
    problem = wire.Problem(
        code=error.code, message=error.message, transient=error.transient, path=path, details=error.details
    )
    return wire.Failure(error=problem)


ERRORS = HttpErrors(STATUSES, _problem)


def problem_of(error: InterlinguaError) -> wire.Problem:
    """Returns an error as it stands in a response."""
    return wire.Problem(code=error.code, message=error.message, transient=error.transient, details=error.details)


def routes(api: ControlApi, operations: Iterable[Operation], limits: HttpLimits) -> list[Route]:
    admit = endpoint.authenticated(api.auth)
    rows = [
        endpoint.Operation(row.method, row.path, _decoded(row, limits), row.action, head=not row.streams)
        for row in operations
    ]
    return endpoint.routes(api, rows, admit, ERRORS, log)


def _decoded(row: Operation, limits: HttpLimits) -> Callable[[ControlApi, Request, Caller], Awaitable[ASGIApp]]:
    async def handler(api: ControlApi, request: Request, caller: Caller) -> ASGIApp:
        call = Call(request, caller)
        if row.query is not None:
            call.query = read_query(request, row.query)
        if row.body is not None:
            call.body = await read_json(request, row.body, limits, optional=row.optional)
        answer = await row.handler(api, call)
        if isinstance(answer, Response):
            return answer
        if answer is None:
            return Response(status_code=204)
        return json_response(answer, row.status)

    return handler


def read_query(request: Request, type_: type[Any]) -> Any:
    """Returns the query of a request as a value of its type. What does not fit is refused, with its name."""
    lists = {field.name for field in msgspec.structs.fields(type_) if _is_list(field.type)}
    values: dict[str, Any] = {}
    for name, text in request.query_params.multi_items():
        if name.startswith(_METADATA) and "metadata" in type_.__struct_fields__:
            values.setdefault("metadata", {})[name.removeprefix(_METADATA)] = text
        elif name in lists:
            values.setdefault(name, []).extend(text.split(","))
        elif name == "metadata":
            raise InvalidRequest("metadata is given as metadata.NAME=VALUE", path="/metadata")
        else:
            values[name] = text
    try:
        return msgspec.convert(values, type_, strict=False)
    except msgspec.ValidationError as error:
        text, path = split_message(str(error))
        raise InvalidRequest(f"{text} (at {path})" if path else text, path=path) from None


def _is_list(type_: Any) -> bool:
    if hasattr(type_, "__metadata__"):  # Annotated
        type_ = type_.__origin__
    return getattr(type_, "__origin__", None) is list

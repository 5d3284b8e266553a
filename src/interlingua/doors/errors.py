"""Answers errors of the tree over HTTP: a status by a table, and a body as the protocol has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response

from ..model.errors import (
    Conflict,
    DefinitionError,
    Denied,
    ErrorTable,
    InterlinguaError,
    Invalid,
    InvalidOutput,
    InvalidQuestion,
    NotFound,
    OverBudget,
    Overloaded,
    RunError,
    StoreError,
    TooLarge,
    Unavailable,
)
from ..security.errors import Unauthenticated
from ..transports.http.body import SlowBody, WrongContentType, json_response

__all__ = ["STATUSES", "HttpErrors", "about"]

STATUSES: dict[type[InterlinguaError], int] = {
    InterlinguaError: 500, Invalid: 400, InvalidOutput: 500, InvalidQuestion: 500, SlowBody: 408, TooLarge: 413,
    WrongContentType: 415, Unauthenticated: 401, Denied: 403, NotFound: 404, Conflict: 409, OverBudget: 429,
    Overloaded: 429, RunError: 500, DefinitionError: 500, StoreError: 503, Unavailable: 503,
}  # fmt: skip
"""The statuses that fit best. A protocol with others replaces rows."""


class HttpErrors:
    """Makes the responses of a door to errors.

    `body` gets the error, its status and the request, and returns a value for JSON. `headers` returns headers beside
    those that every door sends."""

    def __init__(
        self,
        statuses: Mapping[type[InterlinguaError], int],
        body: Callable[[InterlinguaError, int, HTTPConnection], Any],
        headers: Callable[[InterlinguaError, HTTPConnection], dict[str, str]] | None = None,
    ) -> None:
        self.table = ErrorTable(statuses)
        self._body = body
        self._headers = headers

    def status(self, error: InterlinguaError) -> int:
        return self.table.of(type(error))

    def response(self, error: InterlinguaError, request: HTTPConnection) -> Response:
        status = self.status(error)
        headers = self._headers(error, request) if self._headers is not None else {}
        if isinstance(error, Unauthenticated):
            headers["www-authenticate"] = error.challenge
        return json_response(self._body(error, status, request), status, headers)


def about(error: InterlinguaError, message: Any, *members: str) -> None:
    """Attaches the message to an error that it led to, for protocols whose answers name it: these members alone."""
    if not error.refused_message and isinstance(message, dict):
        error.refused_message = msgspec.json.encode({name: message[name] for name in members if name in message})

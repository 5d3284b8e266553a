"""The errors of this protocol over HTTP: a bare JSON string. The code of the error travels in a header."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from ....doors.errors import STATUSES, HttpErrors
from ....model.errors import InterlinguaError, Invalid


def _body(error: InterlinguaError, status: int, request: HTTPConnection) -> str:
    return error.message


def _headers(error: InterlinguaError, request: HTTPConnection) -> dict[str, str]:
    return {"x-error-code": error.code, "x-error-transient": str(error.transient).lower()}


ERRORS = HttpErrors({**STATUSES, Invalid: 422}, _body, _headers)

"""The errors of this protocol over HTTP: one envelope with a code, for every error of the tree."""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection

from ....doors.errors import HttpErrors
from ....model.errors import InterlinguaError
from ..translate.errors import ROWS, Refusal, envelope
from .well_known import headers


class PeerErrors(HttpErrors):
    """Errors with a row, and refusals, which have a status of their own."""

    def status(self, error: InterlinguaError) -> int:
        return error.status if isinstance(error, Refusal) else super().status(error)


def _body(error: InterlinguaError, status: int, request: HTTPConnection) -> dict[str, Any]:
    return envelope(error)


def _headers(error: InterlinguaError, request: HTTPConnection) -> dict[str, str]:
    return headers(request)


ERRORS = PeerErrors({error: status for error, (_, status) in ROWS.items()}, _body, _headers)

"""The frame around every operation of a door: credentials, scope, errors, log."""

from __future__ import annotations

import logging
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from interlingua.doors import endpoint
from interlingua.doors.endpoint import Operation
from interlingua.doors.errors import STATUSES, HttpErrors
from interlingua.model.errors import RunNotFound
from interlingua.model.run import Caller
from interlingua.security.auth import Authenticator
from interlingua.security.errors import Unauthenticated
from interlingua.transports.http.body import json_response


async def told(door: str, request: Request, caller: Caller) -> Response:
    return json_response([door, caller.id])


async def missing(door: str, request: Request, caller: Caller) -> Response:
    raise RunNotFound("there is no run")


async def broken(door: str, request: Request, caller: Caller) -> Response:
    raise KeyError("secret")


class Reader(Authenticator):
    """Knows one caller, who may only read."""

    async def authenticate(self, headers: Any) -> Caller:
        if "x-api-key" not in headers:
            raise Unauthenticated("who are you?")
        return Caller("key:1", scopes=("do:read",))


OPERATIONS = [
    Operation("GET", "/read", told, "read"),
    Operation("POST", "/run", told, "run"),
    Operation("GET", "/once", told, head=False),
    Operation("GET", "/card", told, public=True),
    Operation("GET", "/missing", missing),
    Operation("GET", "/broken", broken),
]


async def ask(method: str, path: str, **headers: str) -> httpx2.Response:
    errors = HttpErrors(STATUSES, lambda error, status, request: error.message)
    log = logging.getLogger("interlingua.test")
    routes = endpoint.routes("door", OPERATIONS, endpoint.authenticated(Reader()), errors, log)
    transport = httpx2.ASGITransport(Starlette(routes=routes))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path, headers={"x-api-key": "key", **headers})


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/read", 200, ["door", "key:1"]),
        ("POST", "/run", 403, None),
        ("GET", "/missing", 404, "there is no run"),
        ("GET", "/card", 200, ["door", "anonymous"]),
        ("HEAD", "/read", 200, None),
        ("HEAD", "/once", 405, None),
    ],
)
async def test_an_operation_is_called_for_a_caller_that_may(method: str, path: str, status: int, body: Any) -> None:
    answer = await ask(method, path)
    assert answer.status_code == status
    if body is not None:
        assert answer.json() == body


async def test_an_error_that_nobody_foresaw_is_logged_and_answered_without_details(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = await ask("GET", "/broken")
    assert answer.status_code == 500
    assert answer.json() == "something went wrong here; the log of the server says what"
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "GET /broken failed"
    ]

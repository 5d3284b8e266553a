"""The indexed router answers as starlette's own does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router

from interlingua.transports.http.fixed_routes import IndexedRouter


def _route(method: str, path: str) -> Route:
    async def endpoint(request: Request) -> Response:
        told = (method, path, request.path_params, request.scope["root_path"], request.url.path)
        return PlainTextResponse(repr(told))

    return Route(path, endpoint, methods=[method])


def _routes() -> list[BaseRoute]:
    return [
        _route("POST", "/runs"),
        _route("GET", "/runs"),
        _route("GET", "/runs/{run}"),
        _route("GET", "/runs/late"),  # never reached: the one before it takes its path
        _route("POST", "/runs/late"),
        _route("DELETE", "/runs/{run}"),
    ]


def _ask(app: Any, method: str, path: str) -> tuple[int, dict[bytes, bytes], bytes]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": method, "path": path, "root_path": "", "query_string": b"", "scheme": "http",
        "headers": [(b"host", b"here")], "server": ("here", 80),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(part["body"] for part in sent[1:])


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE", "PUT"])
@pytest.mark.parametrize("path", ["", "/", "/runs", "/runs/", "/runs/late", "/runs/one", "/nothing", "/runs/one/more"])
@pytest.mark.parametrize("prefix", ["", "/door"])
def test_it_answers_as_the_plain_router_does(method: str, path: str, prefix: str) -> None:
    plain = Starlette(routes=[Mount(prefix, app=Router(_routes()))])
    indexed = Starlette(routes=[Mount(prefix, app=IndexedRouter(_routes()))])
    assert _ask(indexed, method, prefix + path) == _ask(plain, method, prefix + path)


def test_a_path_without_parameters_is_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    router = IndexedRouter(_routes())

    def searched(*args: Any) -> Any:
        raise AssertionError("the routes were tried one by one")

    monkeypatch.setattr(Route, "matches", searched)
    status, _, body = _ask(router, "POST", "/runs/late")
    assert (status, body.startswith(b"('POST', '/runs/late'")) == (200, True)

"""Wraps the HTTP app: checks Host and Origin before any door, and logs each request as one line."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from ..model.errors import InterlinguaError
from ..model.run import Caller
from ..security.auth import Authenticator
from ..security.origins import HostPolicy
from ..transports.http.body import json_response
from ..transports.http.request_path import path_below_root
from . import cors
from .logs import FOR_MACHINES, asker

access = logging.getLogger("interlingua.access")

_WORTH_KEEPING = 512  # bytes of headers; a browser's are shorter
_PROBES = ("/healthz", "/readyz", "/metrics", "/mounts")


class CheckedApp:
    """Wraps the whole app: checks Host and Origin before any door, and logs each request as one line."""

    def __init__(self, app: ASGIApp, hosts: HostPolicy, roots: set[str]) -> None:
        self._app = app
        self._hosts = hosts
        self._roots = roots  # prefixes of doors that answer at the prefix itself; a redirect would lose POSTs
        self._checked: set[tuple[tuple[bytes, bytes], ...]] = set()  # headers that were checked and are fine

    def _check(self, scope: Scope) -> None:
        addressed = _addressed(scope["headers"])
        if addressed not in self._checked:
            self._hosts.check(Headers(scope=scope))
            if sum(len(value) for _, value in addressed) > _WORTH_KEEPING:
                return
            if len(self._checked) >= 1000:
                self._checked.clear()
            self._checked.add(addressed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if path_below_root(scope) in self._roots:
            scope = {**scope, "path": scope["path"] + "/"}
        try:
            self._check(scope)
        except InterlinguaError as error:
            refusal = json_response(error.message, 403)
            if scope["type"] == "websocket":
                await WebSocket(scope, receive, send).send_denial_response(refusal)
            else:
                await refusal(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        if self._hosts.allowed_origins:
            page = cors.page_of(scope, self._hosts)
            if page is not None and (allowed := cors.preflight(scope, page)) is not None:
                await allowed(scope, receive, send)
                return
            send = cors.telling(page, send)
        if not access.isEnabledFor(logging.INFO):
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0
        asker.set(None)

        async def send_noting_status(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        finally:
            self._log(scope, status, (time.perf_counter() - began) * 1000)

    def _log(self, scope: Scope, status: int, took: float) -> None:
        run = scope.get("path_params", {}).get("run_id")
        _log_request(scope["method"], scope["path"], status, took, asker.get(), run)


def _log_request(
    method: str, path: str, status: int, took: float, caller: str | None, run: str | None = None
) -> None:  # fmt: skip
    fields = {
        "caller": caller, "run": run, "method": method, "path": path, "status": status or None, "ms": round(took, 1),
    }  # fmt: skip
    level = logging.DEBUG if path in _PROBES else logging.INFO  # they are asked every few seconds, for ever
    # People read what became of runs. One client that looks around makes dozens of requests, most of them to paths that
    # no door has.
    quiet = status < 400 or (status == 404 and caller is None)
    extra = {"fields": fields, FOR_MACHINES: quiet}
    access.log(level, "%s %s %s", method, path, status or "was left", extra=extra)


def _addressed(headers: list[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple([header for header in headers if header[0] in (b"host", b"origin")])


class LoggingAuthenticator(Authenticator):
    """Notes the caller for the log. It is the one check that all doors have."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        caller = await super().authenticate(headers)
        asker.set(caller.id)
        return caller

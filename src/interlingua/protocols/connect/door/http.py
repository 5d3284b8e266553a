"""The door of the Agent Connect Protocol: every operation of its OpenAPI, and the additions of the earlier document.

The routes are plain functions of (request, caller); `_endpoint` puts authentication and the error table around them.
The functions are in operations_agents.py, operations_threads.py and operations_runs.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ....engine.engine import Engine
from ....model.errors import InterlinguaError
from ....model.run import Caller
from ....security.auth import Authenticator
from ....transports.http.body import json_response
from .. import translate
from . import openapi
from .operation import ConnectSettings
from .operations_runs import Runs

Handler = Callable[[Request, Caller], Awaitable[Response]]


class ConnectDoor(Runs):
    def __init__(self, engine: Engine, auth: Authenticator, settings: ConnectSettings | None = None) -> None:
        self.engine = engine
        self.auth = auth
        self.settings = settings or ConnectSettings()
        self._watchers, self._left = {}, {}
        self.stopping = False
        self.listeners = set()
        self._cards = {}
        engine.agents.add_check(translate.refused)
        engine.agents.listeners.append(self._cards.clear)

    def routes(self) -> list[BaseRoute]:
        table: list[tuple[str, str, Handler]] = [
            ("POST", "/agents/search", self.search_agents),
            ("GET", "/agents/agent/{agent_id}/descriptor", self.descriptor),
            ("GET", "/agents/{agent_id}", self.get_agent),
            ("GET", "/agents/{agent_id}/descriptor", self.descriptor),
            ("GET", "/agents/{agent_id}/capabilities", self.capabilities),
            ("GET", "/agents/{agent_id}/errors", self.agent_errors),
            ("GET", "/agents/{agent_id}/configurations", self.configurations),
            ("POST", "/agents/{agent_id}/configurations", self.configure),
            ("GET", "/configurations/{config_id}", self.get_configuration),
            ("DELETE", "/configurations/{config_id}", self.delete_configuration),
            ("GET", "/errors", self.errors),
            ("POST", "/threads", self.create_thread),
            ("POST", "/threads/search", self.search_threads),
            ("GET", "/threads/{thread_id}", self.get_thread),
            ("PATCH", "/threads/{thread_id}", self.patch_thread),
            ("DELETE", "/threads/{thread_id}", self.delete_thread),
            ("GET", "/threads/{thread_id}/history", self.history),
            ("POST", "/threads/{thread_id}/copy", self.copy_thread),
            ("GET", "/threads/{thread_id}/runs", self.thread_runs),
            ("POST", "/threads/{thread_id}/runs", self.create_run),
            ("POST", "/threads/{thread_id}/runs/stream", self.create_and_stream),
            ("POST", "/threads/{thread_id}/runs/wait", self.create_and_wait),
            ("POST", "/runs", self.create_run),
            ("POST", "/runs/search", self.search_runs),
            ("POST", "/runs/stream", self.create_and_stream),
            ("POST", "/runs/wait", self.create_and_wait),
        ]
        for base in ("/threads/{thread_id}/runs/{run_id}", "/runs/{run_id}"):
            table += [
                ("GET", base, self.get_run),
                ("POST", base, self.resume),
                ("DELETE", base, self.delete_run),
                ("GET", base + "/wait", self.wait),
                ("GET", base + "/stream", self.stream),
                ("POST", base + "/cancel", self.cancel),
            ]
        routes: list[BaseRoute] = [
            Route(path, self._endpoint(handler), methods=[method]) for method, path, handler in table
        ]
        routes.append(Route("/auth", self._open(self.auth_schemes), methods=["GET"]))
        routes.append(Route("/openapi.json", self._open(self.openapi), methods=["GET"]))
        return routes

    # -- around every operation ---------------------------------------------------------------------------

    def _endpoint(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                caller = await self.auth.authenticate(request.headers)
                return await handler(request, caller)
            except InterlinguaError as error:
                return refusal(error)

        return endpoint

    def _open(self, handler: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
        """Wraps an endpoint without authentication, for facts that a caller needs before it can authenticate."""

        async def endpoint(request: Request) -> Response:
            return json_response(handler(request))

        return endpoint

    def auth_schemes(self, request: Request) -> dict[str, Any]:
        return {"schemes": self.auth.schemes()}

    def openapi(self, request: Request) -> dict[str, Any]:
        return openapi.document(request.scope.get("root_path", ""), self.auth.schemes())


def refusal(error: InterlinguaError) -> Response:
    """Returns an error response. The protocol's error is a bare JSON string; the code travels in a header."""
    status = {"slow_body": 408, "wrong_content_type": 415}.get(error.code) or translate.http_status(error)
    headers = {"x-error-code": error.code, "x-error-transient": str(error.transient).lower()}
    challenge = getattr(error, "challenge", None)
    if challenge:
        headers["www-authenticate"] = challenge
    return json_response(error.message, status, headers)


__all__ = ["ConnectDoor", "ConnectSettings"]

"""The door of the Agent Connect Protocol: every operation of its OpenAPI, and the additions of the earlier document.

The functions are in operations_agents, operations_threads and operations_runs.
"""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ....doors import endpoint
from ....doors.endpoint import Operation
from ....model.run import Caller
from ....transports.http.body import json_response
from . import openapi
from . import operations_agents as agents
from . import operations_runs as runs
from . import operations_threads as threads
from .api import ConnectDoor
from .errors import ERRORS

log = logging.getLogger("interlingua.connect")


async def auth_schemes(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    return json_response({"schemes": door.auth.schemes()})


async def openapi_document(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    return json_response(openapi.document(request.scope.get("root_path", ""), door.auth.schemes()))


_THREAD = "/threads/{thread_id}"

OPERATIONS = [
    Operation("POST", "/agents/search", agents.search_agents),
    Operation("GET", "/agents/agent/{agent_id}/descriptor", agents.descriptor),
    Operation("GET", "/agents/{agent_id}", agents.get_agent),
    Operation("GET", "/agents/{agent_id}/descriptor", agents.descriptor),
    Operation("GET", "/agents/{agent_id}/capabilities", agents.capabilities),
    Operation("GET", "/agents/{agent_id}/errors", agents.agent_errors),
    Operation("GET", "/agents/{agent_id}/configurations", agents.configurations),
    Operation("POST", "/agents/{agent_id}/configurations", agents.configure),
    Operation("GET", "/configurations/{config_id}", agents.get_configuration),
    Operation("DELETE", "/configurations/{config_id}", agents.delete_configuration),
    Operation("GET", "/errors", agents.errors),
    Operation("POST", "/threads", threads.create_thread, "run"),
    Operation("POST", "/threads/search", threads.search_threads, "read"),
    Operation("GET", _THREAD, threads.get_thread),
    Operation("PATCH", _THREAD, threads.patch_thread),
    Operation("DELETE", _THREAD, threads.delete_thread),
    Operation("GET", f"{_THREAD}/history", threads.history),
    Operation("POST", f"{_THREAD}/copy", threads.copy_thread),
    Operation("GET", f"{_THREAD}/runs", runs.thread_runs),
    Operation("POST", f"{_THREAD}/runs", runs.create_run),
    Operation("POST", f"{_THREAD}/runs/stream", runs.create_and_stream),
    Operation("POST", f"{_THREAD}/runs/wait", runs.create_and_wait),
    Operation("POST", "/runs", runs.create_run),
    Operation("POST", "/runs/search", runs.search_runs, "read"),
    Operation("POST", "/runs/stream", runs.create_and_stream),
    Operation("POST", "/runs/wait", runs.create_and_wait),
    *(
        Operation(method, base + rest, handler, head=rest != "/stream")
        for base in (f"{_THREAD}/runs/{{run_id}}", "/runs/{run_id}")
        for method, rest, handler in (
            ("GET", "", runs.get_run),
            ("POST", "", runs.resume),
            ("DELETE", "", runs.delete_run),
            ("GET", "/wait", runs.wait),
            ("GET", "/stream", runs.stream),
            ("POST", "/cancel", runs.cancel),
        )
    ),
    Operation("GET", "/auth", auth_schemes, public=True),
    Operation("GET", "/openapi.json", openapi_document, public=True),
]


def routes(door: ConnectDoor) -> list[Route]:
    return endpoint.routes(door, OPERATIONS, endpoint.authenticated(door.auth), ERRORS, log)


__all__ = ["ConnectDoor", "routes"]

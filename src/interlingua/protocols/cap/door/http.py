"""The door over HTTP: clients post messages, read, follow and cancel tasks, and list agents."""

from __future__ import annotations

import logging

from starlette.routing import Route

from ....doors import endpoint
from ....doors.endpoint import Operation
from . import operations_agents as agents
from . import operations_messages as messages
from . import operations_tasks as tasks
from .api import CapDoor
from .errors import ERRORS

log = logging.getLogger("interlingua.cap")

OPERATIONS = [
    Operation("POST", "/messages", messages.post_message),
    Operation("GET", "/agents", agents.list_agents),
    Operation("GET", "/tasks", tasks.list_tasks),
    Operation("GET", "/tasks/{task_id}", tasks.get_task),
    Operation("GET", "/tasks/{task_id}/events", tasks.stream, head=False),
    Operation("POST", "/tasks/{task_id}/cancel", messages.cancel),
]


def routes(door: CapDoor) -> list[Route]:
    return endpoint.routes(door, OPERATIONS, endpoint.authenticated(door.auth), ERRORS, log)


__all__ = ["CapDoor", "routes"]

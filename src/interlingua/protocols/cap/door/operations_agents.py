"""The operation on agents."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ....model.run import Caller
from ....security import scopes
from ....transports.http.body import json_response
from .. import agent_manifest
from .api import CapDoor


async def list_agents(door: CapDoor, request: Request, caller: Caller) -> Response:
    prompt = scopes.may(caller, "admin").allowed
    manifests = []
    for name, id_ in door.book.ids().items():
        agent = door.engine.agents.find(name)
        if agent is not None and scopes.may(caller, "run", agent.card.key):
            via, entry = door.engine.agents.mount_path(agent.card), door.book.entry(name)
            manifests.append(agent_manifest.manifest(agent.card, id_, entry, prompt=prompt, via=via))
    return json_response({"agents": manifests})

"""The operations on agents and on configured instances of agents."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ....model.card import AgentCard
from ....model.errors import AgentNotFound, NotFound
from ....model.run import Caller, Instance
from ....security import scopes
from ....transports.http.body import json_response
from .. import translate, wire
from . import input as reading
from .operation import Operations


class Agents(Operations):
    _cards: dict[str, AgentCard]  # by the protocol's id; filled when first needed

    def _known(self) -> dict[str, AgentCard]:
        if not self._cards:
            self._cards.update({translate.agent_id(agent.card): agent.card for agent in self.engine.agents})
        return self._cards

    def _card(self, wanted: str | None, caller: Caller, action: scopes.Action = "read") -> AgentCard:
        """Returns the card of an agent by id or by name (the newest version that is available); without either, that of
        the first agent of this server. An agent that the caller may not reach counts as not found."""
        known = self._known()
        if wanted is None:
            found = next((c for c in known.values() if scopes.may(caller, action, c.key)), None)
        else:
            found = known.get(wanted)
            if found is None and (newest := self.engine.agents.find(wanted)) is not None:
                found = newest.card
        if found is None and wanted:
            raise self.engine.agents.no_agent(wanted, f"there is no agent {wanted}")
        if found is None or not scopes.may(caller, action, found.key).allowed:
            raise AgentNotFound(f"there is no agent {wanted}" if wanted else "there is no agent for this caller")
        return found

    async def search_agents(self, request: Request, caller: Caller) -> Response:
        wanted = await self._read(request, wire.AgentSearchRequest, optional=True)
        found = [
            card
            for card in self._known().values()
            if wanted.name in (None, card.name)
            and wanted.version in (None, card.version)
            and scopes.may(caller, "read", card.key).allowed
        ]
        page = found[wanted.offset : wanted.offset + wanted.limit]
        return json_response([translate.agent(card, self.engine.agents.mount_path(card)) for card in page])

    async def get_agent(self, request: Request, caller: Caller) -> Response:
        card = self._card(request.path_params["agent_id"], caller)
        return json_response(translate.agent(card, self.engine.agents.mount_path(card)))

    async def descriptor(self, request: Request, caller: Caller) -> Response:
        return json_response(translate.descriptor(self._card(request.path_params["agent_id"], caller)))

    async def capabilities(self, request: Request, caller: Caller) -> Response:
        return json_response(translate.capabilities(self._card(request.path_params["agent_id"], caller)))

    async def agent_errors(self, request: Request, caller: Caller) -> Response:
        return json_response(translate.own_error_definitions(self._card(request.path_params["agent_id"], caller)))

    async def errors(self, request: Request, caller: Caller) -> Response:
        return json_response(translate.error_definitions())

    # -- configured instances -----------------------------------------------------------------------------

    async def configure(self, request: Request, caller: Caller) -> Response:
        card = self._card(request.path_params["agent_id"], caller)
        scopes.require(caller, "config", card.key)
        body = await self._read(request, wire.Configuration)
        made = await self.engine.instances.create(
            card.name, body.config, version=card.version, caller=caller, label=body.name, metadata=body.metadata
        )
        return json_response(translate.instance(made))

    async def configurations(self, request: Request, caller: Caller) -> Response:
        card = self._card(request.path_params["agent_id"], caller)
        found = await self.engine.instances.search(
            agent=card.name, version=card.version, limit=reading.number(request, "limit", 10, 1, 1000),
            offset=reading.number(request, "offset", 0), **reading.own(caller),
        )  # fmt: skip
        return json_response([translate.instance(instance) for instance in found])

    async def _instance(self, wanted: str, caller: Caller) -> Instance:
        found = await self.engine.instances.find(wanted)
        if found is None or not scopes.sees(caller, found.caller):
            raise NotFound(f"there is no configured instance {wanted}")
        return found

    async def get_configuration(self, request: Request, caller: Caller) -> Response:
        found = await self._instance(request.path_params["config_id"], caller)
        scopes.require(caller, "read")
        if not scopes.may(caller, "read", f"{found.agent}@{found.version}"):
            raise NotFound(f"there is no configured instance {found.id}")
        return json_response(translate.instance(found))

    async def delete_configuration(self, request: Request, caller: Caller) -> Response:
        found = await self._instance(request.path_params["config_id"], caller)
        scopes.require(caller, "config", f"{found.agent}@{found.version}")
        await self.engine.instances.delete(found.id)
        return Response(status_code=204)

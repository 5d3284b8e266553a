"""The operations on agents and on configured instances of agents."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ....doors import query
from ....model.card import AgentCard
from ....model.errors import AgentNotFound, NotFound
from ....model.run import Caller, Instance
from ....security import scopes
from ....transports.http.body import json_response
from .. import translate, wire
from . import input as reading
from .api import ConnectDoor


def known(door: ConnectDoor) -> dict[str, AgentCard]:
    if not door.cards:
        door.cards.update({translate.agent_id(agent.card): agent.card for agent in door.engine.agents})
    return door.cards


def find_card(door: ConnectDoor, agent_id: str | None, caller: Caller, action: scopes.Action = "read") -> AgentCard:
    """Returns the card of an agent by id or by name (the newest version that is available); without either, that of
    the first agent of this server. An agent that the caller may not reach counts as not found."""
    by_id = known(door)
    if agent_id is None:
        card = next((c for c in by_id.values() if scopes.may(caller, action, c.key)), None)
    else:
        card = by_id.get(agent_id)
        if card is None and (newest := door.engine.agents.find(agent_id)) is not None:
            card = newest.card
    if card is None and agent_id:
        raise door.engine.agents.no_agent(agent_id, f"there is no agent {agent_id}")
    if card is None or not scopes.may(caller, action, card.key).allowed:
        raise AgentNotFound(f"there is no agent {agent_id}" if agent_id else "there is no agent for this caller")
    return card


async def search_agents(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    where = await door.read(request, wire.AgentSearchRequest, optional=True)
    cards = [
        card
        for card in known(door).values()
        if where.name in (None, card.name)
        and where.version in (None, card.version)
        and scopes.may(caller, "read", card.key).allowed
    ]
    page = cards[where.offset : where.offset + where.limit]
    return json_response([translate.agent(card, door.engine.agents.mount_path(card)) for card in page])


async def get_agent(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    card = find_card(door, request.path_params["agent_id"], caller)
    return json_response(translate.agent(card, door.engine.agents.mount_path(card)))


async def descriptor(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    return json_response(translate.descriptor(find_card(door, request.path_params["agent_id"], caller)))


async def capabilities(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    return json_response(translate.capabilities(find_card(door, request.path_params["agent_id"], caller)))


async def agent_errors(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    return json_response(translate.own_error_definitions(find_card(door, request.path_params["agent_id"], caller)))


async def errors(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    return json_response(translate.error_definitions())


# -- configured instances -----------------------------------------------------------------------------


async def configure(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    card = find_card(door, request.path_params["agent_id"], caller)
    scopes.require(caller, "config", card.key)
    body = await door.read(request, wire.Configuration)
    instance = await door.engine.instances.create(
        card.name, body.config, version=card.version, caller=caller, label=body.name, metadata=body.metadata
    )
    return json_response(translate.instance(instance))


async def configurations(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    card = find_card(door, request.path_params["agent_id"], caller)
    instances = await door.engine.instances.search(
        agent=card.name, version=card.version, limit=query.number(request.query_params, "limit", 10, 1, 1000),
        offset=query.number(request.query_params, "offset", 0), **reading.own(caller),
    )  # fmt: skip
    return json_response([translate.instance(instance) for instance in instances])


async def _instance(door: ConnectDoor, id_: str, caller: Caller) -> Instance:
    instance = await door.engine.instances.find(id_)
    if instance is None or not scopes.sees(caller, instance.caller):
        raise NotFound(f"there is no configured instance {id_}")
    return instance


async def get_configuration(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    instance = await _instance(door, request.path_params["config_id"], caller)
    scopes.require(caller, "read")
    if not scopes.may(caller, "read", f"{instance.agent}@{instance.version}"):
        raise NotFound(f"there is no configured instance {instance.id}")
    return json_response(translate.instance(instance))


async def delete_configuration(door: ConnectDoor, request: Request, caller: Caller) -> Response:
    instance = await _instance(door, request.path_params["config_id"], caller)
    scopes.require(caller, "config", f"{instance.agent}@{instance.version}")
    await door.engine.instances.delete(instance.id)
    return Response(status_code=204)

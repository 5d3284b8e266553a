"""Operations on the node's description: card, skills, extensions, availability, keys; and on the files that it offers.

On the door a caller sees only the skills that it may use; only the owner may change the card.
"""

from __future__ import annotations

import urllib.parse
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from ....doors import query
from ....model.errors import InvalidRequest, NotFound
from ....model.pointers import pointer
from ....security import scopes
from ....transports.http.body import json_response
from ..node.tasks import Surface
from ..translate import skills
from ..wire import card as cards
from ..wire import extensions, frames
from . import well_known
from .api import Api, filled, listing

_CHANGEABLE = ("availability", "limitations", "limitations_merge")
_SEARCHED = 10


def _card_for(api: Api, surface: Surface) -> dict[str, Any]:
    told = api.node.own_card.view(door=surface.door, auth=api.auth_schemes())
    if surface.door:
        told = api.node.trust.sign_card({**told, "skills": [skill.view() for skill in _skills_for(api, surface)]})
    return told


def _skills_for(api: Api, surface: Surface) -> list[skills.Skill]:
    found = api.node.own_card.skills()
    if not surface.door:
        return found
    keys = {agent.card.name: agent.card.key for agent in api.node.engine.agents}
    return [skill for skill in found if scopes.may(surface.caller, "run", keys.get(skill.agent or "", skill.id))]


# -- the card -----------------------------------------------------------------------------------------


async def card(api: Api, request: Request, surface: Surface) -> ASGIApp:
    told = _card_for(api, surface)
    wanted = request.query_params.get("filter_limitations")
    if wanted is not None:
        told = cards.filtered(told, wanted)
    here = [] if surface.door else api.node.peers.connected
    shown = cards.served(told, here[0].known.card if here else None)
    return json_response(shown, headers=well_known.headers(request))


async def patch_card(api: Api, request: Request, surface: Surface) -> ASGIApp:
    body = await api.json_object(request)
    unknown = [name for name in body if name not in _CHANGEABLE]
    if unknown or not body:
        what = f"/{unknown[0][:80]} cannot be changed" if unknown else "nothing is to be changed"
        raise InvalidRequest(f"{what}; there are {' and '.join(_CHANGEABLE[:2])}", path=pointer(*unknown[:1]))
    patches = msgspec.structs.replace(api.node.own_card.patches)
    told: dict[str, Any] = {"ok": True, "updated": [name for name in _CHANGEABLE[:2] if name in body]}
    if "availability" in body:
        patches.availability = cards.availability(body["availability"], _availability(api))
        told["availability"] = patches.availability
    if "limitations" in body:
        given = cards.limitations(body["limitations"])
        old = api.node.own_card.limitations() if _merges(body, "limitations_merge") else []
        patches.limitations = told["limitations"] = cards.merge_limitations(old, given)
    await api.node.patch(patches)
    return json_response(told, headers=well_known.headers(request))


async def verify_own_card(api: Api, request: Request, surface: Surface) -> ASGIApp:
    return json_response({"ok": True, **api.node.trust.verify_card(_card_for(api, surface))})


async def verify_card(api: Api, request: Request, surface: Surface) -> ASGIApp:
    body = await api.json_object(request)
    given = body.get("card") if body.get("card") is not None else body.get("self")
    if not isinstance(given, dict):
        raise InvalidRequest("/card is an AgentCard", path="/card")
    return json_response({"ok": True, **api.node.trust.verify_card(cards.unwrap(given))})


# -- keys ---------------------------------------------------------------------------------------------


async def jwks(api: Api, request: Request, surface: Surface) -> ASGIApp:
    return json_response(api.node.trust.jwks(api.node.name), headers=well_known.headers(request))


async def did(api: Api, request: Request, surface: Surface) -> ASGIApp:
    found = api.node.trust.did_document()  # without the link: its token is a secret
    if found is None:
        raise NotFound("this node has no identity; --identity gives it one")
    return json_response(found, headers=well_known.headers(request))


# -- skills -------------------------------------------------------------------------------------------


async def list_skills(api: Api, request: Request, surface: Surface) -> ASGIApp:
    params = filled(request)
    limit, offset = query.number(params, "limit", 50, 1, 500, lowers=True), query.number(params, "offset", 0)
    found = _skills_for(api, surface)
    if tag := request.query_params.get("tag"):
        found = [skill for skill in found if tag.casefold() in (one.casefold() for one in skill.tags)]
    views = [skill.view() for skill in found]
    if words := request.query_params.get("q"):
        views = skills.search(found, words, len(found))
    page = views[offset : offset + limit]
    more = offset + len(page) < len(views)
    return listing(
        request, "skills", page, count=len(page), total=len(views), has_more=more,
        next_offset=offset + len(page) if more else None,
    )  # fmt: skip


async def query_skills(api: Api, request: Request, surface: Surface) -> ASGIApp:
    """Finds skills: by words, as the specification has it; by id and constraints, as the reference has it; or
    all."""
    body = await api.json_object(request)
    known = _skills_for(api, surface)
    if body.get("peer_id") is not None and not surface.door:
        known = skills.read((api.node.peers.get(str(body["peer_id"])).known.card or {}).get("skills"))
    words, wanted = body.get("query"), body.get("skill_id")
    if words is not None:
        if not isinstance(words, str):
            raise InvalidRequest(f"/query is a text, got {words!r:.80}", path="/query")
        found = skills.search(known, words, _limit(body))
        return json_response({"ok": True, "query": words, "skills": found, "total": len(found)})
    if wanted is not None:
        constraints = body.get("constraints")
        if not isinstance(wanted, str) or not isinstance(constraints, dict | None):
            raise InvalidRequest("/skill_id is a text, and /constraints an object", path="/skill_id")
        told = skills.support(known, wanted, constraints)
        return json_response({"ok": True, **told, "agent": api.node.name})
    capabilities = _card_for(api, surface)["capabilities"]
    shown = [skill.view() for skill in known][: _limit(body, len(known))]
    return json_response({"ok": True, "skills": shown, "capabilities": capabilities, "agent": api.node.name})


async def patch_skill(api: Api, request: Request, surface: Surface) -> ASGIApp:
    id_, body = request.path_params["id"], await api.json_object(request)
    skill = next((one for one in api.node.own_card.skills() if one.id == id_), None)
    if skill is None:
        raise NotFound(f"there is no skill {id_[:100]}")
    given = cards.limitations(body.get("limitations"))
    old = skill.limitations if _merges(body, "merge") or _merges(body, "limitations_merge") else []
    told = cards.merge_limitations(old, given)
    limited = {**api.node.own_card.patches.skill_limitations, id_: told}
    await api.node.patch(msgspec.structs.replace(api.node.own_card.patches, skill_limitations=limited))
    return json_response({"ok": True, "skill_id": id_, "limitations": told})


# -- extensions ---------------------------------------------------------------------------------------


async def list_extensions(api: Api, request: Request, surface: Surface) -> ASGIApp:
    found = _card_for(api, surface)["extensions"]
    return listing(request, "extensions", found, count=len(found))


async def register_extension(api: Api, request: Request, surface: Surface) -> ASGIApp:
    given = extensions.check(await api.json_object(request))
    others = [one for one in api.node.own_card.patches.extensions if one["uri"] != given["uri"]]
    await api.node.patch(msgspec.structs.replace(api.node.own_card.patches, extensions=[*others, given]))
    return json_response({"ok": True, "registered": given, "extensions": _card_for(api, surface)["extensions"]})


async def unregister_extension(api: Api, request: Request, surface: Surface) -> ASGIApp:
    uri = extensions.check_uri((await api.json_object(request)).get("uri"))
    left = [one for one in api.node.own_card.patches.extensions if one["uri"] != uri]
    if len(left) == len(api.node.own_card.patches.extensions):
        raise NotFound(f"{uri[:200]} was not registered here")
    await api.node.patch(msgspec.structs.replace(api.node.own_card.patches, extensions=left))
    return json_response({"ok": True, "removed": uri, "extensions": _card_for(api, surface)["extensions"]})


# -- availability -------------------------------------------------------------------------------------


def _availability(api: Api) -> dict[str, Any]:
    changed = api.node.own_card.patches.availability
    return dict(changed if changed is not None else api.node.settings.availability or {})


async def availability(api: Api, request: Request, surface: Surface) -> ASGIApp:
    return json_response({"ok": True, "availability": _availability(api)})


async def heartbeat(api: Api, request: Request, surface: Surface) -> ASGIApp:
    """Notes that the owner's program is awake now."""
    await api.body(request)  # says nothing, but must not be a page's
    now = frames.now_z()
    change: dict[str, Any] = {"last_active_at": now}
    every = _availability(api).get("interval_seconds")
    if every:
        change["next_active_at"] = frames.stamp(int(((frames.seconds_of(now) or 0.0) + every) * 1_000_000))
    known = cards.availability(change, _availability(api))
    await api.node.patch(msgspec.structs.replace(api.node.own_card.patches, availability=known))
    return json_response(
        {"ok": True, "last_active_at": now, "next_active_at": known.get("next_active_at"), "availability": known}
    )


# -- files --------------------------------------------------------------------------------------------


async def file(api: Api, request: Request, surface: Surface) -> ASGIApp:
    """Returns a file to every caller that knows its address. A browser saves it, and never shows it as a page of
    this server."""
    found = await api.node.files.find(request.path_params["id"])
    if found is None:
        raise NotFound("there is no such file, or not any more")
    body, media_type, name = found
    shown = "attachment"
    if name:
        shown += f"; filename*=UTF-8''{urllib.parse.quote(name, safe='')}"
    headers = {
        "content-type": media_type,
        "content-disposition": shown,
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox; default-src 'none'",
        "cache-control": "private, max-age=3600",
    }
    return Response(body, headers=headers)


def _merges(body: dict[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise InvalidRequest(f"/{name} is true or false, got {value!r:.80}", path=f"/{name}")
    return value


def _limit(body: dict[str, Any], default: int = _SEARCHED) -> int:
    value = body.get("limit")
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidRequest(f"/limit is a whole number from 1 on, got {value!r:.80}", path="/limit")
    return min(value, 500)

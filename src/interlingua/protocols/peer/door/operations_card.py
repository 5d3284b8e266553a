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
    card = api.node.own_card.view(door=surface.door, auth=api.auth_schemes())
    if surface.door:
        card = api.node.trust.sign_card({**card, "skills": [skill.view() for skill in _skills_for(api, surface)]})
    return card


def _skills_for(api: Api, surface: Surface) -> list[skills.Skill]:
    skills_ = api.node.own_card.skills()
    if not surface.door:
        return skills_
    keys = {agent.card.name: agent.card.key for agent in api.node.engine.agents}
    return [skill for skill in skills_ if scopes.may(surface.caller, "run", keys.get(skill.agent or "", skill.id))]


# -- the card -----------------------------------------------------------------------------------------


async def card(api: Api, request: Request, surface: Surface) -> ASGIApp:
    card_ = _card_for(api, surface)
    limitations = request.query_params.get("filter_limitations")
    if limitations is not None:
        card_ = cards.filtered(card_, limitations)
    here = [] if surface.door else api.node.peers.connected
    shown = cards.served(card_, here[0].known.card if here else None)
    return json_response(shown, headers=well_known.headers(request))


async def patch_card(api: Api, request: Request, surface: Surface) -> ASGIApp:
    body = await api.json_object(request)
    unknown = [name for name in body if name not in _CHANGEABLE]
    if unknown or not body:
        what = f"/{unknown[0][:80]} cannot be changed" if unknown else "nothing is to be changed"
        raise InvalidRequest(f"{what}; there are {' and '.join(_CHANGEABLE[:2])}", path=pointer(*unknown[:1]))
    patches = msgspec.structs.replace(api.node.own_card.patches)
    answer: dict[str, Any] = {"ok": True, "updated": [name for name in _CHANGEABLE[:2] if name in body]}
    if "availability" in body:
        patches.availability = cards.availability(body["availability"], _availability(api))
        answer["availability"] = patches.availability
    if "limitations" in body:
        limitations = cards.limitations(body["limitations"])
        old = api.node.own_card.limitations() if _merges(body, "limitations_merge") else []
        patches.limitations = answer["limitations"] = cards.merge_limitations(old, limitations)
    await api.node.patch(patches)
    return json_response(answer, headers=well_known.headers(request))


async def verify_own_card(api: Api, request: Request, surface: Surface) -> ASGIApp:
    return json_response({"ok": True, **api.node.trust.verify_card(_card_for(api, surface))})


async def verify_card(api: Api, request: Request, surface: Surface) -> ASGIApp:
    body = await api.json_object(request)
    card_ = body.get("card") if body.get("card") is not None else body.get("self")
    if not isinstance(card_, dict):
        raise InvalidRequest("/card is an AgentCard", path="/card")
    return json_response({"ok": True, **api.node.trust.verify_card(cards.unwrap(card_))})


# -- keys ---------------------------------------------------------------------------------------------


async def jwks(api: Api, request: Request, surface: Surface) -> ASGIApp:
    return json_response(api.node.trust.jwks(api.node.name), headers=well_known.headers(request))


async def did(api: Api, request: Request, surface: Surface) -> ASGIApp:
    document = api.node.trust.did_document()  # without the link: its token is a secret
    if document is None:
        raise NotFound("this node has no identity; --identity gives it one")
    return json_response(document, headers=well_known.headers(request))


# -- skills -------------------------------------------------------------------------------------------


async def list_skills(api: Api, request: Request, surface: Surface) -> ASGIApp:
    params = filled(request)
    limit, offset = query.number(params, "limit", 50, 1, 500, lowers=True), query.number(params, "offset", 0)
    skills_ = _skills_for(api, surface)
    if tag := request.query_params.get("tag"):
        skills_ = [skill for skill in skills_ if tag.casefold() in (label.casefold() for label in skill.tags)]
    views = [skill.view() for skill in skills_]
    if words := request.query_params.get("q"):
        views = skills.search(skills_, words, len(skills_))
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
    words, skill_id = body.get("query"), body.get("skill_id")
    if words is not None:
        if not isinstance(words, str):
            raise InvalidRequest(f"/query is a text, got {words!r:.80}", path="/query")
        matches = skills.search(known, words, _limit(body))
        return json_response({"ok": True, "query": words, "skills": matches, "total": len(matches)})
    if skill_id is not None:
        constraints = body.get("constraints")
        if not isinstance(skill_id, str) or not isinstance(constraints, dict | None):
            raise InvalidRequest("/skill_id is a text, and /constraints an object", path="/skill_id")
        support = skills.support(known, skill_id, constraints)
        return json_response({"ok": True, **support, "agent": api.node.name})
    capabilities = _card_for(api, surface)["capabilities"]
    shown = [skill.view() for skill in known][: _limit(body, len(known))]
    return json_response({"ok": True, "skills": shown, "capabilities": capabilities, "agent": api.node.name})


async def patch_skill(api: Api, request: Request, surface: Surface) -> ASGIApp:
    id_, body = request.path_params["id"], await api.json_object(request)
    skill = next((each for each in api.node.own_card.skills() if each.id == id_), None)
    if skill is None:
        raise NotFound(f"there is no skill {id_[:100]}")
    added = cards.limitations(body.get("limitations"))
    old = skill.limitations if _merges(body, "merge") or _merges(body, "limitations_merge") else []
    limitations = cards.merge_limitations(old, added)
    limited = {**api.node.own_card.patches.skill_limitations, id_: limitations}
    await api.node.patch(msgspec.structs.replace(api.node.own_card.patches, skill_limitations=limited))
    return json_response({"ok": True, "skill_id": id_, "limitations": limitations})


# -- extensions ---------------------------------------------------------------------------------------


async def list_extensions(api: Api, request: Request, surface: Surface) -> ASGIApp:
    extensions_ = _card_for(api, surface)["extensions"]
    return listing(request, "extensions", extensions_, count=len(extensions_))


async def register_extension(api: Api, request: Request, surface: Surface) -> ASGIApp:
    extension = extensions.check(await api.json_object(request))
    others = [known for known in api.node.own_card.patches.extensions if known["uri"] != extension["uri"]]
    await api.node.patch(msgspec.structs.replace(api.node.own_card.patches, extensions=[*others, extension]))
    return json_response({"ok": True, "registered": extension, "extensions": _card_for(api, surface)["extensions"]})


async def unregister_extension(api: Api, request: Request, surface: Surface) -> ASGIApp:
    uri = extensions.check_uri((await api.json_object(request)).get("uri"))
    left = [known for known in api.node.own_card.patches.extensions if known["uri"] != uri]
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
    offered = await api.node.files.find(request.path_params["id"])
    if offered is None:
        raise NotFound("there is no such file, or not any more")
    body, media_type, name = offered
    disposition = "attachment"
    if name:
        disposition += f"; filename*=UTF-8''{urllib.parse.quote(name, safe='')}"
    headers = {
        "content-type": media_type,
        "content-disposition": disposition,
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

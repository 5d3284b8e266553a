"""The card: where it is, what it holds, and the headers that it comes with."""

from __future__ import annotations

import re

from ...base import applies, expect, member, shown
from ..driver import Node
from ..shapes import VERSION, moment, told
from ..suite import check

CARD = "the card"
ENDPOINTS = {
    "send": "/message:send", "stream": "/stream", "tasks": "/tasks", "agent_card": "/.well-known/acp.json",
    "skills_query": "/skills/query", "peers": "/peers", "peer_send": "/peer/{id}/send",
    "peers_connect": "/peers/connect",
}  # fmt: skip


@check("peer.5.every-agent", "peer.5.endpoint", calm=True)
async def the_card_is_at_the_well_known_address(node: Node) -> None:
    applies(node.first is not None, "it is seen over the HTTP API alone: give its address")
    assert node.first is not None
    expect(node.first.status == 200, f"GET /.well-known/acp.json is answered with {told(node.first)}")
    card = member(node.first.json(), "", dict, "GET /.well-known/acp.json")
    expect(card, "GET /.well-known/acp.json is answered with an empty object")


@check("peer.4-1.agent-card", calm=True)
async def what_is_there_is_the_card_itself(node: Node) -> None:
    card = await node.card()
    assert node.first is None or node.first.json() is not None
    if node.first is not None:
        body = node.first.json()
        expect("name" in body, f"the card is not the answer itself, but within it: its members are {sorted(body)}")
    member(card, "name", str, CARD)


@check("peer.5-2.name", calm=True)
async def the_name_is_a_text(node: Node) -> None:
    expect(member(await node.card(), "name", str, CARD).strip(), "name of the card is empty")


@check("peer.5-2.acp-version", "peer.5-1.example-version-present", "peer.14.card-declares", calm=True)
async def the_version_is_there(node: Node) -> None:
    member(await node.card(), "acp_version", str, CARD)


@check("peer.14.semantic", calm=True)
async def the_version_is_a_semantic_one(node: Node) -> None:
    version = member(await node.card(), "acp_version", str, CARD)
    expect(VERSION.fullmatch(version), f"acp_version of the card is no semantic version: {version!r}")


@check("peer.14.acp-version", calm=True)
async def an_implementation_of_1_0_says_so(node: Node) -> None:
    version = member(await node.card(), "acp_version", str, CARD)
    expect(VERSION.fullmatch(version), f"acp_version of the card is {version!r}")
    # The document's own example has a card with 2.8.0: what says that it implements a later version is none of 1.0.
    applies(int(version.split(".")[0]) < 2, f"the card says that it implements {version}")
    expect(re.match(r"1\.0(\.|$)", version), f"acp_version of the card is {version!r}, not '1.0'")


@check("peer.5-2.timestamp", calm=True)
async def the_card_says_when_it_was_made(node: Node) -> None:
    moment((await node.card()).get("timestamp"), "timestamp of the card")


@check("peer.5-2.skills", calm=True)
async def skills_are_a_list_of_objects(node: Node) -> None:
    skills = member(await node.card(), "skills", list, CARD)
    expect(all(isinstance(skill, dict) for skill in skills), f"skills of the card are not objects: {shown(skills)}")


@check("peer.5-2.skill-fields", calm=True)
async def each_skill_has_id_and_name(node: Node) -> None:
    skills = member(await node.card(), "skills", list, CARD)
    applies(skills, "the card lists no skills")
    for skill in skills:
        for name in ("id", "name"):
            member(skill, name, str, "a skill of the card")


@check("peer.5-2.transport-modes", "peer.5-4.top-level", calm=True)
async def transport_modes_are_p2p_and_relay(node: Node) -> None:
    card = await node.card()
    expect(
        "transport_modes" in card or "transport_modes" not in await node.flags(),
        "transport_modes is among the capabilities, and not at the top of the card",
    )
    applies("transport_modes" in card, "the card has no transport_modes, which means both")
    for mode in member(card, "transport_modes", list, CARD):
        expect(mode in ("p2p", "relay"), f"transport_modes of the card has the value {shown(mode)}")


@check("peer.5-4.orthogonal", calm=True)
async def modes_and_bindings_are_not_mixed(node: Node) -> None:
    card, flags = await node.card(), await node.flags()
    modes, bindings = card.get("transport_modes"), flags.get("supported_transports")
    applies(isinstance(modes, list) and isinstance(bindings, list), "the card does not have both lists")
    assert isinstance(modes, list)
    assert isinstance(bindings, list)
    wrong = [one for one in modes if one in ("http", "ws", "h2c")] + [
        one for one in bindings if one in ("p2p", "relay")
    ]
    expect(not wrong, f"routing is mixed with bindings: transport_modes {modes}, supported_transports {bindings}")


@check("peer.history.v2-7", calm=True)
async def both_lists_of_ways_are_there(node: Node) -> None:
    card, flags = await node.card(), await node.flags()
    applies("transport_modes" in card and "supported_transports" in flags, "the card leaves the defaults to readers")
    member(card, "transport_modes", list, CARD)
    member(flags, "supported_transports", list, "capabilities")


def _only(mode: str, denied: str) -> None:
    @check(f"peer.5-4.{mode}-only", calm=True)
    async def the_groups_do_not_deny_the_only_mode(node: Node) -> None:
        modes = (await node.card()).get("transport_modes", ["p2p", "relay"])
        applies(modes == [mode], f"transport_modes is {shown(modes)}")
        groups = (await node.flags()).get("groups")
        transport = groups.get("transport") if isinstance(groups, dict) else None
        applies(isinstance(transport, dict), "the card has no groups that could say another thing")
        assert isinstance(transport, dict)
        expect(transport.get(denied) is not True, f"transport_modes is {modes}, and groups.transport.{denied} is true")


_only("p2p", "relay_fallback")
_only("relay", "p2p_direct")


@check("peer.5-2.capabilities", calm=True)
async def capabilities_are_an_object(node: Node) -> None:
    member(await node.card(), "capabilities", dict, CARD)


@check("peer.5-2.identity", calm=True)
async def the_identity_is_a_key_or_null(node: Node) -> None:
    card = await node.card()
    applies("identity" in card, "the card has no identity")
    identity = card["identity"]
    if identity is not None:
        expect(isinstance(identity, dict), f"identity of the card is neither an object nor null: {shown(identity)}")
        member(identity, "public_key", str, "identity of the card")


@check("peer.5-2.trust", calm=True)
async def trust_is_an_object(node: Node) -> None:
    member(await node.card(), "trust", dict, CARD)


@check("peer.5-1.trust-scheme", calm=True)
async def the_scheme_of_trust_is_told(node: Node) -> None:
    scheme = member(await node.card(), "trust.scheme", str, CARD)
    flags = await node.flags()
    if flags.get("hmac_signing") is not True and flags.get("identity") != "ed25519":
        expect(scheme == "none", f"nothing is signed, and yet trust.scheme is {scheme!r}")


@check("peer.5-1.trust-enabled", calm=True)
async def trust_is_enabled_or_not(node: Node) -> None:
    enabled = member(await node.card(), "trust.enabled", bool, CARD)
    flags = await node.flags()
    if flags.get("hmac_signing") is not True and flags.get("identity") != "ed25519":
        expect(not enabled, "nothing is signed, and yet trust.enabled is true")


@check("peer.history.v2-18-trust-signals", calm=True)
async def signals_of_trust_are_a_list(node: Node) -> None:
    trust = member(await node.card(), "trust", dict, CARD)
    applies("signals" in trust, "the card has no trust.signals")
    member(trust, "signals", list, "trust of the card")


@check("peer.5-2.auth", calm=True)
async def auth_is_an_object(node: Node) -> None:
    member(await node.card(), "auth", dict, CARD)


@check("peer.5-1.auth-schemes", calm=True)
async def the_schemes_of_authentication_are_named(node: Node) -> None:
    schemes = member(await node.card(), "auth.schemes", list, CARD)
    expect(schemes, 'auth.schemes of the card is empty; without any it is ["none"]')
    expect(all(isinstance(one, str) for one in schemes), f"auth.schemes of the card are not texts: {shown(schemes)}")


@check("peer.5-2.endpoints", calm=True)
async def endpoints_are_a_map_of_paths(node: Node) -> None:
    known = member(await node.card(), "endpoints", dict, CARD)
    expect(all(isinstance(path, str) for path in known.values()), f"endpoints are not all paths: {shown(known)}")


def _endpoint(name: str, path: str) -> None:
    @check(f"peer.5-1.endpoints-{name.replace('_', '-')}", calm=True)
    async def the_endpoint_is_named_by_its_path(node: Node) -> None:
        known = member(await node.card(), "endpoints", dict, CARD)
        applies(name in known, f"endpoints of the card do not name {name}")
        given = member(known, name, str, "endpoints of the card")
        expect(given.endswith(path), f"endpoints.{name} of the card is {given!r}, not {path!r}")


for _name, _path in ENDPOINTS.items():
    _endpoint(_name, _path)


@check("peer.5-2.availability", "peer.history.v2-24-availability", calm=True)
async def availability_is_an_object(node: Node) -> None:
    card = await node.card()
    applies(card.get("availability") is not None, "the card has no availability")
    member(card, "availability", dict, CARD)


@check("peer.5-2.limitations", calm=True)
async def limitations_are_a_list(node: Node) -> None:
    card = await node.card()
    applies("limitations" in card, "the card has no limitations")
    for one in member(card, "limitations", list, CARD):
        expect(isinstance(one, str | dict), f"a limitation is neither a text nor an object: {shown(one)}")


@check("peer.5-2.supported-interfaces", calm=True)
async def supported_interfaces_are_a_list_of_texts(node: Node) -> None:
    card = await node.card()
    applies("supported_interfaces" in card, "the card has no supported_interfaces")
    found = member(card, "supported_interfaces", list, CARD)
    expect(all(isinstance(one, str) for one in found), f"supported_interfaces are not texts: {shown(found)}")


# -- headers --------------------------------------------------------------------------------------------------


def _header(ident: str, name: str, *wanted: str) -> None:
    @check(ident, calm=True)
    async def well_known_answers_have_the_header(node: Node) -> None:
        applies(await node.has("well_known_rfc8615"), "the card does not have capabilities.well_known_rfc8615")
        for path in ("/.well-known/acp.json", "/.well-known/jwks.json"):
            answer = await node.ask("GET", path)
            if answer.status == 404 and path != "/.well-known/acp.json":
                continue
            given = [one.strip().lower() for one in answer.headers.get(name, "").split(",")]
            missing = [one for one in wanted if one not in given]
            expect(not missing, f"{name} of GET {path} is {answer.headers.get(name)!r}, without {', '.join(missing)}")


_header("peer.8-7.m10-cache-control", "cache-control", "no-cache", "no-store")
_header("peer.8-7.m10-vary", "vary", "accept")
_header("peer.8-7.m10-nosniff", "x-content-type-options", "nosniff")


@check("peer.history.v2-47-headers", calm=True)
async def all_well_known_headers_are_there(node: Node) -> None:
    applies(await node.has("well_known_rfc8615"), "the card does not have capabilities.well_known_rfc8615")
    answer = await node.ask("GET", "/.well-known/acp.json")
    missing = [name for name in ("cache-control", "vary", "x-content-type-options") if name not in answer.headers]
    expect(not missing, f"GET /.well-known/acp.json has no {', '.join(missing)}")


@check("peer.5-3.well-known-rfc8615", calm=True)
async def the_flag_of_these_headers_is_a_boolean(node: Node) -> None:
    flags = await node.flags()
    applies("well_known_rfc8615" in flags, "the card has no capabilities.well_known_rfc8615, which means false")
    member(flags, "well_known_rfc8615", bool, "capabilities of the card")


@check("peer.history.v2-47-flag", calm=True)
async def whoever_sends_these_headers_says_so(node: Node) -> None:
    answer = await node.ask("GET", "/.well-known/acp.json")
    sent = all(name in answer.headers for name in ("cache-control", "vary", "x-content-type-options"))
    applies(sent, "the headers of RFC 8615 are not sent")
    expect(
        await node.has("well_known_rfc8615"), "the headers are sent, and capabilities.well_known_rfc8615 is not true"
    )

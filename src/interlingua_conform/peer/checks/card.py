"""The card: where it is, what it holds, and the headers that it comes with."""

from __future__ import annotations

import re
from typing import Any

from ...base import applies, expect, member, shown
from ...rows import Row, Source, add
from ..driver import Node
from ..shapes import VERSION, moment, told
from ..suite import check, suite

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


async def _skills(node: Node) -> list[Any]:
    return member(await node.card(), "skills", list, CARD)


def _paths(known: Any, where: str) -> None:
    expect(all(isinstance(path, str) for path in known.values()), f"{where} are not all paths: {shown(known)}")


def _key_or_null(identity: Any, where: str) -> None:
    if identity is not None:
        member(member(identity, "", dict, where), "public_key", str, where)


def _limitations(found: Any, where: str) -> None:
    for one in found:
        expect(isinstance(one, str | dict), f"{where} has one that is neither a text nor an object: {shown(one)}")


_CARD, _SKILL = Source(Node.card, CARD), Source(_skills, "a skill of the card", each=True)
FLAGS = Source(Node.flags, "capabilities of the card")
add(
    suite,
    Row("peer.5-2.name", _CARD, "name", str, filled=True),
    Row("peer.5-2.acp-version peer.5-1.example-version-present peer.14.card-declares", _CARD, "acp_version", str),
    Row("peer.14.semantic", _CARD, "acp_version", str, matches=VERSION, form="semantic version"),
    Row("peer.5-2.timestamp", _CARD, "timestamp", fits=moment),
    Row("peer.5-2.skills", _CARD, "skills", list, items=dict),
    Row("peer.5-2.skill-fields", _SKILL, "id", str),
    Row("peer.5-2.skill-fields", _SKILL, "name", str),
    Row("peer.5-2.capabilities", _CARD, "capabilities", dict),
    Row("peer.5-2.identity", _CARD, "identity", fits=_key_or_null, optional=True),
    Row("peer.5-2.trust", _CARD, "trust", dict),
    Row("peer.history.v2-18-trust-signals", _CARD, "trust.signals", list, optional=True),
    Row("peer.5-2.auth", _CARD, "auth", dict),
    Row("peer.5-1.auth-schemes", _CARD, "auth.schemes", list, filled=True, items=str),
    Row("peer.5-2.endpoints", _CARD, "endpoints", dict, fits=_paths),
    *(
        Row(
            f"peer.5-1.endpoints-{name.replace('_', '-')}", _CARD, f"endpoints.{name}", str, optional=True,
            matches=re.compile(f".*{re.escape(path)}"), form=f"path that ends with {path}",
        )
        for name, path in ENDPOINTS.items()
    ),
    Row("peer.5-2.availability peer.history.v2-24-availability", _CARD, "availability", dict, optional=True, null=True),
    Row("peer.5-2.limitations", _CARD, "limitations", list, fits=_limitations, optional=True),
    Row("peer.5-2.supported-interfaces", _CARD, "supported_interfaces", list, items=str, optional=True),
    Row("peer.5-3.well-known-rfc8615", FLAGS, "well_known_rfc8615", bool, optional=True),
    calm=True,
)  # fmt: skip


@check("peer.14.acp-version", calm=True)
async def an_implementation_of_1_0_says_so(node: Node) -> None:
    version = member(await node.card(), "acp_version", str, CARD)
    expect(VERSION.fullmatch(version), f"acp_version of the card is {version!r}")
    # The document's own example has a card with 2.8.0: what says that it implements a later version is none of 1.0.
    applies(int(version.split(".")[0]) < 2, f"the card says that it implements {version}")
    expect(re.match(r"1\.0(\.|$)", version), f"acp_version of the card is {version!r}, not '1.0'")


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


@check("peer.history.v2-47-flag", calm=True)
async def whoever_sends_these_headers_says_so(node: Node) -> None:
    answer = await node.ask("GET", "/.well-known/acp.json")
    sent = all(name in answer.headers for name in ("cache-control", "vary", "x-content-type-options"))
    applies(sent, "the headers of RFC 8615 are not sent")
    expect(
        await node.has("well_known_rfc8615"), "the headers are sent, and capabilities.well_known_rfc8615 is not true"
    )

"""Extensions: that they are declared, how, and that the built-in ones are there when their feature is."""

from __future__ import annotations

import re
from typing import Any

from ...base import applies, expect, member, shown
from ...rows import Row, Source, add
from ..driver import Node
from ..shapes import listed
from ..suite import check, suite

_BUILT_IN = re.compile(r"acp:ext:[A-Za-z0-9._-]+-v\d+(\.\d+)*")


async def _declared(node: Node) -> list[dict[str, Any]]:
    found = (await node.card()).get("extensions")
    applies(isinstance(found, list), "the card has no extensions")
    entries = [one for one in found or () if isinstance(one, dict)]
    applies(entries, "the card declares no extensions")
    return entries


async def _uris(node: Node) -> list[Any]:
    return [one.get("uri") for one in listed((await node.card()).get("extensions"), "extensions")]


async def _all(node: Node) -> list[Any]:
    return member(await node.card(), "extensions", list, "the card")


_CARD, _EXTENSION = Source(Node.card, "the card"), Source(_declared, "an extension", each=True)
add(
    suite,
    Row("peer.5-5-4.always-present peer.5-2.extensions-empty peer.5-5-5.card peer.5-5.declarative", _CARD,
        "extensions", list),
    Row("peer.5-2.extensions peer.history.v2-8", Source(_all, "an extension of the card", each=True), "uri"),
    Row("peer.5-5-1.uri", _EXTENSION, "uri", str, filled=True),
    Row("peer.5-5-1.required", _EXTENSION, "required", bool, optional=True),
    Row("peer.5-5-1.params", _EXTENSION, "params", dict, optional=True),
)  # fmt: skip


@check("peer.5-5-2.built-in")
async def short_uris_have_their_form(node: Node) -> None:
    short = [uri for uri in await _uris(node) if isinstance(uri, str) and uri.startswith("acp:")]
    applies(short, "the card declares no built-in extensions")
    for uri in short:
        expect(_BUILT_IN.fullmatch(uri), f"the URI {uri!r} is not acp:ext:<name>-v<version>")


@check("peer.5-5-2.vendor", "peer.5-5-2.custom-https")
async def other_uris_are_https_addresses(node: Node) -> None:
    other = [uri for uri in await _uris(node) if isinstance(uri, str) and not uri.startswith("acp:ext:")]
    applies(other, "the card declares no extensions but built-in ones")
    for uri in other:
        expect(uri.startswith("https://"), f"the URI {uri!r} is no whole HTTPS URL")


@check("peer.5-5-4.dedup")
async def no_uri_is_listed_twice(node: Node) -> None:
    uris = [shown(uri) for uri in await _uris(node)]
    applies(uris, "the card declares no extensions")
    twice = sorted({uri for uri in uris if uris.count(uri) > 1})
    expect(not twice, f"the card lists {', '.join(twice)} more than once")


@check("peer.5-5-3.hmac")
async def signing_is_listed_when_it_is_on(node: Node) -> None:
    applies(await node.has("hmac_signing"), "nothing is signed with a secret")
    expect("acp:ext:hmac-v1" in await _uris(node), "hmac_signing is true, and acp:ext:hmac-v1 is not among extensions")


@check("peer.5-5-3.mdns")
async def discovery_is_listed_when_it_is_on(node: Node) -> None:
    applies(await node.has("lan_discovery"), "the node does not announce itself")
    expect("acp:ext:mdns-v1" in await _uris(node), "lan_discovery is true, and acp:ext:mdns-v1 is not among extensions")


@check("peer.7-4.card-flag")
async def discovery_has_its_flag_when_it_is_listed(node: Node) -> None:
    applies("acp:ext:mdns-v1" in await _uris(node), "the node does not announce itself")
    expect(await node.has("lan_discovery"), "acp:ext:mdns-v1 is among extensions, and lan_discovery is not true")


@check("peer.5-5-3.h2c")
async def http_2_is_listed_when_it_is_on(node: Node) -> None:
    kinds = (await node.flags()).get("supported_transports")
    applies(isinstance(kinds, list) and "h2c" in kinds, "HTTP/2 in cleartext is not on")
    expect("acp:ext:h2c-v1" in await _uris(node), "h2c is on, and acp:ext:h2c-v1 is not among extensions")


@check("peer.5-5-3.automatic")
async def every_active_feature_is_listed(node: Node) -> None:
    flags, uris = await node.flags(), await _uris(node)
    kinds = flags.get("supported_transports")
    active = {
        "acp:ext:hmac-v1": flags.get("hmac_signing") is True,
        "acp:ext:mdns-v1": flags.get("lan_discovery") is True,
        "acp:ext:h2c-v1": isinstance(kinds, list) and "h2c" in kinds,
    }
    applies(any(active.values()), "no feature with a built-in extension is on")
    missing = [uri for uri, on in active.items() if on and uri not in uris]
    expect(not missing, f"the feature is on, and the card does not list {', '.join(missing)}")


async def _listed(node: Node) -> Any:
    return await node.answer("GET", "/extensions")


add(suite, Row("peer.5-5-5.endpoint", Source(_listed, "GET /extensions"), "extensions", list))


@check("peer.5-5-5.same-data")
async def the_list_is_that_of_the_card(node: Node) -> None:
    there = listed(await node.get("/extensions"), "extensions")
    here = listed((await node.card()).get("extensions"), "extensions")
    applies(there or here, "there are no extensions")
    uris = [sorted(shown(one.get("uri")) for one in told) for told in (there, here)]
    expect(uris[0] == uris[1], f"GET /extensions lists {uris[0]}, and the card {uris[1]}")
    expect(there == here, f"GET /extensions tells {shown(there)}, and the card {shown(here)}")


@check("peer.5-5-5.example")
async def signing_is_listed_as_in_the_example(node: Node) -> None:
    applies(await node.has("hmac_signing"), "nothing is signed with a secret")
    found = listed(await node.get("/extensions"), "extensions")
    entry = next((one for one in found if one.get("uri") == "acp:ext:hmac-v1"), {})
    expect(entry.get("required", False) is False, f"acp:ext:hmac-v1 is listed as {shown(entry)}")
    scheme = member(entry, "params.scheme", str, "acp:ext:hmac-v1 of GET /extensions")
    expect(scheme == "hmac-sha256", f"the scheme of acp:ext:hmac-v1 is {scheme!r}")

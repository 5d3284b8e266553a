"""Checks peers whose cards are unlike the node's own: older, newer, with less or with more in them. The node talks to
all of them."""

from __future__ import annotations

import copy
import json

from ...base import Broken, applies, expect, member, shown
from ...remembering import once
from ..driver import NAME, OURS, Node
from ..shapes import segment, told
from ..suite import check
from ..wires import Frame, Wire

# The card of the document's example, but for its name.
EXAMPLE: Frame = {
    "name": NAME, "acp_version": "2.8.0", "timestamp": "2026-03-28T07:00:00Z",
    "skills": [{"id": "summarize", "name": "summarize"}], "transport_modes": ["p2p", "relay"],
    "extensions": [
        {"uri": "acp:ext:hmac-v1", "required": False, "params": {"scheme": "hmac-sha256"}},
        {"uri": "acp:ext:mdns-v1", "required": False, "params": {}},
        {"uri": "acp:ext:h2c-v1", "required": False, "params": {}},
    ],
    "capabilities": {
        "streaming": True, "push_notifications": True, "input_required": True, "part_types": ["text", "file", "data"],
        "max_msg_bytes": 1048576, "query_skill": True, "server_seq": True, "multi_session": True, "error_codes": True,
        "hmac_signing": False, "lan_discovery": False, "context_id": True, "identity": "none",
        "supported_transports": ["http", "ws"],
    },
    "identity": None, "trust": {"scheme": "none", "enabled": False}, "auth": {"schemes": ["none"]},
    "endpoints": {
        "send": "/message:send", "stream": "/stream", "tasks": "/tasks", "agent_card": "/.well-known/acp.json",
        "skills_query": "/skills/query", "peers": "/peers", "peer_send": "/peer/{id}/send",
        "peers_connect": "/peers/connect",
    },
}  # fmt: skip


def _odd(ident: str) -> Frame:
    """A card with what a rule is about."""
    card = copy.deepcopy(OURS)
    match ident:
        case "peer.5-1.example-read":
            return EXAMPLE
        case "peer.5-2.transport-modes-absent":
            del card["transport_modes"]
        case "peer.5-4.advisory":
            card["transport_modes"] = ["relay"]
        case "peer.5-4.unknown-ignored":
            card["transport_modes"] = ["p2p", "pigeon"]
        case "peer.5-3-1.unknown-ignored":
            card["capabilities"]["groups"] = {"messaging": {"telepathy": True}, "catering": {"tea": True}}
        case "peer.5-6.unknown-capabilities":
            card["capabilities"] |= {"telepathy": True, "tea": {"kinds": ["green"]}}
        case "peer.5-5-4.unknown-ignored":
            card["extensions"] = [{"uri": "https://example.com/ext/tea", "required": False, "params": {"kind": 1}}]
        case "peer.5-5-1.required-default":
            card["extensions"] = [{"uri": "https://example.com/ext/tea"}]
        case "peer.14.ignore-extension-fields":
            card["a_member_of_a_later_version"] = {"x": [1]}
        case "peer.14.accept-old-peers":
            card = {"name": NAME, "version": "0.5", "acp_version": "0.5", "skills": []}
        case "peer.history.v0-6-minimal":
            card = {"name": NAME}
    return card


ODD = (
    "peer.5-1.example-read", "peer.5-2.transport-modes-absent", "peer.5-4.advisory", "peer.5-4.unknown-ignored",
    "peer.5-3-1.unknown-ignored", "peer.5-6.unknown-capabilities", "peer.5-5-4.unknown-ignored",
    "peer.5-5-1.required-default", "peer.14.ignore-extension-fields", "peer.14.accept-old-peers",
    "peer.history.v0-6-minimal",
)  # fmt: skip


def _everything() -> Frame:
    """Returns a card with every odd part at once, for servers that mind none of them."""
    card = _odd("peer.14.ignore-extension-fields")
    card["capabilities"] |= _odd("peer.5-6.unknown-capabilities")["capabilities"]
    card["capabilities"] |= _odd("peer.5-3-1.unknown-ignored")["capabilities"]
    card["transport_modes"] = ["relay", "pigeon"]
    card["extensions"] = [*_odd("peer.5-5-4.unknown-ignored")["extensions"], {"uri": "https://example.com/ext/milk"}]
    return card


_MINDS_NOTHING = tuple(ident for ident in ODD if ident not in (
    "peer.5-1.example-read", "peer.5-2.transport-modes-absent", "peer.14.accept-old-peers", "peer.history.v0-6-minimal",
))  # fmt: skip


async def _talks(node: Node, card: Frame) -> None:
    """A peer with this card is connected to, and talked to."""
    async with node.visited(card) as made:
        applies(made.answer.status < 300, made.why)
        expect(made.wire is not None, f"the node does not connect to a peer whose card is {shown(card)}: {made.why}")
        assert made.wire is not None
        await _said(node, made.host.link, made.wire, card)


async def _said(node: Node, link: str, wire: Wire, card: Frame) -> None:
    peer = await node.peer(link)
    sent = await node.say({"role": "user", "parts": [{"type": "text", "content": "{mark}"}]},
                          f"/peer/{segment(peer.get('id'))}/send", wire=wire)  # fmt: skip
    expect(sent.frame is not None, f"a peer whose card is {shown(card)} is not talked to: {sent.why}")


@once
async def _minds_nothing(node: Node) -> None:
    await _talks(node, _everything())


def _unlike(ident: str) -> None:
    @check(ident)
    async def a_peer_with_such_a_card_is_talked_to(node: Node) -> None:
        applies(node.api is not None, "it is seen over the HTTP API alone: give its address")
        sent = await node.to_peer()
        applies(sent.frame is not None, f"no peer is sent anything by its id: {sent.why}")
        if ident in _MINDS_NOTHING:
            try:
                await _minds_nothing(node)
                return
            except Broken:
                pass  # the single oddity, sent alone, shows whether it is at fault
        await _talks(node, _odd(ident))


for _ident in ODD:
    _unlike(_ident)


@check("peer.history.v2-24-peer-card")
async def the_card_of_a_peer_is_kept(node: Node) -> None:
    peer = await node.peer()
    answer = await node.ask("GET", f"/peers/{segment(peer.get('id'))}/card")
    applies(answer.status not in (404, 405, 501), "there is no GET /peers/{id}/card, which came with 2.24")
    expect(answer.status == 200, f"GET /peers/{peer.get('id')}/card is answered with {told(answer)}")
    body = member(answer.json(), "", dict, "GET /peers/{id}/card")
    expect(NAME in json.dumps(body), f"GET /peers/{{id}}/card does not give the card: {shown(body)}")

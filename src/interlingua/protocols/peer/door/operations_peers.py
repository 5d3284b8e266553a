"""Operations on peers, and on the node for its owner: connect, list, ping, waiting messages, peers nearby."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from ....doors import query
from ....model.errors import InvalidRequest, NotFound
from ....transports.http.body import json_response
from ..node.outbound import seconds
from ..node.peers import QUEUED, Peer
from ..node.tasks import Surface
from ..translate.errors import NOT_CONNECTED, PING_TIMEOUT, Refusal
from ..wire import frames
from ..wire.card import ACP_VERSION
from .api import Api, filled, listing

_SHOWN = 100  # of the messages that wait for a peer


def _peer(api: Api, request: Request) -> Peer:
    return api.node.peers.get(request.path_params["id"])


# -- looking ------------------------------------------------------------------------------------------


async def list_peers(api: Api, request: Request, surface: Surface) -> ASGIApp:
    filter_ = request.query_params.get("filter", "all")
    if filter_ not in ("all", "connected", "disconnected"):
        raise Refusal("ERR_INVALID_FILTER", 400, f"/filter is all, connected or disconnected, got {filter_[:80]!r}")
    params = filled(request)
    limit, offset = query.number(params, "limit", 100, 1, 1000, lowers=True), query.number(params, "offset", 0)
    every = list(api.node.peers)
    chosen = [peer for peer in every if filter_ == "all" or peer.connected == (filter_ == "connected")]
    page = chosen[offset : offset + limit]
    more = offset + len(page) < len(chosen)
    following = offset + len(page) if more else None
    return listing(
        request, "peers", [peer.view() for peer in page], ok=True, count=len(page),
        active=len(api.node.peers.connected), total=len(every), total_filtered=len(chosen), has_more=more,
        next_offset=following,
        pagination={"limit": limit, "offset": offset, "filter": filter_, "has_more": more, "next_offset": following},
    )  # fmt: skip


async def get_peer(api: Api, request: Request, surface: Surface) -> ASGIApp:
    return json_response(_peer(api, request).view())


async def peer_card(api: Api, request: Request, surface: Surface) -> ASGIApp:
    """Returns the latest card of a peer; it is kept when the peer is away."""
    peer = _peer(api, request)
    card = peer.known.card
    return json_response(
        {"ok": True, "peer_id": peer.id, "name": peer.name, "connected": peer.connected, "agent_card": card,
         "card_available": card is not None, "verification": peer.known.verification}
    )  # fmt: skip


async def verify_peer(api: Api, request: Request, surface: Surface) -> ASGIApp:
    """Reports if the card of a peer is signed by the key on it."""
    peer_id = request.query_params.get("peer_id")
    peer = api.node.peers.get(peer_id) if peer_id else _only(api)
    verification = peer.known.verification or api.node.trust.verify_card(peer.known.card)
    return json_response(
        {"ok": True, "peer_id": peer.id, "peer_name": peer.name, "peer_did": verification.get("did"),
         "verified": bool(verification.get("valid")), **verification}
    )  # fmt: skip


def _only(api: Api) -> Peer:
    known = [peer for peer in api.node.peers if peer.known.card is not None]
    here = [peer for peer in known if peer.connected] or known
    if not here:
        raise NotFound("no peer has shown a card yet")
    if len(here) > 1:
        raise InvalidRequest("there are several peers: say which one in peer_id", path="/peer_id")
    return here[0]


# -- changing -----------------------------------------------------------------------------------------


async def connect(api: Api, request: Request, surface: Surface) -> ASGIApp:
    """Begins to dial. The peer's state and the stream show if it succeeds."""
    body = await api.json_object(request)
    name = body.get("name")
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidRequest(f"/name is a text, got {name!r:.80}", path="/name")
    peer, known = api.node.calling.connect(body.get("link"), name)
    answer: dict[str, Any] = {"ok": True, "peer_id": peer.id, "connecting_to": peer.known.link, "name": peer.name,
                            "connected": peer.connected}  # fmt: skip
    if known:
        answer["already_connected"] = peer.connected
    return json_response(answer)


async def rename(api: Api, request: Request, surface: Surface) -> ASGIApp:
    peer, body = _peer(api, request), await api.json_object(request)
    name = body.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= frames.MAX_ID or not name.isprintable():
        raise InvalidRequest(f"/name is a text, got {name!r:.80}", path="/name")
    old, peer.known.name, peer.known.renamed = peer.name, name, True
    api.node.peers.changed(peer)
    return json_response({"ok": True, "peer_id": peer.id, "old_name": old, "new_name": name})


async def forget_peer(api: Api, request: Request, surface: Surface) -> ASGIApp:
    peer = _peer(api, request)
    await api.node.calling.hang_up(peer)
    api.node.peers.drop(peer)
    return json_response({"ok": True, "deleted": peer.id, "peer_id": peer.id})


async def ping(api: Api, request: Request, surface: Surface) -> ASGIApp:
    peer, body = _peer(api, request), await api.json_object(request)
    timeout = seconds(body.get("timeout"), "timeout", 5.0)
    if peer.session is None:
        raise Refusal(NOT_CONNECTED, 503, f"{peer.name} is not connected", peer_id=peer.id)
    if not peer.able("peer_ping"):
        raise InvalidRequest(f"{peer.name} does not say that it answers pings")
    try:
        took = await peer.session.ping(timeout)
    except TimeoutError:
        raise Refusal(PING_TIMEOUT, 408, f"{peer.name} did not answer within {timeout:g} s", peer_id=peer.id) from None
    peer.ping_ms, peer.ping_at, peer.pings = round(took, 3), frames.now_z(), peer.pings + 1
    return json_response({"ok": True, "peer_id": peer.id, "rtt_ms": peer.ping_ms, "status": "alive"})


async def broadcast(api: Api, request: Request, surface: Surface) -> ASGIApp:
    return json_response(await api.node.sending.broadcast(await api.body(request)))


# -- the node -----------------------------------------------------------------------------------------


async def offline_queue(api: Api, request: Request, surface: Surface) -> ASGIApp:
    node, queue = api.node, {}
    total = 0
    for peer in node.peers:
        depth = await node.engine.documents.count_letters(node.journal.box_out, states=[QUEUED], topic=peer.id)
        if not depth:
            continue
        letters = await node.engine.documents.letters(
            node.journal.box_out, states=[QUEUED], topic=peer.id, limit=_SHOWN, ranked=True
        )
        queue[peer.id] = {
            "depth": depth,
            "name": peer.name,
            "connected": peer.connected,
            "messages": [
                {"id": letter.key, "type": "message", "queued_at": frames.stamp(letter.time), "rank": letter.rank}
                for letter in letters
            ],
        }
        total += depth
    answer = {"ok": True, "total_queued": total, "max_per_peer": node.settings.max_queued, "queue": queue}
    return json_response(answer)


async def discover(api: Api, request: Request, surface: Surface) -> ASGIApp:
    if api.node.discovery is None:
        await api.node.discover()  # the owner asks for peers nearby: from now on it listens
    discovery = api.node.discovery
    peers = discovery.peers() if discovery is not None else []
    near = [
        {"name": peer.name, "token": peer.token, "link": peer.link, "ip": peer.ip, "ws_port": peer.ws_port,
         "http_port": peer.http_port, "seen_at": peer.seen_at}
        for peer in peers
    ]  # fmt: skip
    advertises = api.node.settings.advertise_mdns
    note = "this node tells others of itself" if advertises else "this node only listens; --advertise-mdns tells of it"
    if discovery is None:
        note = "nobody listens on the network"
    active = discovery is not None and discovery.active
    return json_response({"ok": True, "lan_peers": near, "count": len(near), "mdns_active": active, "note": note})


async def link(api: Api, request: Request, surface: Surface) -> ASGIApp:
    node = api.node
    relayed = node.relay_link(node.token) if node.relay is not None else None
    return json_response(
        {"link": node.link, "session_id": node.session_id, "tcp_link": node.tcp_link,
         "relay_link": str(relayed) if relayed is not None else None}
    )  # fmt: skip


async def status(api: Api, request: Request, surface: Surface) -> ASGIApp:
    node = api.node
    up = round(time.time() - node.started_at, 3) if node.started_at is not None else 0.0
    answer: dict[str, Any] = {
        "ok": True,
        "acp_version": ACP_VERSION,
        "version": node.own_card.view()["version"],
        "name": node.name,
        "agent_name": node.name,
        "started_at": None if node.started_at is None else frames.stamp(int(node.started_at * 1_000_000)),
        "uptime": up,
        "uptime_seconds": up,
        "max_msg_bytes": node.settings.max_msg_bytes,
        "seq": await node.journal.feed(surface.feed).head(),
    }
    return json_response(answer if surface.door else {**answer, **await _owner_status(api)})


async def _owner_status(api: Api) -> dict[str, Any]:
    node = api.node
    here = node.peers.connected
    first = here[0] if here else None
    last = await node.engine.documents.letters(node.journal.box_out, limit=1, newest=True)
    ws, tcp = node.listeners.get("ws"), node.listeners.get("tcp")
    port = (node.http_address or "").rpartition(":")[2]
    return {
        "connected": bool(here),
        "role": "host" if node.listeners else "guest",
        "link": node.link,
        "session_id": node.session_id,
        "agent_card": node.own_card.view(),
        "peer_card": first.known.card if first is not None else None,
        "peer_card_verification": first.known.verification if first is not None else None,
        "ws_port": ws.port if ws is not None else None,
        "tcp_port": tcp.port if tcp is not None else None,
        "http_port": int(port) if port.isdecimal() else None,
        "messages_sent": sum(peer.known.sent for peer in node.peers),
        "messages_received": sum(peer.known.received for peer in node.peers),
        "messages_deduped": node.inbound.deduplicated,
        "reconnect_count": node.calling.reconnects,
        "tasks_created": node.tasks_created,
        "server_seq": last[0].number if last else 0,
        "peer_count": len(here),
        "known_peers": len(node.peers),
        "p2p_enabled": "p2p" in node.settings.transport_modes,
        "limitations": node.own_card.limitations(),
        "connection_type": first.binding if first is not None else None,
        "force_relay": node.settings.transport_modes == ("relay",),
        "relay_in_use": node.relay is not None,
        "notices": node.notices,
    }

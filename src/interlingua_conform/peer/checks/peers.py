"""Checks the registry of peers: its entries, messages to one peer, and several peers at once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from ...base import Broken, Gone, applies, expect, member, shown
from ...remembering import once
from ...rows import Row, Source, add
from ..driver import NAME, OURS, Node
from ..nearby import FOUND, found
from ..shapes import LINK, absent, listed, moment, segment, text, told
from ..suite import check, suite
from ..wires import Frame, new_id
from .tasks import played

PEER = "a peer of GET /peers"


async def _offered(node: Node) -> None:
    """The registry is there, or the card says that it is."""
    answer = await node.ask("GET", "/peers")
    applies(
        not absent(answer) or await node.offers("peers"),
        "GET /peers is not there, and the card's endpoints do not name it",
    )


@check("peer.4-1.peers")
async def peers_are_listed(node: Node) -> None:
    await _offered(node)
    answer = await node.ask("GET", "/peers")
    expect(answer.status == 200, f"GET /peers is answered with {told(answer)}")
    body = answer.json()
    peers = body.get("peers") if isinstance(body, dict) else body
    expect(isinstance(peers, list), f"GET /peers gives no list of peers: {shown(body)}")


@check("peer.4-1.peers-connect", "peer.10-1.peers-connect", "peer.0.zero-config")
async def a_link_is_all_that_is_needed(node: Node) -> None:
    await _offered(node)
    made = await node.connecting()
    expect(made.answer.status < 300, f"POST /peers/connect with {made.host.link} is answered with {told(made.answer)}")
    expect(made.wire is not None, f"the node does not connect to {made.host.link}: {made.why}")


@check("peer.10-1.peers")
async def a_connected_peer_is_in_the_list(node: Node) -> None:
    await node.wire()
    link = (await node.connecting()).host.link
    body = await node.get("/peers")
    expect(link in shown(body, 1_000_000), f"GET /peers does not list {link}: {shown(body)}")


_PEER = Source(Node.peer, PEER)
add(
    suite,
    Row("peer.10-2.id", _PEER, "id", str, filled=True),
    Row("peer.10-2.name", _PEER, "name", str, filled=True),
    Row("peer.10-2.messages-sent", _PEER, "messages_sent", int),
    Row("peer.10-2.messages-received", _PEER, "messages_received", int),
    Row("peer.10-2.connected", _PEER, "connected", bool, equals=True),
    Row("peer.10-2.connected-at", _PEER, "connected_at", fits=moment),
)


@check("peer.10-2.link")
async def a_peer_has_the_link_that_led_to_it(node: Node) -> None:
    await node.wire()
    wanted = (await node.connecting()).host.link
    links = [peer.get("link") for peer in listed(await node.get("/peers"), "peers")]
    applies(links, "GET /peers lists nobody")
    expect(wanted in links, f"no peer of GET /peers has the link {wanted} by which it was reached: {shown(links)}")


@check("peer.10-2.link-form")
async def a_link_has_its_form(node: Node) -> None:
    links = [peer["link"] for peer in listed(await node.get("/peers"), "peers") if isinstance(peer.get("link"), str)]
    status = await node.ask("GET", "/status")
    body = status.json() if status.status == 200 else {}
    if isinstance(body, dict) and isinstance(body.get("link"), str):
        links.append(body["link"])
    links = [link for link in links if link.startswith(("acp:", "acps:"))]
    applies(links, "no acp:// link is to be seen")
    for link in links:
        expect(LINK.fullmatch(link), f"the link {link!r} is not acp://host:port/token")


@check("peer.10-2.agent-card")
async def a_peer_has_its_card(node: Node) -> None:
    card: Any = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(node.subject.patience):
            while not isinstance(card, dict):  # it comes a moment after the connection
                peer = await node.peer()
                expect("agent_card" in peer, f"{PEER} has no agent_card: {shown(peer)}")
                card = peer["agent_card"]
                await asyncio.sleep(0.02)
    expect(isinstance(card, dict), f"agent_card of {PEER} is {shown(card)}, and it showed its card")
    expect(card.get("name") == NAME, f"agent_card of {PEER} is not the card that it showed: {shown(card)}")


@check("peer.4-1.peer-get", "peer.10-1.peer")
async def one_peer_can_be_looked_at(node: Node) -> None:
    id_ = segment((await node.peer()).get("id"))
    answer = await node.ask("GET", f"/peer/{id_}")
    expect(answer.status == 200, f"GET /peer/{id_} is answered with {told(answer)}")
    body = member(answer.json(), "", dict, f"GET /peer/{id_}")
    peer = body["peer"] if isinstance(body.get("peer"), dict) else body
    for name in ("agent_card", "link", "messages_sent", "messages_received"):
        expect(name in peer, f"GET /peer/{id_} has no {name}: {shown(peer)}")


@check("peer.4-1.peer-send")
async def one_peer_can_be_sent_to(node: Node) -> None:
    sent = await node.to_peer()
    expect(sent.answer.status == 200, f"POST /peer/{{id}}/send is answered with {told(sent.answer)}")
    expect(sent.frame is not None, f"a message to a peer by its id does not arrive: {sent.why}")


@check("peer.10-1.peer-send-body")
async def it_takes_the_same_body(node: Node) -> None:
    id_ = segment((await node.peer()).get("id"))
    applies((await node.to_peer()).frame is not None, "no peer is sent anything by its id")
    given: dict[str, Any] = {
        "role": "agent", "parts": [text("{mark}"), {"type": "data", "content": {"a": 1}}], "message_id": new_id(),
        "context_id": "ctx_body",
    }  # fmt: skip
    sent = await node.say(given, f"/peer/{id_}/send")
    expect(sent.answer.status == 200, f"POST /peer/{id_}/send is answered with {told(sent.answer)}")
    for name in given:
        got = sent.arrived.get(name)
        expect(got == sent.body[name], f"{name} of a message by POST /peer/{id_}/send becomes {shown(got)}")
    short = await node.say({"role": "user", "text": "{mark}"}, f"/peer/{id_}/send")
    expect(short.answer.status == 200, f"POST /peer/{id_}/send with text alone is answered with {told(short.answer)}")
    wrong = await node.post({"role": "system", "text": "hello"}, f"/peer/{id_}/send")
    expect(wrong.status == 400, f"POST /peer/{id_}/send with the role system is answered with {told(wrong)}")


@once
async def _second(node: Node) -> tuple[dict[str, Any], bool, bool]:
    """Connects a second peer beside the first. Returns its entry in the list, whether a message to it arrives while
    both are connected, and whether that message also goes to the first."""
    first = await node.wire()
    async with node.visited({**OURS, "name": f"{NAME} the second"}) as made:
        applies(made.wire is not None, f"the node does not connect to a second peer: {made.why}")
        assert made.wire is not None
        peer = await node.peer(made.host.link)
        start, both = len(first.messages), not first.ended and not made.wire.ended
        said = {"role": "user", "parts": [text("{mark}")]}
        sent = await node.say(said, f"/peer/{segment(peer.get('id'))}/send", wire=made.wire)
        astray = any(_said(sent.body) in shown(frame, 100_000) for frame in first.messages[start:])
        return peer, both and sent.frame is not None, astray


def _said(body: Frame) -> str:
    return str(body["parts"][0]["content"])


@check("peer.10.several-peers")
async def several_peers_are_connected_at_once(node: Node) -> None:
    applies(await node.has("multi_session"), "the card does not have capabilities.multi_session")
    applies((await node.to_peer()).frame is not None, "no peer is sent anything by its id")
    _, both, _ = await _second(node)
    expect(both, "a second peer is not talked to beside the first")


@check("peer.history.v0-3")
async def tasks_have_a_life_and_a_node_has_sessions(node: Node) -> None:
    applies(await node.has("multi_session"), "the card does not have capabilities.multi_session")
    applies((await node.to_peer()).frame is not None, "no peer is sent anything by its id")
    _, both, _ = await _second(node)
    expect(both, "a second peer is not talked to beside the first")
    seen = {str(view.get("status")) for story in await played(node) for view in story.views}
    expect("completed" in seen, f"no task was ever completed, but {', '.join(sorted(seen))}")


@check("peer.10-1.peer-send")
async def a_message_goes_to_that_peer_alone(node: Node) -> None:
    applies((await node.to_peer()).frame is not None, "no peer is sent anything by its id")
    peer, _, astray = await _second(node)
    expect(not astray, f"a message to {peer.get('id')} came to another peer as well")


@check("peer.4-1.discover")
async def nearby_peers_are_listed(node: Node) -> None:
    answer = await node.ask("GET", "/discover")
    announces = await node.has("lan_discovery")
    applies(announces or not absent(answer), "GET /discover, which is experimental, is not there")
    expect(answer.status == 200, f"GET /discover is answered with {told(answer)}")
    body = answer.json()
    lists = body.values() if isinstance(body, dict) else [body]
    expect(any(isinstance(one, list) for one in lists), f"GET /discover gives no list of peers: {shown(body)}")


@check("peer.7-4.discover")
async def a_peer_that_was_found_is_listed(node: Node) -> None:
    applies(await found(node) is not None, "no peer was found on the network meanwhile")
    body = await node.get("/discover")
    expect(FOUND in shown(body, 1_000_000), f"a peer was found, and GET /discover does not list it: {shown(body)}")


@check("peer.4-1.status")
async def the_status_is_told(node: Node) -> None:
    answer = await node.ask("GET", "/status")
    expect(answer.status == 200, f"GET /status is answered with {told(answer)}")
    body = member(answer.json(), "", dict, "GET /status")
    timed = [name for name in body if any(word in name for word in ("uptime", "start", "since"))]
    expect(timed, f"GET /status does not tell the uptime: its members are {sorted(body)}")


@check("peer.0.curl-compatible")
async def plain_curl_is_enough(node: Node) -> None:
    applies(node.first is not None and node.first.status == 200, "its card is not to be had in any way")
    headers = {"user-agent": "curl/8.5.0", "accept": "*/*"}
    for path in ("/.well-known/acp.json", "/status", "/tasks", "/message:recv"):
        answer = await node.ask("GET", path, headers=headers)
        expect(answer.status not in (400, 401, 403, 406, 415, 426) or node.subject.headers,
               f"curl {path} is answered with {told(answer)}")  # fmt: skip
        if answer.status == 200 and path == "/message:recv":
            node.received += listed(answer.json(), "messages")
    body = {"query": "x", "limit": 1}
    answer = await node.ask("POST", "/skills/query", body, headers=headers)
    expect(answer.status not in (406, 415, 426), f"curl of /skills/query is answered with {told(answer)}")


@check("peer.history.v0-1-reconnect")
async def a_lost_peer_is_connected_to_again(node: Node) -> None:
    await node.wire()
    host = (await node.connecting()).host
    count = len(host.wires)
    await host.wires[-1].close()
    try:
        (await node.connecting()).wire = await host.connected(count + 1)
    except Gone as error:
        raise Broken(f"after a connection was lost the node does not connect again: {error}") from None

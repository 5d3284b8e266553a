"""Ways by which messages travel: WebSocket, pipes, a relay, plain TCP; and what the first versions had already."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator

from ...base import Gone, NotApplicable, applies, expect, member, shown
from ..driver import Node
from ..shapes import LINK, told
from ..suite import check
from ..wires import PipeWire, address_towards
from .tasks import played


@check("peer.9.a-websocket", "peer.9.a-default", "peer.0.zero-server", "peer.comparison.pure-p2p", "peer.9.c-fallback")
async def a_link_leads_to_a_direct_connection(node: Node) -> None:
    applies(not node.subject.command, "pipes are no place to see a WebSocket")
    if node.line is not None:
        with contextlib.suppress(NotApplicable):
            await node.hear()
        expect(not node.line.ended, "the node ended the connection after a message")
        return
    made = await node.connecting()
    applies(made.answer.status < 300, made.why)
    expect(made.wire is not None, f"the node does not come by WebSocket to {made.host.link}: {made.why}")
    await node.said()


@check("peer.5-4.value-p2p")
async def who_says_p2p_connects_directly(node: Node) -> None:
    applies(not node.subject.command, "pipes are no place to see a WebSocket")
    modes = (await node.card()).get("transport_modes", ["p2p", "relay"])
    applies(isinstance(modes, list) and "p2p" in modes, f"transport_modes is {shown(modes)}")
    if node.line is None:
        made = await node.connecting()
        applies(made.answer.status < 300, made.why)
        expect(made.wire is not None, f"transport_modes has p2p, and the node does not connect directly: {made.why}")


@check("peer.9.b-stdio")
async def messages_go_through_pipes(node: Node) -> None:
    applies(isinstance(node.line, PipeWire), "no command was given that speaks over its pipes")
    assert isinstance(node.line, PipeWire)
    with contextlib.suppress(NotApplicable):
        await node.hear()
    expect(not node.line.ended, "the process ended, although its input is open")
    applies(node.line.messages, "the process says nothing")
    noise = node.line.noise
    expect(not noise, f"something else than JSON objects is on standard output: {noise[0][:100] if noise else b''!r}")


@contextlib.asynccontextmanager
async def _listening(node: Node) -> AsyncIterator[tuple[int, asyncio.Queue[bytes]]]:
    """A port that takes connections, and the first bytes of each."""
    came: asyncio.Queue[bytes] = asyncio.Queue()

    async def took(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(node.subject.patience):
                came.put_nowait(await reader.read(4096))
        writer.close()

    server = await asyncio.start_server(took, address_towards(node.subject), 0)
    async with server:
        yield server.sockets[0].getsockname()[1], came


async def _dials(node: Node, link: str) -> bytes:
    """Returns the first bytes that the node sends to a port that it was told to connect to."""
    async with _listening(node) as (port, came):
        host = address_towards(node.subject)
        full = link.format(host=host, port=port, token=f"tok_{secrets.token_hex(8)}")
        answer = await node.ask("POST", "/peers/connect", {"link": full})
        applies(answer.status < 300, f"POST /peers/connect with {full} is answered with {told(answer)}")
        try:
            async with asyncio.timeout(node.subject.patience):
                return await came.get()
        except TimeoutError:
            raise Gone(f"the node took the link {full}, and contacts nobody there") from None


@check("peer.9.c-relay", "peer.5-4.value-relay")
async def a_link_of_a_relay_leads_to_the_relay(node: Node) -> None:
    modes = (await node.card()).get("transport_modes", ["p2p", "relay"])
    applies(isinstance(modes, list) and "relay" in modes, f"transport_modes is {shown(modes)}")
    said = await _dials(node, "acp+wss://{host}:{port}/acp/{token}")
    expect(said[:1] == b"\x16", f"an acp+wss:// link is not dialled by TLS: the first bytes are {said[:20]!r}")


@check("peer.9.e-tcp")
async def a_tcp_link_leads_to_a_plain_connection(node: Node) -> None:
    said = await _dials(node, "tcp://{host}:{port}/{token}")
    with contextlib.suppress(ValueError):
        expect(isinstance(json.loads(said.partition(b"\n")[0]), dict), f"over tcp:// comes {said[:60]!r}")


# -- what was there from the first versions on ----------------------------------------------------------------


@check("peer.history.v0-1")
async def peers_connect_show_cards_and_talk(node: Node) -> None:
    applies(not node.subject.command, "pipes are no place to see a WebSocket")
    member(await node.card(), "name", str, "the card")
    wire = await node.wire()
    await node.said()
    with contextlib.suppress(NotApplicable):
        await node.hear()
    expect(not wire.ended, "the node ended the connection")


@check("peer.history.v0-5")
async def skills_can_be_queried_and_messages_are_numbered(node: Node) -> None:
    applies(await node.has("query_skill") and await node.has("server_seq"), "the card does not promise both")
    answer = await node.ask("POST", "/skills/query", {"query": "x"})
    expect(answer.status == 200, f"POST /skills/query is answered with {told(answer)}")
    for frame in await node.said():
        expect("server_seq" in frame, f"a message has no server_seq: {shown(frame)}")
    seen = {str(view.get("status")) for story in await played(node) for view in story.views}
    seen |= {str(state) for story in await played(node) for state in story.states}
    missing = [state for state in ("submitted", "working", "completed") if state not in seen]
    expect(not missing, f"no task was ever {', '.join(missing)}")


@check("peer.history.v0-6")
async def there_are_a_registry_and_error_codes(node: Node) -> None:
    answer = await node.ask("GET", "/peers")
    applies(answer.status == 200, f"GET /peers is answered with {told(answer)}")
    error = await node.ask("GET", "/tasks/task_that_nobody_made")
    code = member(error.json(), "error_code", str, "an error")
    expect(code.startswith("ERR_"), f"an error has the error_code {code!r}")


@check("peer.10-2.link-form")
async def the_link_that_was_given_has_its_form(node: Node) -> None:
    applies(node.line is not None and node.subject.address is not None, "no link was given")
    expect(
        LINK.fullmatch(node.subject.address or ""), f"the link {node.subject.address!r} is not acp://host:port/token"
    )

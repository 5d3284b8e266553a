"""Capability flags: each is of its kind, and what a flag promises is there."""

from __future__ import annotations

import asyncio
import ssl
import urllib.parse
from typing import Any

from ...base import applies, expect, member, shown
from ...rows import Row, Source, add
from ..driver import Node
from ..shapes import told
from ..suite import check, suite

WHERE = "capabilities of the card"

# Flags that only say something about what is looked at elsewhere.
_BOOLEANS = {
    "push_notifications": "push-notifications", "input_required": "input-required", "server_seq": "server-seq",
    "hmac_signing": "hmac-signing", "lan_discovery": "lan-discovery", "context_id": "context-id",
    "message_priority": "message-priority", "delivery_ack": "delivery-ack", "multi_session": "multi-session",
    "tasks_pagination": "tasks-pagination",
}  # fmt: skip
_GROUPS = {
    "messaging": ("streaming", "push", "input_required", "message_priority", "delivery_ack"),
    "tasks": ("cancelling", "pagination", "context_id"),
    "identity": ("ed25519", "hmac", "jwks", "did"),
    "transport": ("sse", "http2", "p2p_direct", "dcutr", "relay_fallback"),
    "discovery": ("lan_mdns", "skills_list", "query_skill"),
}
_FLAT = {
    ("messaging", "streaming"): "streaming", ("messaging", "push"): "push_notifications",
    ("messaging", "input_required"): "input_required", ("messaging", "message_priority"): "message_priority",
    ("messaging", "delivery_ack"): "delivery_ack", ("tasks", "pagination"): "tasks_pagination",
    ("tasks", "context_id"): "context_id", ("identity", "hmac"): "hmac_signing",
    ("discovery", "lan_mdns"): "lan_discovery", ("discovery", "query_skill"): "query_skill",
}  # fmt: skip


async def _flag(node: Node, name: str, kind: type[Any]) -> Any:
    """A flag. Absent is the same as false, and then there is nothing to look at."""
    flags = await node.flags()
    applies(name in flags, f"the card has no capabilities.{name}, which means false")
    return member(flags, name, kind, WHERE)


def _above_zero(largest: Any, where: str) -> None:
    expect(largest > 0, f"{where} is {largest}")


FLAGS = Source(Node.flags, WHERE)
add(
    suite,
    *(Row(f"peer.5-3.{ident}", FLAGS, name, bool, optional=True) for name, ident in _BOOLEANS.items()),
    Row("peer.5-3.part-types", FLAGS, "part_types", list, items=str, optional=True),
    Row("peer.5-3.max-msg-bytes", FLAGS, "max_msg_bytes", int, fits=_above_zero, optional=True),
    Row("peer.5-3.identity", FLAGS, "identity", str, one_of=("ed25519", "none"), optional=True),
    Row("peer.5-3.supported-transports", FLAGS, "supported_transports", list, filled=True, items=str, optional=True),
)


@check("peer.5-3.streaming")
async def whoever_streams_has_a_stream(node: Node) -> None:
    if await _flag(node, "streaming", bool) and node.api is not None:
        feed = await node.opened("/stream")
        expect(feed.streams, f"capabilities.streaming is true, and GET /stream is answered with {feed.status}")


@check("peer.5-3.query-skill")
async def whoever_can_be_queried_answers(node: Node) -> None:
    if await _flag(node, "query_skill", bool) and node.api is not None:
        answer = await node.ask("POST", "/skills/query", {"query": "x", "limit": 1})
        expect(answer.status == 200, f"query_skill is true, and POST /skills/query is answered with {told(answer)}")


@check("peer.5-3.error-codes")
async def whoever_has_error_codes_gives_them(node: Node) -> None:
    if await _flag(node, "error_codes", bool) and node.api is not None:
        answer = await node.ask("GET", "/tasks/task_that_nobody_made")
        if answer.status >= 400:
            member(answer.json(), "error_code", str, "error_codes is true, and an error")


@check("peer.5-3.supported-transports-http")
async def who_speaks_http_lists_it(node: Node) -> None:
    applies(node.api is not None, "it is seen over the HTTP API alone: give its address")
    kinds = await _flag(node, "supported_transports", list)
    expect("http" in kinds, f"HTTP/1.1 is spoken here, and supported_transports is {kinds}")


@check("peer.5-3.supported-transports-ws")
async def who_lists_websocket_speaks_it(node: Node) -> None:
    applies("ws" in await _flag(node, "supported_transports", list), "supported_transports does not have ws")
    applies(not node.subject.command, "pipes are no place to see a WebSocket")
    if node.line is None:
        made = await node.connecting()
        applies(made.answer.status < 300, made.why)
        expect(made.wire is not None, f"supported_transports has ws, and the node does not connect by it: {made.why}")


@check("peer.5-3.supported-transports-h2c")
async def who_lists_h2c_speaks_it(node: Node) -> None:
    applies("h2c" in await _flag(node, "supported_transports", list), "supported_transports does not have h2c")
    applies(node.api is not None, "it is seen over the HTTP API alone: give its address")
    expect(await _speaks_http_2(node), "supported_transports has h2c, and HTTP/2 in cleartext is not understood")


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # an empty frame of settings


async def _speaks_http_2(node: Node) -> bool:
    """Returns whether the node speaks HTTP/2, by prior knowledge or by an upgrade."""
    url = urllib.parse.urlsplit(node.subject.address or "")
    upgrade = (
        f"GET {url.path.rstrip('/')}/status HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
    ).encode()
    for said in (_PREFACE + _SETTINGS, upgrade):
        tls = ssl.create_default_context() if url.scheme == "https" else None
        port = url.port or (443 if tls else 80)
        reader, writer = await asyncio.open_connection(url.hostname, port, ssl=tls)
        try:
            writer.write(said)
            async with asyncio.timeout(node.subject.patience):
                came = await reader.read(64)
        except (TimeoutError, OSError):
            came = b""
        finally:
            writer.close()
        if came[3:4] == b"\x04" or came.startswith(b"HTTP/1.1 101"):
            return True
    return False


# -- groups ---------------------------------------------------------------------------------------------------


async def _groups(node: Node) -> dict[str, Any]:
    groups = (await node.flags()).get("groups")
    applies(groups is not None, "the card has no capabilities.groups")
    return member(groups, "", dict, "capabilities.groups")


def _objects(groups: Any, where: str) -> None:
    expect(all(isinstance(one, dict) for one in groups.values()), f"{where} are not all objects: {shown(groups)}")


_GROUPED = Source(_groups, "capabilities.groups")
add(
    suite,
    Row("peer.5-3-1.present peer.8-7.s-groups", FLAGS, "groups", dict, filled=True, fits=_objects),
    *(Row("peer.history.v2-46", _GROUPED, group, dict) for group in _GROUPS),
    *(
        Row(f"peer.5-3-1.{group}-{name.replace('_', '-')}", _GROUPED, f"{group}.{name}", bool, optional=True)
        for group, names in _GROUPS.items()
        for name in names
    ),
)


@check("peer.5-3-1.flat-kept")
async def the_flat_flags_are_kept_beside_the_groups(node: Node) -> None:
    flags, groups = await node.flags(), await _groups(node)
    for (group, name), flat in _FLAT.items():
        grouped = groups.get(group, {}).get(name) if isinstance(groups.get(group), dict) else None
        if isinstance(grouped, bool):
            said = flags.get(flat, False)
            expect(said == grouped, f"groups.{group}.{name} is {shown(grouped)}, and the flat {flat} is {shown(said)}")

"""Announces a peer of the checker, as the published reference does: for nodes that listen for such announcements.

Announcements are experimental, so a node that does not hear this one is not wrong. Only this machine hears it, so it is
sent only if the node is on it, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket

from ..remembering import once
from .driver import NAME, Node
from .feed import Event
from .shapes import absent
from .wires import address_towards

FOUND = f"{NAME} nearby"
_GROUP = ("224.0.0.251", 5354)


@once
async def found(node: Node) -> Event | None:
    """Returns the event by which the node reports the checker's peer, if it finds it. Other peers may be found
    meanwhile."""
    feed = await node.feed()
    if not address_towards(node.subject).startswith("127.") or absent(await node.ask("GET", "/discover")):
        return None
    start = len(feed.events)
    _announce()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5 * node.subject.quiet):
            return await feed.until(lambda event: event.body.get("type") == "mdns" and FOUND in event.data, start)
    return None


def _announce() -> None:
    token = f"tok_{secrets.token_hex(8)}"  # a node does not report a known peer again
    packet = b"ACP1" + json.dumps({"v": 1, "name": FOUND, "tok": token, "wp": 9, "hp": 9}).encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)  # it leaves this machine by no interface
        for interface in ("127.0.0.1", "0.0.0.0"):  # noqa: S104 - no bind: the interface that the system chooses
            with contextlib.suppress(OSError):
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
                sender.sendto(packet, _GROUP)

"""Looks at the server behind a WebSocket: an agent for editors, or a node, which shows its card to every client that
connects.

If it is neither, the same address is looked at over HTTP: most servers have both there.
"""

from __future__ import annotations

import asyncio
import re

from ..model.errors import InterlinguaError, Unavailable
from ..transports.raw_client import Broken, Endpoint, Gone
from ..transports.raw_client.websocket import Socket
from .cards import described_editor, described_peer
from .findings import MOST, Spoken, object_of

_INITIALIZE = {
    "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1, "clientCapabilities": {}},
}  # fmt: skip


async def look(
    url: str, headers: dict[str, str] | None = None, patience: float = 5.0
) -> tuple[list[Spoken], list[str]]:
    """Finds every protocol that is spoken there, and describes what is there instead. Raises Unavailable if nothing
    answers."""
    from .at_address import look as at_address

    base = url.rstrip("/")
    for address in (base,) if base.endswith("/editor") else (base, f"{base}/editor"):
        subject = Endpoint(address=address, headers=headers or {}, patience=patience, most=MOST)
        try:
            async with asyncio.timeout(2 * patience), Socket.open(subject) as link:
                found = await _greeted(link, address)
        except (Broken, Gone, InterlinguaError, TimeoutError):
            continue
        if found is not None:
            return [found], []
    web = re.sub("^ws", "http", base)
    try:
        return await at_address(web, headers, patience)
    except Unavailable as error:
        raise Unavailable(error.message.replace(web, base), transient=False) from None


async def _greeted(link: Socket, address: str) -> Spoken | None:
    """Describes the server by its answer to a greeting, or by what it sends first."""
    await link.put(_INITIALIZE)
    said = await link.until(lambda m: m.get("id") == 0 or m.get("type") == "acp.agent_card", "an answer to initialize")
    if said.get("type") == "acp.agent_card":
        card = object_of(said.get("card")) or said
        return described_peer(object_of(card.get("self")) or card, re.sub("^ws", "acp", address))
    result = said.get("result")
    return described_editor(result, f"editor+{address}") if isinstance(result, dict) else None

"""The mount path: the ids of the servers that an agent was mounted through. Detects loops.

Servers that mount each other would list each other's agents over and over. Every list carries the mount path of each
agent, so a server recognises an agent that has passed it before. Each protocol decides where the path stands on its
wire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...model.card import AgentCard
from ...model.documents import Put
from ..ids import new_id

if TYPE_CHECKING:
    from ...store.ports import Store

MOUNTED_FROM = "mounted_from"
"""The member of a card's metadata that names the source of a mounted agent. Every mount sets it: a process without the
agent's code leaves such a run to a process that has it and can notify the remote side."""

VIA = "via"
"""The member of a mounted card's metadata with the mount path: the agent's own server first, the mounted server last.
Servers that send no path are not counted."""

MEMBER_OF = "member_of"
"""The member of a card's metadata that says whose member an agent is. Such cards are kept for the engine alone."""

MOUNTED_FROM = "mounted_from"
"""The member of a card's metadata that says where a mounted agent comes from. Every mount sets it: a process without
the agent's code leaves such a run to one that has it, and can tell the remote side."""

_SPACE, _ID = "server", "id"
_LONGEST = 64  # characters of an id
_MAX_IDS = 1000  # beyond any real path


async def server_id(store: Store) -> str:
    """Returns the server id that all processes of a store share. Creates it if there is none."""
    if not (known := await known_id(store)):
        await store.documents.write(
            [Put(_SPACE, _ID, new_id().encode(), version=0)]
        )  # unless another process was faster
        known = await known_id(store)
    return known


async def known_id(store: Store) -> str:
    """Returns the server id of a store; empty if it has none yet."""
    document = await store.documents.get(_SPACE, _ID)
    return document.body.decode() if document is not None else ""


def path_through(card: AgentCard, server: str) -> list[str]:
    """The mount path of an agent as this server lists it: the received path and this server."""
    return [*read(card.metadata.get(VIA)), server]


def read(received: Any) -> list[str]:
    """Reads a mount path from another server; empty if it is malformed."""
    if not isinstance(received, list) or len(received) > _MAX_IDS:
        return []
    return received if all(isinstance(server, str) and 0 < len(server) <= _LONGEST for server in received) else []


def metadata(received: Any) -> dict[str, Any]:
    """A received mount path, as a member for the metadata of a card."""
    return {VIA: path} if (path := read(received)) else {}


def refusal(card: AgentCard, server: str, max_hops: int) -> str | None:
    """The reason why an agent may not be mounted here; None if it may.

    An agent directly from a server with this id belongs to this process or to another one on the same store, and its
    owner has named it. On its next return the path has this id twice, and it is refused.
    """
    via = read(card.metadata.get(VIA))
    if server in via[:-1]:
        return "coming from this server"
    if len(via) > max_hops:
        return f"more than {max_hops} mounts away (limits.max_hops)"
    return None


def is_mounted(card: AgentCard | None) -> bool:
    return card is not None and MOUNTED_FROM in card.metadata

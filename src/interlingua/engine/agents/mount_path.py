"""Where agents come from: the servers that one has been mounted through, told wherever agents are listed.

Servers that mount each other would list each other's agents deeper and deeper. With its way on every list, an agent
that was here before is known when it comes back. Where the way stands on a wire is its protocol's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...model.card import AgentCard
from ...model.documents import Put
from ..ids import new_id

if TYPE_CHECKING:
    from ...store.ports import Store

VIA = "via"
"""The member of a mounted card's metadata with the ids of the servers that it came by: first where it is at home, last
where it is mounted from. A server that tells none is not counted."""

MEMBER_OF = "member_of"
"""The member of a card's metadata that says whose member an agent is. Such cards are kept for the engine alone."""

MOUNTED_FROM = "mounted_from"
"""The member of a card's metadata that says where a mounted agent comes from. Every mount sets it: a process without
the agent's code leaves such a run to one that has it, and can tell the remote side."""

_SPACE, _ID = "server", "id"
_LONGEST = 64  # characters of an id
_MOST = 1000  # ids; nobody has so many hops


async def server_id(store: Store) -> str:
    """What all processes of a store are called together, for as long as it is there."""
    if not (known := await known_id(store)):
        await store.documents.write([Put(_SPACE, _ID, new_id().encode(), version=0)])  # or another was faster
        known = await known_id(store)
    return known


async def known_id(store: Store) -> str:
    """The same; nothing where no process was there yet."""
    found = await store.documents.get(_SPACE, _ID)
    return found.body.decode() if found is not None else ""


def way(card: AgentCard, server: str) -> list[str]:
    """The way of an agent as this server tells it: the one that it came, and this server."""
    return [*read(card.metadata.get(VIA)), server]


def read(told: Any) -> list[str]:
    """A way as another server tells it; nothing where it makes no sense."""
    if not isinstance(told, list) or len(told) > _MOST:
        return []
    return told if all(isinstance(one, str) and 0 < len(one) <= _LONGEST for one in told) else []


def came(told: Any) -> dict[str, Any]:
    """The same, as a member for the metadata of a card."""
    return {VIA: found} if (found := read(told)) else {}


def turned_away(card: AgentCard, server: str, max_hops: int) -> str | None:
    """Why an agent is not to be mounted here; None where it may be.

    One that comes straight from a server of this id is another process on this store, or this one, which its owner has
    named. From there it has this id twice, and comes no further.
    """
    via = read(card.metadata.get(VIA))
    if server in via[:-1]:
        return "coming from this server"
    if len(via) > max_hops:
        return f"more than {max_hops} mounts away (limits.max_hops)"
    return None


def is_mounted(card: AgentCard | None) -> bool:
    return card is not None and MOUNTED_FROM in card.metadata

"""Looks at the node behind an acp:// link, by the card that it shows to every client that connects."""

from __future__ import annotations

from ..model.errors import Unavailable
from ..mounts.settings import read_settings
from ..protocols.peer.config import MountSettings
from ..protocols.peer.mount.credentials import look as look_at
from ..protocols.peer.wire import links
from .cards import described_peer
from .findings import Spoken


async def look(link: str) -> list[Spoken]:
    """Returns the description that a node gives of itself. Raises Unavailable if the node cannot be reached."""
    parsed = links.parse(link)
    try:
        card = await look_at(parsed, read_settings(MountSettings, "peer"))
    except ConnectionError as error:
        raise Unavailable(str(error)) from error
    return [described_peer(card, link)]

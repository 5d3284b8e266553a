"""The settings of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

WS_PORT, HTTP_PORT = 7801, 7901
MAX_BYTES = 1024 * 1024


class NodeSettings(msgspec.Struct, kw_only=True, frozen=True):
    name: str = "ACP-Agent"
    host: str = "127.0.0.1"
    """The host for peers to connect to. Every holder of the link's token may connect, so anything but loopback is the
    owner's choice."""
    port: int | None = None
    """None: 7801, or a free one where that is taken."""
    http_host: str = "127.0.0.1"
    http_port: int | None = None
    http_token: str | None = None
    tcp_port: int | None = None
    """The port of binding E; None: it is off. 0: a free one."""
    public_host: str | None = None
    """The host in the link, where others reach this machine by another name."""
    listens: bool = True
    """Lets peers connect to this node. Without it, the node only connects to others."""
    calls: bool = True
    """Makes the node connect by itself to the peers that it knows."""
    skills: tuple[Any, ...] = ()
    secret: str | None = None
    hmac_window: float = 300.0
    identity: Path | None = None
    strict: bool = False
    """Drops frames with bad signatures, instead of a warning."""
    relay: str | None = None
    transport_modes: tuple[str, ...] = ("p2p", "relay")
    extensions: tuple[dict[str, Any], ...] = ()
    limitations: tuple[Any, ...] = ()
    availability: dict[str, Any] | None = None
    interfaces: tuple[str, ...] = ()
    advertise_mdns: bool = False
    advertise_dnssd: bool = False
    multicast_interface: str | None = None
    http2: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    max_msg_bytes: int = MAX_BYTES
    default_agent: str | None = None
    join: tuple[str, ...] = ()
    public_url: str | None = None
    """The address at which files of this node are offered, where that is not where it listens."""

    # limits
    max_peers: int = 1000
    max_queued: int = 10_000
    """Messages that wait for one peer."""
    max_unread: int = 10_000
    """The limit of unread messages of one peer: above it, nothing more is read from the peer."""
    max_streams: int = 2_000
    keep_events: int = 100_000
    keep_messages: float = 30 * 86_400.0
    """Seconds that messages are kept after they are done."""
    in_flight: int = 2_000
    """Messages that a peer may have without having said that it got them."""
    card_wait: float = 2.0
    """Seconds for a peer to send its card, before messages go to it without one."""
    cancel_grace: float = 5.0
    """Seconds that a peer has to stop work that was cancelled, before the task is canceled here without it."""
    reconnect_first: float = 0.5
    reconnect_last: float = 30.0

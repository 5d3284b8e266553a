"""The settings of the door and of a mount, and those of a node that are made from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ...doors.settings import DoorSettings as CommonDoorSettings
from ...mounts.settings import MountSettings as CommonMountSettings
from ...setting_types import MIB, Count, Interval, Port, Seconds

WS_PORT, HTTP_PORT = 7801, 7901
MAX_BYTES = MIB


class DoorSettings(CommonDoorSettings, kw_only=True, frozen=True):
    """The settings of the door, which are also the flags of `interlingua peer`, as their owner wrote them.

    A field without a description is another spelling, for that command and its file alone.
    """

    own_port: Annotated[
        Port | None,
        Meta(
            description="A port of its own for what is under `/peer`, with the paths of the door at the root; 0 takes "
            "any free one.",
            extra={"key": "door_port"},
        ),
    ] = None
    own_host: Annotated[
        str | None,
        Meta(description="The address of that port; by default the address of the server.", extra={"key": "door_host"}),
    ] = None
    ports: Annotated[
        bool,
        Meta(
            description="Let the node open ports of its own, beside its paths under `/peer`.",
            extra={"flag": "--peer-ports/--no-peer-ports"},
        ),
    ] = True
    config: Annotated[
        Path | None,
        Meta(
            description="A file with the flags of `interlingua peer`, as JSON or YAML. Settings here override it.",
            extra={"metavar": "FILE", "defaults": "interlingua.protocols.peer.node_flags:from_config"},
        ),
    ] = None
    name: Annotated[str, Meta(description="The name that peers see.", extra={"metavar": "NAME"})] = "ACP-Agent"
    host: Annotated[
        str,
        Meta(description="The address where peers connect. Everybody who has the link may connect."),
    ] = "127.0.0.1"
    port: Annotated[
        Port | None, Meta(description="The port where peers connect; by default 7801, or a free one if that is in use.")
    ] = None
    http_host: Annotated[
        str,
        Meta(description="The address of the node's control API. Anything but loopback needs `http_token`."),
    ] = "127.0.0.1"
    http_port: Annotated[
        Port | None,
        Meta(description="The port of the node's control API; by default 7901, or a free one if that is in use."),
    ] = None
    http_token: Annotated[
        str | None, Meta(description="The token that callers of the control API must send.", extra={"secret": True})
    ] = None
    tcp_port: Annotated[
        Port | None, Meta(description="Accept peers over plain TCP (tcp:// links) too, at this port.")
    ] = None
    public_host: Annotated[
        str | None, Meta(description="The host in the link, if others reach this machine by another name.")
    ] = None
    public_url: Annotated[
        str | None, Meta(description="The address at which peers fetch files of this node, if it is another one.")
    ] = None
    join: Annotated[
        tuple[str, ...], Meta(description="Connect to these peers.", extra={"metavar": "LINK", "secret": True})
    ] = ()
    skills: Annotated[
        str | None, Meta(description="Skills to advertise: ids separated by commas, or a JSON array.")
    ] = None
    default_agent: Annotated[
        str | None, Meta(description="The agent that answers messages without a skill.", extra={"metavar": "AGENT"})
    ] = None
    secret: Annotated[
        str | None, Meta(description="Sign messages with this shared secret.", extra={"secret": True})
    ] = None
    hmac_window: Annotated[float, Meta(ge=1, description="Seconds that a signed message may be old.")] = 300.0
    strict: Annotated[bool, Meta(description="Drop messages with a bad signature, instead of a warning.")] = False
    identity: Annotated[
        Path | None, Meta(description="Sign with the Ed25519 key in this file, which is made if it does not exist.")
    ] = None
    relay: Annotated[
        str | None, Meta(description="The relay for peers that cannot connect directly: acp+wss://HOST.")
    ] = None
    relay_url: str | None = None
    transport_modes: Annotated[str | None, Meta(description="p2p, relay, or both, separated by a comma.")] = None
    advertise_mdns: Annotated[bool, Meta(description="Announce this node on the local network, link included.")] = False
    advertise_dnssd: Annotated[
        bool, Meta(description="Announce this node by standard DNS-SD too (needs zeroconf).")
    ] = False
    max_msg_bytes: Annotated[int, Meta(ge=1024, description="Bytes of the largest message that is accepted.")] = (
        MAX_BYTES
    )
    extension: Annotated[
        tuple[str, ...], Meta(description="Extensions to declare: URI[,required=true][,KEY=VALUE...].")
    ] = ()
    extensions: str | None = None
    http2: Annotated[
        bool, Meta(description="Serve the control API over HTTP/2 in cleartext too (needs hypercorn).")
    ] = False
    availability_mode: Annotated[str | None, Meta(description="persistent, heartbeat, cron or manual.")] = None
    heartbeat_interval: Annotated[
        Seconds | None, Meta(description="Seconds between the times when this node is available.")
    ] = None
    next_active_at: Annotated[
        str | None, Meta(description="The next time when this node is available, as in 2026-11-15T09:00:00Z.")
    ] = None
    availability_cron: Annotated[
        str | None, Meta(description="The times when this node is available, as a cron expression.")
    ] = None
    supported_interfaces: Annotated[
        str | None, Meta(description="Interface groups for the card, separated by commas.")
    ] = None
    limitations: Annotated[str | None, Meta(description="Things that this node cannot do, separated by commas.")] = None
    limitations_json: str | None = None
    tls_cert: Annotated[
        Path | None, Meta(description="Accept peers over TLS (acps:// links), with this certificate.")
    ] = None
    tls_key: Annotated[Path | None, Meta(description="The key of the certificate.")] = None
    tls_ca: Annotated[Path | None, Meta(description="Certificates to trust beside those of the system.")] = None
    verbose: bool = False
    max_peers: Annotated[Count, Meta(description="Peers that the node knows, at most.")] = 1000
    max_queued: Annotated[Count, Meta(description="Messages that wait for one peer, at most.")] = 10_000
    max_unread: Annotated[
        Count,
        Meta(description="Unread messages of one peer. Beyond that, nothing more is read from the peer."),
    ] = 10_000
    max_streams: Annotated[
        Count, Meta(description="Streams that may be open at once. One caller gets at most nine tenths of them.")
    ] = 2_000
    keep_events: Annotated[Count, Meta(description="Events of the node that can be read again.")] = 100_000
    keep_messages: Annotated[Seconds, Meta(description="Seconds that messages are kept after they are done.")] = (
        30 * 86_400.0
    )
    in_flight: Annotated[
        Count, Meta(description="Messages that may be on their way to a peer without its acknowledgement.")
    ] = 2_000
    card_wait: Annotated[
        Seconds, Meta(description="Seconds for a peer to send its card, before messages go to it without one.")
    ] = 2.0
    cancel_grace: Annotated[
        Seconds,
        Meta(description="Seconds for a peer to stop cancelled work, before the task is canceled here without it."),
    ] = 5.0
    reconnect_first: Annotated[Interval, Meta(description="Seconds until a lost peer is tried again.")] = 0.5
    reconnect_last: Annotated[Interval, Meta(description="The longest of these waits; they double.")] = 30.0


class MountSettings(CommonMountSettings, kw_only=True, frozen=True):
    name: Annotated[str, Meta(description="The name of this side at the node.")] = "interlingua"
    secret: Annotated[
        str | None,
        Meta(description="The secret that is shared with the node, for signing.", extra={"secret": True}),
    ] = None
    identity: Annotated[
        str | None, Meta(description="The file with the Ed25519 key of this side; it is made if it does not exist.")
    ] = None
    tls_ca: Annotated[str | None, Meta(description="A file of certificates to trust beside those of the system.")] = (
        None
    )
    start_timeout: Annotated[Seconds, Meta(description="Seconds to connect to a node and get its card.")] = 10.0
    idle_timeout: Annotated[Seconds, Meta(description="Seconds without a run after which a connection is closed.")] = (
        300.0
    )
    reply_within: Annotated[
        Seconds, Meta(description="Seconds for a node that takes no tasks to reply to a message.")
    ] = 300.0
    patience: Annotated[
        Seconds,
        Meta(description="Seconds for which a lost node is tried again, before a run fails as transient."),
    ] = 60.0
    cancel_within: Annotated[
        Seconds, Meta(description="Seconds for a node to acknowledge that a task is cancelled.")
    ] = 5.0
    max_bytes: Annotated[Count, Meta(description="Bytes of the longest frame that is accepted.")] = 64 * MIB
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """The headers of every request, for nodes behind an http(s):// address."""


class NodeSettings(msgspec.Struct, kw_only=True, frozen=True):
    """The settings of a node, read and checked: `node_flags.settings_of` makes them from those of the door."""

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

"""Defines the settings of the doors: a part of the table in `settings`."""

from __future__ import annotations

from .setting import MIB, Setting

_S = Setting


def _door(name: str, title: str) -> tuple[Setting, ...]:
    """Returns the settings that every door has."""
    port = "door_port" if name == "peer" else "port"  # a node has a port of that name already
    return (
        _S(f"doors.{name}.enabled", "yes", True, f"Whether {title} is served at all.", flag=f"--{name}/--no-{name}"),
        _S(
            f"doors.{name}.{port}", "whole", None,
            f"A port of its own for what is under `/{name}`, with its paths at the root; 0 takes any free one.",
            least=0, most=65535,
        ),
        _S(
            f"doors.{name}.{'door_host' if name == 'peer' else 'host'}", "text", None,
            "The address of that port, where it is not that of the server.",
        ),
    )  # fmt: skip


def _body(name: str, most: int) -> tuple[Setting, ...]:
    return (
        _S(f"doors.{name}.max_body_bytes", "whole", most, "Of the body of one request.", least=1),
        _S(f"doors.{name}.body_timeout", "number", 30.0, "Seconds in which a body has to arrive.", least=0),
    )


def _rpc(name: str) -> tuple[Setting, ...]:
    return (
        _S(f"doors.{name}.max_frame_bytes", "whole", 64 * MIB, "Of one message.", least=1),
        _S(f"doors.{name}.max_batch", "whole", 1000, "Entries of one batch.", least=1),
        _S(f"doors.{name}.max_open", "whole", 10_000, "Requests of one client that may be open at once.", least=1),
        _S(
            f"doors.{name}.max_unread", "whole", 16 * MIB,
            "Bytes of answers that may wait for a client that does not read, before it is no longer listened to.",
            least=1,
        ),
    )  # fmt: skip


def _streams(name: str) -> tuple[Setting, ...]:
    return (
        _S(f"doors.{name}.keep_alive", "number", 15.0, "Seconds after which a silent stream gets a comment.", least=0),
        _S(
            f"doors.{name}.stall", "number", 60.0,
            "Seconds after which a stream is given up whose reader takes nothing.", least=0,
        ),
        _S(
            f"doors.{name}.max_buffered_bytes", "whole", 64 * MIB,
            "Of messages that wait for the readers of one client.", least=1,
        ),
    )  # fmt: skip


DOORS: tuple[Setting, ...] = (
    *_door("connect", "the Agent Connect Protocol"),
    *_body("connect", 16 * MIB),
    _S(
        "doors.connect.disconnect_grace", "number", 2.0,
        "Seconds in which a dropped stream can be taken up again before `on_disconnect: cancel` takes effect.",
        least=0,
    ),
    _S("doors.connect.keep_alive", "number", 15.0, "Seconds after which a silent stream gets a comment.", least=0),
    _S(
        "doors.connect.values_per_second", "number", 20.0,
        "At most so many whole values per second and stream: one per token would be quadratic.", least=0.01,
    ),
    *_door("mcp", "agents over MCP"),
    *_body("mcp", 32 * MIB),
    *_streams("mcp"),
    _S(
        "doors.mcp.patience", "number", 0.2,
        "Seconds after which the answer to a POST becomes an event stream.", least=0,
    ),
    _S(
        "doors.mcp.idle", "number", 1800.0,
        "Seconds after which a session is forgotten that has no stream and sends nothing. Its runs go on.", least=0,
    ),
    _S(
        "doors.mcp.max_sessions", "whole", 1000,
        "Sessions that may be open; one caller leaves a tenth to others.", least=1,
    ),
    _S("doors.mcp.max_requests", "whole", 10_000, "Requests without a session that may be open.", least=1),
    _S(
        "doors.mcp.keep_bytes", "whole", 16 * MIB,
        "Of messages of one stream that were sent, kept for a reader that comes back with Last-Event-ID. A long stream "
        "of a run that has ended is made again from its log.", least=0,
    ),
    _S("doors.mcp.keep_streams", "whole", 8, "Streams of a session that have ended and can be read again.", least=0),
    _S("doors.mcp.page", "whole", 1000, "Agents per page. Clients of published SDKs never ask for a second.", least=1),
    *_rpc("mcp"),
    *_door("editor", "the Agent Client Protocol"),
    *_body("editor", 32 * MIB),
    *_streams("editor"),
    _S(
        "doors.editor.idle", "number", 300.0,
        "Seconds after which a connection is forgotten that has no stream and sends nothing.", least=0,
    ),
    _S(
        "doors.editor.max_connections", "whole", 1000,
        "Connections that may be open; one caller leaves a tenth to others.", least=1,
    ),
    _S("doors.editor.max_streams", "whole", 1000, "Sessions of one connection that may have a stream.", least=1),
    _S(
        "doors.editor.keep_bytes", "whole", MIB,
        "Of messages of one stream that were sent, kept for a reader that comes back with Last-Event-ID.", least=0,
    ),
    *_rpc("editor"),
    *_door("cap", "CAP"),
    *_body("cap", 16 * MIB),
    _S("doors.cap.keep_alive", "number", 15.0, "Seconds after which a silent stream gets a comment.", least=0),
    _S(
        "doors.cap.max_streams", "whole", 1000,
        "Streams that may be open; one caller leaves a tenth to others.", least=1,
    ),
    _S("doors.cap.page", "whole", 100, "The most tasks that one page holds.", least=1),
    *_door("peer", "the Agent Communication Protocol"),
    _S(
        "doors.peer.ports", "yes", True, "Whether the node has ports of its own, beside what is under `/peer`.",
        flag="--peer-ports/--no-peer-ports",
    ),
    _S(
        "doors.peer.config", "path", None,
        "A file with the flags of `interlingua peer`, as JSON or YAML. What is set here comes before it.",
        metavar="FILE",
    ),
    _S("doors.peer.name", "text", "ACP-Agent", "What peers call this node.", metavar="NAME"),
    _S(
        "doors.peer.host", "text", "127.0.0.1",
        "The address where peers connect. The link lets in whoever has it.",
    ),
    _S(
        "doors.peer.port", "whole", None, "Where peers connect; 7801, or a free one where that is taken.",
        least=0, most=65535,
    ),
    _S(
        "doors.peer.http_host", "text", "127.0.0.1",
        "The address of the node's control API. Elsewhere than here, it wants a token.",
    ),
    _S(
        "doors.peer.http_port", "whole", None,
        "The control API of the node; 7901, or a free one where that is taken.", least=0, most=65535,
    ),
    _S("doors.peer.http_token", "text", None, "What the control API wants to see.", secret=True),
    _S(
        "doors.peer.tcp_port", "whole", None, "Also take peers that come by plain TCP (tcp:// links), here.",
        least=0, most=65535,
    ),
    _S("doors.peer.public_host", "text", None, "The host in the link, where others reach this machine by it."),
    _S("doors.peer.public_url", "text", None, "Where files of this node are fetched, where that is not here."),
    _S("doors.peer.join", "texts", [], "Connect to these peers.", metavar="LINK", secret=True),
    _S("doors.peer.skills", "text", None, "Skills to advertise: ids separated by commas, or a JSON array."),
    _S("doors.peer.default_agent", "text", None, "Who answers messages that name no skill.", metavar="AGENT"),
    _S("doors.peer.secret", "text", None, "Sign messages with this shared secret.", secret=True),
    _S("doors.peer.hmac_window", "number", 300.0, "Seconds that a signed message may be old.", least=1),
    _S("doors.peer.strict", "yes", False, "Drop what is badly signed, instead of a warning."),
    _S("doors.peer.identity", "path", None, "Sign with the Ed25519 key in this file, made if need be."),
    _S("doors.peer.relay", "text", None, "A relay for when peers cannot connect directly: acp+wss://HOST."),
    _S("doors.peer.transport_modes", "text", None, "p2p, relay, or both with a comma between them."),
    _S("doors.peer.advertise_mdns", "yes", False, "Tell the local network of this node, link included."),
    _S("doors.peer.advertise_dnssd", "yes", False, "The same by standard DNS-SD (needs zeroconf)."),
    _S("doors.peer.max_msg_bytes", "whole", MIB, "The largest message that is taken.", least=1024),
    _S("doors.peer.extension", "texts", [], "Extensions to declare: URI[,required=true][,KEY=VALUE...]."),
    _S("doors.peer.http2", "yes", False, "HTTP/2 in cleartext on the control API, too (needs hypercorn)."),
    _S("doors.peer.availability_mode", "text", None, "persistent, heartbeat, cron or manual."),
    _S("doors.peer.heartbeat_interval", "number", None, "How often this node wakes up, in seconds.", least=0),
    _S("doors.peer.next_active_at", "text", None, "When it is there next, as in 2026-11-15T09:00:00Z."),
    _S("doors.peer.availability_cron", "text", None, "When it is there, as a cron expression."),
    _S("doors.peer.supported_interfaces", "text", None, "Interface groups for the card, separated by commas."),
    _S("doors.peer.limitations", "text", None, "What this node cannot do, separated by commas."),
    _S("doors.peer.tls_cert", "path", None, "Take peers by TLS (acps:// links), with this certificate."),
    _S("doors.peer.tls_key", "path", None, "The key of the certificate."),
    _S("doors.peer.tls_ca", "path", None, "Certificates to trust beside those of the system."),
    _S("doors.peer.max_peers", "whole", 1000, "Peers that it knows at most.", least=1),
    _S("doors.peer.max_queued", "whole", 10_000, "Messages that wait for one peer.", least=1),
    _S(
        "doors.peer.max_unread", "whole", 10_000,
        "Messages of one peer that nobody has read: it is not read from until somebody has.", least=1,
    ),
    _S("doors.peer.max_streams", "whole", 2_000, "Streams that may be open; one caller has a tenth of them.", least=1),
    _S("doors.peer.keep_events", "whole", 100_000, "Events of the node that can be read again.", least=1),
    _S(
        "doors.peer.keep_messages", "number", 30 * 86_400.0, "Seconds that messages are kept after they are done.",
        least=0,
    ),
    _S(
        "doors.peer.in_flight", "whole", 2_000,
        "Messages that a peer may have without having said that it got them.", least=1,
    ),
    _S(
        "doors.peer.card_wait", "number", 2.0,
        "Seconds that a peer has to tell who it is, before messages go to it all the same.", least=0,
    ),
    _S(
        "doors.peer.cancel_grace", "number", 5.0,
        "Seconds that a peer has to stop work that was cancelled, before the task is canceled here without it.",
        least=0,
    ),
    _S("doors.peer.reconnect_first", "number", 0.5, "Seconds until a peer that is away is tried again.", least=0.01),
    _S("doors.peer.reconnect_last", "number", 30.0, "The longest of these waits; they double.", least=0.01),
)  # fmt: skip

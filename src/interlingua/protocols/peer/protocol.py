"""Agent Communication Protocol: nodes that reach each other by acp:// links, with our agents behind them."""

from __future__ import annotations

from ..base import TEAMS_AND_PROTOCOLS, Command, Protocol, addresses

_LINK = "HOST:7801/TOKEN"

protocol = Protocol(
    name="peer",
    title="Agent Communication Protocol",
    about="acp:// links, peer to peer",
    prefix="/peer",
    rank=20,
    targets=(
        *addresses("acp", "acps", "tcp", example=_LINK, uses=("key",), secret_path=True),
        *addresses("acp+ws", "acp+wss", example=_LINK, secret_path=True),
        *addresses("peer+http", "peer+https", example="HOST/peer"),
    ),
    door="interlingua.protocols.peer.door.door:door",
    door_settings="interlingua.protocols.peer.config:DoorSettings",
    mount_settings="interlingua.protocols.peer.config:MountSettings",
    check="interlingua.protocols.peer.node_flags:check",
    ports="interlingua.protocols.peer.node_flags:ports",
    stdio="interlingua.protocols.peer.bindings.stdio:serve_pipes",
    mount="interlingua.protocols.peer.mount.server:load",
    probes="interlingua.protocols.peer.probe:probes",
    parity="interlingua.protocols.peer.parity",
    demo="interlingua.protocols.peer.demo:demo",
    commands=(
        Command("peer", "interlingua.protocols.peer.commands:add_peer", TEAMS_AND_PROTOCOLS),
        Command("peers", "interlingua.protocols.peer.commands_peers:add_peers", TEAMS_AND_PROTOCOLS),
        Command("relay", "interlingua.protocols.peer.commands_relay:add_relay", TEAMS_AND_PROTOCOLS),
    ),
)

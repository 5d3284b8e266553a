"""Agent Client Protocol: our agents inside editors, and coding agents as ours."""

from __future__ import annotations

from ..base import Protocol, addresses, command

protocol = Protocol(
    name="editor",
    title="Agent Client Protocol",
    about="editors",
    prefix="/editor",
    rank=50,
    targets=(
        command("editor", "claude-agent-acp"),
        *addresses("editor+http", "editor+https", "editor+ws", "editor+wss", example="HOST/editor"),
    ),
    door="interlingua.protocols.editor.door.door:door",
    door_settings="interlingua.protocols.editor.config:DoorSettings",
    mount_settings="interlingua.protocols.editor.config:MountSettings",
    stdio="interlingua.protocols.editor.door.stdio:serve_pipes",
    mount="interlingua.protocols.editor.mount.server:load",
    probes="interlingua.protocols.editor.probe:probes",
    parity="interlingua.protocols.editor.parity",
    demo="interlingua.protocols.editor.demo:demo",
)

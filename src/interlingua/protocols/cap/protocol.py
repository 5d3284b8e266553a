"""CAP: agents that work as a team, with manifests, delegation and oversight."""

from __future__ import annotations

from ..base import Protocol, addresses, command

protocol = Protocol(
    name="cap",
    title="CAP",
    about="agent teams",
    prefix="/cap",
    rank=40,
    targets=(command("cap", "python agent.py"), *addresses("cap+http", "cap+https", example="HOST/cap")),
    door="interlingua.protocols.cap.door.door:door",
    door_settings="interlingua.protocols.cap.config:DoorSettings",
    mount_settings="interlingua.protocols.cap.config:MountSettings",
    stdio="interlingua.protocols.cap.door.stdio:serve_pipes",
    mount="interlingua.protocols.cap.mount.server:load",
    probes="interlingua.protocols.cap.probe:probes",
    parity="interlingua.protocols.cap.parity",
    demo="interlingua.protocols.cap.demo:demo",
)

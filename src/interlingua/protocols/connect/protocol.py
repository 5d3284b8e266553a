"""Agent Connect Protocol: runs, threads and interrupts over REST."""

from __future__ import annotations

from ..base import TEAMS_AND_PROTOCOLS, Command, Protocol, addresses

protocol = Protocol(
    name="connect",
    title="Agent Connect Protocol",
    about="AGNTCY, REST",
    prefix="/connect",
    rank=10,
    targets=addresses("connect+http", "connect+https", example="HOST/connect"),
    door="interlingua.protocols.connect.door.door:door",
    door_settings="interlingua.protocols.connect.config:DoorSettings",
    mount_settings="interlingua.protocols.connect.config:MountSettings",
    mount="interlingua.protocols.connect.mount.server:load",
    probes="interlingua.protocols.connect.probe:probes",
    parity="interlingua.protocols.connect.parity",
    demo="interlingua.protocols.connect.demo:demo",
    commands=(Command("manifest", "interlingua.protocols.connect.commands:add_manifest", TEAMS_AND_PROTOCOLS),),
)

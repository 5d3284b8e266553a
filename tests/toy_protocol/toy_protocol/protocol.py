"""Describes the protocol."""

from __future__ import annotations

from interlingua.protocols.base import TEAMS_AND_PROTOCOLS, Command, Protocol, addresses

protocol = Protocol(
    name="toy",
    title="Toy",
    about="lines of JSON",
    prefix="/toy",
    rank=90,
    targets=addresses("toy+http", "toy+https", example="HOST/toy"),
    door="toy_protocol.door:door",
    stdio="toy_protocol.door:serve_pipes",
    mount="toy_protocol.mount:load",
    door_settings="toy_protocol.config:DoorSettings",
    mount_settings="toy_protocol.config:MountSettings",
    probes="toy_protocol.probe:probes",
    parity="toy_protocol.parity",
    demo="toy_protocol.demo:demo",
    commands=(Command("toys", "toy_protocol.commands:add_toys", TEAMS_AND_PROTOCOLS),),
)

"""The settings that doors have in common. Each door's `config.py` adds its own."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ..setting_types import MIB, Count, Port, Seconds


class Problem(msgspec.Struct, frozen=True):
    """A mistake in the settings of a door that shows only when they are used."""

    setting: str
    """The field of the settings."""
    message: str


class DoorSettings(msgspec.Struct, kw_only=True, frozen=True):
    """The settings of every door."""

    enabled: Annotated[bool, Meta(description="Serve this door.", extra={"flag": "--{door}/--no-{door}"})] = True
    own_port: Annotated[
        Port | None,
        Meta(
            description="A port of its own, with the paths of the door at the root; 0 takes any free one.",
            extra={"key": "port"},
        ),
    ] = None
    own_host: Annotated[
        str | None,
        Meta(description="The address of that port; by default the address of the server.", extra={"key": "host"}),
    ] = None


class HttpDoorSettings(DoorSettings, kw_only=True, frozen=True):
    """The settings of a door that takes requests and sends event streams."""

    max_body_bytes: Annotated[Count, Meta(description="Bytes in the body of one request.")] = 16 * MIB
    body_timeout: Annotated[Seconds, Meta(description="Seconds for the body of a request to arrive.")] = 30.0
    keep_alive: Annotated[Seconds, Meta(description="Seconds after which a silent stream gets a comment.")] = 15.0


class RpcDoorSettings(HttpDoorSettings, kw_only=True, frozen=True):
    """The settings of a door that speaks JSON-RPC over HTTP and event streams."""

    max_body_bytes: Annotated[Count, Meta(description="Bytes in the body of one request.")] = 32 * MIB
    stall: Annotated[
        Seconds, Meta(description="Seconds after which a stream is closed whose reader takes nothing.")
    ] = 60.0
    max_buffered_bytes: Annotated[
        Count, Meta(description="Bytes of messages that may wait for the readers of one client.")
    ] = 64 * MIB
    max_frame_bytes: Annotated[Count, Meta(description="Bytes of one message.")] = 64 * MIB
    max_batch: Annotated[Count, Meta(description="Entries of one batch.")] = 1000
    max_open: Annotated[Count, Meta(description="Requests of one client that may be open at once.")] = 10_000
    max_unread: Annotated[
        Count,
        Meta(
            description="Bytes of answers that may wait for a client that does not read. Beyond that, no more requests "
            "of the client are read."
        ),
    ] = 16 * MIB

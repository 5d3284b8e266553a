"""The limits on one peer of a JSON-RPC connection."""

from __future__ import annotations

from typing import Protocol

import msgspec


class RpcLimits(Protocol):
    """The limits on one peer, which are among the settings of a door."""

    @property
    def max_frame_bytes(self) -> int: ...
    @property
    def max_batch(self) -> int: ...
    @property
    def max_open(self) -> int: ...
    @property
    def max_unread(self) -> int: ...


class Limits(msgspec.Struct, kw_only=True, frozen=True):
    max_frame_bytes: int = 64 * 1024 * 1024
    max_batch: int = 1000
    """Entries of one batch."""
    max_open: int = 10_000
    """Requests of the peer that may be open at once."""
    max_unread: int = 16 * 1024 * 1024
    """Bytes of answers that may wait for a peer that does not read, before it is no longer listened to."""

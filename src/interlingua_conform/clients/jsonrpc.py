"""Speaks JSON-RPC for checks."""

from __future__ import annotations

from interlingua.transports.raw_client import Heard

from ..base import expect, shown


def only_one(heard: Heard) -> None:
    """Raises Broken if an answer had both a result and an error."""
    said = shown(heard.doubled[0].decode(errors="replace").strip()) if heard.doubled else ""
    expect(
        not said, f"an answer has both result and error, of which JSON-RPC 2.0 allows one, also if it is null: {said}"
    )

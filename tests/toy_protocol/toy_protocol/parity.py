"""Tells what the wire carries."""

from __future__ import annotations

from interlingua.protocols.parity import FEATURES, Carried

_CARRIED = {"list": "`GET /agents`", "run": "`POST /calls`", "stream": "lines with `text`", "structured_in": "`input`"}
DOOR = MOUNT = {
    feature.id: Carried(_CARRIED.get(feature.id, "not at all"), "" if feature.id in _CARRIED else "It is a toy.")
    for feature in FEATURES
}

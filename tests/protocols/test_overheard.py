"""What members of a team tell each other shows on every wire that has room for it, as a thought."""

from __future__ import annotations

from typing import Any

import pytest

from interlingua.model.card import AgentCard
from interlingua.model.content import Message, TextPart
from interlingua.model.events import Event, Said, thought_from_message
from interlingua.protocols.connect import projection as connect
from interlingua.protocols.editor import projection as editor
from interlingua.protocols.editor.versions import Version1
from interlingua.protocols.mcp import translate as mcp
from interlingua.protocols.peer import projection as peer

LINE = "pm → analyst (T1.1): please look"


def said(**more: Any) -> Said:
    message = Message("agent", [TextPart("please look"), TextPart("attached")], metadata=more.pop("metadata", {}))
    return Said("T1.1", "pm", "analyst", "delegation", message, **more)


def event(body: Said) -> Event:
    return Event("run", 3, 0, b"", body)


def test_what_is_said_is_a_thought() -> None:
    thought = thought_from_message(said())
    assert thought is not None
    assert thought.text == LINE


def shown(body: Said) -> dict[str, Any]:
    """What each wire makes of it."""
    card, at = AgentCard("crew"), event(body)
    return {
        "mcp": mcp.activity(body),
        "connect": connect.Projection("run", ["custom"], card).feed(at),
        "editor": editor.Projection("run", card, Version1()).feed(at),
        "peer": peer.Projection(card, lambda part: "").feed(at),
    }


def test_it_shows_on_every_wire() -> None:
    for wire, made in shown(said()).items():
        assert LINE in str(made), wire


@pytest.mark.parametrize("more", [{"held": True}, {"metadata": {"question": "q"}}, {"metadata": {"final": True}}])
def test_what_is_held_and_what_has_a_place_of_its_own_does_not(more: dict[str, Any]) -> None:
    assert thought_from_message(said(**more)) is None
    for wire, made in shown(said(**more)).items():
        assert not made, wire

"""Translates between the messages and the model."""

from __future__ import annotations

from interlingua.model.card import AgentCard
from interlingua.model.events import Body, OutputDelta
from interlingua.model.run import Run

from . import wire


def listed(card: AgentCard) -> wire.Listed:
    return wire.Listed(card.name, card.description)


def card_of(agent: wire.Listed) -> AgentCard:
    return AgentCard(agent.name, "1.0", agent.about, input_text="text", output_text="text", streams=True)


def line_of(body: Body) -> wire.Line | None:
    """Returns the line of an event; None where this wire has no place for it."""
    if isinstance(body, OutputDelta) and isinstance(body.delta.get("text"), str):
        return wire.Line(text=body.delta["text"])
    return None


def last_line(run: Run) -> wire.Line:
    return wire.Line(error=run.error.message) if run.error is not None else wire.Line(output=run.output)

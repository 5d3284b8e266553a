"""Reads from the messages of a task which agent delegated to which. Pure.

An instance of an agent has an id that begins with the agent's, followed by a sign: the document says only that it has
one of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .driver import Driver, by_us, kind
from .scenes import talks
from .wires import ORCHESTRATOR, USER, Json, Talk

_MARKS = "#/:@~.-_+"


def same_agent(id_: str, agent: str) -> bool:
    """Returns whether an id is that of an agent, or of an instance of it."""
    return id_ == agent or (id_.startswith(agent) and id_[len(agent)] in _MARKS)


def agent_of(id_: str, known: Iterable[str]) -> str:
    """The agent whose instance an id is, as far as agents are known."""
    found = [agent for agent in known if same_agent(id_, agent)]
    return id_ if id_ in found else max(found, key=len, default=id_.partition("#")[0])


class Handoff(msgspec.Struct, frozen=True, eq=False):
    """A notice of one agent to another."""

    talk: Talk
    told: Json
    at: int  # its place among the messages
    end: int  # the place of the last message about it to its sender; its own place, if there was none
    sender: str
    recipient: str
    task: str

    def beside(self, other: Handoff) -> bool:
        """Returns whether both delegations were under way at the same time."""
        first, second = sorted((self, other), key=lambda one: one.at)
        return second.at < first.end


def text(told: Json, name: str) -> str:
    value = told.get(name)
    return value if isinstance(value, str) else ""


def of_talk(talk: Talk) -> list[Handoff]:
    """Returns the delegations among agents in one task of the checker."""
    found = []
    for at, told in enumerate(talk.said):
        sender, recipient, task = (text(told, name) for name in ("sender_id", "recipient_id", "task_id"))
        if kind(told) != "delegation_notice" or by_us(told, talk) or sender in (USER, ORCHESTRATOR):
            continue
        words = [
            place
            for place, one in enumerate(talk.said)
            if place > at and text(one, "recipient_id") == sender and text(one, "task_id") == task
        ]
        found.append(Handoff(talk, told, at, words[-1] if words else at, sender, recipient, task))
    return found


def inside(talk: Talk) -> bool:
    """Returns whether the record shows the messages of agents to each other, and not only those to the checker."""
    outside = (USER, ORCHESTRATOR, "")
    return talk.recorded and any(
        text(told, "sender_id") not in outside and text(told, "recipient_id") not in outside for told in talk.said
    )


async def handoffs(d: Driver) -> list[Handoff]:
    return [one for talk in await talks(d) for one in of_talk(talk)]


def pairs(found: list[Handoff]) -> list[tuple[Handoff, Handoff]]:
    """Returns the pairs of delegations that were under way at the same time, within one task of the checker."""
    return [
        (one, other)
        for place, one in enumerate(found)
        for other in found[place + 1 :]
        if one.talk is other.talk and one.beside(other)
    ]


async def names(d: Driver) -> set[str]:
    """Ids of agents that manifests name."""
    found: set[str] = set()
    for id_, told in (await d.known()).items():
        allowed = told.get("allowed_agents")
        found |= {id_, *(one for one in (allowed if isinstance(allowed, list) else []) if isinstance(one, str))}
        if isinstance(told.get("overseer"), str):
            found.add(told["overseer"])
    return found

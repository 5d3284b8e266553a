"""Agents whose questions take more than a word or a flat form."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

import interlingua as il

from .agents import careful, echo, slow

AGENTS: list[il.Agent[..., Any]] = [echo, careful, slow]


class Member(msgspec.Struct):
    name: str
    skills: list[str]


class Team(msgspec.Struct):
    title: str
    people: list[Member]
    note: str | None


class Place(msgspec.Struct):
    code: Annotated[str, msgspec.Meta(pattern="^[0-9]{5}$")]


class Verdict(msgspec.Struct):
    choice: bool
    reason: str | None = None


def _asker(name: str, question: type[il.Question[Any]]) -> None:
    @il.agent(name=name, asks=[question])
    async def asker(ctx: il.Context[None, None], text: str) -> str:
        """Asks, and says what it was told."""
        return str(await ctx.ask(question()))

    AGENTS.append(asker)


class Who(il.Question[Team]):
    """Who takes part?"""


class Which(il.Question[list[int]]):
    """Which ones?"""


class Perhaps(il.Question[Member | None]):
    """Somebody else?"""


class Where(il.Question[Place]):
    """Where is it?"""


class Shall(il.Question[Verdict]):
    """Shall it?"""


_asker("nested", Who)
_asker("numbers", Which)
_asker("perhaps", Perhaps)
_asker("boxed", Shall)
_asker("zip", Where)

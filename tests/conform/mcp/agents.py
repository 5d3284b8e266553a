"""Agents of ours beside those of all protocols: the one of the document's examples, one whose deltas need every rule of
the delta algorithm, and one that takes a config.
"""

from __future__ import annotations

from typing import Any

import msgspec

import interlingua as il

from ..agents import adder, broken, careful, echo, slow


@il.agent
async def gpa(text: str) -> str:
    """General purpose agent"""
    return f"{text} back at ya!"


class Told(msgspec.Struct):
    text: str
    total: int
    seen: list[int]
    notes: list[str]
    late: list[str] | None
    words: list[str]


async def _on() -> None:
    """A step: deltas with one in between are told apart, however busy the machine is."""


@il.agent
async def story(numbers: list[int], ctx: il.Context[Any, Any]) -> Told:
    """Needs every rule of the delta algorithm"""
    total = sum(numbers)
    await ctx.emit({"text": "Once ", "total": total, "seen": [None, 1], "notes": [], "late": None})
    await ctx.step("first", _on)
    await ctx.emit({"total": 5, "seen": [None, 2], "notes": [None, "a", "b"], "late": [None, "z"]})
    await ctx.step("second", _on)
    await ctx.emit({"text": "upon", "notes": ["c", "d"], "words": ["x"], "late": [], "seen": None})
    return Told("Once upon", total + 5, [1, 2], ["a", "bc", "d"], ["z"], ["x"])


class Style(msgspec.Struct):
    tone: str = "dry"


@il.agent
async def styled(text: str, ctx: il.Context[None, Style]) -> str:
    """Speaks in a tone"""
    return f"{text} in a {ctx.config.tone} tone"


AGENTS = [gpa, story, styled, echo, careful, slow, broken, adder]

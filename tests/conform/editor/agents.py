"""Agents for what the others do not show: a form, commands, and what is printed."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

import interlingua as il


class Address(msgspec.Struct):
    street: str
    number: int


class WhereTo(il.Question[Address]):
    """Where shall it go?"""


@il.agent(asks=[WhereTo], skills=[il.Skill("ship", "Ship", "sends something")])
async def clerk(text: str, ctx: il.Context[Any, Any]) -> str:
    """Asks by a form, and says something on stderr: übrigens."""
    print("asked for:", text, "– übrigens", file=sys.stderr)
    address = await ctx.ask(WhereTo())
    return f"to {address.street} {address.number}"

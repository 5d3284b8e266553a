"""Checks the delta algorithm of a server, as far as it shows: by deltas that join to its output.

A rule is checked if the deltas of the agent's runs need it. If they do not join, the report names the rule that the
server got wrong, if one rule alone explains its output.
"""

from __future__ import annotations

from ..base import applies, expect
from ..remembering import once
from .driver import TOKEN, Driver, check, shown_progress
from .joining import (  # fmt: skip
    BLIND,
    COMMON,
    EDGE,
    EMPTY,
    EMPTY_OUTPUT,
    MERGE,
    NO_OUTPUT,
    NULL,
    NULL_OUTPUT,
    NUMBERS,
    ORDERED,
    REST,
    STRINGS,
    TYPES,
    Judged,
    judged,
)

_WHEN = {
    ORDERED: "there is no more than one",
    TYPES: "no two values meet in them",
    NUMBERS: "no two numbers meet in them",
    STRINGS: "no two strings meet in them",
    MERGE: "no object in them gets another member",
    COMMON: "no member of an object comes twice in them",
    NULL: "null meets no value in them",
    EMPTY: "an empty array meets no other in them",
    EMPTY_OUTPUT: "no array that begins with null meets an empty one in them",
    NULL_OUTPUT: "no array that begins with null meets null in them",
    NO_OUTPUT: "no array that begins with null meets nothing in them",
    BLIND: "no array in them begins with null",
    EDGE: "no two arrays with elements meet in them",
    REST: "no array with several elements meets another in them",
}  # fmt: skip


@once
async def judgement(d: Driver) -> Judged:
    seen = await shown_progress(d, TOKEN)
    applies(seen.deltas, "no progress notification has a delta that is an object")
    return judged(seen.deltas, seen.output())


def _looks_at(rule: str) -> None:
    async def is_kept(d: Driver) -> None:
        found = await judgement(d)
        expect(rule not in found.wrong, found.wrong.get(rule, ""))
        applies(rule in found.needed, f"the deltas of the agent do not show it: {_WHEN[rule]}")
        applies(rule not in found.unclear, f"another rule was not kept: {found.problem}")

    is_kept.__name__ = rule.replace("-", "_") + "_is_kept"
    check(f"mcp.delta.{rule}")(is_kept)


for _rule in _WHEN:
    _looks_at(_rule)

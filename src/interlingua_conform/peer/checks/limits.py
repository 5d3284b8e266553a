"""Checks limitations, which can be changed while a node runs. Each check restores the limits that it changes."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from ...base import Broken, Gone, NotApplicable, applies, expect, shown
from ...remembering import once
from ...rows import Row, Source, add
from ..driver import Node
from ..shapes import absent, listed, segment, told
from ..suite import check, suite

CARD = "/.well-known/acp.json"
ADDED = {"kind": "other", "code": "looked_at", "message": "is being looked at", "permanent": False}


class Changed(msgspec.Struct):
    """The observations of a change of the card."""

    before: list[Any]
    during: list[Any]
    filtered: Any = None


async def _limitations(node: Node, query: str = "") -> Any:
    body = await node.get(CARD + query)
    card = (
        body["self"] if isinstance(body, dict) and "name" not in body and isinstance(body.get("self"), dict) else body
    )
    return card.get("limitations") if isinstance(card, dict) else None


@once
async def _changed(node: Node) -> Changed:
    before = await _limitations(node)
    before = before if isinstance(before, list) else []
    answer = await node.ask("PATCH", CARD, {"limitations": [*before, ADDED]})
    applies(not absent(answer), f"PATCH {CARD} is not there, which came with 2.21")
    expect(answer.status == 200, f"PATCH {CARD} with limitations is answered with {told(answer)}")
    try:
        during = await _limitations(node)
        return Changed(
            before,
            during if isinstance(during, list) else [],
            await _limitations(node, "?filter_limitations=transient"),
        )
    finally:
        await node.ask("PATCH", CARD, {"limitations": before})


@check("peer.history.v2-21-patch-card")
async def limitations_can_be_changed(node: Node) -> None:
    seen = await _changed(node)
    expect(len(seen.during) == len(seen.before) + 1, f"after PATCH {CARD} the limitations are {shown(seen.during)}")


@check("peer.history.v2-21-filter")
async def limitations_can_be_filtered(node: Node) -> None:
    seen = await _changed(node)
    expect(isinstance(seen.filtered, list), f"with filter_limitations the limitations are {shown(seen.filtered)}")
    more = [one for one in seen.filtered if one not in seen.during]
    expect(not more, f"with filter_limitations there are more limitations than without: {shown(more)}")


@once
async def _objects(node: Node) -> list[dict[str, Any]]:
    """Limitations of the card, those of its skills, and the one that was added."""
    card = await node.card()
    found = listed(card.get("limitations"), "limitations")
    for skill in listed(card.get("skills"), "skills"):
        found += listed(skill.get("limitations"), "limitations")
    if node.api is not None:
        with contextlib.suppress(NotApplicable, Broken, Gone):
            found += listed((await _changed(node)).during, "limitations")
    applies(found, "the node has no limitations that are objects")
    return found


@check("peer.history.v2-20-limitation-object")
async def a_limitation_is_an_object(node: Node) -> None:
    for one in await _objects(node):
        expect(any(isinstance(value, str) for value in one.values()), f"a limitation says nothing: {shown(one)}")


_LIMITATION = Source(_objects, "a limitation", each=True)
add(
    suite,
    Row("peer.history.v2-20-kind", _LIMITATION, "kind", str),
    Row("peer.history.v2-20-permanent", _LIMITATION, "permanent", bool),
)


@check("peer.history.v2-29-skill-limitations")
async def limitations_of_a_skill_can_be_changed(node: Node) -> None:
    skills = listed((await node.card()).get("skills"), "skills")
    applies(skills, "the card lists no skills")
    path = f"/skills/{segment(skills[0].get('id'))}/limitations"
    before = skills[0].get("limitations") or []
    answer = await node.ask("PATCH", path, {"limitations": [*before, ADDED]})
    applies(not absent(answer), f"PATCH {path} is not there, which came with 2.29")
    expect(answer.status == 200, f"PATCH {path} is answered with {told(answer)}")
    await node.ask("PATCH", path, {"limitations": before})

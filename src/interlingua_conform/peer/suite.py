"""Defines the suite in which the checks of this protocol are registered; a module of its own, so that all of them can
import it."""

from __future__ import annotations

from ..base import Suite
from .driver import Node, open_node


async def names(node: Node) -> dict[str, str]:
    """The skills on its card, by which its agents are asked for."""
    skills = (await node.card()).get("skills")
    ids = [one.get("id") if isinstance(one, dict) else one for one in skills] if isinstance(skills, list) else []
    found = {id_: id_ for id_ in ids if isinstance(id_, str)}
    return found if len(found) == len(ids) else {}


suite: Suite[Node] = Suite("peer", open_node, names=names)
check = suite.check

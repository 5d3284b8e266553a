"""Lists of tasks in pages, and by state."""

from __future__ import annotations

from typing import Any

from ...base import applies, expect, member, shown
from ...remembering import once
from ..driver import Node
from ..shapes import listed, segment, told
from ..suite import check
from .tasks import stories


async def _pages(node: Node) -> None:
    applies(await node.has("tasks_pagination"), "the card does not have capabilities.tasks_pagination")
    await _some(node)


@once
async def _some(node: Node) -> list[str]:
    """Three tasks at the least."""
    return [(await stories(node).create()).id for _ in range(3)]


async def _page(node: Node, query: str) -> dict[str, Any]:
    answer = await node.ask("GET", f"/tasks?{query}")
    expect(answer.status == 200, f"GET /tasks?{query} is answered with {told(answer)}")
    return member(answer.json(), "", dict, f"GET /tasks?{query}")


@check("peer.8-7.s-page-size", "peer.history.v2-40-page-size", "peer.4-1.tasks-list-pagination")
async def a_page_has_a_size(node: Node) -> None:
    await _pages(node)
    body = await _page(node, "page_size=2")
    tasks = member(body, "tasks", list, "GET /tasks?page_size=2")
    expect(len(tasks) == 2, f"GET /tasks?page_size=2 gives {len(tasks)} tasks")


@check("peer.history.v2-40-has-more")
async def a_page_says_whether_more_follows(node: Node) -> None:
    await _pages(node)
    more = member(await _page(node, "page_size=1"), "has_more", bool, "GET /tasks?page_size=1")
    expect(more, "has_more of GET /tasks?page_size=1 is false, and there are three tasks")


@check("peer.history.v2-40-next-cursor")
async def a_page_says_where_the_next_begins(node: Node) -> None:
    await _pages(node)
    body = await _page(node, "page_size=1")
    expect(body.get("next_cursor") is not None, f"GET /tasks?page_size=1 has no next_cursor: {shown(body)}")


@check("peer.8-7.s-after", "peer.history.v2-40-after")
async def the_next_page_follows(node: Node) -> None:
    await _pages(node)
    first = await _page(node, "page_size=1")
    cursor = first.get("next_cursor")
    applies(cursor is not None, "there is no next_cursor to go on from")
    second = await _page(node, f"page_size=1&after={segment(cursor)}")
    ids = [[task.get("id") for task in listed(page, "tasks")] for page in (first, second)]
    expect(ids[1], f"GET /tasks?page_size=1&after={cursor} gives no tasks")
    expect(ids[0] != ids[1], f"the page after {cursor} is the same: {ids[0]}")


@check("peer.8-7.s-status", "peer.history.v2-40-status")
async def tasks_are_listed_by_their_state(node: Node) -> None:
    await _pages(node)
    story = await stories(node).completed()
    story.need("completed")
    tasks = listed(await _page(node, "status=completed&page_size=100"), "tasks")
    others = {shown(task.get("status")) for task in tasks} - {"completed"}
    expect(not others, f"GET /tasks?status=completed lists tasks that are {', '.join(sorted(others))}")
    expect(tasks, "GET /tasks?status=completed lists nothing, and a task is completed")

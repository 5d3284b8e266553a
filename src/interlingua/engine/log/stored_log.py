"""Reads whole logs from the store, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ...model.events import Event
from ...store.ports import Store
from ...store.rows import is_last_page

_PAGE = 2000


async def pages(store: Store, run: str) -> AsyncIterator[list[Event]]:
    """Reads the log of a run from the store, one page at a time."""
    after, last = 0, False
    while not last:
        page = await store.runs.events(run, after, _PAGE)
        last = is_last_page([event.size for event in page], _PAGE)
        if page:
            after = page[-1].seq
            yield page


async def all_events(store: Store, run: str) -> list[Event]:
    return [event async for page in pages(store, run) for event in page]

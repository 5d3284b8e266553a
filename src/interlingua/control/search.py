"""Finds runs for the control API: by column in the store, and by words in a window of the newest.

A page begins at the id with which the one before ended. Ids rise with time, so a page costs the same however many runs
there are. Words stand in logs, which no index has: the newest runs are read, up to a limit, and the answer says where
that was.
"""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from ..engine.engine import Engine
from ..engine.ports import RunRow
from ..model import json_values
from ..model.errors import InvalidRequest
from ..model.events import RunCreated, RunFinished
from ..model.filters import RunFilter
from ..model.run import Caller
from ..security import secret_inputs as secrets
from . import access, wire
from .views import CardOf, microseconds

WINDOW = 5_000
"""Runs that one search by words looks at."""

_PAGE = 500
_INPUT = 2_000  # characters of the input that are searched

_NEVER = "~"  # sorts after every id


class Found(msgspec.Struct):
    """A page of runs. `cursor` begins the next one; None where there is none."""

    rows: list[RunRow]
    cursor: str | None
    searched: int | None = None
    complete: bool = True


def filter_of(where: wire.RunSearch, caller: Caller) -> RunFilter:
    """Returns the filter of a search, limited to what the caller may see."""
    owner = access.own(caller)
    if owner is not None and where.caller not in (None, owner):
        raise InvalidRequest(f"caller is {where.caller[:80]!r}; you see only your own runs", path="/caller")
    single = where.agent[0] if len(where.agent) == 1 and not {"*", "@"} & set(where.agent[0]) else None
    return RunFilter(
        status=where.status or None, agent=single, agents=_agents(where.agent if single is None else [], caller),
        caller=owner or where.caller, thread=where.thread, parent=where.parent, root=where.root, blocked=where.blocked,
        metadata=where.metadata or None, before=_before(where), since=_floor(where.since),
        sealed=access.is_owner(caller), limit=where.limit,
    )  # fmt: skip


def _agents(wanted: list[str], caller: Caller) -> list[str] | None:
    """Returns the patterns of agents that are both wanted and within the caller's reach."""
    reach = access.reach(caller)
    if not wanted or reach is None:
        return wanted or reach
    return [name for name in wanted if any(_covers(pattern, name) for pattern in reach)]


def _covers(pattern: str, name: str) -> bool:
    """Returns whether the runs that a name means are all within a pattern."""
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1])
    return pattern in (name, name.partition("@")[0])


def _before(where: wire.RunSearch) -> str | None:
    bounds = [bound for bound in (where.cursor, _floor(where.until)) if bound is not None]
    return min(bounds) if bounds else None


def _floor(time: datetime.datetime | None) -> str | None:
    """Returns the lowest id of a run that began at this time, in milliseconds."""
    if time is None:
        return None
    milliseconds = max(0, microseconds(time)) // 1000
    if milliseconds >= 1 << 48:
        return _NEVER
    digits = f"{milliseconds:012x}"
    return f"{digits[:8]}-{digits[8:]}"


async def find(engine: Engine, where: wire.RunSearch, caller: Caller, cards: CardOf) -> Found:
    if where.text:
        return await _by_words(engine, where, caller, cards)
    rows = await _page(engine, filter_of(where, caller))
    return Found(rows, rows[-1].id if len(rows) == where.limit else None)


async def _page(engine: Engine, page: RunFilter) -> list[RunRow]:
    if page.blocked:
        rows = await engine.runs.blocked_report.rows(page)
        return [row for row in rows if page.before is None or row.id < page.before]
    return await engine.runs.rows(page)


async def _by_words(engine: Engine, where: wire.RunSearch, caller: Caller, cards: CardOf) -> Found:
    words = (where.text or "").casefold().split()
    page, matching, searched = filter_of(where, caller), list[RunRow](), 0
    page.limit = _PAGE
    while searched < WINDOW:
        rows = await _page(engine, page)
        ends = await engine.runs.ends_of([row.id for row in rows])
        for row in rows:
            searched += 1
            text = _text_of(row, *ends.get(row.id, (None, None)), cards).casefold()
            if all(word in text for word in words):
                matching.append(row)
                if len(matching) == where.limit:
                    return Found(matching, row.id, searched)
        if len(rows) < _PAGE:
            return Found(matching, None, searched)
        page.before = rows[-1].id
    return Found(matching, page.before, searched, complete=False)


def _text_of(row: RunRow, created: RunCreated | None, finished: RunFinished | None, cards: CardOf) -> str:
    """Returns the text of a run that is searched: its agent, its error and the beginning of its input."""
    parts = [row.agent, row.id]
    if finished is not None and finished.error is not None:
        parts += [finished.error.code, finished.error.message]
    if created is not None:
        card = cards(row.agent, row.version)
        parts.append(_summary(secrets.mask(created.request.input, card.input if card is not None else None)))
    return " ".join(parts)


def _summary(value: Any) -> str:
    text = value if isinstance(value, str) else json_values.encode(value).decode(errors="replace")
    return text[:_INPUT]

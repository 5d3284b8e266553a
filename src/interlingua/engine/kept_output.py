"""The output that a restarted run keeps, read from its log, so that readers need not hold all deltas."""

from __future__ import annotations

from typing import Any

from ..model.delta import Joiner
from ..model.events import Event, OutputDelta, RunRestarted
from ..store.ports import RunStore

_PAGE = 512


async def kept_output(store: RunStore, restarted: Event) -> Any:
    """The output as it is behind a `RunRestarted`; ABSENT where nothing is left."""
    deltas: list[tuple[int, Any]] = []
    cursor = 0
    while cursor < restarted.seq and (page := await store.events(restarted.run, cursor, _PAGE)):
        for event in page:
            body = event.body
            if event.seq > restarted.seq:
                break
            if isinstance(body, OutputDelta):
                deltas.append((event.seq, body.delta))
            elif isinstance(body, RunRestarted):
                deltas = [(seq, delta) for seq, delta in deltas if seq <= body.keep]
        cursor = page[-1].seq
    joined = Joiner()
    for _, delta in deltas:
        joined.add(delta)
    return joined.value

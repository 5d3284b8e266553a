"""The output that a run keeps when it is restarted, read from its log: readers need not hold all deltas for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..model.delta import Joiner
from ..model.events import Event, OutputDelta, RunRestarted

if TYPE_CHECKING:
    from .engine import Engine

_PAGE = 512


async def kept_output(engine: Engine, restarted: Event) -> Any:
    """The output as it is behind a `RunRestarted`; ABSENT where nothing is left."""
    deltas: list[tuple[int, Any]] = []
    cursor = 0
    while cursor < restarted.seq and (page := await engine.store.runs.events(restarted.run, cursor, _PAGE)):
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

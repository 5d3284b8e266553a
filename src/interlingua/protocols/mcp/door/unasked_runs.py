"""Runs that wait because their client could not be asked.

The same request joins its run when it is sent again: clients retry, and each retry would leave one more run waiting.
After the client has got the end of the run, the next request starts another.
"""

from __future__ import annotations

from typing import Any

from ....engine.engine import Engine
from ....model import json_values
from ....model.card import AgentCard
from .. import wire

_RUNS, _MARKS = "mcp:unasked", "mcp:unasked-mark"  # mark → run, and run → mark


class Unasked:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._askers: set[str] = set()  # agents that asked here without declaring it: for those they called

    async def find(self, card: AgentCard, mark: str) -> str | None:
        """Returns the run that waits for this request."""
        if not card.questions and card.key not in self._askers:  # most agents never ask, and cost no look
            return None
        return await self._engine.links.find(_RUNS, mark)

    async def note(self, card: AgentCard, mark: str, run: str) -> None:
        self._askers.add(card.key)
        if await self._engine.links.add(_RUNS, mark, run) == run:
            await self._engine.links.add(_MARKS, run, mark)

    async def forget(self, run: str) -> None:
        """Forgets a run that is gone, or whose end the client has got."""
        mark = await self._engine.links.find(_MARKS, run)
        if mark is not None:
            await self._engine.links.remove(_RUNS, mark)
            await self._engine.links.remove(_MARKS, run)


def mark_of(caller: str, card: AgentCard, input_: Any, config: Any, meta: dict[str, Any]) -> str:
    """Returns a mark that identifies the same request of the same caller. Metadata does not count: some clients put a
    new id there each time."""
    beside = [meta.get(name) for name in (wire.META_THREAD, wire.META_PARTS)]
    return json_values.digest([caller, card.key, input_, config, *beside])


__all__ = ["Unasked", "mark_of"]

"""The part of the Agent Connect Protocol in the guided tour."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ..tour import Demo, Tour


async def _hello(tour: Tour) -> None:
    tour.show_json(await _call(tour, "echo", {"text": "hello Connect"}))


async def _call(tour: Tour, agent: str, input_: Any, quiet: bool = False) -> Any:
    ended = await tour.ask("POST", "/runs/wait", {"agent_id": agent, "input": input_}, quiet=quiet)
    return ended["output"]["values"]


async def _answer(tour: Tour, run: str, answer: Any) -> None:
    await tour.ask("POST", f"/runs/{run}", answer)


async def _begin(tour: Tour, agent: str, input_: Any) -> str:
    run = await tour.ask("POST", "/runs", {"agent_id": agent, "input": input_, "stream_mode": "custom"})
    return str(run["run_id"])


async def _read(tour: Tour, run: str, after: str) -> AsyncIterator[tuple[str, str]]:
    # Without a last event, a stream begins with what comes next.
    async for id_, data in tour.events(f"/runs/{run}/stream", {"last-event-id": after or "0"}):
        yield _text(data), id_ or ""


def _text(data: Any) -> str:
    """Returns the text of the delta in an event."""
    for holder in (data, data.get("values"), data.get("update")):
        delta = holder.get("delta") if isinstance(holder, dict) else None
        if isinstance(delta, dict) and isinstance(delta.get("text"), str):
            return str(delta["text"])
    return ""


demo = Demo(
    title="Agent Connect", about="REST: runs, threads, interrupts.", hello=_hello, call=_call, answer=_answer,
    begin=_begin, read=_read,
)  # fmt: skip

"""Output: fragments through one run to one reader, and joining them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from interlingua import Engine, RunRequest, Settings
from interlingua.model.delta import Joiner, Json
from interlingua.model.events import OutputDelta

from .agents import FRAGMENT, fragments, stream
from .measure import ROUNDS, Line, disk_folder, interleave


async def streaming(quick: bool) -> list[Line]:
    count = 1000 if quick else 100_000
    rounds = 1 if quick else ROUNDS
    firsts: list[float] = []
    events: list[int] = []
    with disk_folder() as folder:
        async with Engine(folder / "ours.db", agents=[stream], settings=Settings(stall_warning=0)) as engine:

            async def ours() -> float:
                begun = time.perf_counter()
                joiner, first, seen = Joiner(), 0.0, 0
                run = await engine.runs.submit(RunRequest(stream.card.name, input={"count": count}))
                async for event in engine.runs.events(run.id):
                    if isinstance(event.body, OutputDelta):
                        first = first or time.perf_counter() - begun
                        joiner.add(event.body.delta)
                        seen += 1
                took = time.perf_counter() - begun
                assert joiner.value == {"text": FRAGMENT * count}
                firsts.append(first)
                events.append(seen)
                return count / took

            async def bare() -> float:
                begun = time.perf_counter()
                parts = [fragment async for fragment in fragments(count)]
                text = "".join(parts)
                took = time.perf_counter() - begun
                assert text == FRAGMENT * count
                return count / took

            found = await interleave(rounds, ours, bare)
    in_events = f"{count:,} fragments reached the reader in {statistics.median(events):,.0f} events"
    what = f"{count:,} deltas through one run to one reader"
    first = statistics.median(firsts) * 1000
    return [
        found.line(0, 1, Line("streaming", what, "deltas/s", beside="the bare generator", note=in_events)),
        Line("streaming", "time to the first delta", "ms", first),
    ]


def _string(at: int) -> Json:
    return {"text": FRAGMENT}


def _array(at: int) -> Json:
    return {"items": [None, at]}


def _chat(at: int) -> Json:
    """A new message every twentieth time, and more of the newest in between."""
    return {"messages": [None, {"role": "agent", "text": FRAGMENT}] if at % 20 == 0 else [{"text": FRAGMENT}]}


async def joining(quick: bool) -> list[Line]:
    sizes = (100, 1000) if quick else (10_000, 100_000, 1_000_000)
    small, large = sizes[0], sizes[-1]
    lines = []
    for name, make in {"one string": _string, "one array": _array, "a chat": _chat}.items():

        def side(size: int, make: Callable[[int], Json] = make) -> Any:
            async def join() -> float:
                # The deltas are made beforehand; a short join is repeated so that the clock can see it.
                deltas = [make(at) for at in range(size)]
                times = max(1, 100_000 // size) if not quick else 1
                begun = time.perf_counter()
                for _ in range(times):
                    joiner = Joiner()
                    for delta in deltas:
                        joiner.add(delta)
                    assert joiner.value
                return (time.perf_counter() - begun) / times / size * 1e6

            return join

        found = await interleave(1 if quick else ROUNDS, *(side(size) for size in sizes))
        each = ", ".join(f"{size:,}: {found.median(at):.2f} µs" for at, size in enumerate(sizes))
        what, beside = f"{name}: a delta of {large:,}", f"a delta of {small:,}"
        line = Line("joining", what, "µs", beside=beside, asked=2.0, bound="at most", note=each)
        lines.append(found.line(-1, 0, line))
    return lines

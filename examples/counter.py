"""A slow counter: it streams, shows what it is doing, can be cancelled, and goes on where it was after a crash.

interlingua run examples/counter.py '{"to": 20}'
"""

from collections.abc import AsyncIterator

import interlingua as il


def add_up(to: int) -> int:
    return sum(range(1, to + 1))


def plan(counting: bool) -> list[il.PlanEntry]:
    return [
        il.PlanEntry("count", "in_progress" if counting else "completed"),
        il.PlanEntry("add up", "pending" if counting else "completed"),
    ]


@il.agent
async def counter(ctx: il.Context[None, None], to: int = 5, delay: float = 0.3) -> AsyncIterator[str]:
    """Counts to a number, taking its time."""
    await ctx.plan(plan(counting=True))
    for number in range(1, to + 1):
        await ctx.sleep(delay)  # remembered: a counter that starts again does not sleep these again
        yield f"{number} "
        if number == to // 2:
            await ctx.thought(f"half way to {to}")
    total = await ctx.step("add up", add_up, to)  # done once, whatever happens
    await ctx.plan(plan(counting=False))
    yield f"and all together {total}"

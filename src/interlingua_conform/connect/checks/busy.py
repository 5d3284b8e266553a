"""A second run on a thread that is busy: refused, put in line, or put in the place of the first."""

from __future__ import annotations

from typing import Any

from interlingua.transports.raw_client import Answer

from ...base import Role, applies, expect, shown
from ..driver import OVER, Driver, answered, at, suite
from .threads import fresh, threaded


async def _occupied(d: Driver) -> tuple[str, str]:
    """A thread with a slow run on it: the address of its runs, and that run."""
    await threaded(d, "slow")
    base = at("threads", await fresh(d), "runs")
    run = await d.start("slow", base)
    status = await d.status(run, base)
    applies(status not in OVER, f"the slow agent was done at once, with the status {status}")
    return base, run


async def _second(d: Driver, base: str, **options: Any) -> tuple[Answer, Role]:
    """Another run there: of the quick agent where it takes the same state, else of the slow one."""
    states = [(await d.specs(role)).get("thread_state") for role in ("agent", "slow")]
    role: Role = "agent" if "threads" in await d.able() and states[0] == states[1] else "slow"
    answer = await d.ask("POST", base, await d.request(role, **options))
    if answer.status == 200:
        told = answer.json()
        run = told.get("run_id") if isinstance(told, dict) else None
        if isinstance(run, str):
            d.going[base + at(run)] = None
    return answer, role


async def _made(d: Driver, base: str, strategy: str) -> tuple[str, Role]:
    answer, role = await _second(d, base, multitask_strategy=strategy)
    expect(answer.status == 200, answered(f"POST {base} with multitask_strategy {strategy}", answer))
    told = answer.json()
    expect(isinstance(told, dict) and isinstance(told.get("run_id"), str), f"the run has no run_id: {shown(told)}")
    return told["run_id"], role


@suite.check("connect.openapi.multitask-reject")
async def a_second_run_on_a_busy_thread_is_a_conflict(d: Driver) -> None:
    base, run = await _occupied(d)
    answers = [await _second(d, base), await _second(d, base, multitask_strategy="reject")]
    still = await d.status(run, base)
    await d.tidy(base)
    for answer, _ in answers:
        expect(answer.status == 409, answered(f"POST {base} of a thread that is busy", answer))
    expect(still not in OVER, f"the first run on the thread is {still} after the second was refused")


@suite.check("connect.openapi.multitask-enqueue")
async def a_second_run_waits_for_its_turn(d: Driver) -> None:
    base, run = await _occupied(d)
    second, role = await _made(d, base, "enqueue")
    await d.until_over(second, base, within=d.quiet)
    told = [await d.status(name, base) for name in (run, second)]
    await d.stop(run, base)
    later = await d.until_over(second, base, within=None if role == "agent" else 0)
    await d.tidy(base)
    expect(not {*told} & {*OVER}, f"of two runs on a thread, one in line, the statuses are {shown(told)}")
    if role == "agent":
        expect(later == "success", f"the run in line is {later} after the first was cancelled")


@suite.check("connect.openapi.multitask-interrupt")
async def a_second_run_cancels_the_first(d: Driver) -> None:
    base, run = await _occupied(d)
    second, role = await _made(d, base, "interrupt")
    first = await d.until_over(run, base)
    later = await d.until_over(second, base, within=None if role == "agent" else 0)
    await d.tidy(base)
    expect(first in OVER, "the first run goes on, though multitask_strategy interrupt gave its thread to another")
    well = later == "success" if role == "agent" else later not in OVER
    expect(well, f"the run that took the place of the first is {later}")


@suite.check("connect.openapi.multitask-rollback")
async def a_second_run_takes_the_place_of_the_first(d: Driver) -> None:
    base, run = await _occupied(d)
    second, role = await _made(d, base, "rollback")
    first = await d.until_gone(run, base)
    later = await d.until_over(second, base, within=None if role == "agent" else 0)
    await d.tidy(base)
    expect(first == "gone", f"the first run is {first} after multitask_strategy rollback, and should be gone")
    well = later == "success" if role == "agent" else later not in OVER
    expect(well, f"the run that took the place of the first is {later}")

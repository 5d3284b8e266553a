"""Runs that are cancelled, rolled back, put off, or left alone."""

from __future__ import annotations

import asyncio

from ...base import applies, expect
from ..driver import OVER, Driver, answered, at, suite
from .runs import succeeded
from .streaming import going

_LATER = 1  # seconds
_EARLY = 0.05  # by which a timer may ring too soon


async def _slow(d: Driver) -> str:
    run = await d.start("slow")
    status = await d.status(run)
    applies(status not in OVER, f"the slow agent was done at once, with the status {status}")
    return run


@suite.check("connect.openapi.cancel-wait")
async def a_cancel_that_waits_returns_when_the_run_has_stopped(d: Driver) -> None:
    run = await _slow(d)
    await d.told("POST", at("runs", run, "cancel") + "?wait=true", status=204)
    status = await d.status(run)
    expect(status in OVER, f"the run {run} is still {status} after a cancel with wait has returned")


@suite.check("connect.openapi.cancel-rollback")
async def a_rollback_leaves_nothing_of_the_run(d: Driver) -> None:
    run = await _slow(d)
    await d.told("POST", at("runs", run, "cancel") + "?action=rollback", status=204)
    status = await d.until_gone(run)
    expect(status == "gone", f"the run {run} is {status} after it was rolled back, and should be gone")


@suite.check("connect.openapi.after-seconds")
async def a_run_is_put_off(d: Driver) -> None:
    await succeeded(d)
    loop = asyncio.get_running_loop()
    start = loop.time()
    run = await d.start(after_seconds=_LATER)
    await d.waited(await d.start())  # one that was made later is done first
    status = await d.status(run)
    took = loop.time() - start
    expect(status not in OVER or took > _LATER, f"a run that is put off by {_LATER} s is {status} after {took:.1f} s")
    answer = await d.ask("GET", at("runs", run, "wait"))
    took = loop.time() - start
    expect(answer.status == 200, answered(f"GET /runs/{run}/wait of a run that was put off", answer))
    expect(took > _LATER - _EARLY, f"a run that is put off by {_LATER} s is done after {took:.1f} s")


@suite.check("connect.openapi.on-disconnect")
async def a_run_is_cancelled_with_its_connection_or_goes_on(d: Driver) -> None:
    """Looks long after the streams were dropped: a server may wait for the reader to come back."""
    seen = await going(d)
    applies(seen.pending, "the slow agent was done at once")
    cancelled = await d.until_over(seen.runs["cancel"])
    continued = await d.status(seen.runs["continue"])
    for run in seen.runs.values():
        await d.stop(run)
    goes_on = f"a run with on_disconnect cancel is {cancelled} after its stream was dropped"
    expect(cancelled in OVER and cancelled != "success", goes_on)
    well = continued not in OVER or continued == "success"
    expect(well, f"a run with on_disconnect continue is {continued} after its stream was dropped")

"""Groups of background jobs."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from interlingua.runtime.job_group import JobGroup


async def fails() -> None:
    raise OSError("it broke")


async def test_a_job_that_fails_is_logged_and_its_neighbours_go_on(caplog: pytest.LogCaptureFixture) -> None:
    group, go = JobGroup("tests"), asyncio.Event()

    async def waits() -> str:
        await go.wait()
        return "done"

    neighbour, failing = group.spawn(waits()), group.spawn(fails())
    await asyncio.wait([failing])
    await asyncio.sleep(0)
    assert not neighbour.done()
    go.set()
    assert await neighbour == "done"
    [record] = caplog.records
    assert record.getMessage() == "tests: a background job failed"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "it broke"
    assert not group


async def test_the_failure_of_a_shared_job_is_of_those_who_await_it(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OSError, match="it broke"):
        await JobGroup("tests").share(fails())
    assert not caplog.records


async def test_a_failure_goes_to_the_function_that_was_given_for_it(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    group = JobGroup("tests", lambda error: seen.append(str(error)))
    await asyncio.wait([group.spawn(fails())])
    await asyncio.sleep(0)
    assert seen == ["it broke"]
    assert not caplog.records


async def test_closing_ends_also_the_jobs_that_are_started_meanwhile() -> None:
    group, ended = JobGroup("tests"), list[str]()

    async def second() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("second")

    async def first() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            group.spawn(second())
            await asyncio.sleep(0)
            ended.append("first")

    group.spawn(first())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await group.close()
    assert ended == ["first", "second"]
    assert not group


async def test_a_job_that_swallows_a_cancellation_is_cancelled_again() -> None:
    group, swallowed = JobGroup("tests"), 0

    async def stubborn() -> None:
        nonlocal swallowed
        while swallowed < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1

    group.spawn(stubborn())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await group.close(again=0.01)
    assert swallowed == 2


async def test_a_job_can_close_its_own_group() -> None:
    group, neighbours_ended = JobGroup("tests"), False

    async def closes() -> None:
        nonlocal neighbours_ended
        neighbour = group.spawn(asyncio.Event().wait())
        await group.close()
        neighbours_ended = neighbour.cancelled()

    async with asyncio.timeout(10):
        await group.spawn(closes())
    assert neighbours_ended


async def test_a_timeout_inside_a_job_is_no_cancellation_of_the_group() -> None:
    jobs, timed_out = JobGroup("tests"), False

    async def times_out() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()

    impatient, patient = jobs.spawn(times_out()), jobs.spawn(asyncio.Event().wait())
    while not impatient.done():
        timed_out = timed_out or bool(impatient.cancelling())
        assert not jobs.was_cancelled
        await asyncio.sleep(0)
    assert timed_out
    patient.cancel()
    assert jobs.was_cancelled
    await asyncio.wait([patient])
    assert jobs.was_cancelled

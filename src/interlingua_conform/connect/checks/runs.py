"""Runs without a thread: made in the background or waited for, polled, and their output."""

from __future__ import annotations

import asyncio
from typing import Any

from ...base import Broken, applies, expect, member, shown
from ...remembering import once
from ...rows import Played, Row, Source, add
from ...schemas import fits
from ..driver import OVER, Driver, answered, at, briefly, capabilities, output_of, result_of, suite
from ..shapes import OUTPUTS, RUN_STATUSES

_SYNCHRONOUS = "connect.requirements.mode-synchronous connect.output.synchronous connect.invocation.returns-output"


@once
async def created(d: Driver) -> dict[str, Any]:
    """The run object that a new run is answered with."""
    return member(await d.told("POST", "/runs", await d.request()), "", dict, "the answer to POST /runs")


@once
async def done(d: Driver) -> tuple[str, str]:
    """A run that was polled until it was over, and its status then."""
    run = member(await created(d), "run_id", str, "the answer to POST /runs")
    status = await d.until_over(run)
    expect(status in OVER, f"the run {run} is still {shown(status)} after {d.patience:g} s")
    return run, status


@once
async def succeeded(d: Driver) -> str:
    run, status = await done(d)
    applies(status != "interrupted", "the agent asks for input: name one that answers at once (--agent)")
    expect(status == "success", f"the run {run} of the agent that is looked at has the status {status}")
    return run


@once
async def result(d: Driver) -> dict[str, Any]:
    """The output of a run that succeeded, as its wait endpoint gives it."""
    return await d.waited(await succeeded(d))


@once
async def at_once(d: Driver) -> dict[str, Any]:
    """The answer to a run that was made and waited for in one request."""
    await succeeded(d)  # an agent that cannot do this has nothing to show here
    return member(await d.told("POST", "/runs/wait", await d.request()), "", dict, "the answer to POST /runs/wait")


@once
async def blocked(d: Driver) -> tuple[str, bool, str, Any]:
    """A slow run that is waited for, then cancelled: its id, whether the wait blocked, its status then, and what the
    wait said in the end."""
    run = await d.start("slow")
    waiting = asyncio.ensure_future(d.ask("GET", at("runs", run, "wait")))
    try:
        early, _ = await asyncio.wait({waiting}, timeout=d.quiet)
        status = await d.status(run)
        await d.stop(run)
        return run, not early, status, await waiting
    finally:
        waiting.cancel()


# -- making them ----------------------------------------------------------------------------------------------


async def _outputs(d: Driver) -> list[dict[str, Any]]:
    return [await result(d), output_of(await at_once(d), "POST /runs/wait")]


async def _at_once(d: Driver) -> dict[str, Any]:
    return output_of(await at_once(d), "POST /runs/wait")


def _has_result(output: Any, where: str) -> None:
    result_of(output)


_MADE, _OUTPUT = Source(created, "the run"), Source(result, "the output of a run that succeeded")
_AT_ONCE = Source(_at_once, "the output of POST /runs/wait")
add(
    suite,
    Played("connect.runs.post connect.runs.returns-run connect.invocation.triggers", created),
    Row("connect.runs.run-id connect.invocation.returns-execution-id", _MADE, "run_id", str, filled=True),
    Row("connect.runs.run-status", _MADE, "status", str, one_of=RUN_STATUSES),
    Row("connect.runs.initial-pending", _MADE, "status", str, equals="pending"),
    Played(
        "connect.runs.wait connect.runs.flow-poll connect.requirements.output-retrieval "
        "connect.requirements.mode-asynchronous connect.invocation.execution-id-output", result,
    ),
    Row("connect.runs.output-type-result connect.output.when-terminated", _OUTPUT, "type", str, equals="result"),
    Row("connect.runs.output-result", _OUTPUT, fits=_has_result),
    Row(_SYNCHRONOUS, _AT_ONCE, "type", str, equals="result"),
    Row(_SYNCHRONOUS, _AT_ONCE, fits=_has_result),
    Row("connect.output.carries-condition", Source(_outputs, "the output", each=True), "type", str, one_of=OUTPUTS),
)  # fmt: skip


@suite.check("connect.runs.single-execution")
async def every_invocation_is_a_run_of_its_own(d: Driver) -> None:
    first = member(await created(d), "run_id", str, "the run")
    second = await d.start()
    expect(first != second, f"two runs have the same run_id {first}")


@suite.check("connect.runs.input", "connect.invocation.input", "connect.requirements.invocation")
async def a_run_takes_an_input(d: Driver) -> None:
    given = await d.input()
    creation = (await created(d)).get("creation")
    if isinstance(creation, dict) and creation.get("input") is not None:
        told = creation["input"]
        expect(told == given, f"the run was made with the input {shown(given)}, and says {shown(told)}")
    await succeeded(d)


@suite.check("connect.runs.metadata")
async def a_run_takes_metadata(d: Driver) -> None:
    made = await created(d)
    creation = made.get("creation")
    told = creation.get("metadata") if isinstance(creation, dict) else None
    if told is None:  # it need not be given back, but it is what runs are found by
        found = [entry.get("run_id") for entry in await d.listed("POST", "/runs/search", {"metadata": d.mark})]
        expect(made.get("run_id") in found, f"a run that was tagged with {shown(d.mark)} neither says so nor is found")
    else:
        same = isinstance(told, dict) and d.mark.items() <= told.items()
        expect(same, f"the run was tagged with {shown(d.mark)}, and says {shown(told)}")


@suite.check("connect.runs.formats-in-descriptor")
async def an_input_that_fits_the_descriptor_is_taken(d: Driver) -> None:
    """Sends an input made from the schema of the descriptor, unless another input was named."""
    specs = await d.specs()
    fits(await d.input(), member(specs, "input", dict, "specs"), "the input that is used")
    await succeeded(d)


# -- following them -------------------------------------------------------------------------------------------


@suite.check("connect.runs.get")
async def a_run_is_retrieved_by_its_id(d: Driver) -> None:
    run = member(await created(d), "run_id", str, "the run")
    got = await d.told("GET", at("runs", run))
    told = member(got, "run_id", str, f"the answer to GET /runs/{run}")
    expect(told == run, f"GET /runs/{run} gives the run {told}")
    member(got, "status", str, f"the answer to GET /runs/{run}")


@suite.check("connect.runs.polling")
async def the_status_is_pending_while_a_run_works_and_changes_when_it_is_done(d: Driver) -> None:
    await done(d)
    if d.subject.roles.slow is not None:
        _, _, status, _ = await blocked(d)
        expect(status in ("pending", *OVER), f"the status of a run that works is {shown(status)}, not pending")


@suite.check("connect.runs.wait-done")
async def the_output_of_a_run_that_is_done_comes_at_once(d: Driver) -> None:
    run = await succeeded(d)
    await briefly(d.waited(run), f"GET /runs/{run}/wait")


@suite.check("connect.runs.flow-block")
async def a_run_is_started_and_waited_for(d: Driver) -> None:
    await succeeded(d)
    output = await d.waited(await d.start())
    expect(output.get("type") == "result", f"the output of the run is {shown(output)}")


@suite.check("connect.runs.wait-blocks")
async def a_wait_blocks_until_the_status_changes(d: Driver) -> None:
    run, blocks, status, answer = await blocked(d)
    applies(status not in OVER, f"the slow agent was done at once, with the status {status}")
    expect(blocks or answer.status == 204, answered(f"GET /runs/{run}/wait of a run that is pending", answer))
    expect(answer.status < 500, answered(f"GET /runs/{run}/wait of a run that was cancelled meanwhile", answer))


# -- what comes out -------------------------------------------------------------------------------------------


@suite.check("connect.output.schema")
async def a_result_fits_the_descriptor(d: Driver) -> None:
    output = await result(d)
    applies("values" in output or "result" in output, "the output has messages only")
    specs = await d.specs()
    fits(result_of(output), member(specs, "output", dict, "specs"), "the output of a run")


# -- what an agent may do without -----------------------------------------------------------------------------


@suite.check("connect.schemas.partial-support")
async def an_agent_that_lacks_a_part_runs_all_the_same(d: Driver) -> None:
    every = {"threads", "interrupts", "callbacks", "values", "custom"}
    lacking = every - capabilities(await d.specs())
    applies(lacking, "the agent supports every part of the protocol")
    await succeeded(d)


@suite.check("connect.schemas.threads-optional")
async def an_agent_without_threads_runs_all_the_same(d: Driver) -> None:
    applies("threads" not in await d.able(), "the agent supports threads")
    await succeeded(d)


@suite.check("connect.schemas.streaming-optional")
async def an_agent_without_streaming_gives_whole_responses_and_refuses_to_stream(d: Driver) -> None:
    applies(not await d.able() & {"values", "custom"}, "the agent supports streaming")
    await at_once(d)
    seen = await d.streamed("POST", "/runs/stream", await d.request())
    refused = seen.status >= 400 or seen.of_type("error")
    expect(refused, "POST /runs/stream gives no error, though the agent supports no streaming")


# -- finding and deleting them --------------------------------------------------------------------------------


@suite.check("connect.openapi.search-runs")
async def runs_are_found_by_agent_status_and_metadata_in_pages(d: Driver) -> None:
    run, _ = await done(d)
    status = await d.status(run)
    mine = {"metadata": d.mark, "agent_id": (await d.agent()).id, "status": status, "limit": 1000}
    found = await d.listed("POST", "/runs/search", mine)
    ids = [member(entry, "run_id", str, "a run that was found") for entry in found]
    expect(run in ids, f"POST /runs/search {shown(mine)} does not find the run {run}")
    for entry in found:
        told = (entry.get("agent_id"), entry.get("status"))
        expect(told == (mine["agent_id"], status), f"POST /runs/search {shown(mine)} finds {shown(entry)}")
    for other in ({"metadata": {"conform": "nobody"}}, {"metadata": d.mark, "status": _other(status)}):
        found = [e for e in await d.listed("POST", "/runs/search", other) if e.get("run_id") == run]
        expect(not found, f"POST /runs/search {shown(other)} finds the run {run}: {shown(found)}")
    one = await d.listed("POST", "/runs/search", {"metadata": d.mark, "limit": 1})
    expect(len(one) == 1, f"POST /runs/search with limit 1 finds {len(one)}")
    past = await d.listed("POST", "/runs/search", {"metadata": d.mark, "offset": 10_000})
    expect(not past, f"POST /runs/search with an offset beyond the end finds {len(past)}")


def _other(status: str) -> str:
    return "success" if status != "success" else "timeout"


@suite.check("connect.openapi.delete-run")
async def a_deleted_run_is_gone(d: Driver) -> None:
    run = await d.start()
    status = await d.until_over(run)
    if status == "interrupted":
        await d.stop(run)
    await d.told("DELETE", at("runs", run), status=204)
    answer = await d.ask("GET", at("runs", run))
    expect(answer.status == 404, answered(f"GET /runs/{run} of a run that was deleted", answer))
    searched = await d.ask("POST", "/runs/search", {"metadata": d.mark, "limit": 1000})
    if searched.status == 200 and run in searched.body.decode(errors="replace"):
        raise Broken(f"POST /runs/search still finds the run {run}, which was deleted")

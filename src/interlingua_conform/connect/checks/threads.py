"""Threads: state that lasts over runs, where it is shown, and changes to it from outside."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from ...base import Role, applies, expect, member, shown
from ...remembering import once
from ...rows import Played, Row, Source, add
from ...schemas import fits
from ..driver import Driver, Json, answered, at, output_of, result_of, suite
from .runs import succeeded


class Used(msgspec.Struct):
    """A thread with two runs on it, and what was seen of it."""

    id: str
    made: Json
    runs: list[Json]
    outputs: list[Json]
    between: Json  # the thread after the first run
    after: Json  # and after the second


async def threaded(d: Driver, role: Role = "agent") -> None:
    applies("threads" in await d.able(role), "the agent supports no threads, says its descriptor")


@once
async def created(d: Driver) -> Json:
    await threaded(d)
    body = {"metadata": {**d.mark, "kept": 1}}
    return member(await d.told("POST", "/threads", body), "", dict, "the answer to POST /threads")


async def fresh(d: Driver, **given: Any) -> str:
    """A new thread; gives its id."""
    made = await d.told("POST", "/threads", {"metadata": d.mark, **given})
    return member(made, "thread_id", str, "the answer to POST /threads")


async def got(d: Driver, thread: str) -> Json:
    return member(await d.told("GET", at("threads", thread)), "", dict, f"the answer to GET /threads/{thread}")


@once
async def used(d: Driver) -> Used:
    made = await created(d)
    await succeeded(d)  # an agent that cannot run cannot run on a thread
    thread = member(made, "thread_id", str, "the answer to POST /threads")
    base = at("threads", thread, "runs")
    runs, outputs, seen = [], [], []
    for _ in range(2):
        run = member(await d.told("POST", base, await d.request()), "", dict, f"the answer to POST {base}")
        runs.append(run)
        outputs.append(await d.waited(member(run, "run_id", str, f"the answer to POST {base}"), base))
        seen.append(await got(d, thread))
    return Used(thread, made, runs, outputs, *seen)


@once
async def state(d: Driver) -> Json:
    """The schema of the thread state, where the descriptor defines one."""
    await threaded(d)
    schema = (await d.specs()).get("thread_state")
    applies(schema is not None, "the descriptor defines no thread state")
    return member({"thread_state": schema}, "thread_state", dict, "specs")


@once
async def history(d: Driver) -> list[Json]:
    await state(d)
    return await d.listed("GET", at("threads", (await used(d)).id, "history"))


def _shows(thread: Json) -> bool:
    return thread.get("values") not in (None, {}, [], "")


# -- making and retrieving them -------------------------------------------------------------------------------


async def _runs(d: Driver) -> list[Json]:
    return (await used(d)).runs


async def _outputs(d: Driver) -> list[Json]:
    return (await used(d)).outputs


async def _after(d: Driver) -> Json:
    return (await used(d)).after


async def _with_state(d: Driver) -> Json:
    await state(d)
    return (await used(d)).after


def _has_result(output: Any, where: str) -> None:
    result_of(output)


_MADE, _OUTPUT = Source(created, "the thread"), Source(_outputs, "the output of a run on a thread", each=True)
add(
    suite,
    Played("connect.threads.create", created),
    Row("connect.threads.thread-id", _MADE, "thread_id", str, filled=True),
    Row("connect.threads.initial-idle", _MADE, "status", str, equals="idle"),
    Played("connect.threads.run-post connect.threads.supported", used),
    Row("connect.threads.run-returns-pending", Source(_runs, "a new run", each=True), "status", str, equals="pending"),
    Row("connect.threads.run-wait", _OUTPUT, "type", equals="result"),
    Row("connect.threads.run-wait", _OUTPUT, fits=_has_result),
    Row("connect.threads.idle-after-runs", Source(_after, "a thread whose runs are done"), "status", equals="idle"),
    Row(
        "connect.threads.state-kept connect.threads.current-state connect.threads.state-accessible",
        Source(_with_state, "the thread after its runs"), "values",
    ),
)  # fmt: skip


@suite.check("connect.threads.get")
async def a_thread_is_retrieved_by_its_id(d: Driver) -> None:
    thread = member(await created(d), "thread_id", str, "the thread")
    told = member(await got(d, thread), "thread_id", str, f"the answer to GET /threads/{thread}")
    expect(told == thread, f"GET /threads/{thread} gives the thread {told}")


@suite.check("connect.openapi.if-exists")
async def a_thread_that_is_there_is_a_conflict_or_given(d: Driver) -> None:
    await threaded(d)
    wanted = str(uuid.uuid4())
    thread = await fresh(d, thread_id=wanted)
    expect(thread == wanted, f"POST /threads with the thread_id {wanted} makes {thread}")
    for given in ({"thread_id": wanted}, {"thread_id": wanted, "if_exists": "raise"}):
        answer = await d.ask("POST", "/threads", given)
        expect(answer.status == 409, answered(f"POST /threads {shown(given)} of a thread that is there", answer))
    again = await fresh(d, thread_id=wanted, if_exists="do_nothing")
    expect(again == wanted, f"POST /threads with if_exists do_nothing gives {again}, not {wanted}")


@suite.check("connect.openapi.if-not-exists")
async def a_run_on_a_missing_thread_is_refused_or_makes_it(d: Driver) -> None:
    await threaded(d)
    await succeeded(d)
    wanted = str(uuid.uuid4())
    base = at("threads", wanted, "runs")
    answer = await d.ask("POST", base, await d.request())
    expect(400 <= answer.status < 500, answered(f"POST {base} of a thread that is not there", answer))
    gone = await d.ask("GET", at("threads", wanted))
    expect(gone.status == 404, answered(f"GET /threads/{wanted} after a run on it was refused", gone))
    output_of(await d.told("POST", f"{base}/wait", await d.request(if_not_exists="create")), f"POST {base}/wait")
    await got(d, wanted)


# -- runs on them ---------------------------------------------------------------------------------------------


@suite.check("connect.threads.run-has-thread")
async def a_run_on_a_thread_belongs_to_it(d: Driver) -> None:
    seen = await used(d)
    base = at("threads", seen.id, "runs")
    for run in seen.runs:
        told = run.get("thread_id")
        if told is None:  # as in the text, whose runs have none: then it is in the list of the thread
            found = [entry.get("run_id") for entry in await d.listed("GET", base)]
            expect(run["run_id"] in found, f"a run on the thread {seen.id} has no thread_id, and GET {base} lacks it")
        else:
            expect(told == seen.id, f"a run on the thread {seen.id} has the thread_id {shown(told)}")


@suite.check("connect.threads.get-optional")
async def runs_follow_each_other_without_the_thread_being_retrieved(d: Driver) -> None:
    await used(d)
    base = at("threads", await fresh(d), "runs")
    for _ in range(2):
        output = output_of(await d.told("POST", f"{base}/wait", await d.request()), f"POST {base}/wait")
        expect(output.get("type") == "result", f"the output of a run on a thread is {shown(output)}")


@suite.check("connect.threads.run-history")
async def the_runs_of_a_thread_are_listed(d: Driver) -> None:
    seen = await used(d)
    base = at("threads", seen.id, "runs")
    found = [entry.get("run_id") for entry in await d.listed("GET", base)]
    for run in seen.runs:
        expect(run["run_id"] in found, f"GET {base} does not list the run {run['run_id']}")
    one = await d.listed("GET", f"{base}?limit=1")
    expect(len(one) == 1, f"GET {base}?limit=1 lists {len(one)} runs")


@suite.check("connect.threads.different-agents")
async def agents_with_the_same_state_share_a_thread(d: Driver) -> None:
    schema = await state(d)
    for role in ("asking", "slow", "failing"):
        if getattr(d.subject.roles, role) is None or (await d.specs(role)).get("thread_state") != schema:
            continue
        base = at("threads", (await used(d)).id, "runs")
        answer = await d.ask("POST", base, await d.request(role))
        expect(answer.status == 200, answered(f"POST {base} of another agent with the same thread state", answer))
        await d.stop(member(answer.json(), "run_id", str, f"the answer to POST {base}"), base)
        return
    applies(False, "no other agent that was named has the same thread state")


@suite.check("connect.threads.flow")
async def a_thread_is_made_run_on_twice_and_retrieved(d: Driver) -> None:
    seen = await used(d)
    told = [output.get("type") for output in seen.outputs]
    expect(told == ["result", "result"], f"the outputs of two runs on a thread are {shown(seen.outputs)}")
    if (await d.specs()).get("thread_state") is not None:
        member(seen.after, "values", object, "the thread after its runs")


# -- their state ----------------------------------------------------------------------------------------------


@suite.check("connect.threads.values")
async def the_values_of_a_thread_are_what_the_descriptor_says(d: Driver) -> None:
    schema = await state(d)
    for thread in ((await used(d)).between, (await used(d)).after):
        fits(member(thread, "values", object, "the thread after a run"), schema, "the state of the thread")


@suite.check("connect.threads.state-inaccessible")
async def a_state_that_no_descriptor_defines_is_not_shown(d: Driver) -> None:
    await threaded(d)
    applies((await d.specs()).get("thread_state") is None, "the descriptor defines a thread state")
    after = (await used(d)).after
    expect(not _shows(after), f"the descriptor defines no thread state, and the thread shows {shown(after)}")


@suite.check("connect.specs.thread-state")
async def a_state_that_is_shown_is_defined_by_the_descriptor(d: Driver) -> None:
    await threaded(d)
    after = (await used(d)).after
    applies(_shows(after), "the thread shows no state")
    schema = (await d.specs()).get("thread_state")
    expect(isinstance(schema, dict), f"the thread shows {shown(after)}, and specs.thread_state is {shown(schema)}")


@suite.check("connect.threads.state-reused")
async def a_later_run_gets_the_state_of_earlier_ones(d: Driver) -> None:
    """Seen where the same input leaves another state the second time; an agent whose state does not tell, does not."""
    await state(d)
    seen = await used(d)
    differs = seen.between.get("values") != seen.after.get("values")
    again = seen.outputs[0] != seen.outputs[1]
    applies(differs or again, "the same input twice leaves the same state: nothing tells whether it was used")


@suite.check("connect.threads.state-history")
async def the_states_of_a_thread_are_listed(d: Driver) -> None:
    found = await history(d)
    expect(found, "the history of a thread is empty after two runs")
    values = [member(entry, "values", object, "a state of the history") for entry in found]
    after = (await used(d)).after.get("values")
    expect(after in values, f"the state of the thread is {shown(after)}, and its history has {shown(values)}")


@suite.check("connect.openapi.thread-history")
async def a_history_has_a_limit_and_a_beginning(d: Driver) -> None:
    found = await history(d)
    expect(found, "the history of a thread is empty after two runs")
    path = at("threads", (await used(d)).id, "history")
    one = await d.listed("GET", f"{path}?limit=1")
    expect(len(one) == 1, f"GET {path}?limit=1 lists {len(one)} states")
    ids = [member(entry, "checkpoint.checkpoint_id", str, "a state of the history") for entry in found]
    expect(len(set(ids)) == len(ids), f"a checkpoint_id is in the history twice: {shown(ids)}")
    answer = await d.ask("GET", f"{path}?before={at(ids[0])[1:]}")
    if answer.status == 200:
        listed = member(answer.json(), "", list, f"the answer to GET {path}?before=…")
        same = [
            entry for entry in listed if isinstance(entry, dict) and entry.get("checkpoint") == found[0]["checkpoint"]
        ]
        expect(not same, f"GET {path}?before={ids[0]} lists that checkpoint itself")
    else:
        expect(answer.status == 422, answered(f"GET {path}?before={ids[0]}", answer))

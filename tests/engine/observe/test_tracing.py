"""Traces: spans for programs that have set up OpenTelemetry, and for all others the context as it came."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import interlingua as il
from interlingua.engine.handler.mounted_run import MOUNTED_FROM, MountedRun
from interlingua.model.team import carried_scope
from interlingua.model.team.authority import Limits
from interlingua.model.team.carried_scope import CarriedScope
from tests.kit.engines import PATIENT, QUICK, crash, engine, finish, submit
from tests.kit.spans import spans
from tests.kit.traces import ID, TRACE, check_sent_on

__all__ = ["spans"]


@il.agent
async def child(text: str) -> str:
    return text


@il.agent
async def parent(ctx: il.Context[None, None]) -> str:
    return str(await ctx.call(child, text="x"))


@il.agent(name="sends")
async def sends(ctx: il.Context[None, None]) -> dict[str, Any]:
    """Stands for a remote agent: gives back what would be sent to it."""
    return dict(MountedRun(ctx).onward())


sends.card.metadata[MOUNTED_FROM] = "nowhere"


@il.agent
async def calls(ctx: il.Context[None, None]) -> dict[str, Any]:
    """Calls the one that stands for a remote agent."""
    return dict(await ctx.call("sends"))


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = [span for span in spans.get_finished_spans() if span.name == f"invoke_agent {name}"]
    return found


def ids(span: ReadableSpan) -> tuple[str, str]:
    assert span.context is not None
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


async def test_a_tree_of_runs_is_one_trace_under_the_callers(store: Path, spans: InMemorySpanExporter) -> None:
    async with engine(store, parent, child, settings=PATIENT) as eng:
        run = await finish(eng, "parent", trace=TRACE)
        assert run.output == {"text": "x"}
    above, below = named(spans, "parent"), named(spans, "child")
    assert {ids(above)[0], ids(below)[0]} == {ID}
    assert above.parent is not None
    assert below.parent is not None
    assert f"{above.parent.span_id:016x}" == TRACE["traceparent"].split("-")[2]
    assert f"{below.parent.span_id:016x}" == ids(above)[1]


async def test_the_remote_side_goes_on_under_the_span_of_the_mounted_run(
    store: Path, spans: InMemorySpanExporter
) -> None:
    async with engine(store, sends, calls, settings=PATIENT) as eng:
        run = await finish(eng, "calls", trace=TRACE)
        assert run.output is not None, run.error
        check_sent_on(run.output)
    above, client = named(spans, "calls"), named(spans, "sends")
    assert run.output["traceparent"] == f"00-{ID}-{ids(client)[1]}-01"
    assert client.parent is not None
    assert f"{client.parent.span_id:016x}" == ids(above)[1]
    assert (above.kind, client.kind) == (trace.SpanKind.INTERNAL, trace.SpanKind.CLIENT)


async def test_without_a_callers_trace_one_begins_with_the_first_run(store: Path, spans: InMemorySpanExporter) -> None:
    async with engine(store, sends, calls, settings=PATIENT) as eng:
        run = await finish(eng, "calls", trace={"baggage": "user=eve"})
    assert run.output is not None, run.error
    begun, _ = ids(named(spans, "calls"))
    assert run.output["traceparent"].split("-")[1] == begun
    assert run.output["baggage"] == "interlingua-hops=1,user=eve"


async def test_what_a_program_puts_into_its_baggage_goes_on_but_the_count_of_hops_is_not_its_to_say(
    store: Path, spans: InMemorySpanExporter
) -> None:
    @il.agent
    async def adds(ctx: il.Context[None, None]) -> dict[str, Any]:
        assert baggage.get_baggage("user") == "eve"
        here = baggage.set_baggage("order", "a, b", baggage.set_baggage("user", "adam"))
        token = context.attach(baggage.set_baggage("interlingua-hops", "0", here))
        try:
            return dict(await ctx.call("sends"))
        finally:
            context.detach(token)

    came = "interlingua-hops=4,tenant=acme;p=1,user=eve"
    async with engine(store, sends, adds) as eng:
        run = await finish(eng, "adds", trace={**TRACE, "baggage": came})
    assert run.output is not None, run.error
    assert run.output["baggage"] == "interlingua-hops=5,user=adam,order=a%2C%20b,tenant=acme;p=1"


async def test_a_program_does_not_widen_the_scope_of_a_call_by_its_baggage(
    store: Path, spans: InMemorySpanExporter
) -> None:
    narrow, wide = (carried_scope.write(CarriedScope(limits=Limits(runs=runs))) for runs in (1, 100))

    @il.agent
    async def widens(ctx: il.Context[None, None]) -> dict[str, Any]:
        token = context.attach(baggage.set_baggage("interlingua-scope", wide))
        try:
            return dict(await ctx.call("sends"))
        finally:
            context.detach(token)

    async with engine(store, sends, widens) as eng:
        run = await finish(eng, "widens", trace={**TRACE, "baggage": f"interlingua-scope={narrow}"})
    assert run.output is not None, run.error
    assert carried_scope.read(run.output) == CarriedScope(limits=Limits(runs=1))


def span_of(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = [span for span in spans.get_finished_spans() if span.name == name]
    return found


async def test_the_time_in_the_queue_is_a_span_beside_that_of_the_agent(
    store: Path, spans: InMemorySpanExporter
) -> None:
    async with engine(store, settings=QUICK) as eng, engine(store, child) as other:
        assert other.running
        run = await finish(eng, "child", {"text": "x"}, trace=TRACE, delay=0.05)
    queued, entry = span_of(spans, "queued child"), named(spans, "child")
    assert {ids(queued)[0], ids(entry)[0]} == {ID}
    assert queued.parent == entry.parent
    assert queued.start_time == (run.created_at + 50_000) * 1000
    assert queued.start_time is not None
    assert queued.end_time is not None
    assert entry.start_time is not None
    assert queued.start_time < queued.end_time <= entry.start_time
    assert queued.attributes is not None
    assert queued.attributes["interlingua.run.id"] == run.id


async def test_a_takeover_is_a_span_from_the_last_sign_of_the_worker_that_died(
    store: Path, spans: InMemorySpanExporter
) -> None:
    entered, entries = asyncio.Event(), 0

    @il.agent
    async def stays(ctx: il.Context[None, None]) -> str:
        nonlocal entries
        entries += 1
        await ctx.thought("here")
        if entries == 1:
            entered.set()
            await asyncio.Event().wait()
        return "done"

    first = engine(store, stays)
    await first.start()
    run = await submit(first, "stays", trace=TRACE)
    await entered.wait()
    live = first.core.worker.log_of(run.id)
    assert live is not None
    await live.flush()
    last = [event async for event in first.runs.events(run.id, follow=False)][-1]
    await crash(first)
    async with engine(store, stays) as second:
        assert (await second.runs.wait(run.id, timeout=20)).output == {"text": "done"}
    taken = span_of(spans, "taken_over stays")
    assert ids(taken)[0] == ID
    assert taken.start_time == last.time * 1000
    assert taken.attributes is not None
    assert taken.attributes["interlingua.worker"] == second.core.worker.id
    queued = [span for span in spans.get_finished_spans() if span.name == "queued stays"]
    assert all((span.attributes or {})["interlingua.worker"] != second.core.worker.id for span in queued)


async def test_a_call_that_went_through_too_many_mounts_fails_for_good(store: Path) -> None:
    settings = msgspec.structs.replace(QUICK, max_hops=3)
    async with engine(store, sends, calls, settings=settings) as eng:
        for hops in (None, 2):
            came = {} if hops is None else {"baggage": f"interlingua-hops={hops}"}
            run = await finish(eng, "sends", trace=came)
            assert run.output is not None, run.error
            assert run.output["baggage"] == f"interlingua-hops={(hops or 0) + 1}"
        run = await finish(eng, "sends", trace={"baggage": "interlingua-hops=3"})
        assert run.status is il.Status.FAILED
        assert run.error is not None
        assert (run.error.code, run.error.transient) == ("too_many_hops", False)
        assert "max_hops is 3" in run.error.message
        through = await finish(eng, "calls", trace={"baggage": "interlingua-hops=3"})
        assert through.error is not None
        assert through.error.code == "child_failed"
        assert through.error.details["error"]["code"] == "too_many_hops"


PLAIN = """
import asyncio, json, sys
import interlingua as il
from interlingua.engine.handler.mounted_run import MountedRun

@il.agent
async def sends(ctx: il.Context) -> dict[str, str]:
    return dict(MountedRun(ctx).onward())

@il.agent
async def calls(ctx: il.Context) -> dict[str, str]:
    return await ctx.call("sends")

async def main() -> None:
    async with il.Engine(sys.argv[1], agents=[sends, calls]) as engine:
        for trace in (json.loads(sys.argv[2]), None):
            run = await engine.runs.submit(il.RunRequest("calls", trace=trace))
            print(json.dumps((await engine.runs.wait(run.id)).output))
    assert not any(name.startswith("opentelemetry") for name in sys.modules)

asyncio.run(main())
"""


def test_without_opentelemetry_the_trace_goes_on_as_it_came_and_nothing_of_it_is_loaded(store: Path) -> None:
    command = [sys.executable, "-c", PLAIN, str(store), msgspec.json.encode(TRACE).decode()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    with_trace, without = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    assert with_trace == {**TRACE, "baggage": f"interlingua-hops=1,{TRACE['baggage']}"}
    assert without == {"baggage": "interlingua-hops=1"}

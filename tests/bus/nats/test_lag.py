"""How late the bus was, and what it lost: counted by agent and by caller, and told in the trace of the run."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import interlingua as il
from interlingua.model.run import Caller
from interlingua.server.metrics import render
from tests.kit.postgres import forget, fresh
from tests.kit.spans import spans
from tests.kit.traces import ID, TRACE

from .agents_process import AGENTS
from .test_engines import QUICK, SOON, Deaf, engine, working

__all__ = ["spans"]

LAPTOP, PHONE = Caller("key:1", "laptop"), Caller("key:2", "phone")


async def talked(eng: il.Engine, caller: Caller, n: int = 100) -> str:
    """A run of another process, read to its end."""
    request = il.RunRequest("talk", input={"n": n, "pause": 0.001}, caller=caller, trace=TRACE)
    run = (await eng.runs.submit(request)).id
    async for event in eng.runs.events(run):
        last = event.kind
    assert last == "finished"
    return run


def numbers(text: str, metric: str) -> dict[str, int]:
    """By the value of the first label."""
    found = re.findall(rf'^interlingua_{metric}\{{[a-z]+="([^"]+)".*\}} (\d+)$', text, re.MULTILINE)
    return {name: int(count) for name, count in found}


async def test_how_late_events_came_is_counted_by_agent_and_by_caller(postgres: str, nats_url: str) -> None:
    store = fresh(postgres)
    async with working(store, nats_url), engine(store, nats_url) as eng, asyncio.timeout(3 * SOON):
        for caller, times in ((LAPTOP, 2), (PHONE, 1)):
            for _ in range(times):
                await talked(eng, caller)
        told = await render(eng)
        came = numbers(told, "bus_event_seconds_count")
        by = numbers(told, "caller_bus_event_seconds_count")
        assert set(came) == {"talk"}
        assert set(by) == {"laptop", "phone"}
        assert by["laptop"] > by["phone"] > 10
        assert sum(by.values()) == came["talk"]
        late = eng.core.worker.meters.agents.of("talk").delivery
        assert 0 < late.total < SOON * late.count
        assert "bus_reads_from_store_total{" not in told
    forget(store)


async def test_a_reader_that_goes_on_from_a_cursor_counts_for_the_same_caller(store: Path, nats_url: str) -> None:
    async with working(store, nats_url), engine(store, nats_url) as eng, asyncio.timeout(3 * SOON):
        request = il.RunRequest("talk", input={"n": 100_000, "pause": 0.001}, caller=LAPTOP)
        run = (await eng.runs.submit(request)).id
        callers = eng.core.worker.meters.callers
        cursor = 0
        for _ in range(2):
            before = callers.of("laptop").delivery.count
            async for event in eng.runs.events(run, after=cursor):
                cursor = event.seq
                if callers.of("laptop").delivery.count > before:
                    break
        assert cursor > 1
        assert set(callers.by_name) == {"laptop"}
        await eng.runs.cancel(run)
        await eng.runs.wait(run)


async def test_what_the_bus_lost_is_counted_by_agent_and_by_caller(store: Path, nats_url: str) -> None:
    async with (
        engine(store, Deaf(nats_url), *AGENTS, settings=QUICK),
        engine(store, Deaf(nats_url), settings=QUICK) as eng,
        asyncio.timeout(3 * SOON),
    ):
        await talked(eng, PHONE, 200)
        told = await render(eng)
        assert 'interlingua_bus_reads_from_store_total{agent="talk",why="silence"}' in told
        found = numbers(told, "bus_reads_from_store_total")
        assert found["talk"] > 0
        assert numbers(told, "caller_bus_reads_from_store_total") == {"phone": found["talk"]}
        assert numbers(told, "bus_event_seconds_count") == {}


async def test_the_trace_of_a_run_tells_how_late_its_reader_was_told(
    store: Path, nats_url: str, spans: InMemorySpanExporter
) -> None:
    async with working(store, nats_url), engine(store, nats_url) as eng, asyncio.timeout(SOON):
        run = await talked(eng, LAPTOP)
        (span,) = [span for span in spans.get_finished_spans() if span.name == "followed talk"]
        about = dict(span.attributes or {})
        longest, mean = about.pop("interlingua.bus.lag.max"), about.pop("interlingua.bus.lag.mean")
        assert isinstance(longest, float)
        assert isinstance(mean, float)
        assert 0 < mean <= longest < SOON
        assert about.pop("interlingua.bus.messages") == eng.core.worker.meters.agents.of("talk").delivery.count
        assert about == {
            "gen_ai.agent.name": "talk", "interlingua.run.id": run, "interlingua.caller": "key:1",
            "interlingua.bus.reads_from_store": 0,
        }  # fmt: skip
        assert span.context is not None
        assert span.parent is not None
        assert f"{span.context.trace_id:032x}" == ID
        assert f"{span.parent.span_id:016x}" == TRACE["traceparent"].split("-")[2]
        assert span.start_time is not None
        assert span.end_time is not None
        assert 0.05e9 < span.end_time - span.start_time < SOON * 1e9

"""Spans, for programs that have set up OpenTelemetry."""

from __future__ import annotations

from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import interlingua as il

from .common import engine, finish


@il.agent
async def child(text: str) -> str:
    return text


@il.agent
async def parent(ctx: il.Context[None, None]) -> str:
    return str(await ctx.call(child, text="x"))


async def test_a_tree_of_runs_is_one_trace_under_the_callers(store: Path) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    async with engine(store, parent, child) as eng:
        run = await finish(eng, "parent", trace={"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"})
        assert run.output == {"text": "x"}
    spans = {span.name for span in exporter.get_finished_spans()}
    assert {"invoke_agent parent", "invoke_agent child"} <= spans
    assert {f"{span.context.trace_id:032x}" for span in exporter.get_finished_spans() if span.context} == {trace_id}

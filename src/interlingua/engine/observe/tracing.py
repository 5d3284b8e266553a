"""OpenTelemetry spans, for programs that use OpenTelemetry. In others nothing is imported, and nothing costs: what a
run was submitted with goes on as it came.

Each entry of an agent is a span `invoke_agent NAME`, under the trace that the run was submitted with. That of a mounted
agent is a client's: the remote side goes on under it. Beside it are the times in which nothing ran: `queued NAME`, from
when the run could start, and `taken_over NAME`, from the last sign of a worker that died. Where a process reads a run
that is in another, there is `followed NAME`: how late it was told.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from ...model import trace_context
from ...model.team.carried_scope import SCOPE

if TYPE_CHECKING:
    from ...store.rows import RunRow
    from ..cluster.remote_log import About


_NOT_THE_PROGRAMS = (trace_context.HOPS, SCOPE)  # how far a call has come, and what may be done in it
_WAITED = 1000  # microseconds; a run that starts where it is submitted waits for less


class Before(NamedTuple):
    """What was before an entry. All in microseconds since 1970."""

    entered: int
    due: int | None = None  # when it could have started; None: it had started before
    silent: int | None = None  # since when nothing came from its worker, which died; None: it did not


class Lag:
    """How late what a run elsewhere committed was here, over one time of following it."""

    __slots__ = ("count", "from_store", "longest", "since", "total", "until")

    def __init__(self, since: int) -> None:
        self.since = self.until = since  # microseconds since 1970
        self.count = 0  # messages
        self.total = self.longest = 0.0  # seconds
        self.from_store = 0  # times that there was more in the store than had been told

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        self.longest = max(self.longest, seconds)


def wanted() -> bool:
    return "opentelemetry.sdk.trace" in sys.modules


@contextlib.contextmanager
def invoke_agent(
    row: RunRow, carried: trace_context.Carrier | None, before: Before, *, remote: bool
) -> Iterator[None]:  # fmt: skip
    from opentelemetry import context, trace
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    # W3C's, whatever the program has set for its own calls: that is what the doors take. A baggage without a parent
    # leaves the span that is under way here as it is.
    parent = TraceContextTextMapPropagator().extract(carried or {}, context.get_current())
    token = context.attach(W3CBaggagePropagator().extract(carried or {}, parent))
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": row.agent,
        "interlingua.run.id": row.id,
        "interlingua.caller": row.caller,
    }
    kind = trace.SpanKind.CLIENT if remote else trace.SpanKind.INTERNAL
    tracer = trace.get_tracer("interlingua")
    common = {name: value for name, value in attributes.items() if name != "gen_ai.operation.name"}
    waits = [("queued", before.due)] if before.silent is None else [("taken_over", before.silent)]
    try:
        for what, since in waits:
            if since is not None and before.entered - since >= _WAITED:
                span = tracer.start_span(f"{what} {row.agent}", attributes=common, start_time=since * 1000)
                span.set_attribute("interlingua.worker", row.worker or "")
                span.end(before.entered * 1000)
        with tracer.start_as_current_span(f"invoke_agent {row.agent}", kind=kind, attributes=attributes):
            yield
    finally:
        context.detach(token)


def followed(run: str, about: About, lag: Lag) -> None:
    """A run elsewhere was read here, and is not any more."""
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not lag.count and not lag.from_store:
        return
    attributes: dict[str, str | int | float] = {
        "gen_ai.agent.name": about.agent,
        "interlingua.run.id": run,
        "interlingua.caller": about.caller_id,
        "interlingua.bus.messages": lag.count,
        "interlingua.bus.reads_from_store": lag.from_store,
    }
    if lag.count:
        attributes["interlingua.bus.lag.mean"] = lag.total / lag.count
        attributes["interlingua.bus.lag.max"] = lag.longest
    # Of the run's trace, whoever reads: under what is current here would be the reader's own.
    parent = TraceContextTextMapPropagator().extract(about.trace or {}, context.Context())
    tracer = trace.get_tracer("interlingua")
    span = tracer.start_span(f"followed {about.agent}", parent, attributes=attributes, start_time=lag.since * 1000)
    span.end(lag.until * 1000)


def current(carried: trace_context.Carrier | None) -> trace_context.Carrier | None:
    """The trace that is under way here, to be carried on: the current span in place of the one that came, and the
    baggage with what the program has added. Without OpenTelemetry it is what came."""
    if not wanted():
        return carried
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carried = carried or {}
    found: trace_context.Carrier = {}
    TraceContextTextMapPropagator().inject(found)
    if not found:
        return carried or None
    baggage = _baggage(carried.get("baggage", ""))
    return {**found, "baggage": baggage} if baggage else found


def _baggage(came: str) -> str:
    """What came stays as it was written: OpenTelemetry drops properties of members."""
    from opentelemetry import baggage, context
    from opentelemetry.baggage.propagation import W3CBaggagePropagator

    here = baggage.get_all()
    there = baggage.get_all(W3CBaggagePropagator().extract({"baggage": came}, context.Context()))
    added = {
        quote(name, safe=""): quote(str(value), safe="")
        for name, value in here.items()
        if there.get(name) != value and name not in _NOT_THE_PROGRAMS
    }
    return trace_context.with_members(came, added) if added else came

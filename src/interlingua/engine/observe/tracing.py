"""OpenTelemetry spans, for programs that use OpenTelemetry. Other programs import nothing and pass on the received
trace context unchanged.

Each execution of an agent is a span `invoke_agent NAME` in the trace of the request. For a mounted agent it is a client
span, under which the remote side continues. Further spans cover idle times: `queued NAME`, from when the run could
start, and `taken_over NAME`, from the last sign of a dead worker. `followed NAME` covers the reading of a run that
executes in another process, with its lag.
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
    from .run_metrics import RunLabels


_OWN_MEMBERS = (trace_context.HOPS, SCOPE)  # members of the baggage that the program must not set
_SHORTEST_WAIT = 1000  # microseconds; a run that starts where it is submitted waits for less


class EntryTimes(NamedTuple):
    """The times before an execution, in microseconds since 1970."""

    entered: int
    due: int | None = None  # when the run could have started; None: it had started before
    silent: int | None = None  # the last sign of its dead worker; None: the worker did not die


class Lag:
    """The lag of the events of a remote run, from their commit to their arrival, while a process follows it."""

    __slots__ = ("count", "from_store", "longest", "since", "total", "until")

    def __init__(self, since: int) -> None:
        self.since = self.until = since  # microseconds since 1970
        self.count = 0  # messages
        self.total = self.longest = 0.0  # seconds
        self.from_store = 0  # number of times that the store had undelivered events

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        self.longest = max(self.longest, seconds)


def enabled() -> bool:
    return "opentelemetry.sdk.trace" in sys.modules


@contextlib.contextmanager
def invoke_agent(
    row: RunRow, carried: trace_context.Carrier | None, before: EntryTimes, *, remote: bool
) -> Iterator[None]:  # fmt: skip
    from opentelemetry import context, trace
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    # Always W3C, as the doors do, whatever propagator the program uses. A baggage without a parent keeps the current
    # span as the parent.
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
            if since is not None and before.entered - since >= _SHORTEST_WAIT:
                span = tracer.start_span(f"{what} {row.agent}", attributes=common, start_time=since * 1000)
                span.set_attribute("interlingua.worker", row.worker or "")
                span.end(before.entered * 1000)
        with tracer.start_as_current_span(f"invoke_agent {row.agent}", kind=kind, attributes=attributes):
            yield
    finally:
        context.detach(token)


def followed(run: str, about: RunLabels, lag: Lag) -> None:
    """Records the span of a remote run whose last reader left."""
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
    # The span belongs to the run's trace; the current span is that of the reader.
    parent = TraceContextTextMapPropagator().extract(about.trace or {}, context.Context())
    tracer = trace.get_tracer("interlingua")
    span = tracer.start_span(f"followed {about.agent}", parent, attributes=attributes, start_time=lag.since * 1000)
    span.end(lag.until * 1000)


def current(carried: trace_context.Carrier | None) -> trace_context.Carrier | None:
    """The trace context for outgoing calls: the current span as the parent, and the baggage with the program's members.

    Without OpenTelemetry it is the received one.
    """
    if not enabled():
        return carried
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carried = carried or {}
    injected: trace_context.Carrier = {}
    TraceContextTextMapPropagator().inject(injected)
    if not injected:
        return carried or None
    baggage = _baggage(carried.get("baggage", ""))
    return {**injected, "baggage": baggage} if baggage else injected


def _baggage(received: str) -> str:
    """Adds the program's members to a received baggage, which stays as written: OpenTelemetry drops properties."""
    from opentelemetry import baggage, context
    from opentelemetry.baggage.propagation import W3CBaggagePropagator

    current_members = baggage.get_all()
    received_members = baggage.get_all(W3CBaggagePropagator().extract({"baggage": received}, context.Context()))
    added = {
        quote(name, safe=""): quote(str(value), safe="")
        for name, value in current_members.items()
        if received_members.get(name) != value and name not in _OWN_MEMBERS
    }
    return trace_context.with_members(received, added) if added else received

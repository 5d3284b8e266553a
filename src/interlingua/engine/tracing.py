"""OpenTelemetry spans, for programs that use OpenTelemetry. In others nothing is imported, and nothing costs: what a
run was submitted with goes on as it came.

Each entry of an agent is a span `invoke_agent NAME`, under the trace that the run was submitted with. That of a mounted
agent is a client's: the remote side goes on under it. Beside it are the times in which nothing ran: `queued NAME`, from
when the run could start, and `taken_over NAME`, from the last sign of a worker that died.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from ..model import carrier

if TYPE_CHECKING:
    from ..store.base import RunRow


_WAITED = 1000  # microseconds; a run that starts where it is submitted waits for less


class Before(NamedTuple):
    """What was before an entry. All in microseconds since 1970."""

    entered: int
    due: int | None = None  # when it could have started; None: it had started before
    silent: int | None = None  # since when nothing came from its worker, which died; None: it did not


def wanted() -> bool:
    return "opentelemetry.sdk.trace" in sys.modules


@contextlib.contextmanager
def invoke_agent(
    row: RunRow, carried: carrier.Carrier | None, before: Before, *, remote: bool
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


def current(carried: carrier.Carrier | None) -> carrier.Carrier | None:
    """The trace that is under way here, to be carried on: the current span in place of the one that came, and the
    baggage with what the program has added. Without OpenTelemetry it is what came."""
    if not wanted():
        return carried
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carried = carried or {}
    found: carrier.Carrier = {}
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
        if there.get(name) != value and name != carrier.HOPS  # how far a call has come is not the program's to say
    }
    return carrier.with_members(came, added) if added else came

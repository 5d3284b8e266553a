"""OpenTelemetry spans, for programs that use OpenTelemetry. In others nothing is imported, and nothing costs.

Each entry of an agent is a span `invoke_agent NAME`, under the trace that the run was submitted with.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


def wanted() -> bool:
    return "opentelemetry.sdk.trace" in sys.modules


@contextlib.contextmanager
def invoke_agent(name: str, run: str, caller: str, trace_context: dict[str, str] | None) -> Iterator[None]:
    from opentelemetry import propagate, trace

    parent: Any = propagate.extract(trace_context) if trace_context else None
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": name,
        "interlingua.run.id": run,
        "interlingua.caller": caller,
    }
    tracer = trace.get_tracer("interlingua")
    with tracer.start_as_current_span(f"invoke_agent {name}", context=parent, attributes=attributes):
        yield


def current() -> dict[str, str] | None:
    """The trace that is under way here, to be carried to a child run."""
    if not wanted():
        return None
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier or None

"""Checks servers of the Agent Connect Protocol, by its text and by the OpenAPI document 0.2.3.

If the two differ (the address of descriptors, `values` or `result`, how an interrupt names its type), a server may do
either. The checks are in a module per subject; the order of the imports is that of the report.
"""

from __future__ import annotations

# isort: off
from .checks import (
    agents, descriptors, runs, streaming, interrupts, threads, thread_changes, busy, callbacks, errors, configuring,
    unaddressed, control, operations,
)  # fmt: skip
from .driver import suite
# isort: on

__all__ = [
    "agents", "busy", "callbacks", "configuring", "control", "descriptors", "errors", "interrupts", "operations",
    "runs", "streaming", "suite", "thread_changes", "threads", "unaddressed",
]  # fmt: skip

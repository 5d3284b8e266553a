"""Holds the checks of the Agent Client Protocol: `suite` has all of them, in the order of the report.

Each module is a subject. Checks of all that was said come late, and those that end a process come last.
"""

from __future__ import annotations

from importlib import import_module

from .driver import suite

SUBJECTS = (
    "stdio", "batches", "batches_more", "odd_input", "opening", "prompts", "cancelling", "questions", "options",
    "sessions", "version2", "web", "guards", "transports", "process",
)  # fmt: skip

for _name in SUBJECTS:
    import_module(f"{__name__}.checks.{_name}")

__all__ = ["SUBJECTS", "suite"]

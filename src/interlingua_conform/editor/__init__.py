"""The checks of the Agent Client Protocol: `suite` has all of them, in the order in which they are told.

Each module is a subject. What is looked at over everything that was said comes late, and what ends a process last.
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

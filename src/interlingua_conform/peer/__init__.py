"""Checks nodes of the Agent Communication Protocol with acp:// links.

A node is given by the address of its HTTP API, by its acp:// link, or by a command that speaks over its pipes. The
address shows most: the checker asks the node to connect to a peer, and is that peer. The node should have no other
peers meanwhile, and nothing on it should matter: tasks, messages and peers that are gone are left behind.
"""

from __future__ import annotations

from importlib import import_module

from .suite import suite

# Checks that others depend on come first. Checks that disturb them (more peers, lost connections), and those that look
# at all answers, come last.
_SUBJECTS = (
    "card", "flags", "extensions", "sending", "envelope", "signing", "receiving", "tasks", "cancel", "events",
    "event_types", "lifecycle", "lists", "skills", "limits", "bindings", "peers", "strangers", "errors",
)  # fmt: skip
for _subject in _SUBJECTS:
    import_module(f"{__name__}.checks.{_subject}")

__all__ = ["suite"]

"""The part of CAP in the guided tour."""

from __future__ import annotations

import time
from typing import Any

from ..tour import Demo, Tour


def _notice(recipient: str, summary: str) -> dict[str, Any]:
    """Returns a notice of a task, under an id that is new also in a store that has seen the tour before."""
    return {
        "type": "delegation_notice", "task_id": f"T{time.time_ns() // 1_000_000}", "sender_id": "user",
        "recipient_id": recipient, "context_summary": summary,
    }  # fmt: skip


async def _hello(tour: Tour) -> None:
    taken = await tour.ask("POST", "/messages", _notice("echo", "hello CAP"))
    async for _, message in tour.events(f"/tasks/{taken['task_id']}/events"):
        if message.get("sender_id") == "echo" and message.get("recipient_id") == "user":
            tour.show_json({name: message[name] for name in ("type", "sender_id", "recipient_id", "content")})
            return


async def _delegate(tour: Tour, agent: str, task: str) -> str:
    taken = await tour.ask("POST", "/messages", _notice(agent, task))
    return str(taken["run_id"])


demo = Demo(
    title="CAP", about="Teams: tasks are delegated, and results come back as messages.", hello=_hello,
    delegate=_delegate,
)  # fmt: skip

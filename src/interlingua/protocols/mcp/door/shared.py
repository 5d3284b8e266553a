"""The parts that all connections of the door share."""

from __future__ import annotations

import asyncio
from typing import Protocol

from ....engine.engine import Engine
from ....runtime.job_group import JobGroup
from ..config import DoorSettings
from .request_state import RequestStates
from .unasked_runs import Unasked


class Listener(Protocol):
    """A client that is notified of changed lists."""

    def send_changed(self) -> None: ...

    def wake_subscriptions(self) -> list[asyncio.Task[object]]:
        """Wakes the subscriptions of the client, and returns the tasks that notify it."""
        ...


class Shared:
    def __init__(self, engine: Engine, settings: DoorSettings | None = None) -> None:
        self.engine = engine
        self.settings = settings or DoorSettings()
        self.states = RequestStates(engine)
        self.unasked = Unasked(engine)
        self.listeners: set[Listener] = set()
        self.stopping = False  # open streams end, but no run
        self.jobs = JobGroup("mcp")  # work that outlives its request
        engine.agents.listeners.append(self.agents_changed)

    def agents_changed(self) -> None:
        for listener in list(self.listeners):
            listener.send_changed()

    async def stop(self) -> None:
        """Ends all open streams, but no run, and notifies the subscribers."""
        self.stopping = True
        tasks = [task for listener in self.listeners for task in listener.wake_subscriptions()]
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)  # one that does not read is not waited for

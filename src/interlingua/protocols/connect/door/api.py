"""The door that every operation works with: an engine, and what the door keeps while it is open."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from starlette.requests import Request

from ....engine.engine import Engine
from ....model.card import AgentCard
from ....model.run import Run
from ....security.auth import Authenticator
from ....transports.http.body import read_json
from .. import translate
from ..config import DoorSettings
from .watchers import Watchers


class ConnectDoor:
    """An engine behind the door, and what the door keeps while it is open."""

    def __init__(self, engine: Engine, auth: Authenticator, settings: DoorSettings | None = None) -> None:
        self.engine = engine
        self.auth = auth
        self.settings = settings or DoorSettings()
        self.watchers = Watchers(engine, lambda: self.settings.disconnect_grace)
        self.listeners: set[asyncio.Timeout] = set()  # of requests that wait only for a question to close
        self.cards: dict[str, AgentCard] = {}  # by the protocol's id; filled when first needed
        engine.agents.listeners.append(self.cards.clear)

    async def read(self, request: Request, type_: type[Any], *, optional: bool = False) -> Any:
        """Reads the body of a request."""
        return await read_json(request, type_, self.settings, optional=optional)

    def callback_body(self, run: Run) -> dict[str, Any]:
        """Returns the body that is POSTed to a run's webhook."""
        return run_body(run)

    async def close(self) -> None:
        """Ends the waits for answered questions before the server stops, and keeps runs whose watchers are cut off."""
        self.watchers.stopping = True
        for until in self.listeners:  # their clients ask again, and the server need not wait for them
            with contextlib.suppress(RuntimeError):  # its time was over anyway
                until.reschedule(asyncio.get_running_loop().time())


def run_body(run: Run) -> dict[str, Any]:
    """Returns a run as the wire has it."""
    return translate.run(run, translate.agent_id_of(run.agent, run.version))

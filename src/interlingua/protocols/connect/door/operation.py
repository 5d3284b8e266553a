"""The base of all operations of the door: the engine, the settings, and the reading of bodies."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request

from ....engine.engine import Engine
from ....transports.http.body import HttpLimits, read_json


class ConnectSettings(msgspec.Struct, kw_only=True, frozen=True):
    limits: HttpLimits = HttpLimits()
    disconnect_grace: float = 2.0
    """Seconds in which a dropped stream can be taken up again before `on_disconnect: cancel` takes effect."""
    keep_alive: float = 15.0
    values_per_second: float = 20.0
    """At most so many whole values per second and stream: one per token would be quadratic."""


class Operations:
    """A group of operations. Each is a function of (request, caller); the door puts the groups together."""

    engine: Engine
    settings: ConnectSettings

    async def _read(self, request: Request, type_: type[Any], *, optional: bool = False) -> Any:
        return await read_json(request, type_, self.settings.limits, optional=optional)

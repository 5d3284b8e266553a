"""The door that every operation works with: the tasks of an engine, and the open streams."""

from __future__ import annotations

import msgspec

from ....doors.streams import Streams
from ....engine.engine import Engine
from ....model.run import Caller
from ....security.auth import ANONYMOUS, Authenticator
from ....transports.http.body import HttpLimits
from .inbound_messages import Desk


class CapSettings(msgspec.Struct, kw_only=True, frozen=True):
    limits: HttpLimits = HttpLimits()
    keep_alive: float = 15.0
    """Seconds after which a silent stream gets a comment."""
    max_streams: int = 1000
    """Streams that may be open at the same time; one caller leaves a tenth of them to others."""
    page: int = 100
    """The most tasks that one page holds."""


class CapDoor:
    def __init__(self, engine: Engine, auth: Authenticator, settings: CapSettings | None = None) -> None:
        self.engine = engine
        self.auth = auth
        self.settings = settings or CapSettings()
        self.desk = Desk(engine)
        self.book = self.desk.book
        self.streams = Streams(self.settings.max_streams)

    async def close(self) -> None:
        """Ends all streams when the server stops; they would stay open as long as their tasks."""
        self.streams.close()


def holder(caller: Caller) -> str | None:
    """Returns the name under which the streams of a caller are counted. Without keys, callers cannot be told apart."""
    return None if caller.id == ANONYMOUS.id else caller.id

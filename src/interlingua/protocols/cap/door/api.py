"""The door that every operation works with: the tasks of an engine, and the open streams."""

from __future__ import annotations

from ....doors.streams import Streams
from ....engine.engine import Engine
from ....security.auth import Authenticator
from ..config import DoorSettings
from .inbound_messages import Desk


class CapDoor:
    def __init__(self, engine: Engine, auth: Authenticator, settings: DoorSettings | None = None) -> None:
        self.engine = engine
        self.auth = auth
        self.settings = settings or DoorSettings()
        self.desk = Desk(engine)
        self.book = self.desk.book
        self.streams = Streams(self.settings.max_streams)

    async def close(self) -> None:
        """Ends all streams when the server stops; they would stay open as long as their tasks."""
        self.streams.close()

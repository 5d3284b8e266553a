"""Makes the door of the Agent Client Protocol: our agents inside every editor, in versions 1 and 2."""

from __future__ import annotations

from ....engine.engine import Engine
from ....model.card import AgentCard
from ....model.run import OWNER, Caller
from ....security.auth import Authenticator
from ....transports.channel import Channel
from ....transports.jsonrpc.connection import Trace
from ...base import Door
from ..config import DoorSettings
from .connection import EditorConnection
from .operations_sessions import OPERATIONS


class EditorDoor:
    """Serves clients over any channel."""

    def __init__(self, engine: Engine, settings: DoorSettings | None = None) -> None:
        self.engine = engine
        self.settings = settings or DoorSettings()
        self.connections: set[EditorConnection] = set()
        engine.agents.listeners.append(self._agents_changed)

    def _agents_changed(self) -> None:
        for connection in self.connections:
            connection.send_options()

    def connect(self, channel: Channel, caller: Caller = OWNER, trace: Trace | None = None) -> EditorConnection:
        """Returns a connection to one client, over any channel. `await connection.rpc.run()` serves it."""
        connection = EditorConnection(
            self.engine, OPERATIONS, channel, caller=caller, limits=self.settings, trace=trace
        )
        connection.left = self.connections.discard
        self.connections.add(connection)
        return connection


def door(engine: Engine, auth: Authenticator, settings: DoorSettings | None) -> Door:
    from .http import WebDoor  # pipes need no HTTP

    web = WebDoor(EditorDoor(engine, settings), auth)

    def hint(base_url: str, agent: AgentCard) -> str:
        name = f"#{agent.name}" if len(list(engine.agents)) > 1 else ""
        return f"interlingua run 'editor+{base_url}{name}' hello"

    return Door(routes=web.routes(), hint=hint, close_streams=web.close, affinity=web.sessions)

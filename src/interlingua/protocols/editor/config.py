"""The settings of the door and of a mount."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from msgspec import Meta

from ...doors.settings import RpcDoorSettings
from ...mounts.settings import MountSettings as CommonMountSettings
from ...setting_types import MIB, Count, CountOrNone, Seconds

Policy = Literal["deny", "ask", "allow"]


class DoorSettings(RpcDoorSettings, kw_only=True, frozen=True):
    idle: Annotated[
        Seconds,
        Meta(description="Seconds after which a connection is forgotten that has no stream and sends nothing."),
    ] = 300.0
    max_connections: Annotated[
        Count, Meta(description="Connections that may be open. One caller gets at most nine tenths of them.")
    ] = 1000
    max_streams: Annotated[Count, Meta(description="Sessions of one connection that may have a stream.")] = 1000
    keep_bytes: Annotated[
        CountOrNone,
        Meta(
            description="Bytes of sent messages of one stream that are kept for a reader that returns with "
            "Last-Event-ID."
        ),
    ] = MIB


class MountSettings(CommonMountSettings, kw_only=True, frozen=True):
    version: Annotated[int, Meta(ge=1, le=2, description="The version of the protocol to ask for: 1 or 2.")] = 1
    directory: Annotated[
        str | None,
        Meta(
            description="The directory in which agents work, and whose files they may use; by default the current "
            "directory."
        ),
    ] = None
    read: Annotated[Policy, Meta(description="May agents read files there? deny, ask or allow.")] = "allow"
    write: Annotated[Policy, Meta(description="May agents write files there? deny, ask or allow.")] = "ask"
    terminal: Annotated[Policy, Meta(description="May agents run commands there? deny, ask or allow.")] = "ask"
    auth: Annotated[
        str | None, Meta(description="The id of the login method to use, for agents that want a login.")
    ] = None
    start_timeout: Annotated[
        Seconds,
        Meta(description="Seconds for an agent to start and to agree on a version. Package runners download first."),
    ] = 60.0
    idle_timeout: Annotated[Seconds, Meta(description="Seconds without a run after which an agent is stopped.")] = 300.0
    answer_within: Annotated[Seconds, Meta(description="Seconds to wait for a permission; then it is rejected.")] = (
        3600.0
    )
    ask_again_within: Annotated[Seconds, Meta(description="Seconds for an agent that died to repeat its question.")] = (
        10.0
    )
    silence_after_answer: Annotated[
        Seconds,
        Meta(
            description="Seconds of silence after the answer to a prompt that end its turn: many agents send text "
            "after the answer."
        ),
    ] = 0.3
    quiet_after: Annotated[Seconds, Meta(description="Seconds of silence that end a resumed turn, in version 1.")] = 5.0

    @property
    def root(self) -> str:
        return os.path.realpath(self.directory or ".")

    def offers(self) -> dict[str, Any]:
        """Returns the abilities that an agent can use here, in version 1; version 2 has no files and terminals."""
        return {
            "fs": {"readTextFile": self.read != "deny", "writeTextFile": self.write != "deny"},
            "terminal": self.terminal != "deny",
            "auth": {"terminal": True},
            "elicitation": {"form": {}, "url": {}},
            "session": {"configOptions": {"boolean": {}}},
        }

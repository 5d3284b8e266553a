"""The settings of the door and of a mount."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ...doors.settings import RpcDoorSettings
from ...mounts.settings import MountSettings as CommonMountSettings
from ...setting_types import MIB, Count, CountOrNone, Seconds


class DoorSettings(RpcDoorSettings, kw_only=True, frozen=True):
    patience: Annotated[
        Seconds,
        Meta(
            description="Seconds after which the answer to a POST becomes an event stream. Only a stream can be "
            "resumed, and only a stream shows that its reader has gone."
        ),
    ] = 0.2
    idle: Annotated[
        Seconds,
        Meta(
            description="Seconds after which a session is forgotten that has no stream and sends nothing. Its runs go "
            "on."
        ),
    ] = 1800.0
    max_sessions: Annotated[
        Count, Meta(description="Sessions that may be open. One caller gets at most nine tenths of them.")
    ] = 1000
    max_requests: Annotated[Count, Meta(description="Requests without a session that may be open.")] = 10_000
    keep_bytes: Annotated[
        CountOrNone,
        Meta(
            description="Bytes of sent messages that are kept for a reader that returns with Last-Event-ID: of one "
            "stream, and of all ended streams of a session. A longer stream of an ended run is made again from its log."
        ),
    ] = 16 * MIB
    keep_streams: Annotated[
        CountOrNone, Meta(description="Ended streams of a session that can be read again: the newest of them.")
    ] = 8
    page: Annotated[
        Count, Meta(description="Agents of one page. Clients of the published SDKs never ask for a second page.")
    ] = 1000


class MountSettings(CommonMountSettings, kw_only=True, frozen=True):
    start_timeout: Annotated[
        Seconds,
        Meta(description="Seconds for a server to start and to agree on a revision. Package runners download first."),
    ] = 60.0
    idle_timeout: Annotated[
        Seconds, Meta(description="Seconds without a run after which the connection to a server is closed.")
    ] = 300.0
    answer_within: Annotated[
        Seconds, Meta(description="Seconds to wait for the answer to a server's question; then it is declined.")
    ] = 3600.0
    patience: Annotated[
        Seconds,
        Meta(
            description="Seconds for which a server that still knows a run is tried again, before the run fails as "
            "transient."
        ),
    ] = 60.0

"""The settings of the door and of a mount."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ...doors.settings import HttpDoorSettings
from ...mounts.settings import MountSettings as CommonMountSettings
from ...setting_types import Count


class DoorSettings(HttpDoorSettings, kw_only=True, frozen=True):
    max_streams: Annotated[
        Count, Meta(description="Streams that may be open at once. One caller gets at most nine tenths of them.")
    ] = 1000
    page: Annotated[Count, Meta(description="Tasks of one page, at most.")] = 100


class MountSettings(CommonMountSettings, kw_only=True, frozen=True):
    """The settings of a mount: its key alone."""

"""The settings of the door and of a mount."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ...doors.settings import HttpDoorSettings
from ...mounts.settings import MountSettings as CommonMountSettings
from ...setting_types import Interval, Seconds


class DoorSettings(HttpDoorSettings, kw_only=True, frozen=True):
    disconnect_grace: Annotated[
        Seconds,
        Meta(
            description="Seconds for the client of a dropped stream to return, before `on_disconnect: cancel` takes "
            "effect."
        ),
    ] = 2.0
    values_per_second: Annotated[
        Interval,
        Meta(description="Whole values that one stream sends in a second. One for each token would be quadratic."),
    ] = 20.0


class MountSettings(CommonMountSettings, kw_only=True, frozen=True):
    """The settings of a mount: its key alone."""

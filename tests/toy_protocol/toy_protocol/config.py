"""The settings of the door and of a mount."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from interlingua.doors.settings import DoorSettings as CommonDoorSettings
from interlingua.mounts.settings import MountSettings as CommonMountSettings


class DoorSettings(CommonDoorSettings, kw_only=True, frozen=True):
    greeting: Annotated[str, Meta(description="The first line of every answer; none where it is empty.")] = ""


class MountSettings(CommonMountSettings, kw_only=True, frozen=True):
    pass

"""Times and durations as people and programs read them."""

from __future__ import annotations

import datetime


def iso(time: int) -> str:
    """Microseconds since 1970 as ISO 8601."""
    moment = datetime.datetime.fromtimestamp(time // 1_000_000, datetime.UTC).replace(microsecond=time % 1_000_000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def ago(time: int, now: int) -> str:
    """Describes how long ago a time was, in words."""
    seconds = max(0, now - time) // 1_000_000
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {name} ago"
    return f"{seconds} s ago" if seconds else "just now"


def age(time: int, now: int) -> str:
    """Describes the age of something, in words."""
    return ago(time, now).removesuffix(" ago").replace("just now", "0 s")


def until(time: int, now: int) -> str:
    """Describes when something is due, in words."""
    if time <= now:
        return f"due {ago(time, now)}"
    seconds = -(-(time - now) // 1_000_000)
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"in {seconds // size} {name}"
    return f"in {seconds} s"


def span(microseconds: int) -> str:
    """A duration, as one would say it."""
    seconds = microseconds / 1e6
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"

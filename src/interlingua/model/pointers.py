"""JSON pointers (RFC 6901), which locate a mistake in a value."""

from __future__ import annotations

import re

# A path of msgspec: `$.field[0].other`. `[...]` stands for an unnamed member of a mapping.
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def escape(step: str) -> str:
    """Escapes a member's name for a pointer."""
    return step.replace("~", "~0").replace("/", "~1")


def unescape(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~")


def pointer(*steps: str | int) -> str:
    return "".join(f"/{escape(str(step))}" for step in steps)


def display(path: str) -> str:
    """Formats a pointer for messages: the empty one, of the value itself, in words."""
    return path or "the top level"


def truncate(path: str, limit: int) -> str:
    """Shortens a pointer to whole steps within `limit` characters."""
    return path if len(path) <= limit else path[: limit + 1].rpartition("/")[0]


def first_step(path: str) -> str:
    """The name of the root member that a pointer leads through."""
    return unescape(path.split("/")[1]) if path else ""


def split_message(message: str) -> tuple[str, str]:
    """Splits an error text of msgspec into the message and a pointer to the innermost value that it names."""
    text, separator, path = message.rpartition(" - at `")
    if not separator:
        return message, ""
    _, _, path = path.rstrip("`").rpartition("key in ")  # in a mapping with an invalid key
    steps, position = list[str | int](), path.find("$") + 1
    while (match := _STEP.match(path, position)) is not None:
        steps.append(match[1] if match[1] is not None else int(match[2]))
        position = match.end()
    return text, pointer(*steps)

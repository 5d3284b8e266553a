"""JSON pointers (RFC 6901): where in a value something is wrong."""

from __future__ import annotations

import re

# A path of msgspec: `$.field[0].other`. `[...]` stands for some member of a mapping, and it does not say which.
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def escaped(step: str) -> str:
    """A member's name, as it stands in a pointer."""
    return step.replace("~", "~0").replace("/", "~1")


def unescaped(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~")


def pointer(*steps: str | int) -> str:
    return "".join(f"/{escaped(str(step))}" for step in steps)


def shown(path: str) -> str:
    """A pointer as messages show it: the empty one, of the value itself, as words."""
    return path or "the top level"


def within(path: str, most: int) -> str:
    """The beginning of a pointer, as a pointer, where that is longer than `most` characters."""
    return path if len(path) <= most else path[: most + 1].rpartition("/")[0]


def first_step(path: str) -> str:
    """The name of the member at the root that a pointer leads through."""
    return unescaped(path.split("/")[1]) if path else ""


def split_message(message: str) -> tuple[str, str]:
    """The error text of msgspec, and its path as a pointer to the innermost value that it names."""
    text, found, path = message.rpartition(" - at `")
    if not found:
        return message, ""
    _, _, path = path.rstrip("`").rpartition("key in ")  # of a mapping, one of whose names is wrong
    steps, at = list[str | int](), path.find("$") + 1
    while (match := _STEP.match(path, at)) is not None:
        steps.append(match[1] if match[1] is not None else int(match[2]))
        at = match.end()
    return text, pointer(*steps)

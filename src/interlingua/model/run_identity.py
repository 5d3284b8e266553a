"""Identity of runs: the origin of the code that a run belongs to, and the queue in which workers find the run.

A source names the place of the code, relative to the project root, so that it is the same wherever the project lies:
`file:agents.py`, `module:shop.agents`, `mount:http://…#mailer`, `team:support`.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import msgspec

LONGEST_SOURCE = 300  # characters: queues are indexed, and an index takes no long values
_USERINFO = re.compile(r"(://)[^\s/?#@]+@")
_BREAKS = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]")


def check_project(name: str) -> str:
    """The name of a project, where it can be one. An engine without a project has an empty name."""
    if name != "".join(name.split()):
        raise ValueError(f"the project {name!r} has spaces in its name; write it without")
    return name


class Origin(msgspec.Struct, frozen=True, order=True):
    """The project and the source of an agent's code. Only code of the same origin goes on with a run."""

    project: str
    source: str

    def __str__(self) -> str:
        return f"{self.project} {self.source}"

    @classmethod
    def parse(cls, text: str) -> Origin:
        """Read the text form, `PROJECT SOURCE`. The project is empty for an engine without one."""
        project, space, source = text.partition(" ")
        if not space or not source:
            raise ValueError(f"{text!r} is no origin; an origin is PROJECT SOURCE, for instance: shop file:agents.py")
        return cls(project, source)


def queue(origin: Origin | str, agent: str, version: str) -> str:
    """The line in which workers find the runs of one agent: origin, name and version."""
    return f"{origin} {agent}@{version}"


def split_queue(text: str) -> tuple[str, str]:
    """The origin and the key (`agent@version`) of a queue."""
    origin, _, key = text.rpartition(" ")
    return origin, key


def is_mount(origin: str) -> bool:
    """Whether the code of an origin is somebody else's, behind a mount."""
    return origin.partition(" ")[2].startswith("mount:")


def file_source(path: str | Path, root: Path | None) -> str:
    """The source of an agents file; without a root, the file's name alone."""
    return _source("file", _relative(path, root))


def team_source(folder: str | Path, root: Path | None) -> str:
    """The source of a team, by its folder or its file."""
    return _source("team", _relative(folder, root))


def module_source(module: str) -> str:
    return _source("module", module)


def mount_source(target: str, agent: str) -> str:
    """The source of a mounted agent, by the name that it has at the other end. `target` must hold no secrets."""
    where = _USERINFO.sub(r"\1", target)
    return _source("mount", f"{where}#{agent}")


def _source(kind: str, place: str) -> str:
    # Names of files need not be text for a database.
    place = _BREAKS.sub("?", place.encode("utf-8", "backslashreplace").decode())
    if len(place) > LONGEST_SOURCE:
        place = f"{place[:LONGEST_SOURCE]}…{hashlib.sha256(place.encode()).hexdigest()[:16]}"
    return f"{kind}:{place}"


def _relative(path: str | Path, root: Path | None) -> str:
    named = Path(path).expanduser()
    # Of the folder alone: where a deploy links the file itself to another one, it keeps its name.
    place = named.resolve() if named.name in ("", "..") else named.parent.resolve() / named.name
    if root is None:
        return place.name
    try:
        found = Path(os.path.relpath(place, root.resolve())).as_posix()
        return found if found != "." else place.name
    except ValueError:  # on another drive
        return place.name

"""Identity of runs: the origin of the code that a run belongs to, and the queue in which workers find the run.

A source names the place of the code relative to the project root, so that it does not depend on where the project is:
`file:agents.py`, `module:shop.agents`, `mount:http://…#mailer`, `team:support`.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import msgspec

MAX_SOURCE = 300  # characters: queues are indexed, and index entries must be short
_USERINFO = re.compile(r"(://)[^\s/?#@]+@")
_BREAKS = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]")


def check_project(name: str) -> str:
    """Returns the name of a project if it is valid. An engine without a project has an empty name."""
    if name != "".join(name.split()):
        raise ValueError(f"the project {name!r} has spaces in its name; write it without")
    return name


class Origin(msgspec.Struct, frozen=True, order=True):
    """The project and the source of an agent's code. Only code of the same origin resumes a run."""

    project: str
    source: str

    def __str__(self) -> str:
        return f"{self.project} {self.source}"

    @classmethod
    def parse(cls, text: str) -> Origin:
        """Parses the text form, `PROJECT SOURCE`. The project is empty for an engine without one."""
        project, space, source = text.partition(" ")
        if not space or not source:
            raise ValueError(f"{text!r} is no origin; an origin is PROJECT SOURCE, for instance: shop file:agents.py")
        return cls(project, source)


def queue(origin: Origin | str, agent: str, version: str) -> str:
    """The queue in which workers find the runs of one agent: origin, name and version."""
    return f"{origin} {agent}@{version}"


def split_queue(text: str) -> tuple[str, str]:
    """Splits a queue into the origin and the agent's key (`agent@version`)."""
    origin, _, key = text.rpartition(" ")
    return origin, key


def is_mount(origin: str) -> bool:
    """True if the code of an origin is remote, behind a mount."""
    return origin.partition(" ")[2].startswith("mount:")


def file_source(path: str | Path, root: Path | None) -> str:
    """The source of an agents file; without a root, only the name of the file."""
    return _source("file", _relative(path, root))


def team_source(folder: str | Path, root: Path | None) -> str:
    """The source of a team, by its folder or its file."""
    return _source("team", _relative(folder, root))


def module_source(module: str) -> str:
    return _source("module", module)


def mount_source(target: str, agent: str) -> str:
    """The source of a mounted agent, by its name on the remote server. `target` must hold no secrets."""
    where = _USERINFO.sub(r"\1", target)
    return _source("mount", f"{where}#{agent}")


def _source(kind: str, place: str) -> str:
    # File names may hold bytes that a database does not accept as text.
    place = _BREAKS.sub("?", place.encode("utf-8", "backslashreplace").decode())
    if len(place) > MAX_SOURCE:
        place = f"{place[:MAX_SOURCE]}…{hashlib.sha256(place.encode()).hexdigest()[:16]}"
    return f"{kind}:{place}"


def _relative(path: str | Path, root: Path | None) -> str:
    named = Path(path).expanduser()
    # Resolve the folder alone: if a deploy links the file to another one, it keeps its name.
    place = named.resolve() if named.name in ("", "..") else named.parent.resolve() / named.name
    if root is None:
        return place.name
    try:
        relative = Path(os.path.relpath(place, root.resolve())).as_posix()
        return relative if relative != "." else place.name
    except ValueError:  # on another drive
        return place.name

"""Finds the installed protocols, under the entry point `interlingua.protocols`, and the commands of other packages.

Reads the files in which packages list their entry points. The standard library can do that too, and is used where
packages do not lie in folders; but it imports parsers for mail and archives, which would slow down every command.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Command, Protocol

GROUP = "interlingua.protocols"
COMMANDS = "interlingua.commands"

_ENTRY = re.compile(r"(?P<name>[^=#;\[\s][^=]*?)\s*=\s*(?P<object>[\w.]+(?:\s*:\s*[\w.]+)?)")


@cache
def protocols() -> tuple[Protocol, ...]:
    """Returns the protocols, the preferred one first. Looks for them once, because that opens a file of every installed
    package."""
    installed: list[Protocol] = [resolve_name(target) for target in entries(GROUP).values()]
    return tuple(sorted(installed, key=lambda protocol: (protocol.rank, protocol.name)))


def commands() -> list[Command]:
    """Returns the commands of protocols and of other packages (the entry point `interlingua.commands`), by name."""
    others: list[Command] = [resolve_name(target) for target in entries(COMMANDS).values()]
    return sorted([*others, *(one for protocol in protocols() for one in protocol.commands)], key=lambda one: one.name)


def entries(group: str) -> dict[str, str]:
    """Returns the object of each name of a group, as `module:object`."""
    if any(Path(path).is_file() for path in sys.path):  # an archive
        import importlib.metadata

        return {entry.name: entry.value for entry in importlib.metadata.entry_points(group=group)}
    objects: dict[str, str] = {}
    for text in _files():
        if f"[{group}]" in text:
            section = text.partition(f"[{group}]")[2].partition("\n[")[0]
            for line in section.splitlines():
                if entry := _ENTRY.match(line.strip()):
                    objects.setdefault(entry["name"], entry["object"].replace(" ", ""))
    return objects


def _files() -> Iterator[str]:
    """Yields the entry points file of every package. Of a package that is installed twice, it yields the file of the
    folder that Python searches first."""
    seen: set[str] = set()
    for folder in sys.path:
        try:
            paths = sorted(Path(folder).iterdir())
        except OSError:
            continue  # Python has folders in its path that are not there
        for info in paths:
            package = re.sub(r"[-_.]+", "_", info.stem.partition("-")[0]).lower()
            if info.suffix not in (".dist-info", ".egg-info") or package in seen:
                continue
            seen.add(package)
            try:
                yield (info / "entry_points.txt").read_text(encoding="utf-8")
            except OSError:
                continue  # most have none

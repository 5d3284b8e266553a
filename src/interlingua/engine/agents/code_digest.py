"""The digest of an agent's code. It changes with the agent's file and with the loaded modules of its project.

A run that its code could not resume waits for code with another digest. So the digest depends neither on the location
of the project nor on installed packages.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ...model import json_values
from .imported_files import imports_of, stamp
from .mount_path import is_mounted

if TYPE_CHECKING:
    from .agent import Agent

_LENGTH = 16  # characters
_INSTALLED = frozenset(("site-packages", "dist-packages"))
_OURS = str(Path(__file__).resolve().parents[2])
_NO_CODE = ("__pycache__", "node_modules")

_digests: dict[Path, tuple[tuple[int, int], str]] = {}  # by file: stamp and digest


def code_digest(agent: Agent[..., object], root: Path | None = None) -> str:
    """The digest of an agent's current code. `root`: the folder of its project, by default the folder of its file."""
    parts = [json_values.digest(msgspec.to_builtins(agent.card))]
    file = None if is_mounted(agent.card) else file_of(agent)
    if file is not None:
        folder = file.parent if root is None or not file.is_relative_to(root) else root
        parts += [f"{path} {digest}" for path, digest in _files([file, *imports_of(file).values()], folder)]
    return _joined([getattr(agent, "source", ""), *parts] if is_mounted(agent.card) else parts)


def files_digest(place: Path | None, more: Iterable[str] = ()) -> str:
    """The digest of a file, or of all files in a folder, and of further texts in `more`."""
    digests = {}
    for path in () if place is None else _below(place):
        if (digest := _of_file(path)) is not None:
            digests[path.name if path == place else path.as_posix().removeprefix(f"{place}/")] = digest
    return _joined([*(f"{path} {digest}" for path, digest in sorted(digests.items())), *more])


def _below(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    for folder, inner, names in os.walk(place):
        inner[:] = [name for name in inner if name[0] != "." and name not in _NO_CODE]
        yield from (Path(folder, name) for name in names if name[0] != ".")


def file_of(agent: Agent[..., object]) -> Path | None:
    """The file of an agent's function; None if it is not in a file of the user."""
    fn = inspect.unwrap(agent.fn)
    code = getattr(fn, "__code__", None)
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    name = code.co_filename if code is not None else getattr(module, "__file__", None)
    if name is None or name.startswith(_OURS) or not Path(name).is_file():
        return None
    return Path(name).resolve()


def _files(more: Iterable[Path], root: Path) -> list[tuple[str, str]]:
    """The digests of these files and of the files of all loaded modules below a folder."""
    below = f"{root}/"
    names = {str(path) for path in more}
    for module in list(sys.modules.values()):
        name = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(name, str) and name.startswith(below):
            names.add(name)
    digests = {}
    for name in names:
        path = Path(name)
        if name.startswith(_OURS) or not _INSTALLED.isdisjoint(path.parts):
            continue
        digest = _of_file(path)
        if digest is not None:
            digests[name.removeprefix(below)] = digest
    return sorted(digests.items())


def _of_file(path: Path) -> str | None:
    now = stamp(path)
    if now is None:
        return None
    known = _digests.get(path)
    if known is None or known[0] != now:
        try:
            known = _digests[path] = (now, hashlib.sha256(path.read_bytes()).hexdigest())
        except OSError:
            return None
    return known[1]


def _joined(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:_LENGTH]

"""Files of one directory, for a mounted agent: read and written inside it, and never outside.

A path is resolved first, links included, and must lie in the directory. It is then opened step by step from the
directory's own descriptor without following any link, so that a link which is inserted meanwhile leads nowhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePath

from ....model.errors import Denied, InvalidRequest, NotFound, TooLarge

MAX_BYTES = 32 * 1024 * 1024  # of a file that is read


class Directory:
    """The files in `root` and below it. `others` are further directories that count as well."""

    def __init__(self, root: str, others: list[str] | None = None) -> None:
        self.root = os.path.realpath(root)
        self._roots = [self.root, *(os.path.realpath(other) for other in others or [])]

    def resolve(self, path: str) -> tuple[str, str]:
        """Returns the directory that holds a path, and the path from there, without links."""
        if "\0" in path:
            raise InvalidRequest("a path has no zero bytes")
        real = os.path.realpath(PurePath(self.root, path))
        for root in self._roots:
            if real == root or real.startswith(root.rstrip(os.sep) + os.sep):
                return root, os.path.relpath(real, root)
        raise Denied(f"{path} is outside of {self.root}")

    def directory(self, path: str | None) -> str:
        """Returns a directory to work in."""
        root, inner = self.resolve(path or self.root)
        real = Path(root, inner)
        if not real.is_dir():
            raise NotFound(f"{path} is not a directory")
        return str(real)

    def read(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """Reads a text file, or `limit` lines of it from `line` (1 is the first)."""
        root, inner = self.resolve(path)
        with _parent(root, inner, make=False) as (parent, name):
            fd = _open(name, os.O_RDONLY | os.O_NONBLOCK, parent, path)
        with os.fdopen(fd, "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise InvalidRequest(f"{path} is not a file")
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise TooLarge(f"{path} is larger than {MAX_BYTES} bytes")
        text = data.decode("utf-8", "replace")
        if line is None and limit is None:
            return text
        lines = text.split("\n")
        first = max((line or 1) - 1, 0)
        chosen = lines[first:] if limit is None else lines[first : first + max(limit, 0)]
        ends = first + len(chosen) >= len(lines)
        return "\n".join(chosen) + ("" if ends or not chosen else "\n")

    def write(self, path: str, text: str) -> None:
        """Creates or replaces a file, with the directories above it."""
        root, inner = self.resolve(path)
        with _parent(root, inner, make=True) as (parent, name):
            fd = _open(name, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, parent, path)
        with os.fdopen(fd, "wb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidRequest(f"{path} is not a file")
            file.truncate(0)
            file.write(text.encode("utf-8", "replace"))


@contextlib.contextmanager
def _parent(root: str, inner: str, *, make: bool) -> Iterator[tuple[int, str]]:
    """Yields the descriptor of the directory that holds a path, reached without following any link, and the last
    name."""
    *folders, name = PurePath(inner).parts or ("",)
    if name in ("", ".", ".."):
        raise InvalidRequest("a directory is not a file")
    current = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, dir_fd=current)
            inside = _open(folder, os.O_RDONLY | os.O_DIRECTORY, current, inner)
            os.close(current)
            current = inside
        yield current, name
    finally:
        os.close(current)


def _open(name: str, flags: int, parent: int, shown: str) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=parent)
    except FileNotFoundError:
        raise NotFound(f"there is no {shown}") from None
    except OSError as error:
        if error.errno == errno.ELOOP or (error.errno == errno.ENOTDIR and flags & os.O_DIRECTORY):
            raise Denied(f"{shown} has become a link on the way") from None
        raise InvalidRequest(f"{shown}: {error.strerror}") from None

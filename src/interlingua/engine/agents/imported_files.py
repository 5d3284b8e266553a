"""The local files that a Python file imports, found without running it."""

from __future__ import annotations

import contextlib
import dis
import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

_Stamp = tuple[int, int]  # time of the last change, and size
_names: dict[Path, tuple[_Stamp, tuple[str, ...]]] = {}  # names imported in a file; relative ones begin with a dot


def stamp(path: Path) -> _Stamp | None:
    """The time of change and the size of a file; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def imports_of(file: Path) -> dict[str, Path]:
    """Maps the local modules that a file imports, directly or not, also inside functions, to their files."""
    folder = file.resolve().parent
    modules: dict[str, Path] = {}
    queue_ = [(file, "")]
    while queue_:
        path, package = queue_.pop()
        for name in _named_in(path, package):
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                at, part = folder.joinpath(*parts[:end]), ".".join(parts[:end])
                place = next(
                    (
                        candidate
                        for candidate in (at / "__init__.py", at.with_name(f"{at.name}.py"))
                        if candidate.is_file()
                    ),
                    None,
                )
                if place is None:
                    if at.is_dir():
                        continue  # a namespace package
                    break
                if part not in modules and place != file.resolve():
                    modules[part] = place
                    queue_.append((place, part if place.name == "__init__.py" else part.rpartition(".")[0]))
    return modules


def _named_in(path: Path, package: str) -> Iterator[str]:
    for name in _written_in(path):
        if not name.startswith("."):
            yield name
            continue
        with contextlib.suppress(ImportError):  # beyond the top-level package: the import would fail, too
            dots = len(name) - len(name.lstrip("."))
            base, _, rest = name[dots:].rpartition("|")
            yield f"{importlib.util.resolve_name('.' * dots + base, package or None)}.{rest}"


def _written_in(path: Path) -> tuple[str, ...]:
    """The module names that the imports of a file may mean."""
    now = stamp(path)
    if now is None:
        return ()
    known = _names.get(path)
    if known is None or known[0] != now:
        known = _names[path] = (now, tuple(_read(path)))
    return known[1]


def _read(path: Path) -> Iterator[str]:
    """Reads the imports from compiled code: building a syntax tree may fail during garbage collection (Python 3.11)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return  # importing it will raise the error
    codes = [code]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        loaded: list[Any] = []  # the last two operands: the level and the names of the next import
        for instruction in dis.get_instructions(code):
            if instruction.opname == "IMPORT_NAME":
                level, names = loaded[-2:]
                yield from _names_of(instruction.argval, names, level)
            elif instruction.opname != "EXTENDED_ARG":
                loaded = [*loaded[-1:], instruction.argval]


def _names_of(module: str, names: tuple[str, ...] | None, level: int) -> Iterator[str]:
    if level:
        yield from (f"{'.' * level}{module}|{name}" for name in names or ())
    elif names is None:
        yield module
    else:
        yield from (f"{module}.{name}" for name in names)

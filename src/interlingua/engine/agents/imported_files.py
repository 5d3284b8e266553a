"""The files that a Python file imports from beside it, by what is written in them."""

from __future__ import annotations

import contextlib
import dis
import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

_Stamp = tuple[int, int]  # when a file was changed, and its size
_names: dict[Path, tuple[_Stamp, tuple[str, ...]]] = {}  # written in a file, with a dot before relative ones


def stamp(path: Path) -> _Stamp | None:
    """What changes with a file; None where there is none."""
    try:
        told = path.stat()
    except OSError:
        return None
    return told.st_mtime_ns, told.st_size


def imports_of(file: Path) -> dict[str, Path]:
    """The modules beside a file that it imports, directly or not, also when its functions run, and where they are."""
    folder = file.resolve().parent
    found: dict[str, Path] = {}
    todo = [(file, "")]
    while todo:
        path, package = todo.pop()
        for name in _named_in(path, package):
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                at, part = folder.joinpath(*parts[:end]), ".".join(parts[:end])
                place = next(
                    (one for one in (at / "__init__.py", at.with_name(f"{at.name}.py")) if one.is_file()), None
                )
                if place is None:
                    if at.is_dir():
                        continue  # a package without a file of its own
                    break
                if part not in found and place != file.resolve():
                    found[part] = place
                    todo.append((place, part if place.name == "__init__.py" else part.rpartition(".")[0]))
    return found


def _named_in(path: Path, package: str) -> Iterator[str]:
    for name in _written_in(path):
        if not name.startswith("."):
            yield name
            continue
        with contextlib.suppress(ImportError):  # beyond the top: it would not be imported either
            dots = len(name) - len(name.lstrip("."))
            base, _, rest = name[dots:].rpartition("|")
            yield f"{importlib.util.resolve_name('.' * dots + base, package or None)}.{rest}"


def _written_in(path: Path) -> tuple[str, ...]:
    """The names of modules that imports in a file may mean."""
    now = stamp(path)
    if now is None:
        return ()
    known = _names.get(path)
    if known is None or known[0] != now:
        known = _names[path] = (now, tuple(_read(path)))
    return known[1]


def _read(path: Path) -> Iterator[str]:
    """Read the imports from compiled code: to build a syntax tree may fail while the collector runs (Python 3.11)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return  # whoever imports it is told
    todo = [code]
    while todo:
        code = todo.pop()
        todo += [one for one in code.co_consts if isinstance(one, CodeType)]
        loaded: list[Any] = []  # the level and the names, which are loaded just before a module is imported
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

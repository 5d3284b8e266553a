"""Reads `interlingua.toml` as it is written: TOML, the line of each key, and variables in texts.

`load` reads its keys.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...model.errors import InvalidRequest

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]#]+?)\s*\]")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_VARIABLE = re.compile(r"\$(\$\{|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|\{)")


class Written(msgspec.Struct):
    """A file, read."""

    path: Path
    tables: dict[str, Any]
    lines: dict[str, int]  # by the path of what begins there: `server.port`, `mounts[0].target`

    def place(self, path: str) -> str:
        """Returns the file and line of a setting, for a message: the line of the nearest thing around it, if its own is
        not known."""
        while path:
            if path in self.lines:
                return f"{self.path}:{self.lines[path]}"
            cut = max(path.rfind("."), path.rfind("["))
            path = path[:cut] if cut > 0 else ""
        return str(self.path)


def read(path: Path) -> Written:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidRequest(f"there is no file {path}; interlingua config init writes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{path} is not valid TOML: {error}") from None
    return Written(path, tables, lines_of(text))


def lines_of(text: str) -> dict[str, int]:
    """The line of every header and key. Only for messages: what looks like a key in a long text counts as one too."""
    found: dict[str, int] = {}
    counts: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _HEADER.match(line)) is not None:
            table = _inside(_parts(header[2]), counts)
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = f"{table}[{counts[table]}]"
            found.setdefault(table, number)
        elif (key := _KEY.match(line)) is not None:
            path = table
            for part in _parts(key[1]):
                path = f"{path}.{part}" if path else part
            found.setdefault(path, number)
    return found


def _parts(text: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(text)]


def _inside(parts: list[str], counts: Mapping[str, int]) -> str:
    """A header below a list of tables is of its last one."""
    path = ""
    for at, part in enumerate(parts):
        path = f"{path}.{part}" if path else part
        if at < len(parts) - 1 and path in counts:
            path = f"{path}[{counts[path]}]"
    return path


class NoVariable(Exception):
    """A text names variables that are not there."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(", ".join(names))
        self.names = names


def expanded(value: Any, environ: Mapping[str, str]) -> Any:
    """Replaces `${NAME}` by that variable in all texts of a value; `$${` becomes `${`."""
    missing: list[str] = []

    def one(found: re.Match[str]) -> str:
        name = found["name"]
        if name is None:
            return "${" if found[1] == "${" else found[0]
        if name not in environ:
            missing.append(name)
        return environ.get(name, "")

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return _VARIABLE.sub(one, value)
        if isinstance(value, dict):
            return {key: walk(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [walk(inner) for inner in value]
        return value

    walked = walk(value)
    if missing:
        raise NoVariable(list(dict.fromkeys(missing)))
    return walked


def names_variables(value: Any) -> bool:
    """Returns whether a text, or a text inside a list or a table, is taken from variables."""
    if isinstance(value, str):
        return any(found["name"] for found in _VARIABLE.finditer(value))
    if isinstance(value, dict | list):
        return any(names_variables(inner) for inner in (value.values() if isinstance(value, dict) else value))
    return False

"""No package but its own names an installed protocol, in an import or in a text. `ALLOWED` has what is left."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from interlingua.protocols.base import Protocol
from interlingua.protocols.installed import protocols

SOURCES = Path(__file__).parents[1] / "src"
LOGGERS = ("log", "access")

ALLOWED: dict[str, dict[str, str]] = {
    "interlingua/cli/demo/part_team.py": {"mcp": "a Python package, which reaches the tools of a team"},
    "interlingua/protocols/connect/manifest.py": {
        "acp": "a member of the manifest's own document", "/acp": "a member of the manifest's own document",
    },
    "interlingua/protocols/editor/versions.py": {"mcp": "a member of this protocol's capabilities"},
    "interlingua/protocols/peer/commands_peers.py": {"connect": "a verb: interlingua peers connect"},
    "interlingua/server/replicas/forward.py": {"connect": "the name of a time limit of httpx2"},
    "interlingua/tools/servers.py": {"mcp": "a Python package, which speaks to tool servers"},
    "interlingua/transports/http/plain_client.py": {"connect": "the name of a time limit of httpx2"},
    "interlingua_conform/__init__.py": dict.fromkeys(
        ("cap", "connect", "editor", "mcp", "peer"), "the checker has checks for these documents alone"
    ),
}  # fmt: skip


def words(protocol: Protocol) -> set[str]:
    """The name of a protocol, and the schemes of its targets."""
    return {protocol.name, *(kind.scheme for kind in protocol.targets)}


def pattern(protocol: Protocol) -> re.Pattern[str]:
    """Matches a text that is a name or a scheme, or has one in a path, a target or the key of a setting."""
    any_ = "|".join(sorted(map(re.escape, words(protocol)), key=len, reverse=True))
    return re.compile(
        rf"\A(?:{any_})\Z|(?<![\w-])/(?:{any_})(?![\w-])|(?<![\w.+-])(?:{any_})[+:]|\bdoors\.(?:{any_})\b"
    )


def own_folders(protocol: Protocol) -> tuple[str, ...]:
    """The folders in which a protocol is at home: its own, and that of the checks of its document."""
    return f"interlingua/protocols/{protocol.name}/", f"interlingua_conform/{protocol.name}/"


def excepted(tree: ast.AST) -> set[int]:
    """The texts that are docstrings, go to a log, or are examples in help, by their identity."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found.add(id(node.value))
        if isinstance(node, ast.Call) and (_is_logger(node.func) or _is_examples(node.func)):
            found.update(id(inner) for inner in ast.walk(node))
    return found


def _is_logger(called: ast.expr) -> bool:
    return isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in LOGGERS


def _is_examples(called: ast.expr) -> bool:
    """Tells if a function makes the examples in the help of a command, which is documentation."""
    return isinstance(called, ast.Name) and called.id == "examples"


def texts(tree: ast.AST) -> Iterator[str]:
    """The texts and the imported modules of a module."""
    skipped = excepted(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.value
        elif isinstance(node, ast.ImportFrom):
            yield from (f"import {node.module or ''}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (f"import {alias.name}" for alias in node.names)


@cache
def sources(folder: Path) -> list[tuple[str, list[str]]]:
    """The texts of each file in a folder, by its path there. Parsing takes a while."""
    return [
        (file.relative_to(folder).as_posix(), list(texts(ast.parse(file.read_text(encoding="utf-8")))))
        for file in sorted(folder.rglob("*.py"))
    ]


def namings(protocol: Protocol) -> Iterator[tuple[str, str]]:
    """Yields each file outside the folders of a protocol that names it, with the text."""
    named = pattern(protocol)
    imported = re.compile(rf"import (.*\.)?protocols\.{protocol.name}\b")
    for path, found in sources(SOURCES):
        if path.startswith(own_folders(protocol)):
            continue
        for text in found:
            if imported.match(text) if text.startswith("import ") else named.search(text):
                yield path, text


def test_no_other_package_names_a_protocol_but_where_that_is_allowed() -> None:
    found = {pair for protocol in protocols() for pair in namings(protocol)}
    allowed = {(path, text) for path, reasons in ALLOWED.items() for text in reasons}
    new = sorted(found - allowed)
    assert not new, "\n".join(f"{path}: {text!r}" for path, text in new)
    assert allowed <= found, f"these exceptions can go: {allowed - found}"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("x = 'connect'", True),
        ("x = 'we connect to it'", False),
        ("x = f'{base}/connect/runs'", True),
        ("x = 'connect+http://here'", True),
        ("x = 'doors.connect.idle'", True),
        ("x = 'reconnect'", False),
        ("x = '/disconnect'", False),
        ("from interlingua.protocols.connect import wire", True),
        ("from ..protocols.connect.wire import X", True),
        ("from ..protocols import connect", True),
        ("def f():\n    'connect'", False),
        ("log.info('connect')", False),
        ("EPILOG = examples('interlingua run connect+http://here')", False),
    ],
)
def test_names_are_found_in_imports_and_texts(
    source: str, names: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module.py").write_text(source)
    monkeypatch.setattr(f"{__name__}.SOURCES", tmp_path)
    (connect,) = (protocol for protocol in protocols() if protocol.name == "connect")
    assert bool(list(namings(connect))) is names

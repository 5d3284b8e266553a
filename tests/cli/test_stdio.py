"""How `interlingua stdio` starts: at once, because an editor waits, and carefully where it is not written plainly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from interlingua.cli.fast_stdio import read

AGENT = """
import interlingua as il

@il.agent
async def echo(text: str) -> str:
    return text
"""

INITIALIZE = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n'

# Starts the command in this interpreter, and tells afterwards what it has imported.
WATCHED = """
import sys
from interlingua.cli.main import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def _start(*arguments: str, debug: bool = False) -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if name != "INTERLINGUA_DEBUG"}
    environment["INTERLINGUA_PROJECT"] = "tests"
    if debug:
        environment["INTERLINGUA_DEBUG"] = "1"
    command = [sys.executable, "-c", WATCHED, *arguments]
    return subprocess.run(command, input=INITIALIZE, env=environment, capture_output=True, timeout=60)


@pytest.fixture
def agents(tmp_path: Path) -> str:
    path = tmp_path / "agents.py"
    path.write_text(AGENT)
    return str(path)


def test_a_plain_start_imports_nothing_that_it_does_not_need(agents: str, tmp_path: Path) -> None:
    done = _start("stdio", "--as", "editor", agents, "--store", str(tmp_path / "s.db"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["agentInfo"]["name"] == "echo"
    imported = {name.partition(".")[0] for name in done.stderr.decode().splitlines()[-1].split()}
    assert "interlingua" in imported
    heavy = {"typer", "rich", "pydantic", "cryptography", "httpx2", "uvicorn", "starlette", "websockets", "joserfc"}
    assert not imported & (heavy | {"email", "zipfile", "tempfile"})  # which reading about packages would bring along


def test_debugging_starts_the_careful_way_and_serves_the_same(agents: str, tmp_path: Path) -> None:
    done = _start("stdio", "--as", "editor", agents, "--store", str(tmp_path / "s.db"), debug=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["agentInfo"]["name"] == "echo"
    assert b" typer " in done.stderr


def test_mistakes_end_with_a_message_and_the_exit_code_of_every_command(tmp_path: Path) -> None:
    done = _start("stdio", "--as", "editor", str(tmp_path / "absent.py"))
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"error: there is no file" in done.stderr
    done = _start("stdio", "--as", "morse", str(Path(__file__).parent / "zoo.py"), "--store", str(tmp_path / "s.db"))
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"'morse' is not spoken over stdio" in done.stderr


def test_a_command_that_is_not_plain_is_read_by_the_library() -> None:
    helped = _start("stdio", "--help")
    assert helped.returncode == 0
    assert b"--trace" in helped.stdout
    wrong = _start("stdio", "--as", "editor", "--speed", "9", "a.py")
    assert wrong.returncode == 2
    assert b"--speed" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--as", "editor", "a.py"], (["a.py"], "editor", None, None)),
        (["a.py", "b.py:x", "--as=editor"], (["a.py", "b.py:x"], "editor", None, None)),
        (["--as", "mcp", "--as", "editor", "a.py"], (["a.py"], "editor", None, None)),
        (
            ["--store", "s.db", "editor:agent --flag", "--as", "editor", "--trace=t=1.jsonl"],
            (["editor:agent --flag"], "editor", Path("t=1.jsonl"), Path("s.db")),
        ),
        ([], None),
        (["a.py"], None),
        (["--as", "editor"], None),
        (["--as", "editor", "a.py", "--help"], None),
        (["--as", "editor", "a.py", "--trace"], None),
        (["--as", "editor", "--trace", "--store", "s.db", "a.py"], None),
        (["--as", "editor", "a.py", "--store="], None),
        (["--as", "editor", "--", "-odd.py"], None),
        (["--as", "editor", ""], None),
    ],
)
def test_only_plain_commands_are_read_without_the_library(arguments: list[str], expected: object) -> None:
    assert read(arguments) == expected

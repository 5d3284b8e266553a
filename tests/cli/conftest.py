"""The command line as people meet it: a real process, and a real terminal where one is needed."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import ptyprocess
import pytest

import interlingua
from interlingua.cli.main import main
from tests.kit.postgres import store_in

from . import warm
from .warm import COMMAND

ZOO = str(Path(__file__).with_name("zoo.py"))
PATIENCE = 60.0  # for what processes do: they can take their time to start
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class Result:
    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return process_env(tmp_path)


@pytest.fixture
def in_a_file(env: dict[str, str], tmp_path: Path) -> None:
    """For what is so with files only: the store is one, whatever these tests run on."""
    env["INTERLINGUA_STORE"] = str(tmp_path / "store.db")


def store_of(env: dict[str, str]) -> Path | str:
    where = env["INTERLINGUA_STORE"]
    return where if "://" in where else Path(where)


def process_env(tmp_path: Path) -> dict[str, str]:
    """What a process sees that is started here: nothing of the user's, and a store below a folder."""
    return {**clean_env(), "INTERLINGUA_STORE": str(store_in(tmp_path))}


def clean_env() -> dict[str, str]:
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("INTERLINGUA", "COV_"))}
    # The interlingua that these tests import is the one that they run, wherever they run it.
    keep["PYTHONPATH"] = str(Path(interlingua.__file__).resolve().parents[1])
    # A store may be anywhere: the project has a name.
    return {**keep, "INTERLINGUA_PROJECT": "tests", "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}


@pytest.fixture
def cli(env: dict[str, str], tmp_path: Path) -> Callable[..., Result]:
    """Run a command to its end, without a terminal, in a process of its own."""

    def run(*args: str, stdin: str | None = None, **extra: str) -> Result:
        source = subprocess.DEVNULL if stdin is None else subprocess.PIPE
        process = warm.start(args, {**env, **extra}, tmp_path, stdin=source)
        try:
            out, err = process.communicate(stdin, timeout=PATIENCE)
        finally:
            process.kill()
        return Result(subprocess.CompletedProcess(args, process.wait(), out, err))

    return run


def nothing_ran(cli: Callable[..., Result]) -> bool:
    """Whether no run was begun: there is no store, or it holds none."""
    listed = cli("runs", "list", "--json")
    return listed.code == 3 or listed.json == []


@pytest.fixture
def fresh(env: dict[str, str], tmp_path: Path) -> Callable[..., Result]:
    """As `cli`, in a process that starts from nothing: for what depends on how it starts."""

    def run(*args: str, stdin: str | None = None, **extra: str) -> Result:
        source: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        return Result(
            subprocess.run(
                [*COMMAND, *args], env={**env, **extra}, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE,
                check=False, **source,
            )
        )  # fmt: skip

    return run


@pytest.fixture
def here(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Result]]:
    """As `cli`, in this process: for long tables of things that go wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in os.environ:
        if name.startswith("INTERLINGUA_"):
            monkeypatch.delenv(name)
    for name in ("INTERLINGUA_STORE", "INTERLINGUA_PROJECT", "NO_COLOR", "TERM", "COLUMNS"):
        monkeypatch.setenv(name, env[name])

    def run(*args: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["interlingua", *args])
        try:
            main()
            code = 0
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        out, err = capfd.readouterr()
        return Result(subprocess.CompletedProcess(args, code, out, err))

    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield run
    for name, module in list(sys.modules.items()):  # the agents' files; other tests have files of the same name
        if str(getattr(module, "__file__", "")).startswith((str(tmp_path), ZOO)):
            del sys.modules[name]


@pytest.fixture
def start(env: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command without a terminal, and leave it running."""
    started: list[subprocess.Popen[str]] = []

    def begin(*args: str) -> subprocess.Popen[str]:
        process = warm.start(args, env, tmp_path)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


class _WarmAtTerminal(ptyprocess.PtyProcess):  # type: ignore[misc]
    """A process that was split off from the warm one: who waits for it asks there."""

    def __init__(self, process: warm.WarmAtTerminal, fd: int) -> None:
        super().__init__(process.pid, fd)
        self._process = process

    def wait(self) -> int:
        self._ended(self._process.wait())
        return int(self.exitstatus or 0)

    def isalive(self) -> bool:
        code = self._process.wait() if self.flag_eof else self._process.poll()
        if code is not None:
            self._ended(code)
        return code is None

    def _ended(self, code: int) -> None:
        self.terminated = True
        self.exitstatus, self.signalstatus = (code, None) if code >= 0 else (None, -code)
        self.status = code << 8 if code >= 0 else -code


class Terminal(pexpect.spawn):  # type: ignore[misc]
    def _spawnpty(self, args: list[bytes], *, cwd: str, env: dict[str, str], **options: Any) -> ptyprocess.PtyProcess:
        words = [word.decode() for word in args[len(COMMAND) :]]
        if warm.first(words, "at-terminal"):
            return super()._spawnpty(args, cwd=cwd, env=env, **options)
        ours, theirs = pty.openpty()
        rows, columns = options["dimensions"]
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        return _WarmAtTerminal(warm.WarmAtTerminal(words, env, Path(cwd), theirs), ours)

    def finish(self) -> int:
        """Wait for the end, and give back the exit code. What was printed on the way is in `before`."""
        self.expect(pexpect.EOF)
        self.wait()
        self.ptyproc.delayafterclose = 0  # it has ended
        self.close()
        return self.exitstatus if self.exitstatus is not None else -self.signalstatus

    def see(self, text: str) -> None:
        self.expect(re.escape(text))


@pytest.fixture
def terminal(env: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Start a command at a terminal."""
    started: list[Terminal] = []

    def begin(*args: str, columns: int = 200) -> Terminal:
        child = Terminal(
            COMMAND[0], [*COMMAND[1:], *args], env={**env, "COLUMNS": str(columns)}, cwd=str(tmp_path),
            encoding="utf-8", timeout=PATIENCE, dimensions=(50, columns),
        )  # fmt: skip
        child.delaybeforesend = None
        started.append(child)
        return child

    yield begin
    for child in started:
        child.close(force=True)

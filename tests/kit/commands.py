"""Commands as people start them: real processes, and fixtures that run them.

Most of the time of a command is its start, and the suite has hundreds of them. So they are split off from a warm
process; only the first of each kind starts from nothing, so that its imports are tested too. Tests of how a command
starts use the fixture `fresh`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

import interlingua
from tests.kit import warm_python
from tests.kit.postgres import store_in
from tests.kit.wait_for import PATIENCE

COMMAND = [sys.executable, "-m", "interlingua"]


def start_command(
    args: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """`interlingua` with these arguments, and a pipe for its stderr: the first of its kind from nothing."""
    if not first(args):
        return Warm(args, env, cwd, stdin=stdin, stdout=stdout)
    return subprocess.Popen(
        [*COMMAND, *args], env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, text=True
    )


def first(args: Sequence[str], where: str = "started") -> bool:
    """Whether nobody has started a command of this kind there before."""
    words = "-".join(takewhile(str.isalpha, args[:2]))
    try:
        (Path(os.environ["SESSION_FOLDER"]) / f"{where}-{words}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Warm(subprocess.Popen[str]):
    """`interlingua` with these arguments: what `subprocess.Popen` gives, with pipes for what is not named."""

    def __init__(
        self,
        args: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = subprocess.PIPE,
    ) -> None:
        self._child_created = False  # not by the class that this one is of: it would wait for it
        self.args, self.returncode = list(args), None
        self._ends: list[int] = []  # those of the process
        self.stdin = self.stdout = None
        if stdin == subprocess.PIPE:
            self.stdin = self._pipe("w")
        else:
            self._ends.append(os.open(os.devnull, os.O_RDONLY))
        if stdout == subprocess.PIPE:
            self.stdout = self._pipe("r")
        else:
            self._ends.append(os.dup(1))
        self.stderr = self._pipe("r")
        self._order(env, cwd)

    def _order(self, env: Mapping[str, str], cwd: Path, *, terminal: bool = False) -> None:
        """Have it started, and its ends closed here."""
        self._status, told = os.pipe()
        self._ends.append(told)
        try:
            warm_python.order(self.args, env, cwd, self._ends, terminal=terminal)
        finally:
            for fd in self._ends:
                os.close(fd)
        self.pid = self._told()

    def _pipe(self, mode: str) -> Any:
        reads, writes = os.pipe()
        ours, theirs = (reads, writes) if mode == "r" else (writes, reads)
        self._ends.append(theirs)
        return os.fdopen(ours, mode, encoding="utf-8")

    def _told(self) -> int:
        data = os.read(self._status, warm_python.NUMBER.size)
        if not data:
            raise AssertionError("the process that splits off others has ended")
        return int(warm_python.NUMBER.unpack(data)[0])

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ready, _, _ = select.select([self._status], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = self._told()
            os.close(self._status)
        return int(self.returncode)

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended, and that is not told yet
                os.kill(self.pid, sig)

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:  # noqa: A002
        deadline = None if timeout is None else time.monotonic() + timeout
        found: dict[str, str] = {}

        def read(name: str, file: Any) -> None:
            with file:
                found[name] = file.read()

        def write(file: Any) -> None:
            try:
                with file:
                    file.write(input or "")
            except BrokenPipeError:  # it did not want to know
                pass

        files = {name: file for name in ("stdout", "stderr") if (file := getattr(self, name)) and not file.closed}
        at_it = [threading.Thread(target=read, args=pair, daemon=True) for pair in files.items()]
        if self.stdin is not None and not self.stdin.closed:
            at_it.append(threading.Thread(target=write, args=(self.stdin,), daemon=True))
        for thread in at_it:
            thread.start()
        for thread in at_it:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return found.get("stdout", ""), found.get("stderr", "")


class WarmAtTerminal(Warm):
    """The same at a terminal: this is its end there."""

    def __init__(self, args: Sequence[str], env: Mapping[str, str], cwd: Path, end: int) -> None:
        self._child_created = False
        self.args, self.returncode = list(args), None
        self.stdin = self.stdout = self.stderr = None
        self._ends = [end, os.dup(end), os.dup(end)]
        self._order(env, cwd, terminal=True)


# -- running them ----------------------------------------------------------------------------------------------


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
        process = start_command(args, {**env, **extra}, tmp_path, stdin=source)
        try:
            out, err = process.communicate(stdin, timeout=PATIENCE)
        finally:
            process.kill()
        return Result(subprocess.CompletedProcess(args, process.wait(), out, err))

    return run


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
def start(env: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command without a terminal, and leave it running."""
    started: list[subprocess.Popen[str]] = []

    def begin(*args: str) -> subprocess.Popen[str]:
        process = start_command(args, env, tmp_path)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()

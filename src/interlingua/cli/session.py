"""Opens the engine for a command, and runs the command's coroutine in it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..model.errors import NotFound
from .errors import CommandError, ExitCode

if TYPE_CHECKING:
    from ..engine.agents import Agent
    from ..engine.engine import Engine


def go(work: Coroutine[Any, Any, int | None]) -> None:
    """Run a command to its end, and leave with its exit code."""
    import typer

    raise typer.Exit(finish(work))


def finish(work: Coroutine[Any, Any, int | None]) -> int:
    """Run a command to its end. Returns its exit code."""
    try:
        code = asyncio.run(work)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = ExitCode.CANCELLED
    except BrokenPipeError:
        # The reader of our output has left. What is still buffered must not fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = ExitCode.BROKEN_PIPE
    return code or 0


@asynccontextmanager
async def engine_at(
    store: Path | None, agents: Iterable[Agent[..., Any]] = (), *, create: bool = False
) -> AsyncIterator[Engine]:
    """An engine on a store. `create`: the store that was asked for may be new."""
    from ..app.paths import find_bus, find_store
    from ..engine.engine import Engine
    from ..store.opening import CannotOpen

    path = find_store(store)
    if store is not None and not create and not _is_there(path):
        raise NotFound(f"there is no store {path}")
    engine = Engine(path, agents=agents, bus=find_bus(store))
    try:
        await engine.start()
    except (sqlite3.Error, OSError) as error:  # it was opened, and cannot be written beside
        raise CannotOpen(path, error) from error
    try:
        yield engine
    finally:
        await engine.stop()


def _is_there(path: Path) -> bool:
    from ..store.opening import is_postgres

    return is_postgres(path) or path.exists()


def interactive() -> bool:
    """Whether somebody can be asked: both ends of the conversation are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def make_sure(yes: bool, what: str, ids: list[str]) -> None:
    """Ask before something is deleted."""
    from .ids import short
    from .render import note

    names = ", ".join(short(id_) for id_ in ids)
    if not yes:
        if not interactive():
            raise CommandError(f"this would delete {what} {names}", hint="say --yes to do it")
        from .terminal import read_line

        try:
            sure = (await read_line(f"delete {what} {names}? [y/n] ")).strip().lower() in ("y", "yes")
        except EOFError:
            sure = False
        if not sure:
            raise CommandError("nothing was deleted", exit_code=ExitCode.FAILED)
    note(f"deleting {what} {names}")

"""`interlingua threads`: look at the state that lasts over runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import Json, Limit, Store, ThreadId, Yes, examples

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Show threads and delete them.\n\n"
    "A thread is state that outlives a run: the memory of an agent, and its messages. `interlingua run --thread` uses "
    "one.",
)


@app.command("list", epilog=examples("interlingua threads list", "interlingua threads list --status busy"))
def list_(
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="STATUS", help="Only threads that are idle, busy, interrupted or error."),
    ] = None,
    limit: Limit = 20,
    json: Json = False,
    store: Store = None,
) -> None:
    """List threads, newest first."""
    from ...terminal.session import go

    go(_list(status, limit, json, store))


async def _list(status: str | None, limit: int, json: bool, store: Path | None) -> None:
    from typing import get_args

    from ...model.filters import ThreadFilter
    from ...model.run import ThreadStatus
    from ...terminal import tables
    from ...terminal.errors import CommandError
    from ...terminal.session import reader_at

    if status is not None and status not in get_args(ThreadStatus):
        raise CommandError(f"there is no status {status}", hint=f"there are {', '.join(get_args(ThreadStatus))}")
    async with reader_at(store) as engine:
        found = await engine.threads.search(ThreadFilter(status=status, limit=limit))
    tables.threads(found, json=json, filtered=status is not None)


@app.command("show", epilog=examples("interlingua threads show trip", "interlingua threads show trip --json"))
def show(thread: ThreadId, json: Json = False, store: Store = None) -> None:
    """Show one thread: its state, its messages and its runs."""
    from ...terminal.session import go

    go(_show(thread, json, store))


async def _show(part: str, json: bool, store: Path | None) -> None:
    from ...model.filters import RunFilter
    from ...terminal import tables
    from ...terminal.session import reader_at
    from ...terminal.short_ids import find_thread

    async with reader_at(store) as engine:
        thread = await engine.threads.get(await find_thread(engine, part))
        messages = await engine.threads.messages(thread.id)
        runs = await engine.runs.search(RunFilter(thread=thread.id, limit=20))
    tables.thread(thread, messages, runs, json=json)


@app.command("history", epilog=examples("interlingua threads history trip --limit 5"))
def history(thread: ThreadId, limit: Limit = 10, json: Json = False, store: Store = None) -> None:
    """Show the states of a thread, newest first. Each run that succeeds leaves one."""
    from ...terminal.session import go

    go(_history(thread, limit, json, store))


async def _history(part: str, limit: int, json: bool, store: Path | None) -> None:
    from ...terminal import tables
    from ...terminal.session import reader_at
    from ...terminal.short_ids import find_thread

    async with reader_at(store) as engine:
        checkpoints = await engine.threads.history(await find_thread(engine, part), limit=limit)
    tables.history(checkpoints, json=json)


@app.command("delete", epilog=examples("interlingua threads delete trip --yes"))
def delete(
    threads: Annotated[
        list[str],
        typer.Argument(metavar="THREAD...", help="Ids of threads, or unique parts of them.", show_default=False),
    ],
    yes: Yes = False,
    store: Store = None,
) -> None:
    """Delete threads with their state and history."""
    from ...terminal.session import go

    go(_delete(threads, yes, store))


async def _delete(parts: list[str], yes: bool, store: Path | None) -> None:
    from ...terminal.session import engine_at, make_sure
    from ...terminal.short_ids import find_thread

    async with engine_at(store) as engine:
        found = [await find_thread(engine, part) for part in parts]
        await make_sure(yes, "thread", found)
        for thread in found:
            await engine.threads.delete(thread)

"""`interlingua runs`: look at runs, follow them, and step in, also while another process runs them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import Json, Limit, RunId, RunIds, Store, Yes, examples
from .questions import command

if TYPE_CHECKING:
    from ...model.run import Run

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Show runs, follow them, cancel, retry and delete them.\n\n"
    "A run is one execution of an agent. Everything that happens in it is an event in its log. These commands work on "
    "the local store, also while the agent runs in another process.",
)


@app.command(
    "list",
    epilog=examples(
        "interlingua runs list", "interlingua runs list --status waiting --json", "interlingua runs list --blocked"
    ),
)
def list_(
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only runs of this agent.")] = None,
    status: Annotated[
        list[str] | None, typer.Option("--status", metavar="STATUS", help="Only runs in this status; repeatable.")
    ] = None,
    thread: Annotated[str | None, typer.Option("--thread", metavar="ID", help="Only runs on this thread.")] = None,
    blocked: Annotated[bool, typer.Option("--blocked", help="Only blocked runs, with the reason.")] = False,
    limit: Limit = 20,
    json: Json = False,
    store: Store = None,
) -> None:
    """List runs, newest first.

    The list shows the end of each id, and every command accepts that.
    """
    from ...terminal.session import go

    go(_list(agent, status or [], thread, blocked, limit, json, store))


async def _list(
    agent: str | None, status: list[str], thread: str | None, blocked: bool, limit: int, json: bool, store: Path | None
) -> None:
    from ...model.filters import RunFilter
    from ...model.status import Status
    from ...terminal import tables
    from ...terminal.errors import CommandError
    from ...terminal.session import reader_at

    unknown = [name for name in status if name not in list(Status)]
    if unknown:
        raise CommandError(f"there is no status {unknown[0]}", hint=f"there are {', '.join(Status)}")
    where = RunFilter(
        agent=agent, status=[Status(name) for name in status] or None, thread=thread, blocked=blocked, limit=limit
    )  # fmt: skip
    async with reader_at(store) as engine:
        found = await engine.runs.search(where)
        if not json:
            found = [await engine.runs.get(run.id) for run in found]
    tables.runs(found, json=json, filtered=bool(agent or status or thread or blocked))


@app.command("show", epilog=examples("interlingua runs show last", "interlingua runs show 1a2b3c4d --json"))
def show(run: RunId, json: Json = False, store: Store = None) -> None:
    """Show one run: status, times, input, output, error, open questions and its log.

    With `--json`, the member `events` is the whole log.
    """
    from ...terminal.session import go

    go(_show(run, json, store))


async def _show(part: str, json: bool, store: Path | None) -> None:
    from ...terminal import tables
    from ...terminal.session import reader_at
    from ...terminal.short_ids import find_run

    async with reader_at(store) as engine:
        run = await engine.runs.get(await find_run(engine, part), sealed=True)  # access to the store makes the owner
        row = await engine.runs.find_row(run.id)
        events = [event async for event in engine.runs.events(run.id, follow=False, sealed=True)]
    tables.run(run, events, json=json, sealed=row is not None and bool(row.sealed))


@app.command("follow", epilog=examples("interlingua runs follow last", "interlingua runs follow 1a2b3c4d --json"))
def follow(
    run: RunId,
    after: Annotated[int, typer.Option("--after", metavar="SEQ", min=0, help="Begin after this event.")] = 0,
    json: Json = False,
    store: Store = None,
) -> None:
    """Follow a run of another process, from its beginning to its end.

    The output and the exit codes are those of `interlingua run`. Questions are shown, not asked. Ctrl-C stops
    following; the run goes on.
    """
    from ...terminal.session import go

    go(_follow(run, after, json, store))


async def _follow(part: str, after: int, json: bool, store: Path | None) -> int:
    from ...terminal.events.views import JsonView, TextView, View
    from ...terminal.follow_run import Watch
    from ...terminal.resume_hint import resume_command
    from ...terminal.session import reader_at
    from ...terminal.short_ids import find_run
    from .questions.command import nobody_runs
    from .run import card_of

    async with reader_at(store) as engine:
        run = await find_run(engine, part)
        view: View = JsonView() if json else TextView(await card_of(engine, run))
        if await nobody_runs(engine, run):
            view.aside(f"nobody runs it now; take it up with: {await resume_command(engine, run, store)}")
        return await Watch(engine, run, view, asker=None, leave_waiting=False, owned=None).follow(after=after)


app.command("answer", epilog=command.ANSWER_EXAMPLES, help="The same as `interlingua questions answer`.")(
    command.answer
)


@app.command("send", epilog=examples('interlingua runs send last "and hurry up"', "interlingua runs send last -"))
def send(
    run: RunId,
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE", help="The text; `-` reads stdin, `@FILE` a file.", show_default=False)
    ],
    store: Store = None,
) -> None:
    """Send a message to a run that has not ended. The agent reads it when it next asks for messages."""
    from ...terminal.session import go

    go(_send(run, message, store))


async def _send(part: str, message: str, store: Path | None) -> None:
    from ...terminal.console import note
    from ...terminal.input_args import text_of
    from ...terminal.session import engine_at
    from ...terminal.short_ids import find_run, short

    async with engine_at(store) as engine:
        run = await find_run(engine, part)
        await engine.runs.send(run, text_of(message))
    note(f"sent to run {short(run)}")


@app.command("cancel", epilog=examples("interlingua runs cancel last", "interlingua runs cancel 1a2b3c4d 5e6f7a8b"))
def cancel(
    runs: RunIds,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="The reason, for the log.")] = "",
    wait: Annotated[float, typer.Option("--wait", metavar="SECONDS", min=0, help="Seconds to wait for its end.")] = 10,
    json: Json = False,
    store: Store = None,
) -> None:
    """Cancel runs, wherever they run, and wait for their end.

    A run without a process is ended here. A run of a mounted agent is ended by the next process that can reach the
    remote server; cancel it again to end it at once.
    """
    from ...terminal.session import go

    go(_cancel(runs, reason, wait, json, store))


async def _cancel(parts: list[str], reason: str, wait: float, json: bool, store: Path | None) -> None:
    import contextlib

    from ...terminal import tables
    from ...terminal.session import engine_at
    from ...terminal.short_ids import find_run

    ended: list[Run] = []
    async with engine_at(store) as engine:
        for run in [await find_run(engine, part) for part in parts]:
            await engine.runs.cancel(run, reason=reason)
            with contextlib.suppress(TimeoutError):
                await engine.runs.wait(run, timeout=wait)
            ended.append(await engine.runs.get(run))
    tables.ended(ended, json=json)


@app.command("retry", epilog=examples("interlingua runs retry 1a2b3c4d", "interlingua runs retry last --json"))
def retry(runs: RunIds, json: Json = False, store: Store = None) -> None:
    """Unblock blocked runs, and continue failed ones from their last good record.

    A failed run keeps its end: a new run continues with its records, and the command prints the new id. A second retry
    gives the same new run. A run that was called by another one cannot be retried by itself; retry its first caller.
    """
    from ...terminal.session import go

    go(_retry(runs, json, store))


async def _retry(parts: list[str], json: bool, store: Path | None) -> None:
    from ...terminal import tables
    from ...terminal.session import engine_at
    from ...terminal.short_ids import find_run

    async with engine_at(store) as engine:
        found = [await find_run(engine, part) for part in parts]
        tables.retried([(run, (await engine.runs.retry(run)).run) for run in found], json=json)


@app.command(
    "move",
    epilog=examples(
        "interlingua runs move 1a2b3c4d --to agents.py",
        "interlingua runs move --from file:old.py --to agents.py --yes",
        "interlingua runs move last --to team:support",
    ),
)
def move(
    to: Annotated[
        str, typer.Option("--to", metavar="TARGET", help="The target whose code continues the run.", show_default=False)
    ],
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]", help="The id of a run, a unique part of it, or `last`.", show_default=False
        ),
    ] = None,
    origin: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="ORIGIN",
            help="Move all unfinished runs of this origin, as `runs show` prints it: for instance `file:old.py`.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
    json: Json = False,
    store: Store = None,
) -> None:  # fmt: skip
    """Give unfinished runs to the code of another target.

    A run only continues with code of its own origin. Each run moves to the agent with its name there, of the same
    version or else the newest, and its log records that. The runs that it called from the same origin move with it. A
    run that executes does not move: stop its process first. With `--from`, the command shows how many runs move, and
    asks for confirmation.
    """
    from ...terminal.session import go
    from .runs_move import move as move_runs

    go(move_runs(run, origin, to, yes, json, store))


@app.command("delete", epilog=examples("interlingua runs delete 1a2b3c4d --yes"))
def delete(runs: RunIds, yes: Yes = False, store: Store = None) -> None:
    """Delete runs that have ended, with their logs and the runs that they called.

    A tombstone with the last hash of each run remains.
    """
    from ...terminal.session import go

    go(_delete(runs, yes, store))


async def _delete(parts: list[str], yes: bool, store: Path | None) -> Any:
    from ...terminal.session import engine_at, make_sure
    from ...terminal.short_ids import find_run

    async with engine_at(store) as engine:
        found = [await find_run(engine, part) for part in parts]
        for run in found:
            await engine.runs.get(run)  # raises where there is none
        await make_sure(yes, "run", found)
        for run in found:
            await engine.runs.delete(run)

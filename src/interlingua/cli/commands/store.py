"""`interlingua store`: is the store whole, and is its schema the one that this program has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import Json, Store, examples

if TYPE_CHECKING:
    from ...server.stores import Counts, Damage

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Migrate a store to this version, and check it for damage.",
)

_SAMPLE = 200
_SHOWN = 50  # runs that are named


@app.command(
    "migrate",
    epilog=examples(
        "interlingua store migrate --dry-run", "interlingua store migrate --store postgresql://user@host/agents"
    ),
)
def migrate(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the changes.")] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Migrate a store to the schema of this version.

    Every process does that when it opens a store. The migration happens as a whole or not at all. It is refused while
    older processes are alive, which would write as before, and for a store of a newer version.
    """
    from ...terminal.session import go

    go(_migrate(dry_run, store, json))


async def _migrate(dry: bool, store: Path | None, json: bool) -> int:
    import asyncio

    from ...server.paths import Place
    from ...server.stores import is_postgres, migrate, refuse_beside_others, shown
    from ...terminal.console import as_json

    where = Place(store).store
    if not is_postgres(where):  # there, this is what makes the tables
        where = _there(store)
    plan = await asyncio.to_thread(migrate, where, dry=dry)
    if json:
        steps = [{"name": step.name, "alone": step.alone or None} for step in plan.ahead]
        alive = [{"worker": one.id, "host": one.host, "pid": one.pid} for one in plan.alive]
        typer.echo(as_json({"from": plan.found, "to": plan.known, "steps": steps, "alive": alive, "done": not dry}))
        return 0
    if not plan.ahead:
        typer.echo(f"{shown(where)} has schema {plan.found}, which is this version's: nothing to do")
        return 0
    verb = "would be migrated" if dry else "was migrated"
    typer.echo(f"{shown(where)} {verb} from schema {plan.found} to {plan.known}")
    for step in plan.ahead:
        typer.echo(f"  {step.name}" + (f"  (alone: {step.alone})" if step.alone else ""))
    if dry:
        refuse_beside_others(shown(where), plan)
    return 0


@app.command(
    "check",
    epilog=examples(
        "interlingua store check", "interlingua store check --all --store backup.db", "interlingua store check --json"
    )
    + "\n\n**Exit codes:** 0 nothing is wrong · 1 something is damaged · 5 the schema is not this version's",
)
def check(
    all_: Annotated[bool, typer.Option("--all", help="Check the log of every run, instead of a sample.")] = False,
    sample: Annotated[
        int, typer.Option("--sample", min=1, metavar="N", help="Runs in the sample: the newest, and some others.")
    ] = _SAMPLE,
    store: Store = None,
    json: Json = False,
) -> None:
    """Check the schema and the contents of a store, and the hashes of its logs. Changes nothing.

    Each log is a chain of hashes that ends in the row of its run. Servers and workers may run meanwhile.
    """
    from ...terminal.session import go

    go(_check(all_, sample, store, json))


async def _check(all_: bool, sample: int, store: Path | None, json: bool) -> int:
    import asyncio

    import msgspec

    from ...model.errors import Conflict
    from ...server.stores import check as check_store
    from ...server.stores import migrate, shown
    from ...terminal.console import as_json

    where = _there(store)
    plan = await asyncio.to_thread(migrate, where, dry=True)
    if plan.ahead:  # opening it would migrate it
        raise Conflict(
            f"{shown(where)} has schema {plan.found}, and this version's is {plan.known}: run `interlingua "
            "store migrate` first (`--dry-run` says what that would do), or check it with the version that wrote it"
        )
    found, checked, damage = await check_store(where, None if all_ else sample, _Progress)
    if json:
        counted = {} if found is None else msgspec.to_builtins(found)
        report = {"schema": plan.found, **counted, "checked": checked, "damage": msgspec.to_builtins(damage)}
        typer.echo(as_json(report))
    else:
        typer.echo(f"{shown(where)}, schema {plan.found}")
        _show(found, checked, damage)
    return 1 if damage else 0


class _Progress:
    """Shows the progress of a check, if stderr is a terminal."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._bar: Any = None

    def __enter__(self) -> Callable[[int], None]:
        from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from ...terminal.console import error_console

        console = error_console()
        if not console.is_terminal:
            return lambda done: None
        columns = TextColumn("checking runs"), MofNCompleteColumn(), TimeRemainingColumn()
        self._bar = Progress(*columns, console=console, transient=True)
        task = self._bar.add_task("", total=self._total)
        self._bar.start()
        return lambda done: self._bar.update(task, completed=done)

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _show(found: Counts | None, checked: int, damage: list[Damage]) -> None:
    if found is not None:
        by_status = ", ".join(f"{count:,} {status}" for status, count in sorted(found.runs.items()))
        typer.echo(f"{found.all_runs:,} runs" + (f" ({by_status})" if by_status else ""))
        typer.echo(
            f"{found.events:,} events, {found.threads:,} threads, {found.questions:,} open questions, "
            f"{found.inbox:,} unread, {found.tombstones:,} tombstones"
        )
    if not damage:
        typer.echo(f"the logs of {checked:,} runs prove themselves")
        return
    typer.echo(f"DAMAGED: {len(damage):,} findings in {checked:,} runs")
    for one in damage[:_SHOWN]:
        at = f"run {one.run}, event {one.seq}: " if one.run is not None else ""
        typer.echo(f"  {at}{one.what}")
    if len(damage) > _SHOWN:
        typer.echo(f"  and {len(damage) - _SHOWN:,} more (--json has them all)")
    typer.echo(
        "The store was changed behind Interlingua's back, or its disk loses data. Stop what writes to it and keep a "
        "copy as it is. Restore the newest backup that passes `interlingua store check --all`; `interlingua audit "
        "export RUN` takes runs that are whole out of this one."
    )


def _there(store: Path | None) -> Path:
    from ...server.paths import Place

    return Place(store).existing_store()

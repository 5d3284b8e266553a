"""`interlingua callbacks`: the deliveries to webhooks, done and failed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import Json, Limit, Store, examples

if TYPE_CHECKING:
    from ...engine.ports import CallbackRow

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="List callbacks of runs, and retry failed ones.\n\n"
    "A server sends each change of a run's status, in order. It retries a callback that fails for about a day.",
)

_STATES = {"due": "waiting", "sent": "sent", "failed": "given up"}


@app.command("list", epilog=examples("interlingua callbacks list --failed", "interlingua callbacks list --json"))
def list_(
    failed: Annotated[bool, typer.Option("--failed", help="Only failed callbacks, retried or given up.")] = False,
    limit: Limit = 100,
    json: Json = False,
    store: Store = None,
) -> None:
    """List callbacks, newest first: run, address, tries, last error and next try.

    Secrets in addresses are hidden. Callbacks that were sent or given up stay in the list for 30 days.
    """
    from ...terminal.session import go

    go(_list(failed, limit, json, store))


async def _list(failed: bool, limit: int, json: bool, store: Path | None) -> None:
    from ...terminal.session import reader_at

    async with reader_at(store) as engine:
        rows = await engine.callbacks.search(failing=failed, newest=True, limit=limit)
    if json:
        from ...terminal.console import as_json

        typer.echo(as_json([_plain(row) for row in rows]))
        return
    from ...terminal import tables

    tables.callbacks([_plain(row) for row in rows], filtered=failed)


def _plain(row: CallbackRow) -> dict[str, Any]:
    from ...security.redaction import redact_text, redact_url
    from ...terminal.times import iso

    return {
        "id": row.id,
        "run": row.run,
        "url": redact_url(row.url),
        "status": row.status,
        "state": _STATES.get(row.state, row.state),
        "tries": row.attempts,
        "last_error": None if row.error is None else redact_text(row.error),
        "created_at": iso(row.time),
        "next_try": iso(max(row.next_at, row.time)) if row.state == "due" else None,
    }


@app.command("retry", epilog=examples("interlingua callbacks retry 12", "interlingua callbacks retry --all"))
def retry(
    ids: Annotated[
        list[int] | None,
        typer.Argument(metavar="ID...", help="Ids of callbacks, as in `callbacks list`.", show_default=False),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Retry all failed callbacks.")] = False,
    store: Store = None,
) -> None:
    """Retry failed callbacks as if they were new. A running server sends them."""
    from ...terminal.session import go

    go(_retry(ids or [], all_, store))


async def _retry(ids: list[int], all_: bool, store: Path | None) -> None:
    from ...model.errors import NotFound
    from ...terminal.errors import CommandError
    from ...terminal.session import engine_at

    if bool(ids) is all_:
        raise CommandError("say which callbacks to try again: their ids, or --all")
    async with engine_at(store) as engine:
        done = await engine.callbacks.retry(None if all_ else ids)
    missing = sorted(set(ids) - set(done))
    if done:
        typer.echo(f"{len(done)} will be tried again: {', '.join(map(str, done))}")
    elif all_:
        typer.echo("No callback has failed.")
    if missing:
        raise NotFound(f"there is no failed callback {', '.join(map(str, missing))}")

"""`interlingua keys`: who may call a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import Json, Store, examples

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Add, list and revoke API keys of a store.\n\n"
    "A server without keys listens on loopback only, and accepts every caller there. Callers send a key as "
    "`x-api-key: KEY` or `Authorization: Bearer KEY`. The scopes of a key say what it may do.",
)

_SCOPE_HELP = (
    "What it may do (repeatable): `*`, `agents:NAME`, `do:run|read|answer|cancel|delete|config|admin`, `see:all`, "
    "`as:AGENT`. Without any: everything but admin, and only its own runs."
)


@app.command(
    "add", epilog=examples("interlingua keys add laptop", "interlingua keys add ci --scope agents:echo --scope do:run")
)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The owner of the key.", show_default=False)],
    scope: Annotated[list[str] | None, typer.Option("--scope", help=_SCOPE_HELP, show_default=False)] = None,
    days: Annotated[
        float | None,
        typer.Option(
            "--days", min=0.0001, help="Days for which the key is valid; by default for ever.", show_default=False
        ),
    ] = None,
    store: Store = None,
) -> None:
    """Make a key, and print it once. The store keeps only its hash."""
    from ...terminal.session import go

    go(_add(name, scope or [], days, store))


async def _add(name: str, scopes: list[str], days: float | None, store: Path | None) -> None:
    from ...engine.ids import now
    from ...security.keys import make_key
    from ...server.auth.stored_keys import StoredKeys
    from ...terminal.session import engine_at

    async with engine_at(store, create=True) as engine:
        expires = None if days is None else now() + int(days * 86_400_000_000)
        secret, record = make_key(name, scopes, now(), expires_at=expires)
        await StoredKeys(engine.keys).put(record)
    typer.echo(secret)
    typer.echo(f"key {record.id} of {name}: shown this once. Servers that are running take it at once.", err=True)


@app.command("list", epilog=examples("interlingua keys list"))
def list_(json: Json = False, store: Store = None) -> None:
    """List keys: their owners, scopes and validity, and their last use.

    The last use is recorded once a minute.
    """
    from ...terminal.session import go

    go(_list(json, store))


async def _list(json: bool, store: Path | None) -> None:
    import msgspec

    from ...engine.ids import now
    from ...server.auth.stored_keys import StoredKeys
    from ...terminal.session import reader_at
    from ...terminal.times import iso

    async with reader_at(store) as engine:
        records = await StoredKeys(engine.keys).all()
    if json:
        shown = [{k: v for k, v in msgspec.to_builtins(r).items() if k != "hash"} for r in records]
        typer.echo(msgspec.json.format(msgspec.json.encode(shown)).decode())
        return
    if not records:
        typer.echo("No keys. Make one: interlingua keys add NAME")
    for r in records:
        expired = r.expires_at is not None and r.expires_at <= now()
        state = "revoked" if r.revoked_at is not None else "expired" if expired else "valid"
        used = "never used" if r.last_used_at is None else f"last used {iso(r.last_used_at)}"
        typer.echo(f"{r.id}  {r.name}  {state}  {used}  {' '.join(r.scopes) or 'everything but admin'}")


@app.command("revoke", epilog=examples("interlingua keys revoke a1b2c3"))
def revoke(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="The id or the name of the key, as in `keys list`, or the key itself.",
            show_default=False,
        ),
    ],
    store: Store = None,
) -> None:
    """Revoke a key for good. When the command returns, no server accepts it.

    Without its last key, a server refuses every caller, until there is another key.
    """
    from ...terminal.session import go

    go(_revoke(key, store))


async def _revoke(key: str, store: Path | None) -> None:
    import asyncio

    from ...engine.ids import now
    from ...model.errors import NotFound
    from ...security.keys import key_id
    from ...security.remembered_keys import REMEMBERED_FOR
    from ...server.auth.stored_keys import StoredKeys
    from ...terminal.errors import CommandError
    from ...terminal.session import engine_at

    wanted = key_id(key) or key  # only the id of a whole key is ever shown
    async with engine_at(store) as engine:
        keys = StoredKeys(engine.keys)
        valid = [record for record in await keys.all() if record.revoked_at is None]
        found = [r.id for r in valid if r.id == wanted] or [r.id for r in valid if r.name == wanted]
        if len(found) > 1:
            raise CommandError(
                f"{len(found)} keys are called {wanted}: {', '.join(found)}", hint="revoke one by its id"
            )
        if not found or not await keys.revoke(found[0], now()):
            raise NotFound(f"there is no valid key {wanted}")
        await asyncio.sleep(REMEMBERED_FOR)  # servers may have read the record just before
        left = [r for r in valid if r.id != found[0] and (r.expires_at is None or r.expires_at > now())]
    typer.echo(f"key {found[0]} is revoked")
    if not left:
        typer.echo(
            "It was the last valid key: servers of this store now refuse every caller, but those with tokens of an "
            "issuer, also after a restart. To let somebody in again: interlingua keys add NAME",
            err=True,
        )

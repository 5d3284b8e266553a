"""`interlingua workers`: the processes that share a store, and what each of them has to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import Json, Store, examples

if TYPE_CHECKING:
    from ...bus.port import BusSettings, Presence

EPILOG = examples(
    "interlingua workers",
    "interlingua workers --store postgresql://user@host/agents --bus nats://host:4222",
    "interlingua workers --json",
)

_PATIENCE = 2.0  # seconds in which every process on the bus reports


def workers(
    store: Store = None,
    bus: Annotated[
        str | None,
        typer.Option(
            "--bus", metavar="URL", help="The NATS server that they share. By default `$INTERLINGUA_BUS`, "
            "else that of the config file with the store.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """List the living processes of a store.

    These are servers, workers, and commands that work right now.

    For each: its start, its host, its agents and the number of its runs, from the store; and with a bus also what it
    reports of itself. A dead process is not listed; other processes continue its runs.
    """
    from ...terminal.session import go

    go(_workers(store, bus, json))


async def _workers(store: Path | None, bus: str | None, json: bool) -> None:
    import msgspec

    from ...server.paths import Place
    from ...server.stores import open_store
    from ...terminal.console import as_json

    place = Place(store)
    where, settings = place.existing_store(), place.bus
    if bus is not None:
        settings = msgspec.structs.replace(settings, url=bus)
    opened = open_store(where)
    await opened.open(read_only=True)
    try:
        dead = await opened.claims.dead()
        rows = [row for row in await opened.claims.workers() if row.id not in dead]
        told = await _present(settings, {row.id for row in rows}) if settings.url else None
        found = []
        for row in sorted(rows, key=lambda row: row.started_at):
            one = _entry(row, len(await opened.claims.owned(row.id)))
            if told is not None:
                one["bus"] = _said(told.pop(row.id, None))
            found.append(one)
    finally:
        await opened.close()
    for left in (told or {}).values():  # of another store on the same bus, or gone from this one a moment ago
        found.append({**_entry(left, None), "bus": _said(left)})
    if json:
        typer.echo(as_json(found))
    else:
        _print(found, with_bus=told is not None)


def _entry(about: Any, runs: int | None) -> dict[str, Any]:
    from ...model.run_identity import split_queue
    from ...terminal.times import iso

    id_ = getattr(about, "id", None) or about.worker
    return {
        "worker": id_, "host": about.host, "pid": about.pid, "started_at": iso(about.started_at),
        "agents": sorted({split_queue(queue)[1] for queue in about.queues}), "queues": sorted(about.queues),
        "runs": runs,
    }  # fmt: skip


def _said(about: Presence | None) -> dict[str, Any] | None:
    return None if about is None else {"running": about.running, "room": about.room}


async def _present(settings: BusSettings, wanted: set[str]) -> dict[str, Presence]:
    """Returns the workers that answer on the bus. Waits until all wanted ones did, but not for long."""
    import asyncio

    from ...bus.open import open_bus
    from ...bus.port import ClusterBus

    bus = open_bus(settings)
    assert isinstance(bus, ClusterBus)
    await bus.open()
    try:
        latest = asyncio.get_running_loop().time() + _PATIENCE
        while True:
            found = {about.worker: about for about in bus.present()}
            if wanted <= found.keys() or asyncio.get_running_loop().time() > latest:
                return found
            await asyncio.sleep(0.02)
    finally:
        await bus.close()


def _print(found: list[dict[str, Any]], *, with_bus: bool) -> None:
    from datetime import datetime

    from rich.table import Table
    from rich.text import Text

    from ...engine.ids import now
    from ...terminal import times
    from ...terminal.console import clean, console
    from ...terminal.short_ids import short

    if not found:
        console().print("nobody is there")
        return
    table = Table("worker", "host", "pid", "since", "runs", *(["bus"] if with_bus else []), "agents",
                  box=None, pad_edge=False)  # fmt: skip
    for one in found:
        since = int(datetime.fromisoformat(one["started_at"]).timestamp() * 1e6)
        runs = "not in this store" if one["runs"] is None else str(one["runs"])
        cells = [short(one["worker"]), one["host"], str(one["pid"]), times.ago(since, now()), runs]
        if with_bus:
            said = one["bus"]
            cells.append("silent" if said is None else f"{said['running']} running, room for {said['room']}")
        table.add_row(*(Text(clean(cell)) for cell in [*cells, ", ".join(one["agents"]) or "none"]))
    console().print(table)

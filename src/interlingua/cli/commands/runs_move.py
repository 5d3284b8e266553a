"""`interlingua runs move`: gives unfinished runs to the code of another target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...terminal.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from ...engine.agents.agent import Agent
    from ...engine.ports import Moved, Mover, QueueCount
    from ...protocols.targets import Target
    from ...server.paths import Place


async def move(run: str | None, origin: str | None, to: str, yes: bool, json: bool, store: Path | None) -> int:
    from ...engine.ports import Mover
    from ...protocols.targets import parse
    from ...server.paths import Place
    from ...terminal.session import engine_in
    from ...terminal.short_ids import find_run

    if (run is None) == (origin is None):
        raise CommandError("name one run, or an origin with --from", hint="interlingua runs list shows runs")
    target = parse(to)
    place = Place(store, [target])
    async with engine_in(place, binds=True) as engine:
        mover = Mover(engine, await _load(target, place))
        if run is not None:
            moved = await mover.move(await find_run(engine, run))
        else:
            assert origin is not None
            queues = await mover.open_queues(origin)
            await _make_sure(yes, mover, queues, to)
            moved = await mover.move_all(queues)
    _show(moved, json)
    return ExitCode.CONFLICT if any(one.problem for one in moved) else 0


async def _load(target: Target, place: Place) -> list[Agent[..., Any]]:
    from ...server.config import build
    from ...server.config.load import read
    from ...server.loading.target import load_to_serve
    from ...server.mounts.entry import load_mounted

    if target.kind in ("file", "team"):
        return await load_to_serve(target, place.project.root)
    config = read(place.file, {})
    mounts = build.mounts(config)
    config.check()
    return await load_mounted(target, place.project.root, mounts)


async def _make_sure(yes: bool, mover: Mover, queues: list[QueueCount], to: str) -> None:
    """Shows how many runs go where, and asks for consent."""
    from ...terminal.console import note
    from ...terminal.session import confirmed, interactive

    for one in queues:
        there = mover.target(one.agent, one.version, one.origin)
        note(f"{one.runs} of {one.agent} {one.version} ({one.origin}) → {there.card.version} ({there.origin})")
    count = sum(one.runs for one in queues)
    what = "1 run" if count == 1 else f"{count} runs"
    if yes:
        return
    if not interactive():
        raise CommandError(f"this would move {what} to {to}", hint="say --yes to do it")
    if not await confirmed(f"move {what} to {to}?"):
        raise CommandError("nothing was moved", exit_code=ExitCode.FAILED)


def _show(moved: list[Moved], json: bool) -> None:
    import msgspec
    import typer

    from ...terminal.console import as_json
    from ...terminal.short_ids import short

    if json:
        typer.echo(as_json(msgspec.to_builtins(moved)))
        return
    for one in moved:
        told = one.problem or f"is moved to {one.origin}"
        typer.echo(told if one.run in told else f"run {short(one.run)} of {one.agent} {told}")

"""`interlingua demo`: a guided tour of the whole, with real processes and real requests."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import examples, store_option
from .tour import Wire, command, path, prompt, say

if TYPE_CHECKING:
    from .processes import Process

EPILOG = examples("interlingua demo", "interlingua demo --store tour.db")
_ELSEWHERE = ("shouter", "turner", "initials", "teller", "sorter")
"""The agents of the other process, each of which is mounted by another protocol."""


def demo(
    store: Annotated[Path | None, store_option("a temporary one")] = None,
    team: Annotated[bool, typer.Option(help="Show the part about a team, which starts tool servers.")] = True,
) -> None:
    """Show it all in a guided tour of a minute.

    One agent is called over every protocol. Agents of all protocols are served behind one door. A question is asked
    through one protocol and answered through another. A server is killed and its run goes on. A team works, and its
    audit proves it.

    Everything is real: two server processes, and requests that you can paste. At a terminal the servers stay up
    afterwards, until Ctrl-C. The store is temporary, unless `--store` names one.
    """
    from ...server.project import VARIABLE
    from ...terminal.session import go

    os.environ.pop(VARIABLE, None)  # the tour is a project of its own
    with tempfile.TemporaryDirectory(prefix="interlingua-demo-") as folder:
        go(_demo(Path(folder), store or Path(folder) / "demo.db", kept=store is not None, team=team))


async def _demo(folder: Path, store: Path, *, kept: bool, team: bool) -> int:
    from ...terminal.session import interactive
    from .door_tour import Doors, mountable
    from .part_doors import every_door, every_mount
    from .part_runs import asked_and_answered, killed
    from .part_team import team_folder, with_team
    from .processes import EXAMPLES, project

    stays = interactive()
    say("Interlingua", "Write an agent once. Every agent protocol speaks to it.")
    if kept and store.exists() and await _has_keys(store):  # noqa: ASYNC240 - nothing else goes on yet
        say("", "This store has keys, so its server wants one, and the tour has none to send. Leave --store out.")
        return 0
    say(
        "",
        "A tour in five parts, which takes a minute. Each line with a $ is a real request to a real server; below it "
        "stands what matters of the answer."
        + (" You can paste every such line into another terminal in this folder." if stays else ""),
    )
    crew = team_folder(folder) if team else None
    files = project(folder, EXAMPLES)
    with tempfile.TemporaryDirectory(prefix="interlingua-demo-") as other:
        async with _up([*map(str, project(Path(other), ["elsewhere"]))], Path(other) / "other.db") as elsewhere:
            here = elsewhere.address.removeprefix("http")
            mounted = [
                (agent, f"{scheme}{here}{protocol.prefix}#{agent}")
                for agent, (protocol, scheme) in zip(_ELSEWHERE, mountable(), strict=False)
            ]
            targets = [
                *map(str, files),
                *(target for _, target in mounted),
                *([f"team:{crew}"] if crew is not None else []),
            ]
            async with _up(targets, store, usual=True) as server, _wire(server) as wire:
                doors = Doors(wire, files[0], store)
                await every_door(doors, files[0])
                await every_mount(doors, mounted)
                await asked_and_answered(doors, store)
                await killed(doors, server)
                if team and (code := await with_team(doors, crew, store)):
                    return code
                _farewell(stays=stays)
                if stays:
                    await _stay(server.address)
    return 0


async def _has_keys(store: Path) -> bool:
    from ...engine.engine import Engine
    from ...server.auth.stored_keys import StoredKeys

    engine = Engine(store)
    async with engine.only_store_open():
        return await StoredKeys(engine.keys).any()


@contextlib.asynccontextmanager
async def _up(targets: list[str], store: Path, *, usual: bool = False) -> AsyncIterator[Process]:
    """A server process, for as long as it is needed."""
    from .processes import Process, free_port

    process = Process(targets, store, free_port() if usual else 0)
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


@contextlib.asynccontextmanager
async def _wire(server: Process) -> AsyncIterator[Wire]:
    wire = Wire(server.address)
    try:
        yield wire
    finally:
        await wire.close()


def _farewell(*, stays: bool) -> None:
    from .processes import EXAMPLES, example

    say(
        "Now you",
        "Copy the examples into a folder of your own, and read them: each takes a minute. Then try them. The first "
        "asks you, the second is cancelled by Ctrl-C, and the third is a server of your own:",
    )
    prompt(f"cp {' '.join(path(example(name)) for name in EXAMPLES)} .")
    command("run mailcomposer.py --thread lunch 'To: ada@example.org. Subject: Lunch.'")
    command("run counter.py '{\"to\": 20}'")
    command(f"serve echo.py{' --port 0' if stays else ''}")  # this server has the usual port


async def _stay(address: str) -> None:
    """Prints a table of the doors, and leaves everything running for people who want to try it."""
    import asyncio
    import signal

    from rich.table import Table

    from ...protocols.installed import protocols
    from ...terminal.console import error_console
    from .door_tour import mountable

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    say("Still up", "The servers of the tour go on, and so do their doors:")
    table = Table("door", "address", box=None, pad_edge=False)
    for protocol in protocols():
        if protocol.door:
            table.add_row(protocol.title, address + protocol.prefix)
    error_console().print(table)
    say("", "What speaks there, and the same agent by each of them:")
    command(f"inspect {address}")
    for protocol, scheme in mountable():
        command(f"run '{scheme}{address.removeprefix('http')}{protocol.prefix}#echo' hello")
    say("", "Ctrl-C stops.")
    await stop.wait()
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

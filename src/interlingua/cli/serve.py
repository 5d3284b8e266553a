"""`interlingua serve`: agents on every door, on one port."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .flags import given
from .options import examples

if TYPE_CHECKING:
    import asyncio

    from ..app.config import Config
    from ..app.logs import LogFormat
    from ..app.reload import Reloader
    from ..app.serve import Server

_FEW = 8  # agents that are named for each door

EPILOG = (
    examples(
        "interlingua serve agents.py",
        "interlingua serve agents.py more.py --port 9000",
        "interlingua serve --config interlingua.toml",
        "interlingua serve --mount connect+http://other:8000/connect --reload",
        "interlingua serve agents.py --host 0.0.0.0 --allow-host agents.example.org",
        "interlingua serve agents.py --issuer https://login.example.org --audience agents --log json",
    )
    + "\n\nEvery option is also a key of `interlingua.toml` and a variable: `--limits-max-running` is `max_running` in "
    "`[limits]`, and `INTERLINGUA_LIMITS_MAX_RUNNING`. `interlingua config show` tells what is in force."
)


def serve(
    ctx: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            help="What to serve: files with agents in them, `team:DIR`, or mounts. Without any, what the config file "
            "says.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", show_default=False,
            help="The config file; without it `$INTERLINGUA_CONFIG`, or, where no target is named, "
            "`./interlingua.toml`.",
        ),
    ] = None,
    access_log: Annotated[bool, typer.Option("--access-log", help="The same as `--log json`.")] = False,
) -> None:  # fmt: skip
    """Serve agents on every door: Agent Connect under `/connect`, Agent Client under `/editor`, MCP under `/mcp`, CAP
    under `/cap`, peers under `/peer` and on the ports of their protocol.

    Listens on loopback unless told otherwise; a public address without keys or issuers is refused. `/healthz`,
    `/readyz`, `/metrics` and `/mounts` are there too. SIGHUP reloads agents, teams and mounts, and drops nothing that
    runs. Ctrl-C stops: running agents are finished, or handed back to the next process.
    """
    from ..app.config import read
    from ..app.logs import LogFormat, logging_as
    from .session import go

    flags = given(ctx)
    if access_log:
        flags["server_log"] = "json"
    file, flags = where(config, targets or [], flags)

    def again() -> Config:
        return read(file, flags)

    settings = again()
    settings.check()
    form = LogFormat(settings["server.log"])
    with logging_as(form):
        go(_serve(settings, form, again))


def where(config: Path | None, targets: list[str], flags: dict[str, Any]) -> tuple[Path | None, dict[str, Any]]:
    """The config file, if any, and the flags with every target among those that it belongs to."""
    import os

    from ..app.config import find_file
    from ..app.config_file import NAME
    from ..app.config_table import ENTRIES
    from ..app.targets import parse
    from .errors import CommandError

    named: dict[str, list[str]] = {"agents": [], "teams": [], "mounts": []}
    for text in targets:
        target = parse(text)
        kind = {"file": "agents", "team": "teams"}.get(target.kind, "mounts")
        named[kind].append(target.rest if target.kind == "team" else text)
    wanted = {name: [*texts, *(flags.get(name) or [])] for name, texts in named.items()}
    file = find_file(config, targets=any(wanted.values()))
    variables = [os.environ.get(one.variable) for one in ENTRIES if one.path in named]
    if file is None and not any(wanted.values()) and not any(variables):
        raise CommandError(
            "there is nothing to serve: no target, and no interlingua.toml here",
            hint=f"interlingua serve agents.py, or interlingua config init, which writes {NAME}",
        )
    return file, {**flags, **wanted}


async def _serve(config: Config, form: LogFormat, again: Any) -> int:
    import asyncio
    import logging
    import signal

    from ..app import config_meaning, sources
    from ..app.logs import LogFormat
    from ..app.paths import default_store
    from ..app.reload import Reloader
    from ..app.serve import serving

    mounts = config_meaning.mounts(config)
    own = await sources.load_all(config)
    config.check()
    settings = await config_meaning.serve_settings(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    agents = [agent for source in own for agent in source.agents]
    async with serving(config["store.path"] or default_store(), agents, settings, mounts) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        reloader = Reloader(server, config, own, again)
        reloading = _on_hangup(reloader, stop)
        if form is LogFormat.JSON:  # whoever reads lines of JSON wants nothing else
            fields = {
                "address": server.address,
                "doors": {name: server.address + door.prefix for name, (door, _) in server.app.doors.items()},
                "agents": [agent.card.key for agent in server.engine.agents],
                "notes": server.notes,  # the link that peers connect to is in no other place
            }
            logging.getLogger("interlingua").info("serving on %s", server.address, extra={"fields": fields})
        else:
            show(server)
            say("Ctrl-C stops.")
        if config["server.reload"]:
            reloading.append(loop.create_task(reloader.watch()))
        await stop.wait()
        for task in reloading:
            task.cancel()
        await asyncio.gather(*reloading, return_exceptions=True)
        loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C leaves at once
    return 0


def _on_hangup(reloader: Reloader, stop: asyncio.Event) -> list[asyncio.Task[Any]]:
    """SIGHUP reloads; but where it says that the terminal is gone, the server ends as by Ctrl-C."""
    import asyncio
    import signal

    at_terminal, again = _has_terminal(), asyncio.Event()

    def hung_up() -> None:
        if at_terminal and not _has_terminal():
            stop.set()
        else:
            again.set()

    async def reload() -> None:
        while True:
            await again.wait()
            again.clear()
            await reloader.reload()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, hung_up)
    return [loop.create_task(reload())]


def _has_terminal() -> bool:
    import os

    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def show(server: Server) -> None:
    """The doors, the agents behind them, and a line to try for each door."""
    from rich.table import Table
    from rich.text import Text

    from .render import clean, error_console

    console = error_console()
    console.print(f"Serving on [bold]{server.address}[/bold]", markup=True)
    table = Table("door", "address", "agents", box=None, pad_edge=False)
    names = [f"{agent.card.name} {agent.card.version}" for agent in server.engine.agents]
    told = ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")
    for protocol, _ in server.app.doors.values():
        table.add_row(protocol.title, server.address + protocol.prefix, told)
    console.print(table)
    if len(server.mounts):
        mounted = Table("mount", "state", "agents", box=None, pad_edge=False)
        for view in server.mounts.views():
            state = f"{view.state}: {view.reason}" if view.reason else view.state
            mounted.add_row(*(Text(clean(cell)) for cell in (view.mount, state, ", ".join(view.agents) or "none yet")))
        console.print(mounted)
    for note in server.notes:
        say(note)
    for agent in list(server.engine.agents)[:1]:
        for _, door in server.app.doors.values():
            say(f"$ {door.hint(server.address, agent.card.name)}")


def say(text: str) -> None:
    from .render import error_console

    error_console().print(text, soft_wrap=True, markup=False)

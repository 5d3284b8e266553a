"""Puts the commands together, and starts the one that was asked for."""

from __future__ import annotations

import logging
import os
import sys
from copy import copy
from functools import cache
from pkgutil import resolve_name
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..protocols.installed import commands
from .commands import (
    audit,
    callbacks,
    config,
    dev,
    inspect,
    keys,
    mounts,
    run,
    runs,
    serve,
    stdio,
    store,
    threads,
    worker,
    workers,
)
from .commands.questions import command as questions
from .commands.team import command as team
from .demo import command as demo
from .flags import SettingsCommand, WorkCommand
from .options import EPILOG

START, LOOK, OTHERS, OPERATE, PARTS = PANELS = (
    "Start", "Look, step in", "Other servers", "Operate", "Teams, protocols",
)  # fmt: skip


class PanelGroup(TyperGroup):
    """Lists the commands panel by panel."""

    def list_commands(self, ctx: Any) -> list[str]:
        def rank(name: str) -> int:
            panel = getattr(self.commands[name], "rich_help_panel", None)
            return PANELS.index(panel) if panel in PANELS else len(PANELS)

        return sorted(super().list_commands(ctx), key=rank)


app = typer.Typer(
    name="interlingua",
    cls=PanelGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from .._version import __version__

        typer.echo(f"interlingua {__version__}")
        raise typer.Exit


@app.callback(epilog=EPILOG)
def interlingua(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version and leave.", callback=_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show tracebacks and the engine's log on stderr.", envvar="INTERLINGUA_DEBUG"),
    ] = False,
) -> None:
    """Write an agent once, and serve it over every agent protocol.

    An agent is a Python function, and `interlingua run` runs one. A local store keeps everything that happens in a run:
    `runs`, `threads` and `questions` show it, also while the run goes on in another shell.

    New here? Start with `interlingua demo`.
    """
    if debug:
        os.environ["INTERLINGUA_DEBUG"] = "1"
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    else:
        logging.getLogger("interlingua").addHandler(logging.NullHandler())  # the terminal belongs to the agent


app.command("run", epilog=run.EPILOG, rich_help_panel=START)(run.run)
app.command("serve", epilog=serve.EPILOG, cls=SettingsCommand, rich_help_panel=START)(serve.serve)
app.command("dev", epilog=dev.EPILOG, rich_help_panel=START)(dev.dev)
app.command("demo", epilog=demo.EPILOG, rich_help_panel=START)(demo.demo)
app.add_typer(runs.app, name="runs", rich_help_panel=LOOK)
app.add_typer(threads.app, name="threads", rich_help_panel=LOOK)
app.add_typer(questions.app, name="questions", rich_help_panel=LOOK)
app.add_typer(audit.app, name="audit", rich_help_panel=LOOK)
app.command("inspect", epilog=inspect.EPILOG, rich_help_panel=OTHERS)(inspect.inspect)
app.command("mounts", epilog=mounts.EPILOG, rich_help_panel=OTHERS)(mounts.mounts)
app.command("stdio", epilog=stdio.EPILOG, rich_help_panel=OTHERS)(stdio.stdio)
app.command("worker", epilog=worker.EPILOG, cls=WorkCommand, rich_help_panel=OPERATE)(worker.worker)
app.command("workers", epilog=workers.EPILOG, rich_help_panel=OPERATE)(workers.workers)
app.add_typer(keys.app, name="keys", rich_help_panel=OPERATE)
app.add_typer(callbacks.app, name="callbacks", rich_help_panel=OPERATE)
app.add_typer(store.app, name="store", rich_help_panel=OPERATE)
app.add_typer(config.app, name="config", rich_help_panel=OPERATE)
app.add_typer(team.app, name="team", rich_help_panel=PARTS)
for _command in commands():
    resolve_name(_command.target)(app, _command)


@cache
def of(word: str | None) -> typer.Typer:
    """Returns the commands, or only the one that the word names: reading the signatures of all takes longer than most
    of them run."""
    one = copy(app)
    one.registered_commands = [known for known in app.registered_commands if known.name == word]
    one.registered_groups = [known for known in app.registered_groups if known.name == word]
    return one if one.registered_commands or one.registered_groups else app


def start(*before: str) -> None:
    """Carries out the command line; `before` are words to put before it."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    from ..model.errors import InterlinguaError
    from ..terminal.errors import report, surprise

    try:
        words = [*before, *sys.argv[1:]]
        of(words[0] if words else None)(words, prog_name="interlingua")
    except InterlinguaError as error:
        sys.exit(report(error))
    except Exception as error:
        sys.exit(surprise(error))

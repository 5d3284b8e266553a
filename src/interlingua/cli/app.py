"""Puts the commands together, and starts the one that was asked for."""

from __future__ import annotations

import logging
import os
import sys
from copy import copy
from functools import cache
from pkgutil import resolve_name
from typing import Annotated

import typer

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
from .options import EPILOG, examples

app = typer.Typer(
    name="interlingua",
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
    """Write an agent once. Every agent protocol speaks to it.

    An agent is a Python function. `interlingua run` runs one; everything that happens in the run is kept in a local
    store, where `runs`, `threads` and `questions` look at it, also while it runs in another shell.

    New here? Start with `interlingua demo`.
    """
    if debug:
        os.environ["INTERLINGUA_DEBUG"] = "1"
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    else:
        logging.getLogger("interlingua").addHandler(logging.NullHandler())  # the terminal belongs to the agent


app.command("run", epilog=run.EPILOG)(run.run)
app.command("serve", epilog=serve.EPILOG, cls=SettingsCommand)(serve.serve)
app.command("worker", epilog=worker.EPILOG, cls=WorkCommand)(worker.worker)
app.command("workers", epilog=workers.EPILOG)(workers.workers)
app.command("dev", epilog=dev.EPILOG)(dev.dev)
app.add_typer(config.app, name="config")
app.command("mounts", epilog=mounts.EPILOG)(mounts.mounts)
app.command("stdio", epilog=stdio.EPILOG)(stdio.stdio)
app.add_typer(team.app, name="team")
app.add_typer(runs.app, name="runs")
app.add_typer(threads.app, name="threads")
app.add_typer(questions.app, name="questions")
app.add_typer(audit.app, name="audit")
app.add_typer(keys.app, name="keys")
app.add_typer(callbacks.app, name="callbacks")
app.add_typer(store.app, name="store")
app.command("inspect", epilog=inspect.EPILOG)(inspect.inspect)
app.command("demo", epilog=examples("interlingua demo", "interlingua demo --store tour.db"))(demo.demo)
for _command in commands():
    resolve_name(_command.target)(app, _command)


@cache
def of(word: str | None) -> typer.Typer:
    """The commands, or only the one that the word names: to read the signatures of all takes longer than most of them
    do."""
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

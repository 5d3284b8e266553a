"""`interlingua config`: shows and checks the settings of `interlingua serve`, and writes a first file of them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..flags import SettingsCommand, given
from ..options import Json, examples

if TYPE_CHECKING:
    from ...server.config.check import Checked
    from ...server.config.load import Config
    from ...server.paths import Place

app = typer.Typer(
    no_args_is_help=True,
    help="Show, check and write the settings of `interlingua serve`.\n\nThey come from flags, variables and a file "
    "(`interlingua.toml`).",
)

File = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FILE]", help="The config file; by default `$INTERLINGUA_CONFIG`, or `./interlingua.toml`.",
        show_default=False,
    ),
]  # fmt: skip


def _read(file: Path | None, flags: dict[str, Any] | None = None) -> tuple[Config, Place]:
    from ...server.config.load import read
    from ...server.paths import Place

    flags = flags or {}
    place = Place(config=file)
    # Then `serve` takes nothing of the project's file but its store.
    named = any(flags.get(kind) for kind in ("agents", "teams", "mounts"))
    return read(place.named_file if named else place.file, flags, store_from=place.file), place


@app.command(
    "show",
    cls=SettingsCommand,
    epilog=examples(
        "interlingua config show",
        "interlingua config show interlingua.toml --changed",
        "interlingua config show --changed --port 9000 --mount connect+http://other:8000/connect",
    ),
)
def show(
    ctx: typer.Context,
    file: File = None,
    changed: Annotated[bool, typer.Option("--changed", help="Show only settings that are not the default.")] = False,
    as_json: Json = False,
) -> None:
    """Print the settings in force, and the origin of each.

    The origin is a flag, a variable, the file and its line, or the default.

    The command takes the flags of `interlingua serve`, and shows the settings that `serve` would use with them. The
    output is TOML, without secrets.
    """
    import json

    from ...server.config import show as config_write

    config, _ = _read(file, given(ctx))
    config.check()
    if as_json:
        sys.stdout.write(json.dumps(config_write.as_json(config), indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write("\n".join(config_write.effective(config, changed=changed)) + "\n")


@app.command("check", epilog=examples("interlingua config check", "interlingua config check prod.toml --json"))
def check(file: File = None, as_json: Json = False) -> None:
    """Check a whole config, and report every mistake.

    Keys and values, agents, teams, mounts and doors are checked.

    Exit codes: 0 no mistakes · 1 no mistakes, but a mount is down · 2 mistakes
    """
    from ...terminal.session import go

    go(_check(file, as_json))


async def _check(file: Path | None, as_json: bool) -> int:
    import msgspec

    from ...server.config.check import check

    config, place = _read(file)
    found = await check(config, place.project)
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    else:
        _print(found)
    if found.errors:
        return 2
    return 1 if any(not one.up for one in found.mounts) else 0


def _print(found: Checked) -> None:
    from rich.text import Text

    from ...terminal.console import clean, console, error_console

    for problem in found.problems:
        style, name = ("bold red", "error") if problem.severity == "error" else ("yellow", "warning")
        error_console().print(Text.assemble((f"{name}: ", style), clean(str(problem))), soft_wrap=True)
    for origin, agents in found.agents.items():
        console().print(Text(clean(f"{origin}: {', '.join(agents)}")), soft_wrap=True)
    for mount in found.mounts:
        told = f"up; {', '.join(mount.agents) or 'no agents'}" if mount.up else "wrong" if mount.wrong else "down"
        console().print(Text(clean(f"{mount.mount}: {told}")), soft_wrap=True)
    if not found.problems:
        console().print("no mistakes")


@app.command("init", epilog=examples("interlingua config init", "interlingua config init prod.toml --all"))
def init(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="The file to write; by default `interlingua.toml`.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Include every setting.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented config file that serves the agents beside it."""
    from ...server.config.show import template
    from ...server.project import CONFIG
    from ...terminal.errors import CommandError

    path = file or Path(CONFIG)
    text = template(_files_with_agents(path.parent), everything=everything)
    try:
        with path.open("w" if force else "x", encoding="utf-8") as target:
            target.write(text)
    except FileExistsError:
        raise CommandError(f"{path} already exists", hint="--force overwrites it") from None
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from None
    typer.echo(f"wrote {path}; try: interlingua config check {path}" if file else f"wrote {path}")


def _files_with_agents(folder: Path) -> list[str]:
    """Finds Python files that look as if they define agents. Runs none of them."""
    marks = re.compile(r"^\s*@(\w+\.)?agent\b", re.MULTILINE)
    found = []
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if "interlingua" in text and marks.search(text):
            found.append(path.name)
    return found

"""`interlingua manifest`: writes and checks agent manifests of the Agent Connect Protocol."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...cli.options import Json, examples

if TYPE_CHECKING:
    from ...engine.agents.agent import Agent
    from ..base import Command

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Write and check manifests of the Agent Connect Protocol.\n\n"
    "A manifest says what an agent takes, gives and asks, and how it is deployed. Other tools read it to deploy the "
    "agent, or to generate code that calls it.",
)


def add_manifest(to: typer.Typer, command: Command) -> None:
    to.add_typer(app, name=command.name, rich_help_panel=command.panel)


_SERVER = "http://127.0.0.1:8000/connect"


class ExtensionName(StrEnum):
    CURRENT = "current"
    OLD = "old"


@app.command(
    "export",
    epilog=examples(
        "interlingua manifest export agents.py --agent echo -o echo.json",
        "interlingua manifest export agents.py --url https://agents.example.org/connect -o manifests/",
    ),
)
def export(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="What has the agents, as for `run`.")],
    agent: Annotated[
        list[str] | None,
        typer.Option("--agent", metavar="NAME", help="Which of its agents (repeatable).", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write it, instead of stdout; a folder gets one file per agent.",
            show_default=False,
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", help=f"Where the agents are served; {_SERVER} without this.", show_default=False),
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", help="A Docker image that serves them.", show_default=False)
    ] = None,
    author: Annotated[
        list[str] | None, typer.Option("--author", help="Who made them (repeatable).", show_default=False)
    ] = None,
    extension_name: Annotated[
        ExtensionName,
        typer.Option("--extension-name", help="The name of the manifest's extension; tools before June 2025 want old."),
    ] = ExtensionName.CURRENT,
) -> None:
    """Write the manifest of an agent, or of several.

    What code cannot know (authors, skills, locators, env_vars, agent_deps, other deployment_options) can stand in the
    agent's metadata, under `manifest`.
    """
    from ...terminal.session import go

    async def work() -> None:
        _write(await _export(target, agent or [], url, image, author or [], extension_name), output)

    go(work())


async def _export(
    text: str, names: list[str], url: str | None, image: str | None, authors: list[str], extension: ExtensionName
) -> dict[str, dict[str, Any]]:
    from ...engine.ids import now
    from ...server.loading.target import load_to_serve
    from ...terminal.errors import CommandError
    from ...terminal.times import iso
    from ..targets import choose, parse
    from . import manifest, translate

    target = parse(text)
    agents = await load_to_serve(target)
    if names:
        import msgspec

        agents = [choose(agents, msgspec.structs.replace(target, agent=name)) for name in names]
    local = target.kind == "file"
    url = url or (_SERVER if local else target.rest.partition("+")[2] or _SERVER)
    made: dict[str, dict[str, Any]] = {}
    for agent in agents:
        made[_file_name(agent)] = manifest.export(
            agent.card, url=url, created_at=iso(now()), image=image, authors=authors,
            agent_id=translate.agent_id(agent.card) if local else None,
            extension=manifest.EXTENSION if extension is ExtensionName.CURRENT else manifest.OLD_EXTENSION,
        )  # fmt: skip
    for name, document in made.items():
        if wrong := manifest.problems(document):
            raise CommandError(f"{name}: {'; '.join(f'{p.path}: {p.message}' for p in wrong)}")
    return made


def _write(made: dict[str, dict[str, Any]], output: Path | None) -> None:
    from ...terminal.console import as_json, note
    from ...terminal.errors import CommandError

    if output is not None and output.is_dir():
        files = {output / name: document for name, document in made.items()}
    elif len(made) != 1:
        raise CommandError(
            f"there are {len(made)} agents, and a manifest is of one: {', '.join(d['name'] for d in made.values())}",
            hint="say which one with --agent, or name a folder with -o",
        )
    elif output is None:
        typer.echo(as_json(*made.values()))
        return
    else:
        (only,) = made.values()
        files = {output: only}
    for file, document in files.items():
        try:
            file.write_text(as_json(document) + "\n")
        except OSError as error:
            raise CommandError(f"cannot write {file}: {error.strerror}") from error
        note(f"wrote {file}")


def _file_name(agent: Agent[..., Any]) -> str:
    return f"{agent.card.name}-{agent.card.version}.json".replace("/", "_")


@app.command(
    "check", epilog=examples("interlingua manifest check echo.json", "interlingua manifest check *.json --json")
)
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Manifests, or descriptors.")],
    json: Json = False,
) -> None:
    """Check manifests: their fields, the rules between them, and that every schema in them is one.

    Takes both names of the extension, the earlier form (metadata, specs, deployment), and bare descriptors. Tells
    everything that is wrong, with file and JSON pointer. Exit code 1 where something is.
    """
    from ...model.pointers import display
    from ...terminal.console import as_json, clean
    from ...terminal.errors import ExitCode

    checked = [(file, *_check(file)) for file in files]
    if json:
        typer.echo(
            as_json(
                [{"file": str(file), "form": form, "ok": not found, "problems": found} for file, form, found in checked]
            )
        )
    else:
        for file, form, found in checked:
            for problem in found:
                typer.echo(clean(f"{file}: {display(problem['path'])}: {problem['message']}"))
            if not found:
                typer.echo(f"{file}: this {form} is good")
    raise typer.Exit(ExitCode.FAILED if any(found for _, _, found in checked) else ExitCode.SUCCEEDED)


def _check(file: Path) -> tuple[str | None, list[dict[str, str]]]:
    import msgspec

    from ...transports.json_text import fault
    from . import manifest

    try:
        data = file.read_bytes()
        document = msgspec.json.decode(data)
    except OSError as error:
        return None, [{"path": "", "message": f"cannot be read: {error.strerror}"}]
    except (msgspec.DecodeError, RecursionError):
        return None, [{"path": "", "message": fault(data.decode(errors="replace"))}]
    found = [msgspec.to_builtins(problem) for problem in manifest.problems(document)]
    return manifest.form_of(document), found

"""`interlingua team`: check a team of agents, draw it, and run it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...options import EXIT_CODES, Json, NoInput, Store, examples

if TYPE_CHECKING:
    from ....model.team.manifest import Problem, Team

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Check, draw and run teams of agents.\n\n"
    "A team is a folder of manifests (JSON, YAML or TOML), with a `team.toml` for its tool servers, limits and error "
    "policy.",
)

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="DIR|FILE", help="The folder of the team, or one file with the whole team.", show_default=False
    ),
]  # fmt: skip
Model = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="PROVIDER:NAME", help="The model of agents without one.", show_default=False
    ),
]  # fmt: skip


class Format(StrEnum):
    SVG = "svg"
    MERMAID = "mermaid"


# -- init -----------------------------------------------------------------------------------------------------


@app.command("init", epilog=examples("interlingua team init", "interlingua team init my-team"))
def init(
    folder: Annotated[
        Path,
        typer.Argument(metavar="[DIR]", help="The folder to create."),
    ] = Path("sales-team"),
) -> None:
    """Write an example team: three agents with manifests, and their tool servers.

    It works without a model: `handlers.py` has its agents as Python functions.
    """
    from ....terminal.errors import CommandError
    from ...demo.processes import copy_team

    try:
        copy_team("sales-team", folder)
    except FileExistsError:
        raise CommandError(
            f"there is a folder {folder} already", hint="name another: interlingua team init DIR"
        ) from None
    except OSError as error:
        raise CommandError(f"{folder} cannot be written: {error.strerror or error}") from None
    typer.echo(f"{folder} is written; try: interlingua team check {folder}")


# -- check ----------------------------------------------------------------------------------------------------


@app.command(
    "check",
    epilog=examples(
        "interlingua team check sales-team",
        "interlingua team check sales-team --probe",
        "interlingua team check sales-team --json",
    ),
)
def check(
    team: Folder,
    probe: Annotated[
        bool, typer.Option("--probe", help="Start the tool servers, and check that they have the allowed tools.")
    ] = False,
    model: Model = None,
    json: Json = False,
) -> None:
    """Check a team, and explain it.

    The command reports every mistake, with its file, its JSON pointer and a remedy. For a team without mistakes, it
    shows the first agent of a task, who may delegate to whom and when, who oversees whom, the tools, scopes, limits and
    models of each agent, and the policy for errors. A team with a member without a model or a handler can be drawn, but
    not run. The exit code is 1 with mistakes; warnings do not count.
    """
    from ....terminal.session import go

    go(_check(team, probe, model, json))


async def _check(place: Path, probe: bool, model: str | None, json: bool) -> int:
    from ....teams.files import load
    from ....terminal.console import as_json, clean
    from ....terminal.errors import ExitCode
    from . import check as team_check

    team, problems = load(place)
    folder = _folder(place)
    readable = not _errors(problems)
    described = team_check.describe(team, folder, model)
    offered: dict[str, list[str]] | None = None
    if probe and readable:
        offered, more = await _probe(team, folder)
        problems = [*problems, *more]
    problems = [*problems, *team_check.unthought(team, folder, model)]
    wrong = bool(_errors(problems))
    found = [team_check.advised(team, folder, problem) for problem in problems]
    if json:
        told: dict[str, Any] = {"ok": not wrong, "problems": found, "team": described if readable else None}
        typer.echo(as_json({**told, "offered": offered} if offered is not None else told))
        return ExitCode.FAILED if wrong else ExitCode.SUCCEEDED
    for one in found:
        for line in one.lines():
            typer.echo(clean(line))
    if wrong:
        typer.echo(f"The team {clean(team.name)} cannot be used: {_count(len(_errors(problems)), 'error')}.")
        for line in team_check.explained(described) if readable else ():
            typer.echo(line)
        return ExitCode.FAILED
    if found:
        typer.echo()
    agents, servers = _count(len(team.manifests), "agent"), _count(len(team.servers), "tool server")
    warned = f", {_count(len(found), 'warning')}" if found else ""
    typer.echo(f"The team {clean(team.name)} is sound: {agents}, {servers}{warned}.")
    for line in team_check.explained(described):
        typer.echo(line)
    for id_, tools in (offered or {}).items():
        typer.echo(clean(f"{id_} is there, with {_count(len(tools), 'tool')}: {', '.join(tools)}"))
    return ExitCode.SUCCEEDED


async def _probe(team: Team, folder: Path) -> tuple[dict[str, list[str]], list[Problem]]:
    from ....tools.servers import McpServers, check_installed
    from . import check as team_check

    if team.servers:
        check_installed()
    servers = McpServers(folder)
    try:
        return await team_check.probe(team, servers)
    finally:
        await servers.close()


def _folder(place: Path) -> Path:
    return place if place.is_dir() else place.parent


def _errors(problems: list[Problem]) -> list[Problem]:
    return [problem for problem in problems if problem.severity == "error"]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


# -- graph ----------------------------------------------------------------------------------------------------


@app.command(
    "graph",
    epilog=examples(
        "interlingua team graph sales-team -o team.svg", "interlingua team graph sales-team --format mermaid"
    ),
)
def graph(
    team: Folder,
    format_: Annotated[
        Format | None,
        typer.Option("--format", help="The format; by default that of the file name, else svg.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The file to write, instead of stdout.", show_default=False
        ),
    ] = None,
) -> None:
    """Draw who may delegate to whom, and who oversees whom, as SVG or as Mermaid.

    A team with mistakes is drawn as far as it can be read.
    """
    from ....teams import graph as drawing
    from ....teams.files import load
    from ....terminal.console import note
    from ....terminal.errors import CommandError

    found, problems = load(team)
    if not found.manifests:
        raise CommandError(
            f"there are no agents to draw in {team}: {problems[0].message}", hint=f"interlingua team check {team}"
        )
    if wrong := _errors(problems):
        note(f"{_count(len(wrong), 'error')} in this team; see: interlingua team check {team}")
    by_name = Format.MERMAID if output is not None and output.suffix in (".mmd", ".mermaid") else Format.SVG
    drawn = drawing.mermaid(found) if (format_ or by_name) is Format.MERMAID else drawing.svg(found)
    if output is None:
        typer.echo(drawn, nl=False)
        return
    try:
        output.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {output}: {error.strerror}") from error
    note(f"wrote {output}")


# -- run ------------------------------------------------------------------------------------------------------


@app.command(
    "run",
    epilog=examples(
        'interlingua team run sales-team "analyse the sales of last quarter" --model openai:gpt-5',
        "interlingua team run sales-team @task.txt --json",
        "interlingua team run sales-team --resume T1",
    )
    + "\n\n"
    + EXIT_CODES,
)
def run(
    team: Folder,
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK",
            help="The task of the team: text, or a JSON object. `-` reads stdin, `@FILE` a file.",
            show_default=False,
        ),
    ] = None,
    model: Model = None,
    store: Store = None,
    events: Annotated[
        bool, typer.Option("--events", help="Print the events of all runs of the task as JSON lines.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the end and the conversation as JSON, instead of the result.")
    ] = False,
    no_input: NoInput = False,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="TASK", help="Resume this task (T1), instead of starting one.", show_default=False
        ),
    ] = None,
) -> None:
    """Give a team a task, and follow its conversation.

    stderr shows the messages between agents, indented by the tree of delegations, with attachments, tool calls,
    refusals, and the handling of errors. That is the owner's view: it includes results that no overseer has approved
    yet. stdout has only the result.

    Meanwhile you can type: plain text answers the open question, `@analyst-1 text` sends a message to an agent, `/tree`
    shows who works on what, `/cancel` (or Ctrl-C) cancels. Without a terminal, a question leaves the task waiting:
    answer with `interlingua questions answer`, then continue with `--resume`.
    """
    import contextlib
    import sys

    from ....terminal.errors import CommandError
    from ....terminal.session import go
    from .run import run as work

    if events and json:
        raise CommandError("--events and --json both print on stdout; take one of them")
    out = sys.stdout
    # Text that an agent's code prints must not mix with the result.
    with contextlib.redirect_stdout(sys.stderr):
        go(work(out, team, task, model=model, store=store, events=events, json=json, resume=resume, no_input=no_input))

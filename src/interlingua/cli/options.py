"""Options and help texts that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

EXIT_CODES = (
    "**Exit codes:** 0 succeeded · 1 failed · 2 usage or bad input · 3 not found · 4 waits for an answer · "
    "5 conflict (busy, or already answered or ended) · 124 timed out · 130 cancelled"
)


def examples(*lines: str) -> str:
    """Examples for the end of a help text, one under the other."""
    return "**Examples**\n\n" + "\n\n".join(f"`{line}`" for line in lines)


EPILOG = (
    examples("interlingua demo", 'interlingua run agents.py "hello"', "interlingua runs list")
    + "\n\n"
    + EXIT_CODES
    + "\n\n**The store** is `$INTERLINGUA_STORE`; else `store.path` of the config file (`$INTERLINGUA_CONFIG`, else "
    "`interlingua.toml` of the project); else `.interlingua/store.db` in the project's folder. That is the nearest "
    "folder, upwards from the target or the current folder, with an `interlingua.toml` or with `[tool.interlingua]` in "
    "`pyproject.toml`. Colours follow `NO_COLOR`."
)

Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", help="Write every message to FILE, as JSON lines without secrets.",
        show_default=False,
    ),
]  # fmt: skip


def store_option(without: str) -> Any:
    """Returns the option `--store`. `without`: the store that is used by default."""
    text = f"The store: a file, or postgresql://…. By default {without}."
    return typer.Option("--store", metavar="PATH", help=text, show_default=False)


Store = Annotated[
    Path | None, store_option("`$INTERLINGUA_STORE`, else that of the config file, else the project's own")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")]
NoInput = Annotated[
    bool, typer.Option("--no-input", help="Never ask: a question leaves the run waiting, with exit code 4.")
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="KEY", envvar="INTERLINGUA_KEY", help="A key of the server, if it wants one.",
        show_default=False,
    ),
]  # fmt: skip
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", show_default=False,
        help="The config file. By default `$INTERLINGUA_CONFIG`; or `./interlingua.toml` if no target is named. The "
        "store of that file is used in any case.",
    ),
]  # fmt: skip
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
RunId = Annotated[
    str, typer.Argument(metavar="RUN", help="The id of a run, a unique part of it, or `last`.", show_default=False)
]
RunIds = Annotated[
    list[str],
    typer.Argument(metavar="RUN...", help="Ids of runs, unique parts of them, or `last`.", show_default=False),
]
ThreadId = Annotated[
    str, typer.Argument(metavar="THREAD", help="The id of a thread, or a unique part of it.", show_default=False)
]
QuestionId = Annotated[
    str, typer.Argument(metavar="QUESTION", help="The id of a question, or a unique part of it.", show_default=False)
]
QuestionToAnswer = Annotated[
    str,
    typer.Argument(
        metavar="QUESTION|RUN", show_default=False,
        help="The id of a question, or of a run that asks one question, or a unique part of it. At a terminal also "
        "`last`.",
    ),
]  # fmt: skip
Answer = Annotated[
    str | None,
    typer.Argument(
        metavar="ANSWER",
        help="`y` or `n`; the number or id of a choice; text; or JSON. `-` reads stdin, `@FILE` a file. By default the "
        "command asks you.",
        show_default=False,
    ),
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", help="The reason, for questions of yes or no.", show_default=False),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")]

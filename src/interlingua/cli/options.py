"""Options and help texts that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

EXIT_CODES = (
    "**Exit codes:** 0 succeeded · 1 failed · 2 usage or bad input · 3 not found · 4 waits for an answer · "
    "5 conflict (busy, answered or ended already) · 124 timed out · 130 cancelled"
)


def examples(*lines: str) -> str:
    """Examples for the end of a help text, one under the other."""
    return "**Examples**\n\n" + "\n\n".join(f"`{line}`" for line in lines)


EPILOG = (
    examples("interlingua demo", 'interlingua run agents.py "hello"', "interlingua runs list")
    + "\n\n"
    + EXIT_CODES
    + "\n\nThe store is `$INTERLINGUA_STORE`, else `store.path` of the config file (`$INTERLINGUA_CONFIG`, else "
    "`interlingua.toml` of the project), else `.interlingua/store.db` in the project's folder: the nearest one, "
    "upwards from the target or the current folder, with an `interlingua.toml` or `[tool.interlingua]` in "
    "`pyproject.toml`. Colours follow `NO_COLOR`."
)

Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", help="Write every message to FILE, one JSON line each, secrets left out.",
        show_default=False,
    ),
]  # fmt: skip


def store_option(without: str) -> Any:
    """`--store`, with what is used without it."""
    told = f"The store to use: a file, or postgresql://…. Without it {without}."
    return typer.Option("--store", metavar="PATH", help=told, show_default=False)


Store = Annotated[
    Path | None, store_option("`$INTERLINGUA_STORE`, else that of the config file, else the project's own")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether you are sure.")]
RunId = Annotated[
    str, typer.Argument(metavar="RUN", help="Its id, any part of it that no other has, or `last`.", show_default=False)
]
RunIds = Annotated[
    list[str],
    typer.Argument(metavar="RUN...", help="Ids, any parts that no others have, or `last`.", show_default=False),
]
ThreadId = Annotated[
    str, typer.Argument(metavar="THREAD", help="Its id, or any part of it that no other has.", show_default=False)
]
QuestionId = Annotated[
    str, typer.Argument(metavar="QUESTION", help="Its id, or any part of it that no other has.", show_default=False)
]
QuestionToAnswer = Annotated[
    str,
    typer.Argument(
        metavar="QUESTION|RUN", show_default=False,
        help="The question's id, or that of a run that asks one question, or any part of it that no other has; or "
        "`last`, at a terminal.",
    ),
]  # fmt: skip
Answer = Annotated[
    str | None,
    typer.Argument(
        metavar="ANSWER",
        help="`y` or `n`; the number or id of a choice; text; or JSON. `-` reads stdin, `@FILE` a file. "
        "Without it you are asked.",
        show_default=False,
    ),
]
Reason = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Why; for questions of yes or no.", show_default=False)
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many to show at most.")]

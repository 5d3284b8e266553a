"""`interlingua stdio`: agents over stdin and stdout, for programs that start their agents themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...protocols.installed import protocols
from ..options import Trace, examples, store_option

EPILOG = examples(
    "interlingua stdio --as editor agents.py",
    "interlingua stdio --as mcp agents.py",
    "interlingua stdio --as peer agents.py",
    "interlingua stdio --as cap team:sales",
    "interlingua stdio --as editor 'connect+http://127.0.0.1:8000/connect#echo'",
    "interlingua stdio --as editor agents.py --trace wire.jsonl",
)

_SPOKEN = [protocol.name for protocol in protocols() if protocol.stdio]


def stdio(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET...", help="The agents to serve: any targets of `interlingua run`.", show_default=False
        ),
    ],
    protocol: Annotated[str, typer.Option("--as", metavar="PROTOCOL", help=f"The protocol: {', '.join(_SPOKEN)}.")],
    trace: Trace = None,
    store: Annotated[
        Path | None,
        store_option("`$INTERLINGUA_STORE`, else that of the config file, else the project's own"),
    ] = None,
) -> None:
    """Serve agents on stdin and stdout, for editors and assistants.

    Standard output has only the protocol: prints of agents go to standard error. The command ends with its standard
    input; the next process that serves the same agents continues the runs that are left.
    """
    from ..fast_stdio import serve_pipes

    raise typer.Exit(serve_pipes(targets, protocol, trace, store))

"""`interlingua stdio`: agents over stdin and stdout, for programs that start their agents themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Store, examples

EPILOG = examples(
    "interlingua stdio --as editor agents.py",
    "interlingua stdio --as editor 'connect+http://127.0.0.1:8000/connect#echo'",
    "interlingua stdio --as editor agents.py --trace wire.jsonl",
)


def stdio(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="TARGET...", help="What to serve: anything that can be run.", show_default=False),
    ],
    protocol: Annotated[str, typer.Option("--as", metavar="PROTOCOL", help="The protocol to speak: editor.")],
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE", help="Write every message to FILE, one JSON line each, secrets left out."
        ),
    ] = None,
    store: Store = None,
) -> None:
    """Serve agents on stdin and stdout, as editors expect it of an agent that they start.

    Standard output carries the protocol and nothing else: what agents print goes to standard error. Ends when its
    standard input does; what still runs then is finished by the next process that serves the same agents.
    """
    from ..transports.pipes import divert_stdio

    pipes = divert_stdio()  # before anything of the user's is imported
    from .session import go

    go(_stdio(targets, protocol, trace, store, pipes))


async def _stdio(
    targets: list[str], protocol: str, trace: Path | None, store: Path | None, pipes: tuple[int, int]
) -> int:
    from ..app.paths import default_store
    from ..app.stdio import serve_stdio
    from ..app.targets import load_to_serve, parse

    agents = [agent for target in targets for agent in await load_to_serve(parse(target))]
    await serve_stdio(protocol, store or default_store(), agents, pipes, trace=trace)
    return 0

"""`interlingua dev`: a whole cluster on one machine, to try things on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import examples

if TYPE_CHECKING:
    from ...server.dev.local_cluster import DevSettings

EPILOG = examples(
    "interlingua dev agents.py",
    "interlingua dev agents.py team:sales --workers 5 --port 9000",
    "interlingua dev agents.py --reload",
)


def dev(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET...", help="Files with agents, `team:DIR`, or mounts.",
            show_default=False,
        ),
    ],
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="The number of workers.")] = 3,
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="The port; 0 takes any free one.")] = 8000,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="The folder that keeps everything between starts.")
    ] = Path(".interlingua/cluster"),
    reload: Annotated[bool, typer.Option("--reload", help="Reload changed files.")] = False,
) -> None:  # fmt: skip
    """Start a whole cluster on this machine.

    It has PostgreSQL, NATS, one process that serves and several workers that run the agents.

    It is for development: everything is on loopback, and `pip install 'interlingua[cluster]'` installs all that it
    needs. Kill a worker, and its runs go on elsewhere; a process that ends is started again. Ctrl-C stops all of them,
    and the next start finds their data.
    """
    from ...protocols.targets import parse
    from ...server.dev.local_cluster import DevSettings
    from ...server.paths import Place
    from ...terminal.session import go

    project = Place(targets=[parse(text) for text in targets]).project
    settings = DevSettings(
        folder=folder, targets=targets, project=project, workers=workers,
        serve=["--port", str(port)], both=["--reload"] if reload else [],
    )  # fmt: skip
    go(_dev(settings))


async def _dev(settings: DevSettings) -> int:
    import asyncio
    import signal

    from ...server.dev.local_cluster import cluster
    from ...terminal.console import clean
    from ..serve_loop import say

    width = len(f"worker-{settings.workers}")

    def told(name: str, line: str) -> None:
        say(f"{name:<{width}} | {clean(line)}")

    loop = asyncio.get_running_loop()
    over: asyncio.Future[int] = loop.create_future()

    def end() -> None:
        if not over.done():
            over.set_result(0)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end)
    async with cluster(settings, told, over):
        if not over.done():
            say(f"For commands beside it: . {settings.folder / 'env'}")
            say("Ctrl-C stops.")
        code = await over
        loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C leaves at once
    return code

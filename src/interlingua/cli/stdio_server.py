"""Serves agents on this process's stdin and stdout: the work behind `interlingua stdio`, whichever module read the
command line."""

from __future__ import annotations

from pathlib import Path


def serve_pipes(targets: list[str], protocol: str, trace: Path | None, store: Path | None) -> int:
    """Serves until the peer is gone. Returns the exit code."""
    from ..transports.process.pipes import divert_stdio

    pipes = divert_stdio()  # before anything of the user's is imported
    from ..terminal.session import finish

    return finish(_serve(targets, protocol, trace, store, pipes))


async def _serve(
    targets: list[str], protocol: str, trace: Path | None, store: Path | None, pipes: tuple[int, int]
) -> int:
    from ..protocols.targets import parse
    from ..server.loading.target import load_to_serve
    from ..server.paths import Place
    from ..server.stdio import serve_stdio

    parsed = [parse(target) for target in targets]
    place = Place(store, parsed)
    agents = [agent for target in parsed for agent in await load_to_serve(target, place.project.root)]
    project = place.project.claim(place.store)
    await serve_stdio(
        protocol, place.store, agents, pipes, trace=trace, bus=place.bus, project=project, root=place.project.root
    )
    return 0

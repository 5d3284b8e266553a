"""Serves agents on our own stdin and stdout: the work behind `interlingua stdio`, however it was read."""

from __future__ import annotations

from pathlib import Path


def serve_pipes(targets: list[str], protocol: str, trace: Path | None, store: Path | None) -> int:
    """Serve until the peer is gone. Returns the exit code."""
    from ..transports.pipes import divert_stdio

    pipes = divert_stdio()  # before anything of the user's is imported
    from .session import finish

    return finish(_serve(targets, protocol, trace, store, pipes))


async def _serve(
    targets: list[str], protocol: str, trace: Path | None, store: Path | None, pipes: tuple[int, int]
) -> int:
    from ..app.paths import find_bus, find_store
    from ..app.stdio import serve_stdio
    from ..app.targets import load_to_serve, parse

    agents = [agent for target in targets for agent in await load_to_serve(parse(target))]
    # The folder is the choice of the program that starts us, a server with this as a mount among them: its config file
    # does not say where agents keep what they do.
    where, bus = find_store(store, here=False), find_bus(store, here=False)
    await serve_stdio(protocol, where, agents, pipes, trace=trace, bus=bus)
    return 0

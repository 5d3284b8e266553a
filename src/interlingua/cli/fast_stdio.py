"""Serves agents on stdin and stdout: the work of `interlingua stdio`, and its start without the command-line library,
whose import takes longer than all the rest of the start.

Editors start agents with every window and wait for them. `read` knows plain command lines only; any other (a call for
help, a mistake) is read by `commands/stdio`, like every other command.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

_OPTIONS = ("--as", "--trace", "--store")


def read(arguments: list[str]) -> tuple[list[str], str, Path | None, Path | None] | None:
    """Targets, protocol, trace and store of a `stdio` command, or None for one that is not plain."""
    targets: list[str] = []
    found: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name in _OPTIONS:
            if not equals:
                value = next(rest, "-")
                if value.startswith("-"):  # perhaps the next option, and this one was left without a value
                    return None
            found[name] = value
        elif argument.startswith("-") or not argument:
            return None
        else:
            targets.append(argument)
    if not targets or "--as" not in found or not all(found.values()):
        return None
    trace, store = (Path(found[name]) if name in found else None for name in ("--trace", "--store"))
    return targets, found["--as"], trace, store


def stdio(arguments: list[str]) -> int | None:
    """Carries out a `stdio` command, and returns its exit code. None if the full parser has to read it."""
    wanted = None if os.environ.get("INTERLINGUA_DEBUG") else read(arguments)
    if wanted is None:
        return None
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    logging.getLogger("interlingua").addHandler(logging.NullHandler())
    from ..model.errors import InterlinguaError
    from ..terminal.errors import report, surprise

    try:
        return serve_pipes(*wanted)
    except InterlinguaError as error:
        return report(error)
    except Exception as error:
        return surprise(error)


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

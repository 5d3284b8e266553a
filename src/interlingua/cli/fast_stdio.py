"""Starts `interlingua stdio` without the command-line library, whose import takes longer than all the rest of the
start.

Editors start agents with every window and wait for them. This module reads plain command lines only; any other (a call
for help, a mistake) goes the way of every other command.
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
    from .stdio_server import serve_pipes

    try:
        return serve_pipes(*wanted)
    except InterlinguaError as error:
        return report(error)
    except Exception as error:
        return surprise(error)

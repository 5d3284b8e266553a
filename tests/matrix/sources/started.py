"""Starts the sources, each in a process of its own, and tells what to mount."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.kit import warm_python
from tests.matrix.behaviours import PROTOCOLS

_HERE = Path(__file__).parent


def environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What they are started with. The suite has its processes compile everything anew, into a folder of its own: for
    the libraries of these, that takes longer than all of their tests."""
    return {name: value for name, value in given.items() if name != "PYTHONPYCACHEPREFIX"}


def command(protocol: str) -> list[str]:
    return [warm_python.python(), str(_HERE / f"{protocol}_source.py")]


@contextlib.contextmanager
def started(*protocols: str) -> Iterator[dict[str, str]]:
    """The target of each. An editor's agent is started by whoever mounts it."""
    processes: list[subprocess.Popen[str]] = []
    targets: dict[str, str] = {}
    try:
        running = {}
        for protocol in protocols or PROTOCOLS:
            if protocol == "editor":
                targets[protocol] = f"editor:{' '.join(command(protocol))}"
                continue
            process = subprocess.Popen(
                command(protocol), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_HERE,
                env=environment(),
            )  # fmt: skip
            processes.append(process)
            running[protocol] = process
        for protocol, process in running.items():
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, f"the {protocol} source did not start"
            targets[protocol] = f"{protocol}+{address}"
        yield targets
    finally:
        for process in processes:
            with process:  # they end with their input
                pass

"""Starts what the matrix is about: the sources, and one hub that has mounted them all, each a process of its own.

Everything is started once for all tests of a process, and ends with it. A server has its address in what it prints.
"""

from __future__ import annotations

import contextlib
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..cli.conftest import clean_env

SOURCES = Path(__file__).parent / "sources"
COMMAND = [sys.executable, "-m", "interlingua"]

# What the mounted agents of each protocol are, for `interlingua serve`. {address}: of the source, which is a server;
# the others are started by the hub itself.
TARGETS: dict[str, str] = {
    "connect": "connect+{address}",
    "editor": "editor:{python} {source}",
    "mcp": "mcp+{address}",
    "peer": "peer+{address}",
    "cap": "cap+{address}",
}
NATIVE = "native"
SERVED: tuple[str, ...] = ()


def source(name: str) -> Path:
    return SOURCES / f"{name}_source.py"


@contextlib.contextmanager
def running_source(name: str, log: Path) -> Iterator[str]:
    """A source that is a server; what it says of itself is its address. It ends when its input does."""
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, str(source(name))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            text=True, env=clean_env(),
        )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), f"{name} did not start: {log.read_text()}"
        yield address
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def target(name: str, address: str = "") -> str:
    return TARGETS[name].format(address=address, python=sys.executable, source=source(name))


@contextlib.contextmanager
def running_hub(targets: Sequence[str], folder: Path, *options: str) -> Iterator[str]:
    """`interlingua serve`, with all doors on one port. What it gives is its address."""
    folder.mkdir(exist_ok=True)
    words = ["serve", *targets, "--port", "0", "--no-peer-ports", "--store", str(folder / "store.db"), *options]
    process = subprocess.Popen(
        [*COMMAND, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=clean_env(), cwd=folder,
    )  # fmt: skip
    said = Said(process, folder / "hub.log")
    try:
        yield said.address()
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        said.close()


class Said:
    """What a hub says while it runs: read all the time, so that it is never held up, and kept."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        assert process.stderr is not None
        self._errors, self._log = process.stderr, log
        self._found: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with self._log.open("w") as log:
            for line in self._errors:
                log.write(line)
                log.flush()
                if found := re.search(r"Serving on (http://\S+)", line):
                    self._found.put(found[1])
        self._found.put(None)

    def address(self) -> str:
        found = self._found.get(timeout=60)
        assert found is not None, f"the hub did not start: {self._log.read_text()}"
        return found

    def close(self) -> None:
        self._thread.join()
        self._errors.close()


@contextlib.contextmanager
def running_all(folder: Path, names: Sequence[str]) -> Iterator[str]:
    """The hub, with these sources behind it, and our own agents beside them."""
    with contextlib.ExitStack() as stack:
        targets = []
        for name in names:
            served = "{address}" in TARGETS[name]
            address = stack.enter_context(running_source(name, folder / f"{name}.log")) if served else ""
            targets.append(target(name, address))
        native = str(SOURCES / "native.py")
        yield stack.enter_context(running_hub([*targets, native], folder / "hub"))

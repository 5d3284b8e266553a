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
from .sources.started import started

NATIVE = str(Path(__file__).parent / "sources" / "native.py")
COMMAND = [sys.executable, "-m", "interlingua"]


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
def running_all(folder: Path) -> Iterator[str]:
    """The hub, with every source behind it, and our own agents beside them."""
    with started() as targets, running_hub([*targets.values(), NATIVE], folder) as address:
        yield address

"""Starts what the matrix is about: the sources, and one hub that has mounted them all, each a process of its own.

Everything is started once for all tests of a process, and ends with it. A server has its address in what it prints.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.kit.commands import clean_env, start_command

from .sources.started import environment, started

NATIVE = str(Path(__file__).parent / "sources" / "native.py")
COMMAND = [sys.executable, "-m", "interlingua"]


@contextlib.contextmanager
def running_hub(targets: Sequence[str], folder: Path, *options: str) -> Iterator[str]:
    """`interlingua serve`, with all doors on one port. What it gives is its address."""
    folder.mkdir(exist_ok=True)
    words = ["serve", *targets, "--port", "0", "--no-peer-ports", "--store", str(folder / "store.db"), *options]
    process = start_command(words, environment(clean_env()), folder, stdout=None)
    said = Said(process, folder / "hub.log")
    try:
        yield said.address()
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        said.close()


@contextlib.asynccontextmanager
async def running_hub_beside(targets: Sequence[str], folder: Path, *options: str) -> AsyncIterator[str]:
    """The same for a test that has something else to do while the hub starts and ends."""
    hub = running_hub(targets, folder, *options)
    address = await asyncio.to_thread(hub.__enter__)
    try:
        yield address
    finally:
        await asyncio.to_thread(hub.__exit__, None, None, None)


@contextlib.asynccontextmanager
async def running_stdio(
    protocol: str, targets: Sequence[str], folder: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`interlingua stdio`, which ends with its input."""
    folder.mkdir(exist_ok=True)
    words = ["stdio", "--as", protocol, *targets, "--store", str(folder / "store.db")]
    with (folder / "stdio.log").open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
            env=environment(clean_env()), cwd=folder,
        )  # fmt: skip
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        await process.communicate()


class Way:
    """An address that leads to another one, which can be changed: a hub that is mounted by it need not be there yet."""

    def __init__(self, to: str) -> None:
        self.to = to
        self.address = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Way:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def lead_to(self, to: str) -> None:
        """From now on, there. Connections that are kept lead to the old place, and are cut: whoever has them knows."""
        self.to = to
        cut = list(self._tasks)
        for task in cut:
            task.cancel()
        await asyncio.gather(*cut, return_exceptions=True)

    def _accept(self, reads: asyncio.StreamReader, writes: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._lead(reads, writes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _lead(self, reads: asyncio.StreamReader, writes: asyncio.StreamWriter) -> None:
        where = urlsplit(self.to)
        there_reads, there_writes = await asyncio.open_connection(where.hostname, where.port)
        try:
            with contextlib.suppress(ConnectionError):
                await asyncio.gather(_copy(reads, there_writes), _copy(there_reads, writes))
        finally:
            there_writes.close()
            with contextlib.suppress(ConnectionError, TimeoutError):
                writes.write_eof()
                async with asyncio.timeout(60):
                    while await reads.read(1 << 16):  # until it is hung up over there too
                        pass
            writes.close()


async def _copy(reads: asyncio.StreamReader, writes: asyncio.StreamWriter) -> None:
    while data := await reads.read(1 << 16):
        writes.write(data)
        await writes.drain()
    if writes.can_write_eof():
        writes.write_eof()


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

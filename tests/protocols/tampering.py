"""Puts odd bytes into what an agent says, between a server and whoever mounts it: a proxy in this process, or a filter
around a process. What replaces a word has its length, so that no framing changes.

As a filter: python tampering.py COMMAND …
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from typing import BinaryIO

ODD = {
    b"@HALF1": rb"\ud83d",
    b"@HALF2": rb"\ude00",
    b"@BYTES": b"@BYT\xff\xc3",
    b'"@NAN-------"': b"          NaN",
    b'"@INFINITY--"': b"    -Infinity",
    b'"@LARGE-----"': b"        1e999",
    b"@BREAK": b'"!"!"!',
}
"""What an agent says, and what is made of it."""
assert all(len(word) == len(odd) for word, odd in ODD.items())

_LONGEST = max(map(len, ODD))


def tampered(data: bytes) -> bytes:
    for word, odd in ODD.items():
        data = data.replace(word, odd)
    return data


def whole(data: bytes) -> int:
    """How much of it can be passed on: all but what may be the beginning of a word."""
    for size in range(min(_LONGEST - 1, len(data)), 0, -1):
        if any(word.startswith(data[-size:]) for word in ODD if data[-size:] not in (b'"',)):
            return len(data) - size
    return len(data)


@contextlib.asynccontextmanager
async def proxy(address: str) -> AsyncIterator[str]:
    """The address (HOST:PORT) of one, for the server at another."""
    host, _, port = address.rpartition(":")
    tasks: set[asyncio.Task[None]] = set()

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, back: bool) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                rest += data
                size = whole(rest) if back else len(rest)
                writer.write(tampered(rest[:size]) if back else rest)
                rest = rest[size:]
                await writer.drain()
            writer.write(rest)
        with contextlib.suppress(OSError, RuntimeError):
            writer.write_eof()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection(host, int(port))
        ways = [
            asyncio.ensure_future(passed(reader, to_there, back=False)),
            asyncio.ensure_future(passed(there, writer, back=True)),
        ]
        tasks.update(ways)
        await asyncio.gather(*ways, return_exceptions=True)
        to_there.close()
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def main() -> None:
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None

    def pump(source: int, sink: BinaryIO) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(source, 65536):
                sink.write(data)
                sink.flush()
            sink.close()

    threading.Thread(target=pump, args=(0, child.stdin), daemon=True).start()
    for line in child.stdout:
        sys.stdout.buffer.write(tampered(line))
        sys.stdout.buffer.flush()
    sys.exit(child.wait())


if __name__ == "__main__":
    main()

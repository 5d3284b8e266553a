"""A way from a host of its own into this machine: `python -m tests.faults.cluster.gateway ADDRESS PORT SOCKET`.

Namespaces share the files of the machine, and so its sockets that are files: what comes to the port goes on there.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()
    writer.close()


async def join(
    one: tuple[asyncio.StreamReader, asyncio.StreamWriter], other: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    await asyncio.gather(pipe(one[0], other[1]), pipe(other[0], one[1]))


async def exit_at(path: Path, port: int) -> asyncio.Server:
    """The end of the way in this machine."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await join((reader, writer), await asyncio.open_connection("127.0.0.1", port))

    return await asyncio.start_unix_server(serve, path)


async def main() -> None:
    address, port, path = sys.argv[1:]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await join((reader, writer), await asyncio.open_unix_connection(path))

    server = await asyncio.start_server(serve, address, int(port))
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())

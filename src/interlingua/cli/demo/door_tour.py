"""Gives the demo of a protocol its door on the server of the tour."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from ...protocols.base import Protocol
from ...protocols.installed import protocols
from ...protocols.tour import Demo
from ...terminal.errors import CommandError
from .tour import Wire, command, path, show, show_json


class DoorTour:
    """The door of one protocol, with the demo that uses it."""

    def __init__(self, wire: Wire, protocol: Protocol, file: Path, store: Path) -> None:
        """`file`: of the agent in the first part; `store`: of the server."""
        self.protocol = protocol
        self.demo: Demo = protocol.load("demo")
        self._wire = wire
        self._file = file
        self._store = store

    async def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, *,
        refused: bool = False, quiet: bool = False,
    ) -> Any:  # fmt: skip
        path = self.protocol.prefix + path
        if not quiet:
            self._wire.shown(method, path, body, headers)
        return await self._wire.request(method, path, body, headers, (400,) if refused else (200, 202))

    async def events(self, path: str, headers: dict[str, str] | None = None) -> AsyncIterator[tuple[str | None, Any]]:
        path, id_ = self.protocol.prefix + path, None
        self._wire.shown("GET", path, None, headers, "-N")
        async with self._wire.stream("GET", path, headers=headers) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("id:"):
                    id_ = line[3:].strip()
                elif line.startswith("data:"):
                    yield id_, json.loads(line[5:])

    @contextlib.asynccontextmanager
    async def stdio(self) -> AsyncIterator[_Program]:
        name = self.protocol.name
        command(f"stdio --as {name} {path(self._file)} --store {path(self._store)}")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "interlingua", "stdio", "--as", name, str(self._file), "--store", str(self._store),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        program = _Program(process)
        try:
            yield program
        finally:
            await program.close()

    def show(self, line: str) -> None:
        show(line)

    def show_json(self, value: Any) -> None:
        show_json(value)


class _Program:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def send(self, message: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        await self._process.stdin.drain()

    async def receive(self) -> Any:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise CommandError("the agent's process ended before it answered")
        return json.loads(line)

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


class Doors:
    """The doors of all protocols that have a demo, the preferred one first."""

    def __init__(self, wire: Wire, file: Path, store: Path) -> None:
        self.all = [DoorTour(wire, protocol, file, store) for protocol in protocols() if protocol.demo]

    def first(self, has: Callable[[Demo], object]) -> DoorTour:
        """Returns the preferred door of those whose demo has a scene."""
        return next(door for door in self.all if has(door.demo) is not None)


def mountable() -> list[tuple[Protocol, str]]:
    """Returns the protocols whose doors can be mounted at an HTTP address, each with the scheme of the target."""
    return [
        (protocol, scheme)
        for protocol in protocols()
        if protocol.door
        and (scheme := next((kind.scheme for kind in protocol.targets if kind.scheme.endswith("+http")), None))
    ]

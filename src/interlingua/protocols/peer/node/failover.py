"""One node on several replicas: one of them runs it, the others pass on its requests and stand by.

The note that `hosting` keeps names the replica that runs the node, and the store tells if its worker is alive. When it
is dead, the first replica that takes its note starts the node: the same name, token and journal, so peers find it
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from starlette.types import Scope

from ....engine.ports import Replica
from ....model.errors import InterlinguaError, InvalidRequest
from ....model.run import Caller
from ....transports.tcp_forward import Pipe
from ..config import WS_PORT
from ..door.http import PeerDoor
from .hosting import Hosting, Serve
from .node import Node

log = logging.getLogger("interlingua.peer")

_LOOK_EVERY = 0.5  # seconds
_WAIT = 100  # tenths of a second
_NODE = "node"


class Standby:
    """The node of a server, in this process or at another replica."""

    def __init__(self, door: PeerDoor, hosting: Hosting, make: Callable[[], Node]) -> None:
        self._door = door
        self.hosting = hosting
        self._make = make
        self._replicas = hosting.node.engine.cluster.membership
        self._serve: Serve | None = None
        self._away = False  # another process has it
        self._holder: Replica | None = None  # the replica that had it at the last look
        self._watching: asyncio.Task[None] | None = None
        self._pipes: list[Pipe] = []

    # -- passing requests on ------------------------------------------------------------------------------

    def elsewhere(self, scope: Scope) -> str | None:
        return _NODE if self._away else None

    async def locate(self, named: str, caller: Caller | None) -> Replica | None:
        """Returns the replica that runs the node. Between the death of one and the start of the next, callers wait.
        Some paths are public, so the caller is not checked here."""
        for _ in range(_WAIT):
            if not self._away:
                return None
            if self._holder is not None and self._replicas.living(self._holder.id) == self._holder:
                return self._holder
            self._holder = await self._find()
            if self._holder is None:
                await asyncio.sleep(0.1)
        return None

    async def _find(self) -> Replica | None:
        held = await self.hosting.holder()
        if held is None:
            return None
        if self._replicas.of_worker(held[0]) is None:
            await self._replicas.look()
        return self._replicas.of_worker(held[0])

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self, serve: Serve | None) -> list[str]:
        self._serve = serve
        if await self.hosting.hold_as_server():
            await self.hosting.start(serve)
            self._watch()
            return self.hosting.lines() if serve is not None else []
        name = self.hosting.node.name
        note = f"the node {name} is run by another process on this store: its ports are there"
        held = await self.hosting.holder()
        if held is not None and not held[1]:
            await self.hosting.hold_any()  # nothing can be passed on to it: this one has records of its own
            await self.hosting.start(None)
        else:
            self._away = True
            await self._open_pipes()
            self._watch()
        return [note] if serve is not None else []

    def _watch(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        engine = self.hosting.node.engine
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            try:
                if self._away:
                    await self._take_over()
                elif (held := await self.hosting.holder()) is not None and held[0] != engine.cluster.worker_id:
                    await self._lose()
            except InterlinguaError as error:
                log.error("the node %s could not be taken over: %s", self.hosting.node.name, error)

    async def _take_over(self) -> None:
        if await self.hosting.holder() is not None or not await self.hosting.hold_as_server():
            return
        await self._close_pipes()
        try:
            await self.hosting.start(self._serve)
        except BaseException as error:
            await self.hosting.release()
            await self._renew()
            if not isinstance(error, InvalidRequest):
                raise
            log.warning("the node %s cannot start here: %s", self.hosting.node.name, error)
            await self._open_pipes()
            return
        self._away = False
        self._replicas.taken_over += 1
        log.warning("the node %s was taken over from a process that is gone", self.hosting.node.name)

    async def _lose(self) -> None:
        """Stops the node here, because another process took it: it had reason to take this process for dead."""
        log.error("the node %s was taken over by another process: it ends here", self.hosting.node.name)
        self._away = True
        await self._door.close()
        await self.hosting.close()
        await self.hosting.stop()
        await self._renew()
        await self._open_pipes()

    async def _renew(self) -> None:
        """Makes a new node, because a node can be started only once."""
        node = self._make()
        node.files.base = self.hosting.node.files.base
        self.hosting = Hosting(node)
        self._door.use(node)

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._door.close()
        await self._close_pipes()
        await self.hosting.close()

    async def stop(self) -> None:
        await self.hosting.stop()

    # -- ports --------------------------------------------------------------------------------------------

    async def _open_pipes(self) -> None:
        """Opens the peers' ports on replicas without the node: a link may lead to another machine than the node's."""
        settings = self.hosting.node.settings
        if self._serve is None or not settings.listens or settings.port == 0:
            return
        wanted = [(WS_PORT if settings.port is None else settings.port, "ws")]
        if settings.tcp_port:
            wanted.append((settings.tcp_port, "tcp"))
        for port, kind in wanted:
            pipe = Pipe(self._to(kind))
            with contextlib.suppress(OSError):  # the node itself has it: this is the same machine
                await pipe.listen(settings.host, port)
                self._pipes.append(pipe)

    def _to(self, kind: str) -> Callable[[], Awaitable[tuple[str, int] | None]]:
        async def where() -> tuple[str, int] | None:
            """Returns the address at which the process with the node listens for peers: the host is the replica's
            own."""
            replica = await self.locate(_NODE, None)
            port = await self.hosting.listening(kind)
            if replica is None or port is None:
                return None
            host = replica.address.partition("://")[2].rpartition(":")[0]
            return host.strip("[]"), port

        return where

    async def _close_pipes(self) -> None:
        pipes, self._pipes = self._pipes, []
        for pipe in pipes:
            await pipe.close()

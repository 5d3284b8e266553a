"""Keeps the connection to a mounted server: opens it when it is needed, for any number of runs, and closes it when it
is idle.

A server is a process of ours or has an address; both give a link. A protocol makes its client of a link, and agrees
with the server. All of it belongs to one event loop, and ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from ..model.errors import Unavailable
from ..security.redaction import redact_text
from ..transports.channel import Channel
from ..transports.jsonrpc.connection import ConnectionLost
from ..transports.process.child_process import Child, environment, words_of
from .idle import Use

log = logging.getLogger("interlingua.mounts")

T = TypeVar("T")


# -- links ----------------------------------------------------------------------------------------------------


class Link(Protocol):
    @property
    def channel(self) -> Channel: ...

    @property
    def noise(self) -> tuple[int, str]:
        """The number of lines that were no messages, and the first of them."""
        ...

    async def why(self) -> str:
        """Returns the reason why it ended."""
        ...

    async def end(self) -> None: ...


class Source(Protocol):
    """Opens a link."""

    name: str  # for messages, without secrets
    command: list[str]  # none where it is an address

    async def open(self) -> Link: ...


class ProcessLink:
    def __init__(self, child: Child) -> None:
        self._child = child
        self.channel: Channel = child.channel
        self.end = child.end
        self.why = child.how_it_ended

    @property
    def noise(self) -> tuple[int, str]:
        return self._child.channel.noise, self._child.channel.first_noise


class AddressLink:
    def __init__(self, channel: Channel, name: str) -> None:
        self.channel = channel
        self.noise = (0, "")
        self._name = name

    async def why(self) -> str:
        return getattr(self.channel, "reason", "") or f"the connection to {self._name} ended"

    async def end(self) -> None:
        await self.channel.close()


class ProcessSource:
    """Starts a command, in a folder of its own or in ours."""

    def __init__(
        self, command: str, kind: str, *, directory: str | None = None, env: Mapping[str, str] | None = None,
        log: logging.Logger,
    ) -> None:  # fmt: skip
        """`kind` is the scheme of the target, for messages. `log` gets what the process writes to stderr."""
        self.name = redact_text(command)
        self.command = words_of(command, kind)
        self._directory = directory
        self._env = env or {}
        self._log = log

    async def open(self) -> Link:
        env = {**environment(os.environ), **self._env}
        folder = self._directory or str(Path.cwd())
        return ProcessLink(await Child.start(self.command, folder, env, clean=redact_text, log=self._log))


class AddressSource:
    """Connects to an address. A protocol says how."""

    def __init__(self, address: str, *, key: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        self.name = redact_text(address)
        self.command: list[str] = []
        self.address = address
        self.headers = {**({"authorization": f"Bearer {key}"} if key else {}), **(headers or {})}

    async def open(self) -> Link:
        return AddressLink(await self.connect(), self.name)

    async def connect(self) -> Channel:
        """Raises ConnectionError where nobody answers."""
        raise NotImplementedError


def noise_notes(noise: tuple[int, str]) -> list[tuple[str, Any]]:
    """Returns a warning about lines that were no messages, with details."""
    count, first = noise
    lines = "1 line that is no message" if count == 1 else f"{count} lines that are no messages"
    return [(f"the server wrote {lines} to its output", {"lines": count, "first": first})] if count else []


# -- keeping one ----------------------------------------------------------------------------------------------


class Client(Protocol):
    """Our side of a connection."""

    @property
    def usable(self) -> bool:
        """Tells if the connection can take another run."""
        ...

    async def run(self) -> None:
        """Reads messages until the server is gone."""
        ...


C = TypeVar("C", bound=Client)


class Keeper(ABC, Generic[C]):
    """The connection to one server."""

    def __init__(self, source: Source, *, start_timeout: float, idle_timeout: float) -> None:
        self.source = source
        self.starts = 0
        self.lost: Callable[[], None] = lambda: None  # called when the server is gone, unless we let it go
        self.changed: Callable[[], None] = lambda: None  # called when the server may have other agents than before
        self.start_timeout = start_timeout
        self._idle_timeout = idle_timeout
        self._client: C | None = None
        self._link: Link | None = None
        self._reading: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._use = Use(idle_timeout, self._too_idle)
        self._told_noise = False

    # -- what a protocol says -----------------------------------------------------------------------------

    @abstractmethod
    def client(self, link: Link) -> C:
        """Makes the client of a new link."""

    @abstractmethod
    async def agree(self, client: C) -> None:
        """Begins the conversation, within the time for the start. May raise ConnectionLost and TimeoutError."""

    async def bring_up_to_date(self, client: C) -> None:
        """Brings a connection up to date before it is used."""

    # -- for runs -----------------------------------------------------------------------------------------

    @property
    def current(self) -> C | None:
        """Returns the connection where there is one."""
        return self._client

    async def connection(self) -> C:
        """Returns the connection. Opens it if there is none."""
        async with self._opening:
            try:
                return await self._ready()
            except Unavailable:
                if self._client is None or self._client.usable:
                    raise
            return await self._ready()  # the server has ended our session, and begins another

    def using(self) -> contextlib.AbstractContextManager[None]:
        """Marks the server as busy for the time of this context."""
        return self._use.counted()

    async def why(self) -> str:
        """Returns the reason why the server is gone."""
        return await self._link.why() if self._link is not None else "it was never there"

    def notes(self) -> list[tuple[str, Any]]:
        """Returns a warning about lines that were no messages, with details; once per connection."""
        if self._link is None or not self._link.noise[0] or self._told_noise:
            return []
        self._told_noise = True
        return noise_notes(self._link.noise)

    async def close(self) -> None:
        """Closes the connection. It is opened again when it is needed."""
        self._use.stop()
        await self._end()

    # -- opening and ending -------------------------------------------------------------------------------

    async def _ready(self) -> C:
        if self._client is None or not self._client.usable:
            await self._start()
        assert self._client is not None
        await self.bring_up_to_date(self._client)
        return self._client

    async def _start(self) -> None:
        self._client = None
        if self._reading is not None:
            await asyncio.wait([self._reading])  # the connection before it is ended first
        try:
            link = self._link = await self.source.open()
        except ConnectionError as error:
            raise Unavailable(f"{self.source.name} cannot be reached: {error}") from error
        self._told_noise = False
        client = self.client(link)
        reading = self._reading = asyncio.get_running_loop().create_task(_read(client, link, self.source.name))
        try:
            await self.agree(client)
        except BaseException as error:
            await self._end()
            if isinstance(error, ConnectionLost):
                does_not = "did not start" if self.source.command else "cannot be reached"
                raise Unavailable(
                    f"{self.source.name} {does_not}: {await link.why()}", transient=not self.source.command
                ) from error
            if isinstance(error, TimeoutError):
                why = f": {await link.why()}" if self.source.command else ""
                raise Unavailable(f"{self.source.name} did not answer within {self.start_timeout:g} s{why}") from error
            raise
        self._client = client
        reading.add_done_callback(self._ended)
        self.starts += 1
        self._use.rest()

    async def answered_soon(self, request: Awaitable[T]) -> T:
        """Waits for an answer that takes no work of the server. Raises Unavailable where it does not come."""
        try:
            async with asyncio.timeout(self.start_timeout):
                return await request
        except ConnectionLost as error:
            raise Unavailable(f"{self.source.name} is gone: {await self.why()}") from error
        except TimeoutError as error:
            raise Unavailable(f"{self.source.name} did not answer within {self.start_timeout:g} s") from error

    def _ended(self, reading: asyncio.Task[None]) -> None:
        if not reading.cancelled():
            self.lost()

    def _too_idle(self) -> None:
        if self._reading is not None:
            log.info("%s is let go: nobody has used it for %g s", self.source.name, self._idle_timeout)
            self._client = None  # the next caller waits for its end, and starts it again
            self._reading.cancel()

    async def _end(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])


async def _read(client: Client, link: Link, name: str) -> None:
    """Reads messages of the server until it is gone or no longer wanted; then always ends all parts that were started
    for it."""
    try:
        await client.run()
    except Exception:
        log.exception("the connection to %s failed", name)
    finally:
        ending = asyncio.ensure_future(link.end())
        while not ending.done():
            with contextlib.suppress(asyncio.CancelledError):  # it takes a few seconds at most, and must be done
                await asyncio.shield(ending)


class PerLoop(Generic[T]):
    """Makes a value for each event loop: what was opened in an ended loop is gone with it."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: tuple[asyncio.AbstractEventLoop, T] | None = None

    def get(self) -> T:
        loop = asyncio.get_running_loop()
        if self._made is None or self._made[0] is not loop:
            self._made = (loop, self._make())
        return self._made[1]

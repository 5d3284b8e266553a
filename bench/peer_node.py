"""A node in a process of its own, driven over its pipes: it sends, waits until all has arrived, and counts.

`python -m bench.peer_node` reads what to start from the first line of stdin, then an order from each line, and writes
an answer for each to stdout. It ends with its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import msgspec

from interlingua import Settings
from interlingua.protocols.peer.commands_node import hosting
from interlingua.protocols.peer.config import NodeSettings
from interlingua.protocols.peer.node.node import Node
from interlingua.protocols.peer.node.node_store import Heard

from .load import raise_file_limit
from .servers import ROOT

T = TypeVar("T")


class Start(msgspec.Struct):
    store: str
    name: str
    join: str | None = None  # the link of the peer that it sends to
    notes: bool = False  # when each event was committed


class Up(msgspec.Struct):
    """Where its control interface is, and where peers connect."""

    port: int
    link: str


class Send(msgspec.Struct, tag="send"):
    """Send messages so that this many are under way: the next one goes when one is confirmed."""

    count: int
    in_flight: int
    text: str
    pause: float = 0.0  # seconds after each


class Tally(msgspec.Struct, tag="tally"):
    """Wait until everything sent was confirmed, and count."""


class Done(msgspec.Struct):
    seconds: float = 0.0
    computed: float = 0.0  # seconds, on all cores
    letters: int = 0  # that came, ever
    again: int = 0  # that came once more
    committed: dict[int, int] = {}  # by seq: when, in nanoseconds of the clock that all processes share


Order = Send | Tally


class Driven:
    def __init__(self, node: Node, notes: bool) -> None:
        self._node = node
        self._committed: dict[int, int] = {}
        self._waiting: dict[str, asyncio.Future[None]] = {}
        if notes:
            self._feed = feed = node.journal.feed()
            self._heard, feed.heard = feed.heard, self._note  # type: ignore[method-assign]

    def _note(self, events: list[Heard]) -> None:
        now = time.monotonic_ns()
        for event in events:
            self._committed[event.seq] = now
        self._heard(events)

    async def connected(self) -> None:
        node = self._node
        while not (node.peers.connected and node.peers.connected[0].known.card):
            await asyncio.sleep(0.001)
        outbox = node.peers.connected[0].outbox
        confirmed = outbox.confirmed

        def note(message_id: str) -> None:
            confirmed(message_id)
            waiting = self._waiting.pop(message_id, None)
            if waiting is not None:
                waiting.set_result(None)

        outbox.confirmed = note  # type: ignore[method-assign]

    async def obey(self, order: Order) -> Done:
        if isinstance(order, Send):
            return await self._send(order)
        for peer in self._node.peers:
            while peer.outbox.waiting:
                await asyncio.sleep(0.001)
        letters = await self._node.engine.documents.count_letters(self._node.journal.box_in)
        committed, self._committed = self._committed, {}
        return Done(letters=letters, again=self._node.inbound.deduplicated, committed=committed)

    async def _send(self, order: Send) -> Done:
        loop, send = asyncio.get_running_loop(), self._node.sending.send
        left = order.count

        async def sender() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                sent = await send({"role": "user", "text": order.text})
                # Nothing was read from the peer since it was sent, so its confirmation is still to come.
                waiting = self._waiting[sent["message_id"]] = loop.create_future()
                await waiting
                if order.pause:
                    await asyncio.sleep(order.pause)

        begun, computed = time.perf_counter(), time.process_time()
        await asyncio.gather(*(sender() for _ in range(order.in_flight)))
        return Done(time.perf_counter() - begun, time.process_time() - computed)


async def run() -> None:
    loop = asyncio.get_running_loop()

    async def line() -> bytes:
        return await loop.run_in_executor(None, sys.stdin.buffer.readline)

    wanted = msgspec.json.decode(await line(), type=Start)
    settings = NodeSettings(
        name=wanted.name, port=0, http_port=0, join=(wanted.join,) if wanted.join else (), max_unread=10**9
    )
    async with hosting(wanted.store, [], settings, Settings(stall_warning=0)) as host:
        driven = Driven(host.node, wanted.notes)
        assert host.control is not None
        assert host.node.link is not None
        if wanted.join:
            await driven.connected()
        port = int(host.control.rpartition(":")[2])
        say(Up(port, host.node.link))
        orders = msgspec.json.Decoder(Order)
        while order := await line():
            say(await driven.obey(orders.decode(order)))


def say(what: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.flush()


class Running:
    """A node that was started, as whoever started it sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.id = process.pid
        self.up: Up

    async def say(self, what: Any, answer: type[T]) -> T:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(what) + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the node has ended")
        return msgspec.json.decode(line, type=answer)


@contextlib.asynccontextmanager
async def started(wanted: Start) -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.peer_node", cwd=ROOT, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, limit=2**24,
    )  # fmt: skip
    running = Running(process)
    try:
        running.up = await running.say(wanted, Up)
        yield running
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


if __name__ == "__main__":
    raise_file_limit()
    asyncio.run(run())

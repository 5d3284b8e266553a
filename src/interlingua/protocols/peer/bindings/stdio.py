"""Binding B: a node for the one process that started ours, over stdin and stdout.

It has no ports and cannot reconnect: the other side is known only by its card.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import NodeSettings
from ..node.hosting import Hosting
from ..node.node import Node
from ..node.session import Session

if TYPE_CHECKING:
    from ....engine.engine import Engine
    from ....transports.channel import Channel
    from ....transports.jsonrpc.connection import Trace

_LINGER = 1.0  # seconds of silence after the end of the input: until then, answers are still on their way
_LONGEST = 5.0
_CARD = 0.2  # seconds: a program that writes one message and no card is not kept waiting


def settings_of(environment: dict[str, str]) -> NodeSettings:
    """Returns the settings of a node from the environment of its process, which the starting process sets."""
    identity = environment.get("INTERLINGUA_PEER_IDENTITY")
    return NodeSettings(
        name=environment.get("INTERLINGUA_PEER_NAME") or NodeSettings().name,
        secret=environment.get("INTERLINGUA_PEER_SECRET") or None,
        identity=Path(identity).expanduser() if identity else None,
        listens=False,
        card_wait=_CARD,
    )


async def serve_pipes(engine: Engine, channel: Channel, trace: Trace | None) -> None:
    """Serves until the other side closes our input."""
    node = Node(engine, settings_of(dict(os.environ)))
    node.bindings = ["stdio"]
    hosting = Hosting(node)
    await hosting.hold_any("~stdio")  # several programs may each have started one of us
    await hosting.start(None)
    try:
        await node.serve(Session(node, _Piped(channel, trace), binding="stdio", inbound=True, remote="stdio"))
    finally:
        await hosting.stop()


class _Piped:
    """The pipes, logged on demand. They report their end only after the last answers were written."""

    def __init__(self, channel: Channel, trace: Trace | None) -> None:
        self._channel = channel
        self._trace = trace
        self._said = asyncio.Event()
        self._heard = False

    async def receive(self) -> list[bytes]:
        frames = await self._channel.receive()
        if self._trace is not None:
            for frame in frames:
                self._trace.received(frame)
        if frames:
            self._heard = True
        elif self._heard:
            await self._last_words()
        return frames

    async def _last_words(self) -> None:
        try:
            async with asyncio.timeout(_LONGEST):
                while True:
                    self._said.clear()
                    async with asyncio.timeout(_LINGER):
                        await self._said.wait()
        except TimeoutError:
            return

    def send(self, frame: bytes) -> None:
        self._said.set()
        if self._trace is not None:
            self._trace.sent(frame)
        self._channel.send(frame)

    async def drain(self) -> None:
        await self._channel.drain()

    async def close(self) -> None:
        await self._channel.close()

"""The mount: coding agents of any kind as local agents, started as a process or reached at an address.

This starts one, asks what it is, and makes an agent of it. What keeps it there is in `host`, the connection and its
sessions in `peer`, what a run of it does in `turn`, and what it may do on this machine in `served`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from ...engine.agents import Agent
from ...engine.context import Context
from ...engine.mounting import LeftRun
from ...model.errors import InterlinguaError, Unavailable
from ...security.redaction import redact_text
from ...transports.access import Access
from ...transports.links import Source
from ...transports.rpc import ConnectionLost, RpcError
from .described import agent_named, card_of
from .host import AddressSource, Host, MountSettings, ProcessSource
from .turn import Turn, place_of

__all__ = ["Mount", "MountSettings", "load"]

_COMMANDS_WITHIN = 0.25  # seconds; agents tell their commands right after the first session
_CANCEL_WITHIN = 5.0


class Target(Protocol):
    """What the loader needs to know of a target of the command line."""

    @property
    def kind(self) -> str: ...
    @property
    def rest(self) -> str: ...
    @property
    def agent(self) -> str | None: ...
    @property
    def access(self) -> Access: ...


async def load(target: Target) -> list[Agent[..., Any]]:
    """The agent of editor:COMMAND, editor+http(s)://… or editor+ws(s)://…"""
    settings = MountSettings.from_environment(target.access)
    source: Source
    if target.kind == "editor":
        source = ProcessSource(target.rest, settings, target.access.env)
    else:
        source = AddressSource(target.rest.removeprefix("editor+"), settings, target.access.headers)
    return [await Mount(source, settings).agent(target.agent)]


class Mount:
    """One agent."""

    def __init__(self, source: Source, settings: MountSettings | None = None) -> None:
        self.source = source
        self.settings = settings or MountSettings()
        self._host: tuple[asyncio.AbstractEventLoop, Host] | None = None
        self._fixed: dict[str, Any] = {}  # options that every session has

    @property
    def host(self) -> Host:
        """One per event loop: an agent that was started in a loop which has ended is gone with it."""
        loop = asyncio.get_running_loop()
        if self._host is None or self._host[0] is not loop:
            self._host = (loop, Host(self.source, self.settings))
            self._host[1].fixed = self._fixed
        return self._host[1]

    def watch(self, tell: Callable[[], None]) -> None:
        """Be told when it is gone without having been let go."""
        self.host.lost = tell

    async def close(self) -> None:
        """End the agent. The event loop's end does it too."""
        await self.host.close()

    async def agent(self, wanted: str | None = None) -> Agent[..., Any]:
        """The agent; where the other side has several and lets us choose (ours does), the one that is wanted."""
        host = self.host
        chosen: tuple[str, str] | None = None
        try:
            session = await host.first_session(place_of(host, None))
            chosen = agent_named(session.options, wanted)
            if chosen is not None:
                await session.set_option("agent", chosen[0])
                self._fixed = host.fixed = {"agent": chosen[0]}
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(session.commands_known.wait(), _COMMANDS_WITHIN)
        except BaseException:
            await host.close()
            raise
        peer = session.peer
        fallback = self.source.command[0].rpartition("/")[2] if self.source.command else "agent"
        card = card_of(
            redact_text(f"editor:{self.source.name}" if self.source.command else f"editor+{self.source.name}"),
            peer.info, peer.version, peer.capabilities, peer.auth_methods,
            [option for option in session.options if option.id not in self._fixed], session.commands, fallback,
        )  # fmt: skip
        if chosen is not None:
            name, _, version = chosen[0].partition("@")
            card.name, card.version, card.description = name, version or card.version, chosen[1]

        async def handler(ctx: Context[Any, Any], input: dict[str, Any]) -> Any:  # noqa: A002 - bound by this name
            return await Turn(self.host, ctx).run(input["text"])

        async def on_cancel(left: LeftRun) -> None:
            await self._cancel(left)

        handler.__name__ = card.name
        handler.__doc__ = card.description
        made: Agent[..., Any] = Agent(
            card, handler, shape="async", ctx_param="ctx", retries=3, parkable=False, on_cancel=on_cancel
        )  # fmt: skip
        made.reads_history = False  # the session has it
        made.let_go, made.watch = self.close, self.watch
        if isinstance(self.source, AddressSource):
            made.reach = self.source.reach
        return made

    async def _cancel(self, left: LeftRun) -> None:
        """A run was cancelled while its handler was not here. A process of ours ended with its turn, so there is
        nothing to stop, and none is started for that; an agent at an address may still be at work."""
        handle = left.recorded("session")
        if self.source.command or not isinstance(handle, dict):
            return
        host = self.host
        try:
            async with asyncio.timeout(_CANCEL_WITHIN):
                with host.using():
                    session = await (await host.peer()).take_up(handle["session"], place_of(host, None))
                    session.cancel()
                    await session.peer.rpc.drain()
        except (ConnectionLost, RpcError, InterlinguaError) as error:
            raise Unavailable(f"{self.source.name} could not be told: {error}") from error

"""The mount: finds agents of a remote node, over the binding of its link, and makes local agents of them.

`credentials` dials a node, `connection` keeps the connection, `identity` is our identity there, `remote_run` carries a
run, `updates_in` shows its updates, `questions` asks its questions, and `agent_card` reads the cards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ....engine.agents.agent import Agent
from ....engine.engine import Engine
from ....engine.handler.context import Context
from ....engine.handler.mounted_run import LeftRun
from ....model.errors import Unavailable
from ....mounts.loader import RemoteAgent, RemoteServer, Target, Traits, local_agents
from ....mounts.settings import read_settings
from ..config import MountSettings
from ..wire import links
from ..wire.links import HTTP, Link
from .agent_card import agents_of
from .connection import Remote
from .credentials import look
from .identity import Place
from .remote_run import Existing, PeerRun, cancel_left


async def load(target: Target) -> list[Agent[..., Any]]:
    """Returns the agents of acp://HOST:PORT/TOKEN[#AGENT] and the like: all of them, or those that AGENT can mean."""
    settings = read_settings(MountSettings, "peer", target.access)
    return await local_agents(PeerServer(links.parse(target.rest), settings), target.agent)


class _Remotes:
    """The connections of a mount in one event loop; they end with the loop."""

    def __init__(self) -> None:
        self.own: dict[Engine | None, Remote] = {}
        self.others: dict[str, Remote] = {}  # by the identity of their runs
        self.opening = asyncio.Lock()


class PeerServer(RemoteServer):
    """One node."""

    traits = Traits(parkable=False)

    def __init__(self, link: Link, settings: MountSettings | None = None) -> None:
        self.link = link
        self.settings = settings or MountSettings()
        self._remotes: tuple[asyncio.AbstractEventLoop, _Remotes] | None = None
        self._watching: Callable[[], None] | None = None

    def watch(self, lost: Callable[[], None]) -> None:
        self._watching = lost

    def _lost(self) -> None:
        if self._watching is not None:
            self._watching()

    @property
    def _here(self) -> _Remotes:
        loop = asyncio.get_running_loop()
        if self._remotes is None or self._remotes[0] is not loop:
            self._remotes = (loop, _Remotes())
        return self._remotes[1]

    async def close(self) -> None:
        here = self._here
        for remote in [*here.own.values(), *here.others.values()]:
            await remote.close()
        here.own.clear()
        here.others.clear()

    # -- connections --------------------------------------------------------------------------------------

    async def own(self, engine: Engine) -> Remote:
        """Returns the connection for new runs of an engine."""
        here = self._here
        if self.link.scheme in HTTP:  # the credentials of each request identify the caller
            return here.own.setdefault(None, Remote(self.link, self.settings, lost=self._lost))
        async with here.opening:
            if engine not in here.own:
                place = Place(engine, self.link)
                here.own[engine] = Remote(
                    self.link, self.settings, token=await place.find(), keep=place.keep, lost=self._lost
                )  # fmt: skip
                for gone in [one for one in here.own if one is not None and not one.running and one is not engine]:
                    await here.own.pop(gone).close()
            return here.own[engine]

    async def remote(self, engine: Engine | None, known_by: str | None) -> Remote:
        """Returns the connection under the identity with which a run was begun."""
        here = self._here
        if engine is not None:
            own = await self.own(engine)
            if known_by in (None, own.token):
                return own
        if known_by is None:
            return here.own.setdefault(None, Remote(self.link, self.settings, lost=self._lost))
        for known in [*here.own.values(), *here.others.values()]:
            if known.token == known_by:
                return known
        if engine is not None:
            await Place(engine, self.link).claim(known_by)
        return here.others.setdefault(known_by, Remote(self.link, self.settings, token=known_by, lost=self._lost))

    # -- agents -------------------------------------------------------------------------------------------

    async def agents(self, wanted: str | None = None) -> list[RemoteAgent]:
        try:
            card = await look(self.link, self.settings)
        except ConnectionError as error:
            raise Unavailable(str(error)) from error
        return [
            RemoteAgent(card=agent.card, name=agent.skill or agent.card.name, names=agent.names, more=agent)
            for agent in agents_of(card, self.link.shown)
        ]

    def existing(self, run: str) -> Existing:
        return Existing.parse(self, run)

    def open_run(
        self, agent: RemoteAgent, ctx: Context[Any, Any], input_: dict[str, Any], existing: Any
    ) -> PeerRun:  # fmt: skip
        return PeerRun(self, agent.more, ctx, input_, existing)

    async def cancel_left(self, agent: RemoteAgent, left: LeftRun, existing: Any) -> None:
        await cancel_left(self, left, existing)

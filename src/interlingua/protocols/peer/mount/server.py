"""The mount: finds agents of a remote node, over the binding of its link, and makes local agents of them.

`credentials` dials a node, `connection` keeps the connection, `identity` is our identity there, `remote_run` carries a
run, `remote_output` shows its output, `questions` asks its questions, and `agent_card` reads the cards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from ....engine.agents.agent import Agent
from ....engine.engine import Engine
from ....engine.handler.context import Context
from ....engine.handler.mounted_run import LeftRun, attached
from ....model.card import ANY_OBJECT
from ....model.errors import Unavailable
from ....model.schemas import Validator
from ....mounts.settings import Access, read_settings
from ..config import MountSettings
from ..wire import links
from ..wire.links import HTTP, Link
from .agent_card import Described, agents_of
from .connection import Remote
from .credentials import look
from .identity import Place
from .remote_run import Attachment, Existing, cancel_left

__all__ = ["Mount", "MountSettings", "load"]


class Target(Protocol):
    """The parts of a command-line target that the loader needs."""

    @property
    def rest(self) -> str: ...
    @property
    def agent(self) -> str | None: ...
    @property
    def access(self) -> Access: ...


async def load(target: Target) -> list[Agent[..., Any]]:
    """Returns the agents of acp://HOST:PORT/TOKEN[#AGENT] and the like: all of them, or those that AGENT can mean."""
    settings = read_settings(MountSettings, "peer", target.access)
    return await Mount(links.parse(target.rest), settings).agents(target.agent)


class _Remotes:
    """The connections of a mount in one event loop; they end with the loop."""

    def __init__(self) -> None:
        self.own: dict[Engine | None, Remote] = {}
        self.others: dict[str, Remote] = {}  # by the identity of their runs
        self.opening = asyncio.Lock()


class Mount:
    """One node."""

    def __init__(self, link: Link, settings: MountSettings | None = None) -> None:
        self.link = link
        self.settings = settings or MountSettings()
        self._remotes: tuple[asyncio.AbstractEventLoop, _Remotes] | None = None
        self._watching: Callable[[], None] | None = None

    def watch(self, tell: Callable[[], None]) -> None:
        """Calls `tell` whenever the node has hung up, or could not be reached."""
        self._watching = tell

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
        """Closes the connection to the node. The end of the event loop does it too."""
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

    async def agents(self, wanted: str | None = None) -> list[Agent[..., Any]]:
        try:
            card = await look(self.link, self.settings)
        except ConnectionError as error:
            raise Unavailable(str(error)) from error
        found = agents_of(card, self.link.shown)
        named = [one for one in found if wanted in one.names]
        return [self._agent(one) for one in named or found]

    def _agent(self, described: Described, existing: Existing | None = None) -> Agent[..., Any]:
        schema = Validator(described.card.output, what="output")

        async def handler(ctx: Context[Any, Any], input: dict[str, Any]) -> Any:  # noqa: A002 - bound by this name
            return await Attachment(self, described, schema, ctx, existing).run(input)

        async def on_cancel(left: LeftRun) -> None:
            await cancel_left(self, left, existing)

        handler.__name__ = described.skill or described.card.name  # so that a target can name it as its node does
        handler.__doc__ = described.card.description
        card = described.card if existing is None else attached(described.card)
        made: Agent[..., Any] = Agent(
            card, handler, shape="async", ctx_param="ctx", retries=3, parkable=False, on_cancel=on_cancel
        )  # fmt: skip
        made.attach = lambda task: self._agent(described, Existing.parse(self, task))
        made.let_go, made.watch = self.close, self.watch
        made.check_output = Validator(ANY_OBJECT, what="output")  # the result counts as it is; a misfit is a warning
        return made

"""Makes local agents of the agents of a server.

A protocol describes its server by a `RemoteServer`: what agents there are, and how one run of them is carried out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, Protocol

import msgspec

from ..engine.agents.agent import Agent
from ..engine.handler.context import Context
from ..engine.handler.mounted_run import LeftRun
from ..model.card import ANY_OBJECT, AgentCard
from ..model.schemas import Validator
from .remote_run import RemoteRun, run
from .settings import Access


class Target(Protocol):
    """The parts of a command-line target that a mount needs."""

    @property
    def kind(self) -> str: ...
    @property
    def rest(self) -> str: ...
    @property
    def agent(self) -> str | None: ...
    @property
    def access(self) -> Access: ...


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """The abilities of a server."""

    parkable: bool = True
    """A run that waits for an answer needs no connection meanwhile."""
    keeps_history: bool = False
    """The remote thread has the earlier messages; they are not loaded here."""
    keeps_state: bool = False
    """The state lives on the remote thread. The one here is a copy of it, and is not checked."""
    lists_again: bool = False
    """A connection is kept, and over it the agents are listed again when they may have changed."""
    output: Literal["strict", "warn", "any"] = "warn"
    """The effect of an output that does not fit the schema on the card: the run fails, has a warning, or neither."""


class RemoteAgent(msgspec.Struct, kw_only=True):
    """One agent of a server."""

    card: AgentCard  # of the local agent
    name: str  # its remote name
    names: set[str] = set()  # more names that a target can use, beside those on the card
    more: Any = None  # what the protocol knows of it
    distinct: str = ""  # the end of its name where another agent has the same name and version; by default a number
    no_attach: str | None = (
        None  # the reason why nobody can go on with a run that was begun before; None: it is possible
    )


class RemoteServer:
    """One server that is mounted."""

    traits = Traits()
    reach: Callable[[], Awaitable[None]] | None = None
    """Checks that the server is there, where to list its agents again would leave a trace. Raises where it is not."""
    try_out: Callable[[], Awaitable[None]] | None = None
    """Checks a server whose agents are known without asking it. Raises where it does not work."""

    async def agents(self, wanted: str | None) -> list[RemoteAgent]:
        """Returns its agents: all of them, or at least those that the name can mean."""
        raise NotImplementedError

    def open_run(
        self, agent: RemoteAgent, ctx: Context[Any, Any], input_: dict[str, Any], existing: Any
    ) -> RemoteRun:  # fmt: skip
        """Returns what carries out a run. `existing` names a remote run to go on with, instead of beginning one."""
        raise NotImplementedError

    def existing(self, run: str) -> Any:
        """Reads the id of a remote run, as `MountedRun.found_at_server` was given it. Raises NotFound."""
        return run

    async def cancel_left(self, agent: RemoteAgent, left: LeftRun, existing: Any) -> None:
        """Tells the server that a run is over whose handler is not in memory."""

    async def close(self) -> None:
        """Ends what all runs share: the connection, or the process. The end of the event loop does it too."""

    def watch(self, lost: Callable[[], None]) -> None:
        """Calls back whenever that has ended by itself, or could not be reached."""


async def local_agents(server: RemoteServer, wanted: str | None = None) -> list[Agent[..., Any]]:
    """Returns the agents of a server as local agents: all of them, or those that the name can mean."""
    found = await server.agents(wanted)
    keys = set[str]()
    for remote in found:
        card, plain, number = remote.card, remote.card.name, 1
        while card.key in keys:
            number += 1
            card.name = f"{plain}-{remote.distinct or number}"
        keys.add(card.key)
    named = [remote for remote in found if wanted in {remote.name, remote.card.name, remote.card.key, *remote.names}]
    agents = [local_agent(server, remote) for remote in named or found]
    if server.traits.lists_again:
        for agent in agents:
            agent.relist = partial(local_agents, server, wanted)
    return agents


def local_agent(server: RemoteServer, remote: RemoteAgent, existing: Any = None) -> Agent[..., Any]:
    """Returns a local agent. With `existing`, all its runs go on with that remote run."""
    traits = server.traits
    schema = Validator(remote.card.output, what="output") if traits.output == "warn" else None

    async def handler(ctx: Context[Any, Any], input: dict[str, Any]) -> Any:  # noqa: A002 - bound by this name
        return await run(server.open_run(remote, ctx, input, existing), schema)

    async def on_cancel(left: LeftRun) -> None:
        await server.cancel_left(remote, left, existing)

    handler.__name__ = remote.name  # so that a target can name the agent as its server does
    handler.__doc__ = remote.card.description
    made: Agent[..., Any] = Agent(
        remote.card if existing is None else attached(remote.card), handler, shape="async", ctx_param="ctx", retries=3,
        parkable=traits.parkable, on_cancel=on_cancel,
    )  # fmt: skip
    if remote.no_attach is None:
        made.attach = lambda run: local_agent(server, remote, server.existing(run))
    else:
        made.no_attach = remote.no_attach
    made.let_go, made.watch, made.reach, made.try_out = server.close, server.watch, server.reach, server.try_out
    if traits.keeps_history:
        made.reads_history = False
    if traits.keeps_state:
        made.check_state = None
    if traits.output != "strict":
        made.check_output = Validator(ANY_OBJECT, what="output")
    return made


def attached(card: AgentCard) -> AgentCard:
    """Returns the card of an agent that goes on with a run at a server: the run has its input and config already."""
    return msgspec.structs.replace(card, input=dict(ANY_OBJECT), input_text=None, config=None)

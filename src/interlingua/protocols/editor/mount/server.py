"""The mount: coding agents of any kind as local agents, started as a process or reached at an address.

This starts an agent, learns its description, and makes a local agent of it. `sessions` keeps it reachable, `rpc_client`
has the connection and its sessions, `remote_run` carries one run, and `local_tools` its work on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from ....engine.agents import mount_path
from ....engine.agents.agent import Agent
from ....engine.handler.context import Context
from ....engine.handler.mounted_run import LeftRun
from ....model.errors import InterlinguaError, Unavailable
from ....mounts.connection import PerLoop, Source
from ....mounts.loader import RemoteAgent, RemoteServer, Target, Traits, local_agents
from ....mounts.settings import read_settings
from ....security.redaction import redact_text
from ....transports.jsonrpc.connection import ConnectionLost, RpcError
from ..config import MountSettings
from .agent_card import Choice, agents_of, card_of, questions_of
from .remote_run import EditorRun, place_of
from .rpc_client import Session
from .sessions import EditorAddress, EditorKeeper, source_of

__all__ = ["EditorServer", "MountSettings", "load"]

_COMMANDS_WITHIN = 0.25  # seconds; agents tell their commands right after the first session
_CANCEL_WITHIN = 5.0
_NO_ATTACH = "the Agent Client Protocol opens a session again, and has no way to follow a turn that goes on in it"


async def load(target: Target) -> list[Agent[..., Any]]:
    """Returns the agents of editor:COMMAND, editor+http(s)://… or editor+ws(s)://…: all, or the one that #AGENT
    means."""
    settings = read_settings(MountSettings, "editor", target.access)
    source = source_of(target.kind, target.rest, settings, target.access)
    return await local_agents(EditorServer(source, settings), target.agent)


class EditorServer(RemoteServer):
    """One agent, or several of which a session chooses one."""

    traits = Traits(parkable=False, keeps_history=True, output="strict")

    def __init__(self, source: Source, settings: MountSettings | None = None) -> None:
        self.source = source
        self.settings = settings or MountSettings()
        self._keepers = PerLoop(lambda: EditorKeeper(self.source, self.settings))
        if isinstance(source, EditorAddress):
            self.reach = source.reach

    @property
    def keeper(self) -> EditorKeeper:
        return self._keepers.get()

    def watch(self, lost: Callable[[], None]) -> None:
        self.keeper.lost = lost

    async def close(self) -> None:
        await self.keeper.close()

    async def agents(self, wanted: str | None = None) -> list[RemoteAgent]:
        """Returns the agents of the remote side: the wanted one, or all. Only an Interlingua server has several to
        choose from."""
        keeper = self.keeper
        try:
            session = await keeper.first_session(place_of(keeper, None))
            await _commands(session)
            choices: list[Choice | None] = [*agents_of(session.options, session.peer.agents, wanted)] or [None]
            agents = [await self._learn(session, choice) for choice in choices]
        except BaseException:
            await keeper.close()
            raise
        keeper.spare(session, choices[-1].value if choices[-1] is not None else None)
        return agents

    async def _learn(self, session: Session, choice: Choice | None) -> RemoteAgent:
        """Returns the agent that a session is set to, from what the session reports of it."""
        if choice is not None and session.chosen("agent") != choice.value:
            session.commands_known.clear()
            try:
                await session.set_option("agent", choice.value)
            except RpcError as error:
                raise self.keeper.refusal(error, session.peer, "session/set_config_option") from error
            await _commands(session)
        peer = session.peer
        options = [option for option in session.options if choice is None or option.id != "agent"]
        fallback = self.source.command[0].rpartition("/")[2] if self.source.command else "agent"
        named = peer.agents.get(choice.value) if choice is not None else next(iter(peer.agents.values()), None)
        asks = not peer.agents or (named is not None and named.asks)  # others do not say, and may ask at any time
        card = card_of(
            redact_text(f"editor:{self.source.name}" if self.source.command else f"editor+{self.source.name}"),
            peer.info, peer.version, peer.capabilities, peer.auth_methods, options, session.commands, fallback,
            questions_of(self.keeper.policies, ours=bool(peer.agents)) if asks else [],
        )  # fmt: skip
        if choice is not None:
            card = choice.of(card)
        elif card.key in peer.agents:
            card.metadata |= mount_path.metadata(peer.agents[card.key].via)
        return RemoteAgent(
            card=card, name=card.name, more=choice.value if choice is not None else None,
            no_attach=None if peer.is_ours else _NO_ATTACH,
        )  # fmt: skip

    def open_run(self, agent: RemoteAgent, ctx: Context[Any, Any], input_: dict[str, Any], existing: Any) -> EditorRun:
        return EditorRun(self.keeper, agent.more, ctx, input_, existing)

    async def cancel_left(self, agent: RemoteAgent, left: LeftRun, existing: Any) -> None:
        """Cancels the remote turn of a run that was cancelled while its handler was not here. A process of ours ended
        with its turn, so there is nothing to stop, and none is started for that; an agent at an address may still be at
        work."""
        handle = left.recorded(EditorRun.handle_key)
        if self.source.command or not isinstance(handle, dict):
            return
        keeper = self.keeper
        try:
            async with asyncio.timeout(_CANCEL_WITHIN):
                with keeper.using():
                    session = await (await keeper.connection()).take_up(handle["session"], place_of(keeper, None))
                    session.cancel()
                    await session.peer.rpc.drain()
        except (ConnectionLost, RpcError, InterlinguaError) as error:
            raise Unavailable(f"{self.source.name} could not be told: {error}") from error


async def _commands(session: Session) -> None:
    """Waits until the agent has sent its commands. An agent without commands may send nothing."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(session.commands_known.wait(), _COMMANDS_WITHIN)

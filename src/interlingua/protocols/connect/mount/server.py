"""The mount: finds the agents of a Connect server.

`agent_card` describes them, `remote_run` and `follow` carry one run, and `answers` reads the answers of the server.
"""

from __future__ import annotations

import contextlib
from typing import Any

import httpx2
import msgspec

from ....engine.agents import mount_path
from ....engine.agents.agent import Agent
from ....engine.handler.context import Context
from ....engine.handler.mounted_run import LeftRun
from ....model.card import ErrorDefinition
from ....model.errors import Unavailable
from ....mounts.errors import RemoteError
from ....mounts.http import HttpAddress, Refused, words_of
from ....mounts.loader import RemoteAgent, RemoteServer, Target, Traits, local_agents
from ....mounts.settings import ORDINARY, Access
from ..translate import OURS
from .agent_card import Remote, id_of, names_of
from .answers import json_of, object_or_empty
from .remote_run import ConnectRun, Handle, cancel_left

PAGE = 100


async def load(target: Target) -> list[Agent[..., Any]]:
    """Returns the agents of connect+http(s)://HOST[/PREFIX][#AGENT]: all of them, or those that AGENT can mean."""
    return await local_agents(ConnectServer(target.rest.removeprefix("connect+"), target.access), target.agent)


class ConnectServer(RemoteServer):
    traits = Traits(keeps_history=True, keeps_state=True, output="strict")

    def __init__(self, base: str, access: Access = ORDINARY) -> None:
        self.address = HttpAddress(base, access, kind="connect")
        self.base = self.address.base

    def open_run(
        self, agent: RemoteAgent, ctx: Context[Any, Any], input_: dict[str, Any], existing: Any
    ) -> ConnectRun:  # fmt: skip
        return ConnectRun(self.address, agent.more, ctx, input_, None if existing is None else Handle(existing))

    async def cancel_left(self, agent: RemoteAgent, left: LeftRun, existing: Any) -> None:
        handle = left.recorded(ConnectRun.handle_key)
        if handle is not None:
            async with self.address.open() as http:
                await cancel_left(http, msgspec.convert(handle, Handle))

    # -- agents -------------------------------------------------------------------------------------------

    async def agents(self, wanted: str | None = None) -> list[RemoteAgent]:
        async with self.address.open() as http:
            try:
                listed = await self._search(http)
                named = [entry for entry in listed if wanted in names_of(entry)]
                remotes = [await self._describe(http, entry) for entry in named or listed]
            except httpx2.TransportError as error:
                raise Unavailable(f"{self.base} cannot be reached: {words_of(error)}") from error
        return [
            RemoteAgent(card=remote.card, name=remote.id, names=names, more=remote, distinct=remote.id[:8])
            for remote, names in remotes
        ]

    async def _search(self, http: httpx2.AsyncClient) -> list[dict[str, Any]]:
        listed: dict[str, dict[str, Any]] = {}
        while True:
            page = json_of(await http.post("/agents/search", json={"limit": PAGE, "offset": len(listed)}))
            if not isinstance(page, list):
                raise RemoteError(f"{self.base} does not speak the Agent Connect Protocol: no list of agents")
            fresh = {i: e for e in page if isinstance(e, dict) and (i := id_of(e)) and i not in listed}
            listed |= fresh
            if len(page) < PAGE or not fresh:  # some servers do not know `offset`, and send the same again
                return list(listed.values())

    async def _describe(self, http: httpx2.AsyncClient, entry: dict[str, Any]) -> tuple[Remote, set[str]]:
        identity = id_of(entry)
        described: Any = None
        for path in (f"/agents/{identity}/descriptor", f"/agents/agent/{identity}/descriptor"):
            response = await http.get(path)
            if response.is_success:
                described = json_of(response)
                break
        described = object_or_empty(described)
        metadata = {**object_or_empty(entry.get("metadata")), **object_or_empty(described.get("metadata"))}
        remote = Remote(self.base, identity, metadata, object_or_empty(described.get("specs")))
        remote.card.metadata |= mount_path.metadata(object_or_empty(entry.get(OURS)).get("via"))
        if remote.ours:
            with contextlib.suppress(Refused, msgspec.ValidationError):
                errors = json_of(await http.get(f"/agents/{identity}/errors"))
                remote.card.errors = msgspec.convert(errors, list[ErrorDefinition])
        return remote, names_of(entry)

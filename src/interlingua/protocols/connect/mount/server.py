"""The mount: finds agents of a Connect server, and makes local agents of them.

`agent_card` describes them, `remote_run` and `follow` carry one run, `remote_output` shows its output, and `answers`
reads the answers of the server.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from functools import lru_cache
from typing import Any, Protocol

import httpx2
import msgspec

from ....engine.agents import mount_path
from ....engine.agents.agent import Agent
from ....engine.handler.context import Context
from ....engine.handler.mounted_run import LeftRun, attached
from ....model.card import ErrorDefinition
from ....model.errors import InvalidRequest, Unavailable
from ....mounts.errors import RemoteError
from ....mounts.settings import ORDINARY, Access, NoSettings
from ....transports import wire_tap
from ....transports.http import plain_client
from ..translate import OURS
from .agent_card import Remote, id_of, names_of
from .answers import KEY_VARIABLE, Refused, json_of, object_or_empty, words_of
from .remote_run import Attachment, Handle, cancel_left

PAGE = 100
_SILENCE = 60.0  # seconds without a byte after which a connection counts as dead; ours sends one every 15
_TIMEOUT = httpx2.Timeout(_SILENCE, connect=10.0, write=30.0)


class Target(Protocol):
    """The parts of a command-line target that the loader needs."""

    @property
    def rest(self) -> str: ...
    @property
    def agent(self) -> str | None: ...
    @property
    def access(self) -> Access: ...


async def load(target: Target) -> list[Agent[..., Any]]:
    """Returns the agents of connect+http(s)://HOST[/PREFIX][#AGENT]: all of them, or those that AGENT can mean."""
    return await Mount(target.rest.removeprefix("connect+"), access=target.access).agents(target.agent)


class Mount:
    """One server."""

    def __init__(self, base: str, key: str | None = None, access: Access = ORDINARY) -> None:
        try:
            url = httpx2.URL(base)
        except (httpx2.InvalidURL, ValueError) as error:
            raise InvalidRequest(f"{base!r} is not an address: {error}") from error
        if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
            raise InvalidRequest(f"{base!r} is not the address of a server; write connect+http://HOST[/PREFIX][#AGENT]")
        self.base = base.rstrip("/")
        key = key if key is not None else access.key
        self.key = key if key is not None else os.environ.get(KEY_VARIABLE)
        self._headers = access.headers
        access.given(NoSettings)
        self._clients = plain_client.Shared(self._client, self.base)

    def open(self) -> contextlib.AbstractAsyncContextManager[httpx2.AsyncClient]:
        """Opens a client for one run, or for all runs."""
        return self._clients.open()

    def _client(self) -> httpx2.AsyncClient:
        headers = {"x-api-key": self.key} if self.key else {}
        headers |= self._headers
        return httpx2.AsyncClient(
            base_url=self.base, headers=headers, timeout=_TIMEOUT, verify=_tls(), event_hooks=wire_tap.hooks(),
            transport=plain_client.transport(_tls()),
        )  # fmt: skip

    async def agents(self, wanted: str | None = None) -> list[Agent[..., Any]]:
        async with self.open() as http:
            try:
                found = await self._search(http)
                named = [entry for entry in found if wanted in names_of(entry)]
                remotes = [await self._describe(http, entry) for entry in named or found]
            except httpx2.TransportError as error:
                raise Unavailable(f"{self.base} cannot be reached: {words_of(error)}") from error
        made: dict[str, Agent[..., Any]] = {}
        for remote in remotes:
            if remote.card.key in made:  # two of one name and version: the id tells them apart
                remote.card.name += f"-{remote.id[:8]}"
            made[remote.card.key] = self._agent(remote)
        return list(made.values())

    async def _search(self, http: httpx2.AsyncClient) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        while True:
            page = json_of(await http.post("/agents/search", json={"limit": PAGE, "offset": len(found)}))
            if not isinstance(page, list):
                raise RemoteError(f"{self.base} does not speak the Agent Connect Protocol: no list of agents")
            fresh = {i: e for e in page if isinstance(e, dict) and (i := id_of(e)) and i not in found}
            found |= fresh
            if len(page) < PAGE or not fresh:  # some servers do not know `offset`, and send the same again
                return list(found.values())

    async def _describe(self, http: httpx2.AsyncClient, entry: dict[str, Any]) -> Remote:
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
                told = json_of(await http.get(f"/agents/{identity}/errors"))
                remote.card.errors = msgspec.convert(told, list[ErrorDefinition])
        return remote

    def _agent(self, remote: Remote, existing: Handle | None = None) -> Agent[..., Any]:
        async def handler(ctx: Context[Any, Any], input: dict[str, Any]) -> Any:  # noqa: A002 - bound by this name
            async with self.open() as http:
                return await Attachment(remote, http, ctx, existing).run(input)

        async def on_cancel(left: LeftRun) -> None:
            started = left.recorded("start")
            if started is not None:
                async with self.open() as http:
                    await cancel_left(http, msgspec.convert(started, Handle))

        handler.__name__ = remote.id  # so that a target can name the agent by its id too
        handler.__doc__ = remote.card.description
        card = remote.card if existing is None else attached(remote.card)
        made: Agent[..., Any] = Agent(
            card, handler, shape="async", ctx_param="ctx", retries=3, on_cancel=on_cancel
        )  # fmt: skip
        made.attach = lambda run: self._agent(remote, Handle(run))
        made.reads_history = False  # the remote thread has it
        made.check_state = None  # the state lives on the remote thread; the one here is a copy of it
        return made


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()  # once: reading the certificates takes longer than a request

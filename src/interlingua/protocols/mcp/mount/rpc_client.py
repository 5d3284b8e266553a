"""Our side of one connection to a server: the agreed revision, what it has to run, and the listener of each run.

Published servers of this protocol end at a request that they do not know (acp-sdk 0.0.6), so nothing is tried out on
them: `initialize` comes first, and `server/discover` only where that was refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from ....model.errors import Denied, InterlinguaError, Unavailable
from ....transports.channel import Channel
from ....transports.jsonrpc.connection import Connection, ConnectionLost
from ....transports.jsonrpc.core import INTERNAL_ERROR, METHOD_NOT_FOUND, Call, Notice, RpcError
from .. import wire
from .entries import AgentEntry, Entry, Key, PromptEntry, ToolEntry, takes_arguments

log = logging.getLogger("interlingua.mcp")

OLDEST = wire.LEGACY[0]
LOST = "connection_lost"
"""In the data of an error that stands for an answer which cannot come any more."""
DENIED = "denied"
NO_SERVER = "unsuitable_server"
"""In the data of errors that a channel answers with: the server does not speak MCP, or does not let us in."""

_OFFERS: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
_MAX_PAGES = 1000
_PROGRESS = "notifications/agents/run/progress"
_LIST_CHANGES = frozenset(f"notifications/{kind}/list_changed" for kind in ("agents", "tools", "prompts"))
_RESULT = {"jsonrpc", "id", "result"}  # the members of a message with a result


class Unsuitable(Unavailable):
    """The remote side answers, but is no server with agents for this client."""

    code = "unsuitable_server"
    transient = False


class NotBegun(ConnectionLost):
    """The server is there, but has forgotten this client: the request was never begun."""


class Listener(Protocol):
    """Takes the updates and questions of a run."""

    async def told(self, delta: Any) -> None: ...
    async def warned(self, message: str) -> None: ...
    async def progressed(self, params: dict[str, Any]) -> None: ...
    async def asked(self, params: dict[str, Any]) -> dict[str, Any]: ...
    async def not_asked(self) -> None: ...


class Peer:
    """One connection. `open` agrees on the revision, `list_entries` lists; `run` reads until the server is gone."""

    def __init__(self, channel: Channel, name: str) -> None:
        self.channel = channel
        self.name = name  # for messages
        self.rpc = Connection(
            channel, self, cancel=("notifications/cancelled", "requestId"), silent_cancel=True, is_piece=_is_told
        )
        self.version = ""
        self.info: dict[str, Any] = {}
        self.able: dict[str, Any] = {}
        self.entries: dict[Key, Entry] | None = None  # None before they were listed
        self.changed = True  # they must be listed (again)
        self.on_change: Callable[[], None] = lambda: None  # called when the server reports a change of its lists
        self.forgotten = False  # the server has ended our session
        self.listeners: dict[str, Listener] = {}  # by the progress token of their run
        self.note: str | None = None  # a warning for the next run

    @property
    def usable(self) -> bool:
        return not (self.rpc.lost or self.forgotten)

    async def run(self) -> None:
        await self.rpc.run()

    @property
    def ours(self) -> bool:
        """Tells if it is an Interlingua server: only such a server knows threads, keys that name a run, and which run a
        question belongs to."""
        return self.info.get("name") == "interlingua"

    @property
    def finds_again(self) -> bool:
        """Tells if a run goes on at the server without this connection, and is found again by its key."""
        return self.ours and self.version != wire.MODERN and bool(getattr(self.channel, "streamable", False))

    def keep_session(self) -> None:
        """Keeps the session at the server when the connection closes, because a later connection will find its run
        there."""
        if hasattr(self.channel, "keeps_session"):
            self.channel.keeps_session = True

    async def request(
        self, method: str, params: dict[str, Any], *, opened: Callable[[asyncio.Future[Any]], None] | None = None
    ) -> Any:
        if self.version == wire.MODERN:
            params = {**params, "_meta": {**modern_meta(), **_object(params.get("_meta"))}}
        return await self._answered(self.rpc.request(method, params, opened=opened))

    async def _answered(self, answer: Awaitable[Any]) -> Any:
        try:
            return await answer
        except RpcError as error:
            code = _object(error.data).get("code")
            if code == LOST and _object(error.data).get("begun") is False:
                self.forgotten = True
                raise NotBegun(error.message) from error
            if code == LOST:
                raise ConnectionLost(error.message) from error
            if code == NO_SERVER:
                raise Unsuitable(error.message) from error
            if code == DENIED and isinstance(_object(error.data).get("status"), int):
                raise Denied(f"{error.message}; put the key into INTERLINGUA_MCP_KEY") from error
            raise

    # -- agreeing -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        try:
            await self._initialize(wire.LEGACY[-1])
        except RpcError as refusal:
            older = _older(refusal)
            try:
                await (self._initialize(older) if older is not None else self._discover())
            except RpcError as second:
                raise Unsuitable(
                    f"{self.name} refused to begin: initialize was answered with {refusal}, "
                    f"{'the revision that it named' if older else 'server/discover'} with {second}"
                ) from second

    async def _initialize(self, wanted: str) -> None:
        params = {"protocolVersion": wanted, "capabilities": _OFFERS, "clientInfo": _our_info()}
        result = _object(await self.request("initialize", params))
        version = result.get("protocolVersion")
        version = OLDEST if version == 1 else version
        if version not in wire.LEGACY:
            known = ", ".join(wire.LEGACY)
            raise Unsuitable(f"{self.name} answered initialize with revision {version!r}; known are {known}")
        self.info, self.able = _object(result.get("serverInfo")), _object(result.get("capabilities"))
        self.version = version
        self.rpc.notify("notifications/initialized")

    async def _discover(self) -> None:
        self.version = wire.MODERN
        result: Any = None
        try:
            result = _object(await self.request("server/discover", {}))
        finally:
            if result is None:
                self.version = ""
        versions = result.get("supportedVersions")
        if isinstance(versions, list) and wire.MODERN not in versions:
            self.version = ""
            raise Unsuitable(f"{self.name} speaks {', '.join(map(str, versions))}; known is {wire.MODERN}")
        stamped = _object(result.get("_meta")).get(wire.META_SERVER)
        self.info, self.able = _object(result.get("serverInfo") or stamped), _object(result.get("capabilities"))

    # -- agents -------------------------------------------------------------------------------------------

    @property
    def declares_agents(self) -> bool:
        places = (self.able, _object(self.able.get("experimental")))
        extensions = _object(self.able.get("extensions"))
        return any(isinstance(place.get("agents"), dict) for place in places) or wire.EXTENSION in extensions

    async def list_entries(self) -> None:
        """Lists the agents of a server that has agents, and the tools and prompts of another.

        A server that does not declare agents is asked for them too, unless it is one that ends at an unknown request.
        """
        self.entries = None  # whatever goes wrong, they are listed anew
        self.changed = False  # a change from here on may be newer than the list
        if self.declares_agents:
            try:
                self.entries = await self._agents()
            except RpcError as error:
                raise Unsuitable(f"{self.name} declares agents, and answers agents/list with {error}") from error
            return
        others = [feature for feature in ("tools", "prompts", "resources") if feature in self.able]
        none = f"{self.name} offers no agents"
        if others:
            none += f"; it is an MCP server that has only {_and(others)}"
        undeclared: dict[Key, Entry] = {}
        refusal = ""
        if self.version != OLDEST or not others:
            try:
                undeclared = await self._agents()
            except RpcError as error:
                refusal = f" (agents/list was answered with {error})"
        if undeclared:
            self.note = f"{self.name} does not declare capabilities.agents; it is used as if it did"
            log.warning("%s", self.note)
        elif (refusal or others) and not {"tools", "prompts"} & self.able.keys():
            raise Unsuitable(none + refusal)
        self.entries = undeclared or await self._tools_and_prompts()

    async def _agents(self) -> dict[Key, Entry]:
        """Lists agents and templates. An agent of an Interlingua server that is a template, too, may have a config."""
        agents = await self._pages("agents/list", "agents")
        templates = await self._templates()
        shown = {**agents, **{name: entry for name, entry in templates.items() if self.ours or name not in agents}}
        entries = [AgentEntry(entry, only_template=name not in agents) for name, entry in shown.items()]
        return {entry.key: entry for entry in entries}

    async def _templates(self) -> dict[str, dict[str, Any]]:
        """Lists the templates, only of a server that declares them: others may end at the request."""
        if not _object(self.able.get("agents")).get("templates"):
            return {}
        try:
            return await self._pages("agents/templates/list", "agentTemplates")
        except RpcError as error:
            log.warning("%s declares templates, and answers agents/templates/list with %s", self.name, error)
            return {}

    async def _tools_and_prompts(self) -> dict[Key, Entry]:
        entries: list[Entry] = []
        try:
            if "tools" in self.able:
                entries += [ToolEntry(tool) for tool in (await self._pages("tools/list", "tools")).values()]
            if "prompts" in self.able:
                prompts = (await self._pages("prompts/list", "prompts")).values()
                entries += [PromptEntry(prompt) for prompt in prompts if takes_arguments(prompt)]
        except RpcError as error:
            raise Unsuitable(f"{self.name} declares {_and(list(self.able))}, and cannot list them: {error}") from error
        return {entry.key: entry for entry in entries}

    async def _pages(self, method: str, member: str) -> dict[str, dict[str, Any]]:
        by_name: dict[str, dict[str, Any]] = {}
        cursor: str | None = None
        seen: set[str] = set()
        for _ in range(_MAX_PAGES):
            page = _object(await self.request(method, {} if cursor is None else {"cursor": cursor}))
            entries = page.get(member)
            for entry in entries if isinstance(entries, list) else []:
                if isinstance(entry, dict) and isinstance(entry.get("name"), str) and entry["name"]:
                    by_name.setdefault(entry["name"], entry)
            cursor = page.get("nextCursor")
            # Published servers of agents do not know pages: they would send the first one for ever.
            if not isinstance(cursor, str) or cursor in seen:
                break
            seen.add(cursor)
        return by_name

    # -- notifications and requests -----------------------------------------------------------------------

    def noticed(self, notice: Notice) -> Awaitable[None] | None:
        params = notice.params if isinstance(notice.params, dict) else {}
        token = params.get("progressToken")
        listener = self.listeners.get(token) if isinstance(token, str) else None
        if notice.method == _PROGRESS:
            # A delta after the result, or of an unknown run, is ignored.
            return listener.told(params.get("delta")) if listener is not None else None
        if notice.method == "notifications/progress":
            return self._progress(listener, params) if listener is not None else None
        if notice.method in _LIST_CHANGES:
            self.changed = True  # the next run lists them first
            self.on_change()
        elif notice.method == "notifications/message":
            log.info("the server says: %s", str(params.get("data"))[:2000])
        return None

    def _progress(self, listener: Listener, params: dict[str, Any]) -> Awaitable[None] | None:
        """Passes progress on: of an Interlingua server its text is a warning of the run, of others it is activity."""
        if not self.ours:
            return listener.progressed(params)
        message = params.get("message")
        return listener.warned(message) if isinstance(message, str) else None

    async def called(self, call: Call) -> Any:
        if call.method == "ping":
            return {}
        if call.method != "elicitation/create":
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {call.method!r}")
        params = call.params if isinstance(call.params, dict) else {}
        listener = self._meant(call, params)
        if listener is not None:
            return await listener.asked(params)
        for other in list(self.listeners.values()):
            await other.not_asked()
        return {"action": "cancel"}

    def _meant(self, call: Call, params: dict[str, Any]) -> Listener | None:
        """Returns the listener of the run that asks. Returns None where the run is unclear: the answer could come from
        another caller's run."""
        token = _object(params.get("_meta")).get(wire.META_TOKEN)
        if not isinstance(token, str):
            token = getattr(self.channel, "about", {}).get(call.id)
        if isinstance(token, str):
            return self.listeners.get(token)
        return next(iter(self.listeners.values())) if len(self.listeners) == 1 else None

    def failure(self, error: Exception) -> RpcError:
        if not isinstance(error, InterlinguaError):
            log.warning("a request of the server failed", exc_info=error)
        return RpcError(INTERNAL_ERROR, f"{type(error).__name__}: {error}")


def _noticed(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()  # the caller may be gone by then


def _older(refusal: RpcError) -> str | None:
    """Returns the newest revision that both this client and a server that refused ours know."""
    supported = _object(refusal.data).get("supported")
    known = [version for version in wire.LEGACY if isinstance(supported, list) and version in supported]
    return known[-1] if known and known[-1] != wire.LEGACY[-1] else None


def modern_meta() -> dict[str, Any]:
    """Returns the members about this client in every request of the revision without a handshake."""
    return {wire.META_VERSION: wire.MODERN, wire.META_CAPABILITIES: _OFFERS, wire.META_CLIENT: _our_info()}


def _our_info() -> dict[str, Any]:
    from ...._version import __version__

    return {"name": "interlingua", "version": __version__}


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _is_told(message: Any) -> bool:
    return isinstance(message, dict) and message.get("method") == _PROGRESS


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

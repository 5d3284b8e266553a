"""The door of the Agent Client Protocol: our agents inside every editor, over any channel, in versions 1 and 2.

`EditorDoor` holds the parts that all connections share; `EditorConnection` is one client, with its version and its
sessions. A session is a thread: it outlives the connection and the process, and other doors can go on with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import PurePath
from typing import Any

import msgspec

from ....engine.engine import Engine
from ....engine.ids import new_id
from ....model.card import AgentCard
from ....model.errors import AgentNotFound, Conflict, InterlinguaError, NotFound, ThreadNotFound
from ....model.filters import ThreadFilter
from ....model.run import OWNER, Caller, Thread
from ....security import scopes
from ....transports.channel import Channel
from ....transports.jsonrpc import params as params_
from ....transports.jsonrpc.batch import send_batch
from ....transports.jsonrpc.connection import Answer, Connection, Trace
from ....transports.jsonrpc.core import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Call,
    Limits,
    Notice,
    RpcError,
)
from .. import translate, wire
from ..versions import Dialect, negotiate
from .logins import Logins
from .prompts import Prompts
from .sessions import Place, Session
from .turns import Turn

log = logging.getLogger("interlingua.editor")

_PAGE = 50  # sessions per page of session/list


class EditorSettings(msgspec.Struct, kw_only=True, frozen=True):
    limits: Limits = Limits()


class EditorDoor:
    def __init__(self, engine: Engine, settings: EditorSettings | None = None) -> None:
        self.engine = engine
        self.settings = settings or EditorSettings()
        self.connections: set[EditorConnection] = set()
        engine.agents.listeners.append(self._agents_changed)

    def _agents_changed(self) -> None:
        for connection in self.connections:
            connection.tell_options()

    def connect(self, channel: Channel, caller: Caller = OWNER, trace: Trace | None = None) -> EditorConnection:
        """Returns a connection to one client, over any channel. `await connection.rpc.run()` serves it."""
        return EditorConnection(self, channel, caller, trace)


class EditorConnection:
    """The connection to one client."""

    dialect: Dialect  # once it has initialized

    def __init__(self, door: EditorDoor, channel: Channel, caller: Caller, trace: Trace | None = None) -> None:
        self.door = door
        self.engine = door.engine
        self.caller = caller
        self.rpc = Connection(channel, self, limits=door.settings.limits, trace=trace)
        self.able = wire.ClientCapabilities()
        self.sessions: dict[str, Session] = {}
        self.changed: Callable[[], Awaitable[None]] | None = None  # called when sessions open or close, or are prompted
        self.logins = Logins(self)
        self.prompts = Prompts(self)
        self._ready = False
        self._methods: dict[str, Callable[[Any], Awaitable[Any]]] = {}
        door.connections.add(self)

    @property
    def forms(self) -> bool:
        """Tells if the client can show a form."""
        return self.able.elicitation is not None and self.able.elicitation.form is not None

    @property
    def booleans(self) -> bool:
        options = self.able.session.config_options if self.able.session is not None else None
        return options is not None and options.boolean is not None

    def agents(self) -> list[AgentCard]:
        """Returns the agents that this caller may run, in their given order."""
        return [a.card for a in self.engine.agents if scopes.may(self.caller, "run", a.card.key).allowed]

    # -- callbacks of the connection ----------------------------------------------------------------------

    async def called(self, call: Call) -> Any:
        if call.method == "initialize":
            if call.batch is not None and call.batch.size > 1:
                raise RpcError(INVALID_REQUEST, "initialize comes alone, not in a batch with others")
            return self.met(params_.read(call.params, wire.InitializeRequest))
        if not self._ready:
            raise RpcError(INVALID_REQUEST, f'expected "initialize" first, but got {call.method!r}')
        method = self._methods.get(call.method)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {call.method!r}")
        if call.method == "session/prompt":
            return await self.prompts.prompt(call.params, call.id)
        return await method(call.params)

    def noticed(self, notice: Notice) -> Awaitable[None] | None:
        if notice.method == "session/cancel" and self._ready:
            try:
                wanted = params_.read(notice.params, wire.SessionRequest).session_id
            except RpcError:
                return None
            session = self.sessions.get(wanted)
            return session.cancel() if session is not None else None
        return None  # notifications that we do not know are ignored, extensions among them

    def failure(self, error: Exception) -> RpcError:
        if isinstance(error, InterlinguaError):
            return translate.rpc_error(error)
        raise error

    async def batch(self, calls: Iterable[tuple[str, Any, bool]], *, timeout: float | None = None) -> list[Any]:
        """Sends several messages to the client as one array, where the agreed version knows arrays."""
        return await send_batch(self.rpc, self.dialect.number, calls, timeout=timeout)

    def gone(self) -> None:
        """Ends the connection of a client that has left: its sessions stay, its runs go on."""
        self.door.connections.discard(self)
        for session in self.sessions.values():
            session.forget()
        self.sessions.clear()

    def tell_options(self) -> None:
        """Sends the choice of agents to the client when agents have come or gone."""
        for session in self.sessions.values():
            session.updates(self.dialect.option_updates(session.options(), booleans=self.booleans, agent=False))

    # -- the lifecycle ------------------------------------------------------------------------------------

    def met(self, request: wire.InitializeRequest) -> dict[str, Any]:
        """Handles `initialize`: takes the client's description and abilities, and returns ours."""
        if self._ready:
            raise RpcError(INVALID_REQUEST, "this connection is initialized already")
        self.dialect = negotiate(request.protocol_version)
        self.able = self.dialect.capabilities(request)
        self._methods = {
            "session/new": self._new,
            "session/resume": self._resume,
            "session/list": self._list,
            "session/delete": self._delete,
            "session/close": self._close,
            "session/set_config_option": self._set_config_option,
            "session/prompt": self.prompts.steer,  # never called: the handler gets its request, too
            "_session/steering": self.prompts.steer,
        }
        if self.dialect.number == 1:
            self._methods |= {
                "authenticate": self.logins.login,
                "logout": self.logins.logout,
                "session/load": self._load,
                "session/set_mode": self._set_mode,
            }
        else:
            self._methods |= {"auth/login": self.logins.login, "auth/logout": self.logins.logout}
        cards = self.agents()
        info: dict[str, Any] = {"name": "interlingua", "version": _version()}
        if len(cards) == 1:
            info = {"name": cards[0].name, "version": cards[0].version, "title": cards[0].name}
        agents = [
            {
                "name": c.name, "version": c.version, "description": c.description,
                "via": self.engine.agents.mount_path(c), "asks": bool(c.questions),
            }
            for c in cards
        ]  # fmt: skip
        self._ready = True
        methods = [self.dialect.auth_method(method) for _, method in self.logins.available()]
        return self.dialect.initialized(info, agents, methods, logout=bool(methods))

    # -- sessions -----------------------------------------------------------------------------------------

    async def _new(self, params: Any) -> Any:
        request = params_.read(params, wire.NewSessionRequest)
        place = self._place(request)
        cards = self.agents()
        if not cards:
            raise AgentNotFound("this server has no agent that you may run")
        wanted = (request.meta or {}).get(wire.META_AGENT)
        card = next((card for card in cards if card.key == wanted), cards[0])  # one that is not there was not chosen
        await self.logins.check(card)
        session = Session(self, new_id(), place, card, {}, None)
        await self.engine.threads.create(session.id, metadata=session.metadata(), caller=self.caller)
        self.sessions[session.id] = session
        await self.tell_changed()
        return Answer({"sessionId": session.id, **self._setup(session)}, lambda: self._introduce(session))

    async def tell_changed(self) -> None:
        if self.changed is not None:
            await self.changed()

    def _setup(self, session: Session) -> dict[str, Any]:
        told = self.dialect.setup(session.options(), booleans=self.booleans)
        return {**told, "_meta": {wire.META_AGENT: session.card.key}}

    def _introduce(self, session: Session) -> None:
        if session.card.skills:
            session.update(self.dialect.commands(session.card))

    def _place(self, request: wire.NewSessionRequest) -> Place:
        for path in [request.cwd, *(request.additional_directories or [])]:
            if not PurePath(path).is_absolute():
                raise RpcError(INVALID_PARAMS, f"{path!r} is not an absolute path")
        servers = request.mcp_servers or []
        for place, server in enumerate(servers):
            _check_server(server, place)
        return Place(request.cwd, request.additional_directories or [], servers)

    async def _open(self, request: wire.LoadSessionRequest) -> Session:
        place = self._place(request)
        thread = await self._thread(request.session_id)
        kept = thread.metadata.get("editor")
        kept = kept if isinstance(kept, dict) else {}
        cards = self.agents()
        if not cards:
            raise AgentNotFound("this server has no agent that you may run")
        card = next((card for card in cards if card.key == kept.get("agent")), cards[0])
        config = kept.get("config") if card.key == kept.get("agent") else None
        title = thread.metadata.get("title")
        before = self.sessions.get(thread.id)
        if before is not None:
            before.forget()
        session = Session(
            self, thread.id, place, card, config if isinstance(config, dict) else {},
            title if isinstance(title, str) else None,
        )  # fmt: skip
        self.sessions[thread.id] = session
        if thread.metadata.get("cwd") != place.cwd or kept.get("directories", []) != place.directories:
            await session.keep()
        await self.tell_changed()
        return session

    async def reopen(self, wanted: str) -> Session:
        """Opens a session that another process had open for this client. Its working directory is on its thread."""
        thread = await self._thread(wanted)
        kept = thread.metadata.get("editor")
        directories = kept.get("directories") if isinstance(kept, dict) else None
        request = wire.LoadSessionRequest(
            session_id=wanted, cwd=thread.metadata.get("cwd") or "/", additional_directories=directories or []
        )
        return await self._open(request)

    async def _thread(self, wanted: str) -> Thread:
        thread = await self.engine.threads.get(wanted)
        if not scopes.sees(self.caller, thread.caller):
            raise ThreadNotFound(f"there is no session {wanted}")
        return thread

    async def _load(self, params: Any) -> Any:
        session = await self._open(params_.read(params, wire.LoadSessionRequest))
        unfinished = await session.replay()
        return Answer(self._setup(session), lambda: self._opened(session, unfinished))

    async def _resume(self, params: Any) -> Any:
        request = params_.read(params, wire.LoadSessionRequest)
        session = await self._open(request)
        replays = self.dialect.number == 2 and request.replay_from is not None and request.replay_from.type == "start"
        unfinished = await session.replay() if replays else await session.unfinished()
        return Answer(self._setup(session), lambda: self._opened(session, unfinished))

    def _opened(self, session: Session, unfinished: Turn | None) -> None:
        """Sends the title of a session that was opened again, and goes on with its unfinished turn."""
        self._introduce(session)
        if session.title:
            session.update({"sessionUpdate": "session_info_update", "title": session.title})
        if unfinished is not None:
            session.turns.append(unfinished)
            session.updates(self.dialect.state("running"))
            unfinished.questions.ask_left_open()
            self.prompts.spawn(session, unfinished)

    async def _list(self, params: Any) -> dict[str, Any]:
        request = params_.read(params, wire.ListSessionsRequest)
        offset = params_.offset(request.cursor)
        wanted: dict[str, Any] = {"door": "editor"}
        if request.cwd is not None:
            wanted["cwd"] = request.cwd
        own = None if scopes.sees(self.caller, "*") else self.caller.id
        found = await self.engine.threads.search(
            ThreadFilter(metadata=wanted, caller=own, limit=_PAGE + 1, offset=offset)
        )
        told: dict[str, Any] = {"sessions": [_info(thread) for thread in found[:_PAGE]]}
        if len(found) > _PAGE:
            told["nextCursor"] = params_.cursor(offset + _PAGE)
        return told

    async def _close(self, params: Any) -> dict[str, Any]:
        session = self.session(params_.read(params, wire.SessionRequest).session_id)
        await self._end(session)
        return {}

    async def _end(self, session: Session) -> None:
        await session.cancel()
        running = [turn.task for turn in session.turns if turn.task is not None]
        if running:
            await asyncio.wait(running, timeout=30)
        session.forget()
        self.sessions.pop(session.id, None)
        await self.tell_changed()

    async def _delete(self, params: Any) -> dict[str, Any]:
        wanted = params_.read(params, wire.SessionRequest).session_id
        scopes.require(self.caller, "delete")
        session = self.sessions.get(wanted)
        if session is not None:
            await self._end(session)
        with contextlib.suppress(NotFound):  # one that is not there need not be deleted
            thread = await self._thread(wanted)
            if thread.active is not None:
                with contextlib.suppress(Conflict):
                    await self.engine.runs.cancel(thread.active, by=self.caller, reason="its session is being deleted")
                await self.engine.runs.wait(thread.active)
            await self.engine.threads.delete(wanted)
        return {}

    def session(self, wanted: str) -> Session:
        session = self.sessions.get(wanted)
        if session is None:
            raise RpcError(
                translate.NOT_FOUND, f"session {wanted!r} is not open here; open it with session/load or session/resume"
            )
        return session

    # -- options ------------------------------------------------------------------------------------------

    async def _set_mode(self, params: Any) -> Any:
        request = params_.read(params, wire.SetModeRequest)
        session = self.session(request.session_id)
        if not any(option.id == "agent" for option in session.options()):
            raise RpcError(INVALID_PARAMS, "this session has no modes")
        await session.set_option("agent", request.mode_id)
        updates = self.dialect.option_updates(session.options(), booleans=self.booleans, agent=False)
        return Answer({}, lambda: session.updates(updates))

    async def _set_config_option(self, params: Any) -> Any:
        request = params_.read(params, wire.SetConfigOptionRequest)
        session = self.session(request.session_id)
        await session.set_option(request.config_id, request.value)
        options = session.options()
        told = {"configOptions": self.dialect.options(options, booleans=self.booleans)}
        if request.config_id != "agent":
            return told
        updates = self.dialect.option_updates(options, booleans=self.booleans, agent=True)[1:]
        return Answer(told, lambda: session.updates(updates))


# -- small readers --------------------------------------------------------------------------------------------


def _check_server(server: dict[str, Any], place: int) -> None:
    """Checks the form of a tool server's description. No kind of tool server is refused."""
    kind = server.get("type", "stdio")
    path = f"mcpServers[{place}]"
    if kind not in ("stdio", "http", "sse"):
        return  # of a later version; the client that connects to it will know
    type_: Any = wire.McpServerStdio if kind == "stdio" else wire.McpServerHttp
    if isinstance(server.get("env"), dict) or isinstance(server.get("headers"), dict):
        raise RpcError(INVALID_PARAMS, f'{path}: env and headers are lists of {{"name": …, "value": …}}, not objects')
    try:
        msgspec.convert(server, type_)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_PARAMS, f"{path}: {error}") from None


def _info(thread: Thread) -> dict[str, Any]:
    kept = thread.metadata.get("editor")
    told: dict[str, Any] = {
        "sessionId": thread.id,
        "cwd": thread.metadata.get("cwd") or "/",
        "updatedAt": _when(thread.updated_at),
    }
    if isinstance(thread.metadata.get("title"), str):
        told["title"] = thread.metadata["title"]
    if isinstance(kept, dict) and kept.get("directories"):
        told["additionalDirectories"] = kept["directories"]
    return told


def _when(microseconds: int) -> str:
    import datetime

    moment = datetime.datetime.fromtimestamp(microseconds / 1e6, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _version() -> str:
    from ...._version import __version__

    return __version__


__all__ = ["INTERNAL_ERROR", "EditorConnection", "EditorDoor", "EditorSettings"]

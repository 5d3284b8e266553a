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

from ....engine.agents.logins import Login, LoginMethod, methods_of
from ....engine.engine import Engine
from ....engine.ids import new_id
from ....model.card import AgentCard
from ....model.content import Message
from ....model.errors import AgentNotFound, Conflict, InterlinguaError, NotFound, ThreadNotFound
from ....model.events import RunFinished
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
    Id,
    Limits,
    Notice,
    RpcError,
)
from .. import translate, wire
from ..versions import Dialect, negotiate
from .resumed_prompt import Again
from .sessions import Place, Session, Turn, outcome

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
            return await self._prompt(call.params, call.id)
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
            "session/prompt": self._steer,  # never called: the handler gets its request, too
            "_session/steering": self._steer,
        }
        if self.dialect.number == 1:
            self._methods |= {
                "authenticate": self._login,
                "logout": self._logout,
                "session/load": self._load,
                "session/set_mode": self._set_mode,
            }
        else:
            self._methods |= {"auth/login": self._login, "auth/logout": self._logout}
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
        methods = [self.dialect.auth_method(method) for _, method in self._logins()]
        return self.dialect.initialized(info, agents, methods, logout=bool(methods))

    def _logins(self) -> list[tuple[Login, LoginMethod]]:
        terminal = self.able.auth is not None and self.able.auth.terminal not in (None, False)
        return [
            (login, method) for login, method in methods_of(self.engine.agents) if method.kind != "terminal" or terminal
        ]

    async def _login(self, params: Any) -> dict[str, Any]:
        wanted = params_.read(params, wire.AuthenticateRequest).method_id
        for login, method in self._logins():
            if method.id == wanted and method.kind != "terminal":
                await login.login(wanted)
                return {}
        known = ", ".join(method.id for _, method in self._logins()) or "none is needed here"
        raise RpcError(INVALID_PARAMS, f"there is no way to log in called {wanted!r} over the protocol: {known}")

    async def _logout(self, params: Any) -> dict[str, Any]:
        for login in {id(login): login for login, _ in self._logins()}.values():
            await login.logout()
        return {}

    async def _logged_in(self, card: AgentCard) -> None:
        agent = self.engine.agents.find(card.name, card.version)
        if agent is not None and agent.login is not None and await agent.login.needed():
            ways = ", ".join(method.id for method in agent.login.methods)
            raise RpcError(translate.AUTH_REQUIRED, f"{card.name} wants you to log in first: {ways}")

    # -- sessions -----------------------------------------------------------------------------------------

    async def _new(self, params: Any) -> Any:
        request = params_.read(params, wire.NewSessionRequest)
        place = self._place(request)
        cards = self.agents()
        if not cards:
            raise AgentNotFound("this server has no agent that you may run")
        wanted = (request.meta or {}).get(wire.META_AGENT)
        card = next((card for card in cards if card.key == wanted), cards[0])  # one that is not there was not chosen
        await self._logged_in(card)
        session = Session(self, new_id(), place, card, {}, None)
        await self.engine.threads.create(session.id, metadata=session.metadata(), caller=self.caller)
        self.sessions[session.id] = session
        await self._changed()
        return Answer({"sessionId": session.id, **self._setup(session)}, lambda: self._introduce(session))

    async def _changed(self) -> None:
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
        await self._changed()
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
            session.ask_again(unfinished)
            self._spawn(session, unfinished)

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
        session = self._session(params_.read(params, wire.SessionRequest).session_id)
        await self._end(session)
        return {}

    async def _end(self, session: Session) -> None:
        await session.cancel()
        running = [turn.task for turn in session.turns if turn.task is not None]
        if running:
            await asyncio.wait(running, timeout=30)
        session.forget()
        self.sessions.pop(session.id, None)
        await self._changed()

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

    def _session(self, wanted: str) -> Session:
        session = self.sessions.get(wanted)
        if session is None:
            raise RpcError(
                translate.NOT_FOUND, f"session {wanted!r} is not open here; open it with session/load or session/resume"
            )
        return session

    # -- options ------------------------------------------------------------------------------------------

    async def _set_mode(self, params: Any) -> Any:
        request = params_.read(params, wire.SetModeRequest)
        session = self._session(request.session_id)
        if not any(option.id == "agent" for option in session.options()):
            raise RpcError(INVALID_PARAMS, "this session has no modes")
        await session.set_option("agent", request.mode_id)
        updates = self.dialect.option_updates(session.options(), booleans=self.booleans, agent=False)
        return Answer({}, lambda: session.updates(updates))

    async def _set_config_option(self, params: Any) -> Any:
        request = params_.read(params, wire.SetConfigOptionRequest)
        session = self._session(request.session_id)
        await session.set_option(request.config_id, request.value)
        options = session.options()
        told = {"configOptions": self.dialect.options(options, booleans=self.booleans)}
        if request.config_id != "agent":
            return told
        updates = self.dialect.option_updates(options, booleans=self.booleans, agent=True)[1:]
        return Answer(told, lambda: session.updates(updates))

    # -- prompts ------------------------------------------------------------------------------------------

    async def _prompt(self, params: Any, id_: Id) -> Any:
        if isinstance(params, Again):
            await self._finish(params.session, params.turn)
            return self._ended(params.turn)
        request = params_.read(params, wire.PromptRequest)
        session = self._session(request.session_id)
        if (request.meta or {}).get(wire.META_END_OF_LAST) is True:
            return await self._end_of_last(session)
        turn = session.spoken_to()
        taken = "too late"
        if turn is not None:
            parts = translate.parts(request.prompt, open_types=self.dialect.open_types)
            taken = await session.take_up(turn, parts)
        if turn is None or taken == "too late":
            turn = Turn()
            session.turns.append(turn)  # before anything waits: a cancel that comes now finds it
            try:
                message = await self._begun(session, turn, request)
            except BaseException:
                session.turns.remove(turn)
                raise
        else:
            message = f"{turn.run}-{new_id()}"
        if turn.run is not None:
            session.prompted = [*session.prompted[-3:], (turn.run, id_ if self.dialect.number == 1 else None)]
            await self._changed()
        accepted = self.dialect.accepted(message)
        if accepted is None:
            if taken != "asked again":
                await self._finish(session, turn)
            return self._ended(turn)
        begun = turn

        def begin() -> None:
            session.updates(self.dialect.user_message(message, request.prompt))
            if taken == "asked again":
                session.updates(self.dialect.state("idle", "end_turn"))
                return
            session.updates(self.dialect.state("running"))
            self._spawn(session, begun)

        return Answer(accepted, begin)

    async def _end_of_last(self, session: Session) -> dict[str, Any]:
        """Waits for the end of the newest turn, which another connection began."""
        turn = next((turn for turn in session.turns[::-1] if turn.run is not None), None)
        if turn is None:
            turn = await session.ended_turn()
        elif self.dialect.number == 1:
            await self._finish(session, turn)
        else:
            await self._pause_or_end(turn)
        return self._ended(turn)

    async def _begun(self, session: Session, turn: Turn, request: wire.PromptRequest) -> str:
        """Begins a turn. Where the client withdraws its prompt while the run is being submitted, this waits for the
        run, and cancels it. Where the client has gone, the run goes on."""
        beginning = asyncio.ensure_future(session.begin(turn, request.prompt, request.meta))
        while True:
            try:
                message = await asyncio.shield(beginning)
            except asyncio.CancelledError:
                if self.rpc.lost or beginning.cancelled():
                    beginning.cancel()
                    raise
                turn.cancelling = True
            else:
                if turn.cancelling:
                    await session.cancel_run(turn)
                return message

    def follow(self, session: Session, turn: Turn) -> None:
        """Shows a turn that another process began."""
        session.updates(self.dialect.state("running"))
        self._spawn(session, turn)

    def _spawn(self, session: Session, turn: Turn) -> None:
        if turn.task is None:
            turn.task = asyncio.get_running_loop().create_task(self._follow(session, turn))
        if self.dialect.number == 2:
            watch = asyncio.get_running_loop().create_task(self._tell_end(session, turn))
            turn.watches.add(watch)
            watch.add_done_callback(turn.watches.discard)

    async def _follow(self, session: Session, turn: Turn) -> None:
        try:
            if turn.finished is None:
                await session.follow(turn)
        except asyncio.CancelledError:
            turn.left = True
            raise
        except Exception as error:
            turn.failure = error
            log.exception("run %s could not be followed", turn.run)
        finally:
            turn.rests.set()
            with contextlib.suppress(ValueError):
                session.turns.remove(turn)

    async def _tell_end(self, session: Session, turn: Turn) -> None:
        """Sends the end of a turn, which is an update in version 2."""
        await self._pause_or_end(turn)
        stop, error = outcome(turn)
        update = self.dialect.state("idle", stop)[0]
        if error is not None:
            update |= {"stopReason": "error", "error": error.plain()}
        session.update(update)

    async def _finish(self, session: Session, turn: Turn) -> None:
        """Waits for the end of a turn, in version 1. A client that withdraws its prompt cancels the turn, and gets its
        end."""
        self._spawn(session, turn)
        turn.awaited = True
        try:
            await self._pause_or_end(turn)
        except asyncio.CancelledError:
            if self.rpc.lost:
                raise
            turn.cancelling = True
            await session.cancel_run(turn)
            await self._pause_or_end(turn)
        finally:
            turn.awaited = False

    async def _pause_or_end(self, turn: Turn) -> None:
        await turn.rests.wait()
        if turn.left and turn.run is not None and turn.finished is None:
            ended = await self.engine.runs.wait(turn.run)  # the session was opened anew meanwhile, and is shown there
            turn.finished = RunFinished(ended.status, ended.output, ended.error)
        if turn.failure is not None:
            raise turn.failure

    def _ended(self, turn: Turn) -> dict[str, Any]:
        stop, error = outcome(turn)
        if error is not None:
            raise error
        meta: dict[str, Any] = {"run": turn.run}
        finished = turn.finished
        if finished is not None and finished.output is not None and _short(finished.output):
            meta["output"] = finished.output
        if turn.spoken is not None:
            meta["question"] = turn.spoken.id
        if finished is not None and finished.usage:
            meta["usage"] = finished.usage
        return {"stopReason": stop, "_meta": {"interlingua": meta}}

    async def _steer(self, params: Any) -> dict[str, Any]:
        """Puts a message into the running turn. This is an extension that several agents have."""
        request = params_.read(params, wire.PromptRequest)
        session = self._session(request.session_id)
        turn = next((turn for turn in session.turns if turn.run is not None and turn.finished is None), None)
        if turn is None or turn.run is None:
            return {"outcome": "failed"}
        parts = translate.parts(request.prompt, open_types=self.dialect.open_types)
        await self.engine.runs.send(turn.run, Message("user", parts))
        return {"outcome": "injected"}


def _short(output: Any) -> bool:
    """Tells if an output may also travel in an answer. Its text was shown already, and messages have limits."""
    try:
        return len(msgspec.json.encode(output)) <= 256 * 1024
    except RecursionError:
        return False


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

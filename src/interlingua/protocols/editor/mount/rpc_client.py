"""Our side of one connection to an agent: the agreed version, the sessions, and their running turns.

A run that prompts gives its session a listener, which takes its updates and answers the agent's requests meanwhile.
Updates of an unknown session are kept until it is known: some agents send them before they answer `session/new`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import Any, Protocol

import msgspec

from ....model.errors import Denied, InterlinguaError, Unavailable
from ....transports.channel import Channel
from ....transports.jsonrpc.batch import send_batch
from ....transports.jsonrpc.connection import Connection, ConnectionLost, Trace
from ....transports.jsonrpc.core import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, Call, Notice, RpcError
from .. import translate, wire
from .agent_card import Listed, Option, listed, options_of

log = logging.getLogger("interlingua.editor")

_EARLY = 1000  # updates that are kept for sessions which are not known yet
_CLOSED = 100  # sessions that are remembered after they were closed, because their agents may still say something
_LATE_KEEPS = 1000  # characters that are kept of an agent's text after its turn
_SAYS = ("agent_message_chunk", "agent_message")

__all__ = ["AuthenticationNeeded", "ConnectionLost", "Listener", "Peer", "Session", "Unsuitable"]


class AuthenticationNeeded(Denied):
    """The agent requires a login first."""

    code = "auth_required"


class Unsuitable(Unavailable):
    """The remote side answers, but is no agent that this client can talk to."""

    code = "unsuitable_agent"
    transient = False


class Listener(Protocol):
    """Takes the updates and requests of a session."""

    async def told(self, update: dict[str, Any]) -> None: ...
    async def asked(self, call: Call) -> Any: ...


class Servant(Protocol):
    """Answers the agent's requests for files and terminals."""

    async def serve(self, method: str, params: dict[str, Any]) -> Any: ...
    async def close(self) -> None: ...


class Place(msgspec.Struct, frozen=True):
    """The working directories and tool servers of a session."""

    cwd: str
    directories: tuple[str, ...] = ()
    mcp_servers: tuple[Any, ...] = ()


class Abilities(msgspec.Struct):
    """The abilities of an agent, independent of the version."""

    load: bool = False
    resume: bool = False
    close: bool = False
    directories: bool = False
    image: bool = False
    audio: bool = False
    embedded: bool = False

    @classmethod
    def of_version_1(cls, told: dict[str, Any]) -> Abilities:
        prompt, session = _object(told.get("promptCapabilities")), _object(told.get("sessionCapabilities"))
        return cls(
            load=told.get("loadSession") is True,
            resume=_offered(session.get("resume")),
            close=_offered(session.get("close")),
            directories=_offered(session.get("additionalDirectories")),
            image=prompt.get("image") is True,
            audio=prompt.get("audio") is True,
            embedded=prompt.get("embeddedContext") is True,
        )

    @classmethod
    def of_version_2(cls, told: dict[str, Any]) -> Abilities:
        session = _object(told.get("session"))
        prompt = _object(session.get("prompt"))
        return cls(
            resume=_offered(told.get("session")),
            close=_offered(told.get("session")),
            directories=_offered(session.get("additionalDirectories")),
            image=_offered(prompt.get("image")),
            audio=_offered(prompt.get("audio")),
            embedded=_offered(prompt.get("embeddedContext")),
        )


class Session:
    """One conversation with the agent."""

    def __init__(self, peer: Peer, id_: str, place: Place, servant: Servant) -> None:
        self.peer = peer
        self.id = id_
        self.place = place
        self.servant = servant
        self.options: list[Option] = []
        self.answers: str | None = None  # the agent that answers, as an Interlingua server reports it
        self.commands: list[dict[str, Any]] = []
        self.commands_known = asyncio.Event()
        self.title: str | None = None
        self.named_after: str | None = None  # the name of our thread when the session was named after it
        self.listener: Listener | None = None
        self.replaying = False  # it is being resumed: earlier updates are not shown again
        self.news = 0  # updates that came
        self._idle: asyncio.Future[dict[str, Any]] | None = None  # version 2: the end of the turn
        self._ran = False
        self.prompting: asyncio.Future[Any] | None = None
        self.run: str | None = None  # the last run that prompted
        self._late = ""  # the agent's text after the end of that run

    # -- asking -------------------------------------------------------------------------------------------

    async def prompt(self, blocks: list[dict[str, Any]], meta: dict[str, Any]) -> dict[str, Any]:
        """Prompts, and waits for the end of the turn. Returns the stop reason, and the members that came with it."""
        self.watch_for_idle()
        result = await self.peer.request("session/prompt", {"sessionId": self.id, "prompt": blocks, "_meta": meta})
        result = _object(result)
        if self.peer.version == 1 or isinstance(result.get("stopReason"), str):
            return result
        return await self.idle()

    def watch_for_idle(self) -> None:
        self._ran = False
        self._idle = asyncio.get_running_loop().create_future()

    async def idle(self) -> dict[str, Any]:
        """Waits until the agent reports the end of the turn, in version 2."""
        if self._idle is None:
            self.watch_for_idle()
        assert self._idle is not None
        return await asyncio.shield(self._idle)

    def cancel(self) -> None:
        self.peer.rpc.notify("session/cancel", {"sessionId": self.id})

    def chosen(self, name: str) -> Any:
        """Returns the present value of an option."""
        return next((option.current for option in self.options if option.id == name), None)

    def is_set_to(self, agent: str | None) -> bool:
        """Tells if this agent answers in the session. Where the remote side has only one agent left, there is nothing
        to set."""
        return agent is None or (self.chosen("agent") or self.answers or agent) == agent

    async def set_option(self, name: str, value: Any) -> None:
        """Sets an option, unless it has the value already."""
        option = next((option for option in self.options if option.id == name), None)
        if option is None or option.current == value:
            return
        if option.is_mode:
            await self.peer.request("session/set_mode", {"sessionId": self.id, "modeId": value})
            option.current = value
            return
        params = {"sessionId": self.id, "configId": name, "value": value}
        if isinstance(value, bool):
            params["type"] = "boolean"
        elif self.peer.version == 2:
            params["type"] = "id"
        result = _object(await self.peer.request("session/set_config_option", params))
        option.current = value
        if result.get("configOptions"):
            self.options = options_of(result)

    # -- hearing ------------------------------------------------------------------------------------------

    def take(self, update: dict[str, Any]) -> Awaitable[None] | None:
        self.news += 1
        match update.get("sessionUpdate"):
            case "available_commands_update":
                commands = update.get("availableCommands")
                self.commands = [c for c in commands if isinstance(c, dict)] if isinstance(commands, list) else []
                self.commands_known.set()
                return None
            case "config_option_update":
                self.options = options_of(update) or self.options
                return None
            case "current_mode_update":
                mode = update.get("currentModeId", update.get("modeId"))  # the specification's example says modeId
                for option in self.options:
                    if option.is_mode and isinstance(mode, str):
                        option.current = mode
                return None
            case "session_info_update":
                if "title" in update:
                    self.title = update["title"] if isinstance(update["title"], str) else None
                return None
            case "state_update":
                self._state(update)
                return None
        if self.listener is not None and not self.replaying:
            return self.listener.told(update)
        if self.run is not None and not self.replaying and update.get("sessionUpdate") in _SAYS:
            self._said_late(update.get("content"))
        return None

    def _said_late(self, content: Any) -> None:
        blocks = content if isinstance(content, list) else [content]
        text = "".join(str(block["text"]) for block in blocks if isinstance(block, dict) and block.get("text"))
        if text and not self._late:
            log.warning("an agent says more after run %s was over; that is no part of its output: %s", self.run, text)
        self._late = (self._late + text)[:_LATE_KEEPS]

    def take_late(self) -> tuple[str, str] | None:
        """Returns the last run and the text that came after its end; None when called again."""
        late, self._late = self._late, ""
        return (self.run, late) if late and self.run is not None else None

    def _state(self, update: dict[str, Any]) -> None:
        state = update.get("state")
        if state == "running":
            self._ran = True
        # An agent may say that it is idle before it has begun; that is not the end of this turn.
        elif (
            state == "idle"
            and self._idle is not None
            and not self._idle.done()
            and not self.replaying
            and (self._ran or update.get("stopReason"))
        ):
            self._idle.set_result(update)

    def set_up(self, told: dict[str, Any]) -> None:
        self.options = options_of(told) or self.options
        who = _object(told.get("_meta")).get(wire.META_AGENT)
        self.answers = who if isinstance(who, str) else None
        commands = told.get("availableCommands")
        if isinstance(commands, list):
            self.take({"sessionUpdate": "available_commands_update", "availableCommands": commands})

    def lost(self, error: ConnectionLost) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_exception(error)
            self._idle.exception()  # a waiting prompt gets the error; perhaps none waits

    async def close(self) -> None:
        """Tells the agent that this session is not needed any more."""
        self.peer.forget(self)
        await self.servant.close()
        if self.peer.able.close and not self.peer.rpc.lost:
            try:
                await self.peer.request("session/close", {"sessionId": self.id}, timeout=5.0)
            except (RpcError, TimeoutError, ConnectionError) as error:
                log.info("session %s could not be closed: %s", self.id, error)


class Peer:
    """One connection. `open` agrees on the version; `run` reads until the agent is gone."""

    def __init__(self, channel: Channel, servants: Any, *, trace: Trace | None = None) -> None:
        self.rpc = Connection(channel, self, trace=trace, is_piece=_is_piece)
        self.sessions: dict[str, Session] = {}
        self.of_threads: dict[tuple[str, str], str] = {}  # sessions, by kind and thread
        self.version = 1
        self.able = Abilities()
        self.info: dict[str, Any] = {}
        self.agents: dict[str, Listed] = {}  # that it names
        self.capabilities: dict[str, Any] = {}
        self.auth_methods: list[dict[str, Any]] = []
        self._servants = servants  # makes one for a place
        self._early: dict[str, list[dict[str, Any]]] = {}
        self._closed: dict[str, Session] = {}
        self._opening = 0  # sessions that are being opened
        self.ours = False  # a server like this one, as its answers tell

    @property
    def usable(self) -> bool:
        return not self.rpc.lost

    async def run(self) -> None:
        try:
            await self.rpc.run()
        finally:
            error = ConnectionLost("the agent is gone")
            for session in list(self.sessions.values()):
                session.lost(error)
                await session.servant.close()

    async def request(self, method: str, params: dict[str, Any], *, timeout: float | None = None) -> Any:
        return await self.rpc.request(method, params, timeout=timeout)

    async def batch(self, calls: Iterable[tuple[str, Any, bool]], *, timeout: float | None = None) -> list[Any]:
        return await send_batch(self.rpc, self.version, calls, timeout=timeout)

    # -- agreeing -----------------------------------------------------------------------------------------

    async def open(self, wanted: int, offers: dict[str, Any], *, auth: str | None, timeout: float) -> None:
        info = {"name": "interlingua", "title": "Interlingua", "version": _our_version()}
        params: dict[str, Any] = {"protocolVersion": wanted, "clientInfo": info, "clientCapabilities": offers}
        if wanted >= 2:
            # The members of version 1 stay, so that an agent which knows only that version finds our abilities.
            params |= {
                "info": info,
                "capabilities": {"elicitation": offers["elicitation"], "auth": {"terminal": {}}},
            }
        result = await self.request("initialize", params, timeout=timeout)
        if not isinstance(result, dict) or type(result.get("protocolVersion")) is not int:
            raise Unsuitable("it does not speak the Agent Client Protocol: initialize was answered without a version")
        version = result["protocolVersion"]
        if not 1 <= version <= wanted:
            raise Unsuitable(f"it answered with version {version} of the protocol, and was asked for {wanted}")
        # fast-agent answers 2 with the members of version 1.
        self.version = 1 if version >= 2 and not isinstance(result.get("info"), dict) else min(version, 2)
        if self.version == 1:
            self.capabilities = _object(result.get("agentCapabilities"))
            self.info = _object(result.get("agentInfo"))
            self.able = Abilities.of_version_1(self.capabilities)
        else:
            self.capabilities = _object(result.get("capabilities"))
            self.info = result["info"]
            self.able = Abilities.of_version_2(self.capabilities)
        self.agents = listed(result)
        methods = result.get("authMethods")
        self.auth_methods = [m for m in methods if isinstance(m, dict)] if isinstance(methods, list) else []
        if auth is not None:
            method = "authenticate" if self.version == 1 else "auth/login"
            await self.request(method, {"methodId": auth}, timeout=timeout)

    # -- sessions -----------------------------------------------------------------------------------------

    async def new(self, place: Place, *, agent: str | None = None, timeout: float | None = None) -> Session:
        """Opens a session. `agent` is the value that its option `agent` will get: an Interlingua server sets it at
        once."""
        self._opening += 1
        meta = {"_meta": {wire.META_AGENT: agent}} if agent is not None else {}
        try:
            result = _object(await self.request("session/new", {**self._where(place), **meta}, timeout=timeout))
            id_ = result.get("sessionId")
            if not isinstance(id_, str) or not id_:
                raise Unsuitable("session/new was answered without a sessionId")
            session = self._add(Session(self, id_, place, self._servants(place)))
            session.set_up(result)
        finally:
            self._opening -= 1
        for update in self._early.pop(id_, []):
            if (taken := session.take(update)) is not None:
                await taken
        return session

    @property
    def is_ours(self) -> bool:
        """Tells if the remote side is an Interlingua server: only such a server names its agents."""
        return bool(self.agents)

    async def take_up(
        self, id_: str, place: Place, listener: Listener | None = None, *, replay: bool = False
    ) -> Session:  # fmt: skip
        """Goes on with a session of an earlier connection. `replay` sends its whole conversation to the listener
        again."""
        known = self.sessions.get(id_)
        if known is not None:
            known.listener = listener
            return known
        if not self.able.resume and not self.able.load:
            raise Unavailable("the agent cannot take up a session again", transient=False)
        session = self._add(Session(self, id_, place, self._servants(place)))
        session.listener = listener
        session.replaying = not replay
        session.watch_for_idle()  # a turn that goes on may end before anybody asks for its end
        method = "session/resume" if self.able.resume and not (replay and self.version == 1) else "session/load"
        start = {"replayFrom": {"type": "start"}} if replay and self.version == 2 else {}
        try:
            session.set_up(_object(await self.request(method, {"sessionId": id_, **start, **self._where(place)})))
        except BaseException:
            self.sessions.pop(id_, None)
            raise
        finally:
            session.replaying = False
        return session

    def _add(self, session: Session) -> Session:
        self.sessions[session.id] = session
        return session

    def forget(self, session: Session) -> None:
        """Forgets a session. Later updates of it are only logged."""
        self.sessions.pop(session.id, None)
        self._closed[session.id] = session
        if len(self._closed) > _CLOSED:
            del self._closed[next(iter(self._closed))]

    def _where(self, place: Place) -> dict[str, Any]:
        servers = [_server(server, self.version) for server in place.mcp_servers]
        params: dict[str, Any] = {"cwd": place.cwd, "mcpServers": [server for server in servers if server is not None]}
        if place.directories and self.able.directories:
            params["additionalDirectories"] = list(place.directories)
        return params

    # -- being asked --------------------------------------------------------------------------------------

    def noticed(self, notice: Notice) -> Awaitable[None] | None:
        if notice.method != "session/update" or not isinstance(notice.params, dict):
            return None  # extensions, and news of later versions
        id_, update = notice.params.get("sessionId"), notice.params.get("update")
        if not isinstance(update, dict) or not isinstance(id_, str):
            return None
        session = self.sessions.get(id_) or self._closed.get(id_)
        if session is not None:
            return session.take(update)
        if self._opening and sum(len(kept) for kept in self._early.values()) < _EARLY:
            self._early.setdefault(id_, []).append(update)
        return None

    async def called(self, call: Call) -> Any:
        params = call.params if isinstance(call.params, dict) else {}
        session = self.sessions.get(str(params.get("sessionId")))
        if call.method in ("session/request_permission", "elicitation/create"):
            listener = session.listener if session is not None else self._only_listener(call)
            if listener is None:
                if call.method == "elicitation/create":
                    return {"action": "cancel"}
                return {"outcome": {"outcome": "cancelled"}}  # no run is there that could allow it
            return await listener.asked(call)
        if call.method.startswith(("fs/", "terminal/")):
            if session is None:
                raise RpcError(INVALID_PARAMS, f"there is no session {params.get('sessionId')!r}")
            return await session.servant.serve(call.method, params)
        raise RpcError(METHOD_NOT_FOUND, f"there is no method {call.method!r}")

    def _only_listener(self, call: Call) -> Listener | None:
        """Returns the listener for a form that belongs to one of our requests instead of a session."""
        listeners = [s.listener for s in self.sessions.values() if s.listener is not None]
        return listeners[0] if call.method == "elicitation/create" and len(listeners) == 1 else None

    def failure(self, error: Exception) -> RpcError:
        if isinstance(error, InterlinguaError):
            return translate.rpc_error(error)
        log.warning("a request of the agent failed", exc_info=error)
        return RpcError(INTERNAL_ERROR, f"{type(error).__name__}: {error}")


def _server(server: Any, version: int) -> dict[str, Any] | None:
    """Returns a tool server as each version writes it: one that is started has a type only in version 2, which lacks
    sse."""
    if not isinstance(server, dict):
        return None
    if version == 1:
        return {key: value for key, value in server.items() if key != "type" or value != "stdio"}
    if server.get("type") == "sse":
        return None
    return {"type": "stdio", **server}


def _is_piece(message: Any) -> bool:
    """Tells if the text of an update goes on in the next one."""
    params = _object(_object(message).get("params"))
    return _object(params.get("update")).get("sessionUpdate") in ("agent_message_chunk", "agent_thought_chunk")


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _offered(value: Any) -> bool:
    return value is not None and value is not False


def _our_version() -> str:
    try:
        return version_of("interlingua")
    except PackageNotFoundError:
        return "0"

"""The door of agents over MCP: `agents/*` for clients that know it, and every agent as a tool for all others.

`McpDoor` holds the parts that all connections share; `McpConnection` is one client, over any channel. Clients of
revisions with a handshake report their abilities at `initialize`; those of the revision without one report them in
every request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ....engine.engine import Engine
from ....model.card import AgentCard
from ....model.errors import InterlinguaError, InvalidAnswer, InvalidInput
from ....model.run import OWNER, Caller, Instance
from ....runtime.job_group import JobGroup
from ....security import scopes
from ....transports.channel import Channel
from ....transports.jsonrpc import params as params_
from ....transports.jsonrpc.connection import Connection, Trace
from ....transports.jsonrpc.core import (
    CANCELLED,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Call,
    Id,
    Notice,
    RpcError,
)
from .. import translate, wire
from ..config import DoorSettings
from .client_questions import InputWanted
from .request_state import RequestStates
from .run_request import Running, failed
from .subscriptions import Listening
from .unasked_runs import Unasked

log = logging.getLogger("interlingua.mcp")


_HANDSHAKE_ONLY = ("initialize", "ping", "logging/setLevel")
_MODERN_ONLY = ("server/discover", "subscriptions/listen")

# How acp-sdk 0.0.6 calls itself, and the mcp package of those days, which it was made from.
_WAITS_AFTER_CANCELLING = ("2024-11-05", "mcp", "0.1.0")


class McpDoor:
    def __init__(self, engine: Engine, settings: DoorSettings | None = None) -> None:
        self.engine = engine
        self.settings = settings or DoorSettings()
        self.states = RequestStates(engine)
        self.unasked = Unasked(engine)
        self.connections: set[McpConnection] = set()
        self.stopping = False  # open streams end, but no run
        self.jobs = JobGroup("mcp")  # work that outlives its request
        engine.agents.listeners.append(self._changed)

    def connect(
        self, channel: Channel, caller: Caller = OWNER, trace: Trace | None = None, *, silent_cancel: bool = True
    ) -> McpConnection:
        """Returns a connection to one client. With `silent_cancel`, a cancelled request gets no answer. Where each
        request has a stream of its own that ends with the answer, there must be one: a client that misses it (mcp
        2.3.0) opens the stream again for ever."""
        return McpConnection(self, channel, caller, trace, silent_cancel=silent_cancel)

    def _changed(self) -> None:
        for connection in list(self.connections):
            connection.tell_changed()

    async def stop(self) -> None:
        """Ends all open streams, but no run, and notifies the subscribers."""
        self.stopping = True
        listeners = [task for connection in self.connections for task in connection.listening.tell()]
        if listeners:
            await asyncio.wait(listeners, timeout=1.0)  # one that does not read is not waited for


class Named(msgspec.Struct):
    """An agent, or an agent with a configuration, that can be run under a name."""

    name: str
    card: AgentCard
    made: Instance | None = None


class McpConnection:
    """The connection to one client."""

    def __init__(
        self,
        door: McpDoor,
        channel: Channel,
        caller: Caller,
        trace: Trace | None = None,
        *,
        silent_cancel: bool = True,
    ) -> None:
        self.door = door
        self.engine = door.engine
        self.caller = caller
        self.rpc = Connection(
            channel, self, limits=door.settings, cancel=("notifications/cancelled", "requestId"),
            silent_cancel=silent_cancel, trace=trace,
        )  # fmt: skip
        self.version = ""  # once a handshake has been made
        self.able = wire.ClientCapabilities()
        self.level: str | None = None  # of the log messages that it wants; none before it has asked
        self.listening = Listening(door, self.rpc)
        self._waits_after_cancelling = False  # for an answer, to a request that it has taken back
        self.runs: dict[Id, str] = {}  # of requests that are open, where it is known
        self.began: Callable[[Id, str], None] = lambda request, run: None  # called for each of them
        self.changed: Callable[[], Awaitable[Any]] | None = None  # called when the client's own description changes
        # Requests that another process began to answer: the number of its messages, and the last event of the run in
        # them.
        self.again: dict[Call, tuple[int, int | None]] = {}
        self.runs_go_on = True  # when the client is gone silently; False where going is how it cancels
        door.connections.add(self)

    def gone(self) -> None:
        self.door.connections.discard(self)

    def tell_changed(self) -> None:
        self.listening.tell()
        if self.version:
            self.rpc.notify("notifications/agents/list_changed")
            self.rpc.notify("notifications/tools/list_changed")

    def warn(self, agent: str, message: str, about: Id) -> None:
        """Sends a warning of a run as a log message. Clients that never asked for log messages get none: those of
        acp-sdk 0.0.6 stop at a notification that they do not know."""
        if self.level is not None and wire.LEVELS.index(self.level) <= wire.LEVELS.index("warning"):
            params = {"level": "warning", "logger": agent, "data": message}
            self.rpc.notify("notifications/message", params, about=about)

    # -- callbacks of the connection ----------------------------------------------------------------------

    async def called(self, call: Call) -> Any:
        method = _METHODS.get(call.method)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {call.method!r}")
        if call.params is not None and not isinstance(call.params, dict):
            raise RpcError(INVALID_PARAMS, "params is an array; it is an object")
        modern = self._modern(call)
        if modern and call.method in _HANDSHAKE_ONLY:
            raise RpcError(METHOD_NOT_FOUND, f"there is no {call.method} in {wire.MODERN}")
        if not modern and call.method in _MODERN_ONLY:
            raise RpcError(METHOD_NOT_FOUND, f"{call.method} belongs to {wire.MODERN}; name it in _meta")
        if not modern and not self.version and call.method not in ("initialize", "ping"):
            raise RpcError(INVALID_REQUEST, f'expected "initialize" first, but got {call.method!r}')
        try:
            result = await method(self, call)
        except asyncio.CancelledError:
            if self._waits_after_cancelling and not self.rpc.lost:
                raise RpcError(CANCELLED, "the request was cancelled") from None
            raise
        finally:
            self.runs.pop(call.id, None)
        return wire.complete(result) if modern and isinstance(result, dict) else result

    def noticed(self, notice: Notice) -> None:
        return None  # `initialized` needs no action, and unknown notifications are ignored

    def failure(self, error: Exception) -> RpcError:
        if isinstance(error, InterlinguaError):
            return translate.failure(error)
        raise error

    def meta(self, call: Call) -> dict[str, Any]:
        found = call.params.get("_meta") if isinstance(call.params, dict) else None
        return found if isinstance(found, dict) else {}

    def _modern(self, call: Call) -> bool:
        wanted = self.meta(call).get(wire.META_VERSION)
        if wanted is None:
            return False
        if wanted != wire.MODERN:
            data = {"requested": wanted, "supported": [wire.MODERN]}
            raise RpcError(wire.UNSUPPORTED_VERSION, f"revision {wanted!r} is not spoken in this way", data)
        if not isinstance(self.meta(call).get(wire.META_CAPABILITIES), dict):
            raise RpcError(INVALID_PARAMS, f"_meta needs {wire.META_CAPABILITIES!r}, an object")
        return True

    def spoken(self, call: Call) -> str:
        return wire.MODERN if self._modern(call) else self.version

    def asks(self, call: Call) -> bool:
        """Tells if this client can be asked by a form."""
        told = self.able.elicitation
        if self._modern(call):
            told = self.meta(call)[wire.META_CAPABILITIES].get("elicitation")
        if not isinstance(told, dict):
            return False
        return not told or isinstance(told.get("form"), dict)  # at first the capability was an empty object

    # -- the lifecycle ------------------------------------------------------------------------------------

    async def _initialize(self, call: Call) -> dict[str, Any]:
        version = self.met(call.params)
        return {
            "protocolVersion": version,
            "capabilities": await self._capabilities(self.version),
            "serverInfo": wire.INFO,
            "instructions": "Each agent can be run with agents/run, and called as a tool of the same name.",
        }

    def met(self, params: Any) -> str | int:
        """Handles `initialize`: takes the client's description and abilities, and returns the revision of the
        connection."""
        request = params_.read(params, wire.InitializeRequest)
        wanted = request.protocol_version
        # acp-sdk 0.0.6 knows one revision and leaves at any other answer.
        version = "2024-11-05" if wanted == 1 else wanted if wanted in wire.LEGACY else wire.LEGACY[-1]
        self.version, self.able = str(version), request.capabilities
        # MCP says that a cancelled request should get no answer. These clients wait for one, for ever: their own server
        # sends it. A client that has stopped waiting ignores it, as MCP says too; all others get none.
        told = (self.version, request.client_info.name, request.client_info.version)
        self._waits_after_cancelling = told == _WAITS_AFTER_CANCELLING
        return version

    async def _discover(self, call: Call) -> dict[str, Any]:
        return {
            "supportedVersions": [wire.MODERN],
            "capabilities": await self._capabilities(wire.MODERN),
            "serverInfo": wire.INFO,
        }

    async def _capabilities(self, version: str) -> dict[str, Any]:
        agents: dict[str, Any] = {"listChanged": True}
        if self._has_templates():
            agents["templates"] = True
        able: dict[str, Any] = {
            "agents": agents,
            "tools": {"listChanged": True},
            "experimental": {"agents": agents},
            "extensions": {wire.EXTENSION: agents},
        }
        if version != wire.MODERN:
            able["logging"] = {}
        return able

    async def _ping(self, call: Call) -> dict[str, Any]:
        return {}

    async def _set_level(self, call: Call) -> dict[str, Any]:
        level = params_.read(call.params, wire.SetLevelRequest).level
        if level not in wire.LEVELS:
            raise RpcError(INVALID_PARAMS, f"level is {level!r}; it is one of {', '.join(wire.LEVELS)}")
        self.level = level
        if self.changed is not None:
            await self.changed()
        return {}

    # -- agents -------------------------------------------------------------------------------------------

    def _cards(self) -> list[AgentCard]:
        return [a.card for a in self.engine.agents if scopes.may(self.caller, "run", a.card.key).allowed]

    async def _known(self) -> list[Named]:
        """Returns all agents that can be run, under unique names: the newest version has the plain name."""
        found: list[Named] = []
        for card in self._cards():
            newest = self.engine.agents.find(card.name)
            plain = newest is None or newest.card is card
            found.append(Named(card.name if plain else card.key, card))
        taken = {known.name for known in found}
        for made in await self._instances():
            agent = self.engine.agents.find(made.agent, made.version)
            if agent is not None and scopes.may(self.caller, "run", agent.card.key).allowed:
                name = translate.instance_name(made, taken)
                taken.add(name)
                found.append(Named(name, agent.card, made))
        return found

    async def _instances(self) -> list[Instance]:
        own = None if scopes.sees(self.caller, "*") else self.caller.id
        found: list[Instance] = []
        while more := await self.engine.instances.search(caller=own, limit=1000, offset=len(found)):
            found += more
            if len(more) < 1000:
                break
        return found

    async def _find(self, name: str) -> Named:
        agent = self.engine.agents.find(name)
        if agent is not None and scopes.may(self.caller, "run", agent.card.key).allowed:
            return Named(name, agent.card)
        for known in await self._known():
            if name in (known.name, known.card.key):
                return known
        raise self.engine.agents.no_agent(name, f"there is no agent {name!r}")

    def _page(self, call: Call, entries: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        request = params_.read(call.params, wire.ListRequest)
        cursor = request.cursor or call.envelope.get("cursor")  # acp-sdk 0.0.6 puts it beside params
        start = params_.offset(cursor) if isinstance(cursor, str) else 0
        page = entries[start : start + self.door.settings.page]
        more: dict[str, Any] = (
            {"nextCursor": params_.cursor(start + len(page))} if start + len(page) < len(entries) else {}
        )
        if self._modern(call):
            more |= {"ttlMs": 0, "cacheScope": "private"}
        return page, more

    async def _list(self, call: Call) -> dict[str, Any]:
        page, more = self._page(call, await self._known())
        return {
            "agents": [
                translate.agent(known.card, known.name, self.engine.agents.mount_path(known.card)) for known in page
            ],
            **more,
        }

    async def _run(self, call: Call) -> dict[str, Any]:
        request = params_.read(call.params, wire.RunRequest)
        known = await self._find(request.name)
        running = await self._begin(call, known, request.input, tool=False)
        if isinstance(running, dict):
            return running
        try:
            finished = await running.end()
        except InputWanted as wanted:
            return await self._input_required(call, wanted)
        info = failed(finished)
        if info is not None:
            raise translate.error(info, running.run)
        return translate.run_result(finished.output, running.run, running.given.parts())

    async def _begin(self, call: Call, known: Named, input_: dict[str, Any], *, tool: bool) -> Running | dict[str, Any]:
        scopes.require(self.caller, "run", known.card.key)
        running = Running(self, call, known.card, self.spoken(call), tool=tool)
        state = call.params.get("requestState") if isinstance(call.params, dict) else None
        if state is not None and running.version == wire.MODERN:
            again = await self._take_up(running, call, state)
            if again is not None:
                return again
        else:
            await running.start(input_, known.made.config if known.made is not None else None)
        self._runs(call, running)
        return running

    def _runs(self, call: Call, running: Running) -> None:
        self.runs[call.id] = running.run
        self.began(call.id, running.run)

    # -- questions of the revision in which the server sends no requests --------------------------------------

    async def _input_required(self, call: Call, wanted: InputWanted, problem: str = "") -> dict[str, Any]:
        """Returns the result that asks a question. The client repeats the request with the answer, to any process that
        has this store. `problem` is the fault of the answer before."""
        params = translate.elicitation(wanted.question, wire.MODERN)
        if problem:
            params["message"] = f"{problem}\n\n{params['message']}"
        return {
            "resultType": "input_required",
            "inputRequests": {wanted.question.id: {"method": "elicitation/create", "params": params}},
            "requestState": await self.door.states.seal(self.caller.id, call, wanted.run, wanted.question.id),
            "_meta": {wire.META_RUN: wanted.run},
        }

    async def _take_up(self, running: Running, call: Call, state: Any) -> dict[str, Any] | None:
        """Joins the waiting run and gives it the answer to its question. Returns a result where the question must be
        asked again."""
        run, question_id = await self.door.states.open(self.caller.id, call, state)
        await running.join(run)
        question = next((q for q in await self.engine.questions.open(run=run, limit=1000) if q.id == question_id), None)
        if question is None:
            return None  # answered meanwhile, and whatever the run asks now is asked
        responses = call.params.get("inputResponses")
        told = responses.get(question_id) if isinstance(responses, dict) else None
        if told is None:
            return await self._input_required(call, InputWanted(question, run))
        try:
            given = await running.questions.answer(question, params_.read(told, wire.ElicitResult))
        except InvalidAnswer as error:
            return await self._input_required(call, InputWanted(question, run), error.message)
        if not given:
            raise translate.question_open(question, run)
        return None

    # -- templates ----------------------------------------------------------------------------------------

    def _need_templates(self, call: Call) -> None:
        if not self._has_templates():
            raise RpcError(METHOD_NOT_FOUND, f"there is no {call.method}: no agent here takes a config")

    def _has_templates(self) -> bool:
        return any(card.config is not None for card in self._cards())

    async def _templates(self, call: Call) -> dict[str, Any]:
        self._need_templates(call)
        known = [named for named in await self._known() if named.made is None and named.card.config is not None]
        page, more = self._page(call, known)
        return {"agentTemplates": [translate.template(named.card, named.name) for named in page], **more}

    async def _create(self, call: Call) -> dict[str, Any]:
        self._need_templates(call)
        request = params_.read(call.params, wire.CreateRequest)
        template = await self._find(request.template_name)
        card = template.card
        if card.config is None or template.made is not None:
            raise RpcError(INVALID_PARAMS, f"{request.template_name} takes no config: it is an agent, and no template")
        scopes.require(self.caller, "config", card.key)
        made = await self.engine.instances.create(card.name, request.config, version=card.version, caller=self.caller)
        self.door._changed()
        return {"agent": translate.agent(card, translate.instance_name(made), self.engine.agents.mount_path(card))}

    async def _destroy(self, call: Call) -> dict[str, Any]:
        self._need_templates(call)
        name = params_.read(call.params, wire.DestroyRequest).name
        known = await self._find(name)
        if known.made is None:
            raise RpcError(INVALID_PARAMS, f"{name} was not created here, and cannot be destroyed")
        scopes.require(self.caller, "config", known.card.key)
        await self.engine.instances.delete(known.made.id)
        self.door._changed()
        return {}

    # -- tools --------------------------------------------------------------------------------------------

    async def _tool_names(self) -> dict[str, Named]:
        known = {named.name: named for named in await self._known()}
        return {tool: known[name] for name, tool in translate.tool_names(list(known)).items()}

    async def _tools(self, call: Call) -> dict[str, Any]:
        tools = await self._tool_names()
        page, more = self._page(call, list(tools.items()))
        version = self.spoken(call)
        return {"tools": [translate.tool(known.card, name, known.name, version) for name, known in page], **more}

    async def _call(self, call: Call) -> dict[str, Any]:
        request = params_.read(call.params, wire.CallToolRequest)
        known = (await self._tool_names()).get(request.name)
        if known is None:
            raise RpcError(INVALID_PARAMS, f"there is no tool {request.name!r}")
        try:
            running = await self._begin(call, known, request.arguments or {}, tool=True)
        except InvalidInput as error:
            if self.spoken(call) < "2025-11-25":
                raise
            return translate.tool_failure(error.info())  # so that the model which called it can correct itself
        if isinstance(running, dict):
            return running
        try:
            finished = await running.end()
        except InputWanted as wanted:
            return await self._input_required(call, wanted)
        info = failed(finished)
        told = (
            translate.tool_failure(info)
            if info is not None
            else translate.tool_result(finished.output, known.card, running.version, running.given.parts())
        )
        return {**told, "_meta": {**told.get("_meta", {}), wire.META_RUN: running.run}}


# Of the class and not of each connection: in the revision without sessions, there is a connection for every request.
_METHODS: dict[str, Callable[[McpConnection, Call], Awaitable[Any]]] = {
    "initialize": McpConnection._initialize,
    "server/discover": McpConnection._discover,
    "ping": McpConnection._ping,
    "logging/setLevel": McpConnection._set_level,
    "agents/list": McpConnection._list,
    "agents/run": McpConnection._run,
    "agents/templates/list": McpConnection._templates,
    "agents/create": McpConnection._create,
    "agents/destroy": McpConnection._destroy,
    "tools/list": McpConnection._tools,
    "tools/call": McpConnection._call,
    "subscriptions/listen": lambda connection, call: connection.listening.listen(call),
}

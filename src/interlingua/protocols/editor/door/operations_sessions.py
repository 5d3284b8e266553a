"""The methods of a client: initialize, and opening, listing, changing and ending sessions."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import msgspec

from ...._version import __version__
from ....doors.query import cursor_of, offset_of
from ....engine.ids import new_id
from ....model.errors import AgentNotFound, Conflict, NotFound, ThreadNotFound
from ....model.filters import ThreadFilter
from ....model.run import Thread
from ....security import scopes
from ....transports.jsonrpc import params as params_
from ....transports.jsonrpc.connection import Answer
from ....transports.jsonrpc.core import INVALID_PARAMS, Call, RpcError
from .. import wire
from ..versions import negotiate
from . import operations_logins as logins
from .connection import EditorConnection, Operation
from .sessions import Place, Session
from .turns import Turn

_PAGE = 50  # sessions per page of session/list


# -- initialize -----------------------------------------------------------------------------------------------


async def initialize(connection: EditorConnection, call: Call) -> dict[str, Any]:
    return begin(connection, call.params)


def begin(connection: EditorConnection, params: Any) -> dict[str, Any]:
    """Takes the client's description and abilities, and returns ours."""
    request = params_.read(params, wire.InitializeRequest)
    dialect = connection.dialect = negotiate(request.protocol_version)
    connection.able = dialect.capabilities(request)
    connection.is_ready = True
    cards = connection.agents()
    info: dict[str, Any] = {"name": "interlingua", "version": __version__}
    if len(cards) == 1:
        info = {"name": cards[0].name, "version": cards[0].version, "title": cards[0].name}
    agents = [
        {
            "name": card.name, "version": card.version, "description": card.description,
            "via": connection.engine.agents.mount_path(card), "asks": bool(card.questions),
        }
        for card in cards
    ]  # fmt: skip
    methods = [dialect.auth_method(method) for _, method in logins.available(connection)]
    return dialect.initialized(info, agents, methods, logout=bool(methods))


# -- opening --------------------------------------------------------------------------------------------------


async def new(connection: EditorConnection, call: Call) -> Answer:
    request = params_.read(call.params, wire.NewSessionRequest)
    place = _place(request)
    cards = connection.agents()
    if not cards:
        raise AgentNotFound("this server has no agent that you may run")
    key = (request.meta or {}).get(wire.META_AGENT)
    card = next((card for card in cards if card.key == key), cards[0])  # one that is not there was not chosen
    await logins.check_login(connection, card)
    session = Session(connection, new_id(), place, card, {}, None)
    await connection.engine.threads.create(session.id, metadata=session.metadata(), caller=connection.caller)
    connection.sessions[session.id] = session
    await connection.sessions_changed()
    return Answer({"sessionId": session.id, **_setup(session)}, lambda: _introduce(session))


async def load(connection: EditorConnection, call: Call) -> Answer:
    session = await _open(connection, params_.read(call.params, wire.LoadSessionRequest))
    unfinished = await session.replay()
    return Answer(_setup(session), lambda: _go_on(session, unfinished))


async def resume(connection: EditorConnection, call: Call) -> Answer:
    request = params_.read(call.params, wire.LoadSessionRequest)
    session = await _open(connection, request)
    replays = connection.dialect.number == 2 and request.replay_from is not None and request.replay_from.type == "start"
    unfinished = await session.replay() if replays else await session.unfinished()
    return Answer(_setup(session), lambda: _go_on(session, unfinished))


async def reopen(connection: EditorConnection, id_: str) -> Session:
    """Opens a session that another process had open for this client. Its working directory is on its thread."""
    thread = await _thread(connection, id_)
    metadata = thread.metadata.get("editor")
    directories = metadata.get("directories") if isinstance(metadata, dict) else None
    request = wire.LoadSessionRequest(
        session_id=id_, cwd=thread.metadata.get("cwd") or "/", additional_directories=directories or []
    )
    return await _open(connection, request)


async def _open(connection: EditorConnection, request: wire.LoadSessionRequest) -> Session:
    place = _place(request)
    thread = await _thread(connection, request.session_id)
    metadata = thread.metadata.get("editor")
    metadata = metadata if isinstance(metadata, dict) else {}
    cards = connection.agents()
    if not cards:
        raise AgentNotFound("this server has no agent that you may run")
    card = next((card for card in cards if card.key == metadata.get("agent")), cards[0])
    config = metadata.get("config") if card.key == metadata.get("agent") else None
    title = thread.metadata.get("title")
    before = connection.sessions.get(thread.id)
    if before is not None:
        before.forget()
    session = Session(
        connection, thread.id, place, card, config if isinstance(config, dict) else {},
        title if isinstance(title, str) else None,
    )  # fmt: skip
    connection.sessions[thread.id] = session
    if thread.metadata.get("cwd") != place.cwd or metadata.get("directories", []) != place.directories:
        await session.keep()
    await connection.sessions_changed()
    return session


async def _thread(connection: EditorConnection, id_: str) -> Thread:
    thread = await connection.engine.threads.get(id_)
    if not scopes.sees(connection.caller, thread.caller):
        raise ThreadNotFound(f"there is no session {id_}")
    return thread


def _place(request: wire.NewSessionRequest) -> Place:
    for path in [request.cwd, *(request.additional_directories or [])]:
        if not PurePath(path).is_absolute():
            raise RpcError(INVALID_PARAMS, f"{path!r} is not an absolute path")
    servers = request.mcp_servers or []
    for index, server in enumerate(servers):
        _check_server(server, f"mcpServers[{index}]")
    return Place(request.cwd, request.additional_directories or [], servers)


def _check_server(server: dict[str, Any], path: str) -> None:
    """Checks the form of a tool server's description. No kind of tool server is refused."""
    kind = server.get("type", "stdio")
    if kind not in ("stdio", "http", "sse"):
        return  # of a later version; the client that connects to it will know
    type_: Any = wire.McpServerStdio if kind == "stdio" else wire.McpServerHttp
    if isinstance(server.get("env"), dict) or isinstance(server.get("headers"), dict):
        raise RpcError(INVALID_PARAMS, f'{path}: env and headers are lists of {{"name": …, "value": …}}, not objects')
    try:
        msgspec.convert(server, type_)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_PARAMS, f"{path}: {error}") from None


def _setup(session: Session) -> dict[str, Any]:
    connection = session.connection
    setup = connection.dialect.setup(session.options(), booleans=connection.booleans)
    return {**setup, "_meta": {wire.META_AGENT: session.card.key}}


def _introduce(session: Session) -> None:
    if session.card.skills:
        session.update(session.connection.dialect.commands(session.card))


def _go_on(session: Session, unfinished: Turn | None) -> None:
    """Sends the title of a session that was opened again, and goes on with its unfinished turn."""
    _introduce(session)
    if session.title:
        session.update({"sessionUpdate": "session_info_update", "title": session.title})
    if unfinished is not None:
        session.turns.append(unfinished)
        session.updates(session.connection.dialect.state("running"))
        unfinished.questions.ask_left_open()
        session.connection.prompts.spawn(session, unfinished)


# -- listing and ending ---------------------------------------------------------------------------------------


async def list_(connection: EditorConnection, call: Call) -> dict[str, Any]:
    request = params_.read(call.params, wire.ListSessionsRequest)
    offset = offset_of(request.cursor)
    metadata: dict[str, Any] = {"door": "editor"}
    if request.cwd is not None:
        metadata["cwd"] = request.cwd
    own = None if scopes.sees(connection.caller, "*") else connection.caller.id
    threads = await connection.engine.threads.search(
        ThreadFilter(metadata=metadata, caller=own, limit=_PAGE + 1, offset=offset)
    )
    page: dict[str, Any] = {"sessions": [_info(thread) for thread in threads[:_PAGE]]}
    if len(threads) > _PAGE:
        page["nextCursor"] = cursor_of(offset + _PAGE)
    return page


async def close(connection: EditorConnection, call: Call) -> dict[str, Any]:
    await _end(connection.session(params_.read(call.params, wire.SessionRequest).session_id))
    return {}


async def delete(connection: EditorConnection, call: Call) -> dict[str, Any]:
    id_ = params_.read(call.params, wire.SessionRequest).session_id
    scopes.require(connection.caller, "delete")
    session = connection.sessions.get(id_)
    if session is not None:
        await _end(session)
    engine = connection.engine
    with contextlib.suppress(NotFound):  # one that is not there need not be deleted
        thread = await _thread(connection, id_)
        if thread.active is not None:
            with contextlib.suppress(Conflict):
                await engine.runs.cancel(thread.active, by=connection.caller, reason="its session is being deleted")
            await engine.runs.wait(thread.active)
        await engine.threads.delete(id_)
    return {}


async def _end(session: Session) -> None:
    await session.cancel()
    running = [turn.task for turn in session.turns if turn.task is not None]
    if running:
        await asyncio.wait(running, timeout=30)
    session.forget()
    session.connection.sessions.pop(session.id, None)
    await session.connection.sessions_changed()


def _info(thread: Thread) -> dict[str, Any]:
    metadata = thread.metadata.get("editor")
    info: dict[str, Any] = {
        "sessionId": thread.id,
        "cwd": thread.metadata.get("cwd") or "/",
        "updatedAt": _time(thread.updated_at),
    }
    if isinstance(thread.metadata.get("title"), str):
        info["title"] = thread.metadata["title"]
    if isinstance(metadata, dict) and metadata.get("directories"):
        info["additionalDirectories"] = metadata["directories"]
    return info


def _time(microseconds: int) -> str:
    moment = datetime.datetime.fromtimestamp(microseconds / 1e6, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- options --------------------------------------------------------------------------------------------------


async def set_mode(connection: EditorConnection, call: Call) -> Answer:
    request = params_.read(call.params, wire.SetModeRequest)
    session = connection.session(request.session_id)
    if not any(option.id == "agent" for option in session.options()):
        raise RpcError(INVALID_PARAMS, "this session has no modes")
    await session.set_option("agent", request.mode_id)
    updates = connection.dialect.option_updates(session.options(), booleans=connection.booleans, agent=False)
    return Answer({}, lambda: session.updates(updates))


async def set_config_option(connection: EditorConnection, call: Call) -> Answer:
    request = params_.read(call.params, wire.SetConfigOptionRequest)
    session = connection.session(request.session_id)
    await session.set_option(request.config_id, request.value)
    options = session.options()
    result = {"configOptions": connection.dialect.options(options, booleans=connection.booleans)}
    if request.config_id != "agent":
        return Answer(result)
    updates = connection.dialect.option_updates(options, booleans=connection.booleans, agent=True)[1:]
    return Answer(result, lambda: session.updates(updates))


# -- the tables -----------------------------------------------------------------------------------------------


async def prompt(connection: EditorConnection, call: Call) -> Any:
    return await connection.prompts.prompt(call.params, call.id)


async def steer(connection: EditorConnection, call: Call) -> dict[str, Any]:
    return await connection.prompts.steer(call.params)


_BOTH: dict[str, Operation] = {
    "session/new": new,
    "session/resume": resume,
    "session/list": list_,
    "session/delete": delete,
    "session/close": close,
    "session/set_config_option": set_config_option,
    "session/prompt": prompt,
    "_session/steering": steer,
}

OPERATIONS: Mapping[int, Mapping[str, Operation]] = {
    0: {"initialize": initialize},
    1: _BOTH
    | {
        "authenticate": logins.log_in,
        "logout": logins.log_out,
        "session/load": load,
        "session/set_mode": set_mode,
    },
    2: _BOTH | {"auth/login": logins.log_in, "auth/logout": logins.log_out},
}
"""The methods of each version; those of version 0 come before a version is agreed on."""

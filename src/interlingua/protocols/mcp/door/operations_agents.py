"""`agents/*`: listing and running agents, and agents with a configuration of their own."""

from __future__ import annotations

from typing import Any

from ....doors.query import cursor_of, offset_of
from ....model.events import RunFinished
from ....security import scopes
from ....transports.jsonrpc import params as params_
from ....transports.jsonrpc.core import INVALID_PARAMS, METHOD_NOT_FOUND, Call, RpcError
from .. import translate, wire
from .connection import McpConnection, Operation
from .run_request import Running, failed, run_and_answer


def page_of(connection: McpConnection, call: Call, entries: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Returns the page of a list that a request asks for, and the members that stand beside it."""
    request = params_.read(call.params, wire.ListRequest)
    cursor = request.cursor or call.envelope.get("cursor")  # acp-sdk 0.0.6 puts it beside params
    start = offset_of(cursor) if isinstance(cursor, str) else 0
    page = entries[start : start + connection.shared.settings.page]
    end = start + len(page)
    more: dict[str, Any] = {"nextCursor": cursor_of(end)} if end < len(entries) else {}
    if connection.is_modern(call):
        more |= {"ttlMs": 0, "cacheScope": "private"}
    return page, more


async def list_(connection: McpConnection, call: Call) -> dict[str, Any]:
    page, more = page_of(connection, call, await connection.agents.all())
    mount_path = connection.engine.agents.mount_path
    return {"agents": [translate.agent(named.card, named.name, mount_path(named.card)) for named in page], **more}


async def run(connection: McpConnection, call: Call) -> dict[str, Any]:
    request = params_.read(call.params, wire.RunRequest)
    named = await connection.agents.find(request.name)

    def result(running: Running, finished: RunFinished) -> dict[str, Any]:
        error = failed(finished)
        if error is not None:
            raise translate.run_error(error, running.run)
        return translate.run_result(finished.output, running.run, running.beside.parts())

    return await run_and_answer(connection, call, named, request.input, result, tool=False)


# -- templates ------------------------------------------------------------------------------------------------


def _need_templates(connection: McpConnection, call: Call) -> None:
    if not connection.agents.has_templates():
        raise RpcError(METHOD_NOT_FOUND, f"there is no {call.method}: no agent here takes a config")


async def templates(connection: McpConnection, call: Call) -> dict[str, Any]:
    _need_templates(connection, call)
    known = await connection.agents.all()
    known = [named for named in known if named.instance is None and named.card.config is not None]
    page, more = page_of(connection, call, known)
    return {"agentTemplates": [translate.template(named.card, named.name) for named in page], **more}


async def create(connection: McpConnection, call: Call) -> dict[str, Any]:
    _need_templates(connection, call)
    request = params_.read(call.params, wire.CreateRequest)
    template = await connection.agents.find(request.template_name)
    card = template.card
    if card.config is None or template.instance is not None:
        raise RpcError(INVALID_PARAMS, f"{request.template_name} takes no config: it is an agent, and no template")
    scopes.require(connection.caller, "config", card.key)
    engine = connection.engine
    instance = await engine.instances.create(card.name, request.config, version=card.version, caller=connection.caller)
    connection.shared.agents_changed()
    return {"agent": translate.agent(card, translate.instance_name(instance), engine.agents.mount_path(card))}


async def destroy(connection: McpConnection, call: Call) -> dict[str, Any]:
    _need_templates(connection, call)
    name = params_.read(call.params, wire.DestroyRequest).name
    named = await connection.agents.find(name)
    if named.instance is None:
        raise RpcError(INVALID_PARAMS, f"{name} was not created here, and cannot be destroyed")
    scopes.require(connection.caller, "config", named.card.key)
    await connection.engine.instances.delete(named.instance.id)
    connection.shared.agents_changed()
    return {}


OPERATIONS: dict[str, Operation] = {
    "agents/list": list_,
    "agents/run": run,
    "agents/templates/list": templates,
    "agents/create": create,
    "agents/destroy": destroy,
}

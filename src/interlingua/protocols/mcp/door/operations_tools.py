"""`tools/*`: every agent as a tool, for clients that do not know agents."""

from __future__ import annotations

from typing import Any

from ....model.errors import InvalidInput
from ....model.events import RunFinished
from ....transports.jsonrpc import params as params_
from ....transports.jsonrpc.core import INVALID_PARAMS, Call, RpcError
from .. import translate, wire
from .connection import McpConnection, Operation
from .named_agents import Named
from .operations_agents import page_of
from .run_request import Running, failed, run_and_answer


async def _by_tool_name(connection: McpConnection) -> dict[str, Named]:
    agents = {named.name: named for named in await connection.agents.all()}
    return {tool: agents[name] for name, tool in translate.tool_names(list(agents)).items()}


async def list_(connection: McpConnection, call: Call) -> dict[str, Any]:
    tools = await _by_tool_name(connection)
    page, more = page_of(connection, call, list(tools.items()))
    version = connection.version_of(call)
    return {"tools": [translate.tool(named.card, tool, named.name, version) for tool, named in page], **more}


async def call_(connection: McpConnection, call: Call) -> dict[str, Any]:
    request = params_.read(call.params, wire.CallToolRequest)
    named = (await _by_tool_name(connection)).get(request.name)
    if named is None:
        raise RpcError(INVALID_PARAMS, f"there is no tool {request.name!r}")

    def result(running: Running, finished: RunFinished) -> dict[str, Any]:
        error = failed(finished)
        if error is not None:
            answer = translate.tool_failure(error)
        else:
            answer = translate.tool_result(finished.output, named.card, running.version, running.beside.parts())
        return {**answer, "_meta": {**answer.get("_meta", {}), wire.META_RUN: running.run}}

    try:
        return await run_and_answer(connection, call, named, request.arguments or {}, result, tool=True)
    except InvalidInput as error:
        if connection.version_of(call) < "2025-11-25":
            raise
        return translate.tool_failure(error.info())  # so that the model which called it can correct itself


OPERATIONS: dict[str, Operation] = {"tools/list": list_, "tools/call": call_}

"""Agents over MCP on the low-level server of the PyPI SDK `mcp` 2.3, over Streamable HTTP. Knows nothing of our code.

Threads, metadata and files have their place in `_meta`, because the protocol has none of its own for them; an error has
its code, its details and whether it may pass in `data`. What is more than a flat form is asked for by one with JSON in
its fields, whose `_meta` has the schema of the answer.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.shared.message import ServerMessageMetadata
from pydantic import ConfigDict

sys.path.insert(0, str(Path(__file__).parents[1]))

import behaviours as does
import web

Json = dict[str, Any]

AGENTS = [
    {"name": "talker-mcp", "description": does.TALKER, "inputSchema": does.TEXT_IN, "outputSchema": does.TEXT_OUT},
    {"name": "typed-mcp", "description": does.TYPED, "inputSchema": does.NUMBERS, "outputSchema": does.TOTAL},
]
CHOICE = {
    "type": "object",
    "properties": {
        "choice": {"type": "string", "oneOf": [{"const": id_, "title": name} for id_, name, _ in does.CHOICES]}
    },
    "required": ["choice"],
}

threads: dict[str, dict[str, str]] = {}


class RunParams(types.RequestParams):
    model_config = ConfigDict(extra="allow")

    name: str
    input: dict[str, Any]


class Custom(types.Notification[dict[str, Any], str]):
    """A notification that the SDK does not know."""


class Running:
    """One run, and what its agent may do."""

    def __init__(self, ctx: Any, params: RunParams) -> None:
        meta: Json = dict((ctx.params or {}).get("_meta") or {})
        self.ctx, self.output = ctx, dict[str, Any]()
        self.token = meta.get("progressToken")
        thread = meta.get("interlingua/thread")
        self.memory = {} if thread is None else threads.setdefault(thread, {})
        beside = meta.get("interlingua/parts", [])
        self.files = [_file(part) for part in beside if part["type"] == "file"]
        self.data = [part["data"] for part in beside if part["type"] == "data"]
        self.data += [{"note": params.input["note"]}] if "note" in params.input else []
        self.given: list[Json] = []
        headers = ctx.request.headers if ctx.request is not None else {}
        self.heard = {"metadata": meta.get("interlingua/metadata"), **web.trace_of(headers), **web.trace_of(meta)}

    async def show(self, delta: Json) -> None:
        if self.token is not None:
            told = Custom(
                method="notifications/agents/run/progress", params={"progressToken": self.token, "delta": delta}
            )
            await self.ctx.session.send_notification(told, related_request_id=self.ctx.request_id)

    # -- for the agent ------------------------------------------------------------------------------------

    async def say(self, text: str) -> None:
        self.output["text"] = self.output.get("text", "") + text
        await self.show({"text": text})

    async def give(self) -> None:
        name, media_type, body = does.FILE_OUT
        told = {"name": name, "media_type": media_type, "data": base64.b64encode(body).decode()}
        self.given = [{"type": "file", **told}, {"type": "data", "data": does.DATA_OUT}]

    async def elicit(self, message: str, schema: Json, **meta: Any) -> Json:
        params = types.ElicitRequestFormParams(message=message, requested_schema=schema, _meta=meta or None)
        about = ServerMessageMetadata(related_request_id=self.ctx.request_id)
        told = await self.ctx.session.send_request(
            types.ElicitRequest(params=params), types.ElicitResult, metadata=about
        )
        if told.action != "accept":
            raise does.Failure(told.action, False)
        return dict(told.content)

    async def choose(self) -> str:
        return str((await self.elicit(does.MAY_I, CHOICE))["choice"])

    async def form(self) -> Json:
        return await self.elicit(does.WHO, does.PERSON)

    async def want(self, what: str) -> Any:
        prompt, schema = does.WANTED[what]
        return does.taken(schema, await self.elicit(prompt, does.flat(schema), **{does.ANSWER_SCHEMA: schema}))

    async def ask(self) -> str:
        return str((await self.elicit(does.WHAT, does.WORDS))["text"])


async def list_agents(ctx: Any, params: types.PaginatedRequestParams) -> Json:
    return {"agents": AGENTS}


async def run_agent(ctx: Any, params: RunParams) -> Json:
    running = Running(ctx, params)
    if params.name == "typed-mcp":
        grown = does.sums(params.input["numbers"])
        for number in params.input["numbers"]:
            await running.show({"total": number, "seen": [None, number]})
        return {"output": grown[-1]}
    try:
        await does.talk(params.input["text"], running)
    except does.Failure as error:
        told = {"code": error.code, "transient": error.transient, "details": error.details}
        raise MCPError(-32050, error.message, told) from None
    return {"output": running.output, "_meta": {"interlingua/parts": running.given}}


def _file(part: Json) -> Json:
    inline = {"data": base64.b64decode(part["data"])} if "data" in part else {"url": part["url"]}
    return {"name": part.get("name"), "media_type": part.get("media_type"), **inline}


async def declare_agents(ctx: Any, call_next: Any) -> Any:
    """The SDK drops a capability that it does not know, unless it is added at the very end."""
    result = await call_next(ctx)
    if ctx.method in ("initialize", "server/discover"):
        result["capabilities"]["agents"] = {}
    return result


server: Server[Any] = Server("matrix", version="1.0.0")
server.add_request_handler("agents/list", types.PaginatedRequestParams, list_agents)
server.add_request_handler("agents/run", RunParams, run_agent)
server.middleware.append(declare_agents)

if __name__ == "__main__":
    web.serve(server.streamable_http_app(), "/mcp")

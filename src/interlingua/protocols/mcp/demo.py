"""The part of agents over MCP in the guided tour."""

from __future__ import annotations

from typing import Any

from ...transports.jsonrpc.core import call_message
from ..tour import Demo, Tour
from . import wire

_META = {"io.modelcontextprotocol/protocolVersion": wire.MODERN, "io.modelcontextprotocol/clientCapabilities": {}}


def _run(agent: str, input_: Any, **meta: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the body and the headers of a request that runs an agent, in the revision without sessions."""
    headers = {
        "accept": "application/json, text/event-stream", "mcp-protocol-version": wire.MODERN,
        "mcp-method": "agents/run", "mcp-name": agent,
    }  # fmt: skip
    params = {"name": agent, "input": input_, "_meta": {**_META, **meta}}
    return call_message("agents/run", params, 1), headers


async def _hello(tour: Tour) -> None:
    answer = await tour.ask("POST", "", *_run("echo", {"text": "hello MCP"}))
    tour.show_json(answer["result"]["output"])


async def _ask(tour: Tour, agent: str, input_: Any) -> str:
    answer = await tour.ask("POST", "", *_run(agent, input_), refused=True)
    tour.show(answer["error"]["message"])
    return str(answer["error"]["data"]["run"])


async def _result(tour: Tour, agent: str, input_: Any, run: str) -> Any:
    answer = await tour.ask("POST", "", *_run(agent, input_, **{"interlingua/run": run}))
    return answer["result"]["output"]


demo = Demo(
    title="Agents over MCP", about="JSON-RPC, with deltas. Every agent is also a tool for ordinary MCP clients.",
    hello=_hello, ask=_ask, result=_result,
)  # fmt: skip

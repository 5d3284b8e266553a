"""The PyPI SDK `acp-sdk` 0.0.6 as a client that a test drives, in the SDK's own virtualenv.

    python mcp_acp_client.py stdio COMMAND...
    python mcp_acp_client.py sse URL

Lines of JSON-RPC come in on stdin and go out on stdout, as if the test were the client itself; in between, each goes
through the SDK: its methods, its models in both directions, its transports. Nothing of our own package is imported
here: what works here works for everybody who uses the SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from acp import types
from acp.client.session import ClientSession
from acp.client.sse import sse_client
from acp.client.stdio import StdioServerParameters, stdio_client
from acp.shared.exceptions import McpError
from pydantic import BaseModel


def plain(value: BaseModel) -> Any:
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


def write(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


class Driver:
    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._tasks: dict[Any, asyncio.Task[None]] = {}
        self._methods: dict[str, Callable[[Any, dict[str, Any]], Awaitable[BaseModel]]] = {
            "initialize": lambda _, params: session.initialize(),
            "ping": lambda _, params: session.send_ping(),
            "agents/list": lambda _, params: session.list_agents(),
            "agents/run": self._run,
            "agents/templates/list": lambda _, params: session.list_agent_templates(),
            "agents/create": lambda _, params: session.create_agent(params["templateName"], params["config"]),
            "agents/destroy": lambda _, params: session.destroy_agent(params["name"]),
            "tools/list": lambda _, params: session.list_tools(),
            "tools/call": lambda _, params: session.call_tool(params["name"], params["arguments"]),
        }

    async def _run(self, id_: Any, params: dict[str, Any]) -> BaseModel:
        if "_meta" not in params:
            return await self._session.run_agent(params["name"], params["input"])
        # run_agent() sends no progress token. The SDK's own command line asks for progress in this way, too.
        request = types.RunAgentRequest(method="agents/run", params=types.RunAgentRequestParams(**params))
        return await self._session.send_request(
            types.ClientRequest(request), types.RunAgentResult, request_id=f"run-{id_}"
        )

    async def hear(self) -> None:
        """Whoever does not take what comes stops the session: it has no room for a single message."""
        async for message in self._session.incoming_messages:
            if isinstance(message, Exception):
                write(method="driver/odd", params={"said": str(message)})
            elif isinstance(message, types.ServerNotification):
                told = plain(message.root)
                write(method=told["method"], params=told.get("params") or {})

    async def take(self, message: dict[str, Any]) -> None:
        if message["method"] == "notifications/initialized":
            return  # the SDK's initialize() has sent it
        if message["method"] == "notifications/cancelled":
            named = message["params"]["requestId"]
            if message["params"].get("leave"):  # it does not wait for the answer any more
                self._tasks[named].cancel()
            params = types.CancelledNotificationParams(requestId=f"run-{named}", reason="enough")
            told = types.CancelledNotification(method="notifications/cancelled", params=params)
            await self._session.send_notification(types.ClientNotification(told))
            return
        self._tasks[message["id"]] = asyncio.create_task(self._answer(message))

    async def _answer(self, message: dict[str, Any]) -> None:
        id_ = message["id"]
        try:
            told = await self._methods[message["method"]](id_, message["params"])
            write(id=id_, result=plain(told))
        except McpError as error:
            write(id=id_, error=plain(error.error))
        except asyncio.CancelledError:
            write(id=id_, error={"code": -1, "message": "left"})
        except Exception as error:
            write(id=id_, error={"code": -2, "message": f"{type(error).__name__}: {error}"})


async def main(way: str, *where: str) -> None:
    if way == "sse":
        streams = sse_client(where[0])
    else:
        parameters = StdioServerParameters(command=where[0], args=list(where[1:]), env=dict(os.environ))
        streams = stdio_client(parameters)
    async with streams as (reading, writing), ClientSession(reading, writing) as session:
        driver = Driver(session)
        hearing = asyncio.create_task(driver.hear())
        while line := await asyncio.to_thread(sys.stdin.readline):
            await driver.take(json.loads(line))
        hearing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await hearing


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

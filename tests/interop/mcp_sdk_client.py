"""The PyPI SDK `mcp` 2.3 as a client that a test drives, in the SDK's own virtualenv.

    python mcp_sdk_client.py legacy|auto|REVISION stdio COMMAND...
    python mcp_sdk_client.py legacy|auto|REVISION http|sse URL

Lines of JSON-RPC come in on stdin and go out on stdout, as if the test were the client itself; in between, each goes
through the SDK. Agents are unknown to it: those requests are its session's, with types of our own. Nothing of our own
package is imported here: what works here works for everybody who uses the SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import mcp_types as types
from mcp import Client, MCPError
from mcp.client.extension import ClientExtension, NotificationBinding
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.subscriptions import SubscriptionLost
from pydantic import BaseModel, ConfigDict

CUSTOM = ("notifications/agents/run/progress", "notifications/agents/list_changed")


class AgentsRequest(types.Request[dict[str, Any], str]):
    """A method that the SDK does not know."""


class RunRequest(AgentsRequest):
    name_param = "name"


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


def plain(value: BaseModel) -> Any:
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


def write(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


class Agents(ClientExtension):
    """The SDK's way to hear notifications that it does not know."""

    identifier = "org.example/agents"

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        def binding(method: str) -> NotificationBinding[Anything]:
            async def heard(params: Anything) -> None:
                write(method=method, params=plain(params))

            return NotificationBinding(method=method, params_type=Anything, handler=heard)

        return [binding(method) for method in CUSTOM]


class Driver:
    client: Client

    def __init__(self) -> None:
        self._tasks: dict[Any, asyncio.Task[None]] = {}
        self._asked: dict[str, asyncio.Future[Any]] = {}

    # -- what the SDK calls -------------------------------------------------------------------------------

    async def elicit(self, context: Any, params: Any) -> types.ElicitResult | types.ErrorData:
        id_ = f"asked-{len(self._asked)}"
        self._asked[id_] = asyncio.get_running_loop().create_future()
        write(id=id_, method="elicitation/create", params=plain(params))
        return types.ElicitResult.model_validate(await self._asked[id_])

    async def heard(self, message: Any) -> None:
        if isinstance(message, Exception):
            write(method="driver/odd", params={"said": repr(message)})
        else:
            told = plain(message)
            write(method=told["method"], params=told.get("params") or {})

    # -- what the test calls ------------------------------------------------------------------------------

    async def call(self, id_: Any, method: str, params: dict[str, Any]) -> Any:
        client = self.client
        if method == "initialize":
            able = client.server_capabilities
            return {"protocolVersion": client.protocol_version, "capabilities": plain(able)}
        if method == "tools/list":
            return plain(await client.list_tools())
        if method == "tools/call":
            wants = "progressToken" in params.get("_meta", {})

            async def progress(progress: float, total: float | None, message: str | None) -> None:
                write(method="driver/progress", params={"of": id_, "progress": progress, "message": message})

            arguments = params["arguments"]
            return plain(
                await client.call_tool(params["name"], arguments, progress_callback=progress if wants else None)
            )
        if method == "driver/listen":
            async with client.listen(tools_list_changed=True, prompts_list_changed=True) as subscription:
                write(method="driver/listens", params=plain(subscription.honored))
                try:
                    async for event in subscription:
                        write(method="driver/event", params={"event": type(event).__name__})
                except SubscriptionLost:
                    return {"ended": "lost"}
            return {"ended": "gracefully"}
        kind = RunRequest if method == "agents/run" else AgentsRequest
        return plain(await client.session.send_request(kind(method=method, params=params), Anything))

    async def take(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            self._asked[message["id"]].set_result(message["result"])
        elif message["method"] == "notifications/cancelled":
            self._tasks[message["params"]["requestId"]].cancel()  # the SDK tells it to the server
        elif "id" in message:
            self._tasks[message["id"]] = asyncio.create_task(self._answer(message))

    async def _answer(self, message: dict[str, Any]) -> None:
        id_ = message["id"]
        try:
            write(id=id_, result=await self.call(id_, message["method"], message["params"]))
        except MCPError as error:
            write(id=id_, error=plain(error.error))
        except asyncio.CancelledError:
            write(id=id_, error={"code": -1, "message": "left"})
        except Exception as error:
            write(id=id_, error={"code": -2, "message": f"{type(error).__name__}: {error}"})

    async def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def main(mode: str, way: str, *where: str) -> None:
    server: Any = where[0]
    if way == "stdio":
        server = stdio_client(StdioServerParameters(command=where[0], args=list(where[1:]), env=dict(os.environ)))
    elif way == "sse":
        server = sse_client(where[0])
    driver = Driver()
    async with Client(
        server, mode=mode, elicitation_callback=driver.elicit, message_handler=driver.heard, extensions=[Agents()]
    ) as client:
        driver.client = client
        while line := await asyncio.to_thread(sys.stdin.readline):
            await driver.take(json.loads(line))
        await driver.end()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

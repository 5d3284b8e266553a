"""The part of the Agent Client Protocol in the guided tour."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from ...transports.jsonrpc.core import call_message
from ..tour import Demo, Lines, Tour


async def _hello(tour: Tour) -> None:
    async with asyncio.timeout(60), tour.stdio() as program:
        await _call(tour, program, 0, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        session = await _call(tour, program, 1, "session/new", {"cwd": str(Path.cwd()), "mcpServers": []})
        prompt = {"sessionId": session["sessionId"], "prompt": [{"type": "text", "text": "hello editor"}]}
        await _call(tour, program, 2, "session/prompt", prompt)


async def _call(tour: Tour, program: Lines, id_: int, method: str, params: dict[str, Any]) -> Any:
    request = call_message(method, params, id_)
    tour.show(f"→ {json.dumps(request)}")
    await program.send(request)
    while True:
        message = await program.receive()
        if message.get("id") == id_:
            return message["result"]
        update = message.get("params", {}).get("update", {})
        if update.get("sessionUpdate") == "agent_message_chunk":
            tour.show(f"← {json.dumps(update['content'])}")


demo = Demo(
    title="Agent Client",
    about="What editors speak: they start a program, and talk JSON-RPC with it over its stdin and stdout.",
    hello=_hello,
)

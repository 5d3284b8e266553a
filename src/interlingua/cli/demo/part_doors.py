"""The part of the demo in which one agent is called by five protocols, and agents of five protocols by one."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from ...terminal.errors import CommandError
from .tour import Wire, command, path, say, show, show_json

STATELESS = "2026-07-28"
_META = {"io.modelcontextprotocol/protocolVersion": STATELESS, "io.modelcontextprotocol/clientCapabilities": {}}


def mcp_headers(name: str) -> dict[str, str]:
    return {
        "accept": "application/json, text/event-stream", "mcp-protocol-version": STATELESS,
        "mcp-method": "agents/run", "mcp-name": name,
    }  # fmt: skip


def mcp_run(name: str, input_: dict[str, Any], **meta: Any) -> dict[str, Any]:
    params = {"name": name, "input": input_, "_meta": {**_META, **meta}}
    return {"jsonrpc": "2.0", "id": 1, "method": "agents/run", "params": params}


async def five_doors(wire: Wire, file: Path, store: Path) -> None:
    """The same function, by every protocol."""
    say(
        "1  one agent, five protocols",
        f"An agent is a Python function ({file.name}). Nothing in it knows of any protocol:",
    )
    for line in _body_of(file):
        show(f"    {line}")
    say("Agent Connect", "REST: runs, threads, interrupts.")
    told = await wire.ask("POST", "/connect/runs/wait", {"agent_id": "echo", "input": {"text": "hello Connect"}})
    show_json(told["output"]["values"])

    say("Agents over MCP", "JSON-RPC, with deltas. Every agent is also a tool for ordinary MCP clients.")
    told = await wire.ask("POST", "/mcp", mcp_run("echo", {"text": "hello MCP"}), mcp_headers("echo"))
    show_json(told["result"]["output"])

    say("Agent Communication", "Peers that send messages and delegate tasks, over HTTP or acp:// links.")
    message = {"role": "user", "text": "hello peer", "skill_id": "echo", "sync": True}
    told = await wire.ask("POST", "/peer/message:send", message)
    show_json(told["reply"]["parts"])

    say(
        "Agent Client", "What editors speak: they start a program, and talk JSON-RPC with it over its stdin and stdout."
    )
    await _editor(file, store)

    say("CAP", "Teams: tasks are delegated, and results come back as messages.")
    notice = {
        "type": "delegation_notice", "task_id": new_task(), "sender_id": "user", "recipient_id": "echo",
        "context_summary": "hello CAP",
    }  # fmt: skip
    task = (await wire.ask("POST", "/cap/messages", notice))["task_id"]
    events = f"/cap/tasks/{task}/events"
    wire.shown("GET", events, None, None, "-N")
    async with wire.stream("GET", events) as answer:
        async for line in answer.aiter_lines():
            told = json.loads(line[5:]) if line.startswith("data:") else {}
            if told.get("sender_id") == "echo" and told.get("recipient_id") == "user":
                show_json({name: told[name] for name in ("type", "sender_id", "recipient_id", "content")})
                break


def new_task() -> str:
    """A task id that a store which has seen the demo before does not know."""
    return f"T{time.time_ns() // 1_000_000}"


def _body_of(file: Path) -> list[str]:
    """The function in a file, without what stands around it."""
    lines = file.read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("@"))
    end = next((at for at in range(start, len(lines)) if not lines[at].strip()), len(lines))
    return lines[start:end]


async def _editor(file: Path, store: Path) -> None:
    command(f"stdio --as editor {path(file)} --store {path(store)}")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "interlingua", "stdio", "--as", "editor", str(file), "--store", str(store),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None

    async def call(number: int, method: str, params: dict[str, Any]) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        request = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        show(f"→ {request}")
        process.stdin.write(request.encode() + b"\n")
        while line := await process.stdout.readline():
            told = json.loads(line)
            if told.get("id") == number:
                return told["result"]
            if told.get("params", {}).get("update", {}).get("sessionUpdate") == "agent_message_chunk":
                show(f"← {json.dumps(told['params']['update']['content'])}")
        raise CommandError("the agent's process ended before it answered")

    try:
        async with asyncio.timeout(60):
            await call(0, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})
            session = await call(1, "session/new", {"cwd": str(Path.cwd()), "mcpServers": []})
            asked = {"sessionId": session["sessionId"], "prompt": [{"type": "text", "text": "hello editor"}]}
            await call(2, "session/prompt", asked)
    finally:
        process.stdin.close()
        await process.wait()


async def five_mounts(wire: Wire, mounted: list[tuple[str, str]]) -> None:
    """Agents of another process, each by another protocol, behind one door."""
    say(
        "2  agents of five protocols, one door",
        "A second process serves five other agents. Each is mounted by another protocol, and is now like one of ours:",
    )
    for agent, target in mounted:
        show(f"    {agent:<10} {target}")
    say("", "Here all five are called by Agent Connect, as the first is:")
    for agent, _ in mounted:
        body = {"agent_id": agent, "input": {"text": "write it once"}}
        told = await (wire.ask if agent == mounted[0][0] else wire.quietly)("POST", "/connect/runs/wait", body)
        show(f"{agent}: {json.dumps(told['output']['values'])}")

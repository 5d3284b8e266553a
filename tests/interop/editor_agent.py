"""An agent on the PyPI SDK `agent-client-protocol`, as a user of that SDK would write one.

    python editor_agent.py              over stdio
    python editor_agent.py serve        over HTTP and WebSocket, by the SDK's own server; prints its address

The first word of a prompt says what it does: see `prompt`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import uuid
from pathlib import Path
from typing import Any

import acp
from acp import schema

LOGIN = bool(os.environ.get("AGENT_LOGIN"))  # somebody must log in first
STATE = os.environ.get("AGENT_STATE")  # a file in which sessions outlive the process


class Agent:
    def __init__(self, connection: Any = None) -> None:
        self.connection = connection
        self.cancelled: dict[str, asyncio.Event] = {}
        self.options: dict[str, Any] = {"model": "small", "careful": False}
        self.servers: list[Any] = []
        self.known = not LOGIN

    def on_connect(self, connection: Any) -> None:
        self.connection = connection

    async def initialize(self, protocol_version: int, **_: Any) -> Any:
        return acp.InitializeResponse(
            protocol_version=acp.PROTOCOL_VERSION,
            agent_info=schema.Implementation(name="pypi-agent", version="1.0.0", title="An agent on the PyPI SDK"),
            auth_methods=[schema.AuthMethodAgent(id="key", name="A key")] if LOGIN else [],
            agent_capabilities=schema.AgentCapabilities(
                load_session=True,
                prompt_capabilities=schema.PromptCapabilities(image=True, embedded_context=True),
            ),
        )

    def _options(self) -> list[Any]:
        choices = [schema.SessionConfigSelectOption(value=value, name=value.title()) for value in ("small", "big")]
        return [
            schema.SessionConfigOptionSelect(
                id="model", name="Model", type="select", current_value=self.options["model"], options=choices
            ),
            schema.SessionConfigOptionBoolean(
                id="careful", name="Careful", type="boolean", current_value=self.options["careful"]
            ),
        ]

    async def authenticate(self, method_id: str, **_: Any) -> Any:
        self.known = method_id == "key"
        return acp.AuthenticateResponse()

    async def new_session(self, cwd: str, mcp_servers: Any = None, **_: Any) -> Any:
        if not self.known:
            raise acp.RequestError.auth_required()
        session = uuid.uuid4().hex
        self.cancelled[session] = asyncio.Event()
        self.servers = mcp_servers or []
        return acp.NewSessionResponse(session_id=session, config_options=self._options())

    async def load_session(self, cwd: str, session_id: str, mcp_servers: Any = None, **_: Any) -> Any:
        self.cancelled[session_id] = asyncio.Event()
        for text in _recall(session_id):
            await self.connection.session_update(session_id, acp.update_user_message_text(text))
            await self.say(session_id, "again")
        return acp.LoadSessionResponse(config_options=self._options())

    async def set_config_option(self, config_id: str, session_id: str, value: Any, **_: Any) -> Any:
        self.options[config_id] = value
        return acp.SetSessionConfigOptionResponse(config_options=self._options())

    async def cancel(self, session_id: str, **_: Any) -> None:
        self.cancelled[session_id].set()

    async def say(self, session: str, text: str) -> None:
        await self.connection.session_update(session, acp.update_agent_message_text(text))

    async def prompt(self, prompt: list[Any], session_id: str, **_: Any) -> Any:
        stop = self.cancelled[session_id]
        stop.clear()
        told = [block.text for block in prompt if block.type == "text"]
        word, _, rest = (told[0] if told else "").partition(" ")
        _remember(session_id, told[0] if told else "")
        update = self.connection.session_update
        match word:
            case "stream":
                for number in range(int(rest)):
                    await self.say(session_id, f"{number} ")
            case "activity":
                await update(session_id, acp.update_agent_thought_text("Let me see."))
                entry = acp.plan_entry("look", priority="high", status="in_progress")
                await update(session_id, acp.update_plan([entry]))
                call = acp.start_tool_call("c1", "Edit a file", kind="edit", status="in_progress", raw_input={"n": 1})
                await update(session_id, call)
                diff = acp.tool_diff_content("/a.py", "new\n", "old\n")
                done = acp.update_tool_call("c1", status="completed", content=[diff], raw_output={"ok": True})
                await update(session_id, done)
                await update(session_id, schema.UsageUpdate(session_update="usage_update", used=5, size=50))
                await self.say(session_id, "Done.")
            case "ask":
                await self.say(session_id, "Asking. ")
                options = [
                    schema.PermissionOption(option_id="go", name="Go on", kind="allow_once"),
                    schema.PermissionOption(option_id="stop", name="Leave it", kind="reject_once"),
                ]
                call = schema.ToolCallUpdate(tool_call_id="c2", title="Remove it", kind="delete", status="pending")
                answer = await self.connection.request_permission(
                    options=options, session_id=session_id, tool_call=call
                )
                if stop.is_set():
                    return acp.PromptResponse(stop_reason="cancelled")
                chosen = answer.outcome
                await self.say(session_id, f"{chosen.outcome} {getattr(chosen, 'option_id', None)}")
            case "wait":
                await self.say(session_id, "Waiting. ")
                await stop.wait()
                await self.say(session_id, "Stopped.")
                return acp.PromptResponse(stop_reason="cancelled")
            case "files":
                text = (await self.connection.read_text_file(path=f"{rest}/in.txt", session_id=session_id)).content
                await self.connection.write_text_file(
                    path=f"{rest}/out.txt", content=text.upper(), session_id=session_id
                )
                made = await self.connection.create_terminal(
                    command="cat", args=["out.txt"], cwd=rest, session_id=session_id
                )
                terminal = {"session_id": session_id, "terminal_id": made.terminal_id}
                ended = await self.connection.wait_for_terminal_exit(**terminal)
                shown = await self.connection.terminal_output(**terminal)
                await self.connection.release_terminal(**terminal)
                await self.say(session_id, f"{ended.exit_code} {shown.output}")
            case "servers":
                await self.say(session_id, json.dumps([[server.name, server.command] for server in self.servers]))
            case "options":
                await self.say(session_id, json.dumps(self.options))
            case "blocks":
                await self.say(session_id, json.dumps([block.type for block in prompt]))
            case "fail":
                raise acp.RequestError(-32050, "the saw is broken", {"tool": "saw"})
            case "recall":
                await self.say(session_id, json.dumps(_recall(session_id)))
            case "die":
                os._exit(3)
            case _:
                await self.say(session_id, f"heard {told[0] if told else ''}")
        return acp.PromptResponse(stop_reason="end_turn")


def _remember(session: str, text: str) -> None:
    if STATE:
        with Path(STATE).open("a") as file:
            file.write(json.dumps([session, text]) + "\n")


def _recall(session: str) -> list[str]:
    if not STATE or not Path(STATE).exists():
        return []
    lines = (json.loads(line) for line in Path(STATE).read_text().splitlines())
    return [text for known, text in lines if known == session]


def serve() -> None:
    import uvicorn
    from acp.http.asgi import create_asgi_app

    listening = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    config = uvicorn.Config(create_asgi_app(Agent), log_level="warning")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        asyncio.run(acp.run_agent(Agent()))

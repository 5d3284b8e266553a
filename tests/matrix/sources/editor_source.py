"""An agent on the PyPI SDK `agent-client-protocol`, over stdio. Knows nothing of our code.

Metadata comes in the `_meta` of a prompt under `interlingua/metadata`, and the trace context in the members that the
protocol reserves there. Data is JSON in a text block whose `_meta` has the value under `interlingua/data`, because
there is no block for it; an error has its code, its details and whether it may pass in its own `data`. What is more
than a flat form is asked for by one with JSON in its fields, whose `_meta` has the schema of the answer.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import uuid
from pathlib import Path
from typing import Any

import acp
from acp import schema

sys.path.insert(0, str(Path(__file__).parents[1]))

import behaviours as does

Json = dict[str, Any]


class Session:
    """One session: what it remembers, and the turn that runs in it."""

    def __init__(self) -> None:
        self.memory: dict[str, str] = {}
        self.turn: asyncio.Task[None] | None = None


class Turn:
    """One prompt, and what its agent may do."""

    def __init__(self, connection: Any, session: str, memory: dict[str, str], prompt: list[Any], meta: Json) -> None:
        self.connection, self.session, self.memory = connection, session, memory
        self.data = [block.field_meta["interlingua/data"] for block in prompt if _is_data(block)]
        self.text = "".join(block.text for block in prompt if block.type == "text" and not _is_data(block))
        self.files = [file for block in prompt if (file := _file(block)) is not None]
        self.heard = {"metadata": meta.get("interlingua/metadata")}
        self.heard |= {name: meta[name] for name in ("traceparent", "tracestate", "baggage") if name in meta}

    async def say(self, text: str) -> None:
        await self.connection.session_update(self.session, acp.update_agent_message_text(text))

    async def give(self) -> None:
        name, media_type, body = does.FILE_OUT
        blob = base64.b64encode(body).decode()
        resource = acp.embedded_blob_resource(f"file:///{name}", blob, mime_type=media_type)
        block = acp.resource_block(resource)
        await self.connection.session_update(self.session, acp.update_agent_message(block))
        told = schema.TextContentBlock(
            type="text", text=json.dumps(does.DATA_OUT), field_meta={"interlingua/data": does.DATA_OUT}
        )
        await self.connection.session_update(self.session, acp.update_agent_message(told))

    async def choose(self) -> str:
        options = [schema.PermissionOption(option_id=id_, name=name, kind=kind) for id_, name, kind in does.CHOICES]
        call = schema.ToolCallUpdate(tool_call_id="c1", title=does.MAY_I, status="pending")
        told = await self.connection.request_permission(options=options, session_id=self.session, tool_call=call)
        return str(getattr(told.outcome, "option_id", told.outcome.outcome))

    async def elicit(self, message: str, wanted: Json, **meta: Any) -> Json:
        mode = schema.ElicitationFormSessionMode(
            session_id=self.session, requested_schema=schema.ElicitationSchema(**wanted)
        )
        told = await self.connection.create_elicitation(message, mode, **meta)
        if told.action != "accept":
            raise does.Failure(told.action, False)
        return dict(told.content)

    async def form(self) -> Json:
        return await self.elicit(does.WHO, does.PERSON)

    async def want(self, what: str) -> Any:
        prompt, wanted = does.WANTED[what]
        return does.taken(wanted, await self.elicit(prompt, does.flat(wanted), **{does.ANSWER_SCHEMA: wanted}))

    async def ask(self) -> str:
        return str((await self.elicit(does.WHAT, does.WORDS))["text"])


def _is_data(block: Any) -> bool:
    return block.type == "text" and "interlingua/data" in (block.field_meta or {})


def _file(block: Any) -> Json | None:
    match block.type:
        case "resource":
            found = block.resource
            body = base64.b64decode(found.blob) if hasattr(found, "blob") else found.text.encode()
            return {"name": found.uri.rpartition("/")[2], "media_type": found.mime_type, "data": body}
        case "resource_link":
            return {"name": block.name, "media_type": block.mime_type, "url": block.uri}
        case "image" | "audio":
            return {"name": None, "media_type": block.mime_type, "data": base64.b64decode(block.data)}
    return None


class Agent:
    def __init__(self) -> None:
        self.connection: Any = None
        self.sessions: dict[str, Session] = {}

    def on_connect(self, connection: Any) -> None:
        self.connection = connection

    async def initialize(self, protocol_version: int, **_: Any) -> Any:
        return acp.InitializeResponse(
            protocol_version=acp.PROTOCOL_VERSION,
            agent_info=schema.Implementation(name="talker-editor", version="1.0.0", title=does.TALKER),
            agent_capabilities=schema.AgentCapabilities(
                load_session=True,
                prompt_capabilities=schema.PromptCapabilities(image=True, audio=True, embedded_context=True),
            ),
        )

    async def new_session(self, cwd: str, **_: Any) -> Any:
        id_ = uuid.uuid4().hex
        self.sessions[id_] = Session()
        return acp.NewSessionResponse(session_id=id_)

    async def load_session(self, session_id: str, **_: Any) -> Any:
        return acp.LoadSessionResponse()

    async def cancel(self, session_id: str, **_: Any) -> None:
        turn = self.sessions[session_id].turn
        if turn is not None:
            turn.cancel()

    async def prompt(self, prompt: list[Any], session_id: str, message_id: str | None = None, **meta: Any) -> Any:
        session = self.sessions[session_id]
        turn = Turn(self.connection, session_id, session.memory, prompt, meta)
        session.turn = asyncio.ensure_future(does.talk(turn.text, turn))
        try:
            await asyncio.wait({session.turn})
            session.turn.result()
        except does.Failure as error:
            told = {"code": error.code, "transient": error.transient, "details": error.details}
            raise acp.RequestError(-32050, error.message, told) from None
        except asyncio.CancelledError:
            return acp.PromptResponse(stop_reason="cancelled")
        return acp.PromptResponse(stop_reason="end_turn")


if __name__ == "__main__":
    asyncio.run(acp.run_agent(Agent(), use_unstable_protocol=True))

"""A stand-in for the model behind a coding agent: the Messages API, streaming, on loopback. Prints its address.

    python editor_model.py

It always wants the same: say something, run one shell command (which the agent must ask for), say how that went. Each
request that it gets is printed as one line of JSON.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

COMMAND = "echo made by the agent > made.txt"


def answer(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The content of the model's next message."""
    if not any(tool["name"] == "Bash" for tool in asked.get("tools", [])):
        return [{"type": "text", "text": "A title"}]  # a small request beside the conversation
    contents = [said["content"] for said in asked["messages"] if isinstance(said["content"], list)]
    results = [block for content in contents for block in content if block["type"] == "tool_result"]
    if not results:
        call = {"command": COMMAND, "description": "Make a file"}
        return [
            {"type": "text", "text": "I will make a file."},
            {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": call},
        ]
    refused = bool(results[-1].get("is_error"))
    return [{"type": "text", "text": "It was refused." if refused else "The file is there."}]


def events(model: str, content: list[dict[str, Any]]) -> Iterator[bytes]:
    def event(type_: str, **members: Any) -> bytes:
        return f"event: {type_}\ndata: {json.dumps({'type': type_, **members})}\n\n".encode()

    yield event("message_start", message={**message(model, []), "stop_reason": None})
    for index, block in enumerate(content):
        if block["type"] == "text":
            yield event("content_block_start", index=index, content_block={"type": "text", "text": ""})
            for word in block["text"].split(" "):
                yield event("content_block_delta", index=index, delta={"type": "text_delta", "text": f"{word} "})
        else:
            yield event("content_block_start", index=index, content_block={**block, "input": {}})
            piece = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            yield event("content_block_delta", index=index, delta=piece)
        yield event("content_block_stop", index=index)
    ending = {"stop_reason": message(model, content)["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=ending, usage={"output_tokens": 5})
    yield event("message_stop")


def message(model: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    calls = any(block["type"] == "tool_use" for block in content)
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": content,
        "stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }  # fmt: skip


async def messages(request: Request) -> Response:
    asked = await request.json()
    content = answer(asked)
    print(json.dumps({"model": asked["model"], "answer": content}), flush=True)
    if asked.get("stream"):
        return StreamingResponse(events(asked["model"], content), media_type="text/event-stream")
    return JSONResponse(message(asked["model"], content))


async def count_tokens(request: Request) -> Response:
    return JSONResponse({"input_tokens": 10})


async def other(request: Request) -> Response:
    print(json.dumps({"path": request.url.path}), flush=True)
    return JSONResponse({"type": "error", "error": {"type": "not_found_error", "message": "no"}}, status_code=404)


def main() -> None:
    app = Starlette(
        routes=[
            Route("/v1/messages", messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
            Route("/{path:path}", other, methods=["GET", "POST", "HEAD"]),
        ]
    )
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main()

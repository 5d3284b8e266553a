"""A stand-in for a model: a real HTTP server that speaks OpenAI's chat completions, and its responses as well, and
answers as a script says.

It knows which agent asks by the system prompt, and looks at every request: an agent that is offered a tool which its
manifest does not bind, or whom a delegate tool does not tell when to delegate, fails the test.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import pytest

from interlingua.model.team.manifest import Manifest, Team

MODEL = "openai-chat:stand-in"
RESPONSES = "openai:stand-in"  # what pydantic-ai asks by way of the newer of the two APIs
CHAT_PATH = "/v1/chat/completions"
RESPONSES_PATH = "/v1/responses"
TALK = {"send_message", "ask", "wait_for"}


class Asked:
    """One request to the model, as its script reads it."""

    def __init__(self, body: dict[str, Any], manifest: Manifest) -> None:
        self.body = body
        self.agent = manifest.id
        self.messages: list[dict[str, Any]] = _messages(body)
        # One API has what a tool is in a member of its own, the other has it beside the type.
        described = [one.get("function", one) for one in body.get("tools") or []]
        self.tools: dict[str, dict[str, Any]] = {one["name"]: one for one in described}

    @property
    def system(self) -> str:
        return "\n\n".join(_text(one) for one in self.messages if one["role"] in ("system", "developer"))

    @property
    def task(self) -> str:
        """What the agent was told first."""
        return next(_text(one) for one in self.messages if one["role"] == "user")

    @property
    def turns(self) -> int:
        """How often the model has answered in this conversation."""
        return sum(one["role"] == "assistant" for one in self.messages)

    @property
    def news(self) -> list[str]:
        """What the agent was told since the model last answered: results of its calls, and messages."""
        last = max((i for i, one in enumerate(self.messages) if one["role"] == "assistant"), default=-1)
        return [_text(one) for one in self.messages[last + 1 :]]

    @property
    def everything(self) -> str:
        return "\n".join(_text(one) for one in self.messages)


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    """What was said, as chat completions have it. Of a response, several items can be one answer of the model."""
    if "messages" in body:
        given: list[dict[str, Any]] = body["messages"]
        return given
    found: list[dict[str, Any]] = []
    if body.get("instructions"):
        found.append({"role": "system", "content": body["instructions"]})
    for item in body["input"]:
        kind = item.get("type", "message")
        if kind == "function_call_output":
            found.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
        elif kind == "message" and item["role"] != "assistant":
            found.append({"role": item["role"], "content": item["content"]})
        elif not found or found[-1]["role"] != "assistant":
            found.append({"role": "assistant", "content": item.get("content")})
    return found


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


class Call:
    """A tool that the model calls. Text is taken as arguments as it stands, whatever it is."""

    def __init__(self, name: str, arguments: str | None = None, /, *, id: str | None = None, **given: Any) -> None:  # noqa: A002
        self.name = name
        self.arguments = json.dumps(given) if arguments is None else arguments
        self.id = id


class Says:
    """What the model answers: text, calls, or both."""

    def __init__(self, text: str | None = None, *calls: Call, finish: str | None = None) -> None:
        self.text = text
        self.calls = calls
        self.finish = finish or ("tool_calls" if calls else "stop")


class Fails:
    """An error of the API."""

    def __init__(self, status: int, message: str = "no", **headers: str) -> None:
        self.status = status
        self.body = {"error": {"message": message, "type": "error", "code": None}}
        self.headers = headers


Answer = Says | Fails | Call | str
Script = Callable[[Asked], Answer]


class StandIn:
    """Answers while it is open. Whatever was wrong with a request is raised at the end, in the test."""

    def __init__(self, team: Team, script: Script) -> None:
        self.team = team
        self.script = script
        self.requests: list[Asked] = []
        self.wrong: list[BaseException] = []
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def environment(self) -> dict[str, str]:
        return {"OPENAI_BASE_URL": f"http://127.0.0.1:{self._server.server_port}/v1", "OPENAI_API_KEY": "a-key"}

    def of(self, agent: str) -> list[Asked]:
        return [one for one in self.requests if one.agent == agent]

    def __enter__(self) -> Self:
        self._patch = pytest.MonkeyPatch()
        for name, value in self.environment.items():
            self._patch.setenv(name, value)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self.wrong:
            raise self.wrong[0]

    def answer(self, body: dict[str, Any], path: str = CHAT_PATH) -> tuple[int, dict[str, Any], dict[str, str]]:
        try:
            asked = self._read(body)
            given = self.script(asked)
        except BaseException as error:
            self.wrong.append(error)
            return 400, {"error": {"message": f"the stand-in is at a loss: {error!r}"}}, {}
        if isinstance(given, Fails):
            return given.status, given.body, given.headers
        if isinstance(given, str):
            given = Says(given)
        elif isinstance(given, Call):
            given = Says(None, given)
        return 200, self._response(given) if path == RESPONSES_PATH else self._completion(given), {}

    def _read(self, body: dict[str, Any]) -> Asked:
        first = _text(_messages(body)[0])
        found = [one for one in self.team.manifests.values() if first.startswith(one.system_prompt)]
        assert len(found) == 1, f"no agent has the system prompt that comes first: {first!r}"
        asked = Asked(body, found[0])
        with self._lock:
            self.requests.append(asked)
        self._check(asked, found[0])
        return asked

    def _check(self, asked: Asked, manifest: Manifest) -> None:
        bound = {f"{one.server_id}__{tool}" for one in manifest.mcp_bindings for tool in one.allowed_tools}
        delegates = {f"delegate_to_{id_}": id_ for id_ in manifest.allowed_agents}
        extra = set[str]()
        if manifest.overseer in manifest.allowed_agents:
            extra.add("answer_inquiry")
        if any(one.overseer == manifest.id for one in self.team.manifests.values()):
            extra.add("verdict")
        for name, tool in asked.tools.items():
            assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name), f"no API takes a tool called {name!r}"
            assert name in bound | TALK | set(delegates) | extra, (
                f"{manifest.id} is offered {name}, which it may not use"
            )
            assert tool["description"], f"{name} has no description"
        for name, id_ in delegates.items():
            rule = manifest.delegate_rules[id_].when_to_delegate
            assert name in asked.tools, f"{manifest.id} is not offered {name}"
            assert rule in asked.tools[name]["description"], f"{name} does not say when to delegate"

    def _completion(self, given: Says) -> dict[str, Any]:
        with self._lock:
            number = next(self._ids)
        calls = [
            {
                "id": call.id or f"call_{number}_{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(given.calls)
        ]
        message: dict[str, Any] = {"role": "assistant", "content": given.text}
        if calls:
            message["tool_calls"] = calls
        return {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "stand-in",
            "choices": [{"index": 0, "message": message, "finish_reason": given.finish}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
        }

    def _response(self, given: Says) -> dict[str, Any]:
        with self._lock:
            number = next(self._ids)
        output: list[dict[str, Any]] = [{"type": "reasoning", "id": f"rs_{number}", "summary": []}]
        if given.text is not None:
            said = {"type": "output_text", "text": given.text, "annotations": []}
            output.append(
                {
                    "type": "message",
                    "id": f"msg_{number}",
                    "role": "assistant",
                    "status": "completed",
                    "content": [said],
                }
            )
        output += [
            {
                "type": "function_call",
                "id": f"fc_{number}_{index}",
                "call_id": call.id or f"call_{number}_{index}",
                "name": call.name,
                "arguments": call.arguments,
                "status": "completed",
            }
            for index, call in enumerate(given.calls)
        ]
        return {
            "id": f"resp_{number}",
            "object": "response",
            "created_at": 1_700_000_000,
            "model": "stand-in",
            "status": "completed",
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": 10,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 3,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": 13,
            },
        }


def _handler(standin: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path not in (CHAT_PATH, RESPONSES_PATH):
                standin.wrong.append(AssertionError(f"nobody should ask for {self.path}"))
            status, answer, headers = standin.answer(body, self.path)
            data = json.dumps(answer).encode()
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                self.close_connection = True  # whoever asked is gone: it was killed, or waits no longer

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    return Handler

"""Agents over MCP by hand, over Streamable HTTP: with a session, and in the revision that has none.

With a session, questions come as requests on the stream of the run that asks. Without one they are results, and the
request is sent again with the answer.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx2

from ..behaviours import ANSWER_SCHEMA, laid
from .base import DoorClient, Failed, File, Json, Listed, Turn, events, question

BOTH = {"accept": "application/json, text/event-stream"}
PARTS = "interlingua/parts"


class McpTurn(Turn):
    def __init__(self, client: McpClient, params: Json) -> None:
        super().__init__()
        self.client = client
        self.params = params
        self.token = params["_meta"]["progressToken"]
        self.id = 0
        self._asked: Json = {}
        self._member = ""
        self._schema: Json | None = None  # of what is asked for, where that is more than the form

    async def run(self) -> None:
        async for message in self.client.messages("agents/run", self.params, self):
            if "method" in message:
                self._told(message)
            else:
                assert message["id"] == self.id
                self._answered(message)

    def _told(self, message: Json) -> None:
        params = message["params"]
        if message["method"] == "elicitation/create":
            self._asked = message
            self._elicited(params)
        elif message["method"] == "notifications/agents/run/progress":
            assert params["progressToken"] == self.token
            delta = params["delta"]
            self.piece(delta["text"] if set(delta) == {"text"} else delta)

    def _elicited(self, params: Json) -> None:
        fields = params["requestedSchema"]["properties"]
        self._member = next(iter(fields))
        chosen = "choice" in fields  # with fields of their own kind beside it: the form is enough
        self._schema = None if chosen else params.get("_meta", {}).get(ANSWER_SCHEMA)
        self.asked(question(params["message"].partition("\n")[0], self._schema or params["requestedSchema"]))

    def _answered(self, message: Json) -> None:
        if "error" in message:
            told = message["error"]
            about = told.get("data", {})
            failed = Failed(about.get("code", ""), told["message"], about.get("transient", False), about.get("details"))
            self.over("cancelled" if self._is_cancelled(told) else "failed", failed)
            return
        self._result(message["result"])

    @staticmethod
    def _is_cancelled(error: Json) -> bool:
        return error["code"] == -32800 or error.get("data", {}).get("code") == "cancelled"

    def _result(self, result: Json) -> None:
        self.so_far.output = result["output"]
        self.so_far.text = result["output"].get("text", "")
        for part in result["_meta"].get(PARTS, []):
            if part["type"] == "data":
                self.so_far.data.append(part["data"])
            elif part["type"] == "file":
                body = base64.b64decode(part["data"]) if "data" in part else part.get("text", "").encode()
                self.so_far.files.append(File(part["name"], part["media_type"], body, part.get("url", "")))
        self.over("succeeded")

    def _content(self, value: Any) -> Json:
        if self._schema is not None:
            return {"action": "accept", "content": laid(self._schema, value)}
        content = value if isinstance(value, dict) else {self._member: value}
        return {"action": "accept", "content": content}

    async def answer(self, value: Any) -> None:
        await self.client.send({"id": self._asked["id"], "result": self._content(value)})

    async def cancel(self) -> None:
        await self.client.send({"method": "notifications/cancelled", "params": {"requestId": self.id}})


class ModernTurn(McpTurn):
    """In this revision the request that runs is answered with the question, and sent again with what was said."""

    def __init__(self, client: McpClient, params: Json) -> None:
        super().__init__(client, params)
        self._given = asyncio.Event()
        self._key = self._state = ""

    def _result(self, result: Json) -> None:
        if result["resultType"] == "complete":
            super()._result(result)
            return
        assert result["resultType"] == "input_required"
        ((self._key, asked),) = result["inputRequests"].items()
        assert asked["method"] == "elicitation/create"
        self._state = result["requestState"]
        self._elicited(asked["params"])

    async def run(self) -> None:
        await super().run()
        while not self._ended.done():  # it is asked, and goes on with the answer
            await self._given.wait()
            self._given.clear()
            await super().run()

    async def answer(self, value: Any) -> None:
        self.params = {**self.params, "requestState": self._state, "inputResponses": {self._key: self._content(value)}}
        self._given.set()

    async def cancel(self) -> None:
        """To leave before the answer is how it is cancelled: nobody is told how it ended."""
        await self.leave()
        self.over("cancelled", Failed("cancelled", "", False))


class McpClient(DoorClient):
    door = "mcp"
    turn: type[McpTurn] = McpTurn

    def __init__(self, address: str) -> None:
        super().__init__(f"{address}/mcp")
        self._ids = 0
        self._headers: dict[str, str] = {}
        self._begun: asyncio.Future[None] | None = None

    # -- the wire -----------------------------------------------------------------------------------------

    async def begin(self) -> None:
        if self._begun is None:
            self._begun = asyncio.ensure_future(self._begin())
        await self._begun

    async def _begin(self) -> None:
        params = {
            "protocolVersion": "2025-11-25", "capabilities": {"elicitation": {"form": {}}},
            "clientInfo": {"name": "by hand", "version": "0"},
        }  # fmt: skip
        answer = await self._post({"id": 0, "method": "initialize", "params": params})
        assert answer.status_code == 200
        assert answer.json()["result"]["protocolVersion"] == "2025-11-25"
        self._headers = {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        await self.send({"method": "notifications/initialized"})

    async def _post(self, message: Json, **headers: str) -> httpx2.Response:
        told = {"jsonrpc": "2.0", **message}
        return await self.http.post(self.address, json=told, headers={**BOTH, **self._headers, **headers})

    async def send(self, message: Json) -> None:
        assert (await self._post(message)).status_code == 202

    async def messages(self, method: str, params: Json, turn: McpTurn | None = None) -> AsyncIterator[Json]:
        """Send a request, and read all that comes of it; the answer is the last."""
        self._ids += 1
        id_ = self._ids
        if turn is not None:
            turn.id = id_
        body = {"jsonrpc": "2.0", "id": id_, "method": method, "params": self._params(params)}
        headers = {**BOTH, **self._headers, **self._named(method, params)}
        request = self.http.build_request("POST", self.address, json=body, headers=headers, timeout=None)
        answer = await self.http.send(request, stream=True)
        try:
            assert answer.status_code == 200, (answer.status_code, await answer.aread())
            if answer.headers["content-type"].startswith("application/json"):
                await answer.aread()
                yield answer.json()
                return
            async for event in events(answer):
                yield event.data
                if event.data.get("id") == id_ and "method" not in event.data:
                    return
        finally:
            await answer.aclose()

    def _params(self, params: Json) -> Json:
        return params

    def _named(self, method: str, params: Json) -> dict[str, str]:
        return {}

    # -- what it does -------------------------------------------------------------------------------------

    async def list(self) -> list[Listed]:
        await self.begin()
        (answer,) = [message async for message in self.messages("agents/list", {})]
        return [Listed(one["name"], one.get("description", "")) for one in answer["result"]["agents"]]

    async def start(
        self, agent: str, text: str = "", *, data: Any = None, files: Sequence[File] = (), parts: Sequence[Any] = (),
        thread: str | None = None, metadata: Json | None = None, trace: dict[str, str] | None = None,
    ) -> Turn:  # fmt: skip
        await self.begin()
        meta: Json = {**(metadata or {}), **(trace or {}), "progressToken": uuid.uuid4().hex}
        if thread is not None:
            meta["interlingua/thread"] = thread
        if files or parts:
            meta[PARTS] = [*map(_file, files), *({"type": "data", "data": value} for value in parts)]
        params = {"name": agent, "input": {"text": text} if data is None else data, "_meta": meta}
        turn = self.turn(self, params)
        self.turns.append(turn)
        turn.read(turn.run())
        return turn

    async def new_thread(self) -> str:
        return f"thread-{uuid.uuid4().hex}"


class ModernClient(McpClient):
    """Revision 2026-07-28: no session, and every request says what a handshake would have said."""

    turn = ModernTurn

    async def begin(self) -> None:
        self._headers = {"mcp-protocol-version": "2026-07-28"}

    def _params(self, params: Json) -> Json:
        said = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
        }
        return {**params, "_meta": {**params.get("_meta", {}), **said}}

    def _named(self, method: str, params: Json) -> dict[str, str]:
        return {"mcp-method": method} | ({"mcp-name": params["name"]} if "name" in params else {})


def _file(file: File) -> Json:
    told: Json = {"type": "file", "name": file.name, "media_type": file.media_type}
    return told | ({"url": file.url} if file.url else {"data": base64.b64encode(file.data).decode()})

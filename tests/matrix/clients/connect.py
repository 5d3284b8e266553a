"""The Agent Connect Protocol by hand: runs over REST, their updates as server-sent events.

A stream ends where the run asks, and is taken up again after the answer.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

from .base import Asked, DoorClient, Failed, File, Json, Listed, Turn, fitted, question


class ConnectTurn(Turn):
    def __init__(self, client: ConnectClient, run: str) -> None:
        super().__init__()
        self.client = client
        self.run = run
        self._last = "0"  # the id of the last update
        self._schema: Json = {}  # of the answer that is awaited
        self._answered = asyncio.Event()

    async def follow(self) -> None:
        while not self._ended.done():
            async with self.client.events(f"/runs/{self.run}/stream", **{"last-event-id": self._last}) as updates:
                async for event in updates:
                    assert event.kind == "agent_event"
                    self._last = event.id
                    self._take(event.data)
            if not self._ended.done():
                assert self._schema, "the stream ended, and nothing was asked"
                await self._answered.wait()
                self._answered.clear()

    def _take(self, told: Json) -> None:
        assert told["run_id"] == self.run
        match told["type"]:
            case "custom":
                self._update(told["update"])
            case "values" if told["status"] == "success":
                output = told["values"]
                self.so_far.output, self.so_far.text = output, output.get("text", "")
                for message in told.get("messages", []):
                    assert message["role"] == "assistant"
                    self._parts(message["content"])
                self.over("succeeded")
            case "interrupt":
                self.asked(self._asked(told))
            case "error":
                error = Failed(told["code"], told["description"], told["transient"], told.get("details"))
                self.over("cancelled" if told["code"] == "cancelled" else "failed", error)

    def _asked(self, told: Json) -> Asked:
        ((kind, payload),) = told["interrupt"].items()
        assert (kind, payload) == (told["interrupt_type"], told["interrupt_payload"])
        self._schema = told["answer_schema"]
        return question(told["prompt"], self._schema, told.get("options"))

    def _update(self, update: Json) -> None:
        if update["kind"] == "delta":
            delta = update["delta"]
            self.piece(delta["text"] if set(delta) == {"text"} else delta)

    def _parts(self, parts: list[Json] | str) -> None:
        if isinstance(parts, str):
            return
        for part in parts:
            if part["type"] == "data":
                self.so_far.data.append(part["data"])
            elif part["type"] == "file":
                body = base64.b64decode(part["data"]) if "data" in part else part.get("text", "").encode()
                self.so_far.files.append(File(part["name"], part["media_type"], body, part.get("url", "")))

    async def answer(self, value: Any) -> None:
        await self.client.post(f"/runs/{self.run}", fitted(self._schema, value))
        self._schema = {}
        self._answered.set()

    async def cancel(self) -> None:
        await self.client.post(f"/runs/{self.run}/cancel", {})


class ConnectClient(DoorClient):
    door = "connect"

    def __init__(self, address: str) -> None:
        super().__init__(f"{address}/connect")

    async def list(self) -> list[Listed]:
        found = await self.post("/agents/search", {"limit": 1000})
        return [Listed(one["metadata"]["ref"]["name"], one["metadata"]["description"]) for one in found]

    async def start(
        self, agent: str, text: str = "", *, data: Any = None, files: Sequence[File] = (), parts: Sequence[Any] = (),
        thread: str | None = None, metadata: Json | None = None, trace: dict[str, str] | None = None,
    ) -> Turn:  # fmt: skip
        body: Json = {"agent_id": agent, "stream_mode": ["custom"], "on_disconnect": "continue"}
        body["input"] = data if data is not None else text
        if files or parts:
            body["input"] = [{"type": "text", "text": text}, *map(_file, files)]
            body["input"] += [{"type": "data", "data": value} for value in parts]
        if metadata is not None:
            body["metadata"] = metadata
        path = "/runs" if thread is None else f"/threads/{thread}/runs"
        made = await self.post(path, body, **(trace or {}))
        turn = ConnectTurn(self, made["run_id"])
        self.turns.append(turn)
        turn.read(turn.follow())
        return turn

    async def new_thread(self) -> str:
        return str((await self.post("/threads", {}))["thread_id"])


def _file(file: File) -> Json:
    told: Json = {"type": "file", "name": file.name, "media_type": file.media_type}
    return told | ({"url": file.url} if file.url else {"data": base64.b64encode(file.data).decode()})

"""The Agent Connect Protocol by hand: runs over REST, their updates as server-sent events.

A stream ends where the run asks, and is taken up again after the answer.
"""

from __future__ import annotations

import base64
from typing import Any

from .base import Asked, DoorClient, Failed, File, Json, Listed, Turn, fitted, question


class ConnectTurn(Turn):
    def __init__(self, client: ConnectClient, run: str) -> None:
        super().__init__()
        self.client = client
        self.run = run
        self._last = "0"  # the id of the last update
        self._schema: Json = {}

    async def follow(self) -> None:
        async with self.client.events(f"/runs/{self.run}/stream", **{"last-event-id": self._last}) as updates:
            async for event in updates:
                assert event.kind == "agent_event"
                self._last = event.id
                if self._take(event.data):
                    return

    def _take(self, told: Json) -> bool:
        """Whether the stream has come to its end."""
        assert told["run_id"] == self.run
        match told["type"]:
            case "custom":
                self._update(told["update"])
                return False
            case "values":
                if told["status"] != "success":
                    return False
                output = told["values"]
                self.so_far.output, self.so_far.text = output, output.get("text", "")
                self.over("succeeded")
            case "interrupt":
                self.asked(self._asked(told))
                self.read(self._wait())
            case "error":
                error = Failed(told["code"], told["description"], told["transient"])
                self.over("cancelled" if told["code"] == "cancelled" else "failed", error)
        return True

    async def _wait(self) -> None:
        """Until the answer is given, there is nothing to read."""
        await self._ended

    def _asked(self, told: Json) -> Asked:
        ((kind, payload),) = told["interrupt"].items()
        assert (kind, payload) == (told["interrupt_type"], told["interrupt_payload"])
        self._schema = told["answer_schema"]
        return question(told["prompt"], self._schema, told.get("options"))

    def _update(self, update: Json) -> None:
        match update["kind"]:
            case "delta":
                delta = update["delta"]
                self.piece(delta["text"] if set(delta) == {"text"} else delta)
            case "artifact":
                self._parts(update["artifact"]["parts"])
            case "message":
                self._parts(update["message"]["parts"])

    def _parts(self, parts: list[Json]) -> None:
        for part in parts:
            if part["type"] == "data":
                self.so_far.data.append(part["data"])
            elif part["type"] == "file":
                body = base64.b64decode(part["data"]) if "data" in part else part.get("text", "").encode()
                self.so_far.files.append(File(part["name"], part["media_type"], body, part.get("url", "")))

    async def answer(self, value: Any) -> None:
        await self.leave()
        await self.client.post(f"/runs/{self.run}", fitted(self._schema, value))
        self.read(self.follow())

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
        self, agent: str, text: str = "", *, data: Any = None, files: tuple[File, ...] = (), parts: tuple[Any, ...] = (),
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

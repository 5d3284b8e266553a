"""The peer-to-peer Agent Communication Protocol by hand, over its HTTP binding: tasks, and their events.

The wire carries files by their address, so a client that gives one has to offer it somewhere.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from .base import DoorClient, Failed, File, Json, Listed, Turn, fitted, question


class PeerTurn(Turn):
    def __init__(self, client: PeerClient, task: str) -> None:
        super().__init__()
        self.client = client
        self.task = task
        self._schema: Json = {}

    async def follow(self) -> None:
        async with self.client.events(f"/tasks/{self.task}:subscribe") as events:
            async for event in events:
                match event.data["type"]:
                    case "status":
                        assert event.kind == "acp.task.status"
                        await self._moved(event.data)
                    case "artifact":
                        assert event.kind == "acp.task.artifact"
                        self._artifact(event.data["artifact"])
                    case "message":
                        self._parts(event.data["parts"])

    async def _moved(self, told: Json) -> None:
        match told["state"]:
            case "input_required":
                asked = told["question"]
                self._schema = asked["answer_schema"]
                self.asked(question(asked["prompt"], self._schema, asked.get("options")))
            case "completed":
                task = await self.client.get(f"/tasks/{self.task}")
                assert task["status"] == "completed"
                said = task["artifact"]["parts"]
                self.so_far.text = "".join(part["content"] for part in said if part["type"] == "text")
                self.so_far.output = next((part["content"] for part in said if part["type"] == "data"), None)
                self.over("succeeded")
            case "failed":
                info = told["error_info"]
                assert told["error"] == info["message"]
                failed = Failed(info["code"], info["message"], info.get("transient", False), info.get("details"))
                self.over("failed", failed)
            case "canceled":
                self.over("cancelled")

    def _artifact(self, artifact: Json) -> None:
        if artifact["artifact_id"] != "output":
            self._parts(artifact["parts"])
            return
        for part in artifact["parts"]:
            if part["content"] or part["type"] == "data":
                self.piece(part["content"])

    def _parts(self, parts: list[Json]) -> None:
        for part in parts:
            if part["type"] == "data" and not {"activity", "question"} & set(part["content"]):
                self.so_far.data.append(part["content"])
            elif part["type"] == "file":
                self.so_far.files.append(File(part["filename"], part["media_type"], url=part["url"]))

    async def answer(self, value: Any) -> None:
        said = {"type": "text", "content": value}
        if not isinstance(value, str):
            said = {"type": "data", "content": {"answer": fitted(self._schema, value)}}
        await self.client.post(f"/tasks/{self.task}:continue", {"parts": [said]})

    async def cancel(self) -> None:
        await self.client.post(f"/tasks/{self.task}:cancel", {})


class PeerClient(DoorClient):
    door = "peer"

    def __init__(self, address: str) -> None:
        super().__init__(f"{address}/peer")

    async def list(self) -> list[Listed]:
        found = await self.get("/skills?limit=100")
        return [Listed(skill["id"], skill["description"]) for skill in found["skills"]]

    async def start(
        self, agent: str, text: str = "", *, data: Any = None, files: Sequence[File] = (), parts: Sequence[Any] = (),
        thread: str | None = None, metadata: Json | None = None, trace: dict[str, str] | None = None,
    ) -> Turn:  # fmt: skip
        given: list[Json] = [{"type": "text", "content": text}] if text else []
        given += [{"type": "file", "url": one.url, "media_type": one.media_type, "filename": one.name} for one in files]
        given += [{"type": "data", "content": value} for value in (*parts, *(() if data is None else (data,)))]
        body: Json = {"task_id": f"task_{uuid.uuid4().hex[:12]}", "skill_id": agent, "input": {"parts": given}}
        if thread is not None:
            body["context_id"] = thread
        if metadata is not None:
            body["metadata"] = metadata
        made = await self.post("/tasks", body, **(trace or {}))
        turn = PeerTurn(self, made["task_id"])
        self.turns.append(turn)
        turn.read(turn.follow())
        return turn

    async def new_thread(self) -> str:
        return f"context-{uuid.uuid4().hex}"  # a context is there as soon as somebody names it

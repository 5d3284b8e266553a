"""CAP by hand, over HTTP: messages are posted, and a task's conversation is read as events."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Sequence
from typing import Any

from .base import DoorClient, Failed, File, Json, Listed, Turn, fitted, question


class CapTurn(Turn):
    def __init__(self, client: CapClient, agent: str, task: str) -> None:
        super().__init__()
        self.client = client
        self.agent = agent
        self.task = task
        self._question = ""
        self._schema: Json = {}

    async def follow(self) -> None:
        failed: Failed | None = None
        async with self.client.events(f"/tasks/{self.task}/events") as updates:
            async for event in updates:
                told = event.data
                assert told["task_id"] == self.task
                if event.kind == "delta":
                    delta = told["delta"]
                    self.piece(delta["text"] if set(delta) == {"text"} else delta)
                elif event.kind == "message":
                    failed = self._said(told) or failed
                elif event.kind == "status" and told["final"]:
                    self.so_far.output = told.get("output")
                    self.over(told["status"], failed)

    def _said(self, told: Json) -> Failed | None:
        if told["sender_id"] != self.agent:
            return None
        about = told.get("metadata") or {}
        if told["type"] == "error_response":
            assert isinstance(told["error_code"], int)
            return Failed(about["code"], told["error_message"], about.get("transient", False), about.get("details"))
        assert told["type"] == "message"
        if "question" in about:
            self._question, self._schema = about["question"], about["answer_schema"]
            self.asked(question(told["content"], self._schema, about.get("options")))
            return None
        if about.get("final"):
            self.so_far.text = told["content"]
        for attached in told["attachments"]:
            if attached["type"] == "python_object":
                self.so_far.data.append(attached["object"])
            elif attached["type"] == "file":
                self.so_far.files.append(_read(attached))
        return None

    async def answer(self, value: Any) -> None:
        about: Json = {"question": self._question}
        said = value if isinstance(value, str) else ""
        if not said:
            about["answer"] = fitted(self._schema, value)
        await self.client.say("message", self.task, self.agent, {"content": said, "metadata": about})

    async def cancel(self) -> None:
        await self.client.post(f"/tasks/{self.task}/cancel", {})


class CapClient(DoorClient):
    door = "cap"

    def __init__(self, address: str) -> None:
        super().__init__(f"{address}/cap")

    async def list(self) -> list[Listed]:
        return [Listed(one["id"], one["system_prompt"]) for one in (await self.get("/agents"))["agents"]]

    async def start(
        self, agent: str, text: str = "", *, data: Any = None, files: Sequence[File] = (), parts: Sequence[Any] = (),
        thread: str | None = None, metadata: Json | None = None, trace: dict[str, str] | None = None,
    ) -> Turn:  # fmt: skip
        task = f"task-{uuid.uuid4().hex}"
        about = {**(metadata or {})}
        if data is not None:
            about["input"] = data
        if thread is not None:
            about["thread"] = thread
        attached: list[Json] = [{"type": "python_object", "object": value} for value in parts]
        for one in files:
            address = one.url or f"data:{one.media_type};base64,{base64.b64encode(one.data).decode()}"
            attached.append({"type": "file", "path": address, "name": one.name, "media_type": one.media_type})
        notice = {"context_summary": text, "attachments": attached, "metadata": about}
        await self.say("delegation_notice", task, agent, notice, **(trace or {}))
        turn = CapTurn(self, agent, task)
        self.turns.append(turn)
        turn.read(turn.follow())
        return turn

    async def say(self, kind: str, task: str, agent: str, said: Json, **headers: str) -> None:
        message = {"type": kind, "task_id": task, "sender_id": "user", "recipient_id": agent, **said}
        await self.post("/messages", message, **headers)

    async def new_thread(self) -> str:
        return f"thread-{uuid.uuid4().hex}"


def _read(attached: Json) -> File:
    address = attached["path"]
    if not address.startswith("data:"):
        return File(attached["name"], attached["media_type"], url=address)
    kind, _, body = address.removeprefix("data:").partition(";base64,")
    return File(attached["name"], attached.get("media_type", kind), base64.b64decode(body))

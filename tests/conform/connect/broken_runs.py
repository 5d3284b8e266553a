"""What the runs of the hand-written server do: four agents, their events, and the threads that they are on."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx2

if TYPE_CHECKING:
    from .broken import Server

Json = dict[str, Any]


TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
SAID = {"type": "object", "properties": {"said": {"type": "array", "items": {"type": "string"}}}}
APPROVAL = {
    "interrupt_type": "approval",
    "interrupt_payload": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
    "resume_payload": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
}


def specs(agent: str, defect: str | None) -> Json:
    """What the descriptor of an agent says of it."""
    asks = agent == "asks"
    able = {"threads": True, "interrupts": asks, "callbacks": True, "streaming": {"values": True, "custom": True}}
    told: Json = {"capabilities": able, "input": TEXT, "output": TEXT, "config": {"type": "object"}}
    told["thread_state"] = SAID
    if defect != "no-custom-schema":
        told["custom_streaming_update"] = {"type": "object", "properties": {"word": {"type": "string"}}}
    return {**told, "interrupts": [APPROVAL]} if asks else told


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()


class Thread:
    def __init__(self, identity: str, metadata: Json) -> None:
        self.id = identity
        self.metadata = metadata
        self.created = now()
        self.values: Json | None = None
        self.states: list[tuple[str, Json]] = []  # of all times, by checkpoint
        self.line: list[Run] = []  # who has it, and who waits for it

    @property
    def status(self) -> str:
        if not self.line:
            return "idle"
        return "interrupted" if self.line[0].status == "interrupted" else "busy"

    def keep(self, values: Json) -> None:
        self.values = values
        self.states.append((str(uuid.uuid4()), values))

    def told(self, *, stuck: bool = False) -> Json:
        told: Json = {
            "thread_id": self.id, "created_at": self.created, "updated_at": now(), "metadata": self.metadata,
            "status": "busy" if stuck and self.states else self.status,
        }  # fmt: skip
        return told if self.values is None else {**told, "values": self.values}


class Run:
    def __init__(self, server: Server, agent: str, body: Json, thread: Thread | None) -> None:
        self.id = str(uuid.uuid4())
        self.agent = agent
        self.body = body
        self.thread = thread
        self.kept: Thread | None = None  # a thread that was made for it
        self.status = "pending"
        self.output: Json = {}
        self.events: list[Json] = []
        self.created = self.updated = now()
        self.looked_at = asyncio.Event()
        self._server = server
        self._defect = server.defect
        self._news = asyncio.Condition()
        self._answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._calls: asyncio.Queue[Json] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        if self.thread is not None:
            self.thread.line.append(self)
        self._tasks = [asyncio.create_task(self._work())]
        if "webhook" in self.body:
            self._tasks.append(asyncio.create_task(self._call()))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def told(self) -> Json:
        working = self.status == "pending" and self._defect == "running"
        told = {
            "run_id": self.id, "agent_id": self.agent, "created_at": self.created, "updated_at": self.updated,
            "status": "running" if working else self.status, "creation": self.body,
        }  # fmt: skip
        if self._defect == "no-creation":
            del told["creation"]
        thread = self.thread or self.kept
        return told if thread is None else {**told, "thread_id": thread.id}

    async def until(self, holds: Callable[[], bool]) -> None:
        async with self._news:
            await self._news.wait_for(holds)

    async def until_more(self, than: int) -> None:
        await self.until(lambda: len(self.events) > than or self.status != "pending")

    async def _tell(self, event: Json) -> None:
        async with self._news:
            self.events.append({"run_id": self.id, "status": self.status, **event})
            self._news.notify_all()

    async def _become(self, status: str, output: Json, event: Json | None = None) -> None:
        async with self._news:
            self.status, self.output, self.updated = status, output, now()
            if event is not None:
                self.events.append({"run_id": self.id, "status": status, **event})
            self._calls.put_nowait(self.told())
            self._news.notify_all()

    def _leave(self) -> None:
        """Let the next one have the thread."""
        if self.thread is not None and self in self.thread.line:
            self.thread.line.remove(self)
            for waiting in self.thread.line[:1]:
                waiting.nudge()

    def nudge(self) -> None:
        self._tasks.append(asyncio.create_task(self._notify()))

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    # -- what the agents do -------------------------------------------------------------------------------

    async def _work(self) -> None:
        await asyncio.sleep(0 if self._defect == "hasty" else self.body.get("after_seconds", 0))
        if self.thread is not None:
            thread = self.thread
            await self.until(lambda: thread.line[:1] == [self])
        text = self.body["input"]["text"]
        match self._server.agents[self.agent]:
            case "asks":
                text = await self._ask(text)
            case "sleeps":
                await self._tell({"type": "values", "values": {"text": text}})
                await asyncio.Event().wait()
            case "fails":
                code: Any = "E1" if self._defect == "errcode-text" else 1
                error = {"type": "error", "run_id": self.id, "errcode": code, "description": "it always fails"}
                self._leave()
                await self._become("error", error, error)
                return
        await self._say(text)

    async def _say(self, text: str) -> None:
        words = text.split(" ")
        for count in range(1, len(words) + 1):
            value = words[count - 1] if self._defect == "deltas" else " ".join(words[:count])
            await self._tell({"type": "custom", "update": {"word": words[count - 1]}})
            await self._tell({"type": "values", "values": {"text": value}})
        if self.thread is not None and self._defect != "forgetful":
            self.thread.keep({"said": [*(self.thread.values or {}).get("said", []), text]})
        self._leave()
        await self._become("success", {"type": "result", "values": {"text": text}})

    async def _ask(self, text: str) -> str:
        question: Json = {"approval": {"what": text}}
        if self._defect == "type-not-first":
            question = {"asked_at": now(), **question}
        output = {"type": "interrupt", "interrupt": question}
        if self._defect == "nameless":
            output = {"type": "interrupt", "interrupt": {"what": text}}
        await self._become("interrupted", output, None if self._defect == "silent-interrupt" else output)
        return f"{text} {(await self._answer)['ok']}"

    def resume(self, answer: Json) -> Json:
        if not self._answer.done():
            self.status, self.updated = "pending", now()
            self._answer.set_result(answer)
        return self.told()

    # -- how they end -------------------------------------------------------------------------------------

    def cancel_soon(self) -> None:
        self._tasks.append(asyncio.create_task(self.end_by_cancel()))

    def cancel_when_looked_at(self) -> None:
        async def cancel() -> None:
            await self.looked_at.wait()
            await self.end_by_cancel()

        self.looked_at.clear()
        self._tasks.append(asyncio.create_task(cancel()))

    async def end_by_cancel(self) -> None:
        if self.status not in ("pending", "interrupted"):
            return
        self._tasks[0].cancel()
        self._leave()
        error = {"type": "error", "run_id": self.id, "errcode": 2, "description": "it was cancelled"}
        await self._become("error", error, error)

    async def _call(self) -> None:
        """Tell the webhook, one change after the other."""
        async with httpx2.AsyncClient() as client:
            while True:
                told = await self._calls.get()
                if self._defect == "bare-callback":
                    told = {"status": told["status"]}
                method = "PUT" if self._defect == "puts-callback" else "POST"
                await client.request(method, self.body["webhook"], json=told)

"""A request that comes several times at once, as of a client that heard no answer: one run, and one answer for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

import interlingua as il
from interlingua.model.filters import RunFilter
from interlingua.server.app import ServeSettings, serving
from tests.kit.engines import QUICK

TIMES = 12
Ask = Callable[[httpx2.AsyncClient], Awaitable[Any]]
"""Sends the request, and gives what all answers have in common."""


@il.agent
async def echo(text: str) -> AsyncIterator[str]:
    """Repeats what it hears."""
    yield text


def _taken(answer: httpx2.Response) -> Any:
    assert answer.is_success, answer.text
    return answer.json()


async def connect_run(http: httpx2.AsyncClient) -> Any:
    body = {"agent_id": "echo", "input": {"text": "hi"}, "on_completion": "keep"}
    told = _taken(await http.post("/connect/runs/wait", json=body, headers={"idempotency-key": "k"}))
    return told["run"]["run_id"], told["run"]["thread_id"], told["output"]["values"]


async def cap_notice(http: httpx2.AsyncClient) -> Any:
    notice = {"type": "delegation_notice", "task_id": "T1", "sender_id": "user", "recipient_id": "echo",
              "context_summary": "hi", "attachments": []}  # fmt: skip
    return _taken(await http.post("/cap/messages", json=notice))["run_id"]


def peer_message(**more: Any) -> Ask:
    async def ask(http: httpx2.AsyncClient) -> Any:
        body = {"role": "user", "text": "hi", "message_id": "msg_1", "sync": True, **more}
        told = _taken(await http.post("/peer/message:send", json=body))
        return told["server_seq"], told["reply"], (told["task"] or {}).get("id")

    return ask


async def peer_task(http: httpx2.AsyncClient) -> Any:
    body = {"role": "user", "text": "hi", "task_id": "task_1"}
    _taken(await http.post("/peer/tasks", json=body))
    return _taken(await http.get("/peer/tasks/task_1:wait"))["task"]


DOORS: dict[str, Ask] = {
    "connect": connect_run, "cap": cap_notice, "peer, message": peer_message(),
    "peer, message with a task": peer_message(create_task=True), "peer, task": peer_task,
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
async def test_the_same_request_at_once_is_one_run(store: Path, door: str) -> None:
    ask = DOORS[door]
    async with (
        serving(store, [echo], ServeSettings(port=0, engine=QUICK)) as server,
        httpx2.AsyncClient(base_url=server.address, timeout=60.0) as http,
    ):
        first, *others = await asyncio.gather(*(ask(http) for _ in range(TIMES)))
        assert others == [first] * (TIMES - 1)
        assert await ask(http) == first
        assert len(await server.engine.runs.search(RunFilter())) == 1

"""What the peer door has acknowledged is there after its process was killed without a word, and is not done again."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import httpx2

from interlingua.cli.demo.processes import Process, project
from interlingua.server.logs import LogFormat

CLIENTS, ENOUGH = 4, 40


async def talk(
    http: httpx2.AsyncClient, name: str, replies: dict[str, Any], tasks: dict[str, Any], enough: asyncio.Event
) -> None:
    """Messages and tasks, in turn, until the server is gone. Notes what was acknowledged."""
    with contextlib.suppress(httpx2.HTTPError):
        for number in range(10_000):
            text = f"{name}.{number}"
            asked = {"role": "user", "text": text, "skill_id": "echo"}
            answer = (await http.post("/message:send", json={**asked, "sync": True})).json()
            replies[answer["message_id"]] = text, answer["reply"]
            stream = {"accept": "text/event-stream"}
            body = {**asked, "task_id": f"task_{text}"}
            told = (await http.post("/tasks", json=body, headers=stream)).text
            last = json.loads(told.rpartition("data: ")[2])
            tasks[last["task"]["id"]] = last["task"]
            if len(tasks) >= ENOUGH:
                enough.set()


async def test_what_was_acknowledged_survives_a_kill_and_is_told_once(tmp_path: Path) -> None:
    server = Process([*map(str, project(tmp_path, ["echo"]))], tmp_path / "s.db", log=LogFormat.OFF)
    replies: dict[str, Any] = {}
    tasks: dict[str, Any] = {}
    await server.start()
    try:
        async with httpx2.AsyncClient(base_url=f"{server.address}/peer", timeout=60) as http:
            enough = asyncio.Event()
            talking = [asyncio.ensure_future(talk(http, f"c{n}", replies, tasks, enough)) for n in range(CLIENTS)]
            async with asyncio.timeout(60):
                await enough.wait()
            await server.kill()  # in the middle of some
            await asyncio.gather(*talking)
        await server.start()
        async with httpx2.AsyncClient(base_url=f"{server.address}/peer", timeout=60) as http:
            for id_, (text, reply) in replies.items():
                asked = {"role": "user", "text": text, "skill_id": "echo", "message_id": id_, "sync": True}
                again = (await http.post("/message:send", json=asked)).json()
                assert (again["deduplicated"], again["reply"]) == (True, reply)
            for id_, task in tasks.items():
                assert (await http.get(f"/tasks/{id_}")).json()["artifacts"] == task["artifacts"]
            listed = (await http.get("/tasks", params={"limit": 200})).json()["tasks"]
            assert {task["id"] for task in listed} >= tasks.keys()
            for task in listed:  # those that nobody heard of, too
                ended = (await http.get(f"/tasks/{task['id']}:wait")).json()
                assert ended["task"]["status"] == "completed"
    finally:
        await server.stop()

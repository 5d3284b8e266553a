"""The wire as the published OpenAPI document has it: all of its 30 operations, and the members that it requires."""

from __future__ import annotations

import datetime
import uuid
from pathlib import Path
from typing import Any

from interlingua.protocols.connect.config import DoorSettings

from .test_door import Gate, Up, chat, echo, mailer, up

RUN_STATUSES = {"pending", "error", "success", "timeout", "interrupted"}


def is_agent(told: Any) -> None:
    uuid.UUID(told["agent_id"])
    assert isinstance(told["metadata"]["description"], str)
    assert {"name", "version"} <= set(told["metadata"]["ref"])


def is_run(told: Any, thread: str | None = None) -> None:
    uuid.UUID(told["run_id"])
    uuid.UUID(told["agent_id"])
    for moment in ("created_at", "updated_at"):
        assert datetime.datetime.fromisoformat(told[moment]).tzinfo is not None
    assert told["status"] in RUN_STATUSES
    assert isinstance(told["creation"], dict)
    if thread is not None:
        assert told["thread_id"] == thread


def is_waited(told: Any, thread: str | None = None) -> None:
    is_run(told["run"], thread)
    members = {"result": {"values"}, "interrupt": {"interrupt"}, "error": {"run_id", "errcode", "description"}}
    assert members[told["output"]["type"]] <= set(told["output"])


def is_thread(told: Any) -> None:
    uuid.UUID(told["thread_id"])
    assert {"created_at", "updated_at", "metadata"} <= set(told)
    assert told["status"] in {"idle", "busy", "interrupted", "error"}


def is_streamed(told: list[tuple[str, Any]], run: str | None = None) -> None:
    assert told
    members = {
        "values": {"run_id", "status", "values"}, "custom": {"status", "update"},
        "interrupt": {"run_id", "status", "interrupt"}, "error": {"run_id", "status", "errcode", "description"},
    }  # fmt: skip
    for id_, data in told:
        assert id_
        assert members[data["type"]] <= set(data)
        assert data["status"] in RUN_STATUSES
        assert run in (None, data["run_id"])


async def _agents(s: Up) -> None:
    found = await s.post("/agents/search", {})
    assert len(found) == 4
    for agent in found:
        is_agent(agent)
    is_agent(await s.get(f"/agents/{found[0]['agent_id']}"))
    told = await s.get(f"/agents/{found[0]['agent_id']}/descriptor")
    assert {"capabilities", "input", "output", "config"} <= set(told["specs"])
    assert {"ref", "description"} <= set(told["metadata"])


async def _threads(s: Up) -> None:
    made = await s.post("/threads", {"metadata": {"a": 1}})
    is_thread(made)
    thread = made["thread_id"]
    (found,) = await s.post("/threads/search", {"metadata": {"a": 1}})
    is_thread(found)
    is_thread(await s.get(f"/threads/{thread}"))
    patched = await s.ask("PATCH", f"/threads/{thread}", {"metadata": {"b": 2}, "values": {"messages": ["x"]}})
    is_thread(patched)
    assert (patched["metadata"], patched["values"]) == ({"a": 1, "b": 2}, {"messages": ["x"]})
    (state,) = await s.get(f"/threads/{thread}/history")
    uuid.UUID(state["checkpoint"]["checkpoint_id"])
    assert state["values"] == {"messages": ["x"]}
    copied = await s.ask("POST", f"/threads/{thread}/copy")
    is_thread(copied)
    assert copied["thread_id"] != thread
    await s.delete(f"/threads/{thread}")


async def _runs(s: Up, gate: Gate, thread: str | None) -> None:
    """The nine operations that runs have, alone and on a thread."""
    base = "/runs" if thread is None else f"/threads/{thread}/runs"
    said = {"agent_id": "chat", "input": {"message": "a"}}
    is_waited(await s.post(f"{base}/wait", said), thread)
    is_streamed(await s.streamed("POST", f"{base}/stream", said))

    made = await s.post(base, {"agent_id": "mailer"})
    is_run(made, thread)
    run = made["run_id"]
    waited = await s.get(f"{base}/{run}/wait")
    is_waited(waited, thread)
    assert waited["output"]["type"] == "interrupt"
    is_streamed(await s.streamed("GET", f"{base}/{run}/stream"), run)
    is_run(await s.post(f"{base}/{run}", {"approved": True}), thread)
    is_waited(await s.get(f"{base}/{run}/wait"), thread)
    is_run(await s.get(f"{base}/{run}"), thread)
    is_streamed(await s.streamed("GET", f"{base}/{run}/stream"), run)

    stuck = (await s.post(base, {"agent_id": "held"}))["run_id"]
    await gate.entered.get()
    await s.ask("POST", f"{base}/{stuck}/cancel?wait=true", None, 204)
    ended = await s.get(f"{base}/{stuck}/wait")
    is_waited(ended, thread)
    assert ended["output"]["type"] == "error"
    await s.delete(f"{base}/{run}")
    await s.get(f"{base}/{run}", 404)

    listed = await (s.post("/runs/search", {}) if thread is None else s.get(base))
    assert len(listed) == 3
    for entry in listed:
        is_run(entry, thread)


async def test_all_thirty_operations_answer_with_the_members_that_the_published_document_requires(store: Path) -> None:
    gate = Gate()
    async with up(store, echo, chat, mailer, gate.agent) as s:
        await _agents(s)
        await _threads(s)
        await _runs(s, gate, None)
        await _runs(s, gate, await s.thread())


async def test_the_comments_of_a_quiet_stream_never_stand_alone_as_an_event(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s:
        s.door.settings = DoorSettings(keep_alive=0.01)
        async with s.http.stream("POST", "/runs/stream", json={}) as answer:
            got = b""
            async for chunk in answer.aiter_raw():
                got += chunk
                if got.count(b": keep-alive\n") >= 3:
                    gate.go.set()
        *events, rest = got.split(b"\n\n")
        assert rest == b""
        assert all(b"data: " in event for event in events)
        assert events[0].count(b": keep-alive\n") >= 3, "they came before the first event"

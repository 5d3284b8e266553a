"""What goes along with a notice: a thread that tasks share, and attachments as members of an input."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.filters import RunFilter

from ..porter import came, porter
from .door_common import Peer, door, notice, words


@dataclass
class Said:
    said: list[str] = field(default_factory=list)


@il.agent
async def remembers(text: str, ctx: il.Context[Said, None]) -> str:
    """Remembers what was said."""
    ctx.state.said.append(text)
    return " ".join(ctx.state.said)


async def output(server: Any, peer: Peer, task: str, agent: str, text: str, **more: Any) -> Any:
    taken = await peer.post(notice(task, agent, text, **more))
    ended = await server.engine.runs.wait(taken["run_id"], timeout=20)
    assert ended.status is il.Status.SUCCEEDED, ended.error
    return ended.output


async def test_tasks_that_name_the_same_thread_share_its_state(store: Path) -> None:
    async with door(store, remembers) as server, Peer(server) as peer:
        for task, thread, told in (("T1", "a", "one"), ("T2", "a", "one two"), ("T3", "b", "three")):
            said = told.split()[-1]
            made = await output(server, peer, task, "remembers", said, metadata={"thread": thread, "ours": 1})
            assert made == {"text": told}
        assert await output(server, peer, "T4", "remembers", "four") == {"text": "four"}
        assert (await server.engine.threads.get("a")).values == {"said": ["one", "two"]}
        runs = await server.engine.runs.search(RunFilter(thread="a"))
        assert [run.metadata for run in runs] == [{"ours": 1}, {"ours": 1}]


async def test_tasks_that_meet_in_a_thread_come_one_after_the_other(store: Path) -> None:
    may_end = asyncio.Event()

    @il.agent
    async def slow(text: str, ctx: il.Context[Said, None]) -> str:
        await may_end.wait()
        ctx.state.said.append(text)
        return text

    async with door(store, slow) as server, Peer(server) as peer:
        notices = [notice(f"T{n}", "slow", str(n), metadata={"thread": "a"}) for n in range(3)]
        runs = [(await peer.post(one))["run_id"] for one in notices]
        may_end.set()
        for run in runs:
            assert (await server.engine.runs.wait(run, timeout=20)).status is il.Status.SUCCEEDED
        assert (await server.engine.threads.get("a")).values["said"] == ["0", "1", "2"]


@pytest.mark.parametrize("thread", ["", 7, "x" * 201, "a\nb"], ids=["empty", "a number", "too long", "two lines"])
async def test_a_thread_with_a_name_that_makes_no_sense_is_refused(store: Path, thread: Any) -> None:
    async with door(store, remembers) as server, Peer(server) as peer:
        answer = await peer.http.post("/messages", json=notice("T1", "remembers", "x", metadata={"thread": thread}))
        assert answer.status_code == 400
        assert "/metadata/thread" in answer.json()["error_message"]
        assert await server.engine.runs.search(RunFilter()) == []


async def test_a_thread_with_the_state_of_another_agent_is_not_taken(store: Path) -> None:
    @dataclass
    class Count:
        count: int = 0

    @il.agent
    async def counts(text: str, ctx: il.Context[Count, None]) -> str:
        ctx.state.count += 1
        return "one"

    async with door(store, remembers, counts) as server, Peer(server) as peer:
        await output(server, peer, "T1", "remembers", "one", metadata={"thread": "a"})
        answer = await peer.http.post("/messages", json=notice("T2", "counts", "x", metadata={"thread": "a"}))
        assert answer.status_code == 409, answer.text
        assert (await server.engine.threads.get("a")).values == {"said": ["one"]}


async def test_attachments_reach_the_agent_and_objects_are_members_of_its_input(store: Path) -> None:
    body = base64.b64encode(b"hello").decode()
    attached = [
        {"type": "file", "path": f"data:text/csv;base64,{body}", "name": "in.csv", "media_type": "text/csv"},
        {"type": "python_object", "object": {"note": "from a part"}},
        {"type": "python_object", "object": [1]},
    ]
    async with door(store, porter) as server, Peer(server) as peer:
        told = came(await output(server, peer, "T1", "porter", "go", attachments=attached))
        assert (told["text"], told["note"]) == ("go", "from a part")
        assert told["parts"] == [
            "go",
            ["in.csv", "text/csv", "hello"],
            {"data": {"note": "from a part"}},
            {"data": [1]},
        ]


async def test_an_error_of_a_task_says_whether_it_may_pass(store: Path) -> None:
    @il.agent
    async def breaks(text: str) -> str:
        raise il.AgentError("later", transient=text == "transient")

    async with door(store, breaks, words) as server, Peer(server) as peer:
        for task, text in (("T1", "transient"), ("T2", "final")):
            taken = await peer.post(notice(task, "breaks", text))
            await server.engine.runs.wait(taken["run_id"], timeout=20)
            error = (await peer.http.get(f"/tasks/{task}")).json()["error"]
            assert error.get("transient", False) is (text == "transient")

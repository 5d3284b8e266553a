"""What goes along with the input of a run and comes beside its output, and what an interrupt says of its answer."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

import interlingua as il

from ..porter import FILE, VALUE, came, porter
from .test_door import chat, mailer, up

BLOCKS = [
    {"type": "text", "text": "go"},
    {"type": "file", "name": "in.txt", "media_type": "text/plain", "data": base64.b64encode(b"hello").decode()},
    {"type": "data", "data": [1, None]},
    {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    {"type": "file", "file": {"file_id": "of another maker"}},
]
RETURNED = [
    {"role": "assistant", "content": "on my way"},
    {
        "role": "assistant",
        "content": [
            {
                "type": "file",
                "data": base64.b64encode(FILE.data or b"").decode(),
                "media_type": FILE.media_type,
                "name": FILE.name,
            },
            {"type": "data", "data": VALUE},
        ],
        "metadata": {"artifact": "answer"},
    },
]


def returned(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: value for name, value in message.items() if name != "id"} for message in told["messages"]]


async def test_an_input_that_is_a_list_of_blocks_is_the_content_of_a_message(store: Path) -> None:
    async with up(store, porter) as door:
        answer = await door.http.post("/runs/wait", json={"agent_id": "porter", "input": BLOCKS})
        told = came(answer.json()["output"]["values"])
        assert told["text"].startswith("go")
        assert told["parts"] == [
            "go", ["in.txt", "text/plain", "hello"], {"data": [1, None]}, {"data": BLOCKS[3]}, {"data": BLOCKS[4]},
        ]  # fmt: skip


async def test_an_object_among_the_blocks_is_the_input_of_an_agent_that_takes_objects(store: Path) -> None:
    @il.agent
    async def adder(numbers: list[int]) -> int:
        return sum(numbers)

    async with up(store, adder) as door:
        body = {"agent_id": "adder", "input": [{"type": "data", "data": {"numbers": [1, 2]}}]}
        assert (await door.http.post("/runs/wait", json=body)).json()["output"]["values"] == {"value": 3}


@pytest.mark.parametrize("given", [[], [1], [{"no": "type"}], [BLOCKS[0], "x"]], ids=str)
async def test_a_list_of_anything_else_is_no_input(store: Path, given: Any) -> None:
    async with up(store, porter) as door:
        answer = await door.http.post("/runs/wait", json={"agent_id": "porter", "input": given})
        assert answer.status_code == 422
        assert "the input of an agent is an object" in answer.json()


@pytest.mark.parametrize("kept", ["in memory", "in the store"])
async def test_a_result_has_the_messages_and_artifacts_of_its_run(store: Path, kept: str) -> None:
    async with up(store, porter) as door:
        made = (await door.http.post("/threads", json={})).json()["thread_id"]
        runs = f"/threads/{made}/runs"
        run = (await door.http.post(runs, json={"agent_id": "porter", "input": "go"})).json()["run_id"]
        assert returned((await door.http.get(f"{runs}/{run}/wait")).json()["output"]) == RETURNED
    if kept == "in the store":
        async with up(store, porter) as door:
            assert returned((await door.http.get(f"{runs}/{run}/wait")).json()["output"]) == RETURNED


@pytest.mark.parametrize("mode", ["values", "custom"])
async def test_the_last_update_of_a_stream_has_them_too(store: Path, mode: str) -> None:
    async with up(store, porter) as door:
        body = {"agent_id": "porter", "input": "go", "stream_mode": mode}
        updates = await door.streamed("POST", "/runs/stream", body)
        assert returned(updates[-1][1]) == RETURNED
        assert all("messages" not in update for _, update in updates[:-1])


async def test_a_run_that_gave_nothing_but_its_output_has_no_messages(store: Path) -> None:
    async with up(store, chat) as door:
        answer = await door.http.post("/runs/wait", json={"agent_id": "chat", "input": {"message": "x"}})
        assert "messages" not in answer.json()["output"]


async def test_an_interrupt_says_what_answer_is_wanted(store: Path) -> None:
    @il.agent(asks=[il.Choose])
    async def chooser(text: str, ctx: il.Context[None, None]) -> str:
        options = [il.Option("a", "This", "allow_once"), il.Option("b", "That")]
        return (await ctx.ask(il.Choose("Which?", options))).choice

    async with up(store, chooser, mailer) as door:
        output = (await door.http.post("/runs/wait", json={"agent_id": "chooser", "input": "x"})).json()["output"]
        assert output["prompt"] == "Which?"
        assert output["answer_schema"]["properties"] == {"choice": {"enum": ["a", "b"]}}
        assert [(option["id"], option["label"]) for option in output["options"]] == [("a", "This"), ("b", "That")]
        output = (await door.http.post("/runs/wait", json={"agent_id": "mailer"})).json()["output"]
        assert output["prompt"] == "Shall this mail be sent?"
        assert output["answer_schema"]["required"] == ["approved"]
        assert "options" not in output

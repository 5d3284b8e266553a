"""What the document says of thread state that no descriptor describes: agents have it, callers do not see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import interlingua as il

from .test_door import chat, echo, up


@il.agent
async def secretive(ctx: il.Context[Any, None], text: str) -> str:
    ctx.state["seen"] = [*ctx.state.get("seen", []), text]
    return " ".join(ctx.state["seen"])


async def test_state_whose_format_no_descriptor_defines_is_kept_and_cannot_be_retrieved(store: Path) -> None:
    async with up(store, secretive) as s:
        assert "thread_state" not in (await s.get("/agents/secretive/descriptor"))["specs"]
        thread = await s.thread()
        base = f"/threads/{thread}"
        for text in ("a", "b"):
            told = await s.post(f"{base}/runs/wait", {"agent_id": "secretive", "input": {"text": text}})
        assert told["output"]["result"] == {"text": "a b"}, "the agent has it"
        assert "values" not in await s.get(base)
        assert "values" not in (await s.post("/threads/search", {}))[0]
        assert await s.get(f"{base}/history") == []
        copy = await s.ask("POST", f"{base}/copy")
        assert "values" not in copy
        patched = await s.ask("PATCH", base, {"values": {"more": 1}})
        assert "seen" not in str(patched), "not by a detour either"


async def test_state_that_is_described_is_seen_also_after_runs_of_agents_without_any(store: Path) -> None:
    async with up(store, chat, echo) as s:
        thread = await s.chatted("Hello, my name is John")
        before = (await s.get(f"/threads/{thread}"))["values"]
        await s.post(f"/threads/{thread}/runs/wait", {"agent_id": "echo", "input": {"text": "a"}})
        assert (await s.get(f"/threads/{thread}"))["values"] == before
        assert await s.get(f"/threads/{thread}/history")

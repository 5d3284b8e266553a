"""What the tests of the door and the mount need: agents and teams to serve, and short ways to speak to them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2

import interlingua as il
from interlingua.engine.teams.members import TeamAgent
from interlingua.protocols.cap.config import DoorSettings
from interlingua.security.keys import make_key
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.server.auth.stored_keys import StoredKeys
from interlingua.store.open import open_store
from interlingua.transports.http.sse import Reader, Received
from tests.kit.engines import QUICK
from tests.kit.teams import member, team

Json = dict[str, Any]


# -- agents ---------------------------------------------------------------------------------------------------


@il.agent(version="2.0.0")
async def words(text: str) -> AsyncIterator[str]:
    """Says it word by word."""
    for place, word in enumerate(text.split()):
        yield f" {word}" if place else word


@il.agent(asks=[il.AskText, il.Confirm])
async def careful(ctx: il.Context[Any, Any], text: str) -> AsyncIterator[str]:
    """Asks before it speaks."""
    verdict = await ctx.ask(il.Confirm(f"Say {text}?"))
    more = await ctx.ask(il.AskText("What else?"))
    yield f"{text} {verdict.approved} {more.text}"


@il.agent(asks=[il.AskText])
async def curious(ctx: il.Context[Any, Any]) -> str:
    answers = await asyncio.gather(
        ctx.ask(il.AskText("One?"), key="one"),
        ctx.ask(il.AskText("Two?"), key="two"),
    )
    return " ".join(answer.text for answer in answers)


@il.agent
async def listener(ctx: il.Context[Any, Any], text: str) -> str:
    """Repeats what it is told."""
    message = await ctx.receive()
    return f"{text}: {message.text}"


class Refusal(il.AgentError):
    """It does not want to."""

    code = "unwilling"


@il.agent(errors=[Refusal])
async def unwilling(text: str) -> str:
    raise Refusal(f"not {text}", details={"why": "no"})


@il.agent
async def patient(text: str) -> str:
    await asyncio.Event().wait()
    return text


@il.agent
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


PLAIN = (words, careful, curious, listener, unwilling, patient, add)


@il.agent(name="pm", asks=[il.AskText])
async def pm(ctx: il.Context[Any, Any], text: str) -> str:
    """Asks the user, and hands over to the analyst."""
    answer = await ctx.ask(il.AskText("Which region?"))
    found = await ctx.delegate("analyst-1", f"{text} in {answer.text}", reason="it knows data")
    return f"Report: {found['text']}"


@il.agent(name="analyst")
async def analyst(ctx: il.Context[Any, Any], text: str) -> str:
    await ctx.send("pm-1", "Working on it.")
    return text.upper()


def sales(**changes: Any) -> il.Agent[..., Any]:
    """pm-1 → analyst-1."""
    handlers = {"pm-1": pm, "analyst-1": analyst, **changes}
    return TeamAgent(team(member("pm-1", "analyst-1"), member("analyst-1"), entry="pm-1", name="sales"), handlers)


@il.agent
async def drafter(ctx: il.Context[Any, Any], text: str) -> str:
    """Works again with what its overseer said."""
    return " ".join([text, *(one.text for one in ctx.inquiries)])


def overseen() -> il.Agent[..., Any]:
    """One agent, whose every result the user has to approve."""
    return TeamAgent(team(member("writer", overseer="user"), entry="writer", name="press"), {"writer": drafter})


# -- serving --------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def door(store: Path, *agents: il.Agent[..., Any], **settings: Any) -> AsyncIterator[Server]:
    async with serving(
        store, agents, ServeSettings(port=0, engine=QUICK, doors={"cap": DoorSettings(**settings)})
    ) as server:
        yield server


async def key(store: Path, name: str, *scopes: str) -> str:
    """A key of the store, and what to send."""
    opened = open_store(store)
    await opened.open()
    try:
        secret, record = make_key(name, scopes, int(time.time() * 1e6))
        await StoredKeys(opened.keys).put(record)
    finally:
        await opened.close()
    return secret


class Peer:
    """Somebody who speaks to the door."""

    def __init__(self, server: Server, key: str | None = None) -> None:
        headers = {"x-api-key": key} if key else {}
        self.http = httpx2.AsyncClient(base_url=f"{server.address}/cap", headers=headers, timeout=30)

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.http.aclose()

    async def post(self, message: Json, status: int = 202) -> Json:
        response = await self.http.post("/messages", json=message)
        assert response.status_code == status, response.text
        told: Json = response.json()
        return told

    async def get(self, path: str, status: int = 200) -> Json:
        response = await self.http.get(path)
        assert response.status_code == status, response.text
        told: Json = response.json()
        return told

    async def events(self, task: str, last: str | None = None) -> AsyncIterator[Received]:
        headers = {"last-event-id": last} if last is not None else {}
        async with asyncio.timeout(20), self.http.stream("GET", f"/tasks/{task}/events", headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            reader = Reader()
            async for chunk in response.aiter_bytes():
                for received in reader.feed(chunk):
                    yield received

    async def all(self, task: str, last: str | None = None) -> list[tuple[str, str, Json]]:
        """A stream to its end: id, kind and data of each event."""
        return [(one.id or "", one.event or "", json.loads(one.data)) async for one in self.events(task, last)]

    async def until(self, task: str, kind: str, **wanted: Any) -> Json:
        """The first event of a kind that has these members."""
        async with contextlib.aclosing(self.events(task)) as events:  # type: ignore[type-var]
            async for one in events:
                data: Json = json.loads(one.data)
                if one.event == kind and all(data.get(name) == value for name, value in wanted.items()):
                    return data
        raise AssertionError(f"the task ended without {kind} {wanted}")

    async def asked(self, task: str, by: str, but: Json | None = None) -> Json:
        """The question that somebody in a task asks, once it is open; not the one before."""
        async with contextlib.aclosing(self.events(task)) as events:  # type: ignore[type-var]
            async for _ in events:
                for question in (await self.get(f"/tasks/{task}"))["questions"]:
                    if question["sender_id"] == by and (but is None or question["question"] != but["question"]):
                        return dict(question)
        raise AssertionError(f"the task ended, and {by} asked nothing")


def notice(task: str, to: str, summary: str, sender: str = "user", **more: Any) -> Json:
    return {
        "type": "delegation_notice",
        "task_id": task,
        "sender_id": sender,
        "recipient_id": to,
        "context_summary": summary,
        **more,
    }


def message(task: str, to: str, content: str, sender: str = "user", **more: Any) -> Json:
    return {
        "type": "message",
        "task_id": task,
        "sender_id": sender,
        "recipient_id": to,
        "content": content,
        **more,
    }


def said(events: list[tuple[str, str, Json]]) -> list[tuple[str, str, str, str, str]]:
    """Of a stream: task, sender, recipient, type and words of each message."""
    texts = ("content", "context_summary", "error_message", "inquiry")
    return [
        (d["task_id"], d["sender_id"], d["recipient_id"], d["type"], next(d[name] for name in texts if name in d))
        for _, kind, d in events
        if kind == "message"
    ]

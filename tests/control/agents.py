"""Agents, and a server with its control API, for these tests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import httpx2
import msgspec

import interlingua as il
from interlingua.security.keys import make_key
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.server.auth.stored_keys import StoredKeys
from interlingua.store.open import open_store
from tests.kit.engines import QUICK

Password = Annotated[str, msgspec.Meta(extra_json_schema={"writeOnly": True})]


@il.agent
async def echo(text: str) -> AsyncIterator[str]:
    for word in text.split():
        yield word + " "


@il.agent
async def failing(text: str = "") -> str:
    raise ValueError(f"no {text} today")


@il.agent(asks=[il.Confirm])
async def asker(ctx: il.Context[None, None], text: str = "") -> str:
    verdict = await ctx.ask(il.Confirm(f"Really {text}?"))
    return "yes" if verdict.approved else "no"


@il.agent
async def waiter(ctx: il.Context[None, None]) -> str:
    message = await ctx.receive()
    return str(message.parts[0])


@il.agent
async def login(user: str, password: Password) -> str:
    return f"{user} is in"


@il.agent
async def worker(ctx: il.Context[None, None]) -> str:
    done = await ctx.step("add", add, 1, 2)
    child = await ctx.call("echo", text="from below")
    return f"{done} {child}"


def add(a: int, b: int) -> int:
    return a + b


class Count(msgspec.Struct):
    runs: int = 0


@il.agent
async def counter(ctx: il.Context[Count, None]) -> str:
    ctx.state.runs += 1
    return str(ctx.state.runs)


@il.agent
async def forever() -> str:
    await asyncio.Event().wait()
    return "never"


AGENTS = [echo, failing, asker, waiter, login, worker, counter, forever]


@contextlib.asynccontextmanager
async def serve(store: Path, agents: Sequence[Any] = AGENTS, **settings: Any) -> AsyncIterator[Server]:
    settings = {"port": 0, "engine": QUICK, **settings}
    async with serving(store, agents, ServeSettings(**settings)) as server:
        yield server


@contextlib.asynccontextmanager
async def client(server: Server, key: str = "") -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"x-api-key": key} if key else {}
    async with httpx2.AsyncClient(base_url=f"{server.address}/api/v1", headers=headers, timeout=30) as http:
        yield http


async def add_key(store: Path, name: str, *scopes: str) -> str:
    """Makes a key before the server starts. Returns it."""
    opened = open_store(store)
    await opened.open()
    try:
        text, record = make_key(name, scopes or ("*",), int(time.time() * 1e6))
        await StoredKeys(opened.keys).put(record)
        return text
    finally:
        await opened.close()

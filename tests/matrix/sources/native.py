"""Our own agents with the behaviours of the matrix: what the mounted ones are compared with.

They are served beside the mounts, and reached through every door like them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, TypedDict

import httpx2

import interlingua as il


@dataclass
class Chat:
    remembered: str = "nothing"


@dataclass
class Person:
    name: str
    age: int


class WhoAreYou(il.Question[Person]):
    """Who are you?"""


class Broken(il.AgentError):
    """It broke, as it was asked to."""

    def __init__(self, code: str, transient: bool) -> None:
        super().__init__(f"it broke: {code}", transient=transient)
        self.code = code  # type: ignore[misc]  # of the instance: whoever asks says which


@il.agent(name="talker-native", asks=[il.Choose, WhoAreYou, il.AskText])
async def talker(text: str, ctx: il.Context[Chat, None]) -> AsyncIterator[str]:
    """Does what the first word says."""
    word, _, rest = text.strip().partition(" ")
    async with httpx2.AsyncClient(timeout=60) as http:
        if word == "say":
            for one in rest.split():
                yield one + " "
        elif word == "stream":
            yield "one "
            (await http.get(f"{rest}/pass/stream")).raise_for_status()
            yield "two "
        elif word == "files":
            yield await parts(ctx, http)
        elif word == "remember":
            ctx.state.remembered = rest
            yield "ok"
        elif word == "recall":
            yield ctx.state.remembered
        elif word == "choose":
            options = [il.Option("allow", "Allow", "allow_once"), il.Option("reject", "Reject", "reject_once")]
            yield f"chose {(await ctx.ask(il.Choose('May I go on?', options))).choice}"
        elif word == "form":
            person = await ctx.ask(WhoAreYou())
            yield f"name is {person.name}, age is {person.age}"
        elif word == "ask":
            yield f"you said: {(await ctx.ask(il.AskText('What do you want?'))).text}"
        elif word == "wait":
            yield "waiting "
            await http.post(f"{rest}/note/begun", json={})
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await http.post(f"{rest}/note/cancelled", json={})
                raise
        elif word == "fail":
            code, _, transient = rest.partition(" ")
            raise Broken(code, transient == "yes")
        elif word == "meta":
            trace = ctx._run.request.trace or {}  # agents are not shown it: their spans are
            await http.post(f"{rest}/note/meta", json={"metadata": ctx.metadata, **trace})
            yield "ok"
        else:
            yield f"unknown: {word}"


async def parts(ctx: il.Context[Chat, None], http: httpx2.AsyncClient) -> str:
    """What files and data came; and one of each is given back."""
    told: dict[str, list[Any]] = {"files": [], "data": []}
    for message in ctx.messages:
        for part in message.parts:
            if isinstance(part, il.FilePart):
                body = part.data if part.data is not None else (part.text or "").encode()
                if part.data is None and part.text is None and part.url:
                    body = (await http.get(part.url)).raise_for_status().content
                told["files"].append(
                    {"name": part.name, "media_type": part.media_type, "sha256": hashlib.sha256(body).hexdigest()}
                )
            elif isinstance(part, il.DataPart):
                told["data"].append(part.data)
    answer = il.FilePart(data=b"\x00\x01\x02\x03\xff", media_type="application/octet-stream", name="answer.bin")
    await ctx.artifact([answer, il.DataPart({"k": [1, 2]})], name="answer")
    return json.dumps(told)


class Total(TypedDict):
    total: int
    seen: list[int]


@il.agent(name="typed-native")
async def typed(numbers: list[int]) -> AsyncIterator[Total]:
    """Adds up numbers."""
    yield {"total": 0, "seen": []}
    for number in numbers:
        yield {"total": number, "seen": [None, number]}

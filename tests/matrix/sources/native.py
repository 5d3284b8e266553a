"""Our own agents with the behaviours of the matrix: what the mounted ones are compared with.

They are served beside the mounts, and reached through every door like them.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

import interlingua as il

sys.path.insert(0, str(Path(__file__).parents[1]))

import behaviours as does


@dataclass
class Chat:
    kept: str | None = None


@dataclass
class Person:
    name: str
    age: int


class WhoAreYou(il.Question[Person]):
    """Who are you?"""


@dataclass
class Member:
    name: str
    skills: list[str]


@dataclass
class Team:
    title: str
    people: list[Member]


class WhoIsInIt(il.Question[Team]):
    """Who is in it?"""


class WhichNumbers(il.Question[list[int]]):
    """Which numbers?"""


WANTED: dict[str, Any] = {"team": WhoIsInIt, "numbers": WhichNumbers}


class Broken(il.AgentError):
    """It broke, as it was asked to."""

    def __init__(self, failure: does.Failure) -> None:
        super().__init__(failure.message, transient=failure.transient, details=failure.details)
        self.code = failure.code  # type: ignore[misc]  # of this one: whoever asks says which


class Line:
    """One run, as far as its agent meets it."""

    def __init__(self, ctx: il.Context[Chat, None]) -> None:
        self.ctx = ctx
        self.said = ""
        self.memory = {} if ctx.state.kept is None else {"kept": ctx.state.kept}
        parts = [part for message in ctx.messages for part in message.parts]
        self.files = [_file(part) for part in parts if isinstance(part, il.FilePart)]
        self.data = [part.data for part in parts if isinstance(part, il.DataPart)]
        trace = ctx._run.data.request.trace or {}  # agents see only spans of it
        self.heard = {"metadata": ctx.metadata, **trace}

    async def say(self, text: str) -> None:
        self.said += text
        await self.ctx.emit(text)

    async def give(self) -> None:
        name, media_type, body = does.FILE_OUT
        file = il.FilePart(data=body, media_type=media_type, name=name)
        await self.ctx.artifact([file, il.DataPart(does.DATA_OUT)], name="answer")

    async def choose(self) -> str:
        options = [il.Option(id_, label, kind) for id_, label, kind in does.CHOICES]  # type: ignore[arg-type]
        return (await self.ctx.ask(il.Choose(does.MAY_I, options))).choice

    async def form(self) -> dict[str, Any]:
        person = await self.ctx.ask(WhoAreYou())
        return {"name": person.name, "age": person.age}

    async def want(self, what: str) -> Any:
        given = await self.ctx.ask(WANTED[what]())
        return asdict(given) if isinstance(given, Team) else given

    async def ask(self) -> str:
        return (await self.ctx.ask(il.AskText(does.WHAT))).text


def _file(part: il.FilePart) -> dict[str, Any]:
    body = part.text.encode() if part.text is not None else part.data
    return {"name": part.name, "media_type": part.media_type, "data": body, "url": part.url}


@il.agent(name="talker-native", description=does.TALKER, asks=[il.Choose, WhoAreYou, *WANTED.values(), il.AskText])
async def talker(text: str, ctx: il.Context[Chat, None]) -> str:
    line = Line(ctx)
    try:
        await does.talk(text, line)
    except does.Failure as failure:
        raise Broken(failure) from None
    ctx.state.kept = line.memory.get("kept")
    return line.said


class Total(TypedDict):
    total: int
    seen: list[int]


@il.agent(name="typed-native", description=does.TYPED)
async def typed(numbers: list[int], ctx: il.Context[None, None]) -> Total:
    for number in numbers:
        await ctx.emit({"total": number, "seen": [None, number]})
    return Total(total=sum(numbers), seen=numbers)


@il.agent(name="careful-native", asks=[il.Confirm])
async def careful(text: str, ctx: il.Context[None, None]) -> str:
    verdict = await ctx.ask(il.Confirm(does.MAY_I))
    return json.dumps({"approved": verdict.approved, "reason": verdict.reason})

"""Questions over pipes of the team protocol: whoever speaks there as the user hears when somebody else has answered."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.protocols.cap.door.stdio import StdioDoor
from interlingua.protocols.targets import parse
from interlingua.server.loading.target import load
from interlingua.transports.process.pipes import PipeChannel
from tests.kit.agents import asker
from tests.kit.clients.rpc import pipes
from tests.kit.engines import PATIENT, QUICK, engine, question, submit
from tests.protocols.cap.door_common import message, notice

from .test_mounted import asked, closed

AGENTS = """
import interlingua as il

@il.agent(asks=[il.Confirm])
async def asker(text: str, ctx: il.Context) -> str:
    verdict = await ctx.ask(il.Confirm(f"Do {text}?"))
    return f"{verdict.approved} {verdict.reason}"
"""


class Parent:
    """Whoever has started the door, at the other end of its pipes."""

    def __init__(
        self, channel: PipeChannel, serving: asyncio.Future[None], reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        self._channel, self._serving, self._reader, self._writer = channel, serving, reader, writer
        self.heard: list[dict[str, Any]] = []

    def say(self, told: dict[str, Any]) -> None:
        self._writer.write(json.dumps(told).encode() + b"\n")

    async def hear(self, **members: Any) -> dict[str, Any]:
        """The next line with these members."""
        async with asyncio.timeout(20):
            while line := await self._reader.readline():
                told: dict[str, Any] = json.loads(line)
                self.heard.append(told)
                if all(told.get(name) == value for name, value in members.items()):
                    return told
        raise AssertionError(f"it ended without {members}: {self.heard}")

    async def end(self) -> None:
        """Hang up, and read what was still said."""
        self._writer.close()
        await self._writer.wait_closed()
        async with asyncio.timeout(20):
            await self._serving
            await self._channel.close()
            while line := await self._reader.readline():
                self.heard.append(json.loads(line))


async def parent_of(eng: il.Engine) -> Parent:
    channel, reader, writer = await pipes()
    return Parent(channel, asyncio.ensure_future(StdioDoor(eng, channel).run()), reader, writer)


@pytest.mark.parametrize("whole", [False, True], ids=["messages", "everything"])
async def test_an_answer_that_came_another_way_is_told_as_what_the_user_said(store: Path, whole: bool) -> None:
    async with engine(store, asker, settings=PATIENT) as eng:
        parent = await parent_of(eng)
        parent.say(notice("T-1", "asker", "it", metadata={"stream": True} if whole else {}))
        told = await parent.hear(type="message", recipient_id="user")
        id_ = told["metadata"]["question"]
        await eng.questions.answer(id_, {"approved": True, "reason": "fine"}, door="elsewhere")
        said = await parent.hear(type="message", sender_id="user")
        assert (said["metadata"]["question"], said["metadata"]["answer"]["reason"]) == (id_, "fine")
        assert (await parent.hear(type="message", recipient_id="user"))["content"] == "True fine"
        await parent.end()


async def test_ones_own_answer_is_not_told_again(store: Path) -> None:
    async with engine(store, asker, settings=PATIENT) as eng:
        parent = await parent_of(eng)
        parent.say(notice("T-1", "asker", "it", metadata={"stream": True}))
        told = await parent.hear(type="message", recipient_id="user")
        about = {"question": told["metadata"]["question"], "answer": {"approved": True}}
        parent.say(message("T-1", "asker", "yes", metadata=about))
        await parent.hear(type="status", status="succeeded")
        await parent.end()
        assert [one for one in parent.heard if one.get("sender_id") == "user"] == []


async def test_what_a_mounted_process_of_ours_asks_is_withdrawn_when_somebody_answers_at_its_store(
    store: Path, tmp_path: Path
) -> None:
    (tmp_path / "agents.py").write_text(AGENTS)
    theirs = tmp_path / "theirs.db"
    words = [
        "env",
        "INTERLINGUA_PROJECT=far",
        sys.executable,
        "-m",
        "interlingua",
        "stdio",
        "--as",
        "cap",
        "--store",
        str(theirs),
    ]
    target = f"cap:{shlex.join([*words, str(tmp_path / 'agents.py')])}#asker"
    remote = (await load(parse(target))).chosen
    async with engine(store, remote, settings=PATIENT) as eng:
        run = await submit(eng, remote.card.name, {"text": "it"})
        here = await question(eng, run.id)
        async with engine(theirs, settings=QUICK) as other:
            there = await asked(other)
            assert there.question.prompt == here.prompt == "Do it?"
            await other.questions.answer(there.question.id, {"approved": True}, by=il.Caller("bob"), door="elsewhere")
            record = await closed(eng, here.id)
            assert record.state == "withdrawn"
            done = await eng.runs.wait(run.id, timeout=20)
            assert done.output == {"text": "True None"}, done.error

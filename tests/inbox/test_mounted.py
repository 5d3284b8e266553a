"""A question of a member of a team in an agent that is mounted from a second server, over every protocol.

There are two stores then, and one question: whoever answers in either settles both.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.engine.handler import mounted_run
from interlingua.model.filters import QuestionFilter
from interlingua.model.run import QuestionRecord
from interlingua.protocols.targets import parse
from interlingua.server.loading.target import load
from interlingua.terminal import inbox
from tests.kit import processes
from tests.kit.engines import PATIENT, QUICK, engine, listens, parked, question, submit, with_settings
from tests.kit.mounts.editor import PERMISSION
from tests.kit.postgres import beside

TARGETS = {
    "connect": "connect+{http}/connect#{agent}",
    "mcp": "mcp+{http}/mcp#{agent}",
    "peer": "peer+{http}/peer#{agent}",
    "editor": "editor+{ws}/editor#{agent}",
    "cap": "cap+{http}/cap#{agent}",
}
over_all = pytest.mark.parametrize("protocol", TARGETS)
DONE = '{"outcome": {"outcome": "selected", "optionId": "yes"}}'


class Second:
    """The server that is mounted, and its store as another process sees it."""

    def __init__(self, address: str, engine: il.Engine) -> None:
        self.address = address
        self.engine = engine

    async def mounted(self, protocol: str, agent: str) -> il.Agent[..., Any]:
        ws = self.address.replace("http", "ws", 1)
        target = TARGETS[protocol].format(http=self.address, ws=ws, agent=agent)
        return (await load(parse(target))).chosen  # type: ignore[no-any-return]


@contextlib.asynccontextmanager
async def second(folder: Path) -> AsyncIterator[Second]:
    process = await processes.start_warm("inbox.second", folder / "second.db")
    async with processes.ended(process, gently=True):
        async with asyncio.timeout(60):
            address = await processes.said(process)
        assert address.startswith("http://")
        async with engine(folder / "second.db") as eng:
            yield Second(address, eng)


async def asked(eng: il.Engine) -> QuestionRecord:
    """The one question that is open in a store, once there is one."""
    async with asyncio.timeout(30):
        while not (found := await eng.questions.search(QuestionFilter())):
            await eng.runs.next_hint("questions")
    (record,) = found
    return record


async def closed(eng: il.Engine, id_: str) -> QuestionRecord:
    async with asyncio.timeout(30):
        while (record := await eng.questions.get(id_)).state == "open":
            await eng.runs.next_hint("questions")
    return record


async def names(eng: il.Engine, record: QuestionRecord) -> list[str]:
    rows = [await eng.core.store.runs.get(run) for run in record.runs]
    return [row.agent for row in rows if row is not None]


@contextlib.asynccontextmanager
async def hub(store: Path | str, other: Second, protocol: str, agent: str, settings: il.Settings = PATIENT) -> Any:
    """An engine with the mounted agent, and one that calls it."""
    remote = await other.mounted(protocol, agent)

    @il.agent
    async def front(ctx: il.Context[None, None], text: str) -> str:
        output = await ctx.call(remote.card.name, text=text)
        return str(output["text"])

    async with engine(store, remote, front, settings=settings) as eng:
        yield eng, remote.card.name


@over_all
async def test_a_members_permission_is_one_record_here_and_answering_here_settles_both(
    store: Path, tmp_path: Path, protocol: str
) -> None:
    async with second(tmp_path) as other, hub(store, other, protocol, "crew") as (eng, name):
        run = await submit(eng, "front", {"text": PERMISSION})
        there, here = await asked(other.engine), await asked(eng)
        assert await names(eng, here) == ["front", name]
        assert len(there.runs) >= 2, "of a member, below the run of the team"
        shown = await question(eng, run.id)
        assert shown.id == here.question.id, "it shows on the run that was asked for"
        assert "Remove the file" in here.question.prompt
        (entry,) = await inbox.entries(eng, [here])
        assert entry.way == f"front › {name}"
        assert entry.mount is not None
        assert entry.mount.startswith(protocol), entry.mount
        assert other.address.split(":")[-1] in entry.mount, "where it is"
        await eng.questions.answer(here.question.id, {"choice": "yes"}, by=il.Caller("ada"), door="test")
        record = await closed(other.engine, there.question.id)
        assert record.answer is not None
        assert (record.state, record.answer.value, record.answer.door) == ("answered", {"choice": "yes"}, protocol)
        done = await eng.runs.wait(run.id, timeout=30)
        assert DONE in str(done.output), done.error


@over_all
async def test_answering_at_the_second_server_settles_both_too(store: Path, tmp_path: Path, protocol: str) -> None:
    async with second(tmp_path) as other, hub(store, other, protocol, "crew") as (eng, _):
        run = await submit(eng, "front", {"text": PERMISSION})
        there, here = await asked(other.engine), await asked(eng)
        await other.engine.questions.answer(there.question.id, {"choice": "yes"}, by=il.Caller("bob"), door="test")
        record = await closed(eng, here.question.id)
        assert (record.state, record.answer) == ("withdrawn", None)
        done = await eng.runs.wait(run.id, timeout=30)
        assert DONE in str(done.output), done.error
        with pytest.raises(il.model.errors.AlreadyAnswered, match="withdrawn"):
            await eng.questions.answer(here.question.id, {"choice": "no"})


@over_all
async def test_what_is_withdrawn_at_the_second_server_is_withdrawn_here(
    store: Path, tmp_path: Path, protocol: str
) -> None:
    async with second(tmp_path) as other, hub(store, other, protocol, "crew") as (eng, _):
        run = await submit(eng, "front", {"text": PERMISSION})
        there, here = await asked(other.engine), await asked(eng)
        await other.engine.runs.cancel(there.runs[0])
        record = await closed(eng, here.question.id)
        assert record.state == "withdrawn"
        assert (await eng.runs.wait(run.id, timeout=30)).status.final


@over_all
async def test_what_is_withdrawn_here_is_withdrawn_at_the_second_server(
    store: Path, tmp_path: Path, protocol: str
) -> None:
    async with second(tmp_path) as other, hub(store, other, protocol, "crew") as (eng, _):
        run = await submit(eng, "front", {"text": PERMISSION})
        there, _ = await asked(other.engine), await asked(eng)
        await eng.runs.cancel(run.id)
        assert (await closed(other.engine, there.question.id)).state == "withdrawn"


async def test_a_deadline_there_is_one_here_and_what_comes_of_it_is_followed(store: Path, tmp_path: Path) -> None:
    """Over all protocols at once, because each waits until the time is over."""
    async with asyncio.TaskGroup() as tasks:
        for protocol in TARGETS:
            folder = tmp_path / protocol
            folder.mkdir()
            following = a_deadline_is_followed(beside(store, protocol), folder, protocol)
            tasks.create_task(following, name=protocol)


async def a_deadline_is_followed(store: Path | str, folder: Path, protocol: str) -> None:
    async with second(folder) as other, hub(store, other, protocol, "solo") as (eng, _):
        run = await submit(eng, "front", {"text": "4"})
        there, here = await asked(other.engine), await asked(eng)
        assert there.question.deadline is not None
        assert here.question.deadline is not None
        assert abs(here.question.deadline - there.question.deadline) < 1_000_000
        for eng_, one in ((other.engine, there), (eng, here)):
            assert (await closed(eng_, one.question.id)).state in ("expired", "withdrawn"), protocol
        done = await eng.runs.wait(run.id, timeout=30)
        assert done.output == {"text": "nobody answered"}, (protocol, done.error)


@pytest.mark.parametrize("protocol", ["connect", "peer", "cap"])
async def test_a_deadline_of_ours_ends_the_run_there_too(store: Path, tmp_path: Path, protocol: str) -> None:
    """There it would wait for ever. The other mounts have a time to answer of their own, and reject then."""
    settings = with_settings(PATIENT, question_deadline=1.5)
    async with second(tmp_path) as other, hub(store, other, protocol, "solo", settings) as (eng, _):
        run = await submit(eng, "front", {"text": "it"})
        there, here = await asked(other.engine), await asked(eng)
        assert (await closed(eng, here.question.id)).state == "expired"
        done = await eng.runs.wait(run.id, timeout=30)
        assert done.error is not None
        assert "in time" in done.error.message
        assert (await closed(other.engine, there.question.id)).state == "withdrawn"


@pytest.mark.parametrize("protocol", ["connect", "cap"])
async def test_a_run_that_waits_for_long_hears_at_once_that_its_question_was_answered_there(
    store: Path, tmp_path: Path, protocol: str
) -> None:
    settings = with_settings(QUICK, max_listening=1)
    async with second(tmp_path) as other, hub(store, other, protocol, "solo", settings) as (eng, _):
        run = await submit(eng, "front", {"text": "it"})
        there, here = await asked(other.engine), await asked(eng)
        await listens(eng, here.question.run)
        await other.engine.questions.answer(there.question.id, {"approved": True}, door="test")
        record = await closed(eng, here.question.id)
        assert record.state == "withdrawn"
        assert record.reason.startswith("it was answered at http://")
        assert (await eng.runs.wait(run.id, timeout=30)).output == {"text": "True None"}


@pytest.mark.parametrize("protocol", ["connect", "cap"])
async def test_a_run_that_was_set_aside_looks_again_whether_its_question_is_still_asked(
    store: Path, tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over these wires a waiting run is parked, and nobody listens."""
    monkeypatch.setattr(mounted_run, "LOOK_EVERY", 0.3)
    async with second(tmp_path) as other, hub(store, other, protocol, "solo", QUICK) as (eng, _):
        run = await submit(eng, "front", {"text": "it"})
        there, here = await asked(other.engine), await asked(eng)
        await parked(eng, here.question.run)
        row = await eng.core.store.runs.get(here.question.run)
        assert row is not None
        assert row.wake_at is not None, "it will look again"
        await other.engine.questions.answer(there.question.id, {"approved": True}, door="test")
        record = await closed(eng, here.question.id)
        assert record.state == "withdrawn"
        assert record.reason.startswith("it was answered at http://")
        assert (await eng.runs.wait(run.id, timeout=30)).output == {"text": "True None"}

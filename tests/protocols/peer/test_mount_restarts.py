"""Mounted runs over restarts and broken connections, on either side: the task is found again, never begun twice."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.delta import Joiner
from interlingua.model.documents import Put
from interlingua.model.events import ArtifactAdded, MessageSent, OutputDelta, QuestionWithdrawn, RunRestarted, Thought
from interlingua.mounts.loader import local_agents
from interlingua.protocols.peer.mount import credentials
from tests.kit.engines import bodies, crash, engine, question, submit
from tests.kit.mounts.peer import Again, There, mount, mounted, output, remote, runs_of
from tests.kit.mounts.watch import SETTINGS, Gate, asked_question, seen, shown

WIRES = ("acp", "http")


async def joined(eng: il.Engine, run: str) -> Any:
    value = Joiner()
    for body in await bodies(eng, run, OutputDelta):
        value.add(body.delta)
    return value.value


async def cut(there: There) -> None:
    """The connections with the node break."""
    for peer in there.node.peers.connected:
        assert peer.session is not None
        await peer.session.channel.close()


@contextlib.asynccontextmanager
async def entered(store: Path, link: str, **settings: Any) -> AsyncIterator[il.Engine]:
    """Another process with the same mount and the same store."""
    async with mounted(store, link, **settings) as (eng, _):
        yield eng


async def crashed(store: Path, there: There, agent: str, text: str, until: str) -> str:
    """A run whose process has died after it had shown this much."""
    made = mount(there.link)
    eng = engine(store, *await local_agents(made), settings=SETTINGS)
    await eng.start()
    run = await submit(eng, agent, {"text": text})
    await shown(eng, run.id, until)
    await crash(eng)
    await made.close()
    return run.id


# -- connections that break -----------------------------------------------------------------------------------


async def test_a_run_goes_on_over_the_next_connection(store: Path) -> None:
    gate = Gate()
    async with remote("acp", gate) as there, mounted(store, there.link) as (eng, made):
        run = await submit(eng, "words", {"text": "one two three"})
        await shown(eng, run.id, "one")
        await cut(there)
        await there.running.until(
            lambda event: event.get("event") == "connected", (await there.node.journal.feed().head()) - 1
        )
        gate.open.set()
        assert await output(eng, run.id) == {"text": "one two three"}
        assert await joined(eng, run.id) == {"text": "one two three"}
        assert (await made.own(eng)).connects == 2
        assert gate.entered == 1
        assert [peer.id for peer in there.node.peers] == ["peer_001"]


async def test_what_was_missed_while_the_connection_was_broken_is_shown_at_the_end(store: Path, tmp_path: Path) -> None:
    gate = Gate()
    async with Again("acp", tmp_path, gate) as again, mounted(store, again.there.link) as (eng, _):
        run = await submit(eng, "busybody", {"text": "far"})
        await seen(eng, run.id, "artifact")
        await again.there.node.listeners["ws"].close()  # nobody gets in any more
        await cut(again.there)
        gate.open.set()
        (theirs,) = await runs_of(again.there.node)
        await again.there.engine.runs.wait(theirs.id, timeout=20)
        await again.stop()
        await again.start()
        assert await output(eng, run.id) == {"text": "so far"}
        pieces = [body.artifact for body in await bodies(eng, run.id, ArtifactAdded)]
        assert [part.text for part in pieces[-1].parts] == ["one, ", "two"]
        assert pieces[-1].last
        assert not pieces[-1].append


@pytest.mark.parametrize("kind", WIRES)
async def test_a_run_survives_a_restart_of_the_node(store: Path, tmp_path: Path, kind: str) -> None:
    gate = Gate()
    async with Again(kind, tmp_path, gate) as again, mounted(store, again.there.link) as (eng, _):
        run = await submit(eng, "words", {"text": "one two three"})
        await shown(eng, run.id, "one")
        await again.stop()
        gate.open.set()
        await again.start()
        assert await output(eng, run.id) == {"text": "one two three"}
        assert await joined(eng, run.id) == {"text": "one two three"}
        assert len(await runs_of(again.there.node)) == 1


@pytest.mark.parametrize("kind", WIRES)
async def test_a_question_survives_a_restart_of_the_node_and_its_answer_counts(
    store: Path, tmp_path: Path, kind: str
) -> None:
    async with Again(kind, tmp_path, Gate(open_=True)) as again, mounted(store, again.there.link) as (eng, _):
        run = await submit(eng, "careful", {"text": "hello"})
        first = await question(eng, run.id)
        await again.stop()
        await eng.questions.answer(first.id, {"approved": True})
        await again.start()
        await eng.questions.answer((await asked_question(eng, run.id, "ask_text")).id, {"text": "bye"})
        assert await output(eng, run.id) == {"text": "hello True bye"}
        assert await bodies(eng, run.id, QuestionWithdrawn) == []


@pytest.mark.parametrize("kind", WIRES)
async def test_a_node_that_does_not_come_back_fails_the_run_as_transient(
    store: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "_HTTP_OUTAGE", 0.2)
    async with Again(kind, tmp_path, Gate()) as again, mounted(store, again.there.link, patience=0.3) as (eng, _):
        run = await submit(eng, "words", {"text": "one two"})
        await shown(eng, run.id, "one")
        await again.stop()
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.status is il.Status.FAILED
        assert ended.error is not None
        assert (ended.error.code, ended.error.transient) == ("unavailable", True)
        assert "cannot be reached" in ended.error.message


async def test_a_node_that_has_forgotten_everything_fails_the_run_as_transient_and_starts_nothing(
    store: Path, tmp_path: Path
) -> None:
    gate = Gate()
    async with Again("acp", tmp_path, gate) as again, mounted(store, again.there.link) as (eng, _):
        run = await submit(eng, "words", {"text": "one two"})
        await shown(eng, run.id, "one")
        token = again.there.node.token
        await again.stop()
        again.forget()
        # The same link leads to a node that has never heard of us.
        async with il.Engine(tmp_path / "fresh.db", settings=SETTINGS) as fresh:
            await fresh.core.store.documents.write([Put("peer:Remote/facts", "token", token.encode())])
        there = await again.start()
        assert there.node.token == token
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.error is not None
        assert ended.error.transient
        assert "no longer knows us" in ended.error.message
        assert await runs_of(there.node) == []
        gate.open.set()
        next_ = await submit(eng, "words", {"text": "as new"})
        assert await output(eng, next_.id) == {"text": "as new"}


async def test_a_node_behind_an_address_that_lost_the_task_does_not_begin_it_again(store: Path, tmp_path: Path) -> None:
    gate = Gate()
    async with Again("http", tmp_path, gate) as again, mounted(store, again.there.link) as (eng, _):
        run = await submit(eng, "words", {"text": "one two"})
        await shown(eng, run.id, "one")
        await again.stop()
        again.forget()
        there = await again.start()
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.error is not None
        assert ended.error.transient
        assert "no longer has the task" in ended.error.message
        assert await runs_of(there.node) == []


# -- our own restarts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WIRES)
async def test_a_run_survives_a_crash_here_and_is_not_begun_twice(store: Path, kind: str) -> None:
    gate = Gate()
    async with remote(kind, gate) as there:
        run = await crashed(store, there, "words", "one two three", "one")
        async with entered(store, there.link) as eng:
            gate.open.set()
            assert await output(eng, run) == {"text": "one two three"}
            assert await joined(eng, run) == {"text": "one two three"}
            assert await bodies(eng, run, RunRestarted) == []
        assert gate.entered == 1
        assert len(await runs_of(there.node)) == 1


@pytest.mark.parametrize("kind", WIRES)
async def test_a_run_whose_task_ended_while_we_were_away_ends_with_its_result(store: Path, kind: str) -> None:
    gate = Gate()
    async with remote(kind, gate) as there:
        run = await crashed(store, there, "words", "one two three", "one")
        gate.open.set()
        (theirs,) = await runs_of(there.node)
        await there.engine.runs.wait(theirs.id, timeout=20)
        async with entered(store, there.link) as eng:
            assert await output(eng, run) == {"text": "one two three"}
            assert await joined(eng, run) == {"text": "one two three"}
        assert len(await runs_of(there.node)) == 1


@pytest.mark.parametrize("kind", WIRES)
async def test_what_was_shown_before_a_crash_is_not_shown_again(store: Path, kind: str) -> None:
    gate = Gate()
    async with remote(kind, gate) as there:
        made = mount(there.link)
        eng = engine(store, *await local_agents(made), settings=SETTINGS)
        await eng.start()
        run = await submit(eng, "busybody", {"text": "far"})
        await seen(eng, run.id, "artifact")
        await crash(eng)
        await made.close()
        async with entered(store, there.link) as after:
            gate.open.set()
            assert await output(after, run.id) == {"text": "so far"}
            assert [body.text for body in await bodies(after, run.id, Thought)] == ["hm"]
            assert [body.message.text for body in await bodies(after, run.id, MessageSent)].count("nearly there") == 1
            assert await bodies(after, run.id, RunRestarted) == []


@pytest.mark.parametrize("kind", WIRES)
async def test_a_question_survives_a_crash_here(store: Path, kind: str) -> None:
    async with remote(kind) as there:
        made = mount(there.link)
        eng = engine(store, *await local_agents(made), settings=SETTINGS)
        await eng.start()
        run = await submit(eng, "careful", {"text": "hello"})
        first = await question(eng, run.id)
        await crash(eng)
        await made.close()
        async with entered(store, there.link) as after:
            await after.questions.answer(first.id, {"approved": True})
            await after.questions.answer((await asked_question(after, run.id, "ask_text")).id, {"text": "bye"})
            assert await output(after, run.id) == {"text": "hello True bye"}
            assert await joined(after, run.id) == {"text": "hello True bye"}
        assert len(await runs_of(there.node)) == 1


@pytest.mark.parametrize("kind", WIRES)
async def test_a_question_that_was_answered_there_while_we_were_away_is_withdrawn(store: Path, kind: str) -> None:
    async with remote(kind) as there:
        made = mount(there.link)
        eng = engine(store, *await local_agents(made), settings=SETTINGS)
        await eng.start()
        run = await submit(eng, "careful", {"text": "hello"})
        await question(eng, run.id)
        await crash(eng)
        await made.close()
        (theirs,) = await runs_of(there.node)
        await there.engine.questions.answer((await question(there.engine, theirs.id)).id, {"approved": True})
        async with entered(store, there.link) as after:
            await after.questions.answer((await asked_question(after, run.id, "ask_text")).id, {"text": "bye"})
            assert await output(after, run.id) == {"text": "hello True bye"}
            assert len(await bodies(after, run.id, QuestionWithdrawn)) == 1


@pytest.mark.parametrize("kind", WIRES)
async def test_a_run_that_is_cancelled_after_a_crash_is_cancelled_there(store: Path, kind: str) -> None:
    async with remote(kind) as there:
        run = await crashed(store, there, "stuck", "x", "wait ")
        async with engine(store) as outside:  # a process without the mount: what the command line is
            await outside.runs.cancel(run)
            async with entered(store, there.link):
                assert (await outside.runs.wait(run, timeout=20)).status is il.Status.CANCELLED
                (theirs,) = await runs_of(there.node)
                assert (await there.engine.runs.wait(theirs.id, timeout=20)).status is il.Status.CANCELLED


async def test_a_thread_is_the_same_conversation_after_a_restart_here(store: Path) -> None:
    async with remote() as there:
        async with mounted(store, there.link) as (eng, _):
            thread = await eng.threads.create()
            await output(eng, (await submit(eng, "remembering", {"text": "a"}, thread=thread.id)).id)
        async with mounted(store, there.link) as (eng, _):
            run = await submit(eng, "remembering", {"text": "b"}, thread=thread.id)
            assert next(iter((await output(eng, run.id)).values())) == ["a", "b"]
        assert [peer.id for peer in there.node.peers] == ["peer_001"]


async def test_two_processes_on_one_store_are_two_peers_and_do_not_disturb_each_other(store: Path) -> None:
    gate = Gate()
    async with (
        remote("acp", gate) as there,
        mounted(store, there.link) as (one, first),
        mounted(store, there.link) as (other, second),
    ):
        run, again = await submit(one, "words", {"text": "a b"}), await submit(other, "words", {"text": "c d"})
        await shown(one, run.id, "a")
        await shown(other, again.id, "c")
        gate.open.set()
        assert await output(one, run.id) == {"text": "a b"}
        assert await output(other, again.id) == {"text": "c d"}
        assert [(await made.own(eng)).connects for made, eng in ((first, one), (second, other))] == [1, 1]
        assert len(there.node.peers.connected) == 2


async def test_what_we_are_known_by_is_not_readable_in_the_log(store: Path) -> None:
    async with remote() as there, mounted(store, there.link) as (eng, made):
        run = await submit(eng, "words", {"text": "hi"})
        await output(eng, run.id)
        token = (await made.own(eng)).token
        assert token
        written = "".join(str(event.body) for event in [e async for e in eng.runs.events(run.id, follow=False)])
        assert "known_by" in written
        assert token not in written

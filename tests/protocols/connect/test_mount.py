"""The mount: remote Connect agents as local ones, against our own door and a fake of the published server."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.engine.runs.run_handle import RunHandle
from interlingua.model.errors import InvalidConfig, InvalidRequest, Unavailable
from interlingua.model.events import OutputDelta, Recorded, RunRestarted, Thought, Warned
from interlingua.model.run import RunRequest
from interlingua.mounts import http
from interlingua.protocols.connect.mount import server as client
from interlingua.protocols.connect.mount.server import load
from interlingua.protocols.targets import Target
from tests.kit.engines import bodies, crash, engine, finish, kinds, question, submit
from tests.kit.mounts.connect import door, local, mounted, parked, remote_runs
from tests.kit.mounts.watch import Gate, asked_question, shown

from .reference import AGENTS, Proxy, Reference, listening

# -- our own door ---------------------------------------------------------------------------------------------


async def test_a_mounted_agent_has_the_card_of_the_remote_one(tmp_path: Path) -> None:
    async with door(tmp_path) as server:
        cards = {agent.card.name: agent.card for agent in await mounted(server.address + "/connect")}
        there = {agent.card.name: agent.card for agent in server.engine.agents}
    assert set(cards) == set(there)
    for name, card in cards.items():
        origin = there[name]
        assert (card.version, card.input, card.output) == (origin.version, origin.input, origin.output)
        assert (card.input_text, card.output_text) == (origin.input_text, origin.output_text)
        assert [q.type for q in card.questions] == [q.type for q in origin.questions]
        assert [e.code for e in card.errors] == [e.code for e in origin.errors]
        assert card.config == origin.config
        assert card.streams
    assert cards["words"].description == "Says it word by word."


async def test_a_target_can_name_one_agent_by_name_or_id(tmp_path: Path) -> None:
    async with door(tmp_path) as server:
        address = f"connect+{server.address}/connect"
        (agent,) = await load(Target("connect+http", address, "words"))
        assert agent.card.key == "words@2.0.0"
        (same,) = await load(Target("connect+http", address, agent.card.metadata["agent_id"]))
        assert same.card.key == agent.card.key


async def test_what_the_remote_agent_says_arrives_while_it_runs(tmp_path: Path, store: Path) -> None:
    gate = Gate()
    async with door(tmp_path, gate) as server, local(store, server.address + "/connect") as eng:
        run = await submit(eng, "words", {"text": "one two three"})
        await shown(eng, run.id, "one")
        gate.open.set()
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.status is il.Status.SUCCEEDED
        assert ended.output == {"text": "one two three"}
        deltas = await bodies(eng, run.id, OutputDelta)
        assert "".join(d.delta["text"] for d in deltas) == "one two three"


async def test_what_the_remote_agent_thinks_is_shown(tmp_path: Path, store: Path) -> None:
    async with door(tmp_path) as server, local(store, server.address + "/connect") as eng:
        run = await finish(eng, "thinking")
        assert run.output == {"text": "so done"}
        assert [t.text for t in await bodies(eng, run.id, Thought)] == ["hm", "aha"]


async def test_after_a_crash_nothing_is_shown_twice(tmp_path: Path, store: Path) -> None:
    gate = Gate()
    async with door(tmp_path, gate) as server:
        eng = engine(store, *await mounted(server.address + "/connect"))
        await eng.start()
        run = await submit(eng, "thinking")
        await shown(eng, run.id, "so ")
        await crash(eng)
        gate.open.set()
        async with local(store, server.address + "/connect") as again:
            assert (await again.runs.wait(run.id, timeout=20)).output == {"text": "so done"}
            assert [t.text for t in await bodies(again, run.id, Thought)] == ["hm", "aha"]
            assert "".join(d.delta["text"] for d in await bodies(again, run.id, OutputDelta)) == "so done"
            assert await bodies(again, run.id, RunRestarted) == []


async def test_questions_of_the_remote_agent_are_answered_here(tmp_path: Path, store: Path) -> None:
    async with door(tmp_path) as server, local(store, server.address + "/connect") as eng:
        run = await submit(eng, "careful", {"text": "hello"})
        asked = await question(eng, run.id)
        assert (asked.type, asked.payload, asked.prompt) == ("confirm", {"message": "Say hello?"}, "Say hello?")
        with pytest.raises(il.InterlinguaError):
            await eng.questions.answer(asked.id, {"approved": "maybe"})
        await eng.questions.answer(asked.id, {"approved": True})
        asked = await asked_question(eng, run.id, "ask_text")
        await eng.questions.answer(asked.id, {"text": "bye"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output == {"text": "hello True bye"}
        deltas = await bodies(eng, run.id, OutputDelta)
        assert "".join(d.delta["text"] for d in deltas) == "hello True bye"
        assert "restarted" not in await kinds(eng, run.id)
        assert len(await remote_runs(server)) == 1


async def test_an_answer_that_comes_late_is_not_taken_for_another_question(tmp_path: Path, store: Path) -> None:
    async with door(tmp_path) as server, local(store, server.address + "/connect") as eng:
        run = await submit(eng, "curious")
        asked = await question(eng, run.id)
        (remote,) = await remote_runs(server)
        there = (await server.engine.runs.get(remote.id)).questions[0]
        await server.engine.questions.answer(there.id, {"text": "theirs"})  # somebody else was first
        await question_other_than(server.engine, remote.id, there.id)
        await eng.questions.answer(asked.id, {"text": "late"}, by=il.Caller("ada"))
        second = await question_other_than(eng, run.id, asked.id)
        await eng.questions.answer(second.id, {"text": "ours"})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "theirs,ours"}
        (late,) = await bodies(eng, run.id, Warned)
        assert late.message == (
            "the answer given here (by ada) came too late: the question had been answered at "
            f"{server.address}/connect before"
        )
        assert late.details == {"question": asked.id}


async def question_other_than(eng: il.Engine, run: str, known: str) -> Any:
    async with asyncio.timeout(20):
        async for event in eng.runs.events(run):
            if event.kind == "asked" and event.body.question.id != known:
                return event.body.question
    raise AssertionError("the run asked nothing else")


async def test_the_same_question_twice_has_two_answers(tmp_path: Path, store: Path) -> None:
    async with door(tmp_path) as server, local(store, server.address + "/connect") as eng:
        run = await submit(eng, "curious")
        answered: list[str] = []
        async with asyncio.timeout(20):
            async for event in eng.runs.events(run.id):
                if event.kind == "asked":
                    answered.append(event.body.question.id)
                    await eng.questions.answer(event.body.question.id, {"text": str(len(answered))})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output == {"text": "1,2"}


async def test_cancelling_here_cancels_there(tmp_path: Path, store: Path) -> None:
    gate = Gate()
    async with door(tmp_path, gate) as server, local(store, server.address + "/connect") as eng:
        run = await submit(eng, "words", {"text": "one two"})
        await shown(eng, run.id, "one")
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
        (remote,) = await remote_runs(server)
        assert (await server.engine.runs.wait(remote.id, timeout=20)).status is il.Status.CANCELLED


async def test_cancelling_at_a_question_cancels_there(tmp_path: Path, store: Path) -> None:
    async with door(tmp_path) as server, local(store, server.address + "/connect") as eng:
        run = await submit(eng, "careful", {"text": "hello"})
        await question(eng, run.id)
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
        (remote,) = await remote_runs(server)
        assert (await server.engine.runs.wait(remote.id, timeout=20)).status is il.Status.CANCELLED


async def test_a_local_timeout_cancels_there(tmp_path: Path, store: Path) -> None:
    async with door(tmp_path, Gate()) as server, local(store, server.address + "/connect") as eng:
        run = await finish(eng, "words", {"text": "one two"}, timeout=0.3)
        assert run.status is il.Status.TIMED_OUT
        (remote,) = await remote_runs(server)
        assert (await server.engine.runs.wait(remote.id, timeout=20)).status is il.Status.CANCELLED


async def test_stopping_the_local_engine_does_not_cancel_there(tmp_path: Path, store: Path) -> None:
    gate = Gate()
    async with door(tmp_path, gate) as server:
        async with local(store, server.address + "/connect") as eng:
            run = await submit(eng, "words", {"text": "one two"})
            await shown(eng, run.id, "one")
        (remote,) = await remote_runs(server)
        assert remote.status is il.Status.RUNNING
        gate.open.set()
        async with local(store, server.address + "/connect") as eng:
            assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "one two"}
        assert len(await remote_runs(server)) == 1


async def test_cancelling_there_cancels_the_run_here(tmp_path: Path, store: Path) -> None:
    async with door(tmp_path, Gate()) as server, local(store, server.address + "/connect") as eng:
        run = await submit(eng, "words", {"text": "one two"})
        await shown(eng, run.id, "one")
        (remote,) = await remote_runs(server)
        await server.engine.runs.cancel(remote.id)
        ended = await eng.runs.wait(run.id, timeout=20)
        assert (ended.status, ended.error.code) == (il.Status.CANCELLED, "cancelled")


@pytest.mark.parametrize(("agent", "code", "transient"), [("busy", "busy", True), ("crashing", "agent_crashed", False)])
async def test_an_error_keeps_its_code_and_flag(
    tmp_path: Path, store: Path, agent: str, code: str, transient: bool
) -> None:
    async with door(tmp_path) as server, local(store, server.address + "/connect") as eng:
        run = await finish(eng, agent)
        assert run.status is il.Status.FAILED
        assert (run.error.code, run.error.transient) == (code, transient)
        assert run.error.details is None


async def test_a_remote_timeout_is_told_as_one(tmp_path: Path, store: Path) -> None:
    async with door(tmp_path) as server, local(store, server.address + "/connect") as eng:
        run = await finish(eng, "slow")
        assert (run.error.code, run.error.transient) == ("timed_out", True)


async def test_a_cut_stream_is_taken_up_where_it_was(tmp_path: Path, store: Path) -> None:
    gate = Gate()
    async with door(tmp_path, gate) as server, Proxy(server.address) as proxy:
        async with local(store, proxy.address + "/connect") as eng:
            run = await submit(eng, "words", {"text": "one two three"})
            await shown(eng, run.id, "one")
            proxy.cut()
            gate.open.set()
            ended = await eng.runs.wait(run.id, timeout=20)
            assert ended.output == {"text": "one two three"}
            deltas = await bodies(eng, run.id, OutputDelta)
            assert "".join(d.delta["text"] for d in deltas) == "one two three"
        streams = [head for head in proxy.heads if "/stream HTTP" in head]
        assert len(streams) == 2
        assert streams[0].startswith("POST /connect/runs/stream ")  # it begins with its stream
        assert float(streams[1].lower().split("last-event-id: ")[1].split("\r\n")[0]) > 0
        assert len(await remote_runs(server)) == 1


async def test_after_a_crash_the_run_attaches_to_the_same_remote_run(tmp_path: Path, store: Path) -> None:
    gate = Gate()
    async with door(tmp_path, gate) as server:
        agents = await mounted(server.address + "/connect")
        eng = engine(store, *agents)
        await eng.start()
        run = await submit(eng, "words", {"text": "one two three"})
        await shown(eng, run.id, "one")
        await crash(eng)
        async with local(store, server.address + "/connect") as again:
            gate.open.set()
            ended = await again.runs.wait(run.id, timeout=20)
            assert ended.output == {"text": "one two three"}
            deltas = await bodies(again, run.id, OutputDelta)
            assert "".join(d.delta["text"] for d in deltas) == "one two three"
            assert await bodies(again, run.id, RunRestarted) == []
        assert len(await remote_runs(server)) == 1
        assert gate.entered == 1


async def test_after_a_crash_at_a_question_nothing_is_asked_or_started_again(tmp_path: Path, store: Path) -> None:
    gate = Gate()
    async with door(tmp_path, gate) as server:
        eng = engine(store, *await mounted(server.address + "/connect"))
        await eng.start()
        run = await submit(eng, "careful", {"text": "hello"})
        asked = await question(eng, run.id)
        await crash(eng)
        async with local(store, server.address + "/connect") as again:
            assert (await question(again, run.id)).id == asked.id
            await again.questions.answer(asked.id, {"approved": False})
            more = await asked_question(again, run.id, "ask_text")
            await again.questions.answer(more.id, {"text": "bye"})
            ended = await again.runs.wait(run.id, timeout=20)
            assert ended.output == {"text": "hello False bye"}
            deltas = await bodies(again, run.id, OutputDelta)
            assert "".join(d.delta["text"] for d in deltas) == "hello False bye"
            assert await bodies(again, run.id, RunRestarted) == []
        assert len(await remote_runs(server)) == 1


async def test_a_start_whose_answer_was_lost_makes_no_second_run(tmp_path: Path, store: Path) -> None:
    """The handle was never recorded: the idempotency key finds the run again."""
    gate = Gate()
    async with door(tmp_path, gate) as server, Proxy(server.address) as proxy:
        eng = engine(store, *await mounted(proxy.address + "/connect"))
        submitting, made = server.engine.runs.submit, asyncio.Event()

        async def noted(request: RunRequest, **more: Any) -> RunHandle:
            run = await submitting(request, **more)
            made.set()
            return run

        server.engine.runs.submit = noted  # type: ignore[method-assign]
        proxy.mute = True
        await eng.start()
        run = await submit(eng, "words", {"text": "one two"})
        await made.wait()
        assert await bodies(eng, run.id, Recorded) == []
        await crash(eng)
        proxy.cut()
        gate.open.set()
        async with local(store, server.address + "/connect") as again:
            assert (await again.runs.wait(run.id, timeout=20)).output == {"text": "one two"}
        assert len(await remote_runs(server)) == 1


async def test_a_local_thread_is_a_remote_thread(tmp_path: Path, store: Path) -> None:
    async with door(tmp_path) as server, local(store, server.address + "/connect") as eng:
        thread = await eng.threads.create()
        for text in ("a", "b"):
            run = await finish(eng, "remembering", {"text": text}, thread=thread.id)
        assert run.output == {"value": ["a", "b"]}
        assert (await eng.threads.get(thread.id)).values == {"seen": ["a", "b"]}
        other = await finish(eng, "remembering", {"text": "c"})
        assert other.output == {"value": ["c"]}


async def test_a_config_is_checked_here_and_used_there(tmp_path: Path, store: Path) -> None:
    async with door(tmp_path) as server, local(store, server.address + "/connect") as eng:
        run = await finish(eng, "tuned", config={"loud": True, "pace": 9})
        assert run.output == {"text": "True 9"}
        assert (await finish(eng, "tuned", config={"loud": False})).output == {"text": "False 3"}
        for config in ({"loud": "very"}, {}, None):
            with pytest.raises(InvalidConfig):
                await submit(eng, "tuned", config=config)
        assert len(await remote_runs(server)) == 2


# -- a server like the published one --------------------------------------------------------------------------


async def test_agents_of_the_reference_server_are_listed_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAGE", 4)
    reference = Reference()
    async with listening(reference) as address:
        cards = {agent.card.name: agent.card for agent in await mounted(address)}
    assert len(cards) == len(AGENTS)
    assert reference.requests == ["search 0", "search 4"]
    assert cards["org.example-Echo-Agent"].version == "1.0.0"
    assert [q.type for q in cards["approve"].questions] == ["mail_approval"]
    assert not cards["blocking"].streams
    assert cards["number"].output["properties"] == {"value": {"type": "integer"}}
    assert cards["broken"].output == {"type": "object"}


async def test_descriptors_are_found_where_the_earlier_document_has_them(store: Path) -> None:
    async with listening(Reference(earlier=True)) as address, local(store, address) as eng:
        (approve,) = [agent.card for agent in eng.agents if agent.card.name == "approve"]
        assert [q.type for q in approve.questions] == ["mail_approval"]
        assert approve.description == "The approve agent"
        assert (await finish(eng, "org.example-Echo-Agent", {"text": "a b"})).output == {"text": "a b"}


async def test_cancelling_a_parked_run_reaches_the_reference_server(store: Path) -> None:
    reference = Reference()
    async with listening(reference) as address, local(store, address) as eng:
        run = await submit(eng, "approve", {"text": "dear all"})
        await question(eng, run.id)
        await parked(eng, run.id)
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
        assert reference.cancelled.is_set()


async def test_values_of_the_reference_server_become_deltas(store: Path) -> None:
    reference = Reference(gated=True)
    async with listening(reference) as address, local(store, address) as eng:
        run = await submit(eng, "org.example-Echo-Agent", {"text": "one two three"})
        await shown(eng, run.id, "one")
        reference.gate.set()
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output == {"text": "one two three"}
        deltas = await bodies(eng, run.id, OutputDelta)
        assert "".join(d.delta["text"] for d in deltas) == "one two three"


async def test_an_interrupt_that_only_wait_tells_is_asked(store: Path) -> None:
    reference = Reference()
    async with listening(reference) as address, local(store, address) as eng:
        run = await submit(eng, "approve", {"text": "dear all"})
        asked = await question(eng, run.id)
        assert (asked.type, asked.payload) == ("mail_approval", {"draft": "dear all"})
        await eng.questions.answer(asked.id, {"ok": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "dear True"}
        assert reference.requests.count("resume") == 1


async def test_an_error_of_the_reference_server_fails_the_run(store: Path) -> None:
    async with listening(Reference()) as address, local(store, address) as eng:
        run = await finish(eng, "fail", {"text": "x"})
        assert (run.error.code, run.error.message, run.error.transient) == ("remote_failed", "it broke", False)
        assert run.error.details["errcode"] in (0, 1)


async def test_a_refusal_of_the_reference_server_is_told(store: Path) -> None:
    async with listening(Reference()) as address, local(store, address) as eng:
        run = await finish(eng, "fail", {"text": "refuse me"})
        assert run.status is il.Status.FAILED
        assert "422" in run.error.message
        assert "not that" in run.error.message


@pytest.mark.parametrize(("agent", "output"), [("blocking", {"text": "a b"}), ("number", {"value": 3})])
async def test_agents_that_do_not_stream_or_give_no_object_run_too(store: Path, agent: str, output: Any) -> None:
    async with listening(Reference()) as address, local(store, address) as eng:
        run = await finish(eng, agent, {"text": "a b"})
        assert (run.status, run.output) == (il.Status.SUCCEEDED, output)


async def test_cancel_reaches_the_reference_server(store: Path) -> None:
    reference = Reference(gated=True)
    async with listening(reference) as address, local(store, address) as eng:
        run = await submit(eng, "approve", {"text": "a b"})
        await shown(eng, run.id, "a")
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
        assert reference.cancelled.is_set()


async def test_a_cut_stream_of_the_reference_server_is_joined_again(store: Path) -> None:
    reference = Reference(gated=True)
    async with listening(reference) as address, Proxy(address) as proxy, local(store, proxy.address) as eng:
        run = await submit(eng, "org.example-Echo-Agent", {"text": "one two three"})
        await shown(eng, run.id, "one")
        proxy.cut()
        reference.gate.set()
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "one two three"}
        deltas = await bodies(eng, run.id, OutputDelta)
        assert "one two three".startswith("".join(d.delta["text"] for d in deltas))
        assert reference.requests.count("create") == 1


async def test_after_a_crash_a_run_of_the_reference_server_is_found_again(store: Path) -> None:
    reference = Reference(gated=True)
    async with listening(reference) as address:
        eng = engine(store, *await mounted(address))
        await eng.start()
        run = await submit(eng, "approve", {"text": "dear all"})
        await shown(eng, run.id, "dear")
        await crash(eng)
        reference.gate.set()
        async with local(store, address) as again:
            asked = await question(again, run.id)
            await again.questions.answer(asked.id, {"ok": False})
            assert (await again.runs.wait(run.id, timeout=20)).output == {"text": "dear False"}
        assert reference.requests.count("create") == 1


# -- what cannot work -----------------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_said() -> None:
    async with listening(Reference()) as address:
        pass
    with pytest.raises(Unavailable, match="cannot be reached"):
        await mounted(address)


@pytest.mark.parametrize("address", ["http://", "http://host/?a=b", "http://host/#no agent"])
async def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest):
        await mounted(address)


async def test_a_server_that_dies_fails_the_run_as_transient(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PATIENCE", 0.05)
    reference = Reference(gated=True)
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(listening(reference))
        async with Proxy(address) as proxy:
            eng = await stack.enter_async_context(local(store, proxy.address))
            run = await submit(eng, "approve", {"text": "a b"})
            await shown(eng, run.id, "a")
        ended = await eng.runs.wait(run.id, timeout=20)
        assert (ended.status, ended.error.code) == (il.Status.FAILED, "unavailable")
        assert ended.error.transient

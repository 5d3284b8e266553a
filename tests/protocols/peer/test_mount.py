"""The mount, against nodes of our own, over every binding."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.engine.handler.mounted_run import MOUNTED_FROM
from interlingua.model.delta import Joiner
from interlingua.model.errors import Denied, InvalidAnswer, InvalidInput, Unavailable
from interlingua.model.events import (
    ArtifactAdded,
    MessageSent,
    OutputDelta,
    Plan,
    QuestionWithdrawn,
    Thought,
    ToolCall,
    Warned,
)
from interlingua.mounts.loader import local_agents
from interlingua.protocols.targets import parse
from interlingua.server.loading.target import load_all
from interlingua.transports import wire_tap
from tests.kit.certificates import certificate
from tests.kit.engines import bodies, finish, question, submit
from tests.kit.mounts.peer import BINDINGS, Wire, mount, mounted, output, remote, runs_of
from tests.kit.mounts.watch import Gate, asked_question, seen, shown
from tests.kit.peer_nodes import running_node


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    wire_tap.use(made)
    yield made
    wire_tap.use(None)


# -- agents ---------------------------------------------------------------------------------------------------


async def test_every_skill_of_a_node_is_an_agent_here_with_the_card_that_it_has_there(store: Path) -> None:
    async with remote() as there, mounted(store, there.link) as (eng, _):
        here = {agent.card.name: agent.card for agent in eng.agents}
        for agent in there.engine.agents:
            card, known = agent.card, here.pop(agent.card.name)
            assert (known.version, known.description) == (card.version, card.description)
            assert (known.input, known.output) == (card.input, card.output)
            assert (known.input_text, known.output_text) == (card.input_text, card.output_text)
            assert known.streams
            assert known.metadata["skill_id"] == card.name
            assert there.node.token not in str(known.metadata)
            assert known.metadata[MOUNTED_FROM] == there.link.replace(there.node.token, "…")
        assert here == {}


async def test_looking_at_a_node_leaves_no_trace_there() -> None:
    async with remote() as there:
        assert len(await local_agents(mount(there.link))) == 9
        assert list(there.node.peers) == []


@pytest.mark.parametrize("kind", BINDINGS)
async def test_a_target_of_any_binding_is_loaded(kind: str) -> None:
    async with remote(kind) as there:
        found = await load_all(parse(f"{there.link}#survey"))
        assert [agent.card.name for agent in found] == ["survey"]


async def test_a_node_behind_tls_is_mounted_where_its_certificate_is_trusted(store: Path, tmp_path: Path) -> None:
    made = certificate(tmp_path)
    async with remote(tls_cert=made, tls_key=made) as there:
        assert there.link.startswith("acps://")
        with pytest.raises(Unavailable, match="certificate that is not trusted"):
            await local_agents(mount(there.link))
        async with mounted(store, there.link, tls_ca=str(made)) as (eng, _):
            assert (await finish(eng, "words", {"text": "hi"})).output == {"text": "hi"}


async def test_who_is_trusted_besides_takes_no_trust_from_the_authorities_of_the_system(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = certificate(tmp_path)
    (tmp_path / "other").mkdir()
    besides = certificate(tmp_path / "other")
    monkeypatch.setenv("SSL_CERT_FILE", str(made))
    async with (
        remote(tls_cert=made, tls_key=made) as there,
        mounted(store, there.link, tls_ca=str(besides)) as (eng, _),
    ):
        assert (await finish(eng, "words", {"text": "hi"})).output == {"text": "hi"}


async def test_a_link_with_a_wrong_token_is_denied_and_says_so() -> None:
    async with remote() as there:
        with pytest.raises(Denied, match="does not know the token") as caught:
            await local_agents(mount(there.link.replace("tok_", "tok_0")))
        assert there.node.token not in str(caught.value)


@pytest.mark.parametrize("link", ["acp://127.0.0.1:9/tok_0", "tcp://127.0.0.1:9/tok_0", "peer+http://127.0.0.1:9"])
async def test_a_node_that_is_not_there_is_unavailable(link: str) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9.* cannot be reached"):
        await local_agents(mount(link))


@pytest.mark.parametrize("kind", ["acp", "http"])
async def test_a_node_that_requires_an_unknown_extension_is_not_used(kind: str) -> None:
    extension = {"uri": "https://corp.example.com/ext/billing", "required": True, "params": {}}
    async with remote(kind, extensions=(extension,)) as there:
        with pytest.raises(Unavailable, match=r"requires extensions .*corp\.example\.com/ext/billing"):
            await local_agents(mount(there.link))


# -- runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BINDINGS)
async def test_deltas_arrive_as_they_are_made_and_join_to_the_result(store: Path, kind: str) -> None:
    gate = Gate()
    async with remote(kind, gate) as there, mounted(store, there.link) as (eng, _):
        run = await submit(eng, "words", {"text": "one two  three"})
        await shown(eng, run.id, "one")
        gate.open.set()
        assert await output(eng, run.id) == {"text": "one two three"}
        joined = Joiner()
        for body in await bodies(eng, run.id, OutputDelta):
            joined.add(body.delta)
        assert joined.value == {"text": "one two three"}
        (theirs,) = await runs_of(there.node)
        assert theirs.status is il.Status.SUCCEEDED


@pytest.mark.parametrize("kind", BINDINGS)
async def test_objects_go_in_and_come_out_as_they_are(store: Path, kind: str) -> None:
    async with remote(kind) as there, mounted(store, there.link) as (eng, _):
        run = await finish(eng, "survey", {"place": {"city": "Zürich", "floor": 3}, "tags": ["a", "ß"]})
        assert run.output == {"title": "Zürich/3", "lines": ["a", "ß"], "total": 2}


@pytest.mark.parametrize("kind", BINDINGS)
async def test_an_input_is_sent_once_and_may_be_nearly_as_large_as_a_message(store: Path, kind: str) -> None:
    async with remote(kind) as there, mounted(store, there.link) as (eng, _):
        assert there.node.settings.max_msg_bytes == 1024 * 1024
        said = "ä" * 500_000  # bytes are counted, and these are two each
        assert (await finish(eng, "words", {"text": said})).output == {"text": said}


@pytest.mark.parametrize("kind", BINDINGS)
async def test_an_input_that_is_larger_than_a_message_fails_and_the_limit_is_named(store: Path, kind: str) -> None:
    async with remote(kind, max_msg_bytes=5000) as there, mounted(store, there.link) as (eng, _):
        failed = await finish(eng, "words", {"text": "a" * 5000})
        assert failed.error is not None
        assert (failed.error.code, failed.error.transient) == ("too_large", False)
        assert "takes at most 5000 bytes in one message" in failed.error.message
        assert await runs_of(there.node) == []
        assert (await finish(eng, "words", {"text": "short"})).output == {"text": "short"}


@pytest.mark.parametrize("kind", ["acp", "http"])
async def test_a_flood_of_deltas_joins_to_the_result(store: Path, kind: str) -> None:
    async with remote(kind) as there, mounted(store, there.link) as (eng, _):
        run = await finish(eng, "flood", {"count": 5000})
        assert run.output == {"text": "".join(f"{n} " for n in range(5000))}
        joined = Joiner()
        for body in await bodies(eng, run.id, OutputDelta):
            joined.add(body.delta)
        assert joined.value == run.output


@pytest.mark.parametrize("kind", ["acp", "http"])
async def test_input_that_does_not_fit_is_refused_here_and_nothing_is_sent(store: Path, kind: str) -> None:
    async with remote(kind) as there, mounted(store, there.link) as (eng, _):
        with pytest.raises(InvalidInput):
            await submit(eng, "survey", {"place": {"floor": 3}, "tags": []})
        assert await runs_of(there.node) == []


@pytest.mark.parametrize("kind", ["acp", "http"])
async def test_errors_keep_their_code_their_details_and_whether_they_pass(store: Path, kind: str) -> None:
    async with remote(kind) as there, mounted(store, there.link) as (eng, _):
        failed = await finish(eng, "busy")
        assert failed.status is il.Status.FAILED
        assert failed.error is not None
        assert (failed.error.code, failed.error.message, failed.error.transient, failed.error.details) == (
            "busy", "come back later", True, {"minutes": 5},
        )  # fmt: skip
        late = await finish(eng, "slow")
        assert late.error is not None
        assert late.error.code == "timed_out"


@pytest.mark.parametrize("kind", ["acp", "http"])
async def test_everything_that_is_shown_there_is_shown_here(store: Path, kind: str) -> None:
    gate = Gate()
    async with remote(kind, gate) as there, mounted(store, there.link) as (eng, _):
        run = await submit(eng, "busybody", {"text": "far"})
        await seen(eng, run.id, "artifact")
        gate.open.set()
        assert await output(eng, run.id) == {"text": "so far"}
        assert [body.text for body in await bodies(eng, run.id, Thought)] == ["hm"]
        assert [[entry.content for entry in body.entries] for body in await bodies(eng, run.id, Plan)] == [
            ["look", "leap"]
        ]
        assert [(body.id, body.title, body.status) for body in await bodies(eng, run.id, ToolCall)] == [
            ("t1", "Looks", "in_progress")
        ]
        pieces = [body.artifact for body in await bodies(eng, run.id, ArtifactAdded)]
        assert [(one.id, one.name, one.parts[0].text, one.append, one.last) for one in pieces] == [
            ("list", "List", "one, ", False, False), ("list", "List", "two", True, True),
        ]  # fmt: skip
        assert [(body.message, body.details) for body in await bodies(eng, run.id, Warned)] == [
            ("careful", {"level": 2})
        ]
        assert [body.message.text for body in await bodies(eng, run.id, MessageSent)] == ["nearly there"]


@pytest.mark.parametrize("kind", ["acp", "http"])
async def test_a_thread_here_is_one_conversation_there(store: Path, kind: str) -> None:
    async with remote(kind) as there, mounted(store, there.link) as (eng, _):
        one, other = await eng.threads.create(), await eng.threads.create()
        outputs = []
        for thread, text in ((one, "a"), (other, "b"), (one, "c"), (None, "d")):
            run = await finish(eng, "remembering", {"text": text}, thread=thread.id if thread else None)
            assert run.output is not None
            outputs.append(run.output["value"] if "value" in run.output else next(iter(run.output.values())))
        assert outputs == [["a"], ["b"], ["a", "c"], ["d"]]


@pytest.mark.parametrize("kind", ["acp", "relay", "http"])
async def test_many_runs_share_one_connection(store: Path, kind: str) -> None:
    gate = Gate()
    async with remote(kind, gate) as there, mounted(store, there.link) as (eng, made):
        runs = [await submit(eng, "words", {"text": f"n{n} is done"}) for n in range(30)]
        await asyncio.gather(*(shown(eng, run.id, f"n{n}") for n, run in enumerate(runs)))
        own = await made.own(eng)
        assert own.connects == 1
        assert len(there.node.peers.connected) == (0 if kind == "http" else 1)
        gate.open.set()
        ended = await asyncio.gather(*(output(eng, run.id) for run in runs))
        assert ended == [{"text": f"n{n} is done"} for n in range(30)]
        assert own.connects == 1


async def test_a_connection_that_nobody_uses_is_let_go_and_made_again(store: Path) -> None:
    async with remote() as there, mounted(store, there.link, idle_timeout=0.05) as (eng, made):
        await finish(eng, "words", {"text": "one"})
        await there.running.until(lambda event: event.get("event") == "disconnected")
        await finish(eng, "words", {"text": "two"})
        assert (await made.own(eng)).connects == 2
        assert [peer.id for peer in there.node.peers] == ["peer_001"]  # it is the same peer there


async def test_what_is_too_large_for_the_node_is_not_sent(store: Path) -> None:
    async with remote(max_msg_bytes=20_000) as there, mounted(store, there.link) as (eng, _):
        run = await finish(eng, "words", {"text": "x" * 30_000})
        assert run.status is il.Status.FAILED
        assert run.error is not None
        assert run.error.code == "too_large"
        assert await runs_of(there.node) == []


async def test_frames_are_signed_where_there_is_a_secret(store: Path) -> None:
    async with remote(secret="between us", strict=True) as there:
        async with mounted(store, there.link, secret="between us") as (eng, _):
            assert (await finish(eng, "words", {"text": "hi"})).output == {"text": "hi"}
        async with mounted(store, there.link, secret="something else") as (eng, _):
            run = await finish(eng, "words", {"text": "hi"})
            assert run.status is il.Status.FAILED
            assert run.error is not None
            assert run.error.code == "bad_signature"


# -- questions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BINDINGS)
async def test_what_is_asked_there_is_asked_here_and_answered_there(store: Path, kind: str) -> None:
    async with remote(kind) as there, mounted(store, there.link) as (eng, _):
        run = await submit(eng, "careful", {"text": "hello"})
        first = await question(eng, run.id)
        assert (first.type, first.prompt) == ("confirm", "Say hello?")
        assert first.answer_schema["properties"]["approved"]["type"] == "boolean"
        assert [option.id for option in first.options] == [option.id for option in il.Confirm("x").__options__()]
        await eng.questions.answer(first.id, {"approved": False})
        await eng.questions.answer((await asked_question(eng, run.id, "ask_text")).id, {"text": "bye"})
        assert await output(eng, run.id) == {"text": "hello False bye"}
        (theirs,) = await runs_of(there.node)
        assert theirs.status is il.Status.SUCCEEDED


async def test_an_answer_that_does_not_fit_is_refused_here_and_the_question_stays(store: Path) -> None:
    async with remote() as there, mounted(store, there.link) as (eng, _):
        run = await submit(eng, "careful", {"text": "hello"})
        first = await question(eng, run.id)
        with pytest.raises(InvalidAnswer):
            await eng.questions.answer(first.id, {"approved": "perhaps"})
        await eng.questions.answer(first.id, {"approved": True})
        await eng.questions.answer((await asked_question(eng, run.id, "ask_text")).id, {"text": "x"})
        assert await output(eng, run.id) == {"text": "hello True x"}


@pytest.mark.parametrize("kind", ["acp", "http"])
async def test_a_question_that_is_answered_there_is_withdrawn_here(store: Path, kind: str) -> None:
    async with remote(kind) as there, mounted(store, there.link) as (eng, _):
        run = await submit(eng, "careful", {"text": "hello"})
        await question(eng, run.id)
        (theirs,) = await runs_of(there.node)
        await there.engine.questions.answer((await question(there.engine, theirs.id)).id, {"approved": True})
        second = await asked_question(eng, run.id, "ask_text")
        await eng.questions.answer(second.id, {"text": "bye"})
        assert await output(eng, run.id) == {"text": "hello True bye"}
        assert [body.reason for body in await bodies(eng, run.id, QuestionWithdrawn)] == ["it was answered elsewhere"]


# -- cancelling -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BINDINGS)
async def test_a_run_that_is_cancelled_here_is_cancelled_there(store: Path, kind: str) -> None:
    async with remote(kind) as there, mounted(store, there.link) as (eng, _):
        run = await submit(eng, "stuck", {"text": "x"})
        await shown(eng, run.id, "wait ")
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
        (theirs,) = await runs_of(there.node)
        assert (await there.engine.runs.wait(theirs.id, timeout=20)).status is il.Status.CANCELLED


async def test_a_run_that_waits_for_an_answer_can_be_cancelled(store: Path) -> None:
    async with remote() as there, mounted(store, there.link) as (eng, _):
        run = await submit(eng, "careful", {"text": "x"})
        await question(eng, run.id)
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
        (theirs,) = await runs_of(there.node)
        assert (await there.engine.runs.wait(theirs.id, timeout=20)).status is il.Status.CANCELLED


@pytest.mark.parametrize("kind", ["acp", "http"])
async def test_a_run_that_is_cancelled_there_is_cancelled_here_and_says_so(store: Path, kind: str) -> None:
    async with remote(kind) as there, mounted(store, there.link) as (eng, _):
        run = await submit(eng, "stuck", {"text": "x"})
        await shown(eng, run.id, "wait ")
        (theirs,) = await runs_of(there.node)
        await there.engine.runs.cancel(theirs.id)
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.error is not None
        assert (ended.status, ended.error.code) == (il.Status.CANCELLED, "cancelled")


async def test_cancel_is_sent_once_and_never_where_cancelling_was_seen(store: Path, wire: Wire) -> None:
    async with running_node("Keeper") as there, mounted(store, there.node.link) as (eng, _):
        sent, place = 0, 0
        for seen_before in (False, True):
            run = await submit(eng, "Keeper", {"text": "x"})
            told = await there.until(lambda event: event.get("state") == "submitted", place)
            task, place = told["task_id"], told["seq"]
            await there.post(f"/tasks/{task}:update", {"status": "working"})
            if seen_before:
                await there.post(f"/tasks/{task}:update", {"status": "cancelling"})
                await there.post("/message:send", {"role": "agent", "text": "stopping", "task_id": task})
                await seen(eng, run.id, "message")  # which came after that
            await eng.runs.cancel(run.id)
            assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
            sent += not seen_before
            assert len(wire.of("sent", "task.cancel")) == sent


# -- nodes without agents -------------------------------------------------------------------------------------


async def test_a_node_without_skills_is_one_agent_whose_tasks_its_owner_works_on(store: Path) -> None:
    async with running_node("Shop") as there, mounted(store, there.node.link) as (eng, _):
        (agent,) = eng.agents
        assert agent.card.name == "Shop"
        assert (agent.card.input_text, agent.card.output_text) == ("text", "text")
        run = await submit(eng, "Shop", {"text": "two loaves"})
        task = (await there.until(lambda event: event.get("state") == "submitted"))["task_id"]
        assert (await there.get(f"/tasks/{task}"))["input"]["parts"] == [{"type": "text", "content": "two loaves"}]
        await there.post(f"/tasks/{task}:update", {"status": "working"})
        await there.post(f"/tasks/{task}:update", {"status": "input_required"})
        asked_ = await question(eng, run.id)
        assert asked_.type == "input_required"
        await eng.questions.answer(asked_.id, {"text": "white"})
        answer = await there.message(direction="inbound", task_id=task)
        assert answer["parts"] == [{"type": "text", "content": "white"}]
        await there.post(f"/tasks/{task}:update", {"status": "working"})
        parts: list[dict[str, Any]] = [
            {"type": "text", "content": "here"}, {"type": "data", "content": {"price": 5}},
        ]  # fmt: skip
        await there.post(f"/tasks/{task}:update", {"status": "completed", "artifact": {"parts": parts}})
        assert await output(eng, run.id) == {"text": "here", "data": {"price": 5}}
        (given,) = await bodies(eng, run.id, ArtifactAdded)
        assert given.artifact.parts == [il.DataPart({"price": 5})]


async def test_a_task_that_the_owner_fails_fails_the_run(store: Path) -> None:
    async with running_node("Shop") as there, mounted(store, there.node.link) as (eng, _):
        run = await submit(eng, "Shop", {"text": "two loaves"})
        task = (await there.until(lambda event: event.get("state") == "submitted"))["task_id"]
        await there.post(f"/tasks/{task}:update", {"status": "working"})
        await there.post(f"/tasks/{task}:update", {"status": "failed", "error": "sold out"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.error is not None
        assert (ended.error.code, ended.error.message) == ("remote_failed", "sold out")

"""The mount against the published reference, as it behaves on the wire: messages, and replies to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlingua.model.errors import Denied
from interlingua.mounts.loader import local_agents
from tests.kit.engines import finish, submit
from tests.kit.mounts.peer import mount, mounted, output

from .reference import Reference, Version

VERSIONS: tuple[Version, ...] = ("2.19", "2.48")


def upper(frame: dict[str, Any]) -> str:
    return str(frame["parts"][0]["content"]).upper()


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_message_and_its_reply_are_a_run(store: Path, version: Version) -> None:
    async with Reference(version=version).host() as ref:
        ref.answers = upper
        async with mounted(store, ref.link) as (eng, _):
            (agent,) = eng.agents
            assert (agent.card.name, agent.card.input_text, agent.card.output_text) == ("RefAgent", "text", "text")
            assert (await finish(eng, "RefAgent", {"text": "grüß dich"})).output == {"text": "GRÜSS DICH"}
            message = await ref.came("acp.message")
            assert message["correlation_id"] == message["message_id"]
            assert message["role"] == "user"
            assert message["ts"].endswith("Z")
            assert message["from"] == (ref.peer_card or {})["name"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_nothing_is_sent_that_the_reference_takes_for_a_message_or_falls_over(
    store: Path, version: Version
) -> None:
    async with Reference(version=version).host() as ref:
        ref.answers = upper
        async with mounted(store, ref.link) as (eng, _):
            await finish(eng, "RefAgent", {"text": "hi"})
            await finish(eng, "RefAgent", {"text": "again"})
            assert ref.recv == []
            assert len(ref.sockets) == 1
            assert {frame["type"] for frame in ref.frames} <= {"acp.agent_card", "acp.message", "acp.delivered"}
    assert 1011 not in ref.closes


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_skill_is_an_agent_and_the_message_names_it(store: Path, version: Version) -> None:
    async with Reference(version=version, skills=("summarize", "translate")).host() as ref:
        ref.answers = upper
        async with mounted(store, ref.link) as (eng, _):
            assert [agent.card.name for agent in eng.agents] == ["summarize", "translate"]
            await finish(eng, "translate", {"text": "hi"})
            assert (await ref.came("acp.message"))["skill_id"] == "translate"


async def test_a_reply_may_have_parts_or_any_content(store: Path) -> None:
    parts = [{"type": "text", "content": "so"}, {"type": "data", "content": {"n": 1}}]
    replies: list[Any] = [parts, {"answer": 42}, "plain"]
    async with Reference().host() as ref, mounted(store, ref.link) as (eng, _):
        ref.answers = lambda frame: replies[int(frame["parts"][0]["content"])]
        outputs = [(await finish(eng, "RefAgent", {"text": str(n)})).output for n in range(3)]
        assert outputs == [
            {"text": "so", "data": {"n": 1}},
            {"text": "", "data": {"answer": 42}},
            {"text": "plain"},
        ]


async def test_a_message_that_names_what_it_answers_is_a_reply_too(store: Path) -> None:
    async with Reference().host() as ref, mounted(store, ref.link) as (eng, _):
        run = await submit(eng, "RefAgent", {"text": "hi"})
        asked = await ref.came("acp.message")
        await ref.send("something else")
        await ref.send("that is it", correlation_id=asked["message_id"])
        assert await output(eng, run.id) == {"text": "that is it"}


async def test_data_goes_beside_the_text(store: Path) -> None:
    async with Reference().host() as ref, mounted(store, ref.link) as (eng, _):
        ref.answers = upper
        await finish(eng, "RefAgent", {"text": "look", "data": {"rows": [1, 2]}})
        assert (await ref.came("acp.message"))["parts"] == [
            {"type": "text", "content": "look"},
            {"type": "data", "content": {"rows": [1, 2]}},
        ]


async def test_a_thread_is_a_context(store: Path) -> None:
    async with Reference().host() as ref, mounted(store, ref.link) as (eng, _):
        ref.answers = upper
        thread = await eng.threads.create()
        for _ in range(2):
            await finish(eng, "RefAgent", {"text": "hi"}, thread=thread.id)
        await finish(eng, "RefAgent", {"text": "hi"})
        contexts = [frame.get("context_id") for frame in ref.frames if frame["type"] == "acp.message"]
        assert contexts[0] == contexts[1] is not None
        assert contexts[2] is None


async def test_one_that_does_not_reply_in_time_fails_the_run_as_transient(store: Path) -> None:
    async with Reference().host() as ref, mounted(store, ref.link, reply_within=0.2) as (eng, _):
        run = await finish(eng, "RefAgent", {"text": "hi"})
        assert run.error is not None
        assert (run.error.code, run.error.transient) == ("no_reply", True)


async def test_a_reply_counts_also_over_the_next_connection(store: Path) -> None:
    async with Reference().host() as ref, mounted(store, ref.link) as (eng, _):
        run = await submit(eng, "RefAgent", {"text": "hi"})
        asked = await ref.came("acp.message")
        first = ref.sockets[-1]
        await first.close()
        await ref.until(lambda: ref.sockets and ref.sockets[-1] is not first)
        await ref.until(lambda: len([f for f in ref.frames if f["type"] == "acp.message"]) == 2)
        assert [f["message_id"] for f in ref.frames if f["type"] == "acp.message"] == [asked["message_id"]] * 2
        assert len(ref.messages) == 1  # it knows the message again
        await ref.reply(asked["message_id"], "at last")
        assert await output(eng, run.id) == {"text": "at last"}


async def test_a_wrong_token_is_told_apart_from_a_broken_connection() -> None:
    async with Reference().host() as ref:
        with pytest.raises(Denied, match="does not know the token"):
            await local_agents(mount(ref.link + "0"))


async def test_a_signature_of_the_reference_is_made_and_checked(store: Path) -> None:
    async with Reference(secret="between us").host() as ref, mounted(store, ref.link, secret="between us") as (eng, _):
        ref.answers = upper
        assert (await finish(eng, "RefAgent", {"text": "hi"})).output == {"text": "HI"}
        assert "_sig_invalid" not in ref.messages[0]
        assert ref.messages[0]["sig"]


async def test_odd_frames_of_a_peer_change_nothing_for_a_run(store: Path) -> None:
    async with Reference().host() as ref, mounted(store, ref.link) as (eng, _):
        run = await submit(eng, "RefAgent", {"text": "hi"})
        asked = await ref.came("acp.message")
        for odd in ("no json", b"\x00\x01", "[1,2]", "7", '{"type":5}', '{"type":"acp.reply"}', '{"parts":"x"}'):
            await ref.raw(odd)
        await ref.raw({"type": "acp.message", "correlation_id": asked["message_id"], "from": "Ref", "parts": "no list"})
        await ref.raw({"type": "task.updated", "task_id": "task_x", "status": "banana"})
        await ref.raw(ref.relayed(ref.message("by the way")))
        await ref.reply(asked["message_id"], "fine")
        assert await output(eng, run.id) == {"text": "fine"}

"""Every pair of protocols: agents mounted from one, reached through the door of another, with all that a run can have.

The tables in each protocol's `translate.py` say what a wire has no place for. Where neither side of a pair declares a
loss, all of it must arrive; where one does, exactly what is left. Our own agents are among the sources, as those that
lose nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.kit.wait_for import PATIENCE

from . import behaviours as does
from .clients import CLIENTS, DoorClient, Ended, File
from .clients.editor import EditorClient, Pipes
from .gate import Gate
from .running import Way, running_hub, running_hub_beside, running_stdio

NATIVE = "native"
SOURCES = (*does.PROTOCOLS, NATIVE)
DOORS = does.PROTOCOLS
MODERN = "mcp-2026"  # the revision of MCP that has no sessions: it asks and cancels in other ways

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1"}


def pairs(*doors: str) -> pytest.MarkDecorator:
    found = [(source, door) for source in SOURCES for door in doors]
    return pytest.mark.parametrize(("source", "door"), found, ids=[f"{source}-{door}" for source, door in found])


every_pair = pairs(*DOORS)
every_way_to_ask = pairs(*DOORS, MODERN)


def lost(feature: str, source: str, door: str) -> bool:
    """Whether one side of a pair declares that it has no place for something."""
    return lost_by(feature, door.partition("-")[0], "DOOR") or lost_at(source, feature)


def lost_at(source: str, feature: str) -> bool:
    """Whatever the door is."""
    return source != NATIVE and lost_by(feature, source, "MOUNT")


def lost_by(feature: str, protocol: str, side: str) -> bool:
    table = getattr(importlib.import_module(f"interlingua.protocols.{protocol}.parity"), side)
    return bool(table[feature].lost)


def client_of(hub: str, door: str) -> contextlib.AbstractAsyncContextManager[DoorClient]:
    return using(CLIENTS[door](hub))


@contextlib.asynccontextmanager
async def using(client: DoorClient) -> AsyncIterator[DoorClient]:
    try:
        async with asyncio.timeout(PATIENCE):
            yield client
    finally:
        await client.close()


def fits(schema: dict[str, Any], value: Any) -> bool:
    return jsonschema_rs.validator_for(schema).is_valid(value)


async def ended(client: DoorClient, agent: str, text: str, **more: Any) -> Ended:
    return await (await client.start(agent, text, **more)).end()


async def said(client: DoorClient, agent: str, text: str, **more: Any) -> str:
    end = await ended(client, agent, text, **more)
    assert end.status == "succeeded", end
    return end.text


# -- running --------------------------------------------------------------------------------------------------


@every_pair
async def test_agents_are_listed_with_what_they_say_of_themselves(hub: str, source: str, door: str) -> None:
    async with client_of(hub, door) as client:
        found = {one.name: one.description for one in await client.list()}
        assert found[f"talker-{source}"] == does.TALKER
        if lost_at(source, "structured_in"):  # a protocol whose agents tell no schema
            assert f"typed-{source}" not in found
        else:
            assert found[f"typed-{source}"] == does.TYPED


@every_pair
async def test_an_agent_is_run(hub: str, source: str, door: str) -> None:
    async with client_of(hub, door) as client:
        assert await said(client, f"talker-{source}", "say one two three") == "one two three "


@every_way_to_ask
async def test_output_streams_while_it_is_made(hub: str, source: str, door: str) -> None:
    async with client_of(hub, door) as client, Gate() as gate:
        turn = await client.start(f"talker-{source}", f"stream {gate.url}")
        assert await turn.delta() == "one "
        gate.open("stream")  # the agent waits for this: what came before it was not held back until the end
        assert await turn.delta() == "two "
        assert (await turn.end()).text == "one two "


# -- structure ------------------------------------------------------------------------------------------------


@every_pair
async def test_structure_goes_in_and_comes_out(hub: str, source: str, door: str) -> None:
    async with client_of(hub, door) as client:
        if lost_at(source, "structured_in"):
            written = json.dumps(does.NUMBERS_IN, separators=(",", ":"))
            assert json.loads(await said(client, f"talker-{source}", f"say {written}")) == does.NUMBERS_IN
            return
        turn = await client.start(f"typed-{source}", data=does.NUMBERS_IN)
        end = await turn.end()
        assert end.output == does.TOTAL_OUT, end
        pieces = turn.pieces()
        if lost("structured_out", source, door):
            (piece,) = pieces
            assert json.loads(piece.removeprefix("```json").removesuffix("```")) == does.TOTAL_OUT
        else:
            assert sum(piece.get("total", 0) for piece in pieces) == does.TOTAL_OUT["total"]
            seen = [number for piece in pieces for number in piece.get("seen", []) if number is not None]
            assert seen == does.TOTAL_OUT["seen"]


# -- content --------------------------------------------------------------------------------------------------


@every_pair
async def test_files_and_data_reach_the_agent(hub: str, source: str, door: str) -> None:
    async with client_of(hub, door) as client, Gate() as gate:
        name, media_type, body = does.FILE_IN
        offered = gate.offer(name, media_type, body) if door == "peer" else ""  # that wire has only addresses
        file = File(name, media_type, body, offered)
        told = json.loads(await said(client, f"talker-{source}", "files", files=(file,), parts=(does.DATA_IN,)))
        assert told["files"] == ([] if lost("files_in", source, door) else [does.EXPECTED_FILE])
        assert told["data"] == ([] if lost("data_in", source, door) else [does.DATA_IN])


@every_pair
async def test_files_and_data_of_the_agent_arrive(hub: str, source: str, door: str) -> None:
    async with client_of(hub, door) as client:
        end = await ended(client, f"talker-{source}", "files")
        assert end.status == "succeeded", end
        files = [(file.name, file.media_type, await client.body(file)) for file in end.files]
        assert files == ([] if lost("files_out", source, door) else [does.FILE_OUT])
        given = [value for value in (end.output, *end.data) if isinstance(value, dict)]
        found = any(does.DATA_OUT.items() <= value.items() for value in given)
        assert found is not lost("data_out", source, door), end


# -- threads --------------------------------------------------------------------------------------------------


@every_pair
async def test_a_thread_remembers_and_another_does_not(hub: str, source: str, door: str) -> None:
    async with client_of(hub, door) as client:
        agent = f"talker-{source}"
        first, other = await client.new_thread(), await client.new_thread()
        assert await said(client, agent, "remember pears", thread=first) == "ok"
        kept = "nothing" if lost("threads", source, door) else "pears"
        assert await said(client, agent, "recall", thread=first) == kept
        assert await said(client, agent, "recall", thread=other) == "nothing"
        assert await said(client, agent, "recall") == "nothing"


# -- questions ------------------------------------------------------------------------------------------------


@every_way_to_ask
@pytest.mark.parametrize("choice", ["allow", "reject"])
async def test_a_choice_is_asked_for_and_made(hub: str, source: str, door: str, choice: str) -> None:
    assert not lost_at(source, "choose")  # a door may lose what is said beside a choice, and never the choice
    async with client_of(hub, door) as client:
        turn = await client.start(f"talker-{source}", "choose")
        asked = await turn.question()
        assert (asked.kind, asked.prompt, asked.options) == ("choose", does.MAY_I, ("allow", "reject"))
        await turn.answer(choice)
        assert (await turn.end()).text == f"chose {choice}"


BESIDE = {"approved": False, "reason": "too ripe"}
REJECTED: dict[str, Any] = {
    "editor": "no", "mcp": {"choice": "no", "reason": "too ripe"}, MODERN: {"choice": "no", "reason": "too ripe"},
}  # fmt: skip
"""How clients say BESIDE that are asked for a choice, and know nothing of what we add to it."""


@pytest.mark.parametrize("door", [*DOORS, MODERN])
async def test_what_an_answer_says_beside_its_choice_arrives_too(hub: str, door: str) -> None:
    async with client_of(hub, door) as client:
        turn = await client.start("careful-native", "it")
        assert (await turn.question()).prompt == does.MAY_I
        await turn.answer(REJECTED.get(door, BESIDE))
        heard = json.loads((await turn.end()).text)
        assert heard == {**BESIDE, **({"reason": None} if lost("choose", NATIVE, door) else {})}


@every_way_to_ask
async def test_a_form_is_asked_for_and_filled_in(hub: str, source: str, door: str) -> None:
    assert not lost("form", source, door)
    async with client_of(hub, door) as client:
        turn = await client.start(f"talker-{source}", "form")
        asked = await turn.question()
        assert (asked.kind, asked.prompt, asked.members) == ("form", does.WHO, ("name", "age"))
        await turn.answer({"name": "Ada", "age": 36})
        assert (await turn.end()).text == "name is Ada, age is 36"


@every_way_to_ask
@pytest.mark.parametrize("what", does.WANTED)
async def test_what_is_more_than_a_flat_form_is_asked_for_and_given(
    hub: str, source: str, door: str, what: str
) -> None:
    assert not lost("form", source, door)
    async with client_of(hub, door) as client:
        turn = await client.start(f"talker-{source}", f"want {what}")
        asked = await turn.question()
        prompt, schema = does.WANTED[what]
        assert (asked.kind, asked.prompt, asked.members) == ("form", prompt, tuple(schema.get("properties", ())))
        assert fits(asked.schema, does.GIVEN[what])
        assert not fits(asked.schema, does.WRONG[what])
        await turn.answer(does.GIVEN[what])
        assert json.loads((await turn.end()).text) == does.GIVEN[what]


@every_way_to_ask
async def test_words_are_asked_for_and_given(hub: str, source: str, door: str) -> None:
    assert not lost("ask", source, door)
    async with client_of(hub, door) as client:
        turn = await client.start(f"talker-{source}", "ask")
        asked = await turn.question()
        assert (asked.kind, asked.prompt) == ("ask", does.WHAT)
        await turn.answer("more pears")
        assert (await turn.end()).text == "you said: more pears"


# -- ends -----------------------------------------------------------------------------------------------------


@every_way_to_ask
async def test_a_run_is_cancelled_where_its_agent_is(hub: str, source: str, door: str) -> None:
    assert not lost("cancel", source, door)
    async with client_of(hub, door) as client, Gate() as gate:
        turn = await client.start(f"talker-{source}", f"wait {gate.url}")
        assert await turn.delta() == "waiting "
        await gate.note("begun")
        await turn.cancel()
        assert (await turn.end()).status == "cancelled"
        await gate.note("cancelled")


@every_pair
@pytest.mark.parametrize("transient", [True, False], ids=["transient", "final"])
async def test_an_error_arrives_with_its_code_its_details_and_whether_it_may_pass(
    hub: str, source: str, door: str, transient: bool
) -> None:
    async with client_of(hub, door) as client:
        end = await ended(client, f"talker-{source}", f"fail too_ripe {'yes' if transient else 'no'}")
        assert (end.status, end.text) == ("failed", "")
        assert end.error is not None
        assert end.error.message == does.broke("too_ripe")
        assert (end.error.code == "too_ripe") is not lost("error_code", source, door)
        assert end.error.transient is (transient and not lost("error_transient", source, door))
        assert end.error.details == (None if lost("error_details", source, door) else does.DETAILS)


# -- what goes along ------------------------------------------------------------------------------------------


@every_pair
async def test_metadata_reaches_the_agent(hub: str, source: str, door: str) -> None:
    async with client_of(hub, door) as client, Gate() as gate:
        given = {"ticket": "T-7", "deep": {"er": [1, None]}}
        assert await said(client, f"talker-{source}", f"meta {gate.url}", metadata=given) == "ok"
        heard = (await gate.note("meta"))["metadata"] or {}
        assert heard == ({} if lost("metadata", source, door) else given)


@every_pair
async def test_one_trace_goes_all_the_way(hub: str, source: str, door: str) -> None:
    assert not lost("trace", source, door)
    async with client_of(hub, door) as client, Gate() as gate:
        assert await said(client, f"talker-{source}", f"meta {gate.url}", trace=TRACE) == "ok"
        heard = await gate.note("meta")
        assert heard["traceparent"].split("-")[:2] == TRACE["traceparent"].split("-")[:2]
        assert heard["tracestate"] == TRACE["tracestate"]


# -- several hops ---------------------------------------------------------------------------------------------

FAR = "talker-connect"


@pytest.fixture(scope="module")
def chain(hub: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A second hub, which has mounted the first by the peer protocol, which has mounted a source by Connect."""
    with running_hub([f"peer+{hub}/peer#{FAR}"], tmp_path_factory.mktemp("chain")) as address:
        yield address


async def test_output_streams_over_three_hops(chain: str) -> None:
    async with client_of(chain, "editor") as client, Gate() as gate:
        turn = await client.start(FAR, f"stream {gate.url}")
        assert await turn.delta() == "one "
        gate.open("stream")
        assert await turn.delta() == "two "
        assert (await turn.end()).text == "one two "


async def test_a_question_is_asked_and_answered_over_three_hops(chain: str) -> None:
    async with client_of(chain, "editor") as client:
        for word, answer, end in (
            ("choose", "reject", "chose reject"),
            ("form", {"name": "Ada", "age": 36}, "name is Ada, age is 36"),
            ("want team", does.GIVEN["team"], json.dumps(does.GIVEN["team"])),
            ("ask", "more pears", "you said: more pears"),
        ):
            turn = await client.start(FAR, word)
            assert (await turn.question()).kind == ("form" if "team" in word else word)
            await turn.answer(answer)
            assert (await turn.end()).text == end


async def test_a_run_is_cancelled_over_three_hops(chain: str) -> None:
    async with client_of(chain, "editor") as client, Gate() as gate:
        turn = await client.start(FAR, f"wait {gate.url}")
        assert await turn.delta() == "waiting "
        await gate.note("begun")
        await turn.cancel()
        assert (await turn.end()).status == "cancelled"
        await gate.note("cancelled")


async def test_an_error_comes_back_over_three_hops(chain: str) -> None:
    async with client_of(chain, "editor") as client:
        end = await ended(client, FAR, "fail too_ripe yes")
        assert end.error is not None
        assert (end.error.code, end.error.message, end.error.transient) == ("too_ripe", does.broke("too_ripe"), True)
        assert end.error.details == does.DETAILS


async def test_one_trace_and_one_count_go_over_three_hops(chain: str) -> None:
    async with client_of(chain, "editor") as client, Gate() as gate:
        given = {**TRACE, "baggage": "shop=7"}
        assert await said(client, FAR, f"meta {gate.url}", metadata={"ticket": "T-7"}, trace=given) == "ok"
        heard = await gate.note("meta")
        assert heard["metadata"] == {"ticket": "T-7"}
        assert heard["traceparent"].split("-")[:2] == TRACE["traceparent"].split("-")[:2]
        assert heard["tracestate"] == TRACE["tracestate"]
        assert sorted(heard["baggage"].split(",")) == ["interlingua-hops=2", "shop=7"]


async def test_an_editor_that_starts_its_agent_reaches_one_three_hops_away(hub: str, tmp_path: Path) -> None:
    async with (
        Gate() as gate,
        running_stdio("editor", [f"peer+{hub}/peer#{FAR}"], tmp_path / "beside") as process,
        using(EditorClient("", Pipes(process))) as client,
    ):
        turn = await client.start(FAR, f"stream {gate.url}")
        assert await turn.delta() == "one "
        gate.open("stream")
        assert (await turn.end()).text == "one two "
        turn = await client.start(FAR, "choose")
        assert (await turn.question()).options == ("allow", "reject")
        await turn.answer("allow")
        assert (await turn.end()).text == "chose allow"


NO_REFRESH = ("--mounting-refresh", "0")
# A hub that looks at its mount once more finds that the agent is its own, and has it no longer.
ONE_LOOK = ("--mounting-retry-first", "3600", "--mounting-retry-last", "3600", *NO_REFRESH)


async def test_a_loop_of_two_hubs_ends_with_an_error_that_says_so(hub: str, tmp_path: Path) -> None:
    agent = "talker-native"
    async with (
        Way(hub) as way,
        running_hub_beside([f"connect+{way.address}/connect#{agent}"], tmp_path / "one", *ONE_LOOK) as one,
        running_hub_beside([f"cap+{one}/cap#{agent}"], tmp_path / "other", *NO_REFRESH) as other,
        client_of(one, "connect") as client,
    ):
        async with client_of(other, "connect") as beside:  # both mounts are up before they make a loop
            assert await said(beside, agent, "say round") == "round "
        await way.lead_to(other)  # from now on each of the two has mounted the other
        end = await ended(client, agent, "say round")
        assert end.error is not None
        assert (end.error.code, end.error.transient) == ("too_many_hops", False)
        assert "max_hops" in end.error.message

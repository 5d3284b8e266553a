"""Every pair of protocols: agents mounted from one, reached through the door of another, with all that a run can have.

The tables in each protocol's `translate.py` say what a wire has no place for. Where neither side of a pair declares a
loss, all of it must arrive; where one does, exactly what is left.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from . import behaviours as does
from .clients import CLIENTS, DoorClient, Ended, File
from .gate import Gate

SOURCES = (*does.PROTOCOLS, "native")
DOORS = does.PROTOCOLS
PAIRS = pytest.mark.parametrize(
    ("source", "door"), [(source, door) for source in SOURCES for door in DOORS], ids=lambda name: name
)


@contextlib.asynccontextmanager
async def client_of(hub: str, door: str) -> AsyncIterator[DoorClient]:
    client = CLIENTS[door](hub)
    try:
        yield client
    finally:
        await client.close()


async def said(client: DoorClient, agent: str, text: str, **more: object) -> Ended:
    return await (await client.start(agent, text, **more)).end()  # type: ignore[arg-type]


@PAIRS
async def test_agents_are_listed(hub: str, source: str, door: str) -> None:
    async with client_of(hub, door) as client:
        found = {one.name: one.description for one in await client.list()}
        assert f"talker-{source}" in found


@PAIRS
async def test_an_agent_is_run(hub: str, source: str, door: str) -> None:
    async with client_of(hub, door) as client:
        ended = await said(client, f"talker-{source}", "say one two three")
        assert (ended.status, ended.text) == ("succeeded", "one two three ")


@PAIRS
async def test_output_streams_as_it_is_made(hub: str, source: str, door: str) -> None:
    async with client_of(hub, door) as client, Gate() as gate:
        turn = await client.start(f"talker-{source}", f"stream {gate.url}")
        assert await turn.delta() == "one "
        gate.open("stream")
        assert await turn.delta() == "two "
        assert (await turn.end()).text == "one two "


@PAIRS
async def test_structure_goes_in_and_comes_out(hub: str, source: str, door: str) -> None:
    async with client_of(hub, door) as client:
        turn = await client.start(f"typed-{source}", data=does.NUMBERS_IN)
        assert (await turn.end()).output == does.TOTAL_OUT


@PAIRS
async def test_files_and_data_go_both_ways(hub: str, source: str, door: str) -> None:
    async with client_of(hub, door) as client, Gate() as gate:
        name, media_type, body = does.FILE_IN
        url = gate.offer(name, media_type, body) if door == "peer" else ""
        file = File(name, media_type, body, url)
        ended = await said(client, f"talker-{source}", "files", files=(file,), parts=(does.DATA_IN,))
        assert ended.status == "succeeded", ended
        told = json.loads(ended.text)
        assert told["files"] == [does.EXPECTED_FILE]
        assert told["data"] == [does.DATA_IN]
        assert does.DATA_OUT in ended.data
        assert [(f.name, f.media_type, f.data) for f in ended.files] == [does.FILE_OUT]


@PAIRS
async def test_a_thread_remembers(hub: str, source: str, door: str) -> None:
    async with client_of(hub, door) as client:
        agent = f"talker-{source}"
        first, other = await client.new_thread(), await client.new_thread()
        assert (await said(client, agent, "remember pears", thread=first)).text == "ok"
        assert (await said(client, agent, "recall", thread=first)).text == "pears"
        assert (await said(client, agent, "recall", thread=other)).text == "nothing"


@PAIRS
@pytest.mark.parametrize("choice", ["allow", "reject"])
async def test_a_choice_is_asked_for_and_made(hub: str, source: str, door: str, choice: str) -> None:
    async with client_of(hub, door) as client:
        turn = await client.start(f"talker-{source}", "choose")
        asked = await turn.question()
        assert (asked.kind, asked.prompt, asked.options) == ("choose", does.MAY_I, ("allow", "reject"))
        await turn.answer(choice)
        assert (await turn.end()).text == f"chose {choice}"


@PAIRS
async def test_a_form_is_asked_for_and_filled_in(hub: str, source: str, door: str) -> None:
    async with client_of(hub, door) as client:
        turn = await client.start(f"talker-{source}", "form")
        asked = await turn.question()
        assert (asked.kind, asked.prompt, asked.members) == ("form", does.WHO, ("name", "age"))
        await turn.answer({"name": "Ada", "age": 36})
        assert (await turn.end()).text == "name is Ada, age is 36"


@PAIRS
async def test_words_are_asked_for_and_given(hub: str, source: str, door: str) -> None:
    async with client_of(hub, door) as client:
        turn = await client.start(f"talker-{source}", "ask")
        asked = await turn.question()
        assert (asked.kind, asked.prompt) == ("ask", does.WHAT)
        await turn.answer("more pears")
        assert (await turn.end()).text == "you said: more pears"


@PAIRS
async def test_a_run_is_cancelled_at_its_agent(hub: str, source: str, door: str) -> None:
    async with client_of(hub, door) as client, Gate() as gate:
        turn = await client.start(f"talker-{source}", f"wait {gate.url}")
        assert await turn.delta() == "waiting "
        await gate.note("begun")
        await turn.cancel()
        assert (await turn.end()).status == "cancelled"
        await gate.note("cancelled")


@PAIRS
@pytest.mark.parametrize("transient", [True, False])
async def test_an_error_arrives_with_its_code_and_whether_it_may_pass(
    hub: str, source: str, door: str, transient: bool
) -> None:
    async with client_of(hub, door) as client:
        ended = await said(client, f"talker-{source}", f"fail too_ripe {'yes' if transient else 'no'}")
        assert ended.status == "failed"
        assert ended.error is not None
        assert ended.error.message == does.broke("too_ripe")
        assert ended.error.code == "too_ripe"
        assert ended.error.transient is transient


@PAIRS
async def test_metadata_and_trace_reach_the_agent(hub: str, source: str, door: str) -> None:
    async with client_of(hub, door) as client, Gate() as gate:
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        ended = await said(
            client, f"talker-{source}", f"meta {gate.url}", metadata={"ticket": "T-7"},
            trace={"traceparent": parent, "tracestate": "vendor=1"},
        )  # fmt: skip
        assert ended.text == "ok"
        heard = await gate.note("meta")
        assert heard["metadata"] == {"ticket": "T-7"}
        assert heard["traceparent"].split("-")[1] == parent.split("-")[1]

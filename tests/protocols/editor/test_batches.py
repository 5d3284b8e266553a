"""Batches through the door, on connections of both versions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.protocols.editor.config import DoorSettings
from interlingua.transports.jsonrpc.core import CANCELLED, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR
from tests.kit.clients.editor import Client, in_process, prompt, selected

VERSIONS = pytest.mark.parametrize("version", [1, 2])


class Verdict(msgspec.Struct):
    allowed: bool


class Consent(il.Question[Verdict]):
    what: str


@il.agent(asks=[Consent])
async def helper(text: str, ctx: il.Context[None, None]) -> AsyncIterator[str]:
    """Does what the text says: ask, wait, or repeat it."""
    if text.startswith("ask"):
        verdict = await ctx.ask(Consent(what=text))
        yield f"allowed: {verdict.allowed}"
    elif text.startswith("wait"):
        yield "waiting"
        await ctx.sleep(3600)
    else:
        yield text


def is_array(frame: Any) -> bool:
    return isinstance(frame, list)


def by_id(answers: list[Any]) -> dict[Any, Any]:
    assert len({answer["id"] for answer in answers}) == len(answers)
    return {answer["id"]: answer for answer in answers}


async def alive(client: Client) -> None:
    """It answers, and everything that it had to say before came before."""
    assert "sessions" in await client.ask("session/list")


def note(method: str, params: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params or {}}


@VERSIONS
async def test_a_line_that_is_not_json_is_one_parse_error_even_if_it_begins_as_a_batch(
    store: Path, version: int
) -> None:
    async with in_process(store, helper) as client:
        await client.initialize(version)
        await client.raw(b'[{"jsonrpc":"2.0","id":1,"method":"session/list"},\n')
        frame = await client.frame(lambda f: isinstance(f, dict) and f.get("id", 0) is None)
        assert frame["error"]["code"] == PARSE_ERROR
        await alive(client)


@VERSIONS
async def test_an_empty_batch_is_one_error_object(store: Path, version: int) -> None:
    async with in_process(store, helper) as client:
        await client.initialize(version)
        await client.line([])
        await alive(client)
        [_, refused, _] = client.frames
        assert (refused["id"], refused["error"]["code"]) == (None, INVALID_REQUEST)


@VERSIONS
async def test_requests_and_notifications_are_answered_by_one_array(store: Path, version: int) -> None:
    async with in_process(store, helper) as client:
        await client.initialize(version)
        await client.line(
            [
                client.message("session/list", id_="a"),
                note("session/cancel", {"sessionId": "none"}),
                client.message("_unknown", id_="b"),
                note("_unknown"),
                client.message("session/list", id_="c"),
            ]
        )
        answers = by_id(await client.frame(is_array))
        assert set(answers) == {"a", "b", "c"}
        assert answers["a"]["result"] == answers["c"]["result"] == {"sessions": []}
        assert answers["b"]["error"]["code"] == METHOD_NOT_FOUND


@VERSIONS
async def test_notifications_alone_are_answered_by_nothing(store: Path, version: int) -> None:
    async with in_process(store, helper) as client:
        await client.initialize(version)
        await client.line([note("session/cancel", {"sessionId": "none"}), note("_unknown"), note("$/cancel_request")])
        await alive(client)
        assert len(client.frames) == 2


@VERSIONS
@pytest.mark.parametrize("entry", [1, "x", None, [], [1], {}, {"jsonrpc": "2.0", "id": 1}, {"id": 1, "method": "m"}])
async def test_an_invalid_entry_is_an_error_inside_the_array(store: Path, version: int, entry: Any) -> None:
    async with in_process(store, helper) as client:
        await client.initialize(version)
        await client.line([entry, client.message("session/list", id_="a")])
        answers = by_id(await client.frame(is_array))
        assert answers[entry.get("id") if isinstance(entry, dict) else None]["error"]["code"] == INVALID_REQUEST
        assert answers["a"]["result"] == {"sessions": []}
        assert len(answers) == 2


@VERSIONS
async def test_three_numbers_are_three_errors(store: Path, version: int) -> None:
    async with in_process(store, helper) as client:
        await client.initialize(version)
        await client.line([1, 2, 3])
        answers = await client.frame(is_array)
        assert [(a["id"], a["error"]["code"]) for a in answers] == [(None, INVALID_REQUEST)] * 3


@VERSIONS
async def test_one_request_is_answered_by_an_array_of_one(store: Path, version: int) -> None:
    async with in_process(store, helper) as client:
        await client.initialize(version)
        await client.line([client.message("session/list", id_="a")])
        [answer] = await client.frame(is_array)
        assert answer["id"] == "a"


@VERSIONS
async def test_initialize_alone_in_a_batch_works(store: Path, version: int) -> None:
    async with in_process(store, helper) as client:
        await client.line([client.message("initialize", {"protocolVersion": version}, id_="a")])
        [answer] = await client.frame(is_array)
        assert answer["result"]["protocolVersion"] == version
        await alive(client)


@VERSIONS
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("other", ["request", "notification", "garbage"])
async def test_initialize_with_others_in_a_batch_is_refused(store: Path, version: int, place: int, other: str) -> None:
    async with in_process(store, helper) as client:
        entries: dict[str, Any] = {
            "request": client.message("session/list", id_="b"),
            "notification": note("_x"),
            "garbage": 1,
        }
        batch = [entries[other]]
        batch.insert(place, client.message("initialize", {"protocolVersion": version}, id_="a"))
        await client.line(batch)
        answers = by_id(await client.frame(is_array))
        assert {answer["error"]["code"] for answer in answers.values()} == {INVALID_REQUEST}
        assert "a" in answers
        assert (await client.initialize(version))["protocolVersion"] == version


@VERSIONS
async def test_of_two_requests_with_one_id_both_are_answered(store: Path, version: int) -> None:
    async with in_process(store, helper) as client:
        await client.initialize(version)
        await client.line([client.message("session/list", id_="a"), client.message("_nothing", id_="a")])
        answers = await client.frame(is_array)
        assert [answer["id"] for answer in answers] == ["a", "a"]
        assert sorted("error" in answer for answer in answers) == [False, True]


@VERSIONS
async def test_a_response_among_calls_is_an_invalid_entry_and_a_batch_of_responses_is_silence(
    store: Path, version: int
) -> None:
    async with in_process(store, helper) as client:
        await client.initialize(version)
        response = {"jsonrpc": "2.0", "id": 1, "result": {}}
        await client.line([response, {"id": "x", "result": 1}, {"error": None}])
        await alive(client)
        assert len(client.frames) == 2
        await client.line([response, client.message("session/list", id_="a")])
        answers = by_id(await client.frame(is_array))
        assert answers[None]["error"]["code"] == INVALID_REQUEST
        assert "result" in answers["a"]


@VERSIONS
async def test_more_entries_than_allowed_are_one_error(store: Path, version: int) -> None:
    async with in_process(store, helper, door=DoorSettings(max_batch=10)) as client:
        await client.initialize(version)
        await client.line([client.message("session/list") for _ in range(11)])
        frame = await client.frame(lambda f: isinstance(f, dict) and f.get("id", 0) is None)
        assert frame["error"]["code"] == INVALID_REQUEST
        assert "10 entries" in frame["error"]["message"]
        await client.line([client.message("session/list") for _ in range(10)])
        assert len(await client.frame(is_array)) == 10


async def test_a_slow_entry_holds_back_its_array_and_no_other_line(store: Path) -> None:
    async with in_process(store, helper) as client:
        await client.initialize()
        session = await client.new_session()
        slow = client.message("session/prompt", prompt(session, "wait"), id_="slow")
        await client.line([slow, client.message("session/list", id_="quick")])
        await client.update("agent_message_chunk")
        await alive(client)
        assert not any(is_array(frame) for frame in client.frames)
        await client.notify("session/cancel", {"sessionId": session})
        answers = by_id(await client.frame(is_array))
        assert answers["slow"]["result"]["stopReason"] == "cancelled"
        assert "result" in answers["quick"]


async def test_a_sibling_is_cancelled_inside_a_batch(store: Path) -> None:
    async with in_process(store, helper) as client:
        await client.initialize()
        session = await client.new_session()
        await client.line(
            [
                client.message("session/prompt", prompt(session, "wait"), id_="slow"),
                client.message("session/list", id_="quick"),
                note("$/cancel_request", {"requestId": "slow"}),
            ]
        )
        answers = by_id(await client.frame(is_array))
        assert set(answers) == {"slow", "quick"}
        slow = answers["slow"]
        assert slow["result"]["stopReason"] == "cancelled" if "result" in slow else slow["error"]["code"] == CANCELLED


@VERSIONS
async def test_a_request_that_asks_back_in_the_middle_of_a_batch_does_not_wait_for_itself(
    store: Path, version: int
) -> None:
    async with in_process(store, helper) as client:
        await client.initialize(version)
        session = await client.new_session()
        await client.line(
            [
                client.message("session/prompt", prompt(session, "ask first"), id_="a"),
                client.message("session/list", id_="b"),
            ]
        )
        asked = await client.request("session/request_permission")
        assert any(map(is_array, client.frames)) == (version == 2), "version 2 answers a prompt when it is accepted"
        await client.respond(asked, selected("yes"))
        await client.update("agent_message_chunk", lambda update: update["content"]["text"] == "allowed: True")
        answers = by_id(await client.frame(is_array))
        assert set(answers) == {"a", "b"}
        assert all("result" in answer for answer in answers.values())


@VERSIONS
async def test_the_answer_to_a_question_may_come_in_a_batch_of_responses(store: Path, version: int) -> None:
    async with in_process(store, helper) as client:
        await client.initialize(version)
        one, two = await client.new_session(), await client.new_session()
        await client.start_prompt(one, "ask one")
        first = await client.request("session/request_permission")
        await client.start_prompt(two, "ask two")
        second = await client.request("session/request_permission", after=client.messages.index(first) + 1)
        await client.line(
            [
                {"jsonrpc": "2.0", "id": second["id"], "result": selected("no")},
                {"jsonrpc": "2.0", "id": first["id"], "result": selected("yes")},
            ]
        )
        await client.update("agent_message_chunk", lambda update: update["content"]["text"] == "allowed: True")
        await client.update("agent_message_chunk", lambda update: update["content"]["text"] == "allowed: False")


@VERSIONS
async def test_a_session_that_is_made_in_a_batch_is_spoken_of_only_after_the_array(store: Path, version: int) -> None:
    @il.agent(skills=[il.Skill("greet", "Greet", "says hello")])
    async def skilled(text: str) -> str:
        return text

    async with in_process(store, skilled) as client:
        await client.initialize(version)
        await client.line(
            [client.message("session/new", {"cwd": "/tmp", "mcpServers": []}), client.message("session/list")]
        )
        await client.update("available_commands_update")
        kinds = ["array" if is_array(frame) else frame.get("method", "answer") for frame in client.frames]
        assert kinds == ["answer", "array", "session/update"]


async def test_the_end_of_input_inside_a_batch_drops_it(store: Path) -> None:
    async with in_process(store, helper) as client:
        await client.initialize()
        await client.raw(b'[{"jsonrpc":"2.0","id":1,"method":"session/list"}]')
        await client.end_input()
        await client.end()
        assert len(client.frames) == 1

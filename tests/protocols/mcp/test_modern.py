"""The revision without a handshake: every request says for itself what it can, and questions are returned."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.filters import RunFilter
from interlingua.model.run import Caller
from interlingua.protocols.mcp.translate import QUESTION_OPEN
from interlingua.protocols.mcp.wire import MISSING_CAPABILITY, UNSUPPORTED_VERSION
from interlingua.transports.jsonrpc.core import INVALID_PARAMS, METHOD_NOT_FOUND
from tests.kit.clients.mcp import (
    DELTA,
    LATEST,
    MODERN,
    RUN,
    Client,
    Message,
    adder,
    careful,
    client_of,
    deep,
    echo,
    in_process,
    shipper,
    silent,
    slow,
    stdio,
)
from tests.kit.engines import QUICK, crash, question
from tests.kit.wait_for import wait_for

IO = "io.modelcontextprotocol/"
YES = {"action": "accept", "content": {"choice": "yes"}}


async def run(client: Client, name: str, input_: Message, **members: Any) -> Message:
    """The answer to a run; `members` are `elicits`, members of `_meta`, and of params (`state`, `responses`)."""
    params: Message = {"name": name, "input": input_}
    for ours, theirs in (("state", "requestState"), ("responses", "inputResponses")):
        if ours in members:
            params[theirs] = members.pop(ours)
    return await client.modern("agents/run", params, **members)


def retry(result: Message, reply: Any) -> Message:
    """The members that answer what a result asks for."""
    [asked] = result["inputRequests"]
    return {"state": result["requestState"], "responses": {asked: reply}}


async def test_discovering_replaces_the_handshake(store: Path) -> None:
    async with in_process(store, echo) as (client, _):
        result = (await client.modern("server/discover"))["result"]
        assert result["supportedVersions"] == [MODERN]
        assert isinstance(result["capabilities"]["agents"], dict)
        assert result["resultType"] == "complete"
        assert result["serverInfo"]["name"] == result["_meta"][IO + "serverInfo"]["name"] == "interlingua"


async def test_a_request_needs_nothing_before_it(store: Path) -> None:
    async with in_process(store, adder) as (client, engine):
        answer = await run(client, "adder", {"numbers": [1, 2]}, token=0)
        result = answer["result"]
        assert result["output"] == client.joined(0) == {"total": 3, "seen": [1, 2], "note": "done"}
        assert result["resultType"] == "complete"
        assert result["_meta"][IO + "serverInfo"]["name"] == "interlingua"
        assert (await engine.runs.get(result["_meta"][RUN])).agent == "adder"
        assert max(client.place(notice) for notice in client.notices(DELTA)) < client.place(answer)


async def test_lists_say_how_long_they_hold(store: Path) -> None:
    async with in_process(store, echo, adder, silent, page=2) as (client, _):
        for method, member in (("agents/list", "agents"), ("tools/list", "tools")):
            first = (await client.modern(method))["result"]
            second = (await client.modern(method, {"cursor": first["nextCursor"]}))["result"]
            assert [entry["name"] for entry in first[member] + second[member]] == ["echo", "adder", "silent"]
            assert (first["ttlMs"], first["cacheScope"]) == (0, "private")


async def test_a_tool_has_structure(store: Path) -> None:
    async with in_process(store, adder) as (client, _):
        result = (await client.modern("tools/call", {"name": "adder", "arguments": {"numbers": [5]}}))["result"]
        assert result["structuredContent"]["total"] == 5
        assert result["resultType"] == "complete"


async def test_both_kinds_of_revision_are_spoken_on_one_connection(store: Path) -> None:
    async with in_process(store, echo) as (client, _):
        await client.modern("server/discover")
        assert (await client.initialize(LATEST))["protocolVersion"] == LATEST
        assert "resultType" not in await client.whole_run("echo", {"text": "x"})
        assert (await run(client, "echo", {"text": "x"}))["result"]["resultType"] == "complete"


@pytest.mark.parametrize("version", ["2031-01-01", LATEST, 5, ""], ids=repr)
async def test_another_revision_in_meta_is_refused_with_the_ones_there_are(store: Path, version: Any) -> None:
    async with in_process(store, echo) as (client, _):
        meta = {IO + "protocolVersion": version, IO + "clientCapabilities": {}}
        for method in ("server/discover", "agents/list"):
            error = (await client.call(method, {"_meta": meta}))["error"]
            assert error["code"] == UNSUPPORTED_VERSION
            assert error["data"] == {"requested": version, "supported": [MODERN]}


@pytest.mark.parametrize("able", [None, "all", []], ids=repr)
async def test_a_request_must_say_what_its_client_can(store: Path, able: Any) -> None:
    async with in_process(store, echo) as (client, _):
        meta = {IO + "protocolVersion": MODERN, IO + "clientCapabilities": able}
        assert (await client.call("agents/list", {"_meta": meta}))["error"]["code"] == INVALID_PARAMS


@pytest.mark.parametrize("method", ["initialize", "ping", "logging/setLevel"])
async def test_what_belongs_to_the_handshake_is_gone(store: Path, method: str) -> None:
    async with in_process(store, echo) as (client, _):
        params = {"protocolVersion": LATEST, "level": "info"}
        assert (await client.modern(method, params))["error"]["code"] == METHOD_NOT_FOUND


async def test_a_cancelled_request_gets_no_answer_and_its_run_is_cancelled(store: Path) -> None:
    async with in_process(store, slow) as (client, engine):
        meta = {IO + "protocolVersion": MODERN, IO + "clientCapabilities": {}, "progressToken": "t"}
        id_ = await client.send("agents/run", {"name": "slow", "input": {"text": ""}, "_meta": meta})
        await client.notice(DELTA)
        await client.notify("notifications/cancelled", {"requestId": id_})
        [view] = await engine.runs.search(RunFilter())
        assert (await engine.runs.wait(view.id, timeout=20)).status is il.Status.CANCELLED
        await client.modern("server/discover")
        assert all(message.get("id") != id_ for message in client.messages)


# -- questions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("choice", "said"), [("yes", "done"), ("no", "left alone")])
async def test_a_question_is_returned_and_the_request_comes_again_with_the_answer(
    store: Path, choice: str, said: str
) -> None:
    async with in_process(store, careful) as (client, engine):
        asked = (await run(client, "careful", {"text": "it"}, elicits=True, token="one"))["result"]
        assert asked["resultType"] == "input_required"
        [request] = asked["inputRequests"].values()
        assert request["method"] == "elicitation/create"
        assert "Do it?" in request["params"]["message"]
        assert request["params"]["mode"] == "form"
        assert client.joined("one") == {"text": "asking. "}
        answered = retry(asked, {"action": "accept", "content": {"choice": choice}})
        result = (await run(client, "careful", {"text": "it"}, elicits=True, token="two", **answered))["result"]
        assert result["output"] == {"text": f"asking. {said}"} == client.joined("two")
        assert result["resultType"] == "complete"
        assert len(await engine.runs.search(RunFilter())) == 1, "it is the same run"
        assert not client.notices("elicitation/create")


@il.agent(asks=[il.Confirm])
async def insists(text: str, ctx: il.Context[Any, Any]) -> str:
    verdicts = [(await ctx.ask(il.Confirm(message=f"{text}, {n}?"))).approved for n in ("once", "twice")]
    return str(verdicts)


async def test_an_answer_that_comes_after_another_one_answers_nothing_and_the_next_question_is_returned(
    store: Path,
) -> None:
    async with in_process(store, insists) as (client, engine):
        asked = (await run(client, "insists", {"text": "it"}, elicits=True))["result"]
        [first] = asked["inputRequests"]
        await engine.questions.answer(first, {"approved": False})

        async def open_ids() -> list[str]:
            return [question.id for question in await engine.questions.open() if question.id != first]

        await wait_for(open_ids)
        again = (await run(client, "insists", {"text": "it"}, elicits=True, **retry(asked, YES)))["result"]
        [second] = again["inputRequests"]
        assert second != first
        result = (await run(client, "insists", {"text": "it"}, elicits=True, **retry(again, YES)))["result"]
        assert result["output"] == {"text": "[False, True]"}


async def test_a_question_of_a_tool_is_returned_too(store: Path) -> None:
    async with in_process(store, careful) as (client, _):
        params = {"name": "careful", "arguments": {"text": "it"}}
        asked = (await client.modern("tools/call", params, elicits=True))["result"]
        [id_] = asked["inputRequests"]
        again = {**params, "requestState": asked["requestState"], "inputResponses": {id_: YES}}
        result = (await client.modern("tools/call", again, elicits=True))["result"]
        assert result["structuredContent"] == {"text": "asking. done"}


async def test_several_questions_are_returned_one_after_the_other(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def twice(ctx: il.Context[None, None]) -> str:
        first = await ctx.ask(il.Confirm("One?"))
        second = await ctx.ask(il.Confirm("Two?"))
        return f"{first.approved} {second.approved}"

    async with in_process(store, twice) as (client, _):
        one = (await run(client, "twice", {}, elicits=True))["result"]
        two = (await run(client, "twice", {}, elicits=True, **retry(one, YES)))["result"]
        assert "Two?" in next(iter(two["inputRequests"].values()))["params"]["message"]
        result = (await run(client, "twice", {}, elicits=True, **retry(two, {"action": "decline"})))["result"]
        assert result["output"] == {"text": "True False"}


@pytest.mark.parametrize(
    "responses",
    [None, {}, {"another": YES}, 5, "answer"],
    ids=repr,
)
async def test_a_request_that_comes_again_without_the_answer_is_asked_again(store: Path, responses: Any) -> None:
    async with in_process(store, careful) as (client, _):
        asked = (await run(client, "careful", {"text": "it"}, elicits=True))["result"]
        members = {"state": asked["requestState"], "responses": responses}
        again = (await run(client, "careful", {"text": "it"}, elicits=True, **members))["result"]
        assert (again["resultType"], again["inputRequests"]) == ("input_required", asked["inputRequests"])


async def test_an_answer_that_does_not_fit_is_asked_for_again(store: Path) -> None:
    async with in_process(store, shipper) as (client, _):
        asked = (await run(client, "shipper", {"text": "it"}, elicits=True))["result"]
        bad = retry(asked, {"action": "accept", "content": {"street": "Via Roma", "number": "five"}})
        again = (await run(client, "shipper", {"text": "it"}, elicits=True, **bad))["result"]
        assert again["resultType"] == "input_required"
        good = retry(again, {"action": "accept", "content": {"street": "Via Roma", "number": 5}})
        result = (await run(client, "shipper", {"text": "it"}, elicits=True, **good))["result"]
        assert result["output"] == {"text": "Via Roma 5 it"}


async def test_an_answer_that_is_none_is_a_bad_request_and_answers_nothing(store: Path) -> None:
    async with in_process(store, careful) as (client, engine):
        asked = (await run(client, "careful", {"text": "it"}, elicits=True))["result"]
        answer = await run(client, "careful", {"text": "it"}, elicits=True, **retry(asked, {"action": 5}))
        assert answer["error"]["code"] == INVALID_PARAMS
        [view] = await engine.runs.search(RunFilter())
        assert view.status is il.Status.WAITING


async def test_cancelling_says_nothing_and_the_run_keeps_waiting(store: Path) -> None:
    async with in_process(store, careful) as (client, engine):
        asked = (await run(client, "careful", {"text": "it"}, elicits=True))["result"]
        answer = await run(client, "careful", {"text": "it"}, elicits=True, **retry(asked, {"action": "cancel"}))
        assert answer["error"]["code"] == QUESTION_OPEN
        assert (await engine.runs.get(answer["error"]["data"]["run"])).status is il.Status.WAITING


async def test_a_question_that_was_answered_elsewhere_needs_no_answer(store: Path) -> None:
    async with in_process(store, careful) as (client, engine):
        asked = (await run(client, "careful", {"text": "it"}, elicits=True))["result"]
        [view] = await engine.runs.search(RunFilter())
        await engine.questions.answer((await question(engine, view.id)).id, {"approved": True})
        late = retry(asked, {"action": "accept", "content": {"choice": "no"}})
        result = (await run(client, "careful", {"text": "it"}, elicits=True, **late))["result"]
        assert result["output"] == {"text": "asking. done"}, "the first answer wins"


async def test_what_has_no_field_of_its_kind_is_json_in_a_text_and_asked_for_again_where_it_is_none(
    store: Path,
) -> None:
    async with in_process(store, deep) as (client, _):
        asked = (await run(client, "deep", {"text": "it"}, elicits=True))["result"]
        [request] = asked["inputRequests"].values()
        assert request["params"]["requestedSchema"]["properties"]["lines"]["type"] == "string"
        assert request["params"]["_meta"]["interlingua/answerSchema"]["properties"]["lines"]["type"] == "array"
        bad = retry(asked, {"action": "accept", "content": {"lines": "a, b"}})
        again = (await run(client, "deep", {"text": "it"}, elicits=True, **bad))["result"]
        [request] = again["inputRequests"].values()
        assert request["params"]["message"].startswith("lines has to be JSON")
        good = retry(again, {"action": "accept", "content": {"lines": '[["a", "b"]]'}})
        result = (await run(client, "deep", {"text": "it"}, elicits=True, **good))["result"]
        assert result["output"] == {"text": "[['a', 'b']]"}


@pytest.mark.parametrize("agent", ["careful", "deep"])
async def test_a_question_that_cannot_be_asked_is_an_error_and_the_run_is_joined_again(store: Path, agent: str) -> None:
    async with in_process(store, careful, deep) as (client, engine):
        error = (await run(client, agent, {"text": "it"}))["error"]
        assert error["code"] == MISSING_CAPABILITY
        assert error["data"]["requiredCapabilities"] == {"elicitation": {"form": {}}}
        id_ = error["data"]["run"]
        value = {"approved": True} if agent == "careful" else {"lines": [["a"]]}
        await engine.questions.answer((await question(engine, id_)).id, value)
        result = (await run(client, agent, {"text": "it"}, **{RUN: id_}))["result"]
        assert result["output"]["text"] in ("asking. done", "[['a']]")


async def test_the_answer_may_come_to_another_process_after_a_restart(store: Path) -> None:
    engine = il.Engine(store, agents=[careful], settings=QUICK)
    await engine.start()
    async with client_of(engine) as (client, _):
        asked = (await run(client, "careful", {"text": "it"}, elicits=True))["result"]
    await crash(engine)
    async with in_process(store, careful) as (client, engine):
        result = (await run(client, "careful", {"text": "it"}, elicits=True, **retry(asked, YES)))["result"]
        assert result["output"] == {"text": "asking. done"}


async def test_a_state_cannot_be_bent_to_answer_the_question_of_somebody_else(store: Path) -> None:
    async with il.Engine(store, agents=[careful], settings=QUICK) as engine:
        async with client_of(engine) as (client, _):
            theirs = (await run(client, "careful", {"text": "theirs"}, elicits=True))["result"]
        async with client_of(engine, Caller("mallory", scopes=("do:run", "do:answer"))) as (client, _):
            mine = (await run(client, "careful", {"text": "mine"}, elicits=True))["result"]
            [their_question] = theirs["inputRequests"]
            asked = {"state": mine["requestState"], "responses": {their_question: YES}}
            again = (await run(client, "careful", {"text": "mine"}, elicits=True, **asked))["result"]
            assert again["resultType"] == "input_required", "an answer to another question answers nothing"
            for text in ("mine", "theirs"):
                stolen = {"state": theirs["requestState"], "responses": {their_question: YES}}
                error = (await run(client, "careful", {"text": text}, elicits=True, **stolen))["error"]
                assert error["code"] == INVALID_PARAMS
        assert (await engine.questions.get(their_question)).state == "open"


def changed(state: str) -> list[Any]:
    """A state as it is not: each character another one, and cut off at each place."""
    other = [state[:place] + ("A" if letter != "A" else "B") + state[place + 1 :] for place, letter in enumerate(state)]
    cut = [state[:place] for place in range(len(state))]
    return [*other, *cut, state + state, 5, True, [state], {"state": state}]


async def test_a_changed_state_is_refused_and_answers_nothing(store: Path) -> None:
    async with in_process(store, careful, echo) as (client, engine):
        asked = (await run(client, "careful", {"text": "it"}, elicits=True))["result"]
        members = retry(asked, YES)
        for state in changed(members["state"]):
            answer = await run(client, "careful", {"text": "it"}, elicits=True, **{**members, "state": state})
            assert answer["error"]["code"] == INVALID_PARAMS, state
            assert "requestState" in answer["error"]["message"]
        for name, text in (("careful", "other"), ("echo", "it")):  # it belongs to one request
            error = (await run(client, name, {"text": text}, elicits=True, **members))["error"]
            assert error["code"] == INVALID_PARAMS
        params = {"name": "careful", "arguments": {"text": "it"}, "requestState": members["state"]}
        called = await client.modern("tools/call", {**params, "inputResponses": members["responses"]}, elicits=True)
        assert called["error"]["code"] == INVALID_PARAMS
        [view] = await engine.runs.search(RunFilter())
        assert view.status is il.Status.WAITING
        result = (await run(client, "careful", {"text": "it"}, elicits=True, **members))["result"]
        assert result["output"] == {"text": "asking. done"}


async def test_a_state_shows_nothing_of_the_run(store: Path) -> None:
    async with in_process(store, careful) as (client, _):
        states = set()
        for _ in range(2):
            asked = (await run(client, "careful", {"text": "it"}, elicits=True))["result"]
            states.add(asked["requestState"])
            assert asked["_meta"][RUN] not in asked["requestState"]
            assert next(iter(asked["inputRequests"])) not in asked["requestState"]
        assert len(states) == 2


# -- clients that cannot be asked -----------------------------------------------------------------------------


@il.agent
async def delegates(text: str, ctx: il.Context[Any, Any]) -> str:
    """Has another agent ask."""
    return str((await ctx.call("careful", text=text))["text"])


Retry = Callable[[], Awaitable[Message]]


def retries(client: Client, kind: str, agent: str) -> Retry:
    """A request of a client that cannot be asked, sent again and again. Some clients mark each request."""
    numbers = itertools.count()
    params = {"name": agent, "arguments" if "tools" in kind else "input": {"text": "it"}}

    async def again() -> Message:
        meta = {"progressToken": next(numbers), "example/request": str(next(numbers))}
        if "legacy" in kind:
            return await client.call("tools/call" if "tools" in kind else "agents/run", {**params, "_meta": meta})
        return await client.modern("tools/call" if "tools" in kind else "agents/run", params, **meta)

    return again


@pytest.mark.parametrize("agent", ["careful", "delegates"])
@pytest.mark.parametrize("kind", ["agents", "tools", "legacy agents", "legacy tools"])
async def test_who_cannot_be_asked_and_tries_again_leaves_one_run_waiting(store: Path, kind: str, agent: str) -> None:
    async with in_process(store, careful, delegates) as (client, engine):
        if "legacy" in kind:
            await client.initialize()
        again = retries(client, kind, agent)
        errors = [(await again())["error"] for _ in range(4)]
        code = QUESTION_OPEN if "legacy" in kind else MISSING_CAPABILITY
        assert {error["code"] for error in errors} == {code}
        [id_] = {error["data"]["run"] for error in errors}
        assert len(await engine.runs.search(RunFilter(agent=agent))) == 1
        await engine.questions.answer((await question(engine, id_)).id, {"approved": True})
        result = (await again())["result"]
        assert "asking. done" in str(result)
        assert result["_meta"][RUN] == id_
        assert "error" in await again(), "the end was told, so this is another run"
        assert len(await engine.runs.search(RunFilter(agent=agent))) == 2


async def test_another_request_of_who_cannot_be_asked_is_another_run(store: Path) -> None:
    async with in_process(store, careful) as (client, engine):
        for members in ({}, {"interlingua/thread": "t"}, {"interlingua/key": "k"}):
            for text in ("one", "two"):
                key = {name: value + text for name, value in members.items()}
                assert (await run(client, "careful", {"text": text}, **key))["error"]["code"] == MISSING_CAPABILITY
        assert len(await engine.runs.search(RunFilter(limit=100))) == 6
        [first] = {(await run(client, "careful", {"text": "one"}))["error"]["data"]["run"] for _ in range(2)}
        await engine.runs.cancel(first)
        await engine.runs.wait(first, timeout=20)
        assert "data" in (await run(client, "careful", {"text": "one"}))["error"], "the end of the first is told"
        assert (await run(client, "careful", {"text": "one"}))["error"]["data"]["run"] != first


@pytest.mark.parametrize("elicits", [False, True])
async def test_a_run_whose_end_was_got_by_its_id_is_not_waited_for(store: Path, elicits: bool) -> None:
    async with in_process(store, careful) as (client, engine):
        first = (await run(client, "careful", {"text": "it"}))["error"]["data"]["run"]
        await engine.questions.answer((await question(engine, first)).id, {"approved": True})
        joined = await run(client, "careful", {}, elicits=elicits, **{RUN: first})
        assert joined["result"]["output"] == {"text": "asking. done"}
        second = (await run(client, "careful", {"text": "it"}))["error"]["data"]["run"]
        assert second != first


async def test_a_run_that_was_deleted_is_not_waited_for(store: Path) -> None:
    async with in_process(store, careful) as (client, engine):
        first = (await run(client, "careful", {"text": "it"}))["error"]["data"]["run"]
        await engine.runs.cancel(first)
        await engine.runs.wait(first, timeout=20)
        await engine.runs.delete(first)
        second = (await run(client, "careful", {"text": "it"}))["error"]
        assert (second["code"], second["data"]["run"] != first) == (MISSING_CAPABILITY, True)


@pytest.mark.parametrize("state", ["", "nonsense", "a.b", "." * 100, "ÄÖ", "\ud83d"])
async def test_a_state_that_is_none_of_ours_is_a_bad_request(store: Path, state: str) -> None:
    async with in_process(store, careful) as (client, engine):
        answer = await run(client, "careful", {"text": "it"}, elicits=True, state=state, responses={})
        assert answer["error"]["code"] == INVALID_PARAMS
        assert await engine.runs.search(RunFilter()) == []


async def test_it_is_spoken_over_stdio(tmp_path: Path) -> None:
    source = "import interlingua as il\n@il.agent\nasync def hello(text: str) -> str:\n    return f'hello {text}'\n"
    async with stdio(tmp_path, source) as client:
        assert (await client.modern("server/discover"))["result"]["supportedVersions"] == [MODERN]
        assert (await run(client, "hello", {"text": "you"}))["result"]["output"] == {"text": "hello you"}

"""The door for agents: listing, running, deltas, questions, threads, templates, and the revisions with a handshake."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest

import interlingua as il
from interlingua.model.events import RunRestarted
from interlingua.model.filters import RunFilter
from interlingua.model.run import Caller
from interlingua.protocols.mcp.config import DoorSettings
from interlingua.protocols.mcp.translate import QUESTION_OPEN
from interlingua.transports.jsonrpc.core import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
)
from tests.kit.clients.mcp import (
    DELTA,
    LATEST,
    LEGACY,
    PATIENCE,
    RUN,
    SCHEMA,
    THREAD,
    Client,
    Message,
    adder,
    breaks,
    careful,
    client_of,
    deep,
    echo,
    in_process,
    regrets,
    remember,
    shipper,
    show,
    silent,
    slow,
    stdio,
    styled,
)
from tests.kit.engines import QUICK, bodies, crash, question

AGENTS = """
import interlingua as il

@il.agent
async def echo(text: str):
    "Repeats what it hears."
    for word in text.split():
        yield word + " "

@il.agent
async def flood(count: int):
    "Says every number up to one."
    for number in range(count):
        yield f"{number} "
"""


async def ended(engine: il.Engine, run: str) -> il.Run:
    return await engine.runs.wait(run, timeout=PATIENCE)


async def only_run(engine: il.Engine) -> il.Run:
    [run] = await engine.runs.search(RunFilter())
    return run


# -- the lifecycle --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", LEGACY)
async def test_every_revision_with_a_handshake_is_answered_with_itself(store: Path, version: str) -> None:
    async with in_process(store, echo) as (client, _):
        told = await client.initialize(version)
        assert told["protocolVersion"] == version
        assert told["serverInfo"]["name"] == "interlingua"
        assert await client.run("echo", {"text": "hi"}) == {"text": "hi "}


@pytest.mark.parametrize(("asked", "told"), [(1, "2024-11-05"), ("2031-01-01", LATEST), ("1", LATEST), (7, LATEST)])
async def test_an_unknown_revision_gets_the_newest_and_the_number_one_the_oldest(
    store: Path, asked: Any, told: str
) -> None:
    async with in_process(store, echo) as (client, _):
        assert (await client.initialize(asked))["protocolVersion"] == told


async def test_a_server_with_agents_declares_the_capability_as_an_object(store: Path) -> None:
    async with in_process(store, echo) as (client, _):
        capabilities = (await client.initialize())["capabilities"]
        assert capabilities["agents"] == {"listChanged": True}
        assert capabilities["experimental"]["agents"] == capabilities["agents"]
        assert capabilities["extensions"]["interlingua/agents"] == capabilities["agents"]


@pytest.mark.parametrize("able", [{}, {"roots": {}}, {"elicitation": {}}], ids=["nothing", "roots", "elicitation"])
async def test_a_client_uses_agents_without_declaring_anything(store: Path, able: Message) -> None:
    async with in_process(store, echo) as (client, _):
        told = await client.initialize(capabilities=able)
        assert "agents" in told["capabilities"]
        assert await client.run("echo", {"text": "hi"}) == {"text": "hi "}


async def test_an_ordinary_session_works_on_the_same_connection(store: Path) -> None:
    async with in_process(store, echo) as (client, _):
        assert await client.ask("ping") == {}
        await client.initialize()
        assert await client.ask("ping") == {}
        for level in ("debug", "emergency"):
            assert await client.ask("logging/setLevel", {"level": level}) == {}
        assert (await client.call("logging/setLevel", {"level": "loud"}))["error"]["code"] == INVALID_PARAMS
        assert await client.run("echo", {"text": "hi"}) == {"text": "hi "}


async def test_requests_before_initialize_are_refused_and_it_can_still_come(store: Path) -> None:
    async with in_process(store, echo) as (client, _):
        assert (await client.call("agents/list"))["error"]["code"] == INVALID_REQUEST
        assert (await client.call("initialize", {}))["error"]["code"] == INVALID_PARAMS
        assert (await client.call("initialize", {"protocolVersion": True}))["error"]["code"] == INVALID_PARAMS
        await client.initialize()
        await client.ask("agents/list")


async def test_server_discover_without_its_revision_is_an_unknown_method(store: Path) -> None:
    async with in_process(store, echo) as (client, _):
        assert (await client.call("server/discover"))["error"]["code"] == METHOD_NOT_FOUND
        await client.initialize()
        assert (await client.call("server/discover"))["error"]["code"] == METHOD_NOT_FOUND


async def test_warnings_of_a_run_are_log_messages_for_those_who_set_a_level(store: Path) -> None:
    async with in_process(store, show) as (client, _):
        await client.initialize()
        await client.run("show", {"text": "x"})
        assert not client.notices("notifications/message")
        for level, told in (("error", 0), ("info", 1)):
            await client.ask("logging/setLevel", {"level": level})
            await client.run("show", {"text": "x"})
            assert len(client.notices("notifications/message")) == told
        [message] = client.notices("notifications/message")
        assert message["params"] == {"level": "warning", "logger": "show", "data": "Something is odd."}


# -- listing --------------------------------------------------------------------------------------------------


async def test_an_agent_is_listed_with_its_description_and_both_schemas(store: Path) -> None:
    async with in_process(store, echo, adder, styled) as (client, _):
        await client.initialize()
        agents = {agent["name"]: agent for agent in (await client.ask("agents/list"))["agents"]}
        assert list(agents) == ["echo", "adder", "styled"]
        assert agents["echo"]["description"] == "Repeats what it hears, word by word."
        assert agents["adder"]["inputSchema"]["properties"]["numbers"]["items"] == {"type": "integer"}
        assert agents["adder"]["outputSchema"]["required"] == ["total", "seen"]
        assert agents["styled"]["version"] == "2.0.0"
        for agent in agents.values():
            assert agent["inputSchema"]["type"] == agent["outputSchema"]["type"] == "object"
            assert None not in agent.values()


@pytest.mark.parametrize("form", ["missing", "null", "empty", "meta"])
async def test_params_may_be_missing_null_or_empty(store: Path, form: str) -> None:
    async with in_process(store, echo) as (client, _):
        await client.initialize()
        message: Message = {"jsonrpc": "2.0", "id": form, "method": "agents/list"}
        message |= {"missing": {}, "null": {"params": None}, "empty": {"params": {}}}.get(
            form, {"params": {"_meta": {"odd": 1}}}
        )
        await client.line(message)
        assert [agent["name"] for agent in (await client.answer(form))["result"]["agents"]] == ["echo"]


@pytest.mark.parametrize("place", ["params", "envelope"])
async def test_a_list_has_pages_with_the_cursor_in_params_or_beside_them(store: Path, place: str) -> None:
    agents = [il.agent(name=f"agent-{n}")(lambda text: text) for n in range(5)]
    async with in_process(store, *agents, page=2) as (client, _):
        await client.initialize()
        names: list[str] = []
        message = client.message("agents/list")
        for _ in range(3):
            await client.line(message)
            result = (await client.answer(message["id"]))["result"]
            names += [agent["name"] for agent in result["agents"]]
            message = client.message("agents/list")
            where = message["params"] if place == "params" else message
            where["cursor"] = result.get("nextCursor")
        assert names == [f"agent-{n}" for n in range(5)]
        assert "nextCursor" not in result
        assert (await client.call("agents/list", {"cursor": "nonsense"}))["error"]["code"] == INVALID_PARAMS
        assert (await client.call("agents/list", {"cursor": 5}))["error"]["code"] == INVALID_PARAMS


async def test_by_default_one_page_holds_everything(store: Path) -> None:
    agents = [il.agent(name=f"agent-{n}")(lambda text: text) for n in range(300)]
    async with in_process(store, *agents) as (client, _):
        await client.initialize()
        result = await client.ask("agents/list")
        assert len(result["agents"]) == 300
        assert "nextCursor" not in result


async def test_of_two_versions_the_newest_has_the_plain_name_and_both_can_be_run(store: Path) -> None:
    @il.agent(name="twice", version="1.0.0")
    async def old(text: str) -> str:
        return "old"

    @il.agent(name="twice", version="2.0.0")
    async def new(text: str) -> str:
        return "new"

    async with in_process(store, old, new) as (client, _):
        await client.initialize()
        names = [agent["name"] for agent in (await client.ask("agents/list"))["agents"]]
        assert names == ["twice@1.0.0", "twice"]
        assert [await client.run(name, {"text": ""}) for name in names] == [{"text": "old"}, {"text": "new"}]


async def test_clients_are_told_when_agents_come_and_go(store: Path) -> None:
    async with in_process(store, echo) as (client, engine):
        engine.agents.add(adder)  # before the handshake: nobody is told
        await client.initialize()
        engine.agents.add(silent)
        await client.notice("notifications/agents/list_changed")
        await client.notice("notifications/tools/list_changed")
        engine.agents.remove(silent.card.key)
        await client.ask("ping")
        assert len(client.notices("notifications/agents/list_changed")) == 2
        assert [a["name"] for a in (await client.ask("agents/list"))["agents"]] == ["echo", "adder"]


# -- running --------------------------------------------------------------------------------------------------


async def test_a_run_gives_its_output_and_its_id(store: Path) -> None:
    async with in_process(store, echo, adder) as (client, engine):
        await client.initialize()
        result = await client.whole_run("adder", {"numbers": [1, 2]})
        assert result["output"] == {"total": 3, "seen": [1, 2], "note": "done"}
        run = await engine.runs.get(result["_meta"][RUN])
        assert (run.agent, run.output) == ("adder", result["output"])


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"name": "adder", "input": {"numbers": [1, "two"]}}, "/numbers/1"),
        ({"name": "adder", "input": {}}, "numbers"),
        ({"name": "adder", "input": "text"}, "$.input"),
        ({"name": "adder", "input": [1]}, "$.input"),
        ({"name": "adder"}, "input"),
        ({"input": {}}, "name"),
        ({"name": 5, "input": {}}, "$.name"),
        ({"name": "nobody", "input": {}}, "nobody"),
        ([1], "array"),
        ({"name": "echo", "input": {"text": "x"}, "_meta": {RUN: 5}}, RUN),
        ({"name": "echo", "input": {"text": "x"}, "_meta": {THREAD: []}}, THREAD),
        ({"name": "echo", "input": {"text": "x"}, "_meta": {RUN: "no-such-run"}}, "no-such-run"),
    ],
)
async def test_bad_params_are_named_and_change_nothing(store: Path, params: Any, told: str) -> None:
    async with in_process(store, adder, echo) as (client, engine):
        await client.initialize()
        error = (await client.call("agents/run", params))["error"]
        assert error["code"] == INVALID_PARAMS
        assert told in json.dumps(error)
        assert await engine.runs.search(RunFilter()) == []


async def test_the_path_of_a_bad_input_is_in_the_data(store: Path) -> None:
    async with in_process(store, adder) as (client, _):
        await client.initialize()
        error = await client.failed_run("adder", {"numbers": [1, 2, None]})
        assert error["data"]["code"] == "invalid_input"
        assert error["data"]["details"]["path"] == "/numbers/2"


async def test_a_run_that_fails_is_an_error_with_its_code_and_details(store: Path) -> None:
    async with in_process(store, breaks) as (client, engine):
        await client.initialize()
        error = await client.failed_run("breaks", {"text": "x"})
        run = await only_run(engine)
        assert error == {
            "code": INTERNAL_ERROR,
            "message": "the saw is broken",
            "data": {"code": "broken", "transient": True, "details": {"tool": "saw"}, "run": run.id},
        }


async def test_a_run_that_fails_like_a_bad_request_is_still_no_bad_request(store: Path) -> None:
    class Denied(il.AgentError):
        """Somebody else said no."""

        code = "denied"

    @il.agent(errors=[Denied])
    async def outer(text: str) -> str:
        raise Denied("the shop says no")

    async with in_process(store, outer) as (client, _):
        await client.initialize()
        error = await client.failed_run("outer", {"text": "x"})
        assert (error["code"], error["data"]["code"]) == (INTERNAL_ERROR, "denied")


async def test_runs_of_one_client_go_on_side_by_side(store: Path) -> None:
    async with in_process(store, echo, slow) as (client, _):
        await client.initialize()
        waits = await client.start_run("slow", {"text": "x"})
        outputs = await asyncio.gather(*(client.run("echo", {"text": str(n)}) for n in range(20)))
        assert [output["text"] for output in outputs] == [f"{n} " for n in range(20)]
        await client.notify("notifications/cancelled", {"requestId": waits})


async def test_a_trace_context_in_meta_reaches_the_run(store: Path) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with in_process(store, echo) as (client, engine):
        await client.initialize()
        result = await client.whole_run("echo", {"text": "x"}, traceparent=parent)
        run = await engine.runs.get(result["_meta"][RUN])
        assert run.request is not None
        assert run.request.trace == {"traceparent": parent}


# -- deltas ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["abc123", "", 0, 7, -1, 2**53], ids=repr)
async def test_deltas_come_with_the_token_before_the_result_and_join_to_it(store: Path, token: Any) -> None:
    async with in_process(store, adder) as (client, _):
        await client.initialize()
        id_ = await client.start_run("adder", {"numbers": list(range(1, 50))}, token=token)
        answer = await client.answer(id_)
        assert client.deltas(token)
        assert client.joined(token) == answer["result"]["output"]
        last = max(client.place(notice) for notice in client.notices(DELTA))
        assert last < client.place(answer)
        assert all("id" not in notice for notice in client.notices(DELTA))


@pytest.mark.parametrize("meta", [{}, {"token": None}, {"token": 1.5}, {"token": True}, {"token": ["x"]}], ids=repr)
async def test_without_a_token_there_are_no_deltas(store: Path, meta: Message) -> None:
    async with in_process(store, adder) as (client, _):
        await client.initialize()
        assert (await client.run("adder", {"numbers": [1, 2, 3]}, **meta))["total"] == 6
        await client.ask("ping")
        assert not client.notices(DELTA)


async def test_an_agent_that_says_all_at_once_is_one_delta(store: Path) -> None:
    async with in_process(store, silent) as (client, _):
        await client.initialize()
        assert await client.run("silent", {"text": "hi"}, token="t") == {"text": "HI"}
        assert client.deltas("t") == [{"text": "HI"}]


async def test_an_output_that_no_delta_leads_to_has_none_and_the_result_corrects(store: Path) -> None:
    async with in_process(store, regrets) as (client, _):
        await client.initialize()
        assert await client.run("regrets", {"text": "x"}, token="t") == {"text": "something else"}
        assert client.deltas("t") == [{"text": "first thoughts"}]


async def test_a_run_that_fails_keeps_the_deltas_that_were_sent(store: Path) -> None:
    async with in_process(store, breaks) as (client, _):
        await client.initialize()
        await client.failed_run("breaks", {"text": "x"}, token="t")
        assert client.joined("t") == {"text": "so far "}


async def test_a_delta_is_part_of_the_output_schema(store: Path) -> None:
    async with in_process(store, adder) as (client, _):
        await client.initialize()
        await client.run("adder", {"numbers": [1, 2]}, token="t")
        [card] = (await client.ask("agents/list"))["agents"]
        members = set(card["outputSchema"]["properties"])
        partial = [delta for delta in client.deltas("t") if set(delta) < members]
        assert all(set(delta) <= members for delta in client.deltas("t"))
        assert partial, "no delta holds only some of the members"


async def test_deltas_of_runs_side_by_side_carry_their_own_tokens(store: Path) -> None:
    async with in_process(store, echo) as (client, _):
        await client.initialize()
        texts = {f"token-{n}": " ".join(f"{n}.{i}" for i in range(50)) for n in range(10)}
        outputs = await asyncio.gather(*(client.run("echo", {"text": t}, token=k) for k, t in texts.items()))
        for (token, text), output in zip(texts.items(), outputs, strict=True):
            assert client.joined(token) == output == {"text": text + " "}


async def test_after_a_restart_there_are_no_further_deltas_and_the_result_is_whole(store: Path) -> None:
    entered = 0

    @il.agent(asks=[il.Confirm])
    async def fickle(text: str, ctx: il.Context[None, None]) -> str:
        nonlocal entered
        entered += 1
        await ctx.emit(f"take {entered}: ")
        await ctx.ask(il.Confirm("Go on?"))
        await ctx.emit("more")
        return f"take {entered} only"

    async with in_process(store, fickle) as (client, engine):  # it parks at once, and is entered again
        client.on("elicitation/create", lambda _: {"action": "accept", "content": {"choice": "yes"}})
        await client.initialize(elicits=True)
        assert await client.run("fickle", {"text": ""}, token="t") == {"text": "take 2 only"}
        run = await only_run(engine)
        assert await bodies(engine, run.id, RunRestarted)
        assert client.deltas("t") == [{"text": "take 1: "}]


async def test_a_client_that_reads_nothing_gets_composed_deltas_and_loses_none(tmp_path: Path) -> None:
    count = 100_000
    async with stdio(tmp_path, AGENTS) as client:
        await client.initialize()
        client.stop_reading()
        id_ = await client.start_run("flood", {"count": count}, token="t")
        watcher = il.Engine(tmp_path / "store.db", settings=QUICK)
        async with watcher:
            run = await only_run_when_there(watcher)
            assert (await watcher.runs.wait(run, timeout=PATIENCE * 4)).status is il.Status.SUCCEEDED
        client.read_on()  # only now, when the agent has long ended
        answer = await client.answer(id_, timeout=PATIENCE * 4)
        expected = {"text": "".join(f"{n} " for n in range(count))}
        assert answer["result"]["output"] == expected
        assert client.joined("t") == expected
        assert len(client.deltas("t")) < count, "nothing was composed"


class Weighed:
    """How much the door has sent, read or not."""

    def __init__(self) -> None:
        self.bytes = 0

    def received(self, frame: bytes) -> None:
        pass

    def sent(self, frame: bytes) -> None:
        self.bytes += len(frame)


async def test_what_a_client_does_not_read_is_not_even_sent(store: Path) -> None:
    @il.agent
    async def flood(count: int) -> AsyncIterator[str]:
        for number in range(count):
            yield f"{number:099d} "

    count, weighed = 100_000, Weighed()
    async with (
        il.Engine(store, agents=[flood], settings=QUICK) as engine,
        client_of(engine, trace=weighed) as (client, _),
    ):
        await client.initialize()
        client.stop_reading()
        id_ = await client.start_run("flood", {"count": count}, token="t")
        run = await ended(engine, await only_run_when_there(engine))
        assert weighed.bytes < 5_000_000, "the door goes on sending to a client that does not read"
        client.read_on()
        assert (await client.answer(id_, timeout=PATIENCE * 2))["result"]["output"] == run.output
        assert client.joined("t") == run.output == {"text": "".join(f"{n:099d} " for n in range(count))}


async def only_run_when_there(engine: il.Engine) -> str:
    async with asyncio.timeout(PATIENCE):
        while not (runs := await engine.runs.search(RunFilter())):
            await asyncio.sleep(0.05)
    return runs[0].id


# -- cancelling and going -------------------------------------------------------------------------------------


@pytest.mark.parametrize("id_", [0, 17, "x", ""], ids=repr)
async def test_a_cancelled_request_gets_no_answer_and_its_run_is_cancelled(store: Path, id_: Any) -> None:
    async with in_process(store, slow) as (client, engine):
        await client.initialize()
        params = {"name": "slow", "input": {"text": ""}, "_meta": {"progressToken": "t"}}
        await client.send("agents/run", params, id_=id_)
        await client.notice(DELTA)
        await client.notify("notifications/cancelled", {"requestId": id_, "reason": "enough"})
        run = await ended(engine, (await only_run(engine)).id)
        assert run.status is il.Status.CANCELLED
        before = len(client.messages)
        await client.ask("ping")
        assert [m.get("id") for m in client.messages[before:]] != [id_]
        assert all(m.get("id") != id_ or "method" in m for m in client.messages)


@pytest.mark.parametrize("meta", [{}, {"interlingua/key": "once"}], ids=["alone", "by a key"])
async def test_a_request_that_is_taken_back_at_once_leaves_no_run_behind(store: Path, meta: dict[str, Any]) -> None:
    async with in_process(store, slow) as (client, engine):
        await client.initialize()
        run = client.message("agents/run", {"name": "slow", "input": {"text": ""}, "_meta": meta})
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": run["id"]}}
        await client.raw(json.dumps(run).encode() + b"\n" + json.dumps(cancel).encode() + b"\n")
        assert (await ended(engine, await only_run_when_there(engine))).status is il.Status.CANCELLED
        await client.ask("ping")
        assert all(message.get("id") != run["id"] for message in client.messages)


@pytest.mark.parametrize("params", [{}, {"requestId": 99}, {"requestId": None}, {"requestId": []}, None])
async def test_cancelling_nothing_does_nothing(store: Path, params: Any) -> None:
    async with in_process(store, echo) as (client, _):
        await client.initialize()
        await client.notify("notifications/cancelled", params)
        assert await client.run("echo", {"text": "hi"}) == {"text": "hi "}


async def test_a_run_that_is_cancelled_elsewhere_is_an_error(store: Path) -> None:
    async with in_process(store, slow) as (client, engine):
        await client.initialize()
        id_ = await client.start_run("slow", {"text": ""}, token="t")
        await client.notice(DELTA)
        await engine.runs.cancel((await only_run(engine)).id)
        error = (await client.answer(id_))["error"]
        assert (error["code"], error["data"]["code"]) == (INTERNAL_ERROR, "cancelled")


async def test_a_run_goes_on_when_its_client_is_gone_and_can_be_joined_again(store: Path) -> None:
    async with il.Engine(store, agents=[careful], settings=QUICK) as engine:
        async with client_of(engine) as (client, _):
            client.on("elicitation/create", lambda _: asyncio.Event().wait())
            await client.initialize(elicits=True)
            await client.start_run("careful", {"text": "it"})
            await client.request("elicitation/create")
        run = await only_run(engine)
        assert run.status is il.Status.WAITING
        async with client_of(engine) as (client, _):
            client.on("elicitation/create", lambda _: {"action": "accept", "content": {"choice": "yes"}})
            await client.initialize(elicits=True)
            assert await client.run("careful", {}, token="t", **{RUN: run.id}) == {"text": "asking. done"}
            assert client.joined("t") == {"text": "asking. done"}


# -- questions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", LEGACY[2:])
async def test_a_question_with_choices_is_an_elicitation(store: Path, version: str) -> None:
    async with in_process(store, careful) as (client, _):
        await client.initialize(version, elicits=True)
        id_ = await client.start_run("careful", {"text": "it"}, token="t")
        request = await client.request("elicitation/create")
        assert client.deltas("t") == [{"text": "asking. "}]
        params = request["params"]
        assert "Do it?" in params["message"]
        choice = params["requestedSchema"]["properties"]["choice"]
        assert choice["type"] == "string"
        if version == LATEST:
            assert params["mode"] == "form"
            assert choice["oneOf"] == [{"const": "yes", "title": "Yes"}, {"const": "no", "title": "No"}]
        else:
            assert "mode" not in params
            assert (choice["enum"], choice["enumNames"]) == (["yes", "no"], ["Yes", "No"])
        await client.respond(request, {"action": "accept", "content": {"choice": "yes"}})
        assert (await client.answer(id_))["result"]["output"] == {"text": "asking. done"}


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ({"action": "accept", "content": {"choice": "no"}}, "left alone"),
        ({"action": "decline"}, "left alone"),
    ],
)
async def test_no_and_declining_are_a_no(store: Path, reply: Message, said: str) -> None:
    async with in_process(store, careful) as (client, _):
        client.on("elicitation/create", lambda _: reply)
        await client.initialize(elicits=True)
        assert await client.run("careful", {"text": "it"}) == {"text": f"asking. {said}"}


@pytest.mark.parametrize("agent", ["careful", "shipper"])
async def test_cancelling_says_nothing_and_the_run_keeps_waiting(store: Path, agent: str) -> None:
    async with in_process(store, careful, shipper) as (client, engine):
        client.on("elicitation/create", lambda _: {"action": "cancel"})
        await client.initialize(elicits=True)
        error = await client.failed_run(agent, {"text": "it"})
        assert error["code"] == QUESTION_OPEN
        assert (await engine.runs.get(error["data"]["run"])).status is il.Status.WAITING


async def test_a_form_that_is_declined_says_nothing_where_the_question_has_no_no(store: Path) -> None:
    async with in_process(store, shipper) as (client, engine):
        client.on("elicitation/create", lambda _: {"action": "decline"})
        await client.initialize(elicits=True)
        error = await client.failed_run("shipper", {"text": "it"})
        assert error["data"]["question"]["type"] == "where_to"
        assert (await engine.runs.get(error["data"]["run"])).status is il.Status.WAITING


async def test_a_question_with_a_flat_answer_is_a_form(store: Path) -> None:
    async with in_process(store, shipper) as (client, _):
        await client.initialize(elicits=True)
        id_ = await client.start_run("shipper", {"text": "it"})
        request = await client.request("elicitation/create")
        schema = request["params"]["requestedSchema"]
        assert {name: field["type"] for name, field in schema["properties"].items()} == {
            "street": "string", "number": "integer", "country": "string",
        }  # fmt: skip
        assert schema["required"] == ["street", "number"]
        await client.respond(request, {"action": "accept", "content": {"street": "Via Roma", "number": 5}})
        assert (await client.answer(id_))["result"]["output"] == {"text": "Via Roma 5 it"}


async def test_what_has_no_field_of_its_kind_is_json_in_a_text(store: Path) -> None:
    async with in_process(store, deep) as (client, engine):
        await client.initialize(elicits=True)
        id_ = await client.start_run("deep", {"text": "it"})
        request = await client.request("elicitation/create")
        schema = request["params"]["requestedSchema"]
        assert schema == {
            "type": "object",
            "properties": {
                "lines": {
                    "type": "string", "title": "lines (JSON)", "description": "JSON of this shape: [[text, …], …]",
                },
            },
            "required": ["lines"],
        }  # fmt: skip
        [asked] = await engine.questions.open()
        assert request["params"]["_meta"][SCHEMA] == asked.answer_schema
        await client.respond(request, {"action": "accept", "content": {"lines": '[["a", "b"], []]'}})
        assert (await client.answer(id_))["result"]["output"] == {"text": "[['a', 'b'], []]"}


async def test_a_flat_form_says_all_that_there_is_to_say(store: Path) -> None:
    async with in_process(store, shipper) as (client, _):
        await client.initialize(elicits=True)
        await client.start_run("shipper", {"text": "it"})
        assert SCHEMA not in (await client.request("elicitation/create"))["params"]["_meta"]


@pytest.mark.parametrize(("bad", "why"), [("a, b", "lines has to be JSON"), ("[1]", "answer: 1 is not of type")])
async def test_json_that_does_not_fit_is_asked_for_again_with_what_is_wrong(store: Path, bad: str, why: str) -> None:
    async with in_process(store, deep) as (client, _):
        await client.initialize(elicits=True)
        id_ = await client.start_run("deep", {"text": "it"})
        first = await client.request("elicitation/create")
        await client.respond(first, {"action": "accept", "content": {"lines": bad}})
        second = await client.request("elicitation/create", after=client.place(first) + 1)
        assert second["params"]["message"].startswith(why)
        assert second["params"]["message"].endswith(first["params"]["message"])
        await client.respond(second, {"action": "accept", "content": {"lines": "[]"}})
        assert (await client.answer(id_))["result"]["output"] == {"text": "[]"}


@pytest.mark.parametrize(
    ("type_", "content", "value"),
    [
        (list[int], {"answer": "[1, 2]"}, [1, 2]),
        (str, {"answer": "[1, 2]"}, "[1, 2]"),
        (float, {"answer": 2.5}, 2.5),
        (bool, {"choice": "no"}, False),
        (Literal["red", "blue"], {"choice": "red"}, "red"),
        (list[Literal["red", "blue"]], {"answer": ["red"]}, ["red"]),
        (dict[str, list[int]], {"answer": '{"a": [1]}'}, {"a": [1]}),
        (None, {"answer": "null"}, None),
    ],
    ids=str,
)
async def test_an_answer_that_is_no_object_is_asked_for_too(
    store: Path, type_: Any, content: Message, value: Any
) -> None:
    class Wanted(il.Question[type_]):  # type: ignore[valid-type]
        """What is wanted?"""

    @il.agent(asks=[Wanted])
    async def wants(ctx: il.Context[Any, Any]) -> str:
        return json.dumps(await ctx.ask(Wanted()))

    async with in_process(store, wants) as (client, _):
        client.on("elicitation/create", lambda _: {"action": "accept", "content": content})
        await client.initialize(elicits=True)
        assert await client.run("wants", {}) == {"text": json.dumps(value)}
        assert len(client.notices("elicitation/create")) == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"action": "accept", "content": {"street": "Via Roma", "number": "five"}},
        {"action": "accept"},
        {"action": "perhaps"},
        {"content": {}},
        {"action": "accept", "content": "Via Roma 5"},
        [],
        None,
    ],
    ids=repr,
)
async def test_an_answer_that_does_not_fit_is_asked_for_again(store: Path, bad: Any) -> None:
    async with in_process(store, shipper) as (client, _):
        await client.initialize(elicits=True)
        id_ = await client.start_run("shipper", {"text": "it"})
        first = await client.request("elicitation/create")
        await client.respond(first, bad)
        second = await client.request("elicitation/create", after=client.place(first) + 1)
        assert second["params"]["message"].endswith(first["params"]["message"])
        assert second["params"]["message"] != first["params"]["message"]
        await client.respond(second, {"action": "accept", "content": {"street": "Via Roma", "number": 5}})
        assert (await client.answer(id_))["result"]["output"] == {"text": "Via Roma 5 it"}


async def test_a_choice_that_was_not_offered_is_neither_a_yes_nor_a_no(store: Path) -> None:
    async with in_process(store, careful) as (client, _):
        await client.initialize(elicits=True)
        id_ = await client.start_run("careful", {"text": "it"})
        first = await client.request("elicitation/create")
        await client.respond(first, {"action": "accept", "content": {"choice": "perhaps"}})
        second = await client.request("elicitation/create", after=client.place(first) + 1)
        await client.respond(second, {"action": "accept", "content": {"choice": "yes"}})
        assert (await client.answer(id_))["result"]["output"] == {"text": "asking. done"}


async def test_after_three_bad_answers_the_request_fails_and_the_run_keeps_waiting(store: Path) -> None:
    async with in_process(store, shipper) as (client, engine):
        client.on("elicitation/create", lambda _: {"action": "accept", "content": {}})
        await client.initialize(elicits=True)
        error = await client.failed_run("shipper", {"text": "it"})
        assert error["code"] == QUESTION_OPEN
        assert len(client.notices("elicitation/create")) == 3
        assert (await engine.runs.get(error["data"]["run"])).status is il.Status.WAITING


async def test_a_client_that_answers_an_elicitation_with_an_error_gets_the_question_as_one(store: Path) -> None:
    async with in_process(store, careful) as (client, _):
        await client.initialize(elicits=True)
        id_ = await client.start_run("careful", {"text": "it"})
        request = await client.request("elicitation/create")
        await client.line({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "no forms"}})
        assert (await client.answer(id_))["error"]["code"] == QUESTION_OPEN


@pytest.mark.parametrize(
    ("agent", "able"),
    [
        ("careful", {}),
        ("careful", {"elicitation": {"url": {}}}),
        ("deep", {}),
    ],
    ids=["no elicitation", "only by url", "none for more than a form"],
)
async def test_a_question_that_cannot_be_asked_is_an_error_with_the_question_and_the_run(
    store: Path, agent: str, able: Message
) -> None:
    async with in_process(store, careful, deep) as (client, engine):
        await client.initialize(capabilities=able)
        error = await client.failed_run(agent, {"text": "it"}, token="t")
        assert error["code"] == QUESTION_OPEN
        asked = await question(engine, error["data"]["run"])
        told = error["data"]["question"]
        assert (told["id"], told["type"], told["payload"]) == (asked.id, asked.type, asked.payload)
        assert told["answerSchema"] == asked.answer_schema
        assert error["data"]["run"] in error["message"]
        assert not client.notices("elicitation/create")


async def test_a_run_that_was_answered_elsewhere_is_joined_again(store: Path) -> None:
    async with in_process(store, careful) as (client, engine):
        await client.initialize()
        run = (await client.failed_run("careful", {"text": "it"}))["data"]["run"]
        again = await client.failed_run("careful", {"text": "it"}, **{RUN: run})
        assert again["data"]["run"] == run, "it waits still"
        await engine.questions.answer((await question(engine, run)).id, {"approved": True})
        result = await client.whole_run("careful", {"text": "it"}, token="t", **{RUN: run})
        assert (result["output"], result["_meta"]) == ({"text": "asking. done"}, {RUN: run})
        assert client.joined("t") == result["output"]
        assert (await only_run(engine)).id == run


async def test_a_run_is_joined_again_by_another_process_after_a_restart(store: Path) -> None:
    engine = il.Engine(store, agents=[careful], settings=QUICK)
    await engine.start()
    async with client_of(engine) as (client, _):
        await client.initialize()
        run = (await client.failed_run("careful", {"text": "it"}))["data"]["run"]
    await crash(engine)
    async with in_process(store, careful) as (client, engine):
        await client.initialize()
        await engine.questions.answer((await question(engine, run)).id, {"approved": False})
        assert await client.run("careful", {}, **{RUN: run}) == {"text": "asking. left alone"}


async def test_an_elicitation_is_taken_back_when_the_question_is_answered_elsewhere(store: Path) -> None:
    async with in_process(store, careful) as (client, engine):
        await client.initialize(elicits=True)
        id_ = await client.start_run("careful", {"text": "it"})
        request = await client.request("elicitation/create")
        await engine.questions.answer((await question(engine, (await only_run(engine)).id)).id, {"approved": True})
        assert (await client.answer(id_))["result"]["output"] == {"text": "asking. done"}
        taken_back = await client.notice("notifications/cancelled")
        assert taken_back["params"]["requestId"] == request["id"]


async def test_the_run_of_another_caller_cannot_be_joined(store: Path) -> None:
    async with il.Engine(store, agents=[careful], settings=QUICK) as engine:
        async with client_of(engine) as (client, _):
            await client.initialize()
            run = (await client.failed_run("careful", {"text": "it"}))["data"]["run"]
        async with client_of(engine, Caller("mallory", scopes=("do:run", "do:answer"))) as (client, _):
            await client.initialize()
            error = await client.failed_run("careful", {}, **{RUN: run})
            assert (error["code"], error["data"]["code"]) == (INVALID_PARAMS, "run_not_found")


async def test_an_agent_that_a_caller_may_not_run_is_not_there_for_them(store: Path) -> None:
    async with (
        il.Engine(store, agents=[echo, silent], settings=QUICK) as engine,
        client_of(engine, Caller("bob", scopes=("agents:echo",))) as (client, _),
    ):
        await client.initialize()
        assert [a["name"] for a in (await client.ask("agents/list"))["agents"]] == ["echo"]
        assert [t["name"] for t in (await client.ask("tools/list"))["tools"]] == ["echo"]
        assert (await client.failed_run("silent", {"text": "x"}))["data"]["code"] == "agent_not_found"


# -- threads --------------------------------------------------------------------------------------------------


async def test_runs_with_the_same_thread_in_meta_share_its_state(store: Path) -> None:
    thread = "7f0c6f3e-93f5-4f7e-8f0e-0a1b2c3d4e5f"
    async with in_process(store, remember) as (client, _):
        await client.initialize()
        for text, told in (("one", "one"), ("two", "one two")):
            assert await client.run("remember", {"text": text}, **{THREAD: thread}) == {"text": told}
        assert await client.run("remember", {"text": "three"}) == {"text": "three"}
    async with in_process(store, remember) as (client, engine):
        await client.initialize()
        assert await client.run("remember", {"text": "four"}, **{THREAD: thread}) == {"text": "one two four"}
        assert (await engine.threads.get(thread)).values == {"said": ["one", "two", "four"]}


async def test_runs_that_meet_in_a_thread_come_one_after_the_other(store: Path) -> None:
    async with in_process(store, remember) as (client, _):
        await client.initialize()
        meta = {THREAD: "7f0c6f3e-93f5-4f7e-8f0e-0a1b2c3d4e5f"}
        outputs = await asyncio.gather(*(client.run("remember", {"text": str(n)}, **meta) for n in range(5)))
        told = sorted((output["text"] for output in outputs), key=len)
        assert sorted(told[-1].split()) == ["0", "1", "2", "3", "4"]
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(told))


# -- templates ------------------------------------------------------------------------------------------------


async def test_templates_are_declared_and_there_only_where_an_agent_takes_config(store: Path) -> None:
    async with in_process(store, echo) as (client, engine):
        assert "templates" not in (await client.initialize())["capabilities"]["agents"]
        for method in ("agents/templates/list", "agents/create", "agents/destroy"):
            assert (await client.call(method, {"templateName": "echo", "name": "echo"}))["error"]["code"] == (
                METHOD_NOT_FOUND
            )
        engine.agents.add(styled)
        assert (await client.initialize())["capabilities"]["agents"]["templates"] is True
        [template] = (await client.ask("agents/templates/list"))["agentTemplates"]
        assert template["name"] == "styled"
        assert template["configSchema"]["properties"]["tone"]["type"] == "string"


async def test_a_created_agent_is_listed_run_destroyed_and_there_after_a_restart(store: Path) -> None:
    async with in_process(store, styled) as (client, _):
        await client.initialize()
        made = (await client.ask("agents/create", {"templateName": "styled", "config": {"tone": "warm"}}))["agent"]
        await client.notice("notifications/agents/list_changed")
        name = made["name"]
        assert made["inputSchema"]["properties"] == {"text": {"type": "string"}}
        assert made in (await client.ask("agents/list"))["agents"]
        assert await client.run(name, {"text": "hi"}) == {"text": "hi in a warm tone"}
        assert await client.run("styled", {"text": "hi"}) == {"text": "hi in a dry tone"}
    async with in_process(store, styled) as (client, _):
        await client.initialize()
        assert await client.run(name, {"text": "hi"}) == {"text": "hi in a warm tone"}
        assert (await client.ask("agents/destroy", {"name": name})) == {}
        await client.notice("notifications/agents/list_changed")
        assert [a["name"] for a in (await client.ask("agents/list"))["agents"]] == ["styled"]
        assert (await client.failed_run(name, {"text": "hi"}))["code"] == INVALID_PARAMS


@pytest.mark.parametrize(
    ("method", "params", "told"),
    [
        ("agents/create", {"templateName": "styled", "config": {"tone": 5}}, "/tone"),
        ("agents/create", {"templateName": "echo", "config": {}}, "no template"),
        ("agents/create", {"templateName": "nobody", "config": {}}, "nobody"),
        ("agents/create", {"config": {}}, "templateName"),
        ("agents/create", {"templateName": "styled", "config": "warm"}, "$.config"),
        ("agents/destroy", {"name": "echo"}, "not created here"),
        ("agents/destroy", {"name": "nobody"}, "nobody"),
        ("agents/destroy", {}, "name"),
    ],
)
async def test_bad_params_of_templates_are_named_and_change_nothing(
    store: Path, method: str, params: Message, told: str
) -> None:
    async with in_process(store, styled, echo) as (client, engine):
        await client.initialize()
        error = (await client.call(method, params))["error"]
        assert error["code"] == INVALID_PARAMS
        assert told in json.dumps(error)
        assert await engine.core.store.instances.list() == []


async def test_an_agent_that_was_created_elsewhere_under_a_name_that_is_taken_has_another(store: Path) -> None:
    async with in_process(store, styled) as (client, engine):
        await client.initialize()
        for label in ("styled", "mine", "mine"):
            await engine.instances.create("styled", {"tone": label}, label=label)
        names = [a["name"] for a in (await client.ask("agents/list"))["agents"]]
        assert len(set(names)) == 4
        assert {"styled", "mine"} < set(names)
        told = [(await client.run(name, {"text": "x"}))["text"] for name in names]
        assert sorted(told) == sorted(f"x in a {tone} tone" for tone in ("dry", "styled", "mine", "mine"))


# -- what no client should send -------------------------------------------------------------------------------


async def test_unknown_methods_bad_params_and_bad_json_have_their_codes_and_end_nothing(store: Path) -> None:
    async with in_process(store, echo) as (client, _):
        await client.initialize()
        for method in ("nothing", "agents/frobnicate", "", "resources/list", "prompts/list"):
            assert (await client.call(method))["error"]["code"] == METHOD_NOT_FOUND, method
        for line, code, id_ in (
            (b"{broken", PARSE_ERROR, None), (b"1", INVALID_REQUEST, None), (b"[]", INVALID_REQUEST, None),
            (b"null", INVALID_REQUEST, None), (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', INVALID_REQUEST, None),
            (b'{"jsonrpc":"2.0","id":"a","method":5}', INVALID_REQUEST, "a"),
            (b'{"jsonrpc":"2.0","id":"a","method":"ping","params":5}', INVALID_REQUEST, "a"),
        ):  # fmt: skip
            [answer] = await answers_to(client, line)
            assert (answer["id"], answer["error"]["code"]) == (id_, code), line
        assert await client.run("echo", {"text": "hi"}) == {"text": "hi "}


async def answers_to(client: Client, line: bytes) -> list[Any]:
    """The lines that come because of one line: what comes before the answer to a request behind it."""
    before = len(client.frames)
    await client.raw(line + b"\n")
    await client.answer(await client.send("ping"))
    return client.frames[before:-1]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b'{"jsonrpc":"2.0","method":"notifications/nothing"}',
        b'{"jsonrpc":"2.0","method":"agents/run","params":{"name":"echo","input":{"text":"x"}}}',
        b'{"jsonrpc":"2.0","id":99,"result":{}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}',
    ],
)
async def test_blank_lines_unknown_notifications_and_responses_get_silence(store: Path, line: bytes) -> None:
    async with in_process(store, echo) as (client, engine):
        await client.initialize()
        assert await answers_to(client, line) == []
        assert await engine.runs.search(RunFilter()) == []


async def test_a_batch_gets_one_array_of_answers(store: Path) -> None:
    async with in_process(store, echo) as (client, _):
        await client.initialize()
        runs = [
            client.message("agents/run", {"name": "echo", "input": {"text": t}, "_meta": {"progressToken": t}})
            for t in ("a", "b")
        ]
        unknown = client.message("nothing")
        await client.line([*runs, unknown, {"jsonrpc": "2.0", "method": "notifications/initialized"}, 5])
        batch = await client.frame(lambda frame: type(frame) is list)
        told = {m["id"]: m.get("error", {}).get("code", m.get("result", {}).get("output")) for m in batch}
        assert told == {
            runs[0]["id"]: {"text": "a "}, runs[1]["id"]: {"text": "b "}, unknown["id"]: METHOD_NOT_FOUND,
            None: INVALID_REQUEST,
        }  # fmt: skip
        assert (client.joined("a"), client.joined("b")) == ({"text": "a "}, {"text": "b "})


async def test_ids_are_kept_exactly(store: Path) -> None:
    async with in_process(store, echo) as (client, _):
        await client.initialize()
        for id_ in (0, "", -5, 2**53 + 1, "ü\u2028", "3f2504e0-4f89-41d3-9a0c-0305e82c3301"):
            await client.send("agents/run", {"name": "echo", "input": {"text": "x"}}, id_=id_)
            answer = await client.answer(id_)
            assert json.dumps(answer["id"]) == json.dumps(id_)
            assert answer["jsonrpc"] == "2.0"
            assert answer["result"]["output"] == {"text": "x "}


async def test_the_limit_on_lines_is_told_and_the_next_line_is_read(store: Path) -> None:
    async with in_process(store, echo, max_frame_bytes=1000) as (client, _):
        await client.initialize()
        [answer] = await answers_to(client, b"x" * 1001)
        assert (answer["id"], answer["error"]["code"]) == (None, INVALID_REQUEST)


async def test_an_input_nested_too_deeply_is_refused_and_ends_nothing(store: Path) -> None:
    async with in_process(store, echo) as (client, _):
        await client.initialize()
        for depth in (100, 300, 900):
            value = b"[" * depth + b"]" * depth
            line = b'{"jsonrpc":"2.0","id":"%d","method":"agents/run","params":{"name":"echo","input":{"text":%b}}}'
            await client.raw(line % (depth, value) + b"\n")
            assert (await client.answer(str(depth)))["error"]["code"] == INVALID_PARAMS
        assert await client.run("echo", {"text": "hi"}) == {"text": "hi "}


# -- as a process ---------------------------------------------------------------------------------------------


async def test_a_client_starts_the_process_and_speaks_with_it_over_its_stdin_and_stdout(tmp_path: Path) -> None:
    async with stdio(tmp_path, AGENTS) as client:
        await client.initialize("2024-11-05")
        assert await client.run("echo", {"text": "hello there"}, token=0) == {"text": "hello there "}
        assert client.joined(0) == {"text": "hello there "}
        await client.end_input()
        assert await client.wait() == 0
        await client.end()
        assert client.broken is None
        assert client.stderr == ""


async def test_requests_that_are_piped_in_are_answered_before_the_process_ends(tmp_path: Path) -> None:
    async with stdio(tmp_path, AGENTS) as client:
        start = client.message("initialize", {"protocolVersion": LATEST})
        run = client.message("agents/run", {"name": "echo", "input": {"text": "hi"}})
        await client.raw(json.dumps(start).encode() + b"\n" + json.dumps(run).encode() + b"\n")
        await client.end_input()
        assert (await client.answer(run["id"]))["result"]["output"] == {"text": "hi "}
        assert await client.wait() == 0


def test_the_default_page_is_large_enough_for_clients_that_never_ask_for_a_second() -> None:
    assert DoorSettings().page >= 1000

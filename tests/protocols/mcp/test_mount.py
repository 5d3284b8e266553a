"""The mount over pipes, against a server that does what it is told."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.delta import Joiner
from interlingua.model.errors import ErrorInfo, InvalidRequest, Unavailable
from interlingua.model.events import OutputDelta, Warned
from interlingua.mounts.loader import local_agents
from interlingua.protocols.mcp.mount.remote_run import McpRun
from interlingua.protocols.mcp.mount.server import load
from interlingua.protocols.targets import Target
from tests.kit.engines import bodies, crash, engine, finish, question, submit
from tests.kit.mounts.mcp import act, mount, mounted, script, sent, wire
from tests.kit.mounts.watch import SETTINGS, seen
from tests.kit.wait_for import wait_for

FORM = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ASKS = {"message": "Where to?", "requestedSchema": FORM}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


async def warnings(eng: il.Engine, run: str) -> list[str]:
    return [body.message for body in await bodies(eng, run, Warned)]


# -- beginning ------------------------------------------------------------------------------------------------


async def test_it_initializes_then_lists_then_runs_and_asks_nothing_else(tmp_path: Path, store: Path) -> None:
    log = tmp_path / "wire"
    async with mounted(store, {"version": "2024-11-05", "strict": True, "log": str(log)}) as (eng, _):
        run = await finish(eng, "script", script(act("output", {"text": "x"})))
        assert run.output == {"text": "x"}
    first, initialized, listing, running = wire(log)
    assert first["method"] == "initialize"
    assert first["params"]["protocolVersion"] == "2025-11-25"
    assert initialized["method"] == "notifications/initialized"
    assert listing["method"] == "agents/list"
    assert running["method"] == "agents/run"
    assert running["params"]["name"] == "script"
    assert running["params"]["input"] == script(act("output", {"text": "x"}))
    assert isinstance(running["params"]["_meta"]["progressToken"], str)


async def test_input_is_sent_also_where_there_is_none(tmp_path: Path, store: Path) -> None:
    log = tmp_path / "wire"
    async with mounted(store, {"log": str(log)}) as (eng, _):
        run = await submit(eng, "script", {})
        assert (await sent(log, "agents/run"))["params"]["input"] == {}
        await eng.runs.cancel(run.id)


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_revision_with_a_handshake_is_taken(store: Path, version: str) -> None:
    async with mounted(store, {"version": version}) as (eng, _):
        run = await finish(eng, "script", script(act("output", {"text": version})))
        assert run.output == {"text": version}


async def test_a_revision_that_nobody_knows_is_refused() -> None:
    with pytest.raises(Unavailable, match="revision '1999-01-01'; known are 2024-11-05"):
        await mount({"version": "1999-01-01"}).agents()


async def test_discover_is_tried_only_where_initialize_was_refused(tmp_path: Path, store: Path) -> None:
    log = tmp_path / "wire"
    given = {"version": "2026-07-28", "refuses": {"code": -32601, "message": "no initialize"}, "log": str(log)}
    async with mounted(store, given) as (eng, _):
        lines = script(act("delta", {"text": "a"}), act("output", {"text": "a"}))
        run = await finish(eng, "script", lines)
        assert run.output == {"text": "a"}
        assert await warnings(eng, run.id) == []
    sent_ = wire(log)
    assert [message["method"] for message in sent_] == ["initialize", "server/discover", "agents/list", "agents/run"]
    for message in sent_[1:]:
        assert message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        assert "elicitation" in message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]


async def test_a_server_that_refuses_and_names_an_older_revision_is_asked_for_that(tmp_path: Path) -> None:
    log = tmp_path / "wire"
    refuses = {"code": -32602, "message": "unsupported", "data": {"supported": ["2024-11-05", "2025-03-26"]}}
    with pytest.raises(Unavailable, match="refused to begin"):
        await mount({"refuses": refuses, "log": str(log), "strict": True}).agents()
    assert [m["params"]["protocolVersion"] for m in wire(log)] == ["2025-11-25", "2025-03-26"]


async def test_a_server_that_does_not_declare_agents_is_used_with_a_warning(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with mounted(store, {"capabilities": {"tools": {}}}) as (eng, _):
        assert any("does not declare capabilities.agents" in record.getMessage() for record in caplog.records)
        run = await finish(eng, "script", script(act("output", {"text": "x"})))
        assert run.output == {"text": "x"}
        assert any("does not declare" in message for message in await warnings(eng, run.id))


async def test_a_server_that_cannot_list_the_tools_that_it_declares_is_refused(tmp_path: Path) -> None:
    code = "import json,sys\nfor l in sys.stdin:\n m=json.loads(l)\n if 'id' in m:\n  r={'result':{'protocolVersion':"
    code += "'2025-11-25','capabilities':{'tools':{}}}} if m['method']=='initialize' else "
    code += "{'error':{'code':-32601,'message':'no'}}\n  print(json.dumps({'jsonrpc':'2.0','id':m['id'],**r}),flush=1)"
    with pytest.raises(Unavailable, match="declares tools, and cannot list them: no"):
        await load(Target("mcp", shlex.join([sys.executable, "-c", code])))


async def test_an_old_server_with_resources_alone_is_not_even_asked_for_agents(tmp_path: Path) -> None:
    log = tmp_path / "wire"
    given = {"version": "2024-11-05", "capabilities": {"resources": {}}, "log": str(log)}
    with pytest.raises(Unavailable, match="only resources"):
        await mount(given).agents()
    assert [m["method"] for m in wire(log)] in (["initialize"], ["initialize", "notifications/initialized"])


async def test_a_list_in_pages_is_read_to_its_end(store: Path) -> None:
    agents = [{"name": f"a{n}"} for n in range(7)]
    made = mount({"agents": agents, "page": 3})
    assert [agent.card.name for agent in await made.agents(None)] == [f"a{n}" for n in range(7)]
    await made.close()


async def test_odd_schemas_and_names_lose_no_agent(store: Path) -> None:
    agents: list[dict[str, Any]] = [
        {"name": "none"},
        {"name": "string", "inputSchema": {"type": "string"}, "outputSchema": 5},
        {"name": "broken", "inputSchema": {"type": "object", "properties": {"a": {"type": "nonsense"}}}},
        {"name": "far", "inputSchema": {"$ref": "http://elsewhere.example/schema"}},
        {"name": "with space"},
        {"name": "with/space", "description": None, "framework": "bee", "ui": {"type": "chat"}},
        {"no": "name"},
    ]  # fmt: skip
    async with mounted(store, {"agents": agents}) as (eng, _):
        cards = {agent.card.metadata["agent_name"]: agent.card for agent in eng.agents}
        assert len(cards) == 6
        assert {cards["with space"].name, cards["with/space"].name} == {"with-space"} | {"with-space-2"}
        assert cards["with/space"].metadata["mcp"] == {"framework": "bee", "ui": {"type": "chat"}}
        for card in cards.values():
            run = await finish(eng, card.name, script(act("output", {"anything": [1]})))
            assert run.output == {"anything": [1]}


async def test_a_command_that_cannot_be_started_or_ends_at_once_says_so() -> None:
    with pytest.raises(Unavailable, match="cannot be started"):
        await load(Target("mcp", "/no/such/command"))
    with pytest.raises(Unavailable, match=r"did not start: it exited with status 3; the last it said: bad luck"):
        await load(Target("mcp", shlex.join(["sh", "-c", "echo bad luck >&2; exit 3"])))
    with pytest.raises(InvalidRequest):
        await load(Target("mcp", "'"))


# -- running --------------------------------------------------------------------------------------------------


async def test_twenty_thousand_deltas_as_fast_as_they_come_join_to_the_result(store: Path) -> None:
    async with mounted(store) as (eng, _):
        run = await submit(eng, "script", script(act("flood", 20_000)))
        run = await eng.runs.wait(run.id, timeout=60)
        joined = Joiner()
        for body in await bodies(eng, run.id, OutputDelta):
            joined.add(body.delta)
        whole = "".join(f"{n}," for n in range(20_000))
        assert joined.value == run.output == {"text": whole}
        assert await warnings(eng, run.id) == []


async def test_runs_at_the_same_time_each_have_their_own_deltas(store: Path) -> None:
    async with mounted(store) as (eng, made):
        runs = await asyncio.gather(*(finish(eng, "script", script(act("flood", 200 + n))) for n in range(5)))
        for n, run in enumerate(runs):
            assert run.output == {"text": "".join(f"{i}," for i in range(200 + n))}
            assert await warnings(eng, run.id) == []
        assert made.keeper.starts == 1


async def test_deltas_that_do_not_join_are_one_warning_and_the_result_counts(store: Path) -> None:
    async with mounted(store) as (eng, _):
        lines = [act("delta", delta) for delta in ({"text": "a"}, {"text": 1}, {"text": 2}, {"text": "b"})]
        run = await finish(eng, "script", script(*lines, act("output", {"text": "z"})))
        assert (run.status, run.output) == (il.Status.SUCCEEDED, {"text": "z"})
        (warned,) = await warnings(eng, run.id)
        assert "does not join" in warned
        assert [body.delta for body in await bodies(eng, run.id, OutputDelta)] == [{"text": "a"}]


async def test_deltas_that_join_to_something_else_are_one_warning_and_the_result_counts(store: Path) -> None:
    async with mounted(store) as (eng, _):
        lines = [act("delta", {"text": "a"}), act("delta", {"text": "b"}), act("output", {"text": "b"})]
        run = await finish(eng, "script", script(*lines))
        assert run.output == {"text": "b"}
        (warned,) = await warnings(eng, run.id)
        assert "do not join to the result" in warned


async def test_members_that_are_null_are_no_mismatch(store: Path) -> None:
    async with mounted(store) as (eng, _):
        lines = [act("delta", {"text": "a", "score": None}), act("output", {"text": "a", "other": None})]
        run = await finish(eng, "script", script(*lines))
        assert run.output == {"text": "a", "other": None}
        assert await warnings(eng, run.id) == []


async def test_a_delta_right_behind_the_result_is_nothing(store: Path) -> None:
    async with mounted(store) as (eng, _):
        lines = [act("delta", {"text": "a"}), act("together", {"output": {"text": "a"}, "late": {"text": "late"}})]
        run = await finish(eng, "script", script(*lines))
        assert run.output == {"text": "a"}
        assert [body.delta for body in await bodies(eng, run.id, OutputDelta)] == [{"text": "a"}]
        assert await warnings(eng, run.id) == []


async def test_an_output_that_does_not_fit_its_schema_counts_all_the_same(store: Path) -> None:
    async with mounted(store) as (eng, _):
        run = await finish(eng, "script", script(act("output", {"text": 5})))
        assert (run.status, run.output) == (il.Status.SUCCEEDED, {"text": 5})
        (warned,) = await warnings(eng, run.id)
        assert "does not fit the schema" in warned


@pytest.mark.parametrize("code", [0, 1, -32602, -32603, -32000, 42])
async def test_an_error_of_any_code_fails_the_run_with_its_words(store: Path, code: int) -> None:
    async with mounted(store) as (eng, _):
        error = {"code": code, "message": "Error running agent: oh no", "data": {"why": "rain"}}
        run = await finish(eng, "script", script(act("error", error)))
        assert run.status is il.Status.FAILED
        assert run.error is not None
        assert (run.error.code, run.error.message) == ("remote_failed", "Error running agent: oh no")
        assert run.error.details == {"code": code, "data": {"why": "rain"}}
        assert not run.error.transient


async def test_an_error_of_ours_is_what_it_was_there_and_a_question_that_waits_stays_with_it(store: Path) -> None:
    async with mounted(store) as (eng, _):
        told = {"code": "too_ripe", "transient": True, "details": {"code": 3}, "run": "r"}
        run = await finish(eng, "script", script(act("error", {"code": -32603, "message": "it broke", "data": told})))
        assert run.error == ErrorInfo("too_ripe", "it broke", True, {"code": 3})
        told = {"code": "question_open", "transient": False, "run": "r", "question": {"id": "q"}}
        run = await finish(eng, "script", script(act("error", {"code": -32010, "message": "it waits", "data": told})))
        assert run.error == ErrorInfo("question_open", "it waits", False, {"code": -32010, "data": told})


async def test_an_answer_without_an_output_fails_the_run(store: Path) -> None:
    async with mounted(store) as (eng, _):
        run = await finish(eng, "script", script(act("result", {})))
        assert run.error is not None
        assert "without an output" in run.error.message


async def test_cancelling_takes_the_request_back_and_an_answer_after_it_is_nothing(tmp_path: Path, store: Path) -> None:
    log = tmp_path / "wire"
    async with mounted(store, {"log": str(log)}) as (eng, made):
        error = {"code": 0, "message": "Request cancelled"}
        run = await submit(eng, "script", script(act("delta", {"text": "a"}), act("until_cancelled", error)))
        await seen(eng, run.id, "delta")
        await eng.runs.cancel(run.id)
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.status is il.Status.CANCELLED
        running = await sent(log, "agents/run")
        assert (await sent(log, "notifications/cancelled"))["params"]["requestId"] == running["id"]
        again = await finish(eng, "script", script(act("output", {"text": "still here"})))
        assert again.output == {"text": "still here"}
        assert made.keeper.starts == 1


async def test_noise_on_its_output_is_skipped_and_told_once(store: Path) -> None:
    async with mounted(store) as (eng, _):
        lines = [act("noise", "DEBUG starting"), act("noise", '{"level": "info"}'), act("output", {"text": "x"})]
        first = await finish(eng, "script", script(*lines))
        assert first.output == {"text": "x"}
        (warned,) = await warnings(eng, first.id)
        assert "2 lines that are no messages" in warned
        second = await finish(eng, "script", script(act("output", {"text": "x"})))
        assert await warnings(eng, second.id) == []


async def test_a_server_that_dies_fails_its_runs_as_transient_and_serves_the_next(store: Path) -> None:
    async with mounted(store) as (eng, made):
        run = await finish(eng, "script", script(act("delta", {"text": "a"}), act("die")))
        assert run.error is not None
        assert (run.error.code, run.error.transient) == ("run_lost", True)
        assert "status 3" in run.error.message
        assert "out of luck" in run.error.message
        again = await finish(eng, "script", script(act("output", {"text": "x"})))
        assert again.output == {"text": "x"}
        assert made.keeper.starts == 2


async def test_a_run_over_pipes_is_not_repeated_after_a_crash_and_fails_as_transient(
    tmp_path: Path, store: Path
) -> None:
    log = tmp_path / "wire"
    made = mount({"log": str(log)})
    eng = engine(store, *await local_agents(made, None), settings=SETTINGS)
    await eng.__aenter__()
    run = await submit(eng, "script", script(act("delta", {"text": "a"}), act("hang")))
    await seen(eng, run.id, "delta")
    await crash(eng)
    await made.close()
    async with mounted(store, {"log": str(log)}) as (again, _):
        ended = await again.runs.wait(run.id, timeout=20)
        assert ended.error is not None
        assert (ended.error.code, ended.error.transient) == ("run_lost", True)
    assert len([m for m in wire(log) if m.get("method") == "agents/run"]) == 1


async def test_agents_that_change_are_seen_by_the_next_run(tmp_path: Path, store: Path) -> None:
    log = tmp_path / "wire"
    async with mounted(store, {"log": str(log)}) as (eng, _):
        lines = [act("agents", [{"name": "other"}]), act("output", {"text": "x"})]
        assert (await finish(eng, "script", script(*lines))).output == {"text": "x"}
        run = await finish(eng, "script", script(act("output", {"text": "x"})))
        assert run.error is not None
        assert run.error.code == "agent_not_found"
        assert "it has: other" in run.error.message
    methods = [m.get("method") for m in wire(log)]
    assert methods.count("agents/list") == 2
    assert methods.count("agents/run") == 1


async def test_an_idle_server_is_ended_and_started_again_when_needed(store: Path) -> None:
    async with mounted(store, idle_timeout=0.05) as (eng, made):
        reading = made.keeper._reading
        assert reading is not None
        await asyncio.wait([reading], timeout=20)
        assert reading.done()
        run = await finish(eng, "script", script(act("output", {"text": "x"})))
        assert run.output == {"text": "x"}
        assert made.keeper.starts == 2


async def test_its_log_messages_are_logged(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "interlingua.mcp.server")
    async with mounted(store) as (eng, _):
        await finish(eng, "script", script(act("die")))
    assert any("out of luck" in record.getMessage() for record in caplog.records)


# -- questions ------------------------------------------------------------------------------------------------


async def test_an_elicitation_is_a_question_of_the_run_and_its_answer_accepts(store: Path) -> None:
    async with mounted(store) as (eng, _):
        run = await submit(eng, "script", script(act("elicit", ASKS)))
        asked = await question(eng, run.id)
        assert (asked.prompt, asked.answer_schema) == ("Where to?", FORM)
        await eng.questions.answer(asked.id, {"city": "Brno"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert json.loads(ended.output["text"]) == {"action": "accept", "content": {"city": "Brno"}}


NESTED = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "stops": {"type": "array", "items": {"type": "integer"}}},
    "required": ["city", "stops"],
}


def asks_for(schema: Any, *fields: str, kind: str = "string") -> dict[str, Any]:
    shown = {"type": "object", "properties": {name: {"type": kind} for name in fields}, "required": list(fields)}
    return {"message": "Where to?", "requestedSchema": shown, "_meta": {"interlingua/answerSchema": schema}}


@pytest.mark.parametrize("how", ["elicit", "input"])
@pytest.mark.parametrize(
    ("asks", "answer", "content"),
    [
        (asks_for(NESTED, "city", "stops"), {"city": "Brno", "stops": [1]}, {"city": "Brno", "stops": "[1]"}),
        (asks_for({"type": "array"}, "answer"), [{"a": None}], {"answer": '[{"a":null}]'}),
        (asks_for({"type": "string"}, "answer"), "Brno", {"answer": "Brno"}),
        (asks_for({"type": "integer"}, "answer", kind="integer"), 5, {"answer": 5}),
    ],
    ids=["members", "list", "text", "number"],
)
async def test_an_elicitation_that_has_the_schema_of_the_answer_asks_for_that(
    store: Path, asks: dict[str, Any], answer: Any, content: dict[str, Any], how: str
) -> None:
    async with mounted(store) as (eng, _):
        run = await submit(eng, "script", script(act(how, asks)))
        asked = await question(eng, run.id)
        assert (asked.prompt, asked.answer_schema) == ("Where to?", asks["_meta"]["interlingua/answerSchema"])
        with pytest.raises(il.InterlinguaError):
            await eng.questions.answer(asked.id, {"city": 1})
        await eng.questions.answer(asked.id, answer)
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        told = json.loads(ended.output["text"])
        assert (told if how == "elicit" else told["q"]) == {"action": "accept", "content": content}


@pytest.mark.parametrize("schema", [5, {"type": "nonsense"}, NESTED], ids=["none", "invalid", "of another form"])
async def test_a_schema_that_its_form_does_not_show_is_not_asked_for(store: Path, schema: Any) -> None:
    async with mounted(store) as (eng, _):
        run = await submit(eng, "script", script(act("elicit", asks_for(schema, "city"))))
        asked = await question(eng, run.id)
        assert asked.answer_schema == FORM
        await eng.questions.answer(asked.id, {"city": "Brno"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert json.loads(ended.output["text"]) == {"action": "accept", "content": {"city": "Brno"}}


async def test_a_form_that_only_lets_choose_is_a_choice(store: Path) -> None:
    member = {"type": "string", "enum": ["yes", "no"], "enumNames": ["Do it", "Leave it"]}
    schema = {"type": "object", "properties": {"choice": member}, "required": ["choice"]}
    async with mounted(store) as (eng, _):
        run = await submit(eng, "script", script(act("elicit", {"message": "Sure?", "requestedSchema": schema})))
        asked = await question(eng, run.id)
        assert [(o.id, o.label, o.kind) for o in asked.options] == [
            ("yes", "Do it", "allow_once"), ("no", "Leave it", "reject_once"),
        ]  # fmt: skip
        await eng.questions.answer(asked.id, {"choice": "no"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert json.loads(ended.output["text"]) == {"action": "accept", "content": {"choice": "no"}}


async def test_a_question_that_nobody_answers_in_time_is_declined(store: Path) -> None:
    async with mounted(store, answer_within=0.05) as (eng, _):
        run = await finish(eng, "script", script(act("elicit", ASKS)))
        assert run.output is not None
        assert json.loads(run.output["text"]) == {"action": "decline"}


async def test_an_address_to_visit_can_be_accepted_and_declined(store: Path) -> None:
    asks = {"message": "Log in", "mode": "url", "url": "https://login.example", "elicitationId": "1"}
    async with mounted(store) as (eng, _):
        for choice in ("accept", "decline"):
            run = await submit(eng, "script", script(act("elicit", asks)))
            asked = await question(eng, run.id)
            assert asked.payload["url"] == "https://login.example"
            await eng.questions.answer(asked.id, {"choice": choice})
            ended = await eng.runs.wait(run.id, timeout=20)
            assert ended.output is not None
            assert json.loads(ended.output["text"]) == {"action": choice}


async def test_a_question_goes_to_the_run_that_the_server_names(store: Path) -> None:
    async with mounted(store) as (eng, _):
        other = await submit(eng, "script", script(act("delta", {"text": "a"}), act("hang")))
        await seen(eng, other.id, "delta")
        run = await submit(eng, "script", script(act("elicit", {**ASKS, "names_run": True})))
        asked = await question(eng, run.id)
        await eng.questions.answer(asked.id, {"city": "Brno"})
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.SUCCEEDED
        await eng.runs.cancel(other.id)


async def test_a_question_for_nobody_knows_which_run_is_asked_of_none(store: Path) -> None:
    """Who watches one run must not answer for another."""
    async with mounted(store) as (eng, _):
        other = await submit(eng, "script", script(act("delta", {"text": "a"}), act("hang")))
        await seen(eng, other.id, "delta")
        run = await finish(eng, "script", script(act("elicit", ASKS)))
        assert run.output is not None
        assert json.loads(run.output["text"]) == {"action": "cancel"}
        assert any("for which of several runs" in message for message in await warnings(eng, other.id))
        await eng.runs.cancel(other.id)


async def test_a_question_of_the_revision_without_requests_is_answered_by_asking_again(
    tmp_path: Path, store: Path
) -> None:
    log = tmp_path / "wire"
    given = {"version": "2026-07-28", "refuses": {"code": -32601, "message": "no"}, "log": str(log)}
    async with mounted(store, given) as (eng, _):
        run = await submit(eng, "script", script(act("input", ASKS)))
        asked = await question(eng, run.id)
        await eng.questions.answer(asked.id, {"city": "Brno"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert json.loads(ended.output["text"]) == {"q": {"action": "accept", "content": {"city": "Brno"}}}
    assert len([m for m in wire(log) if m.get("method") == "agents/run"]) == 2


async def test_cancelling_a_run_that_asks_answers_the_server_that_nobody_will(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(McpRun, "server_decides_within", 0.05)  # this server withdraws nothing
    log = tmp_path / "wire"
    async with mounted(store, {"log": str(log)}) as (eng, _):
        run = await submit(eng, "script", script(act("elicit", ASKS)))
        await question(eng, run.id)
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
        await sent(log, "notifications/cancelled")
        await wait_for(lambda: any(m.get("id") == "ask-1" for m in wire(log)))
        (answer,) = [m for m in wire(log) if m.get("id") == "ask-1"]
        assert answer["result"] == {"action": "cancel"}

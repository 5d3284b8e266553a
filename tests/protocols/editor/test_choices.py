"""Permissions whose answers say more than which option it is: at the door, and at the mount."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from tests.kit.clients.editor import in_process, selected
from tests.kit.engines import question, submit
from tests.kit.mounts.editor import AGENT, act, mounted, script

SCHEMA, ANSWER = "interlingua/answerSchema", "interlingua/answer"
WHY = "too expensive"


@il.agent(asks=[il.Confirm, il.Choose])
async def buyer(text: str, ctx: il.Context[Any, Any]) -> str:
    if text == "choose":
        return (await ctx.ask(il.Choose("Which?", [il.Option("a", "A"), il.Option("b", "B")]))).choice
    verdict = await ctx.ask(il.Confirm("Buy it?"))
    return json.dumps([verdict.approved, verdict.reason])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def chose(option: str, whole: Any = None) -> dict[str, Any]:
    return selected(option) if whole is None else {**selected(option), "_meta": {ANSWER: whole}}


# -- the door -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
async def test_a_permission_tells_the_schema_of_an_answer_that_says_more(store: Path, version: int) -> None:
    async with in_process(store, buyer) as client:
        await client.initialize(version, info={"name": "t", "version": "1"})
        session = await client.new_session()
        client.on("session/request_permission", lambda _: chose("no", {"approved": False, "reason": WHY}))
        await client.start_prompt(session, "it")
        params = (await client.request("session/request_permission"))["params"]
        assert list(params["_meta"][SCHEMA]["properties"]) == ["approved", "reason"]
        assert [option["optionId"] for option in params["options"]] == ["yes", "no"]
        await client.update("agent_message_chunk", lambda u: WHY in u["content"]["text"])


@pytest.mark.parametrize("version", [1, 2])
async def test_a_question_that_the_door_breaks_over_is_asked_in_words_and_logged(
    store: Path, version: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("interlingua.protocols.editor.versions._permission_options", broken)
    async with in_process(store, buyer) as client:
        await client.initialize(version, info={"name": "t", "version": "1"})
        session = await client.new_session()
        await client.prompt(session, "it")
        await client.update("agent_message_chunk", lambda u: "Buy it?" in u["content"]["text"])
        await client.prompt(session, "yes")
        await client.update("agent_message_chunk", lambda u: "[true, null]" in u["content"]["text"])
    (told,) = [one for one in caplog.records if one.name == "interlingua.editor"]
    assert told.exc_info is not None
    assert told.exc_info[0] is ZeroDivisionError
    assert "could not be asked" in told.getMessage()


@pytest.mark.parametrize(
    ("reply", "heard"),
    [
        (chose("no"), [False, None]),
        (chose("yes", {"approved": True, "reason": WHY}), [True, WHY]),
        (chose("no", {"approved": False, "reason": WHY}), [False, WHY]),
        (chose("no", {"approved": True, "reason": WHY}), [False, None]),
        (chose("no", {"approved": False, "reason": 7}), [False, None]),
        (chose("no", {"reason": WHY}), [False, None]),
        (chose("no", "nonsense"), [False, None]),
        ({**chose("no"), "_meta": None}, [False, None]),
        ({**chose("no"), "_meta": [1]}, [False, None]),
        (chose("never offered", {"approved": True}), [False, None]),
        ({"_meta": {ANSWER: {"approved": True}}}, [False, None]),
    ],
    ids=str,
)
async def test_a_whole_answer_counts_where_it_says_what_was_selected(store: Path, reply: Any, heard: Any) -> None:
    async with in_process(store, buyer) as client:
        await client.initialize()
        session = await client.new_session()
        client.on("session/request_permission", lambda _: reply)
        await client.prompt(session, "it")
        assert json.loads(client.text(session)) == heard


async def test_a_choice_that_is_the_whole_answer_says_all_that_there_is_to_say(store: Path) -> None:
    async with in_process(store, buyer) as client:
        await client.initialize()
        session = await client.new_session()
        client.allow()
        await client.prompt(session, "choose")
        assert "_meta" not in (await client.request("session/request_permission"))["params"]


# -- the mount ------------------------------------------------------------------------------------------------

VERDICT = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}
OPTIONS = [
    {"optionId": "ship", "name": "Ship it", "kind": "allow_once"},
    {"optionId": "hold", "name": "Hold it", "kind": "reject_once"},
]


def asks(schema: Any) -> str:
    call = {"toolCallId": "t", "title": "Ship it?"}
    return act("call", "session/request_permission", toolCall=call, options=OPTIONS, _meta={SCHEMA: schema})


@pytest.mark.parametrize(
    ("answer", "sent"),
    [
        ({"approved": False, "reason": WHY}, chose("hold", {"approved": False, "reason": WHY})),
        ({"approved": True, "reason": WHY}, chose("ship", {"approved": True, "reason": WHY})),
        ({"approved": False}, chose("hold")),
    ],
    ids=["no", "yes", "nothing more"],
)
async def test_a_permission_with_the_schema_of_its_answer_asks_for_that_and_passes_on_all_of_it(
    store: Path, answer: Any, sent: Any
) -> None:
    async with mounted(store) as (eng, _):
        run = await submit(eng, AGENT, script(asks(VERDICT)))
        asked = await question(eng, run.id)
        assert [(o.id, o.label, o.kind) for o in asked.options] == [
            ("ship", "Ship it", "allow_once"), ("hold", "Hold it", "reject_once"),
        ]  # fmt: skip
        assert (asked.prompt, asked.answer_schema) == ("Ship it?", VERDICT)
        await eng.questions.answer(asked.id, answer)
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert json.loads(ended.output["text"]) == sent


async def test_an_answer_that_begins_with_no_option_is_refused(store: Path) -> None:
    open_ = {**VERDICT, "properties": {"pick": {"type": "string"}, "why": {"type": "string"}}, "required": ["pick"]}
    async with mounted(store) as (eng, _):
        run = await submit(eng, AGENT, script(asks(open_)))
        asked = await question(eng, run.id)
        with pytest.raises(il.InterlinguaError, match="burn"):
            await eng.questions.answer(asked.id, {"pick": "burn", "why": WHY})
        await eng.questions.answer(asked.id, {"pick": "hold", "why": WHY})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert json.loads(ended.output["text"]) == chose("hold", {"pick": "hold", "why": WHY})


@pytest.mark.parametrize("schema", [5, {"type": "nonsense"}, {"type": "array"}], ids=str)
async def test_options_that_are_not_of_their_schema_are_asked_for_alone(store: Path, schema: Any) -> None:
    async with mounted(store) as (eng, _):
        run = await submit(eng, AGENT, script(asks(schema)))
        asked = await question(eng, run.id)
        await eng.questions.answer(asked.id, {"choice": "hold"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert json.loads(ended.output["text"]) == chose("hold")


async def test_nobody_answering_in_time_rejects_and_says_no_more(store: Path) -> None:
    async with mounted(store, answer_within=0.05) as (eng, _):
        run = await submit(eng, AGENT, script(asks(VERDICT)))
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert json.loads(ended.output["text"]) == chose("hold")

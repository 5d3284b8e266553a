"""Choices whose answers say more than which of them it is: at the door, and at the mount."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from tests.kit.clients.mcp import LEGACY, SCHEMA, Message, in_process
from tests.kit.engines import question, submit
from tests.kit.mounts.mcp import act, mounted, script

from .test_modern import retry
from .test_modern import run as modern_run

KINDS, ANSWER = "interlingua/kinds", "interlingua/answer"
WHY = "too expensive"


class Picked(il.Question[dict[str, Any]]):
    """Which?"""

    def __options__(self) -> list[il.Option]:
        return [il.Option("ship", "Ship it", "allow_once"), il.Option("hold", "Hold it", "reject_once")]

    def __answer_schema__(self) -> dict[str, Any]:
        members = {"go": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string"}}}
        return {"type": "object", "properties": members, "required": ["go"]}


@il.agent(asks=[il.Confirm, Picked, il.Choose])
async def buyer(text: str, ctx: il.Context[Any, Any]) -> str:
    if text == "pick":
        return json.dumps(await ctx.ask(Picked()))
    if text == "choose":
        return (await ctx.ask(il.Choose("Which?", [il.Option("a", "A"), il.Option("b", "B")]))).choice
    verdict = await ctx.ask(il.Confirm("Buy it?"))
    return json.dumps([verdict.approved, verdict.reason])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def chose(choice: str, *, whole: Any = None, **filled: Any) -> Message:
    result: Message = {"action": "accept", "content": {"choice": choice, **filled}}
    return result if whole is None else {**result, "_meta": {ANSWER: whole}}


# -- the door -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", LEGACY[2:])
async def test_what_an_answer_says_beside_its_choice_has_a_field_and_the_schema_is_told(
    store: Path, version: str
) -> None:
    async with in_process(store, buyer) as (client, engine):
        await client.initialize(version, elicits=True)
        id_ = await client.start_run("buyer", {"text": "it"})
        request = await client.request("elicitation/create")
        shown, meta = request["params"]["requestedSchema"], request["params"]["_meta"]
        assert list(shown["properties"]) == ["choice", "reason"]
        assert shown["required"] == ["choice"]
        assert shown["properties"]["reason"]["type"] == "string"
        [asked] = await engine.questions.open()
        assert (meta[SCHEMA], meta[KINDS]) == (asked.answer_schema, {"yes": "allow_once", "no": "reject_once"})
        await client.respond(request, chose("no", reason=WHY))
        assert json.loads((await client.answer(id_))["result"]["output"]["text"]) == [False, WHY]


@pytest.mark.parametrize(
    ("reply", "heard"),
    [
        (chose("no"), [False, None]),
        (chose("no", reason=""), [False, None]),
        (chose("no", reason=None), [False, None]),
        (chose("no", whole={"approved": False, "reason": WHY}), [False, WHY]),
        (chose("yes", whole={"approved": True, "reason": WHY}), [True, WHY]),
        (chose("no", whole={"approved": True, "reason": WHY}), [False, None]),
        (chose("no", reason="dear", whole={"approved": True, "reason": WHY}), [False, "dear"]),
        (chose("no", whole={"approved": False, "reason": 7}), [False, None]),
        (chose("no", whole="nonsense"), [False, None]),
        ({**chose("no"), "_meta": None}, [False, None]),
        ({**chose("no"), "_meta": [1]}, [False, None]),
        ({"action": "decline", "_meta": {ANSWER: {"approved": True}}}, [False, None]),
    ],
    ids=str,
)
async def test_a_whole_answer_counts_where_it_says_what_was_chosen(store: Path, reply: Message, heard: Any) -> None:
    async with in_process(store, buyer) as (client, _):
        client.on("elicitation/create", lambda _: reply)
        await client.initialize(elicits=True)
        assert json.loads((await client.run("buyer", {"text": "it"}))["text"]) == heard


async def test_a_whole_answer_is_taken_in_the_revision_without_requests_too(store: Path) -> None:
    async with in_process(store, buyer) as (client, _):
        asked = (await modern_run(client, "buyer", {"text": "it"}, elicits=True))["result"]
        again = retry(asked, chose("no", whole={"approved": False, "reason": WHY}))
        result = (await modern_run(client, "buyer", {"text": "it"}, elicits=True, **again))["result"]
        assert json.loads(result["output"]["text"]) == [False, WHY]


async def test_what_has_no_field_of_its_kind_is_json_beside_a_choice_as_well(store: Path) -> None:
    async with in_process(store, buyer) as (client, _):
        await client.initialize(elicits=True)
        id_ = await client.start_run("buyer", {"text": "pick"})
        first = await client.request("elicitation/create")
        assert first["params"]["requestedSchema"]["properties"]["tags"]["title"] == "tags (JSON)"
        assert first["params"]["_meta"][KINDS] == {"ship": "allow_once", "hold": "reject_once"}
        seen = len(client.messages)
        await client.respond(first, chose("hold", tags="[1]"))
        second = await client.request("elicitation/create", after=seen)
        assert "is not of type" in second["params"]["message"]
        await client.respond(second, chose("hold", tags='["dear"]'))
        told = (await client.answer(id_))["result"]["output"]["text"]
        assert json.loads(told) == {"go": False, "tags": ["dear"]}


async def test_a_choice_that_is_the_whole_answer_says_all_that_there_is_to_say(store: Path) -> None:
    async with in_process(store, buyer) as (client, _):
        await client.initialize(elicits=True)
        await client.start_run("buyer", {"text": "choose"})
        params = (await client.request("elicitation/create"))["params"]
        assert list(params["requestedSchema"]["properties"]) == ["choice"]
        assert not {SCHEMA, KINDS} & set(params["_meta"])


# -- the mount ------------------------------------------------------------------------------------------------

VERDICT = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}


def asks(schema: Any = VERDICT, kinds: Any = None, *, fields: tuple[str, ...] = ("reason",)) -> dict[str, Any]:
    choice = {"type": "string", "enum": ["ship", "hold"], "enumNames": ["Ship it", "Hold it"]}
    shown = {"choice": choice, **{name: {"type": "string"} for name in fields}}
    return {
        "message": "Ship it?",
        "requestedSchema": {"type": "object", "properties": shown, "required": ["choice"]},
        "_meta": {SCHEMA: schema, KINDS: kinds or {"ship": "allow_once", "hold": "reject_once"}},
    }


@pytest.mark.parametrize("how", ["elicit", "input"])
@pytest.mark.parametrize(
    ("answer", "sent"),
    [
        ({"approved": False, "reason": WHY}, chose("hold", whole={"approved": False, "reason": WHY})),
        ({"approved": True, "reason": WHY}, chose("ship", whole={"approved": True, "reason": WHY})),
        ({"approved": False}, chose("hold")),
    ],
    ids=["no", "yes", "nothing more"],
)
async def test_choices_with_the_schema_of_their_answers_ask_for_that_and_pass_on_all_of_it(
    store: Path, how: str, answer: Any, sent: Any
) -> None:
    async with mounted(store) as (eng, _):
        run = await submit(eng, "script", script(act(how, asks())))
        asked = await question(eng, run.id)
        assert [(o.id, o.label, o.kind) for o in asked.options] == [
            ("ship", "Ship it", "allow_once"), ("hold", "Hold it", "reject_once"),
        ]  # fmt: skip
        assert (asked.prompt, asked.answer_schema) == ("Ship it?", VERDICT)
        await eng.questions.answer(asked.id, answer)
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        told = json.loads(ended.output["text"])
        assert (told if how == "elicit" else told["q"]) == sent


async def test_an_answer_that_begins_with_no_choice_is_refused(store: Path) -> None:
    open_ = {**VERDICT, "properties": {"pick": {"type": "string"}, "why": {"type": "string"}}, "required": ["pick"]}
    async with mounted(store) as (eng, _):
        run = await submit(eng, "script", script(act("elicit", asks(open_, fields=("why",)))))
        asked = await question(eng, run.id)
        with pytest.raises(il.InterlinguaError, match="burn"):
            await eng.questions.answer(asked.id, {"pick": "burn", "why": WHY})
        await eng.questions.answer(asked.id, {"pick": "hold", "why": WHY})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert json.loads(ended.output["text"]) == chose("hold", whole={"pick": "hold", "why": WHY})


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        (5, None),
        ({"type": "nonsense"}, None),
        ({"type": "array"}, None),
        (VERDICT, {"ship": "allow_once"}),
        (VERDICT, {"ship": "allow_once", "hold": "perhaps"}),
        (VERDICT, ["ship"]),
    ],
    ids=str,
)
async def test_choices_that_are_not_of_their_schema_are_asked_for_alone(store: Path, schema: Any, kinds: Any) -> None:
    async with mounted(store) as (eng, _):
        run = await submit(eng, "script", script(act("elicit", asks(schema, kinds, fields=()))))
        asked = await question(eng, run.id)
        assert [option.id for option in asked.options] == ["ship", "hold"]
        await eng.questions.answer(asked.id, {"choice": "hold"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert json.loads(ended.output["text"]) == chose("hold")


async def test_nobody_answering_in_time_declines_and_says_no_more(store: Path) -> None:
    async with mounted(store, answer_within=0.05) as (eng, _):
        run = await submit(eng, "script", script(act("elicit", asks())))
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert json.loads(ended.output["text"]) == {"action": "decline"}

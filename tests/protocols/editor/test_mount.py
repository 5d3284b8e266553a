"""The mount: an agent behind `editor:COMMAND` as an agent of ours. What it is, what it says, and what it asks."""

from __future__ import annotations

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

import interlingua as il
from interlingua.model.content import FilePart, Message, TextPart
from interlingua.model.errors import Denied, InvalidConfig, Unavailable
from interlingua.model.events import (
    Diff,
    Location,
    MessageSent,
    OutputDelta,
    Plan,
    PlanEntry,
    Thought,
    ToolCall,
    Warned,
)
from interlingua.mounts.settings import read_settings
from interlingua.protocols.editor.config import MountSettings
from interlingua.protocols.targets import parse
from interlingua.server.loading.target import load_all
from tests.kit.clients.rpc import INTERLINGUA
from tests.kit.engines import bodies, finish, question, submit
from tests.kit.mounts.editor import AGENT, PERMISSION, act, agent_of, command, mount, mounted, script, update
from tests.kit.mounts.watch import seen
from tests.kit.wait_for import wait_for
from tests.protocols.connect.test_door import up

# -- what it is -----------------------------------------------------------------------------------------------

OPTIONS = [
    {
        "id": "model", "name": "Model", "type": "select", "category": "model", "currentValue": "small",
        "options": [
            {"group": "g", "name": "All", "options": [
                {"value": "small", "name": "Small"}, {"value": "big", "name": "Big", "description": "slow"},
            ]},
        ],
    },
    {"id": "web", "name": "Search the web", "type": "boolean", "currentValue": False},
]  # fmt: skip
MODES = {
    "currentModeId": "ask",
    "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "code", "name": "Code"}],
}


async def test_the_card_says_what_the_agent_says_of_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INTERLINGUA_EDITOR_DIRECTORY", str(tmp_path))
    commands = [{"name": "plan", "description": "Make a plan", "input": {"hint": "what for"}}]
    target = command({"new": {"configOptions": OPTIONS, "modes": MODES}, "commands": commands})
    (agent,) = await load_all(parse(f"editor:{target}"))
    card = agent.card
    assert (card.name, card.version, card.description) == (AGENT, "1.2.3", "A fake agent")
    assert (card.input_text, card.output_text, card.streams) == ("text", "text", True)
    assert card.config is not None
    assert list(card.config["properties"]) == ["model", "web"], "options say all that modes say"
    assert card.config["properties"]["model"]["default"] == "small"
    assert [o["const"] for o in card.config["properties"]["model"]["oneOf"]] == ["small", "big"]
    assert card.config["properties"]["web"]["type"] == "boolean"
    assert [(s.id, s.description, s.examples) for s in card.skills] == [("plan", "Make a plan", ["what for"])]
    assert card.metadata["mounted_from"].startswith("editor:")
    assert card.metadata["capabilities"] == {"loadSession": True}


async def test_the_connect_descriptor_says_that_it_interrupts(store: Path) -> None:
    agent = await agent_of(mount())
    async with up(store, agent) as s:
        (found,) = await s.post("/agents/search", {"name": AGENT})
        specs = (await s.get(f"/agents/{found['agent_id']}/descriptor"))["specs"]
        assert specs["capabilities"]["interrupts"] is True
        listed = {one["interrupt_type"]: one for one in specs["interrupts"]}
        assert set(listed) == {"permission", "elicitation", "visit", "write_permission", "terminal_permission"}
        asks = {"agent_id": found["agent_id"], "input": script(PERMISSION)}
        told = (await s.post("/runs/wait", asks))["output"]
        assert told["type"] == "interrupt"
        (payload,) = [told["interrupt"][name] for name in told["interrupt"] if name in listed]
        assert jsonschema_rs.is_valid(listed["permission"]["interrupt_payload"], payload)
        assert jsonschema_rs.is_valid(listed["permission"]["resume_payload"], {"choice": "yes"})


async def test_modes_are_config_where_there_are_no_options(store: Path) -> None:
    async with mounted(store, {"new": {"modes": MODES}}) as (eng, _):
        run = await finish(eng, AGENT, script("seen"), config={"mode": "code"})
        assert run.output is not None
        seen_ = json.loads(run.output["text"])
        assert ["session/set_mode", {"sessionId": session_of(seen_), "modeId": "code"}] in seen_
        with pytest.raises(InvalidConfig):
            await submit(eng, AGENT, script("seen"), config={"mode": "nonsense"})


def session_of(seen_: list[Any]) -> str:
    return next(str(params["sessionId"]) for method, params in seen_ if method == "session/prompt")


async def test_options_are_set_before_the_prompt_and_only_where_they_differ(store: Path) -> None:
    async with mounted(store, {"new": {"configOptions": OPTIONS}}) as (eng, _):
        run = await finish(eng, AGENT, script("seen"), config={"model": "small", "web": True})
        assert run.output is not None
        asked = json.loads(run.output["text"])
        sets = [params for method, params in asked if method == "session/set_config_option"]
        session = session_of(asked)
        assert sets == [{"sessionId": session, "configId": "web", "value": True, "type": "boolean"}]
        assert [method for method, _ in asked][-1] == "session/prompt"


async def test_the_session_that_described_the_agent_is_used_by_the_first_run(store: Path) -> None:
    async with mounted(store, {"commands": None}) as (eng, _):
        first = await finish(eng, AGENT, script("seen"))
        second = await finish(eng, AGENT, script("seen"))
        assert first.output is not None
        assert second.output is not None
        counts = [[m for m, _ in json.loads(run.output["text"])].count("session/new") for run in (first, second)]  # type: ignore[index]
        assert counts == [1, 2]


async def test_an_agent_that_wants_a_login_says_how() -> None:
    methods = [
        {"id": "key", "name": "A key"},
        {"id": "browser", "name": "In a terminal", "type": "terminal", "args": ["login"], "env": {"A": "1"}},
    ]
    given = {"init": {"authMethods": methods}, "errors": {"session/new": {"code": -32000, "message": "who are you"}}}
    with pytest.raises(Denied) as refused:
        await agent_of(mount(given))
    said = refused.value.message
    assert refused.value.code == "auth_required"
    assert "who are you" in said
    assert "INTERLINGUA_EDITOR_AUTH=key" in said
    assert "A=1" in said
    assert said.endswith("login` in a terminal")
    made = mount(given, auth="key")
    agent = await agent_of(made)
    assert agent.card.name == AGENT
    await made.close()


@pytest.mark.parametrize(
    ("given", "wanted", "problem"),
    [
        ({"dead": True}, 1, "exited with status 4; the last it said: no such model"),
        ({"init": {"protocolVersion": 99}}, 1, "version 99"),
        ({"init": {"protocolVersion": 2}}, 1, "version 2"),
        ({"init": {"protocolVersion": 0}}, 2, "version 0"),
        ({"init": {"protocolVersion": None}}, 1, "without a version"),
        ({"errors": {"initialize": {"code": -32603, "message": "broken"}}}, 1, "broken"),
    ],
)
async def test_what_cannot_be_talked_to_is_refused_with_the_reason(given: Any, wanted: Any, problem: str) -> None:
    with pytest.raises(Unavailable) as refused:
        await agent_of(mount(given, version=wanted))
    assert problem in refused.value.message


async def test_an_agent_that_does_not_answer_is_given_up() -> None:
    with pytest.raises(Unavailable, match=r"did not answer within 0.3 s"):
        await agent_of(mount({"hang": True}, start_timeout=0.3))


async def test_a_command_that_is_none_says_so() -> None:
    with pytest.raises(Unavailable, match="cannot be started: No such file"):
        await agent_of(mount(line="/no/such/agent --acp"))


async def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLINGUA_EDITOR_VERSION", "2")
    monkeypatch.setenv("INTERLINGUA_EDITOR_WRITE", "deny")
    monkeypatch.setenv("INTERLINGUA_EDITOR_IDLE_TIMEOUT", "1.5")
    settings = read_settings(MountSettings, "editor")
    assert (settings.version, settings.write, settings.idle_timeout) == (2, "deny", 1.5)
    monkeypatch.setenv("INTERLINGUA_EDITOR_WRITE", "perhaps")
    with pytest.raises(il.InterlinguaError, match="perhaps"):
        read_settings(MountSettings, "editor")


# -- what it says ---------------------------------------------------------------------------------------------


async def test_everything_that_it_says_becomes_events(store: Path) -> None:
    content = [
        {"type": "content", "content": {"type": "text", "text": "found"}},
        {"type": "diff", "path": "/a.py", "oldText": "one", "newText": "two"},
    ]
    text = {"type": "text", "text": "hm"}
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    async with mounted(store) as (eng, _):
        run = await finish(
            eng, AGENT,
            script(
                "say I will look.",
                update("agent_thought_chunk", content=text),
                update("plan", entries=[{"content": "look", "priority": "high", "status": "in_progress"}]),
                update("tool_call", toolCallId="t", title="Edit", kind="edit", status="pending", rawInput={"a": 1}),
                update(
                    "tool_call_update", toolCallId="t", status="completed", content=content,
                    locations=[{"path": "/a.py", "line": 3}], rawOutput="ok",
                ),
                update("of_the_future", content=text),
                update("usage_update", used=10, size=100, cost={"amount": 0.5, "currency": "EUR"}),
                update("agent_message_chunk", content=image),
                "notify _extension/news",
                "say Done.",
            ),
        )  # fmt: skip
        assert run.status is il.Status.SUCCEEDED, run.error
        assert run.output == {"text": "I will look.\n\nDone."}
        assert "".join(d.delta["text"] for d in await bodies(eng, run.id, OutputDelta)) == "I will look.\n\nDone."
        assert [t.text for t in await bodies(eng, run.id, Thought)] == ["hm"]
        (plan,) = await bodies(eng, run.id, Plan)
        assert plan.entries == [PlanEntry("look", "in_progress", "high")]
        first, second = await bodies(eng, run.id, ToolCall)
        assert (first.id, first.title, first.kind_, first.status, first.input) == (
            "t", "Edit", "edit", "pending", {"a": 1},
        )  # fmt: skip
        assert (second.status, second.output, second.diffs) == ("completed", "ok", [Diff("/a.py", "two", "one")])
        assert second.locations == [Location("/a.py", 3)]
        assert second.content == [{"type": "text", "text": "found"}]
        (message,) = await bodies(eng, run.id, MessageSent)
        assert message.message.parts == [FilePart(data=b"hi", media_type="image/png")]
        assert run.usage == {"used": 10, "size": 100, "cost": 0.5, "currency": "EUR"}
        assert await bodies(eng, run.id, Warned) == []


async def test_updates_before_the_session_is_known_and_behind_the_answer_are_taken(store: Path) -> None:
    async with mounted(store, {"early": [{"name": "early", "description": "bird"}]}) as (eng, _):
        assert [skill.id for skill in (await eng.agents.card(AGENT)).skills] == ["early"]
        run = await finish(eng, AGENT, script("say on time", "late , and late"))
        assert run.output == {"text": "on time, and late"}


async def test_text_that_comes_a_moment_after_the_answer_is_output(store: Path, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    async with mounted(store, silence_after_answer=2.0) as (eng, _):
        run = await submit(eng, AGENT, script("say on time", f"later {pipe}"))
        await asyncio.to_thread(pipe.write_text, ", and later")  # waits until the agent reads, after its answer
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "on time, and later"}


@pytest.mark.parametrize("thread", ["t", None])
async def test_text_that_comes_when_the_run_is_over_is_a_warning(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, thread: str | None
) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    async with mounted(store, silence_after_answer=0.0) as (eng, _):
        first = await finish(
            eng, AGENT, script("say on time", f"later {pipe}"), thread=thread, create_thread=thread is not None
        )
        assert first.output == {"text": "on time"}
        await asyncio.to_thread(pipe.write_text, "too late")
        await wait_for(lambda: f"after run {first.id} was over" in caplog.text)
        second = await finish(eng, AGENT, script("say next"), thread=thread)
        assert second.output == {"text": "next"}
        warned = [(one.message, one.details) for one in await bodies(eng, second.id, Warned)]
        said = f"the agent said more after run {first.id} was over"
        assert warned == ([(said, {"run": first.id, "text": "too late"})] if thread is not None else [])


async def test_noise_on_its_output_is_skipped_and_told_once(store: Path) -> None:
    async with mounted(store, {"noise": ["Welcome!", '{"level": "info"}']}) as (eng, _):
        run = await finish(eng, AGENT, script("say a", "raw not json", "raw ", "say b"))
        assert run.output == {"text": "ab"}
        (warning,) = await bodies(eng, run.id, Warned)
        assert warning.details == {"lines": 3, "first": "Welcome!"}
        again = await finish(eng, AGENT, script("say c"))
        assert await bodies(eng, again.id, Warned) == []


@pytest.mark.parametrize("reason", ["refusal", "max_tokens", "max_turn_requests", "of_the_future"])
async def test_a_turn_that_stopped_early_gives_what_there_is_and_a_warning(store: Path, reason: str) -> None:
    async with mounted(store) as (eng, _):
        run = await finish(eng, AGENT, script("say half", f"stop {reason}"))
        assert run.output == {"text": "half"}
        (warning,) = await bodies(eng, run.id, Warned)
        assert warning.details == {"stop_reason": reason}


async def test_an_error_of_the_agent_fails_the_run_with_its_code(store: Path) -> None:
    async with mounted(store) as (eng, _):
        ours = act("fail", code=-32603, message="too many", data={"code": "overloaded", "transient": True})
        run = await finish(eng, AGENT, script(ours))
        assert run.error is not None
        assert (run.error.code, run.error.message, run.error.transient) == ("overloaded", "too many", True)
        run = await finish(eng, AGENT, script(act("fail", code=-32050, message="no")))
        assert run.error is not None
        assert (run.error.code, run.error.transient, run.error.details) == ("remote_failed", False, {"code": -32050})


REASON = {"code": -32603, "message": "Internal error", "data": {"details": "the model is overloaded"}}
SAID = "Internal error: the model is overloaded"


async def test_the_agents_own_reason_is_in_the_error_of_the_run(store: Path) -> None:
    async with mounted(store) as (eng, _):
        run = await finish(eng, AGENT, script(act("fail", **REASON)))
        assert run.error is not None
        assert (run.error.message, run.error.code) == (SAID, "remote_failed")
        assert run.error.details == {"code": -32603, "data": REASON["data"]}
    ended = {"stopReason": "error", "error": {"message": "Internal error", "data": REASON["data"]}}
    async with mounted(store, version=2, given={"version": 2, "ended": ended}) as (eng, _):
        run = await finish(eng, AGENT, script("say x"))
        assert run.error is not None
        assert run.error.message == SAID


@pytest.mark.parametrize("method", ["initialize", "session/new"])
async def test_the_agents_own_reason_is_in_a_refusal_to_start(method: str) -> None:
    with pytest.raises(Unavailable, match=SAID):
        await agent_of(mount({"errors": {method: REASON}}))


async def test_the_agents_own_reason_is_in_the_refusal_of_a_setting(store: Path) -> None:
    given = {"new": {"configOptions": OPTIONS}, "errors": {"session/set_config_option": REASON}}
    async with mounted(store, given) as (eng, _):
        run = await finish(eng, AGENT, script("say x"), config={"web": True})
        assert run.error is not None
        assert SAID in run.error.message


async def test_the_command_line_shows_the_agents_own_reason(tmp_path: Path) -> None:
    words = [INTERLINGUA, "run", "--store", str(tmp_path / "store.db"), f"editor:{command()}", act("fail", **REASON)]
    process = await asyncio.create_subprocess_exec(*words, stdout=PIPE, stderr=PIPE, cwd=tmp_path)
    _, said = await process.communicate()
    assert process.returncode == 1
    assert SAID in said.decode()


async def test_prompt_content_goes_as_the_agent_can_take_it(store: Path) -> None:
    parts = [
        TextPart("seen"),
        FilePart(data=b"png", media_type="image/png", url="file:///pic.png", name="pic.png"),
        FilePart(text="notes", url="file:///notes.txt", name="notes.txt"),
        FilePart(url="file:///big.bin", name="big.bin"),
        FilePart(data=b"mp3", media_type="audio/mpeg"),
    ]

    async def sent(able: dict[str, Any]) -> tuple[list[Any], list[str]]:
        async with mounted(store, {"able": {"promptCapabilities": able}}) as (eng, _):
            run = await finish(eng, AGENT, script("seen"), messages=[Message("user", parts)])
            assert run.output is not None
            prompt = json.loads(run.output["text"])[-1][1]["prompt"]
            return prompt, [w.message for w in await bodies(eng, run.id, Warned)]

    blocks, warned = await sent({"image": True, "audio": True, "embeddedContext": True})
    assert [block["type"] for block in blocks] == ["text", "image", "resource", "resource_link", "audio"]
    assert warned == []
    blocks, warned = await sent({})
    assert [block["type"] for block in blocks] == ["text", "resource_link", "text", "resource_link", "text"]
    assert "notes" in blocks[2]["text"]
    assert blocks[4]["text"] == "[audio/mpeg: audio/mpeg, 3 bytes]"
    assert len(warned) == 3


# -- what it asks ---------------------------------------------------------------------------------------------


async def test_a_permission_is_a_question_and_its_answer_the_chosen_option(store: Path) -> None:
    async with mounted(store) as (eng, _):
        run = await submit(eng, AGENT, script(PERMISSION))
        asked = await question(eng, run.id)
        assert (asked.type, asked.prompt) == ("permission", "Remove the file")
        assert asked.payload == {"title": "Remove the file", "kind": "delete", "input": {"path": "/a"}}
        assert [(o.id, o.label, o.kind) for o in asked.options] == [
            ("yes", "Remove it", "allow_once"), ("no", "Keep it", "reject_once"),
            ("never", "Keep it for ever", "reject_always"),
        ]  # fmt: skip
        assert asked.deadline is not None
        with pytest.raises(il.InterlinguaError):
            await eng.questions.answer(asked.id, {"choice": "maybe"})
        await eng.questions.answer(asked.id, {"choice": "yes"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert json.loads(ended.output["text"]) == {"outcome": {"outcome": "selected", "optionId": "yes"}}
        assert [call.title for call in await bodies(eng, run.id, ToolCall)] == ["Remove the file"]


async def test_the_same_permission_asked_twice_is_two_questions(store: Path) -> None:
    async with mounted(store) as (eng, _):
        run = await submit(eng, AGENT, script(PERMISSION, PERMISSION))
        first = await question(eng, run.id)
        await eng.questions.answer(first.id, {"choice": "yes"})
        async with asyncio.timeout(20):
            async for event in eng.runs.events(run.id):
                if event.kind == "asked" and event.body.question.id != first.id:
                    await eng.questions.answer(event.body.question.id, {"choice": "no"})
                    break
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert ended.output["text"].count('"yes"') == 1
        assert ended.output["text"].count('"no"') == 1


async def test_a_permission_that_nobody_gives_is_rejected_and_never_allowed(store: Path) -> None:
    async with mounted(store, answer_within=0.2) as (eng, _):
        run = await finish(eng, AGENT, script(PERMISSION))
        assert run.output is not None
        assert json.loads(run.output["text"]) == {"outcome": {"outcome": "selected", "optionId": "no"}}
        only_yes = act(
            "call", "session/request_permission", toolCall={"toolCallId": "t"},
            options=[{"optionId": "yes", "name": "Yes", "kind": "allow_once"}],
        )  # fmt: skip
        run = await finish(eng, AGENT, script(only_yes))
        assert run.output is not None
        assert json.loads(run.output["text"]) == {"outcome": {"outcome": "cancelled"}}


async def test_a_permission_knows_what_was_told_of_its_tool_call_before(store: Path) -> None:
    ask = act(
        "call", "session/request_permission", toolCall={"toolCallId": "t"},
        options=[{"optionId": "no", "name": "No", "kind": "reject_once"}],
    )  # fmt: skip
    diff = [{"type": "diff", "path": "/a", "oldText": "x", "newText": "y"}]
    async with mounted(store) as (eng, _):
        call = update("tool_call", toolCallId="t", title="Write /a", rawInput={"b": 2}, content=diff)
        run = await submit(eng, AGENT, script(call, ask))
        asked = await question(eng, run.id)
        assert asked.prompt == "Write /a"
        assert asked.payload == {
            "title": "Write /a", "input": {"b": 2}, "diffs": [{"path": "/a", "old": "x", "new": "y"}],
        }  # fmt: skip
        await eng.questions.answer(asked.id, {"choice": "no"})
        await eng.runs.wait(run.id, timeout=20)


async def test_a_form_is_a_question_with_its_schema(store: Path) -> None:
    schema = {
        "type": "object", "title": None, "required": ["name"],
        "properties": {"name": {"type": "string", "minLength": 2, "default": None}},
    }  # fmt: skip
    form = act("call", "elicitation/create", mode="form", message="Who are you?", requestedSchema=schema)
    async with mounted(store) as (eng, _):
        run = await submit(eng, AGENT, script(form))
        asked = await question(eng, run.id)
        assert (asked.type, asked.prompt, asked.payload) == (
            "elicitation", "Who are you?", {"message": "Who are you?"},
        )  # fmt: skip
        with pytest.raises(il.InterlinguaError):
            await eng.questions.answer(asked.id, {"name": "x"})
        await eng.questions.answer(asked.id, {"name": "Ada"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert json.loads(ended.output["text"]) == {"action": "accept", "content": {"name": "Ada"}}


NESTED = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "stops": {"type": "array", "items": {"type": "integer"}}},
    "required": ["city", "stops"],
}


def asks_for(schema: Any, *fields: str, kind: str = "string") -> str:
    shown = {"type": "object", "properties": {name: {"type": kind} for name in fields}, "required": list(fields)}
    meta = {"interlingua/answerSchema": schema}
    return act("call", "elicitation/create", mode="form", message="Where to?", requestedSchema=shown, _meta=meta)


@pytest.mark.parametrize(
    ("schema", "asks", "answer", "content"),
    [
        (NESTED, ["city", "stops"], {"city": "Brno", "stops": [1]}, {"city": "Brno", "stops": "[1]"}),
        ({"type": "array"}, ["answer"], [{"a": None}], {"answer": '[{"a":null}]'}),
        ({"type": "string"}, ["answer"], "Brno", {"answer": "Brno"}),
    ],
    ids=["members", "list", "text"],
)
async def test_a_form_that_has_the_schema_of_the_answer_asks_for_that(
    store: Path, schema: Any, asks: list[str], answer: Any, content: dict[str, Any]
) -> None:
    async with mounted(store) as (eng, _):
        run = await submit(eng, AGENT, script(asks_for(schema, *asks)))
        asked = await question(eng, run.id)
        assert (asked.prompt, asked.answer_schema) == ("Where to?", schema)
        with pytest.raises(il.InterlinguaError):
            await eng.questions.answer(asked.id, {"city": 1})
        await eng.questions.answer(asked.id, answer)
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert json.loads(ended.output["text"]) == {"action": "accept", "content": content}


@pytest.mark.parametrize("schema", [5, {"type": "nonsense"}, NESTED], ids=["none", "invalid", "of another form"])
async def test_a_schema_that_its_form_does_not_show_is_not_asked_for(store: Path, schema: Any) -> None:
    async with mounted(store) as (eng, _):
        run = await submit(eng, AGENT, script(asks_for(schema, "city")))
        asked = await question(eng, run.id)
        assert list(asked.answer_schema["properties"]) == ["city"]
        await eng.questions.answer(asked.id, {"city": "Brno"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert json.loads(ended.output["text"]) == {"action": "accept", "content": {"city": "Brno"}}


async def test_an_address_to_visit_is_shown_and_accepted_or_declined(store: Path) -> None:
    visit = act("call", "elicitation/create", mode="url", message="Log in", url="https://x.test/", elicitationId="e")
    async with mounted(store) as (eng, _):
        run = await submit(eng, AGENT, script(visit))
        asked = await question(eng, run.id)
        assert asked.payload == {"message": "Log in", "url": "https://x.test/"}
        await eng.questions.answer(asked.id, {"choice": "decline"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output == {"text": '{"action": "decline"}'}


async def test_what_the_agent_takes_back_is_withdrawn(store: Path) -> None:
    async with mounted(store) as (eng, _):
        params = {"sessionId": "ignored", **json.loads(PERMISSION.split(" ", 2)[2])}
        raw = json.dumps({"jsonrpc": "2.0", "id": "x1", "method": "session/request_permission", "params": params})
        cancel = json.dumps({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": "x1"}})
        first = await finish(eng, AGENT, script("seen"), thread="t", create_thread=True)
        assert first.output is not None
        session = session_of(json.loads(first.output["text"]))
        raw = raw.replace('"ignored"', json.dumps(session))
        form = act("call", "elicitation/create", mode="url", message="Wait", url="https://x.test/")
        run = await submit(eng, AGENT, script(f"raw {raw}", form), thread="t")
        async with asyncio.timeout(20):
            async for event in eng.runs.events(run.id):
                if event.kind == "asked" and event.body.question.type == "visit":
                    visit = event.body.question
                    break
        assert {q.type for q in (await eng.runs.get(run.id)).questions} == {"permission", "visit"}
        await eng.questions.answer(visit.id, {"choice": "accept"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.status is il.Status.SUCCEEDED
        second = await submit(eng, AGENT, script(f"raw {raw}", "raw " + cancel, form), thread="t")
        event = await seen(eng, second.id, "withdrawn")
        assert event.body.reason == "the remote side no longer asks"
        await eng.runs.cancel(second.id)
        await eng.runs.wait(second.id, timeout=20)


# -- cancelling -----------------------------------------------------------------------------------------------


async def test_cancelling_stops_the_turn_there_and_hears_its_last_words(store: Path) -> None:
    async with mounted(store) as (eng, _):
        run = await submit(eng, AGENT, script("say working", "wait"))
        await seen(eng, run.id, "delta")
        await eng.runs.cancel(run.id)
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.status is il.Status.CANCELLED
        texts = "".join(d.delta["text"] for d in await bodies(eng, run.id, OutputDelta))
        assert texts == "workinglast words"


async def test_cancelling_settles_what_is_asked_as_cancelled(store: Path) -> None:
    async with mounted(store) as (eng, _):
        run = await submit(eng, AGENT, script(PERMISSION))
        asked = await question(eng, run.id)
        await eng.runs.cancel(run.id)
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.status is il.Status.CANCELLED
        assert (await eng.questions.get(asked.id)).state == "withdrawn"
        (said,) = await bodies(eng, run.id, OutputDelta)
        assert json.loads(said.delta["text"]) == {"outcome": {"outcome": "cancelled"}}


async def test_a_turn_that_was_stopped_elsewhere_is_cancelled_here(store: Path) -> None:
    async with mounted(store) as (eng, _):
        run = await finish(eng, AGENT, script("say half", "stop cancelled"))
        assert run.status is il.Status.CANCELLED


async def test_a_run_that_takes_too_long_is_stopped_there(store: Path) -> None:
    async with mounted(store) as (eng, _):
        run = await finish(eng, AGENT, script("wait"), timeout=0.3)
        assert run.status is il.Status.TIMED_OUT
        again = await finish(eng, AGENT, script("seen"))
        assert again.output is not None
        assert "session/cancel" in [method for method, _ in json.loads(again.output["text"])]

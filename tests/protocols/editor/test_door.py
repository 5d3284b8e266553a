"""The door as an editor of today sees it: version 1, message by message."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from interlingua.engine.agents.logins import LoginMethod
from interlingua.engine.engine import Engine
from interlingua.model.filters import RunFilter
from interlingua.model.run import Caller, RunRequest
from interlingua.model.status import Status
from tests.kit.clients.editor import Client, Refused, client_of, in_process, stdio

from . import agents

FORMS = {"clientCapabilities": {"elicitation": {"form": {}}}}


async def opened(client: Client, **members: Any) -> str:
    await client.initialize(**members)
    return await client.new_session()


# -- initialize -----------------------------------------------------------------------------------------------


async def test_initialize_tells_who_we_are_and_what_we_can(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.echo) as client:
        told = await client.initialize()
        assert told["protocolVersion"] == 1
        assert told["agentInfo"]["name"] == "echo"
        able = told["agentCapabilities"]
        assert able["loadSession"] is True
        assert able["promptCapabilities"] == {"image": True, "audio": True, "embeddedContext": True}
        assert set(able["sessionCapabilities"]) == {"list", "delete", "resume", "close", "additionalDirectories"}
        assert told["authMethods"] == []
        assert "auth" not in able or "logout" not in able["auth"]


@pytest.mark.parametrize(("asked", "answered"), [(0, 1), (1, 1), (2, 2), (3, 2), (99, 2)])
async def test_the_version_asked_for_is_answered_with_itself_or_the_nearest_of_ours(
    tmp_path: Path, asked: int, answered: int
) -> None:
    async with in_process(tmp_path / "s.db", agents.echo) as client:
        assert (await client.initialize(asked, info={"name": "t", "version": "1"}))["protocolVersion"] == answered


async def test_nothing_but_initialize_comes_first(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.echo) as client:
        await client.notify("session/cancel", {"sessionId": "x"})
        with pytest.raises(Refused, match="initialize") as refused:
            await client.ask("session/new", {"cwd": "/", "mcpServers": []})
        assert refused.value.code == -32600
        await client.initialize()
        with pytest.raises(Refused, match="already"):
            await client.initialize()


async def test_an_initialize_that_does_not_fit_leaves_the_connection_open(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.echo) as client:
        with pytest.raises(Refused) as refused:
            await client.ask("initialize", {"protocolVersion": "one"})
        assert refused.value.code == -32602
        assert "protocolVersion" in refused.value.message
        assert (await client.initialize())["protocolVersion"] == 1


async def test_methods_that_are_unknown_are_refused_and_notifications_ignored(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.echo) as client:
        await client.initialize()
        for method in ("_vendor/method", "session/fork", "nonsense"):
            with pytest.raises(Refused) as refused:
                await client.ask(method)
            assert refused.value.code == -32601
        await client.notify("_vendor/news", {"a": 1})
        assert await client.new_session()


class Door:
    """A login that can be watched."""

    def __init__(self) -> None:
        self.methods = [
            LoginMethod("badge", "Show a badge"),
            LoginMethod("shell", "In a shell", kind="terminal", args=["login"]),
        ]
        self.inside = False

    async def needed(self) -> bool:
        return not self.inside

    async def login(self, method: str) -> None:
        self.inside = True

    async def logout(self) -> None:
        self.inside = False


async def test_an_agent_that_wants_a_login_gets_one_before_sessions(tmp_path: Path) -> None:
    from interlingua.engine.definition import agent

    @agent(name="guarded")
    async def guarded(text: str) -> str:
        return text

    guarded.login = Door()
    async with in_process(tmp_path / "s.db", guarded) as client:
        told = await client.initialize(clientCapabilities={"auth": {"terminal": True}})
        assert [(m["id"], m.get("type")) for m in told["authMethods"]] == [("badge", None), ("shell", "terminal")]
        assert told["agentCapabilities"]["auth"] == {"logout": {}}
        with pytest.raises(Refused) as refused:
            await client.new_session()
        assert refused.value.code == -32000
        for wrong in ("shell", "nothing"):  # a terminal method is never done over the protocol
            with pytest.raises(Refused) as refused:
                await client.ask("authenticate", {"methodId": wrong})
            assert refused.value.code == -32602
        assert await client.ask("authenticate", {"methodId": "badge"}) == {}
        assert await client.new_session()
        assert await client.ask("logout") == {}
        with pytest.raises(Refused):
            await client.new_session()


# -- prompts --------------------------------------------------------------------------------------------------


async def test_a_prompt_streams_the_output_and_ends_the_turn(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.echo) as client:
        session = await opened(client)
        told = await client.prompt(session, "one two three")
        assert told["stopReason"] == "end_turn"
        assert told["_meta"]["interlingua"]["output"] == {"text": "one two three "}
        assert client.text(session) == "one two three "
        at = [m for m in client.messages if m.get("method") == "session/update" or m.get("result") == told]
        assert at[-1].get("result") == told  # every update came before the answer


async def test_activity_is_shown_as_what_it_is(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.show) as client:
        session = await opened(client)
        await client.prompt(session, "go")
        kinds = [update["sessionUpdate"] for update in client.updates(session)]
        for kind in ("agent_thought_chunk", "plan", "tool_call", "tool_call_update", "agent_message_chunk",
                     "usage_update", "session_info_update"):  # fmt: skip
            assert kind in kinds, kind
        thought = await client.update("agent_thought_chunk")
        assert thought["content"] == {"type": "text", "text": "Let me think."}
        plan = await client.update("plan")
        assert [(e["content"], e["status"], e["priority"]) for e in plan["entries"]] == [
            ("look", "completed", "medium"), ("leap", "pending", "high"), ("rest", "completed", "medium"),
        ]  # fmt: skip
        call = await client.update("tool_call")
        assert (call["toolCallId"], call["title"], call["kind"], call["status"]) == (
            "call-1", "Edit", "edit", "in_progress",
        )  # fmt: skip
        news = await client.update("tool_call_update")
        assert news["status"] == "completed"
        assert news["rawOutput"] == {"ok": True}
        assert news["locations"] == [{"path": "/a.py", "line": 3}]
        assert news["content"] == [
            {"type": "content", "content": {"type": "text", "text": "done"}},
            {"type": "diff", "path": "/a.py", "oldText": "old\n", "newText": "new\n"},
        ]
        assert (await client.update("tool_call", lambda u: u["toolCallId"] == "call-2"))["status"] == "failed"
        assert await client.update("agent_message_chunk", lambda u: u["content"].get("text") == "An aside.")
        file = await client.update("agent_message_chunk", lambda u: u["content"]["type"] == "resource")
        assert file["content"]["resource"]["text"] == "the whole text"
        assert await client.update("agent_thought_chunk", lambda u: "odd" in u["content"]["text"])
        used = await client.update("usage_update")
        assert (used["used"], used["size"], used["cost"]) == (10, 100, {"amount": 0.5, "currency": "USD"})


async def test_a_child_run_shows_as_a_tool_call(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.caller, agents.echo) as client:
        session = await opened(client)
        await client.prompt(session, "hello")
        call = await client.update("tool_call")
        assert (call["title"], call["status"]) == ("echo", "in_progress")
        assert (await client.update("tool_call_update"))["status"] == "completed"


async def test_every_kind_of_content_reaches_the_agent_as_a_part(tmp_path: Path) -> None:
    data = base64.b64encode(b"\x89PNG").decode()
    async with in_process(tmp_path / "s.db", agents.parts) as client:
        session = await opened(client)
        told = await client.prompt(
            session,
            {"type": "text", "text": "look at ", "annotations": {"priority": 0.5}},
            {"type": "resource_link", "name": "a.py", "uri": "file:///w/a.py", "mimeType": "text/x-python", "size": 3},
            {"type": "resource", "resource": {"uri": "file:///w/b.txt", "text": "inside", "mimeType": "text/plain"}},
            {"type": "resource", "resource": {"uri": "file:///w/c.bin", "blob": data}},
            {"type": "image", "data": data, "mimeType": "image/png", "uri": "file:///w/i.png"},
            {"type": "audio", "data": data, "mimeType": "audio/wav"},
        )
        output = told["_meta"]["interlingua"]["output"]
        assert output["text"] == (
            "look at [@a.py](file:///w/a.py)[@b.txt](file:///w/b.txt)[@c.bin](file:///w/c.bin)[@i.png](file:///w/i.png)"
        )
        text, link, inside, blob, image, audio = output["parts"]
        assert text == {"type": "text", "text": "look at ", "meta": {"annotations": {"priority": 0.5}}}
        assert (link["url"], link["name"], link["media_type"], link["size"]) == (
            "file:///w/a.py", "a.py", "text/x-python", 3,
        )  # fmt: skip
        assert (inside["text"], inside["media_type"]) == ("inside", "text/plain")
        assert blob["data"] == data
        assert (image["data"], image["media_type"], image["url"]) == (data, "image/png", "file:///w/i.png")
        assert (audio["data"], audio["media_type"]) == (data, "audio/wav")


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"type": "hologram"}, "hologram"),
        ({"type": "text"}, "text"),
        ({"type": "image", "data": "not base64!", "mimeType": "image/png"}, "base64"),
        ({"type": "resource", "resource": {"uri": "x:"}}, "neither text nor blob"),
    ],
)
async def test_content_that_does_not_fit_is_refused_with_its_place(
    tmp_path: Path, block: dict[str, Any], said: str
) -> None:
    async with in_process(tmp_path / "s.db", agents.echo) as client:
        session = await opened(client)
        with pytest.raises(Refused, match=said) as refused:
            await client.prompt(session, "fine", block)
        assert refused.value.code == -32602
        assert "/prompt/1" in refused.value.message
        assert (await client.prompt(session, "go on"))["stopReason"] == "end_turn"


async def test_an_agent_of_objects_is_reached_with_json_and_shows_json(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.adder) as client:
        session = await opened(client)
        told = await client.prompt(session, '{"a": 2, "b": 3}')
        assert told["_meta"]["interlingua"]["output"] == {"total": 5}
        assert '"total": 5' in client.text(session)
        with pytest.raises(Refused, match="JSON object with a, b") as refused:
            await client.prompt(session, "two and three")
        assert refused.value.code == -32602
        with pytest.raises(Refused) as refused:
            await client.prompt(session, '{"a": 2}')
        assert refused.value.data["code"] == "invalid_input"


async def test_a_failure_is_an_error_with_its_code_and_whether_to_try_again(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.breaks) as client:
        session = await opened(client)
        with pytest.raises(Refused, match="the tool is broken") as refused:
            await client.prompt(session, "go")
        assert refused.value.code == -32603
        assert refused.value.data["code"] == "broken"
        assert refused.value.data["transient"] is True
        assert refused.value.data["details"] == {"tool": "saw"}
        assert client.text(session) == "so far "


async def test_prompts_that_come_while_one_runs_wait_for_their_turn(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.careful) as client:
        session = await opened(client)
        first = await client.start_prompt(session, "one")
        asked = await client.request("session/request_permission")
        second = await client.start_prompt(session, "two")
        client.allow()
        await client.respond(asked, {"outcome": {"outcome": "selected", "optionId": "yes"}})
        assert (await client.answer(first))["result"]["stopReason"] == "end_turn"
        assert (await client.answer(second))["result"]["stopReason"] == "end_turn"
        assert client.text(session) == "donedone"


async def test_a_message_can_be_put_into_a_turn_that_runs(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.listens) as client:
        told = await client.initialize()
        assert told["_meta"]["steering"] == {"supported": True}
        session = await client.new_session()
        steer = {"sessionId": session, "prompt": [{"type": "text", "text": "left"}]}
        assert await client.ask("_session/steering", steer) == {"outcome": "failed"}
        turn = await client.start_prompt(session, "go")
        await client.update("session_info_update")
        assert await client.ask("_session/steering", steer) == {"outcome": "injected"}
        assert (await client.answer(turn))["result"]["stopReason"] == "end_turn"
        assert client.text(session) == "heard left"


async def test_the_trace_context_of_a_prompt_is_kept_on_the_run(tmp_path: Path) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with Engine(tmp_path / "s.db", agents=[agents.echo]) as engine, client_of(engine) as (client, _):
        session = await opened(client)
        told = await client.ask(
            "session/prompt",
            {"sessionId": session, "prompt": [{"type": "text", "text": "x"}], "_meta": {"traceparent": trace}},
        )
        run = await engine.runs.get(told["_meta"]["interlingua"]["run"])
        assert run.request is not None
        assert run.request.trace == {"traceparent": trace}


# -- cancelling -----------------------------------------------------------------------------------------------


async def test_a_cancelled_turn_sends_what_is_left_and_ends_as_cancelled(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.slow) as client:
        session = await opened(client)
        turn = await client.start_prompt(session, "go")
        await client.update("agent_message_chunk")
        await client.notify("session/cancel", {"sessionId": session})
        assert (await client.answer(turn))["result"]["stopReason"] == "cancelled"


async def test_a_cancel_right_behind_the_prompt_still_cancels_it(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.slow) as client:
        session = await opened(client)
        for _ in range(20):
            prompt = client.message(
                "session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "go"}]}
            )
            cancel = {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}
            await client.raw(b"".join(json.dumps(m).encode() + b"\n" for m in (prompt, cancel)))
            assert (await client.answer(prompt["id"]))["result"]["stopReason"] == "cancelled"


async def test_a_prompt_that_is_taken_back_is_answered_as_cancelled(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.slow) as client:
        session = await opened(client)
        turn = await client.start_prompt(session, "go")
        await client.update("agent_message_chunk")
        await client.notify("$/cancel_request", {"requestId": turn})
        assert (await client.answer(turn))["result"]["stopReason"] == "cancelled"


@pytest.mark.parametrize("version", [1, 2])
async def test_a_prompt_that_is_taken_back_right_behind_itself_does_not_run_on(tmp_path: Path, version: int) -> None:
    async with Engine(tmp_path / "s.db", agents=[agents.slow]) as engine, client_of(engine) as (client, _):
        await client.initialize(version, info={"name": "test", "version": "1"})
        session = await client.new_session()
        for _ in range(10):
            prompt = client.message(
                "session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "go"}]}
            )
            back = {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": prompt["id"]}}
            await client.raw(b"".join(json.dumps(m).encode() + b"\n" for m in (prompt, back)))
            answer = await client.answer(prompt["id"])
            assert version == 2 or answer["result"]["stopReason"] == "cancelled"
            (run, *_) = await engine.runs.search(RunFilter(thread=session))
            assert (await engine.runs.wait(run.id, timeout=15)).status is Status.CANCELLED


async def test_cancelling_settles_an_open_permission_and_never_counts_as_one(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.careful) as client:
        session = await opened(client)
        turn = await client.start_prompt(session, "it")
        asked = await client.request("session/request_permission")
        await client.notify("session/cancel", {"sessionId": session})
        await client.respond(asked, {"outcome": {"outcome": "cancelled"}})
        assert (await client.answer(turn))["result"]["stopReason"] == "cancelled"
        assert "done" not in client.text(session)


async def test_a_cancelled_queue_is_cancelled_whole(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.slow) as client:
        session = await opened(client)
        turns = [await client.start_prompt(session, str(n)) for n in range(3)]
        await client.update("agent_message_chunk")
        await client.notify("session/cancel", {"sessionId": session})
        for turn in turns:
            assert (await client.answer(turn))["result"]["stopReason"] == "cancelled"


# -- questions ------------------------------------------------------------------------------------------------


async def test_a_yes_or_no_is_a_permission_request(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.careful) as client:
        session = await opened(client)
        for option, said in ((0, "done"), (1, "left alone")):
            client.allow(option)
            before = len(client.messages)
            await client.prompt(session, "it")
            asked = await client.request("session/request_permission", after=before)
            params = asked["params"]
            assert params["toolCall"]["title"] == "Do it?"
            assert [o["kind"] for o in params["options"]] == ["allow_once", "reject_once"]
            call = params["toolCall"]["toolCallId"]
            assert await client.update("tool_call", lambda u, call=call: u["toolCallId"] == call, after=before)
            assert client.text(session).endswith(said)


async def test_choices_are_offered_under_their_own_names(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.chooser) as client:
        session = await opened(client)
        client.allow(1)
        await client.prompt(session, "it")
        asked = await client.request("session/request_permission")
        assert [(o["optionId"], o["name"]) for o in asked["params"]["options"]] == [("red", "Red"), ("blue", "Blue")]
        assert client.text(session) == "blue"


@pytest.mark.parametrize(
    "answer",
    [{"outcome": {"outcome": "selected", "optionId": "never offered"}}, {"outcome": {"outcome": "_future"}}, {}, None],
)
async def test_an_answer_that_is_no_permission_rejects(tmp_path: Path, answer: Any) -> None:
    async with in_process(tmp_path / "s.db", agents.careful) as client:
        session = await opened(client)
        client.on("session/request_permission", lambda _: answer)
        await client.prompt(session, "it")
        assert client.text(session) == "left alone"


async def test_a_client_that_cannot_ask_rejects(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.careful) as client:
        session = await opened(client)
        turn = await client.start_prompt(session, "it")
        asked = await client.request("session/request_permission")
        await client.line({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no"}})
        await client.answer(turn)
        assert client.text(session) == "left alone"


async def test_a_form_is_an_elicitation(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.shipper) as client:
        session = await opened(client, **FORMS)
        answers = [{"street": "Via Appia"}, {"street": "Via Appia", "number": 3, "country": "fr"}]
        client.on("elicitation/create", lambda _: {"action": "accept", "content": answers.pop(0)})
        await client.prompt(session, "it")
        asked = (await client.request("elicitation/create"))["params"]
        assert asked["mode"] == "form"
        assert asked["sessionId"] == session
        assert asked["requestedSchema"] == {
            "type": "object",
            "properties": {
                "street": {"type": "string"},
                "number": {"type": "integer"},
                "country": {"type": "string", "enum": ["fr", "it"], "default": "it"},
            },
            "required": ["street", "number"],
        }
        assert client.text(session) == "Via Appia 3 fr"  # the first answer did not fit, and the form came again


async def test_what_has_no_field_of_its_kind_is_json_in_a_text(tmp_path: Path) -> None:
    async with Engine(tmp_path / "s.db", agents=[agents.deep]) as engine, client_of(engine) as (client, _):
        session = await opened(client, **FORMS)
        turn = await client.start_prompt(session, "way")
        asked = await client.request("elicitation/create")
        shown = asked["params"]["requestedSchema"]
        assert {name: field["type"] for name, field in shown["properties"].items()} == {
            "city": "string", "stops": "string", "notes": "string",
        }  # fmt: skip
        assert shown["required"] == ["city", "stops"]
        assert shown["properties"]["stops"]["description"].startswith('JSON of this shape: [{"street": text, "number":')
        (question,) = await engine.questions.open()
        assert asked["params"]["_meta"] == {"interlingua/answerSchema": question.answer_schema}
        stops = json.dumps([{"street": "Via Appia", "number": 3}])
        await client.respond(asked, {"action": "accept", "content": {"city": "Roma", "stops": stops, "notes": ""}})
        await client.answer(turn)
        assert client.text(session) == "Roma ['Via Appia'] {}"


async def test_json_that_does_not_fit_is_asked_for_again_with_what_is_wrong(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.deep) as client:
        session = await opened(client, **FORMS)
        answers = ["a, b", "[1]", '[["a"], []]']
        client.on("elicitation/create", lambda _: {"action": "accept", "content": {"answer": answers.pop(0)}})
        await client.prompt(session, "table")
        assert client.text(session) == "[['a'], []]"
        said = [m["params"]["message"] for m in client.messages if m.get("method") == "elicitation/create"]
        assert said[0] == "Which lines?"
        assert said[1].startswith("answer has to be JSON")
        assert "1 is not of type" in said[2]


async def test_without_forms_what_is_more_than_a_form_is_asked_in_words(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.deep) as client:
        session = await opened(client)
        await client.prompt(session, "table")
        assert "Answer with JSON that fits" in client.text(session)
        await client.prompt(session, '[["a"]]')
        assert client.text(session).endswith("[['a']]")


@pytest.mark.parametrize("action", ["decline", "cancel", "_other"])
async def test_a_form_that_is_not_filled_in_ends_the_turn(tmp_path: Path, action: str) -> None:
    async with in_process(tmp_path / "s.db", agents.shipper) as client:
        session = await opened(client, **FORMS)
        client.on("elicitation/create", lambda _: {"action": action})
        assert (await client.prompt(session, "it"))["stopReason"] == "cancelled"


async def test_without_forms_the_question_is_asked_in_words_and_the_next_prompt_answers(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.asker) as client:
        session = await opened(client)
        told = await client.prompt(session, "start")
        assert told["stopReason"] == "end_turn"
        assert "What is your name?" in client.text(session)
        assert (await client.prompt(session, "Ada"))["stopReason"] == "end_turn"
        assert client.text(session).endswith("Hello Ada")


async def test_who_may_not_answer_may_not_answer_in_words_either(tmp_path: Path) -> None:
    caller = Caller("ann", scopes=("do:run", "do:read"))
    async with (
        Engine(tmp_path / "s.db", agents=[agents.asker]) as engine,
        client_of(engine, caller=caller) as (client, _),
    ):
        session = await opened(client)
        await client.prompt(session, "start")
        with pytest.raises(Refused, match="answer needs the scope do:answer"):
            await client.prompt(session, "Ada")
        (run,) = await engine.runs.search(RunFilter(thread=session))
        assert run.status is Status.WAITING


async def test_words_that_do_not_answer_are_told_so_and_the_question_stays(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.shipper) as client:
        session = await opened(client)
        await client.prompt(session, "start")
        assert (await client.prompt(session, "just anywhere"))["stopReason"] == "end_turn"
        assert "does not answer" in client.text(session)
        await client.prompt(session, '{"street": "Via Appia", "number": 3}')
        assert client.text(session).endswith("Via Appia 3 it")


async def test_a_question_in_words_that_another_door_answers_goes_on_by_itself(tmp_path: Path) -> None:
    async with Engine(tmp_path / "s.db", agents=[agents.asker]) as engine, client_of(engine) as (client, _):
        session = await opened(client)
        await client.prompt(session, "start")
        (question,) = await engine.questions.open()
        await engine.questions.answer(question.id, {"text": "Grace"})
        await client.update("agent_message_chunk", lambda u: "Hello Grace" in u["content"]["text"])
        told = await client.prompt(session, "again")  # a prompt of its own, not an answer that comes too late
        assert "question" in told["_meta"]["interlingua"]


async def test_a_permission_that_another_door_gives_is_taken_back_from_the_client(tmp_path: Path) -> None:
    async with Engine(tmp_path / "s.db", agents=[agents.careful]) as engine, client_of(engine) as (client, _):
        session = await opened(client)
        turn = await client.start_prompt(session, "it")
        asked = await client.request("session/request_permission")
        (question,) = await engine.questions.open()
        await engine.questions.answer(question.id, {"approved": True})
        back = await client.wait_for(lambda m: m.get("method") == "$/cancel_request")
        assert back["params"] == {"requestId": asked["id"]}
        assert (await client.answer(turn))["result"]["stopReason"] == "end_turn"
        assert client.text(session) == "done"
        await client.respond(asked, {"outcome": {"outcome": "selected", "optionId": "no"}})  # too late, and harmless
        assert (await client.ask("session/list"))["sessions"]


# -- options and modes ----------------------------------------------------------------------------------------


async def test_one_agent_without_config_has_no_options(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.echo) as client:
        await client.initialize()
        told = await client.ask("session/new", {"cwd": "/tmp", "mcpServers": []})
        assert set(told) == {"sessionId", "_meta"}
        assert told["_meta"] == {"interlingua/agent": "echo@0.1.0"}, "who answers is told all the same"


async def test_several_agents_are_an_option_and_modes(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.echo, agents.remember) as client:
        await client.initialize()
        told = await client.ask("session/new", {"cwd": "/tmp", "mcpServers": []})
        session = told["sessionId"]
        (option,) = told["configOptions"]
        assert (option["id"], option["type"], option["currentValue"]) == ("agent", "select", "echo@0.1.0")
        assert [m["id"] for m in told["modes"]["availableModes"]] == ["echo@0.1.0", "remember@0.1.0"]
        await client.prompt(session, "hello")
        assert client.text(session) == "hello "
        assert await client.ask("session/set_mode", {"sessionId": session, "modeId": "remember@0.1.0"}) == {}
        changed = await client.update("config_option_update")
        assert changed["configOptions"][0]["currentValue"] == "remember@0.1.0"
        assert (await client.update("available_commands_update"))["availableCommands"][0]["name"] == "count"
        await client.prompt(session, "hello")
        assert client.text(session) == "hello 1 in a dry tone"
        told = await client.ask(
            "session/set_config_option", {"sessionId": session, "configId": "agent", "value": "echo@0.1.0"}
        )
        assert told["configOptions"][0]["currentValue"] == "echo@0.1.0"
        assert (await client.update("current_mode_update"))["currentModeId"] == "echo@0.1.0"
        with pytest.raises(Refused):
            await client.ask("session/set_mode", {"sessionId": session, "modeId": "nobody"})


async def test_the_members_of_a_config_are_options_and_reach_the_agent(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.remember) as client:
        await client.initialize(clientCapabilities={"session": {"configOptions": {"boolean": {}}}})
        told = await client.ask("session/new", {"cwd": "/tmp", "mcpServers": []})
        session = told["sessionId"]
        assert [(o["id"], o["type"], o["currentValue"]) for o in told["configOptions"]] == [
            ("tone", "select", "dry"), ("loud", "boolean", False),
        ]  # fmt: skip
        set_ = {"sessionId": session, "configId": "tone", "value": "warm"}
        told = await client.ask("session/set_config_option", set_)
        assert [o["currentValue"] for o in told["configOptions"]] == ["warm", False]  # always the whole list
        set_ = {"sessionId": session, "configId": "loud", "type": "boolean", "value": True}
        await client.ask("session/set_config_option", set_)
        await client.prompt(session, "x")
        assert client.text(session) == "1 IN A WARM TONE"
        for config, value in (("tone", "cold"), ("loud", "yes"), ("nothing", "x")):
            with pytest.raises(Refused) as refused:
                await client.ask(
                    "session/set_config_option", {"sessionId": session, "configId": config, "value": value}
                )
            assert refused.value.code == -32602


async def test_flags_are_offered_only_to_clients_that_know_them(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.remember) as client:
        await client.initialize()
        told = await client.ask("session/new", {"cwd": "/tmp", "mcpServers": []})
        assert [o["id"] for o in told["configOptions"]] == ["tone"]


async def test_agents_that_come_and_go_change_the_options_of_open_sessions(tmp_path: Path) -> None:
    async with Engine(tmp_path / "s.db", agents=[agents.echo]) as engine, client_of(engine) as (client, _):
        await opened(client)
        engine.agents.add(agents.remember)
        changed = await client.update("config_option_update")
        assert len(changed["configOptions"][0]["options"]) == 2


# -- sessions -------------------------------------------------------------------------------------------------


async def test_the_first_prompt_names_the_session_and_values_are_sent(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.remember) as client:
        session = await opened(client)
        await client.prompt(session, "A long story\nabout nothing")
        named = await client.update("session_info_update", lambda u: "title" in u)
        assert named["title"] == "A long story"
        values = await client.update("session_info_update", lambda u: "_meta" in u)
        assert values["_meta"]["interlingua"]["values"] == {"said": ["A long story\nabout nothing"]}


async def test_a_session_survives_the_process_and_is_replayed_by_load(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    async with in_process(store, agents.remember) as client:
        session = await opened(client)
        await client.ask("session/set_config_option", {"sessionId": session, "configId": "tone", "value": "warm"})
        await client.prompt(session, "first")
        await client.prompt(session, "second", {"type": "resource_link", "name": "a", "uri": "file:///a"})
    async with in_process(store, agents.remember) as client:
        await client.initialize()
        (listed,) = (await client.ask("session/list"))["sessions"]
        assert (listed["sessionId"], listed["cwd"], listed["title"]) == (session, "/tmp", "first")
        assert listed["updatedAt"]
        told = await client.ask("session/load", {"sessionId": session, "cwd": "/tmp", "mcpServers": []})
        assert told["configOptions"][0]["currentValue"] == "warm"
        answer = next(n for n, m in enumerate(client.messages) if m.get("result") == told)
        replayed = [m["params"]["update"] for m in client.messages[:answer] if m.get("method") == "session/update"]
        assert [(u["sessionUpdate"], u["content"].get("text")) for u in replayed if "content" in u] == [
            ("user_message_chunk", "first"), ("agent_message_chunk", "1 in a warm tone"),
            ("user_message_chunk", "second"), ("user_message_chunk", None),
            ("agent_message_chunk", "2 in a warm tone"),
        ]  # fmt: skip
        await client.prompt(session, "third")
        assert client.text(session).endswith("3 in a warm tone")


async def test_resume_takes_a_session_up_without_a_word(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    async with in_process(store, agents.remember) as client:
        session = await opened(client)
        await client.prompt(session, "first")
    async with in_process(store, agents.remember) as client:
        await client.initialize()
        await client.ask("session/resume", {"sessionId": session, "cwd": "/elsewhere"})
        assert not client.text(session)
        assert not client.text(session, "user_message_chunk")
        await client.prompt(session, "second")
        assert client.text(session) == "2 in a dry tone"
        assert (await client.ask("session/list", {"cwd": "/elsewhere"}))["sessions"]


async def test_a_question_that_was_open_is_asked_again_after_load(tmp_path: Path) -> None:
    async with stdio(tmp_path, Path(agents.__file__)) as client:
        await client.initialize()
        session = await client.new_session()
        await client.ask("session/set_mode", {"sessionId": session, "modeId": "careful@0.1.0"})
        await client.start_prompt(session, "it")
        await client.request("session/request_permission")
        client.process.kill()
        await client.wait()
    async with stdio(tmp_path, Path(agents.__file__)) as client:
        await client.initialize()
        await client.ask("session/load", {"sessionId": session, "cwd": "/tmp", "mcpServers": []})
        asked = await client.request("session/request_permission")
        await client.respond(asked, {"outcome": {"outcome": "selected", "optionId": "yes"}})
        await client.update("agent_message_chunk", lambda u: u["content"]["text"] == "done")


async def test_a_turn_goes_on_without_its_client_and_is_seen_by_the_next(tmp_path: Path) -> None:
    async with Engine(tmp_path / "s.db", agents=[agents.careful]) as engine:
        async with client_of(engine) as (client, _):
            session = await opened(client)
            await client.start_prompt(session, "it")
            await client.request("session/request_permission")
        (question,) = await engine.questions.open()
        await engine.questions.answer(question.id, {"approved": True})
        run = (await engine.threads.get(session)).active
        if run is not None:
            await engine.runs.wait(run)
        async with client_of(engine) as (client, _):
            await client.initialize()
            await client.ask("session/load", {"sessionId": session, "cwd": "/tmp", "mcpServers": []})
            assert client.text(session) == "done"


async def test_a_session_goes_on_at_another_door_and_comes_back(tmp_path: Path) -> None:
    async with Engine(tmp_path / "s.db", agents=[agents.remember]) as engine, client_of(engine) as (client, _):
        session = await opened(client)
        await client.prompt(session, "here")
        run = await engine.runs.submit(RunRequest("remember", input={"text": "there"}, thread=session))
        assert (await engine.runs.wait(run.id)).output == {"text": "2 in a dry tone"}
        await client.prompt(session, "here again")
        assert client.text(session).endswith("3 in a dry tone")
        before = len(client.messages)
        await client.ask("session/load", {"sessionId": session, "cwd": "/tmp", "mcpServers": []})
        said = [
            m["params"]["update"]["content"]["text"]
            for m in client.messages[before:]
            if m.get("params", {}).get("update", {}).get("sessionUpdate") == "user_message_chunk"
        ]
        assert said == ["here", "there", "here again"]


async def test_sessions_are_listed_by_folder_and_page_by_page(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.echo) as client:
        await client.initialize()
        made = [await client.new_session("/project" if n % 2 else "/play") for n in range(60)]
        found: list[str] = []
        told = await client.ask("session/list")
        found += [s["sessionId"] for s in told["sessions"]]
        assert len(found) == 50
        told = await client.ask("session/list", {"cursor": told["nextCursor"]})
        assert "nextCursor" not in told
        found += [s["sessionId"] for s in told["sessions"]]
        assert sorted(found) == sorted(made)
        assert len((await client.ask("session/list", {"cwd": "/play"}))["sessions"]) == 30
        assert (await client.ask("session/list", {"cwd": "/nowhere"}))["sessions"] == []
        with pytest.raises(Refused) as refused:
            await client.ask("session/list", {"cursor": "of somebody else"})
        assert refused.value.code == -32602


async def test_closing_cancels_and_deleting_forgets(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.slow) as client:
        session = await opened(client)
        turn = await client.start_prompt(session, "go")
        await client.update("agent_message_chunk")
        assert await client.ask("session/close", {"sessionId": session}) == {}
        assert (await client.answer(turn))["result"]["stopReason"] == "cancelled"
        with pytest.raises(Refused) as refused:
            await client.prompt(session, "more")
        assert refused.value.code == -32002
        assert [s["sessionId"] for s in (await client.ask("session/list"))["sessions"]] == [session]
        assert await client.ask("session/delete", {"sessionId": session}) == {}
        assert (await client.ask("session/list"))["sessions"] == []
        assert await client.ask("session/delete", {"sessionId": session}) == {}  # gone is gone
        with pytest.raises(Refused) as refused:
            await client.ask("session/load", {"sessionId": session, "cwd": "/tmp", "mcpServers": []})
        assert refused.value.code == -32002


async def test_a_session_that_runs_can_be_deleted(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.slow) as client:
        session = await opened(client)
        turn = await client.start_prompt(session, "go")
        await client.update("agent_message_chunk")
        assert await client.ask("session/delete", {"sessionId": session}) == {}
        assert (await client.answer(turn))["result"]["stopReason"] == "cancelled"


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"mcpServers": []}, "cwd"),
        ({"cwd": "relative", "mcpServers": []}, "absolute"),
        ({"cwd": "/", "mcpServers": [], "additionalDirectories": ["x"]}, "absolute"),
        ({"cwd": "/", "mcpServers": [{"name": "a"}]}, "command"),
        ({"cwd": "/", "mcpServers": [{"name": "a", "command": "/b", "args": [], "env": {"A": "1"}}]}, "lists of"),
        ({"cwd": "/", "mcpServers": [{"type": "http", "name": "a"}]}, "url"),
        ([], "params"),
    ],
)
async def test_a_session_that_is_badly_described_is_refused_with_the_reason(
    tmp_path: Path, params: Any, said: str
) -> None:
    async with in_process(tmp_path / "s.db", agents.echo) as client:
        await client.initialize()
        with pytest.raises(Refused, match=said) as refused:
            await client.ask("session/new", params)
        assert refused.value.code == -32602


async def test_tool_servers_of_every_kind_are_taken(tmp_path: Path) -> None:
    servers = [
        {"name": "a", "command": "/bin/a", "args": ["x"], "env": [{"name": "K", "value": "secret"}]},
        {"type": "http", "name": "b", "url": "https://b", "headers": []},
        {"type": "sse", "name": "c", "url": "https://c", "headers": []},
    ]
    async with Engine(tmp_path / "s.db", agents=[agents.files]) as engine, client_of(engine) as (client, _):
        await client.initialize()
        session = await client.new_session(mcpServers=servers, additionalDirectories=["/more"])
        assert engine.workspaces.find(session).mcp_servers == servers
        assert engine.workspaces.find(session).directories == ["/more"]
        assert "secret" not in str((await engine.threads.get(session)).metadata)


# -- the editor's files and terminals -------------------------------------------------------------------------


async def test_an_agent_uses_the_files_and_terminals_of_the_editor(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def on(method: str, result: Any) -> None:
        client.on(method, lambda params: seen.update({method: params}) or result)

    async with in_process(tmp_path / "s.db", agents.files) as client:
        able = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}
        session = await opened(client, clientCapabilities=able)
        on("fs/read_text_file", {"content": "line two"})
        on("fs/write_text_file", None)
        on("terminal/create", {"terminalId": "t1"})
        on("terminal/wait_for_exit", {"exitCode": 0})
        on("terminal/output", {"output": "total 0", "truncated": False, "exitStatus": {"exitCode": 0}})
        on("terminal/release", {})
        await client.prompt(session, "go")
        assert client.text(session) == "line two 0 total 0 /tmp 0"
        assert seen["fs/read_text_file"] == {"sessionId": session, "path": "/tmp/notes.txt", "line": 2, "limit": 1}
        assert seen["fs/write_text_file"] == {"sessionId": session, "path": "/tmp/out.txt", "content": "LINE TWO"}
        assert seen["terminal/create"] == {
            "sessionId": session, "command": "ls", "args": ["-l"], "env": [{"name": "A", "value": "1"}],
            "cwd": "/tmp", "outputByteLimit": 100,
        }  # fmt: skip
        assert seen["terminal/release"] == {"sessionId": session, "terminalId": "t1"}


async def test_without_the_capability_the_agent_knows_before_it_tries(tmp_path: Path) -> None:
    async with Engine(tmp_path / "s.db", agents=[agents.files]) as engine:
        async with client_of(engine) as (client, _):
            session = await opened(client)
            await client.prompt(session, "go")
            assert client.text(session) == "cannot read"
        run = await engine.runs.submit(RunRequest("files", input={"text": "x"}, thread=session))
        assert (await engine.runs.wait(run.id)).output == {"text": "no editor"}  # the editor has gone


# -- two clients ----------------------------------------------------------------------------------------------


async def test_two_clients_do_not_disturb_each_other(tmp_path: Path) -> None:
    async with (
        Engine(tmp_path / "s.db", agents=[agents.echo, agents.slow]) as engine,
        client_of(engine) as (one, _),
        client_of(engine) as (two, _),
    ):
        first, second = await opened(one), await opened(two)
        await one.ask("session/set_mode", {"sessionId": first, "modeId": "slow@0.1.0"})
        turn = await one.start_prompt(first, "go")
        await one.update("agent_message_chunk")
        await two.prompt(second, "hello")
        assert two.text() == "hello "
        with pytest.raises(Refused) as refused:
            await two.prompt(first, "not mine")
        assert refused.value.code == -32002
        await one.notify("session/cancel", {"sessionId": first})
        await one.answer(turn)
        assert not [m for m in two.messages if m.get("params", {}).get("sessionId") == first]


async def test_many_sessions_run_at_once_on_one_connection(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.echo) as client:
        await client.initialize()
        sessions = [await client.new_session() for _ in range(20)]
        await asyncio.gather(*(client.prompt(session, f"word{n}") for n, session in enumerate(sessions)))
        assert [client.text(session) for session in sessions] == [f"word{n} " for n in range(20)]

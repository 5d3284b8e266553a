"""Version 2 of the protocol on the same door: what it says otherwise than version 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlingua.engine.engine import Engine
from interlingua.model.filters import RunFilter
from tests.kit.clients.editor import Client, Refused, client_of, in_process

from . import agents
from .test_door import Door

ME = {"info": {"name": "test", "version": "1"}}
FORMS = {**ME, "capabilities": {"elicitation": {"form": {}}}}


async def opened(client: Client, members: dict[str, Any] = ME, **session: Any) -> str:
    await client.initialize(2, **members)
    return await client.new_session(**session)


async def turn(client: Client, session: str, *blocks: Any) -> dict[str, Any]:
    """Prompt, and wait for the turn's end: the update that says idle."""
    before = len(client.messages)
    await client.prompt(session, *blocks)
    return await client.update("state_update", lambda u: u["state"] == "idle", after=before)


def states(client: Client) -> list[str]:
    return [u["state"] for u in client.updates() if u["sessionUpdate"] == "state_update"]


async def test_initialize_has_the_shape_of_version_2(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.echo) as client:
        told = await client.initialize(2, **ME)
        assert told["protocolVersion"] == 2
        assert told["info"]["name"] == "echo"
        session = told["capabilities"]["session"]
        assert session["prompt"] == {"image": {}, "audio": {}, "embeddedContext": {}}
        assert session["mcp"] == {"stdio": {}, "http": {}}
        assert session["delete"] == {}
        assert "agentCapabilities" not in told


async def test_methods_of_version_1_are_gone(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.echo) as client:
        await client.initialize(2, **ME)
        for method in ("authenticate", "logout", "session/load", "session/set_mode"):
            with pytest.raises(Refused) as refused:
                await client.ask(method, {"sessionId": "x"})
            assert refused.value.code == -32601


async def test_logging_in_has_its_own_names(tmp_path: Path) -> None:
    from interlingua.engine.definition import agent

    @agent(name="guarded")
    async def guarded(text: str) -> str:
        return text

    guarded.login = Door()
    async with in_process(tmp_path / "s.db", guarded) as client:
        told = await client.initialize(2, info=ME["info"], capabilities={"auth": {"terminal": {}}})
        assert [(m["methodId"], m["type"]) for m in told["authMethods"]] == [("badge", "agent"), ("shell", "terminal")]
        with pytest.raises(Refused) as refused:
            await client.new_session()
        assert refused.value.code == -32000
        assert await client.ask("auth/login", {"methodId": "badge"}) == {}
        assert await client.new_session()
        assert await client.ask("auth/logout") == {}
        with pytest.raises(Refused):
            await client.new_session()


async def test_a_prompt_is_answered_when_it_is_accepted_and_ends_with_an_update(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.echo) as client:
        session = await opened(client)
        before = len(client.messages)
        told = await client.prompt(session, "one two")
        ended = await client.update("state_update", lambda u: u["state"] == "idle")
        assert ended["stopReason"] == "end_turn"
        kinds = [u["sessionUpdate"] for u in client.updates() if u["sessionUpdate"] != "session_info_update"]
        assert kinds[:2] == ["user_message", "state_update"]
        assert kinds[-1] == "state_update"
        said = await client.update("user_message")
        assert said["messageId"] == told["messageId"]
        assert said["content"] == [{"type": "text", "text": "one two"}]
        answer = next(n for n, m in enumerate(client.messages) if m.get("result") == told)
        first = next(n for n, m in enumerate(client.messages) if m.get("method") == "session/update" and n > answer)
        assert before <= answer < first
        assert client.text() == "one two "
        assert all(u["messageId"] for u in client.updates() if u["sessionUpdate"] == "agent_message_chunk")


async def test_the_states_of_a_turn_that_asks(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.careful) as client:
        session = await opened(client)
        client.allow()
        await turn(client, session, "it")
        assert states(client) == ["running", "requires_action", "running", "idle"]
        asked = (await client.request("session/request_permission"))["params"]
        assert asked["title"] == "Do it?"
        assert asked["subject"]["type"] == "tool_call"
        assert asked["subject"]["toolCall"]["toolCallId"].startswith("question-")
        assert "toolCall" not in asked
        assert client.text() == "done"


@pytest.mark.parametrize("outcome", ["_custom", "approved", "granted"])
async def test_an_outcome_that_is_unknown_never_counts_as_approval(tmp_path: Path, outcome: str) -> None:
    async with in_process(tmp_path / "s.db", agents.careful) as client:
        session = await opened(client)
        client.on("session/request_permission", lambda _: {"outcome": {"outcome": outcome, "optionId": "yes"}})
        await turn(client, session, "it")
        assert client.text() == "left alone"


async def test_a_cancelled_turn_is_idle_with_the_reason(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.slow) as client:
        session = await opened(client)
        await client.prompt(session, "go")
        await client.update("agent_message_chunk")
        await client.notify("session/cancel", {"sessionId": session})
        ended = await client.update("state_update", lambda u: u["state"] == "idle")
        assert ended["stopReason"] == "cancelled"


async def test_a_failed_turn_is_idle_with_the_error(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.breaks) as client:
        session = await opened(client)
        ended = await turn(client, session, "go")
        assert ended["stopReason"] == "error"
        assert ended["error"]["message"] == "the tool is broken"
        assert ended["error"]["data"]["transient"] is True


async def test_activity_in_the_shapes_of_version_2(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.show) as client:
        session = await opened(client)
        await turn(client, session, "go")
        kinds = {u["sessionUpdate"] for u in client.updates()}
        assert "tool_call" not in kinds
        assert "plan" not in kinds
        plan = (await client.update("plan_update"))["plan"]
        assert plan["type"] == "items"
        assert plan["planId"]
        assert [e["status"] for e in plan["entries"]] == ["completed", "pending", "cancelled"]
        calls = [
            u for u in client.updates() if u["sessionUpdate"] == "tool_call_update" and u["toolCallId"] == "call-1"
        ]
        assert calls[0]["title"] == "Edit"
        assert "title" not in calls[1]  # what is not said stays as it was
        diff = calls[1]["content"][1]
        assert diff["changes"] == [{"operation": "modify", "path": "/a.py"}]
        assert diff["patch"]["format"] == "git_patch"
        assert "-old\n+new\n" in diff["patch"]["text"]
        stopped = await client.update("tool_call_update", lambda u: u["toolCallId"] == "call-2")
        assert stopped["status"] == "cancelled"


async def test_content_of_a_type_to_come_is_kept(tmp_path: Path) -> None:
    async with Engine(tmp_path / "s.db", agents=[agents.parts]) as engine, client_of(engine) as (client, _):
        session = await opened(client)
        await turn(client, session, "look", {"type": "hologram", "depth": 3})
        (run,) = await engine.runs.search(RunFilter())
        output = (await engine.runs.get(run.id)).output
        assert output["parts"][1]["data"] == {"type": "hologram", "depth": 3}


async def test_known_content_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.echo) as client:
        session = await opened(client)
        with pytest.raises(Refused) as refused:
            await client.prompt(session, {"type": "image", "data": "!", "mimeType": "image/png"})
        assert refused.value.code == -32602


async def test_options_have_their_new_names(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.remember, agents.echo) as client:
        await client.initialize(2, **ME)
        told = await client.ask("session/new", {"cwd": "/tmp"})
        session = told["sessionId"]
        assert "modes" not in told
        assert [o["configId"] for o in told["configOptions"]] == ["agent", "tone", "loud"]
        set_ = {"sessionId": session, "configId": "tone", "type": "id", "value": "warm"}
        assert (await client.ask("session/set_config_option", set_))["configOptions"][1]["currentValue"] == "warm"
        set_ = {"sessionId": session, "configId": "loud", "type": "boolean", "value": True}
        assert (await client.ask("session/set_config_option", set_))["configOptions"][2]["currentValue"] is True
        await turn(client, session, "x")
        assert client.text() == "1 IN A WARM TONE"
        commands = await client.update("available_commands_update")
        assert commands["availableCommands"][0]["input"] == {"type": "text", "hint": "count to ten"}


async def test_resume_is_silent_unless_replay_is_asked_for(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    async with in_process(store, agents.remember) as client:
        session = await opened(client)
        await turn(client, session, "first")
    for replay in (None, {"type": "start"}, {"type": "_later"}):
        async with in_process(store, agents.remember) as client:
            await client.initialize(2, **ME)
            told = await client.ask("session/resume", {"sessionId": session, "cwd": "/tmp", "replayFrom": replay})
            assert told["configOptions"]
            answer = next(n for n, m in enumerate(client.messages) if m.get("result") == told)
            kinds = [m["params"]["update"]["sessionUpdate"] for m in client.messages[:answer] if "params" in m]
            expected = ["user_message", "agent_message_chunk"] if replay == {"type": "start"} else []
            assert [k for k in kinds if k in ("user_message", "agent_message_chunk")] == expected


async def test_a_form_and_then_words(tmp_path: Path) -> None:
    async with in_process(tmp_path / "s.db", agents.shipper) as client:
        session = await opened(client, FORMS)
        client.on("elicitation/create", lambda _: {"action": "accept", "content": {"street": "Rue", "number": 1}})
        await turn(client, session, "x")
        assert client.text() == "Rue 1 it"
    async with in_process(tmp_path / "t.db", agents.asker) as client:
        session = await opened(client)
        assert (await turn(client, session, "x"))["stopReason"] == "end_turn"
        assert "your name" in client.text()
        await turn(client, session, "Ada")
        assert client.text().endswith("Hello Ada")


async def test_a_turn_that_runs_on_after_a_disconnect_is_running_when_resumed(tmp_path: Path) -> None:
    async with Engine(tmp_path / "s.db", agents=[agents.careful]) as engine:
        async with client_of(engine) as (client, _):
            session = await opened(client)
            await client.prompt(session, "it")
            await client.request("session/request_permission")
        async with client_of(engine) as (client, _):
            await client.initialize(2, **ME)
            client.allow()
            await client.ask("session/resume", {"sessionId": session, "cwd": "/tmp"})
            ended = await client.update("state_update", lambda u: u["state"] == "idle")
            assert ended["stopReason"] == "end_turn"
            assert states(client)[:2] == ["running", "requires_action"]
            assert client.text() == "done"

"""What the protocol asks of an agent, and what users of others have complained about: rule by rule, at the door."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.engine.engine import Engine
from interlingua.model.events import RunRestarted
from interlingua.model.filters import RunFilter
from tests.kit.clients.editor import (
    COMMAND,
    PATIENCE,
    Client,
    Message,
    Refused,
    check_frame,
    client_of,
    in_process,
    selected,
)
from tests.kit.engines import QUICK, bodies

from . import agents
from .test_contract_transports import Queues

ME = {"info": {"name": "test", "version": "1"}}


async def opened(client: Client, version: int = 1, **session: Any) -> str:
    await client.initialize(version, **(ME if version == 2 else {}))
    return await client.new_session(**session)


def place_of(client: Client, matches: Any) -> int:
    """Where among all that came the first message stands that matches."""
    return next(place for place, message in enumerate(client.messages) if matches(message))


def is_update(message: Message, kind: str = "") -> bool:
    update = message.get("params", {}).get("update", {}) if message.get("method") == "session/update" else None
    return update is not None and (not kind or update["sessionUpdate"] == kind)


# -- cancelling -----------------------------------------------------------------------------------------------


@il.agent
async def clumsy(text: str) -> AsyncIterator[str]:
    """When it is stopped, it breaks."""
    yield "begun"
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise RuntimeError("a connection was reset") from None


async def test_after_a_cancel_the_remaining_updates_come_before_the_answer_that_says_cancelled(store: Path) -> None:
    """The client has not read a word when it cancels: everything that was shown until then still comes, in order."""
    shown = asyncio.Event()

    @il.agent
    async def busy(text: str, ctx: il.Context[Any, Any]) -> str:
        for number in range(2000):
            await ctx.thought(f"{number} {'x' * 100}")
        shown.set()
        await asyncio.Event().wait()
        return "never"

    async with in_process(store, busy) as client:
        session = await opened(client)
        client.stop_reading()
        turn = await client.start_prompt(session, "go")
        async with asyncio.timeout(PATIENCE):
            await shown.wait()
        await client.notify("session/cancel", {"sessionId": session})
        client.read_on()
        answer = await client.answer(turn)
        assert answer["result"]["stopReason"] == "cancelled"
        await client.ask("session/list")
        at = client.messages.index(answer)
        before = [m["params"]["update"] for m in client.messages[:at] if is_update(m, "agent_thought_chunk")]
        assert [int(update["content"]["text"].split()[0]) for update in before] == list(range(2000))
        assert not any(map(is_update, client.messages[at:])), "nothing comes behind it"


async def test_a_cancelled_turn_is_never_answered_by_an_error_even_if_the_agent_breaks_over_it(store: Path) -> None:
    async with in_process(store, clumsy) as client:
        session = await opened(client)
        turn = await client.start_prompt(session, "go")
        await client.update("agent_message_chunk")
        await client.notify("session/cancel", {"sessionId": session})
        assert (await client.answer(turn)).get("result", {}).get("stopReason") == "cancelled"


@pytest.mark.parametrize("version", [1, 2])
async def test_cancelling_takes_an_open_permission_back_from_a_client_that_never_answers(
    store: Path, version: int
) -> None:
    async with Engine(store, agents=[agents.careful]) as engine, client_of(engine) as (client, _):
        session = await opened(client, version)
        await client.start_prompt(session, "it")
        asked = await client.request("session/request_permission")
        await client.notify("session/cancel", {"sessionId": session})
        back = await client.wait_for(lambda m: m.get("method") == "$/cancel_request")
        assert back["params"] == {"requestId": asked["id"]}
        if version == 1:
            ended = await client.wait_for(lambda m: "stopReason" in m.get("result", {}))
            assert ended["result"]["stopReason"] == "cancelled"
        else:
            idle = await client.update("state_update", lambda u: u["state"] == "idle")
            assert idle["stopReason"] == "cancelled"
        assert await engine.questions.open() == [], "no question stays open"
        await client.respond(asked, selected("yes"))  # too late
        await client.ask("session/list")
        assert "done" not in client.text(session)


async def test_closing_a_session_cancels_what_it_does_before_it_is_answered(store: Path) -> None:
    async with Engine(store, agents=[agents.careful]) as engine, client_of(engine) as (client, _):
        session = await opened(client)
        turn = await client.start_prompt(session, "it")
        asked = await client.request("session/request_permission")
        close = await client.send("session/close", {"sessionId": session})
        closed, ended = await client.answer(close), await client.answer(turn)
        assert ended["result"]["stopReason"] == "cancelled"
        back = place_of(client, lambda m: m.get("method") == "$/cancel_request")
        assert client.messages[back]["params"] == {"requestId": asked["id"]}
        assert back < client.messages.index(closed)
        (run,) = await engine.runs.search(RunFilter(thread=session))
        assert run.status is il.Status.CANCELLED
        assert engine.workspaces.find(session) is None


async def test_a_client_that_hangs_up_leaves_the_permission_to_others(store: Path) -> None:
    async with Engine(store, agents=[agents.careful]) as engine:
        async with client_of(engine) as (client, _):
            session = await opened(client)
            await client.start_prompt(session, "it")
            await client.request("session/request_permission")
        (question,) = await engine.questions.open()
        await engine.questions.answer(question.id, {"approved": False})
        (run,) = await engine.runs.search(RunFilter(thread=session))
        assert (await engine.runs.wait(run.id, timeout=20)).output == {"text": "left alone"}, "it was never approved"


# -- the order of things --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("method", ["session/new", "session/load", "session/resume"])
async def test_nothing_is_said_about_a_session_before_its_id_was_answered(
    store: Path, version: int, method: str
) -> None:
    if (version, method) == (2, "session/load"):
        method = "session/resume"
    async with Engine(store, agents=[agents.remember, agents.echo]) as engine, client_of(engine) as (client, _):
        session = await opened(client, version)  # its agent has skills, so there is something to tell
        before = len(client.messages)
        params = {"cwd": "/tmp", "mcpServers": []}
        told = await client.call(method, params if method == "session/new" else {**params, "sessionId": session})
        await client.update("available_commands_update", after=before)
        await client.ask("session/list")
        since = client.messages[before:]
        assert since.index(told) < next(n for n, m in enumerate(since) if is_update(m, "available_commands_update"))


async def test_every_update_of_a_turn_comes_before_its_answer_whatever_the_update_is(store: Path) -> None:
    @il.agent
    async def last(text: str, ctx: il.Context[agents.Chat, Any]) -> str:
        ctx.state.said.append(text)
        await ctx.artifact("a file", name="a.txt")
        ctx.usage(used=1, size=2)
        await ctx.plan([il.PlanEntry("done", status="completed")])
        return "words"

    async with in_process(store, last) as client:
        session = await opened(client)
        turn = await client.start_prompt(session, "go")
        answer = await client.answer(turn)
        kinds = {m["params"]["update"]["sessionUpdate"] for m in client.messages if is_update(m)}
        assert kinds == {"session_info_update", "agent_message_chunk", "usage_update", "plan"}
        await client.ask("session/list")
        assert not any(map(is_update, client.messages[client.messages.index(answer) :]))


async def test_load_replays_everything_before_its_answer_and_resume_nothing(store: Path) -> None:
    async with in_process(store, agents.show) as client:
        session = await opened(client)
        await client.prompt(session, "go")
        shown = [u["sessionUpdate"] for u in client.updates(session)]
    async with in_process(store, agents.show) as client:
        await client.initialize()
        told = await client.call("session/load", {"sessionId": session, "cwd": "/tmp", "mcpServers": []})
        await client.ask("session/list")
        at = client.messages.index(told)
        replayed = [m["params"]["update"]["sessionUpdate"] for m in client.messages[:at] if is_update(m)]
        content = ("agent_thought_chunk", "agent_message_chunk", "plan", "tool_call", "tool_call_update")
        assert [k for k in replayed if k in content] == [k for k in shown if k in content]
        assert replayed[0] == "user_message_chunk"
        behind = [m["params"]["update"]["sessionUpdate"] for m in client.messages[at:] if is_update(m)]
        assert not set(behind) & {*content, "user_message_chunk"}
        before = len(client.messages)
        await client.ask("session/resume", {"sessionId": session, "cwd": "/tmp"})
        await client.ask("session/list")
        said = [m["params"]["update"]["sessionUpdate"] for m in client.messages[before:] if is_update(m)]
        assert not set(said) & {*content, "user_message_chunk"}


# -- what is told whole, and what is told anew ----------------------------------------------------------------


async def test_additional_directories_are_those_of_the_last_opening_and_never_restored(store: Path) -> None:
    async with Engine(store, agents=[agents.echo]) as engine, client_of(engine) as (client, _):
        session = await opened(client, additionalDirectories=["/a", "/b"])
        assert engine.workspaces.find(session).directories == ["/a", "/b"]
        (listed,) = (await client.ask("session/list"))["sessions"]
        assert listed["additionalDirectories"] == ["/a", "/b"]
        where = {"sessionId": session, "cwd": "/tmp", "mcpServers": []}
        await client.ask("session/load", {**where, "additionalDirectories": ["/b"]})
        assert engine.workspaces.find(session).directories == ["/b"], "not added to those of before"
        await client.ask("session/resume", where)
        assert engine.workspaces.find(session).directories == []
        (listed,) = (await client.ask("session/list"))["sessions"]
        assert "additionalDirectories" not in listed


async def test_tool_servers_belong_to_one_session_and_are_told_anew(store: Path) -> None:
    one = [{"name": "one", "command": "/one", "args": [], "env": []}]
    two = [{"name": "two", "command": "/two", "args": [], "env": []}]
    async with Engine(store, agents=[agents.echo]) as engine, client_of(engine) as (client, _):
        first = await opened(client, mcpServers=one)
        second = await client.new_session(mcpServers=two)
        third = await client.new_session()
        assert [engine.workspaces.find(s).mcp_servers for s in (first, second, third)] == [one, two, []]
        await client.ask("session/load", {"sessionId": first, "cwd": "/tmp", "mcpServers": []})
        assert engine.workspaces.find(first).mcp_servers == []


@pytest.mark.parametrize("server", [{"env": {"KEY": "v"}}, {"headers": {"Authorization": "v"}}])
async def test_variables_as_an_object_are_refused_with_what_to_write_instead(
    store: Path, server: dict[str, Any]
) -> None:
    async with in_process(store, agents.echo) as client:
        await client.initialize()
        given = {"name": "a", "command": "/a", "args": [], "env": [], **server}
        if "headers" in server:
            given = {"type": "http", "name": "a", "url": "https://a", **server}
        with pytest.raises(Refused, match=r"mcpServers\[0\].*lists of.*name.*value") as refused:
            await client.new_session(mcpServers=[given])
        assert refused.value.code == -32602
        assert "KEY" not in refused.value.message


async def test_a_tool_server_of_a_kind_to_come_is_not_refused(store: Path) -> None:
    server = {"type": "acp", "name": "later", "serverId": "x"}
    async with Engine(store, agents=[agents.echo]) as engine, client_of(engine) as (client, _):
        session = await opened(client, mcpServers=[server])
        assert engine.workspaces.find(session).mcp_servers == [server]


@pytest.mark.parametrize("version", [1, 2])
async def test_options_are_always_told_whole(store: Path, version: int) -> None:
    name = "configId" if version == 2 else "id"
    async with Engine(store, agents=[agents.remember, agents.echo]) as engine, client_of(engine) as (client, _):
        await client.initialize(version, **(ME if version == 2 else {}))
        told = await client.ask("session/new", {"cwd": "/tmp", "mcpServers": []})
        names = [option[name] for option in told["configOptions"]]
        assert {"agent", "tone"} <= set(names)
        value: Message = {"configId": "tone", "value": "warm", **({"type": "id"} if version == 2 else {})}
        told = await client.ask("session/set_config_option", {"sessionId": told["sessionId"], **value})
        assert [option[name] for option in told["configOptions"]] == names
        engine.agents.add(agents.asker)
        news = await client.update("config_option_update")
        assert [option[name] for option in news["configOptions"]] == names
        values = {option[name]: option["currentValue"] for option in news["configOptions"]}
        assert values["tone"] == "warm", "what was chosen stays chosen"


async def test_pages_of_the_list_end_and_cursors_need_no_understanding(store: Path) -> None:
    async with in_process(store, agents.echo) as client:
        await client.initialize()
        assert await client.ask("session/list") == {"sessions": []}, "no match is an empty list, without a cursor"
        for _ in range(51):
            await client.new_session("/here")
        first = await client.ask("session/list", {"cwd": "/here"})
        assert first["nextCursor"]
        last = await client.ask("session/list", {"cwd": "/here", "cursor": first["nextCursor"]})
        assert "nextCursor" not in last
        assert len({s["sessionId"] for s in first["sessions"] + last["sessions"]}) == 51
        assert (await client.ask("session/list", {"cwd": "/there"}))["sessions"] == []
        assert all(s["cwd"] == "/here" for s in first["sessions"])


# -- several clients ------------------------------------------------------------------------------------------


async def test_two_clients_watch_one_session_and_the_first_answer_counts(store: Path) -> None:
    async with (
        Engine(store, agents=[agents.careful]) as engine,
        client_of(engine) as (one, _),
        client_of(engine) as (two, _),
    ):
        session = await opened(one)
        turn = await one.start_prompt(session, "it")
        first = await one.request("session/request_permission")
        await two.initialize()
        await two.ask("session/load", {"sessionId": session, "cwd": "/tmp", "mcpServers": []})
        second = await two.request("session/request_permission")
        await two.respond(second, selected("yes"))
        back = await one.wait_for(lambda m: m.get("method") == "$/cancel_request")
        assert back["params"] == {"requestId": first["id"]}
        assert (await one.answer(turn))["result"]["stopReason"] == "end_turn"
        await two.update("agent_message_chunk")
        assert one.text(session) == two.text(session) == "done"


async def test_the_files_of_a_turn_are_those_of_the_client_that_prompts(store: Path) -> None:
    able = {"clientCapabilities": {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": False}}

    @il.agent
    async def reads(text: str, ctx: il.Context[Any, Any]) -> str:
        return await ctx.editor.read("/a") if ctx.editor is not None else "no editor"

    async with Engine(store, agents=[reads]) as engine, client_of(engine) as (one, _):
        one.on("fs/read_text_file", lambda _: {"content": "of the first"})
        await one.initialize(**able)
        session = await one.new_session()
        async with client_of(engine) as (two, _):
            two.on("fs/read_text_file", lambda _: {"content": "of the second"})
            await two.initialize(**able)
            await two.ask("session/load", {"sessionId": session, "cwd": "/tmp", "mcpServers": []})
            await two.prompt(session, "go")
            assert two.text(session) == "of the second"
            await one.prompt(session, "go")
            assert one.text(session).endswith("of the first")
            await two.prompt(session, "go")
        before = len(one.text(session))
        await one.prompt(session, "go")  # the second has left
        assert one.text(session)[before:] == "of the first"


async def test_a_client_that_comes_back_finds_its_turn_running_and_sees_the_rest(store: Path) -> None:
    async with Engine(store, agents=[agents.listens]) as engine:
        async with client_of(engine) as (client, _):
            session = await opened(client)
            await client.start_prompt(session, "go")
            await client.update("session_info_update")
        async with client_of(engine) as (client, _):
            await client.initialize()
            await client.ask("session/load", {"sessionId": session, "cwd": "/tmp", "mcpServers": []})
            assert client.text(session, "user_message_chunk") == "go"
            steer = {"sessionId": session, "prompt": [{"type": "text", "text": "the rest"}]}
            assert await client.ask("_session/steering", steer) == {"outcome": "injected"}
            await client.update("agent_message_chunk", lambda u: u["content"]["text"] == "heard the rest")


# -- starting over --------------------------------------------------------------------------------------------

_entries = 0


@il.agent(asks=[il.Confirm])
async def forgetful(text: str, ctx: il.Context[Any, Any]) -> AsyncIterator[str]:
    """Says something else each time that it is entered."""
    global _entries
    _entries += 1
    yield f"entry {_entries} "
    await ctx.ask(il.Confirm(message="Go on?"))
    yield "end"


@pytest.mark.parametrize("version", [1, 2])
async def test_an_agent_that_starts_over_replaces_what_it_said(store: Path, version: int) -> None:
    async with Engine(store, agents=[forgetful], settings=QUICK) as engine, client_of(engine) as (client, _):
        session = await opened(client, version)
        await client.start_prompt(session, "go")
        said = await client.update("agent_message_chunk")
        asked = await client.request("session/request_permission")
        (question,) = await engine.questions.open()
        while (await engine.runs.get(question.run)).status is not il.Status.WAITING:
            await asyncio.sleep(0.01)
        await client.respond(asked, selected("yes"))
        await engine.runs.wait(question.run, timeout=20)
        assert await bodies(engine, question.run, RunRestarted), "the agent has started over"
        if version == 2:
            await client.update("state_update", lambda u: u["state"] == "idle")
            replaced = await client.update("agent_message")
            assert replaced["messageId"] == said["messageId"], "the same message, with other content"
            pieces = [u for u in client.updates(session) if u["sessionUpdate"].startswith("agent_message")]
            after = pieces[pieces.index(replaced) :]
            text = "".join(b["text"] for u in after for b in _blocks(u))
        else:
            await client.wait_for(lambda m: "stopReason" in m.get("result", {}))
            why = await client.update("agent_thought_chunk")
            assert "started over" in why["content"]["text"]
            fresh = [
                u for u in client.updates(session)
                if u["sessionUpdate"] == "agent_message_chunk" and u["messageId"] != said["messageId"]
            ]  # fmt: skip
            assert len({u["messageId"] for u in fresh}) == 1
            text = "".join(u["content"]["text"] for u in fresh)
        assert text == (await engine.runs.get(question.run)).output["text"]


def _blocks(update: Message) -> list[Message]:
    content = update["content"]
    return content if isinstance(content, list) else [content]


# -- version 2 ------------------------------------------------------------------------------------------------


async def test_the_end_of_a_turn_is_told_once_and_last(store: Path) -> None:
    async with in_process(store, agents.show) as client:
        session = await opened(client, 2)
        await client.prompt(session, "go")
        await client.update("state_update", lambda u: u["state"] == "idle")
        await client.ask("session/list")
        updates = client.updates(session)
        assert [u["state"] for u in updates if u["sessionUpdate"] == "state_update"] == ["running", "idle"]
        assert updates[-1]["sessionUpdate"] == "state_update"
        assert updates[-1]["stopReason"] == "end_turn"


async def test_every_message_of_version_2_has_an_id_and_one_version_holds_for_a_connection(store: Path) -> None:
    async with in_process(store, agents.show) as client:
        session = await opened(client, 2)
        with pytest.raises(Refused):
            await client.initialize(1)
        await client.prompt(session, "go")
        await client.update("state_update", lambda u: u["state"] == "idle")
        spoken = [u for u in client.updates() if "message" in u["sessionUpdate"] or "thought" in u["sessionUpdate"]]
        assert spoken
        assert all(isinstance(u["messageId"], str) and u["messageId"] for u in spoken)


async def test_batches_are_sent_to_a_client_of_version_2_alone_and_only_when_asked_for(store: Path) -> None:
    news = {"sessionId": "s", "update": {"sessionUpdate": "session_info_update", "title": "x"}}
    for version in (1, 2):
        async with Engine(store, agents=[agents.show]) as engine, client_of(engine) as (client, connection):
            session = await opened(client, version)
            await client.call("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "go"}]})
            await client.update("agent_message_chunk", lambda u: u["content"].get("text") == "Shown.")
            assert not any(isinstance(frame, list) for frame in client.frames), "never by itself"
            wanted = [("session/update", news, False), ("session/update", news, False)]
            if version == 1:
                with pytest.raises(il.InterlinguaError, match="version 2"):
                    await connection.batch(wanted)
                await client.ask("session/list")
                assert not any(isinstance(frame, list) for frame in client.frames)
            else:
                assert await connection.batch(wanted) == []
                assert len(await client.frame(lambda frame: isinstance(frame, list))) == 2


# -- the process ----------------------------------------------------------------------------------------------

WORDY = """
import interlingua as il

@il.agent
async def wordy(text: str):
    for number in range(400):
        yield f"{number:08d}" + "x" * 10_000 + "\\n"
"""


async def test_a_stdout_that_does_not_block_loses_nothing(tmp_path: Path) -> None:
    """Some clients leave the pipe non-blocking: a plain write fails with EAGAIN as soon as it is full."""
    (tmp_path / "agents.py").write_text(WORDY)
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETFL, fcntl.fcntl(writes, fcntl.F_GETFL) | os.O_NONBLOCK)
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--store", str(tmp_path / "s.db"), str(tmp_path / "agents.py"),
        stdin=asyncio.subprocess.PIPE, stdout=writes, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    os.close(writes)
    assert process.stdin is not None
    assert process.stderr is not None
    rest = b""

    def until(id_: int) -> list[Any]:
        """Read, slowly, up to an answer."""
        nonlocal rest
        found: list[Any] = []
        while True:
            *lines, rest = rest.split(b"\n")
            for place, line in enumerate(lines):
                message = json.loads(line)
                check_frame(message)
                found.append(message)
                if message.get("id") == id_:
                    rest = b"\n".join([*lines[place + 1 :], rest])
                    return found
            data = os.read(reads, 5000)
            assert data, "it ended"
            rest += data

    async def ask(id_: int, method: str, params: Any) -> list[Any]:
        assert process.stdin is not None
        process.stdin.write(
            json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params}).encode() + b"\n"
        )
        async with asyncio.timeout(PATIENCE):
            return await asyncio.to_thread(until, id_)

    try:
        await ask(0, "initialize", {"protocolVersion": 1})
        made = await ask(1, "session/new", {"cwd": "/tmp", "mcpServers": []})
        session = made[-1]["result"]["sessionId"]
        came = await ask(2, "session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "go"}]})
        text = "".join(
            m["params"]["update"]["content"]["text"] for m in came
            if is_update(m, "agent_message_chunk")
        )  # fmt: skip
        assert [line[:8] for line in text.split("\n")[:-1]] == [f"{n:08d}" for n in range(400)]
        process.stdin.close()
        assert b"Traceback" not in await process.stderr.read()
        assert await process.wait() == 0
    finally:
        os.close(reads)
        if process.returncode is None:
            process.kill()
            await process.wait()


# -- odd answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        {"outcome": "selected", "optionId": "yes"},
        {"outcome": {"outcome": "allowed"}},
        {"outcome": {"outcome": "selected"}},
        {"outcome": {"outcome": "selected", "optionId": None}},
        {"outcome": {"outcome": "SELECTED", "optionId": "yes"}},
        {"outcome": {"optionId": "yes"}},
        "yes",
        True,
        [],
    ],
)
async def test_nothing_but_an_offered_option_that_was_selected_is_an_approval(store: Path, answer: Any) -> None:
    async with in_process(store, agents.careful) as client:
        session = await opened(client)
        client.on("session/request_permission", lambda _: answer)
        turn = await client.start_prompt(session, "it")
        ended = await client.answer(turn)
        assert ended["result"]["stopReason"] in ("end_turn", "cancelled")
        assert "done" not in client.text(session)


async def test_an_error_of_a_run_tells_its_details_and_no_stop_reason_is_invented(store: Path) -> None:
    @il.agent
    async def odd(text: str) -> str:
        raise KeyError("secret internals")

    async with in_process(store, odd) as client:
        session = await opened(client)
        answer = await client.call("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "x"}]})
        assert "result" not in answer, "there is no stop reason for a failure in version 1"
        data = answer["error"]["data"]
        assert data["code"]
        assert data["transient"] is False
        assert data["run"]


# -- forms ----------------------------------------------------------------------------------------------------


class Name(msgspec.Struct):
    name: str


class WhoAreYou(il.Question[Name]):
    """Who are you?"""


async def test_a_form_that_another_door_fills_in_is_taken_back(store: Path) -> None:
    @il.agent(asks=[WhoAreYou])
    async def polite(text: str, ctx: il.Context[Any, Any]) -> str:
        return f"Hello {(await ctx.ask(WhoAreYou())).name}"

    async with Engine(store, agents=[polite]) as engine, client_of(engine) as (client, _):
        await client.initialize(clientCapabilities={"elicitation": {"form": {}}})
        session = await client.new_session()
        turn = await client.start_prompt(session, "hi")
        asked = await client.request("elicitation/create")
        (question,) = await engine.questions.open()
        await engine.questions.answer(question.id, {"name": "Ada"})
        back = await client.wait_for(lambda m: m.get("method") == "$/cancel_request")
        assert back["params"] == {"requestId": asked["id"]}
        assert (await client.answer(turn))["result"]["stopReason"] == "end_turn"
        assert client.text(session) == "Hello Ada"


# -- the connection -------------------------------------------------------------------------------------------


async def test_what_may_be_said_depends_on_what_was_said_before(store: Path) -> None:
    """Each message is judged by the state that those before it have brought about, in the order in which they came."""
    ours = Queues()
    async with Engine(store, agents=[agents.echo]) as engine:
        from .test_contract_transports import served

        def ask(id_: int, method: str, **params: Any) -> Message:
            return {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}

        async with served(engine, ours.turned()):
            for message in (
                ask(1, "session/list"),
                ask(2, "initialize", protocolVersion=2),
                ask(3, "session/list"),
                ask(4, "session/load", sessionId="x", cwd="/", mcpServers=[]),
                ask(5, "initialize", protocolVersion=1),
            ):
                ours.say(message)
            answers = [await ours.next() for _ in range(5)]
            told = {answer["id"]: answer.get("error", {}).get("code") for answer in answers}
            assert told == {1: -32600, 2: None, 3: None, 4: -32601, 5: -32600}
            await ours.close()

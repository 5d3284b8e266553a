"""The door as users of the published SDKs see it, as clients of a process of theirs, over HTTP and over WebSocket:
PyPI `agent-client-protocol` 0.12.1, and npm `@agentclientprotocol/sdk` 2.4.0 in versions 1 and 2.

Each client is the SDK's own, in a process of its own: see `editor_client.py` and `editor_client.mjs`.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.clients.editor import Message, Refused, selected

from .editor_peers import Peer, Sdk, Sdks, Way, serve, stdio_command

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]  # the first test installs the SDKs

Connect = Callable[[], contextlib.AbstractAsyncContextManager[Peer]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`interlingua serve`, once for all tests."""
    with serve(tmp_path_factory.mktemp("served")) as address:
        yield address


@pytest.fixture(params=["pypi", "npm", "npm-v2"])
def sdk(request: pytest.FixtureRequest) -> Sdk:
    chosen: Sdk = request.param
    return chosen


@pytest.fixture(params=["stdio", "http", "ws"])
def connect(request: pytest.FixtureRequest, sdk: Sdk, tmp_path: Path) -> Connect:
    """Connects a client; over stdio each has a process of its own, and all have one store."""
    way: Way = request.param
    sdks = Sdks(request)
    if way == "stdio":
        return lambda: sdks.client(sdk, way, *stdio_command(tmp_path / "store.db"))
    address: str = request.getfixturevalue("server") + "/editor"
    if way == "ws":
        address = address.replace("http://", "ws://")
    return lambda: sdks.client(sdk, way, address)


# -- turns ----------------------------------------------------------------------------------------------------


async def test_a_prompt_is_answered_in_pieces(connect: Connect) -> None:
    async with connect() as peer:
        told = await peer.begin()
        assert told["protocolVersion"] == peer.version
        assert told["info" if peer.version == 2 else "agentInfo"]["name"] == "interlingua"
        session = await peer.session("echo")
        assert (await peer.turn(session, "one two three"))["stopReason"] == "end_turn"
        assert peer.text(session) == "one two three "
        titles = [u["title"] for u in peer.updates(session) if u["sessionUpdate"] == "session_info_update"]
        assert titles[:1] == ["one two three"]
        long = "wörd 🙂 " * 40_000
        peer.forget()
        assert (await peer.turn(session, long))["stopReason"] == "end_turn"
        assert peer.text(session) == long
        if peer.version == 2:
            states = [u["state"] for u in peer.updates(session) if u["sessionUpdate"] == "state_update"]
            assert states == ["running", "idle"]


async def test_thoughts_plans_and_tool_calls_are_shown(connect: Connect) -> None:
    async with connect() as peer:
        await peer.begin()
        session = await peer.session("show")
        assert (await peer.turn(session, "all"))["stopReason"] == "end_turn"
        assert peer.text(session, "agent_thought_chunk") == "Let me think.Warning: Something is odd."
        assert "Shown." in peer.text(session)
        assert "An aside." in peer.text(session)
        updates = {update["sessionUpdate"]: update for update in peer.updates(session)}
        assert (updates["usage_update"]["used"], updates["usage_update"]["size"]) == (10, 100)
        first, last = (call for call in peer.tool_calls() if call["toolCallId"] == "call-1")
        assert (first["title"], first["kind"], first["status"]) == ("Edit", "edit", "in_progress")
        assert first["rawInput"] == {"path": "/a.py"}
        assert (last["status"], last["rawOutput"], last["locations"]) == (
            "completed", {"ok": True}, [{"path": "/a.py", "line": 3}],
        )  # fmt: skip
        text, diff = last["content"]
        assert text["content"]["text"] == "done"
        if peer.version == 2:
            entries = updates["plan_update"]["plan"]["entries"]
            assert diff["changes"] == [{"operation": "modify", "path": "/a.py"}]
            assert "-old\n+new\n" in diff["patch"]["text"]
        else:
            entries = updates["plan"]["entries"]
            assert (diff["path"], diff["oldText"], diff["newText"]) == ("/a.py", "old\n", "new\n")
        assert [(e["content"], e["priority"]) for e in entries] == [
            ("look", "medium"), ("leap", "high"), ("rest", "medium"),
        ]  # fmt: skip


async def test_every_kind_of_content_reaches_the_agent(connect: Connect) -> None:
    image = base64.b64encode(b"not really").decode()
    async with connect() as peer:
        await peer.begin()
        session = await peer.session("parts")
        await peer.turn(
            session,
            "look",
            {"type": "image", "data": image, "mimeType": "image/png"},
            {"type": "audio", "data": image, "mimeType": "audio/wav"},
            {"type": "resource_link", "name": "a.py", "uri": "file:///a.py"},
            {"type": "resource", "resource": {"uri": "file:///b.py", "text": "print()", "mimeType": "text/x-python"}},
        )
        told = peer.text(session)
        for piece in ("look", image, "image/png", "audio/wav", "file:///a.py", "file:///b.py", "print()"):
            assert piece in told, piece


async def test_a_turn_that_is_cancelled_ends_as_cancelled(connect: Connect) -> None:
    async with connect() as peer:
        await peer.begin()
        session = await peer.session("slow")
        ended = await peer.turn_begun(session, "go")
        await peer.update("agent_message_chunk")
        await peer.notify("session/cancel", {"sessionId": session})
        assert (await ended())["stopReason"] == "cancelled"
        assert peer.text(session) == "begun "


async def test_an_agent_that_fails_says_so_with_its_own_code(connect: Connect) -> None:
    async with connect() as peer:
        await peer.begin()
        session = await peer.session("breaks")
        ended = await peer.turn(session, "go")
        assert ended["stopReason"] == "error"
        assert "the tool is broken" in ended["error"]["message"]
        assert ended["error"]["data"]["code"] == "broken"
        assert ended["error"]["data"]["transient"] is True


async def test_what_cannot_be_done_is_refused_and_the_connection_goes_on(connect: Connect) -> None:
    async with connect() as peer:
        await peer.begin()
        with pytest.raises(Refused, match="not open here") as unknown:
            await peer.prompt("nowhere", "hello")
        assert unknown.value.code == -32002
        session = await peer.session("remember")
        with pytest.raises(Refused, match="there is no option 'colour'") as wrong:
            await peer.set_option(session, "colour", "red")
        assert wrong.value.code == -32602
        with pytest.raises(Refused, match="absolute"):
            await peer.ask("session/new", {"cwd": "relative", "mcpServers": []})
        with pytest.raises(Refused) as extension:
            await peer.ask("_nobody/knows", {"a": 1})
        assert extension.value.code == -32601
        assert (await peer.turn(session, "still here"))["stopReason"] == "end_turn"


# -- questions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "said"), [("allow_once", "done"), ("reject_once", "left alone")])
async def test_a_permission_is_asked_and_its_answer_counts(connect: Connect, kind: str, said: str) -> None:
    async with connect() as peer:
        await peer.begin()
        session = await peer.session("careful")
        ended = await peer.turn_begun(session, "it")
        request = await peer.request("session/request_permission")
        params = request["params"]
        title = params["title"] if peer.version == 2 else params["toolCall"]["title"]
        assert title == "Do it?"
        option = next(option["optionId"] for option in params["options"] if option["kind"] == kind)
        await peer.respond(request, selected(option))
        assert (await ended())["stopReason"] == "end_turn"
        assert peer.text(session) == said
        if peer.version == 2:
            states = [u["state"] for u in peer.updates(session) if u["sessionUpdate"] == "state_update"]
            assert states == ["running", "requires_action", "running", "idle"]


async def test_a_cancel_closes_an_open_permission(connect: Connect) -> None:
    async with connect() as peer:
        await peer.begin()
        session = await peer.session("careful")
        ended = await peer.turn_begun(session, "it")
        request = await peer.request("session/request_permission")
        await peer.notify("session/cancel", {"sessionId": session})
        await peer.respond(request, {"outcome": {"outcome": "cancelled"}})
        assert (await ended())["stopReason"] == "cancelled"
        assert peer.text(session) == ""


async def test_a_permission_that_is_not_needed_any_more_is_taken_back(connect: Connect, sdk: Sdk) -> None:
    async with connect() as peer:
        await peer.begin()
        session = await peer.session("careful")
        ended = await peer.turn_begun(session, "it")
        request = await peer.request("session/request_permission")
        await peer.notify("session/cancel", {"sessionId": session})
        assert (await ended())["stopReason"] == "cancelled", "whether or not the client answers what it was asked"
        if sdk != "pypi":  # that one does not know of it
            taken_back = await peer.wait_for(lambda message: message.get("method") == "$/cancel_request")
            assert taken_back["params"] == {"requestId": request["id"]}
        await peer.respond(request, selected(request["params"]["options"][0]["optionId"]))
        assert (await peer.turn(await peer.session("echo"), "still here"))["stopReason"] == "end_turn"
        assert "done" not in peer.text(session), "an answer that comes too late allows nothing"


async def test_a_form_is_filled_in(connect: Connect) -> None:
    async with connect() as peer:
        await peer.begin()
        session = await peer.session("shipper")
        ended = await peer.turn_begun(session, "a parcel")
        request = await peer.request("elicitation/create")
        params = request["params"]
        assert (params["mode"], params["sessionId"]) == ("form", session)
        assert params["message"] == "Where shall it go?"
        assert set(params["requestedSchema"]["properties"]) == {"street", "number", "country"}
        assert params["requestedSchema"]["properties"]["number"]["type"] == "integer"
        content = {"street": "Via Roma", "number": 7, "country": "fr"}
        await peer.respond(request, {"action": "accept", "content": content})
        assert (await ended())["stopReason"] == "end_turn"
        assert peer.text(session) == "Via Roma 7 fr"
        declined = await peer.turn_begun(session, "another")
        second = await peer.request("elicitation/create", after=peer.messages.index(request) + 1)
        await peer.respond(second, {"action": "decline"})
        assert (await declined())["stopReason"] == "cancelled"


async def test_a_form_for_more_than_it_can_show_is_filled_in_with_json(connect: Connect) -> None:
    async with connect() as peer:
        await peer.begin()
        session = await peer.session("deep")
        ended = await peer.turn_begun(session, "way")
        request = await peer.request("elicitation/create")
        fields = request["params"]["requestedSchema"]["properties"]
        assert {name: field["type"] for name, field in fields.items()} == dict.fromkeys(
            ("city", "stops", "notes"), "string"
        )
        content = {"city": "Roma", "stops": '[{"street": "Via Roma", "number": 7}]'}
        await peer.respond(request, {"action": "accept", "content": content})
        assert (await ended())["stopReason"] == "end_turn"
        assert peer.text(session) == "Roma ['Via Roma'] {}"


# -- sessions -------------------------------------------------------------------------------------------------


async def replayed(peer: Peer, session: str) -> Message:
    """Open a session again, with all that was said in it."""
    params: Message = {"sessionId": session, "cwd": "/tmp", "mcpServers": []}
    if peer.version == 2:
        told: Message = await peer.ask("session/resume", {**params, "replayFrom": {"type": "start"}})
    else:
        told = await peer.ask("session/load", params)
    return told


def users(peer: Peer) -> list[str]:
    if peer.version == 2:
        messages = [u["content"] for u in peer.updates() if u["sessionUpdate"] == "user_message"]
        return ["".join(block["text"] for block in blocks) for blocks in messages]
    return [u["content"]["text"] for u in peer.updates() if u["sessionUpdate"] == "user_message_chunk"]


async def test_a_session_is_loaded_by_another_client_and_goes_on(connect: Connect) -> None:
    async with connect() as peer:
        await peer.begin()
        session = await peer.session("remember")
        await peer.turn(session, "first")
        await peer.turn(session, "second")
    async with connect() as peer:
        await peer.begin()
        told = await replayed(peer, session)
        assert users(peer) == ["first", "second"]
        assert peer.text(session) == "1 in a dry tone2 in a dry tone"
        assert told["configOptions"], "options are told again"
        peer.forget()
        await peer.turn(session, "third")
        assert peer.text(session) == "3 in a dry tone"


async def test_a_question_that_was_open_is_asked_again(connect: Connect) -> None:
    async with connect() as peer:
        await peer.begin()
        session = await peer.session("careful")
        await peer.turn_begun(session, "it")
        await peer.request("session/request_permission")
    async with connect() as peer:
        await peer.begin()
        await replayed(peer, session)
        request = await peer.request("session/request_permission")
        option = next(o["optionId"] for o in request["params"]["options"] if o["kind"] == "allow_once")
        await peer.respond(request, selected(option))
        await peer.update("agent_message_chunk", lambda update: update["content"]["text"] == "done")


async def test_resume_does_not_replay(connect: Connect) -> None:
    async with connect() as peer:
        await peer.begin()
        session = await peer.session("remember")
        await peer.turn(session, "first")
        await peer.ask("session/close", {"sessionId": session})
        with pytest.raises(Refused, match="not open here"):
            await peer.prompt(session, "closed")
        peer.forget()
        await peer.ask("session/resume", {"sessionId": session, "cwd": "/tmp", "mcpServers": []})
        await peer.turn(session, "second")
        assert peer.text(session) == "2 in a dry tone"
        assert users(peer) in ([], ["second"]), "version 2 tells the prompt that was accepted, and nothing before"


async def test_sessions_are_listed_and_deleted(connect: Connect, sdk: Sdk, tmp_path: Path) -> None:
    where = str(tmp_path)
    async with connect() as peer:
        await peer.begin()
        first, second = await peer.session("remember", where), await peer.session("echo", where)
        await peer.turn(first, "a title")
        found = (await peer.ask("session/list", {"cwd": where}))["sessions"]
        assert {info["sessionId"]: info.get("title") for info in found} == {first: "a title", second: None}
        assert {info["cwd"] for info in found} == {where}
        if sdk == "pypi":
            return  # this SDK has no session/delete
        await peer.ask("session/delete", {"sessionId": first})
        found = (await peer.ask("session/list", {"cwd": where}))["sessions"]
        assert [info["sessionId"] for info in found] == [second]
        await peer.ask("session/delete", {"sessionId": first})  # once more is no error


async def test_options_are_set(connect: Connect) -> None:
    async with connect() as peer:
        await peer.begin()
        session = await peer.session("remember")
        assert (await peer.set_option(session, "tone", "warm"))["tone"] == "warm"
        assert (await peer.set_option(session, "loud", True))["loud"] is True
        await peer.turn(session, "hello")
        assert peer.text(session) == "1 IN A WARM TONE"


async def test_skills_are_commands(connect: Connect) -> None:
    async with connect() as peer:
        await peer.begin()
        await peer.session("remember")
        update = await peer.update("available_commands_update")
        (command,) = update["availableCommands"]
        assert (command["name"], command["description"]) == ("count", "Counts what was said")
        assert command["input"]["hint"] == "count to ten"


# -- what only version 1 has ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sdk", ["pypi", "npm"], indirect=True)
async def test_a_mode_is_an_agent(connect: Connect) -> None:
    async with connect() as peer:
        await peer.begin()
        made = await peer.ask("session/new", {"cwd": "/tmp", "mcpServers": []})
        session = made["sessionId"]
        mode = next(mode["id"] for mode in made["modes"]["availableModes"] if mode["name"] == "remember")
        assert made["modes"]["currentModeId"] != mode
        await peer.ask("session/set_mode", {"sessionId": session, "modeId": mode})
        await peer.update("config_option_update", lambda u: u["configOptions"][0]["currentValue"] == mode)
        await peer.turn(session, "hello")
        assert peer.text(session) == "1 in a dry tone"


@pytest.mark.parametrize("sdk", ["pypi", "npm"], indirect=True)
async def test_files_and_terminals_of_the_client_are_used(connect: Connect) -> None:
    seen: list[tuple[str, Message]] = []

    def answers(method: str, result: Any) -> Callable[[Message], Any]:
        def answer(params: Message) -> Any:
            seen.append((method, params))
            return result

        return answer

    async with connect() as peer:
        await peer.begin()
        for method, result in {
            "fs/read_text_file": {"content": "second line\n"},
            "fs/write_text_file": {},
            "terminal/create": {"terminalId": "term-1"},
            "terminal/wait_for_exit": {"exitCode": 0},
            "terminal/output": {"output": "a file", "truncated": False, "exitStatus": {"exitCode": 0}},
            "terminal/release": {},
        }.items():
            peer.on(method, answers(method, result))
        server = {"name": "tools", "command": "/bin/tools", "args": [], "env": [{"name": "A", "value": "1"}]}
        session = await peer.session("files", "/project", mcpServers=[server])
        assert (await peer.turn(session, "go"))["stopReason"] == "end_turn"
        assert peer.text(session) == "second line 0 a file /project 1"
        told = dict(seen)
        assert told["fs/read_text_file"] == {"sessionId": session, "path": "/project/notes.txt", "line": 2, "limit": 1}
        assert told["fs/write_text_file"] == {
            "sessionId": session, "path": "/project/out.txt", "content": "SECOND LINE\n",
        }  # fmt: skip
        create = told["terminal/create"]
        assert (create["command"], create["args"], create["cwd"]) == ("ls", ["-l"], "/project")
        assert (create["env"], create["outputByteLimit"]) == ([{"name": "A", "value": "1"}], 100)
        assert told["terminal/release"] == {"sessionId": session, "terminalId": "term-1"}


@pytest.mark.parametrize("sdk", ["pypi", "npm"], indirect=True)
async def test_an_error_of_the_client_fails_the_run_and_nothing_else(connect: Connect) -> None:
    async with connect() as peer:
        await peer.begin()
        session = await peer.session("files", "/project")
        ended = await peer.turn_begun(session, "go")
        request = await peer.request("fs/read_text_file")
        error = {"code": -32002, "message": "no such file"}
        await peer.line({"jsonrpc": "2.0", "id": request["id"], "error": error})
        told = await ended()
        assert told["stopReason"] == "error"
        assert "no such file" in told["error"]["message"]
        other = await peer.session("echo")
        assert (await peer.turn(other, "fine"))["stopReason"] == "end_turn"


# -- several at once ------------------------------------------------------------------------------------------


async def test_many_sessions_of_one_connection_run_at_once(connect: Connect) -> None:
    async with connect() as peer:
        await peer.begin()
        sessions = [await peer.session("careful") for _ in range(4)]
        endings = [await peer.turn_begun(session, str(number)) for number, session in enumerate(sessions)]
        requests: dict[str, Message] = {}
        after = 0
        while len(requests) < len(sessions):
            request = await peer.request("session/request_permission", after=after)
            after = peer.messages.index(request) + 1
            requests[request["params"]["sessionId"]] = request
        for session in reversed(sessions):
            request = requests[session]
            option = next(o["optionId"] for o in request["params"]["options"] if o["kind"] == "allow_once")
            await peer.respond(request, selected(option))
        for session, ended in zip(sessions, endings, strict=True):
            assert (await ended())["stopReason"] == "end_turn"
            assert peer.text(session) == "done"


NOISY = """
import logging, sys
import interlingua as il

@il.agent
async def noisy(text: str):
    for _ in range(200):
        print("x" * 1000)
        logging.warning("y" * 1000)
        sys.stderr.write("z" * 1000 + "\\n")
    yield "done"
"""


async def test_an_agent_that_prints_much_does_not_wait_for_a_client_that_does_not_read_it(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The PyPI SDK gives each agent a pipe for its stderr, and never reads it."""
    agents = tmp_path / "noisy.py"
    agents.write_text(NOISY)
    command = stdio_command(tmp_path / "store.db", str(agents))
    unread = {"STDERR_UNREAD": "1"}
    async with Sdks(request).client("pypi", "stdio", *command, env=unread, quiet=False) as peer:
        await peer.begin()
        session = await peer.new_session()
        assert (await peer.turn(session, "go"))["stopReason"] == "end_turn"
        assert peer.text(session) == "done"

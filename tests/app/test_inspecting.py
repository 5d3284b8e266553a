"""Which protocol is spoken somewhere is told, for our own servers and for strangers that are taken for one of them."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import interlingua as il
from interlingua.detection.detect import Spoken, addressed, detected, inspect
from interlingua.model.errors import Unavailable
from interlingua.model.filters import RunFilter, ThreadFilter
from interlingua.protocols.targets import parse
from interlingua.server.app import ServeSettings, serving
from interlingua.server.http_server import HttpServer, listen
from interlingua.server.loading.target import load_all
from tests.kit import warm_python

ECHO = str(Path(__file__).parents[2] / "examples" / "echo.py")


@il.agent
async def echo(text: str) -> str:
    """Repeats what it hears."""
    return text


@il.agent
async def shout(text: str) -> str:
    """Repeats it louder."""
    return text.upper()


@contextlib.asynccontextmanager
async def served(*routes: tuple[str, str, Callable[[Request], Any]]) -> AsyncIterator[str]:
    """A server of somebody else."""

    def endpoint(answer: Callable[[Request], Any]) -> Any:
        async def call(request: Request) -> Response:
            request.state.body = await request.body()
            told = answer(request)
            return told if isinstance(told, Response) else JSONResponse(told)

        return call

    app = Starlette(routes=[Route(path, endpoint(answer), methods=[method]) for method, path, answer in routes])
    server = HttpServer(app, listen("127.0.0.1", 0))
    await server.start()
    try:
        yield server.address
    finally:
        await server.close()


async def looked(text: str, headers: dict[str, str] | None = None) -> dict[str, Spoken]:
    found, _ = await inspect(text, headers)
    return {spoken.protocol: spoken for spoken in found}


async def test_a_server_of_ours_speaks_all_five_and_every_target_that_is_told_works(tmp_path: Path) -> None:
    async with serving(tmp_path / "s.db", [echo, shout], ServeSettings(port=0)) as server:
        found = await looked(server.address)
        assert sorted(found) == ["cap", "connect", "editor", "mcp", "peer"]
        for protocol, spoken in found.items():
            assert not spoken.wrong
            assert spoken.target is not None
            assert spoken.target.startswith(f"{protocol}+http://")
            assert {agent.name for agent in spoken.agents} == {"echo", "shout"}
            assert {agent.description for agent in spoken.agents} == {"Repeats what it hears.", "Repeats it louder."}
            assert {agent.card.key for agent in await load_all(parse(spoken.target))} == {"echo@0.1.0", "shout@0.1.0"}
        assert found["mcp"].protocol_versions == ["2025-11-25"]
        assert found["editor"].protocol_versions == ["1"]
        assert found["peer"].protocol_versions == ["1.0"]
        assert "agents.listChanged" in found["mcp"].capabilities


async def test_looking_runs_nothing_and_leaves_nothing_there(tmp_path: Path) -> None:
    async with serving(tmp_path / "s.db", [echo, shout], ServeSettings(port=0)) as server:
        await looked(server.address)
        assert not await server.engine.runs.search(RunFilter())
        assert not await server.engine.threads.search(ThreadFilter())


@pytest.mark.parametrize("protocol", ["connect", "mcp", "peer", "editor", "cap"])
async def test_the_address_of_one_door_speaks_that_protocol_alone(tmp_path: Path, protocol: str) -> None:
    async with serving(tmp_path / "s.db", [echo], ServeSettings(port=0)) as server:
        assert list(await looked(f"{server.address}/{protocol}")) == [protocol]
        agents = await load_all(parse(f"{server.address}/{protocol}#echo"))
        assert [agent.card.name for agent in agents] == ["echo"]


@pytest.mark.parametrize("protocol", ["mcp", "editor", "cap", "peer"])
async def test_a_program_is_told_by_what_it_says_over_its_pipes(tmp_path: Path, protocol: str) -> None:
    words = f"stdio --as {protocol} {ECHO} --store {tmp_path / 's.db'}"
    command = f"env INTERLINGUA_PROJECT=far {warm_python.interlingua()} {words}"
    found = await looked(command)
    assert list(found) == [protocol]
    assert not found[protocol].wrong


async def test_a_node_is_told_by_its_link(tmp_path: Path) -> None:
    async with serving(tmp_path / "s.db", [echo], ServeSettings(port=0, listeners=True)) as server:
        link = next(word for note in server.notes for word in note.split() if word.startswith("acp://"))
        found = await looked(link)
    assert [agent.name for agent in found["peer"].agents] == ["echo"]


async def test_what_is_taken_for_one_of_the_five_is_told_by_its_name() -> None:
    card = {"name": "Clerk", "version": "1", "url": "http://x", "skills": [{"id": "file", "description": "Files."}]}
    for protocol, routes in {
        "a2a": [("GET", "/.well-known/agent-card.json", lambda _: card)],
        "beeai-rest": [("GET", "/agents", lambda _: {"agents": [{"name": "chat", "description": "Talks."}]})],
        "relay": [("GET", "/acp/myip", lambda _: {"ip": "127.0.0.1"})],
    }.items():
        async with served(*routes) as address:
            found = await looked(address)
            assert list(found) == [protocol]
            assert found[protocol].target is None
            assert found[protocol].notes
            with pytest.raises(Unavailable, match="speaks none of these protocols; it speaks"):
                await detected(address)


def _mcp(result: dict[str, Any], agents: Any = None) -> Callable[[Request], Any]:
    def answer(request: Request) -> Any:
        asked = json.loads(request.state.body)
        if "id" not in asked:
            return Response(status_code=202)
        told = {"initialize": result, "agents/list": agents}.get(asked["method"], {})
        return {"jsonrpc": "2.0", "id": asked["id"], "result": told}

    return answer


async def test_a_tool_server_is_told_from_one_with_agents() -> None:
    result = {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "t", "version": "1"},
    }
    async with served(("POST", "/", _mcp(result))) as address:
        found = await looked(address)
    assert list(found) == ["mcp-tools"]
    assert "each tool, and each prompt with arguments, is mounted as an agent" in found["mcp-tools"].notes[0]


async def test_what_is_seen_to_be_wrong_is_said() -> None:
    result = {"protocolVersion": 1, "capabilities": {"agents": {}}, "serverInfo": {"name": "t"}}
    listed = {"agents": [{"name": "a", "inputSchema": {}}, {"description": "who?"}]}
    async with served(("POST", "/", _mcp(result, listed))) as address:
        found = await looked(address)
    wrong = found["mcp"].wrong
    assert wrong[:2] == [
        "its initialize result has no protocolVersion that is a text",
        "it lists an agent without a name",
    ]
    assert any("outputSchema" in one and "[mcp.listing.agent-output-schema]" in one for one in wrong)


async def test_what_is_wrong_is_said_once_with_all_that_it_breaks() -> None:
    agents = [{"agent_id": "1", "metadata": {"ref": {"name": "echo", "version": "1"}, "description": "Repeats."}}]
    routes = [
        ("POST", "/agents/search", lambda _: agents),
        ("GET", "/agents/1/descriptor", lambda _: JSONResponse("not now", 500)),
    ]
    async with served(*routes) as address:
        wrong = (await looked(address))["connect"].wrong
    (about,) = [one for one in wrong if "/agents/1/descriptor" in one]
    assert "500" in about
    assert "connect.agents.descriptor" in about
    assert "connect.specs.input" in about


async def test_a_server_that_wants_a_key_is_told_with_what_to_do() -> None:
    def search(request: Request) -> Any:
        if request.headers.get("x-api-key") != "sesame":
            return JSONResponse("who are you?", 401)
        return [{"agent_id": "1", "metadata": {"ref": {"name": "echo"}, "description": "Repeats."}}]

    routes = [("POST", "/agents/search", search), ("GET", "/auth", lambda _: {"schemes": []})]
    async with served(*routes) as address:
        found = await looked(address)
        assert "--header" in found["connect"].notes[0]
        found = await looked(address, {"x-api-key": "sesame"})
        assert [agent.name for agent in found["connect"].agents] == ["echo"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"result": 3}', b'{"agents": {}}', b"\xff\xfe"])
async def test_garbage_is_no_protocol(body: bytes) -> None:
    every = [
        (method, "/{path:path}", lambda _: Response(body, media_type="application/json")) for method in ("GET", "POST")
    ]
    async with served(*every) as address:
        assert await looked(address) == {}
        with pytest.raises(Unavailable, match="speaks none of these protocols"):
            await detected(address)


async def test_an_address_where_nobody_is_says_so() -> None:
    with pytest.raises(Unavailable, match="nothing answers at"):
        await inspect("http://127.0.0.1:1")


async def test_a_page_for_people_is_no_protocol() -> None:
    async with served(("GET", "/", lambda _: PlainTextResponse("Welcome!"))) as address:
        assert await looked(address) == {}


async def test_a_program_that_frames_like_a_language_server_is_told_so() -> None:
    said = "print('Content-Length: 2', flush=True); input()"
    found, odd = await inspect(f'{sys.executable} -c "{said}"')
    assert not found
    assert "as language servers do" in odd[0]


async def test_a_program_that_cannot_be_started_says_so() -> None:
    with pytest.raises(Unavailable, match="cannot be started"):
        await inspect("no-such-program --at-all")


async def test_what_speaks_over_a_websocket_is_found_there(tmp_path: Path) -> None:
    async with serving(tmp_path / "store.db", [echo], ServeSettings(port=0)) as server:
        socket = server.address.replace("http", "ws")
        for address in (f"{socket}/editor", socket, f"editor+{socket}/editor"):
            ((spoken,), odd) = await inspect(address)
            assert (spoken.protocol, spoken.target, spoken.wrong) == ("editor", f"editor+{socket}/editor", [])
            assert odd == []
        ((spoken,), _) = await inspect(f"{socket}/connect")  # which has none
        assert spoken.protocol == "connect"
    with pytest.raises(Unavailable, match=f"nothing answers at {socket}"):
        await inspect(socket)


async def test_host_and_port_are_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path / "store.db", [echo], ServeSettings(port=0)) as server:
        found, _ = await inspect(server.address.removeprefix("http://") + "/mcp")
    assert [spoken.target for spoken in found] == [f"mcp+{server.address}/mcp"]
    for text in ("mcp:8000", "server.py", "./localhost:8000", "python server.py:80", "http://localhost:80"):
        assert addressed(text) == text
    assert addressed("[::1]:8000/mcp") == "http://[::1]:8000/mcp"
    program = tmp_path / "web:80"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert addressed("web:80") == "web:80"


async def test_a_name_that_is_no_program_may_be_that_of_a_host() -> None:
    with pytest.raises(Unavailable, match="if it is an address, write it as one: http://no-such-host"):
        await inspect("no-such-host")

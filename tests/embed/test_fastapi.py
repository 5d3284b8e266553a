"""A server inside a FastAPI app, below any prefix and behind any proxy, with the app's own login."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import httpx2
import pytest
import uvicorn
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount

import interlingua as il
from tests.control.agents import AGENTS
from tests.kit.engines import QUICK


def _server(store: Path, **options: Any) -> il.Server:
    return il.Server(*AGENTS, store=store, settings=_settings(), **options)


def _settings() -> Any:
    from interlingua.server.app import ServeSettings

    return ServeSettings(engine=QUICK)


@contextlib.asynccontextmanager
async def _up(app: Any, **options: Any) -> AsyncIterator[str]:
    """Serves an app by uvicorn, as its owner would. Yields the address."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_config=None, lifespan="on", **options)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listening]))
        try:
            async with asyncio.timeout(20):
                while not server.started:
                    assert not serving.done(), serving.exception()
                    await asyncio.sleep(0.005)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


async def test_a_fastapi_app_has_our_doors_below_a_prefix(store: Path) -> None:
    server = _server(store)
    app = FastAPI(lifespan=server.lifespan)
    app.mount("/agents", server.asgi)

    @app.get("/start")
    async def start(client: Annotated[il.Client, Depends(server.client)]) -> Any:
        return await client.run("echo", "from the app")

    async with _up(app) as address, httpx2.AsyncClient(base_url=address) as http:
        assert (await http.get("/start")).json() == {"text": "from the app "}
        body = {"agent_id": "echo", "input": {"text": "hello"}}
        answer = await http.post("/agents/connect/runs/wait", json=body)
        assert answer.json()["output"]["values"] == {"text": "hello "}
        async with il.Client(f"{address}/agents") as client:
            assert await client.run("echo", "hi", output=str) == "hi "
        async with il.Client(f"connect+{address}/agents/connect") as client:
            assert await client.run("echo", "mounted", output=str) == "mounted "
        document = (await http.get("/agents/api/v1/openapi.json")).json()
        assert document["servers"] == [{"url": "/agents/api/v1"}]


async def test_each_door_answers_at_depth_two_and_behind_a_root_path(store: Path) -> None:
    server = _server(store)
    app = Starlette(routes=[Mount("/one/two", app=server.asgi)], lifespan=server.lifespan)
    for options, prefix in (({}, ""), ({"root_path": "/proxied"}, "")):
        async with _up(app, **options) as address:
            for target in ("connect", "mcp", "editor", "peer", "cap"):
                async with il.Client(f"{target}+{address}{prefix}/one/two/{target}") as client:
                    names = [card.name for card in await client.agents()]
                    assert "echo" in names, (target, options)
                    if target != "cap":
                        assert (await client.run("echo", "x"))["text"].strip() == "x", (target, options)


async def test_one_door_alone_is_at_the_root_of_its_mount(store: Path) -> None:
    server = _server(store, doors=["mcp"])
    app = FastAPI(lifespan=server.lifespan)
    app.mount("/tools", server.door("mcp"))
    with pytest.raises(il.InterlinguaError, match="no door 'connect'"):
        server.door("connect")
    async with _up(app) as address, il.Client(f"mcp+{address}/tools") as client:
        assert await client.run("echo", "x", output=str) == "x "


async def test_before_its_lifespan_it_says_what_is_missing(store: Path) -> None:
    server = _server(store)
    app = FastAPI()
    app.mount("/agents", server.asgi)
    async with _up(app) as address, httpx2.AsyncClient(base_url=address) as http:
        answer = await http.get("/agents/connect/agents")
        assert answer.status_code == 503
        assert "FastAPI(lifespan=server.lifespan)" in answer.text
    with pytest.raises(il.InterlinguaError, match="lifespan"):
        server.owner_client()


async def test_the_login_of_the_app_decides_who_calls_and_what_they_see(store: Path) -> None:
    people = {"ada": il.Caller("ada", scopes=("do:run", "do:read")), "bob": il.Caller("bob", scopes=("do:read",))}

    async def login(request: HTTPConnection) -> il.Caller | None:
        return people.get(request.headers.get("x-user", ""))

    server = _server(store, auth=login)
    app = FastAPI(lifespan=server.lifespan)
    app.mount("/agents", server.asgi)
    seen: list[str] = []

    @app.get("/mine")
    async def mine(client: Annotated[il.Client, Depends(server.client)]) -> Any:
        return [run.id async for run in client.runs()]

    @app.get("/all")
    async def everything() -> Any:
        async with server.owner_client() as client:
            seen.extend([run.caller async for run in client.runs()])
        return seen

    async with _up(app) as address, httpx2.AsyncClient(base_url=address) as http:
        run = {"agent": "echo", "input": "x"}
        for headers, status in (({}, 401), ({"x-user": "bob"}, 403), ({"x-user": "ada"}, 201)):
            answer = await http.post("/agents/api/v1/runs", json=run, headers=headers)
            assert answer.status_code == status, answer.text
        id_ = answer.json()["id"]
        assert (await http.get("/mine", headers={"x-user": "ada"})).json() == [id_]
        assert (await http.get("/mine", headers={"x-user": "bob"})).json() == []
        assert (await http.get("/all")).json() == ["ada"]
        body = {"agent_id": "echo", "input": {"text": "hello"}}
        assert (await http.post("/agents/connect/runs", json=body)).status_code == 401
        answer = await http.post("/agents/connect/runs/wait", json=body, headers={"x-user": "ada"})
        assert answer.status_code == 200


async def test_a_server_has_one_lifespan_at_a_time_and_starts_again(store: Path) -> None:
    server = _server(store)
    async with server.lifespan():
        with pytest.raises(il.InterlinguaError, match="already"):
            async with server.lifespan():
                pass
        async with server.owner_client() as client:
            run = await client.start("asker", "go")
            await run.wait(settled=True)
    async with server.lifespan(), server.owner_client() as client:
        again = client.handle(run.id)
        await again.answer((await again.questions())[0], approved=True)
        assert await again.result(output=str) == "yes"


def test_a_door_that_is_not_there_is_refused_at_once(store: Path) -> None:
    with pytest.raises(il.InterlinguaError, match=r"no door 'smoke' \(there are: cap"):
        _server(store, doors=["smoke"])

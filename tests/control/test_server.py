"""The server itself over the control API: agents, workers, mounts, health, its document."""

from __future__ import annotations

from pathlib import Path

from starlette.routing import Route

from interlingua.control.api import ControlApi
from interlingua.control.openapi import document
from interlingua.engine.engine import Engine
from interlingua.security.auth import Authenticator

from .agents import client, serve


async def _nothing(run: str):  # type: ignore[no-untyped-def]
    return
    yield b""


def _api(store: Path) -> ControlApi:
    return ControlApi(Engine(store), Authenticator(open_to_all=True), mounts=list, export=_nothing)


def test_every_operation_is_in_the_document_and_has_its_own_id(tmp_path: Path) -> None:
    api = _api(tmp_path / "store.db")
    shown = document(api.operations, "/api/v1")
    answered = {
        (method.lower(), route.path)
        for route in api.routes()
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    described = {(method, path) for path, methods in shown["paths"].items() for method in methods}
    assert described == answered
    ids = [operation["operationId"] for methods in shown["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))


async def test_the_server_tells_what_it_has(store: Path) -> None:
    async with serve(store) as server, client(server) as http:
        agents = {agent["card"]["name"]: agent for agent in (await http.get("/agents")).json()["agents"]}
        assert {"echo", "asker", "login"} <= set(agents)
        assert agents["login"]["card"]["input"]["properties"]["password"]["writeOnly"] is True
        assert (await http.get("/agents/echo")).json()["card"]["name"] == "echo"
        assert (await http.get("/agents/nobody")).status_code == 404
        (worker,) = (await http.get("/workers")).json()["workers"]
        assert "echo@0.1.0" in worker["agents"]
        assert (await http.get("/mounts")).json() == {"mounts": []}
        assert (await http.get("/teams")).json() == {"teams": []}
        health = (await http.get("/health")).json()
        assert health["status"] == "ready"
        assert (await http.get("/me")).json()["id"]
        shown = (await http.get("/openapi.json")).json()
        assert shown["servers"] == [{"url": "/api/v1"}]

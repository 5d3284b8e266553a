"""The server itself over the control API: agents, workers, mounts, health, its document."""

from __future__ import annotations

from pathlib import Path

from interlingua.control.app import OPERATIONS
from interlingua.control.openapi import document

from .agents import client, serve


def test_every_operation_is_in_the_document_and_has_its_own_id() -> None:
    shown = document(OPERATIONS, "/api/v1")
    described = [(method, path) for path, methods in shown["paths"].items() for method in methods]
    assert sorted(described) == sorted((row.method.lower(), row.path) for row in OPERATIONS)
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

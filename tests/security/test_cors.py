"""Web pages of origins that the owner named: they can call and read every door over HTTP, and no other page can."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

import interlingua as il
from interlingua.protocols.connect.config import DoorSettings
from interlingua.security.keys import make_key
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.server.auth.stored_keys import StoredKeys
from interlingua.store.sqlite.store import SQLiteStore

PAGE = "https://app.example.org"
PREFIXES = ("/connect", "/mcp", "/editor", "/peer", "/cap", "/healthz")


@il.agent
async def echo(text: str) -> str:
    return text


@contextlib.asynccontextmanager
async def server(tmp_path: Path, *origins: str) -> AsyncIterator[tuple[Server, httpx2.AsyncClient]]:
    settings = ServeSettings(port=0, allowed_origins=list(origins))
    async with (
        serving(tmp_path / "store.db", [echo], settings) as up,
        httpx2.AsyncClient(base_url=up.address) as http,
    ):
        yield up, http


def cors(answer: httpx2.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control")}


def asking(origin: str, method: str = "POST", headers: str = "authorization, content-type") -> dict[str, str]:
    return {"origin": origin, "access-control-request-method": method, "access-control-request-headers": headers}


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_a_page_of_an_origin_that_was_named_may_ask_with_its_headers_on_every_door(
    tmp_path: Path, prefix: str
) -> None:
    async with server(tmp_path, PAGE) as (_, http):
        answer = await http.options(prefix, headers=asking(PAGE, "DELETE"))
        assert (answer.status_code, answer.content) == (204, b"")
        assert cors(answer) == {
            "access-control-allow-origin": PAGE, "access-control-allow-headers": "authorization, content-type",
            "access-control-allow-methods": "GET, HEAD, POST, PUT, PATCH, DELETE", "access-control-max-age": "600",
        }  # fmt: skip
        assert "Origin" in answer.headers["vary"]


async def test_a_page_of_an_origin_that_was_named_reads_answers_errors_and_their_headers(tmp_path: Path) -> None:
    async with server(tmp_path, PAGE) as (_, http):
        body = {"agent_id": "echo", "input": {"text": "hello"}}
        for path, status in (("/connect/runs/wait", 200), ("/connect/runs/stream", 200), ("/connect/none", 404)):
            for _ in range(2):  # what is asked again may be answered in a shorter way
                answer = await http.post(path, json=body, headers={"origin": PAGE})
                assert answer.status_code == status
                assert cors(answer) == {
                    "access-control-allow-origin": PAGE, "access-control-expose-headers": "*",
                }  # fmt: skip
                assert "Origin" in answer.headers["vary"]
        # A copy of an answer that was no page's must not be given to a page.
        assert "Origin" in (await http.get("/connect/openapi.json")).headers["vary"]


@pytest.mark.parametrize("origin", ["https://evil.example", "http://app.example.org", PAGE + ":444", "null"])
async def test_no_other_page_is_told_anything(tmp_path: Path, origin: str) -> None:
    async with server(tmp_path, PAGE) as (_, http):
        asked = await http.options("/connect/runs/wait", headers=asking(origin))
        sent = await http.post("/connect/agents/search", json={}, headers={"origin": origin})
        assert [(answer.status_code, cors(answer)) for answer in (asked, sent)] == [(403, {})] * 2


async def test_a_page_of_this_machine_that_nobody_named_calls_as_before_and_reads_nothing(tmp_path: Path) -> None:
    async with server(tmp_path) as (up, http):
        for origin in ("http://localhost:3000", up.address):
            sent = await http.post("/connect/agents/search", json={}, headers={"origin": origin})
            assert (sent.status_code, cors(sent)) == (200, {})
            assert not cors(await http.options("/connect/agents/search", headers=asking(origin)))


async def test_a_page_cannot_put_headers_into_the_answer(tmp_path: Path) -> None:
    async with server(tmp_path, "*") as (_, http):
        answer = await http.options("/connect/runs/wait", headers=asking(PAGE, "POST", "x-a, b@d, c;q=1, y"))
        assert answer.headers["access-control-allow-headers"] == "x-a, y"


async def test_a_key_is_wanted_of_pages_too_and_they_can_read_that_it_is(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    await store.open()
    await StoredKeys(store.keys).put(make_key("page", ["*"], 0)[1])
    await store.close()
    async with server(tmp_path, PAGE) as (_, http):
        assert (await http.options("/connect/agents/search", headers=asking(PAGE))).status_code == 204
        refused = await http.post("/connect/agents/search", json={}, headers={"origin": PAGE})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)


async def test_a_door_on_a_port_of_its_own_answers_pages_in_the_same_way(tmp_path: Path) -> None:
    settings = ServeSettings(port=0, allowed_origins=[PAGE], doors={"connect": DoorSettings(own_port=0)})
    async with serving(tmp_path / "store.db", [echo], settings) as up, httpx2.AsyncClient() as http:
        alone = next(note for note in up.notes if "too" in note).split(" is at ")[1].partition(",")[0]
        asked = await http.options(f"{alone}/agents/search", headers=asking(PAGE))
        sent = await http.post(f"{alone}/agents/search", json={}, headers={"origin": PAGE})
        assert (asked.status_code, sent.status_code) == (204, 200)
        assert {answer.headers["access-control-allow-origin"] for answer in (asked, sent)} == {PAGE}

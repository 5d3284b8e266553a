"""A store that cannot be reached: what callers are told of it, and what the log says."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx2
import pytest

import interlingua as il
from interlingua.model.errors import StoreError
from interlingua.server.app import ServeSettings, serving

WHERE = 'connection to server at "10.0.0.5", port 5432 failed:\n\tConnection refused'


@il.agent
async def waits(ctx: il.Context[None, None]) -> str:
    await ctx.thought("here")
    await asyncio.Event().wait()
    return ""


def test_the_words_of_a_database_are_for_the_log_and_not_for_callers() -> None:
    error = StoreError("the store cannot be reached", why=WHERE)
    assert error.info().message == "the store cannot be reached"
    assert "port 5432 failed: Connection refused" in str(error)


async def test_callers_are_not_told_where_the_store_is(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ServeSettings(port=0, engine=il.Settings(max_running=0))
    async with serving(store, [waits], settings) as server, httpx2.AsyncClient(base_url=server.address) as http:

        async def away(*args: Any, **more: Any) -> Any:
            raise StoreError("the store cannot be reached", why=WHERE)

        def refuses(*args: Any) -> asyncio.Future[Any]:
            return asyncio.ensure_future(away())

        monkeypatch.setattr(server.engine.core.store.runs, "submit", refuses)
        for name in ("get", "search", "events"):
            monkeypatch.setattr(server.engine.core.store.runs, name, away)
        asked = [
            await http.post("/connect/runs", json={"agent_id": "waits", "input": {}}),
            await http.get("/connect/runs/01a1e28c-5b20-7cc7-8933-84bb75e72d9b"),
            await http.post("/connect/runs/search", json={}),
            await http.post(
                "/mcp/", json={"jsonrpc": "2.0", "id": 1, "method": "agents/run", "params": {"name": "waits"}}
            ),
            await http.post("/peer/message:send", json={"role": "user", "text": "x", "skill_id": "waits"}),
        ]
        for answer in asked:
            assert answer.status_code >= 400 or "error" in answer.text, answer.text
            assert "10.0.0.5" not in answer.text
            assert "5432" not in answer.text
        assert asked[0].status_code == 503
        monkeypatch.undo()


async def test_callers_are_not_told_where_a_file_was_that_is_gone(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    async with serving(store, [waits], ServeSettings(port=0)) as server:
        async with httpx2.AsyncClient(base_url=server.address) as http:
            kept = store.with_name("kept.db")
            store.rename(kept)
            asked = [
                await http.post("/connect/runs", json={"agent_id": "waits", "input": {}}),
                await http.post(
                    "/mcp/", json={"jsonrpc": "2.0", "id": 1, "method": "agents/run", "params": {"name": "waits"}}
                ),
                await http.post("/peer/message:send", json={"role": "user", "text": "x", "skill_id": "waits"}),
            ]
            kept.rename(store)
        for answer in asked:
            assert answer.status_code >= 400 or "error" in answer.text, answer.text
            assert str(tmp_path) not in answer.text
        assert asked[0].status_code == 503
        assert "the store's file is gone" in asked[0].text


async def test_a_stream_that_the_store_cuts_off_is_one_line_of_the_log(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = il.Settings(sweep_every=0.05, shutdown_grace=0.1, cancel_grace=0.5)
    async with il.Engine(store, agents=[waits], settings=settings) as worker:
        doors = ServeSettings(port=0, engine=il.Settings(max_running=0, sweep_every=0.05))
        async with serving(store, [waits], doors) as server, httpx2.AsyncClient(base_url=server.address) as http:
            body = {"agent_id": "waits", "input": {}, "stream_mode": "custom"}
            run = (await http.post("/connect/runs", json=body)).json()["run_id"]

            async def away(*args: Any, **more: Any) -> Any:
                raise StoreError("the store could not be read", why=WHERE)

            caplog.set_level(logging.ERROR)

            async def read() -> None:
                whole = {"last-event-id": "0"}  # it may have said all that it says by now
                async with http.stream("GET", f"/connect/runs/{run}/stream", headers=whole, timeout=20) as stream:
                    lines = stream.aiter_lines()
                    await anext(lines)
                    monkeypatch.setattr(server.engine.core.store.runs, "events", away)
                    server.engine.core.bus.publish_all()
                    async for _ in lines:
                        pass

            with pytest.raises(httpx2.RemoteProtocolError):
                await asyncio.wait_for(read(), 20)
            monkeypatch.undo()
            await worker.runs.cancel(run)
    (said,) = [record for record in caplog.records if record.name == "uvicorn.error"]
    assert said.getMessage().startswith("a stream was cut off: the store could not be read: connection to server")
    assert said.exc_info is None

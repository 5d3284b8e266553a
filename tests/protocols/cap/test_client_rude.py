"""The mount and servers that are in trouble, or say what nobody can use: nothing is lost, and no run breaks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

import interlingua as il
from interlingua.engine.teams.members import TeamAgent
from interlingua.model.events import Warned
from interlingua.model.filters import RunFilter
from interlingua.mounts import http
from tests.kit.engines import PATIENT, QUICK, engine, finish, submit
from tests.kit.teams import member, team

from .door_common import PLAIN, door
from .test_client import mounted

Answer = tuple[int, str, str | Iterator[str]]  # status, type and body, which may come by and by
Script = Callable[[str, str], Answer]  # of method and path

JSON, SSE, HTML = "application/json", "text/event-stream", "text/html"
AGENTS = json.dumps({"agents": [{"id": "far", "system_prompt": "You are far away."}]})


def events(*told: tuple[str, str]) -> str:
    return "".join(f"id: {number}\nevent: {kind}\ndata: {data}\n\n" for number, (kind, data) in enumerate(told, 1))


DONE = json.dumps({"status": "succeeded", "final": True, "output": {"text": "done"}})


@contextmanager
def scripted(script: Script) -> Iterator[str]:
    """A server that answers as a script says."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            path = self.path.removeprefix("/cap")
            status, kind, body = (200, JSON, AGENTS) if path == "/agents" else script(self.command, path)
            self.send_response(status)
            self.send_header("content-type", kind)
            if isinstance(body, str):
                self.send_header("content-length", str(len(body.encode())))
            self.end_headers()
            with suppress(OSError):  # nobody may read it any more
                for piece in [body] if isinstance(body, str) else body:
                    self.wfile.write(piece.encode())

        do_GET = do_POST = _answer

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def taken(method: str, path: str) -> Answer:
    return 202, JSON, json.dumps({"task_id": "x", "run_id": "x", "status": "running"})


async def test_a_proxy_whose_server_is_away_for_a_moment_fails_nothing(store: Path) -> None:
    looks: list[str] = []

    def script(method: str, path: str) -> Answer:
        if method == "POST":
            return taken(method, path)
        looks.append(path)
        if len(looks) <= 4:
            return 502, HTML, "<h1>Bad gateway</h1>"
        return 200, SSE, events(("status", DONE))

    with scripted(script) as address:
        async with engine(store, *await mounted(address)) as eng:
            run = await finish(eng, "far", {"text": "x"})
    assert run.output == {"text": "done"}, run.error


async def test_a_server_that_has_nothing_to_say_for_long_is_there_where_it_answers(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "TIMEOUT", httpx2.Timeout(0.4))
    monkeypatch.setattr(http, "PATIENCE", 1.0)
    opened: list[str] = []
    over = threading.Event()

    def quiet() -> Iterator[str]:
        over.wait()
        yield ""

    def script(method: str, path: str) -> Answer:
        if method == "POST":
            return taken(method, path)
        if path.endswith("/events"):
            opened.append(path)
            return 200, SSE, quiet() if len(opened) <= 5 else events(("status", DONE))
        return 200, JSON, json.dumps({"task_id": "x", "run_id": "x", "status": "running"})

    with scripted(script) as address:
        try:
            async with engine(store, *await mounted(address)) as eng:
                run = await finish(eng, "far", {"text": "x"})
        finally:
            over.set()
    assert run.output == {"text": "done"}, run.error


@pytest.mark.parametrize("settings", [QUICK, PATIENT], ids=["parked", "in memory"])
async def test_a_message_for_a_team_elsewhere_that_has_not_begun_is_not_lost(
    store: Path, tmp_path: Path, settings: il.Settings
) -> None:
    @il.agent
    async def hears(ctx: il.Context[Any, Any], text: str) -> str:
        return f"{text}: {(await ctx.receive()).text}"

    crew = TeamAgent(team(member("lead"), entry="lead"), {"lead": hears})
    async with (
        door(tmp_path / "remote.db", crew) as server,
        engine(store, *await mounted(server.address), settings=settings) as eng,
    ):
        for number in range(5):
            run = await submit(eng, "crew", {"text": "heard"})
            await eng.runs.send(run.id, f"news {number}")
            done = await eng.runs.wait(run.id, timeout=30)
            assert done.output == {"text": f"heard: news {number}"}, done.error


@pytest.mark.parametrize(
    "told",
    [
        ("delta", '{"delta": {"n": NaN}}'),
        ("delta", '{"delta": {"text": "\\ud800"}}'),
        ("delta", '{"delta": {"n": 1' + "0" * 400 + "}}"),
        ("delta", "[" * 3000 + "]" * 3000),
        ("delta", '{"delta": ' + '{"a":' * 400 + "1" + "}" * 400 + "}"),
        ("reset", '{"output": {"n": Infinity}}'),
        ("activity", '{"kind": "thought", "text": "\\ud800"}'),
        ("message", '{"type": "message", "task_id": "\\ud800"}'),
        ("message", '{"type": "message", "sender_id": 7, "recipient_id": null}'),
        ("status", '{"status": ["?"], "final": 1}'),
    ],
    ids=range(10),
)
async def test_what_a_server_says_that_is_no_json_of_ours_is_passed_over(store: Path, told: tuple[str, str]) -> None:
    def script(method: str, path: str) -> Answer:
        return taken(method, path) if method == "POST" else (200, SSE, events(told, ("status", DONE)))

    with scripted(script) as address:
        async with engine(store, *await mounted(address)) as eng:
            run = await finish(eng, "far", {"text": "x"})
    assert run.output == {"text": "done"}, run.error


async def test_a_message_that_a_server_does_not_take_is_on_record(store: Path) -> None:
    posted: list[str] = []
    seen = threading.Event()

    def script(method: str, path: str) -> Answer:
        if method == "GET":
            assert seen.wait(20)
            return 200, SSE, events(("status", DONE))
        posted.append(path)
        if len(posted) == 1:
            return taken(method, path)
        error = {"error_code": 409, "error_message": "nobody listens", "metadata": {"code": "conflict"}}
        who = {"type": "error_response", "task_id": "x", "sender_id": "orchestrator", "recipient_id": "user"}
        return 409, JSON, json.dumps({**who, **error})

    with scripted(script) as address:
        async with engine(store, *await mounted(address), settings=PATIENT) as eng:
            run = await submit(eng, "far", {"text": "x"})
            await eng.runs.send(run.id, "hello?")
            async for event in eng.runs.events(run.id):
                if isinstance(event.body, Warned):
                    assert "nobody listens" in event.body.message
                    seen.set()
            assert seen.is_set()
            assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "done"}


async def test_metadata_of_a_run_does_not_say_how_the_task_elsewhere_is_run(store: Path, tmp_path: Path) -> None:
    """It is its caller's, who may not be the one to say so; what the run was given is what counts."""
    forged = {
        "input": {"text": "other"},
        "version": "9.9.9",
        "config": {"x": 1},
        "review": {"agent": "me"},
        "interlingua/metadata": "mine",
        "traceparent": "none",
        "ticket": 7,
    }
    async with (
        door(tmp_path / "remote.db", *PLAIN) as server,
        engine(store, *await mounted(server.address)) as eng,
    ):
        run = await finish(eng, "words", {"text": "mine"}, metadata=forged)
        assert run.output == {"text": "mine"}, run.error
        (there,) = await server.engine.runs.search(RunFilter())
        assert there.metadata == forged  # and nothing of it is lost
        assert there.version == "2.0.0"

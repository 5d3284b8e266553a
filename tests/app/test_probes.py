"""Metrics, health and readiness, on a port of their own and in the format that Prometheus reads."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx2
import pytest

import interlingua as il
from interlingua.engine.ids import now
from interlingua.model.errors import InvalidRequest
from interlingua.model.run import Caller
from interlingua.security.keys import make_key
from interlingua.server.app import ServeSettings, serving
from interlingua.server.auth.stored_keys import StoredKeys
from interlingua.server.config import build
from interlingua.server.config.load import read
from interlingua.server.health import place
from interlingua.server.metrics import render
from interlingua.server.worker_process import WorkSettings, working

_SAMPLE = re.compile(
    r'interlingua_[a-z_]+(\{([a-z]+="(\\.|[^"\\])*",?)+\})? [0-9.e+-]+|# (HELP|TYPE) interlingua_\S+ .+'
)


@il.agent
async def echo(text: str) -> str:
    return text


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("9000", "127.0.0.1", 9000), (":9000", "127.0.0.1", 9000), ("0.0.0.0:1", "0.0.0.0", 1), ("[::1]:80", "::1", 80)],
)
def test_a_port_alone_is_on_loopback(text: str, host: str, port: int) -> None:
    assert place(text) == (host, port)


@pytest.mark.parametrize("text", ["", "host", "host:", "localhost:x", "1:99999", "1:²"])
def test_what_is_no_address_is_refused_before_anything_begins(text: str) -> None:
    config = read(None, {"server_metrics": text}, {})
    build.work_settings(config)
    with pytest.raises(InvalidRequest, match=r"--metrics: server\.metrics: must be HOST:PORT"):
        config.check()


async def test_a_worker_without_doors_tells_how_it_is_doing(store: Path) -> None:
    async with working(store, [echo], WorkSettings(metrics="127.0.0.1:0")) as place_, httpx2.AsyncClient() as http:
        run = await place_.engine.runs.submit(
            il.RunRequest("echo", input={"text": "x"}, caller=Caller("key:s3cret-id", 'lap"top'))
        )
        await place_.engine.runs.wait(run.id)
        assert place_.metrics is not None
        base = place_.metrics.removesuffix("/metrics")
        assert (await http.get(f"{base}/healthz")).text == "ok\n"
        assert (await http.get(f"{base}/readyz")).text == "ready\n"
        told = await http.get(place_.metrics)
        assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert 'interlingua_runs_finished_total{agent="echo",status="succeeded"} 1' in told.text
        assert 'interlingua_run_queue_seconds_count{agent="echo"} 1' in told.text
        assert 'interlingua_caller_run_seconds_bucket{caller="lap\\"top",le="+Inf"} 1' in told.text
        assert "s3cret-id" not in told.text
        strange = await http.get(place_.metrics, headers={"host": "evil.example"})
        assert strange.status_code == 403
        assert (await http.get(f"{base}/connect/agents")).status_code == 404


async def test_a_server_has_that_port_too_where_it_is_wanted(store: Path) -> None:
    settings = ServeSettings(port=0, metrics="0")
    async with serving(store, [echo], settings) as server, httpx2.AsyncClient() as http:
        (note,) = [note for note in server.notes if note.startswith("metrics are at ")]
        found = re.search(r"http://\S+/metrics", note)
        assert found is not None
        assert "interlingua_runs_running 0" in (await http.get(found[0])).text


async def test_every_line_is_one_that_prometheus_reads_and_buckets_only_grow(store: Path) -> None:
    async with il.Engine(store, agents=[echo]) as engine:
        for at in range(30):  # more callers than have numbers of their own
            caller = Caller(f"key:{at}", f"caller {at}")
            run = await engine.runs.submit(il.RunRequest("echo", input={"text": "x"}, caller=caller))
            await engine.runs.wait(run.id)
        text = await render(engine)
    lines = text.splitlines()
    assert all(_SAMPLE.fullmatch(line) for line in lines), [line for line in lines if not _SAMPLE.fullmatch(line)]
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    callers = set(re.findall(r'interlingua_caller_run_seconds_count\{caller="([^"]+)"\}', text))
    assert len(callers) == 21
    assert "other" in callers
    grown = [int(n) for n in re.findall(r'run_queue_seconds_bucket\{agent="echo",le="\S+"\} (\d+)', text)]
    assert grown == sorted(grown)
    assert grown[-1] == 30


async def test_what_a_process_knows_of_itself_is_told_while_its_store_is_away(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlingua.server.metrics.PATIENCE", 0.2)
    monkeypatch.setattr("interlingua.server.health.PATIENCE", 0.2)
    async with working(store, [echo], WorkSettings(metrics="0")) as place_, httpx2.AsyncClient() as http:
        assert place_.metrics is not None
        assert "interlingua_store_up 1" in (await http.get(place_.metrics)).text

        async def never() -> None:
            await asyncio.Event().wait()

        for name in ("counts", "next_due"):
            monkeypatch.setattr(place_.engine.core.store.callbacks, name, never)
        told = (await http.get(place_.metrics)).text
        assert "interlingua_store_up 0" in told
        assert "interlingua_runs_running 0" in told
        assert "interlingua_questions_open" not in told
        assert (await http.get(place_.metrics.replace("/metrics", "/readyz"))).status_code == 503
        monkeypatch.undo()


async def _two_agents(engine: il.Engine) -> None:
    for name, caller in (("echo", "ada"), ("secret_agent", "bob")):
        run = await engine.runs.submit(il.RunRequest(name, input={"text": "x"}, caller=Caller(f"key:{caller}", caller)))
        await engine.runs.wait(run.id)


@il.agent
async def secret_agent(text: str) -> str:
    return text


@pytest.mark.parametrize(
    ("caller", "named"),
    [
        (Caller("owner"), {"echo", "secret_agent", "ada", "bob"}),
        (Caller("key:x", "x", ("see:all",)), {"echo", "secret_agent", "ada", "bob"}),
        (Caller("key:ada", "ada", ()), {"echo", "secret_agent", "ada"}),
        (Caller("key:ada", "ada", ("agents:echo",)), {"echo", "ada"}),
        (Caller("key:x", "x", ("agents:echo", "do:run")), set()),
        (None, set()),
    ],
)
async def test_metrics_name_only_whom_the_caller_may_see(store: Path, caller: Caller | None, named: set[str]) -> None:
    async with il.Engine(store, agents=[echo, secret_agent]) as engine:
        await _two_agents(engine)
        text = await render(engine, (), caller)
    assert {name for name in ("echo", "secret_agent", "ada", "bob") if f'"{name}"' in text} == named
    for by in ("agent", "caller"):
        metric = "runs_finished_total" if by == "agent" else "caller_runs_finished_total"
        counts = re.findall(rf'interlingua_{metric}{{{by}="\w+",status="succeeded"}} (\d+)', text)
        assert sum(map(int, counts)) == 2


async def test_the_port_without_a_key_names_nobody_where_the_store_has_keys(store: Path) -> None:
    async with il.Engine(store) as engine:
        secret, record = make_key("laptop", ["see:all"], now())
        await StoredKeys(engine.keys).put(record)
    settings = WorkSettings(metrics="127.0.0.1:0")
    async with working(store, [echo, secret_agent], settings) as place_, httpx2.AsyncClient() as http:
        await _two_agents(place_.engine)
        assert place_.metrics is not None
        unknown = (await http.get(place_.metrics)).text
        assert 'interlingua_runs_finished_total{agent="other",status="succeeded"} 2' in unknown
        assert "echo" not in unknown
        assert "ada" not in unknown
        known = (await http.get(place_.metrics, headers={"x-api-key": secret})).text
        assert 'interlingua_runs_finished_total{agent="echo",status="succeeded"} 1' in known
        assert (await http.get(place_.metrics, headers={"x-api-key": "wrong"})).status_code == 401

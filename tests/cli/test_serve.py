"""`interlingua serve` and `interlingua keys`, as a user runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from .conftest import Result

Cli = Callable[..., Result]

ZOO = Path(__file__).parent / "zoo.py"


@contextmanager
def server(tmp_path: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    env = {**os.environ, "INTERLINGUA_STORE": str(tmp_path / "store.db"), "COLUMNS": "200"}
    process = subprocess.Popen(
        [sys.executable, "-m", "interlingua", "serve", f"{ZOO}", "--port", "0", *options],
        stderr=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"Serving on (http://\S+)", line):
                yield found[1], process
                break
        else:
            raise AssertionError("it did not start")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        assert process.returncode == 0


def test_agents_are_served_until_ctrl_c(tmp_path: Path) -> None:
    with server(tmp_path) as (address, _):
        answer = httpx2.post(f"{address}/connect/runs/wait", json={"agent_id": "shout", "input": "hello"})
        assert answer.json()["output"]["values"]["text"].startswith("HELLO")
        assert httpx2.get(f"{address}/healthz").text == "ok\n"
        assert "interlingua_runs_finished_total" in httpx2.get(f"{address}/metrics").text


def test_a_key_lets_in_whoever_has_it_and_a_revoked_one_does_not(tmp_path: Path, cli: Cli) -> None:
    secret = cli("keys", "add", "laptop").out.strip()
    assert secret.startswith("il_")
    listed = cli("keys", "list", "--json").json
    assert [key["name"] for key in listed] == ["laptop"]
    assert "hash" not in listed[0]
    with server(tmp_path) as (address, _):
        search = f"{address}/connect/agents/search"
        assert httpx2.post(search, json={}).status_code == 401
        assert httpx2.get(f"{address}/connect/auth").status_code == 200
        assert httpx2.post(search, json={}, headers={"x-api-key": secret}).status_code == 200
        assert cli("keys", "revoke", listed[0]["id"]).out.endswith("is revoked\n")
        assert httpx2.post(search, json={}, headers={"x-api-key": secret}).status_code == 401


def test_a_public_address_without_keys_is_refused_with_what_to_do(cli: Cli) -> None:
    done = cli("serve", str(ZOO), "--host", "0.0.0.0", "--port", "0")
    assert done.code == 2
    assert "interlingua keys add" in done.err


@pytest.mark.parametrize("scope", ["do:everything", "agents:"])
def test_a_scope_that_means_nothing_is_refused(cli: Cli, scope: str) -> None:
    done = cli("keys", "add", "x", "--scope", scope)
    assert done.code == 2
    assert scope in done.err

"""HTTP/2 in cleartext on the control API, seen with curl's prior knowledge: answers, errors and event streams."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.servers import Process, node
from tests.kit.wait_for import PATIENCE

from ...cli.conftest import ZOO

PRIOR = "--http2-prior-knowledge"


@pytest.fixture
def alice(env: dict[str, str], tmp_path: Path) -> Iterator[Process]:
    with node(env, tmp_path, ZOO, "--name", "Alice", "--http2", "--default-agent", "shout") as process:
        yield process


def curl(*arguments: str) -> tuple[Any, str, str]:
    """The answer, its status, and the version of HTTP that it came by."""
    told = subprocess.run(
        ["curl", "-sS", "--max-time", str(PATIENCE), "-w", "\n%{http_code} %{http_version}", *arguments],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    body, _, last = told.rpartition("\n")
    status, version = last.split()
    return json.loads(body), status, version


def test_one_port_answers_http_2_by_prior_knowledge_by_upgrade_and_http_1(alice: Process) -> None:
    for option in (PRIOR, "--http2"):
        told, status, version = curl(option, f"{alice.control}/status")
        assert (told["agent_name"], status, version) == ("Alice", "200", "2")
    told, status, version = curl("--http1.1", f"{alice.control}/status")
    assert (told["agent_name"], status, version) == ("Alice", "200", "1.1")


def test_the_card_tells_that_http_2_is_spoken(alice: Process) -> None:
    card, _, version = curl(PRIOR, f"{alice.control}/.well-known/acp.json")
    assert version == "2"
    assert "h2c" in card["capabilities"]["supported_transports"]
    assert card["capabilities"]["groups"]["transport"]["http2"] is True
    assert [one["uri"] for one in card["extensions"]] == ["acp:ext:h2c-v1"]


def test_bodies_and_errors_go_by_http_2_too(alice: Process) -> None:
    told, status, _ = curl(PRIOR, "-d", '{"query": "shout"}', f"{alice.control}/skills/query")
    assert (told["skills"][0]["id"], status) == ("shout", "200")
    told, status, _ = curl(PRIOR, "-d", '{"text": "no role"}', f"{alice.control}/message:send")
    assert (told["error_code"], status) == ("ERR_INVALID_REQUEST", "400")
    told, status, _ = curl(PRIOR, f"{alice.control}/nowhere")
    assert (told["error_code"], status) == ("ERR_NOT_FOUND", "404")


def test_a_web_page_of_another_site_is_refused_by_http_2_as_well(alice: Process) -> None:
    _, status, version = curl(PRIOR, "-H", "origin: https://evil.example", f"{alice.control}/status")
    assert (status, version) == ("403", "2")
    _, status, _ = curl(PRIOR, "-H", "host: evil.example", f"{alice.control}/status")
    assert status == "403"


def test_events_stream_by_http_2_as_they_happen(alice: Process, env: dict[str, str], tmp_path: Path) -> None:
    command = ["curl", "-sSN", "--max-time", str(PATIENCE), "-D", "/dev/stderr", PRIOR, f"{alice.control}/stream"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as streaming:
        assert streaming.stdout is not None
        assert streaming.stderr is not None
        assert streaming.stderr.readline().startswith("HTTP/2 200")
        lines = iter(streaming.stdout.readline, "")
        assert next(line for line in lines if line.startswith("event:")) == "event: acp.ready\n"
        with node(env, tmp_path, "--name", "Guest", "--join", alice.link, "--store", "guest.db"):
            told = next(line for line in lines if '"connected"' in line)
            assert json.loads(told.removeprefix("data:"))["type"] == "peer"
            assert alice.end() == 0  # ends although a stream is open
        assert streaming.wait(PATIENCE) == 0


def test_without_hypercorn_it_says_what_to_install(fresh: Any, env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "without" / "hypercorn").mkdir(parents=True)
    (tmp_path / "without" / "hypercorn" / "__init__.py").write_text("raise ImportError('not here')")
    path = f"{tmp_path / 'without'}:{env['PYTHONPATH']}"
    done = fresh("peer", "--port", "0", "--http-port", "0", "--http2", PYTHONPATH=path)
    assert done.code == 1
    assert "pip install 'interlingua[http2]'" in done.err

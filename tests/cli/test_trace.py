"""`--trace FILE`: the wire of any protocol, written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interlingua.server.wire_trace import without_secrets

from .test_serve import Cli, server


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("target", ["connect+{}/connect#shout", "editor+{}/editor#shout", "mcp+{}/mcp#shout"])
def test_both_ends_of_every_protocol_can_be_traced(cli: Cli, tmp_path: Path, target: str) -> None:
    theirs, ours = tmp_path / "server.jsonl", tmp_path / "client.jsonl"
    with server(tmp_path, "--trace", str(theirs), "--log", "off") as (address, _):
        result = cli("run", target.format(address), "hello wire", "--trace", str(ours))
    assert result.code == 0, result.err
    for file in (theirs, ours):
        told = lines(file)
        assert {line["direction"] for line in told} == {"in", "out"}
        assert all(line["time"] and line["protocol"] for line in told)
        assert "hello wire" in file.read_text()


def test_a_progress_token_is_no_secret(cli: Cli, tmp_path: Path) -> None:
    ours = tmp_path / "client.jsonl"
    with server(tmp_path, "--log", "off") as (address, _):
        result = cli("run", f"mcp+{address}/mcp#shout", "hello wire", "--trace", str(ours))
    assert result.code == 0, result.err
    messages = [line["message"] for line in lines(ours) if isinstance(line.get("message"), dict)]
    (run,) = [message for message in messages if message.get("method") == "agents/run"]
    assert run["params"]["_meta"]["progressToken"].startswith("il-")
    shown = without_secrets({"interlingua/progressToken": "one", "token": "two", "access_token": "three"})
    assert shown == {"interlingua/progressToken": "one", "token": "***", "access_token": "***"}

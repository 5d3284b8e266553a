"""`--trace FILE`: the wire of any protocol, written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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

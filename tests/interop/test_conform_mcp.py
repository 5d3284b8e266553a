"""What `interlingua conform` finds at servers of the published SDKs is what docs/findings/mcp.md says, and no more."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.kit.clients.rpc import INTERLINGUA

from .mcp_peers import HERE, target_of

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]  # the first test installs the SDKs

PAGE = (HERE.parent.parent / "docs" / "findings" / "mcp.md").read_text()
PATIENCE = 120.0

ACP_ROLES = ["--slow", "endless", "--fails", "breaks"]
MCP_ROLES = ["--slow", "counter", "--fails", "breaks", "--asks", "careful"]
ENDS = "mcp.door.never-ends"

ACP = {
    "mcp.progress.token-as-in-mcp": 'progress comes under the progressToken abc123, and none under 0 and ""',
    "mcp.door.cancel": "Request cancelled",
    "mcp.door.templates": "agents/create was answered with an error",
    ENDS: "a method that nobody knows",
}
LAST_WORD = {
    "mcp.progress.deltas-make-output": 'the output is {"text": "there"}',
    "mcp.delta.strings-concatenate": "a string replaces the one before it",
}


async def conform(target: str, *options: str) -> dict[str, dict[str, Any]]:
    """What the command says of a server, by id."""
    process = await asyncio.create_subprocess_exec(
        INTERLINGUA, "conform", target, "--json", *options, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode in (0, 1), err.decode()
    found = {finding["id"]: finding for finding in json.loads(out)["findings"]}
    assert process.returncode == int(any(finding["verdict"] == "fail" for finding in found.values()))
    return found


def failures(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: finding["why"] for name, finding in found.items() if finding["verdict"] == "fail"}


def are_those(found: dict[str, dict[str, Any]], expected: dict[str, str]) -> None:
    failed = failures(found)
    assert set(failed) == set(expected), failed
    for name, said in expected.items():
        assert said in failed[name]
        assert f"| `{name}` |" in PAGE, f"docs/findings/mcp.md does not have {name}"


@pytest.mark.parametrize("way", ["stdio", "sse"])
async def test_servers_of_acp_sdk_break_four_rules(way: str, mcp_acp_sdk: Path, tmp_path: Path) -> None:
    with target_of([str(mcp_acp_sdk), str(HERE / "mcp_acp_server.py")], way, tmp_path) as target:
        found = await conform(target, "--agent", "echo", *ACP_ROLES)
        are_those(found, ACP)
        said = found[ENDS]["why"]
        for odd in ("agents/run without params", "agents/run whose name is a number"):
            assert f"after {odd}" in said
        if way == "stdio":
            assert "the process ended" in said
            assert "agents/run whose params are an array: it is not answered" in said
        else:
            assert "HTTP 500" in said


async def test_an_agent_of_acp_sdk_that_ends_with_its_last_word_is_told_so(mcp_acp_sdk: Path, tmp_path: Path) -> None:
    options = ["--agent", "lastword", "--only", "mcp.progress", "--only", "mcp.delta"]
    with target_of([str(mcp_acp_sdk), str(HERE / "mcp_acp_server.py")], "stdio", tmp_path) as target:
        found = await conform(target, *options)
    failed = failures(found)
    del failed["mcp.progress.token-as-in-mcp"]
    assert set(failed) == set(LAST_WORD)
    for name, said in LAST_WORD.items():
        assert said in failed[name]
        assert f"| `{name}` |" in PAGE


@pytest.mark.parametrize("way", ["stdio", "http", "http-modern", "sse"])
async def test_servers_of_the_mcp_sdk_break_one_rule_at_most(way: str, mcp_sdk: Path, tmp_path: Path) -> None:
    with target_of([str(mcp_sdk), str(HERE / "mcp_sdk_server.py")], way, tmp_path) as target:
        found = await conform(target, "--agent", "echo", *MCP_ROLES)
    never = "agents/run whose params are an array: it is not answered"
    are_those(found, {ENDS: never} if way == "stdio" else {})
    asked = "not applicable" if way == "http-modern" else "pass"  # there it is returned
    assert found["mcp.door.question-asked"]["verdict"] == asked
    assert found["mcp.door.question-returned"]["verdict"] == found["mcp.door.stateless"]["verdict"] == "pass"
    assert (found["mcp.door.cancel"]["verdict"] == "pass") is (way != "http-modern")


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_deltas_of_the_mcp_sdk_need_the_rules_and_keep_them(way: str, mcp_sdk: Path, tmp_path: Path) -> None:
    options = ["--agent", "adder", "--input", '{"numbers": [1, 2, 3]}', "--only", "mcp.progress", "--only", "mcp.delta"]
    with target_of([str(mcp_sdk), str(HERE / "mcp_sdk_server.py")], way, tmp_path) as target:
        found = await conform(target, *options)
    assert failures(found) == {}
    kept = {name.removeprefix("mcp.delta.") for name, finding in found.items() if finding["verdict"] == "pass"}
    assert {"numbers-add", "exception-undefined-output", "exception-append-blind", "arrays-append-rest"} <= kept


def test_the_page_names_no_other_rule() -> None:
    assert set(re.findall(r"^\| `(mcp\.\S+)` \|", PAGE, re.MULTILINE)) == {*ACP, *LAST_WORD}

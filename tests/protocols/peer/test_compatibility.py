"""The compatibility suite (`compat`) against a node of ours and against the reference, and every endpoint with curl."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.kit.peer_nodes import listening, running_node, text

from .compat import ENDPOINTS
from .processes import ROOT
from .reference import Reference
from .reference_http import ReferenceApi


async def suite(base: str) -> tuple[int, str]:
    """The exit code of the suite at an address, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rf", "--tb=no",
        "tests/protocols/peer/compat.py", cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "ACP_BASE_URL": base},
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_a_node_of_ours_passes_the_compatibility_suite() -> None:
    async with running_node("Checked") as node:
        code, said = await suite(node.base)
    assert code == 0, said


async def test_the_suite_finds_what_the_published_reference_lacks() -> None:
    async with listening(ReferenceApi().app()) as base:
        code, said = await suite(base)
    assert code == 1
    for missing in ("test_every_stable_endpoint_is_there[GET-/message:recv]", "without_content_is_refused"):
        assert missing in said


CURL = ["curl", "--silent", "--show-error", "--max-time", "20"]


async def curl(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(*CURL, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said, wrong = await process.communicate()
    assert process.returncode == 0, wrong.decode()
    return said.decode()


async def test_every_endpoint_can_be_used_with_plain_curl() -> None:
    ref = Reference("Ref")
    async with running_node("Curled") as node, ref.join(str(node.node.link)):
        await ref.connected()
        await node.until(lambda event: event.get("event") == "card")
        task = await ref.delegate({"role": "user", "parts": text("dig")})
        await node.state(task, "submitted")
        bodies: dict[str, Any] = {
            "/message:send": {"role": "user", "text": "by curl"}, "/tasks": {"role": "user", "text": "work"},
            "/skills/query": {"query": "x"}, "/peer/{id}/send": {"role": "user", "text": "by curl, too"},
            "/peers/connect": {"link": "acp://127.0.0.1:9/tok_0123456789abcdef"},
        }  # fmt: skip
        states = [{"status": "working"}, {"status": "input_required"}]
        # A task is asked something before it is continued, and cancelled last.
        for method, path in sorted(ENDPOINTS, key=lambda one: one[1].endswith(":cancel")):
            url = node.base + path.replace("{id}", "peer_001" if path.startswith("/peer") else task)
            if path == "/stream":
                continue  # it does not end: see below
            if method == "PUT":
                for state in states:
                    told = await curl("-X", "PUT", "-d", json.dumps(state), url)
            elif method == "POST":
                said = bodies.get(path, {"text": "go on"} if path.endswith("continue") else {})
                told = await curl("-d", json.dumps(said), url)
            else:
                told = await curl(url)
            assert json.loads(told).get("ok", True) is True, (path, told)
        said_to_it = [frame["parts"] for frame in ref.frames if frame["type"] == "acp.message"]
        assert said_to_it == [text("by curl"), text("go on"), text("by curl, too")]


@pytest.mark.parametrize("path", ["/stream?since=0", "/stream"])
async def test_the_stream_can_be_read_with_plain_curl(path: str) -> None:
    async with running_node("Curled") as node:
        process = await asyncio.create_subprocess_exec(
            *CURL, "--no-buffer", node.base + path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        line = b""
        while not line.startswith(b"event: acp.ready"):
            line = await process.stdout.readline()
        await node.post("/message:send", {"role": "user", "text": "told", "message_id": "msg_1"}, 503)
        while b"msg_1" not in line:
            line = await process.stdout.readline()
        assert json.loads(line.removeprefix(b"data:"))["parts"] == text("told")
        process.kill()
        await process.communicate()

"""Servers that hang: their port is open, and nobody answers. What is asked of them leaves nothing."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.filters import ThreadFilter
from interlingua.protocols.editor.door.http import WebDoor
from interlingua.protocols.editor.mount.http_channel import reach
from interlingua.server.app import ServeSettings, serving
from interlingua.server.config.settings import Mounting
from tests.kit.http_servers import answering
from tests.kit.servers import Process

from .test_mounts import Far, hub, local, run, state, until


@contextlib.contextmanager
def stopped(process: Process) -> Any:
    """It is there, and its port is open, and it does nothing."""
    process.popen.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.popen.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_an_editor_server_that_hangs_is_shown_as_down_though_its_port_is_open(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlingua.transports.heartbeat._REACHED_WITHIN", 1.0)
    far = Far(tmp_path)
    with far.up() as process:
        async with hub(tmp_path, f"editor+{scheme}://127.0.0.1:{far.port}/editor#echo") as server:
            assert state(server) == "up"
            with stopped(process):
                await until(server, lambda: state(server) == "down")
                assert "cannot be reached" in server.mounts.views()[0].reason
            await until(server, lambda: state(server) == "up")
            assert (await run(server, "echo")).output == {"text": "hi"}


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_a_run_at_an_editor_server_that_hangs_fails_as_transient_and_its_mount_is_looked_at(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (
        ("transports.heartbeat._REACHED_WITHIN", 1.0), ("protocols.editor.mount.http_channel._ANSWERED_WITHIN", 1.0),
        ("transports.websocket._PING_EVERY", 0.2), ("transports.websocket._PONG_WITHIN", 1.0),
    ):  # fmt: skip
        monkeypatch.setattr(f"interlingua.{name}", seconds)
    never = Mounting(wait=30, retry_first=0.05, retry_last=0.1, refresh=0, patience=20)
    far = Far(tmp_path)
    with far.up() as process:
        async with hub(tmp_path, f"editor+{scheme}://127.0.0.1:{far.port}/editor#echo", mounting=never) as server:
            assert state(server) == "up"
            with stopped(process):
                ended = await run(server, "echo")
                assert ended.error is not None
                assert (ended.error.code, ended.error.transient) == ("run_lost", True)
                await until(server, lambda: state(server) == "down")
            await until(server, lambda: state(server) == "up")


@pytest.mark.parametrize("path", ["mcp", "mcp/sse"])
async def test_a_run_at_an_mcp_server_that_hangs_is_noticed_and_its_mount_is_looked_at(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("_PULSE", 0.2), ("_SILENCE", 1.0), ("_REACHED_WITHIN", 1.0)):
        monkeypatch.setattr(f"interlingua.transports.heartbeat.{name}", seconds)
    monkeypatch.setenv("INTERLINGUA_MCP_START_TIMEOUT", "3")
    never = Mounting(wait=30, retry_first=0.05, retry_last=0.1, refresh=0, patience=20)
    far = Far(tmp_path)
    with far.up() as process:
        async with hub(tmp_path, f"mcp+http://127.0.0.1:{far.port}/{path}#echo", mounting=never) as server:
            assert state(server) == "up"
            with stopped(process):
                begun = await server.engine.runs.submit(il.RunRequest("echo", input={"text": "hi"}))
                await until(server, lambda: state(server) == "down")
            ended = await server.engine.runs.wait(begun.id, timeout=30)
            if path == "mcp":  # where it is found again
                assert ended.output == {"text": "hi"}
            else:
                assert ended.error is not None
                assert (ended.error.code, ended.error.transient) == ("run_lost", True)
            await until(server, lambda: state(server) == "up")


async def test_looking_at_an_editor_server_that_is_up_leaves_nothing_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path / "far.db", [local], ServeSettings(port=0)) as far_:
        door = far_.app.doors["editor"][1].close_streams.__self__  # type: ignore[union-attr]
        assert isinstance(door, WebDoor)
        for scheme in ("http", "ws"):
            await reach(f"{far_.address.replace('http', scheme, 1)}/editor", {})
        assert not door.sessions
        assert await far_.engine.threads.search(ThreadFilter()) == []
        assert [record.message for record in caplog.records if record.levelname != "INFO"] == []


@pytest.mark.parametrize("status", [400, 401, 404, 405, 426, 500])
async def test_a_server_that_answers_anything_is_there(status: int) -> None:
    async with answering(status) as address:
        await reach(f"{address}/editor", {})
        await reach(f"{address.replace('http', 'ws')}/editor", {})


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_proxy_that_says_nobody_is_behind_it_is_not_the_server(status: int) -> None:
    async with answering(status) as address:
        with pytest.raises(ConnectionError, match=str(status)):
            await reach(f"{address}/editor", {})

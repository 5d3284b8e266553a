"""The bus of a server, from its settings to its metrics, and that of the commands beside it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from interlingua.bus.port import BusSettings, ClusterBus
from interlingua.server.app import ServeSettings, serving
from interlingua.server.config import build
from interlingua.server.config.load import read
from interlingua.server.paths import Place
from interlingua.terminal.session import engine_at
from tests.kit.buses import Heard

from .agents_process import SETTINGS, forever, talk
from .test_engines import submit


async def test_two_servers_on_one_store_hear_of_each_other(store: Path, nats_url: str) -> None:
    settings = ServeSettings(port=0, bus=BusSettings(url=nats_url), engine=SETTINGS)
    async with serving(store, [talk], settings) as one, serving(store, [forever], settings) as two:
        for server in (one, two):
            server.engine.core.store.on_change = lambda: None
        async with asyncio.timeout(20):
            run = await submit(two.engine, "talk", n=3)
            assert (await two.engine.runs.wait(run)).output == {"text": "0 1 2 "}
        async with httpx2.AsyncClient() as http:
            told = (await http.get(f"{two.address}/metrics")).text
        assert "interlingua_bus_connected 1" in told
        assert "interlingua_workers_present 2" in told
        assert 'interlingua_bus_dropped_total{way="out"} 0' in told


async def test_a_command_beside_a_server_finds_the_bus_by_its_variables(
    store: Path, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLINGUA_BUS", nats_url)
    monkeypatch.setenv("INTERLINGUA_BUS_PREFIX", "command")
    await _works_beside_a_server(store, Path(store), nats_url)  # as a command has it


async def test_a_command_beside_a_server_finds_the_bus_where_it_finds_the_store(
    store: Path, nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "interlingua.toml").write_text(
        f'[store]\npath = "{store}"\n[bus]\nurl = "{nats_url}"\nprefix = "command"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INTERLINGUA_STORE", raising=False)
    await _works_beside_a_server(store, None, nats_url)


async def _works_beside_a_server(store: Path, named: Path | None, nats_url: str) -> None:
    settings = ServeSettings(port=0, bus=BusSettings(url=nats_url, prefix="command"), engine=SETTINGS)
    async with serving(store, [forever], settings) as server:
        server.engine.core.store.on_change = lambda: None
        heard = Heard()
        async with asyncio.timeout(20), engine_at(named) as command:
            assert isinstance(command.core.bus, ClusterBus)
            run = await submit(command, "forever")
            async for event in command.runs.events(run):
                if event.kind == "thought":
                    break
            server.engine.core.bus.subscribe(run, heard)
            await command.runs.cancel(run)
            assert (await server.engine.runs.wait(run)).status.value == "cancelled"


def test_every_setting_of_the_bus_has_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "interlingua.toml"
    file.write_text(
        '[bus]\nurl = "tls://a,b/one"\nprefix = "two"\ntoken = "t"\ncredentials = "c"\nnkey = "n"\nca = "ca"\n'
        'certificate = "crt"\nkey = "key"\nhand_out = "file"\n'
    )
    config = read(file, {}, {})
    assert config.problems == []
    wanted = BusSettings(
        url="tls://a,b/one", prefix="two", token="t", credentials=tmp_path / "c", nkey=tmp_path / "n",
        ca=tmp_path / "ca", certificate=tmp_path / "crt", key=tmp_path / "key", hand_out="file",
    )  # fmt: skip
    assert asyncio.run(build.serve_settings(config)).bus == wanted
    for name in BusSettings.__struct_fields__:
        variable = "INTERLINGUA_BUS" if name == "url" else f"INTERLINGUA_BUS_{name.upper()}"
        monkeypatch.setenv(variable, str(getattr(wanted, name)))
    assert Place().bus == wanted


def test_a_server_whose_bus_does_not_let_it_in_says_so_and_ends(tmp_path: Path) -> None:
    from interlingua.server.dev.local_nats import LocalNats

    with LocalNats(tmp_path / "nats", config='authorization { token: "s3cret" }') as server:
        agents = tmp_path / "agents.py"
        agents.write_text("import interlingua as il\n\n@il.agent\nasync def echo(text: str) -> str:\n    return text\n")
        url = server.url.replace("://", "://wr0ng@")
        command = ["serve", str(agents), "--port", "0", "--store", str(tmp_path / "s.db"), "--bus", url]
        done = subprocess.run(
            [sys.executable, "-m", "interlingua", *command], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode != 0
    assert "does not let us in" in done.stderr
    assert "wr0ng" not in done.stderr
    assert "Traceback" not in done.stderr

"""A protocol is a folder and an entry point: one that is installed beside the built-in ones is served, mounted,
configured, recognised, documented and shown, and no other package knows its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import interlingua as il
from interlingua.cli.demo.door_tour import Doors
from interlingua.cli.demo.tour import Wire
from interlingua.detection.detect import detected, inspect
from interlingua.model.errors import DefinitionError
from interlingua.protocols.installed import protocols
from interlingua.protocols.targets import kinds, parse
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.server.loading.target import load

HERE = Path(__file__).parent
TOY = HERE / "toy_protocol"
ROOT = HERE.parent

_LOOKS = """
import json
from interlingua.cli.app import app
from tools import parity, reference
from typer.testing import CliRunner

def out(*words):
    return CliRunner().invoke(app, words).output

print(json.dumps({
    "config": out("config", "show"), "help": out("--help"), "all": out("serve", "--help-all"),
    "toys": out("toys", "--help"), "settings": reference.settings_part(), "commands": reference.commands_page(),
    "parity": parity.render(parity.tables()),
}))
"""


_AGENTS = "import interlingua as il\n@il.agent\ndef echo(text: str) -> str:\n return text\n"


@il.agent
async def echo(text: str) -> AsyncIterator[str]:
    """Repeats what it hears."""
    for word in text.split():
        yield f"{word} "


@pytest.fixture
def _toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Installs the toy in this process."""

    def forget() -> None:
        protocols.cache_clear()
        kinds.cache_clear()

    monkeypatch.syspath_prepend(str(TOY))
    forget()
    yield
    monkeypatch.undo()
    forget()


def served(folder: Path) -> AbstractAsyncContextManager[Server]:
    return serving(folder / "s.db", [echo], ServeSettings(port=0))


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(TOY), str(ROOT)))}


@pytest.fixture(scope="module")
def looks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the command line and the reference pages say where the toy is installed."""
    done = subprocess.run(
        [sys.executable, "-c", _LOOKS], env=_environment(), cwd=tmp_path_factory.mktemp("empty"), capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: dict[str, str] = json.loads(done.stdout)
    return told


def test_the_toy_is_small() -> None:
    lines = [line for file in TOY.rglob("*.py") for line in file.read_text().splitlines() if line.strip()]
    assert len(lines) < 300


@pytest.mark.usefixtures("_toy")
async def test_its_door_answers_over_http(tmp_path: Path) -> None:
    async with served(tmp_path) as server, httpx2.AsyncClient(base_url=f"{server.address}/toy") as http:
        assert (await http.get("/agents")).json()["agents"] == [{"name": "echo", "about": "Repeats what it hears."}]
        answer = await http.post("/calls", json={"agent": "echo", "input": {"text": "a b"}})
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert "".join(line.get("text", "") for line in lines) == "a b "
        assert lines[-1] == {"output": {"text": "a b "}}
        unknown = await http.post("/calls", json={"agent": "nobody"})
        assert (unknown.status_code, unknown.json()) == (404, {"error": "there is no agent nobody"})


@pytest.mark.usefixtures("_toy")
async def test_its_door_has_a_path_at_the_root_which_nobody_else_may_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as server, httpx2.AsyncClient(base_url=server.address) as http:
        assert (await http.get("/.well-known/toy.json")).json()["toy"] == 1
    monkeypatch.setattr("toy_protocol.door.WELL_KNOWN", "/healthz")
    with pytest.raises(DefinitionError, match="/healthz is claimed twice"):
        async with served(tmp_path):
            pass


@pytest.mark.usefixtures("_toy")
async def test_its_agents_are_mounted_and_an_address_that_speaks_it_alone_is_recognised(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        spoken = await detected(f"{server.address}/toy")
        assert (spoken.protocol, spoken.target) == ("toy", f"toy+{server.address}/toy")
        assert spoken.target is not None
        for target in (spoken.target, f"{server.address}/toy"):
            loaded = await load(parse(target))
            async with il.Engine(tmp_path / f"{len(target)}.db", agents=loaded.agents) as engine:
                run = await engine.runs.submit(il.RunRequest("echo", input={"text": "hello toy"}))
                assert (await run.wait()).output == {"text": "hello toy "}


@pytest.mark.usefixtures("_toy")
async def test_inspect_lists_it_among_the_others(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        found, _ = await inspect(server.address)
        rows = {spoken.protocol: spoken for spoken in found}
        assert {"connect", "toy"} <= set(rows)
        assert rows["toy"].title == "Toy (lines of JSON)"
        assert [agent.name for agent in rows["toy"].agents] == ["echo"]


@pytest.mark.usefixtures("_toy")
async def test_it_has_a_part_in_the_tour(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with served(tmp_path) as server:
        wire = Wire(server.address)
        door = next(
            door for door in Doors(wire, tmp_path / "echo.py", tmp_path / "s.db").all if door.protocol.name == "toy"
        )
        await door.demo.hello(door)
        await wire.close()
        shown = capsys.readouterr()
        assert f"$ curl -s {server.address}/toy/agents" in shown.err
        assert '{"name": "echo", "about": "Repeats what it hears."}' in shown.out


@pytest.mark.usefixtures("_toy")
async def test_the_hint_of_its_door_is_a_command_line(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        protocol, door = server.app.doors["toy"]
        hint = door.hint(server.address + protocol.prefix, echo.card)
        assert hint == f"interlingua run 'toy+{server.address}/toy#echo' hello"


def test_it_is_spoken_over_pipes(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(_AGENTS)
    done = subprocess.run(
        [sys.executable, "-m", "interlingua", "stdio", "--as", "toy", "agents.py"], env=_environment(), cwd=tmp_path,
        input='{"agent": "echo", "input": {"text": "hi"}}\nnonsense\n', capture_output=True, text=True,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-2] == {"output": {"text": "hi"}}
    assert "malformed" in lines[-1]["error"]


def test_its_settings_are_in_the_configuration_and_on_the_reference_page(looks: dict[str, Any]) -> None:
    assert "[doors.toy]" in looks["config"]
    assert "greeting" in looks["config"]
    assert "--toy-greeting" in looks["all"]
    assert "[doors.toy]" in looks["settings"]
    assert "The first line of every answer" in looks["settings"]


def test_its_command_is_in_the_help_and_on_the_reference_page(looks: dict[str, Any]) -> None:
    assert "toys" in looks["help"]
    assert "List the agents of a server that speaks the toy protocol." in looks["toys"]
    assert "interlingua toys" in looks["commands"]


def test_parity_has_its_rows(looks: dict[str, Any]) -> None:
    assert "served on `toy`" in looks["parity"]
    assert "`toy` door, questions with choices. It is a toy." in looks["parity"]

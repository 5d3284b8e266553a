"""Loaders say where the code of an agent is: its source, which its runs belong to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import interlingua as il
from interlingua.model.card import AgentCard
from interlingua.protocols import targets
from interlingua.protocols.targets import Target, parse
from interlingua.server.config.build import mounts as mounts_of
from interlingua.server.config.load import read
from interlingua.server.config.settings import Mounting
from interlingua.server.loading import target as target_loading
from interlingua.server.loading.sources import Origin, Source
from interlingua.server.loading.target import load_to_serve
from interlingua.server.loading.team import load_team, team
from interlingua.server.mounts.supervisor import Supervised

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILE = """
import interlingua as il

@il.agent
async def {name}() -> str:
    return ""
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A project with its agents in a folder."""
    (tmp_path / "interlingua.toml").write_text('project = "shop"\n')
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "mail_agents.py").write_text(FILE.format(name="mailer"))
    return tmp_path


async def sources(target: str, root: Path | None = None) -> dict[str, str]:
    return {agent.card.name: agent.source for agent in await load_to_serve(parse(target), root)}


async def test_agents_of_a_file_belong_to_its_path_from_the_project_root(shop: Path) -> None:
    assert await sources(str(shop / "app" / "mail_agents.py")) == {"mailer": "file:app/mail_agents.py"}
    assert await sources(str(shop / "app" / "mail_agents.py"), shop / "app") == {"mailer": "file:mail_agents.py"}


async def test_a_file_that_is_loaded_again_has_the_same_source(shop: Path) -> None:
    source = Source(Origin("file", shop / "app" / "mail_agents.py"), shop)
    for _ in range(2):
        assert [agent.source for agent in await source.load()] == ["file:app/mail_agents.py"]


async def test_an_agent_that_a_file_has_from_a_module_belongs_to_the_file(shop: Path) -> None:
    """So an agent may move to a module of the project, and its runs go on."""
    (shop / "app" / "shop_library_of_mails.py").write_text(FILE.format(name="letter"))
    (shop / "app" / "served_agents.py").write_text("from shop_library_of_mails import letter\n")
    assert await sources(str(shop / "app" / "served_agents.py")) == {"letter": "file:app/served_agents.py"}


async def test_a_team_belongs_to_its_folder_and_so_do_its_members(shop: Path) -> None:
    shutil.copytree(EXAMPLES / "sales-team", shop / "teams" / "sales")
    found = await load_team(shop / "teams" / "sales", model="test:x", handlers=None, root=shop)
    assert found.source == "team:teams/sales"
    assert {part.source for part in found.parts()} == {"team:teams/sales"}
    assert team(shop / "teams" / "sales", model="test:x").source == "team:teams/sales"


@pytest.mark.parametrize(
    ("target", "source"),
    [
        ("http://127.0.0.1:8000#mailer", "mount:http://127.0.0.1:8000#mailer"),
        ("mcp+https://user:secret@host/mcp/", "mount:mcp+https://host/mcp#mailer"),
        ("acp://host:7801/a-secret-token", "mount:acp://host:7801/…#mailer"),
        ("tcp://host:7801/a-secret-token", "mount:tcp://host:7801/…#mailer"),
        ("connect+http://host/?token=secret", "mount:connect+http://host/?token=***#mailer"),
        ("mcp:npx server -y", "mount:mcp:npx server -y#mailer"),
    ],
)
def test_a_mounted_agent_belongs_to_its_target_without_secrets(target: str, source: str) -> None:
    assert targets.source_of_mount(parse(target), "mailer") == source
    assert "secret" not in source


async def test_an_agent_that_is_mounted_has_the_source_that_it_had_while_it_was_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def load(target: Target) -> list[il.Agent[..., object]]:
        @il.agent(version="1.0")
        async def mailer() -> str:
            return ""

        return [mailer]

    monkeypatch.setattr(target_loading, "mount_of", lambda scheme: load)
    config = read(None, {"mounts": ['{"target": "connect+http://far:1", "prefix": "far-"}']}, environ={})
    (entry,) = mounts_of(config)
    card = AgentCard("mailer", "1.0")
    async with il.Engine(tmp_path / "store.db") as engine:
        mount = Supervised(engine, entry, Mounting())
        down = mount._stand_in(card)
        (real,) = await load_to_serve(entry.target)
        up = mount._dressed(real)
        assert down.source == up.source == real.source == "mount:connect+http://far:1#mailer"
        assert engine.agents.queue(down) == engine.agents.queue(up)

"""A package that is not installed is reported before anything runs, once, with the command, and never tried again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import interlingua as il
from interlingua.bus.open import open_bus
from interlingua.extras import MissingExtra, require
from interlingua.models.provider import check_installed
from interlingua.protocols.peer.discovery import dnssd
from interlingua.server.http_server import _hypercorn
from interlingua.store.open import migrate, open_store

LEAD = {"id": "lead", "system_prompt": "You lead.", "allowed_agents": [], "mcp_bindings": [], "delegate_rules": {}}


@pytest.mark.parametrize(
    ("module", "extra", "use"),
    [
        ("psycopg", "postgres", lambda: open_store("postgresql://h/db")),
        ("psycopg", "postgres", lambda: migrate("postgresql://h/db")),
        ("nats", "nats", lambda: open_bus("nats://h")),
        ("hypercorn", "http2", lambda: _hypercorn(*[None] * 5)),  # type: ignore[arg-type]
        ("zeroconf", "dnssd", dnssd.check_installed),
        ("pydantic_ai", "llm", lambda: check_installed("openai:gpt-5")),
    ],
)
def test_a_missing_package_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, module: str, extra: str, use: object
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra) as missing:
        use()  # type: ignore[operator]
    assert not missing.value.transient
    assert missing.value.message.count(f"pip install 'interlingua[{extra}]'") == 1


def test_the_library_of_a_provider_is_looked_for_too() -> None:
    with pytest.raises(il.InterlinguaError, match=r"pip install 'pydantic-ai-slim\[cohere\]'") as missing:
        check_installed("cohere:command")
    assert not missing.value.transient


def test_a_team_with_tool_servers_is_not_loaded_without_what_reaches_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lead.json").write_text(json.dumps(LEAD))
    (tmp_path / "team.json").write_text(json.dumps({"entry": "lead", "servers": {"db": {"command": "nothing"}}}))
    (tmp_path / "handlers.py").write_text(
        "import interlingua as il\n\n@il.agent\nasync def lead(text: str) -> str:\n    return text\n"
    )
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match=r"pip install 'interlingua\[teams\]'"):
        il.team(tmp_path)


def test_a_command_says_it_once(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(
        "import sys\nsys.modules['psycopg'] = None\nimport interlingua as il\n\n"
        "@il.agent\nasync def echo(text: str) -> str:\n    return text\n"
    )
    code = "import sys; sys.modules['psycopg'] = None; from interlingua.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "worker", "agents.py", "--store", "postgresql://h/db"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.count("pip install 'interlingua[postgres]'") == 1
    assert "Traceback" not in done.stderr


async def test_a_step_is_not_tried_again_for_a_missing_package(tmp_path: Path) -> None:
    attempts = 0

    def needs_it() -> None:
        nonlocal attempts
        attempts += 1
        require("this step", "a package", "teams", "no_such_module")

    @il.agent
    async def works(ctx: il.Context[None, None]) -> str:
        await ctx.step("needs it", needs_it, retries=5, backoff=0)
        return "done"

    async with il.Engine(tmp_path / "store.db", agents=[works]) as engine:
        run = await engine.runs.submit(il.RunRequest("works", input={}))
        view = await engine.runs.wait(run.id, timeout=20)
        assert view.error is not None
        assert "pip install 'interlingua[teams]'" in view.error.message
    assert attempts == 1

"""Giving runs to the code of another target."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from interlingua.model.run_identity import mount_source
from tests.kit.commands import Result
from tests.kit.servers import started
from tests.kit.terminal import Terminal

Cli = Callable[..., Result]

MAILER = """
import interlingua as il

@il.agent(asks=[il.Confirm])
async def mailer(ctx: il.Context[None, None]) -> str:
    return str((await ctx.ask(il.Confirm("Send it?"))).approved)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Two agents files of one project, with an agent of the same name."""
    (tmp_path / "interlingua.toml").write_text('project = "shop"\n')
    for name in ("old.py", "new.py"):
        (tmp_path / name).write_text(MAILER)
    (tmp_path / "others.py").write_text(MAILER.replace("def mailer", "def other"))
    return tmp_path


def waiting(cli: Cli) -> str:
    done = cli("run", "old.py", "--json")
    assert done.code == 4, done.err
    return str(done.lines[0]["run"])


def origin_of(cli: Cli, run: str) -> str:
    return str(cli("runs", "show", run, "--json").json["origin"])


def test_a_run_goes_on_with_the_code_of_another_file_after_it_was_moved(cli: Cli, shop: Path) -> None:
    run = waiting(cli)
    old = origin_of(cli, run)
    assert old.endswith(" file:old.py")
    assert cli("runs", "answer", run, "y").code == 0
    done = cli("runs", "move", run, "--to", "new.py")
    assert (done.code, done.out) == (0, f"run {run[-8:]} of mailer is moved to {old.replace('old.py', 'new.py')}\n")
    shown = cli("runs", "show", run)
    assert f"from {old.strip()} mailer@0.1.0 to {origin_of(cli, run).strip()} mailer@0.1.0" in shown.out
    done = cli("run", "new.py", "--resume", run)
    assert (done.code, done.out) == (0, "True\n")


def test_a_run_is_not_resumed_with_the_code_of_another_file(cli: Cli, shop: Path) -> None:
    run = waiting(cli)
    done = cli("run", "new.py", "--resume", run)
    assert done.code == 2
    assert f"run {run} belongs to the code of {origin_of(cli, run).strip()}" in done.err
    assert f"interlingua runs move {run[-8:]} --to" in done.err


def test_all_runs_of_an_origin_are_moved_after_the_count_was_shown(
    cli: Cli, shop: Path, terminal: Callable[..., Terminal]
) -> None:
    runs = [waiting(cli), waiting(cli)]
    done = cli("runs", "move", "--from", "file:old.py", "--to", "new.py")
    assert done.code == 2
    assert "this would move 2 runs to new.py" in done.err
    assert "say --yes" in done.err
    assert all(origin_of(cli, run).endswith("file:old.py") for run in runs)
    at = terminal("runs", "move", "--from", "file:old.py", "--to", "new.py")
    at.see("2 of mailer 0.1.0")
    at.see("move 2 runs to new.py? [y/n]")
    at.sendline("n")
    at.see("nothing was moved")
    assert at.finish() == 1
    done = cli("runs", "move", "--from", "file:old.py", "--to", "new.py", "--yes", "--json")
    assert done.code == 0
    assert {one["run"] for one in done.json} == set(runs)
    assert all(origin_of(cli, run).endswith("file:new.py") for run in runs)
    again = cli("runs", "move", "--from", "file:old.py", "--to", "new.py", "--yes")
    assert again.code == 3
    assert "file:new.py" in again.err


def test_a_run_moves_only_to_an_agent_of_its_name(cli: Cli, shop: Path) -> None:
    run = waiting(cli)
    done = cli("runs", "move", run, "--to", "others.py")
    assert done.code == 3
    assert "the target has no agent mailer" in done.err
    assert origin_of(cli, run).endswith("file:old.py")


@pytest.mark.parametrize("args", [[], ["last", "--from", "file:old.py"]])
def test_one_run_is_named_or_an_origin(cli: Cli, shop: Path, args: list[str]) -> None:
    done = cli("runs", "move", *args, "--to", "new.py")
    assert done.code == 2
    assert "name one run, or an origin" in done.err


def test_the_store_is_that_of_the_targets_project(cli: Cli, tmp_path: Path, env: dict[str, str]) -> None:
    for name in ("INTERLINGUA_STORE", "INTERLINGUA_PROJECT"):
        env.pop(name, None)
    inner = tmp_path / "inner"
    (inner / "app").mkdir(parents=True)
    (inner / "interlingua.toml").write_text('project = "inner"\n')
    for name in ("old.py", "app/new.py"):
        (inner / name).write_text(MAILER)
    run = cli("run", "inner/old.py", "--json").lines[0]["run"]
    done = cli("runs", "move", "last", "--to", "inner/app/new.py", "--json")
    assert done.json == [{"run": run, "agent": "mailer", "origin": "inner file:app/new.py", "problem": ""}]


def test_a_run_is_not_moved_to_code_of_another_project(cli: Cli, tmp_path: Path, env: dict[str, str]) -> None:
    for name in ("INTERLINGUA_STORE", "INTERLINGUA_PROJECT"):
        env.pop(name, None)
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "agents.py").write_text(MAILER)
    (tmp_path / "ours" / "interlingua.toml").write_text('project = "ours"\n')
    run = str(cli("run", "ours/agents.py", "--json").lines[0]["run"])
    store = ("--store", "ours/.interlingua/store.db")
    one, all_ = ("runs", "move", run), ("runs", "move", "--from", "file:agents.py", "--yes")
    for words in (one, all_):
        unnamed = cli(*words, "--to", "theirs/agents.py", *store)
        assert unnamed.code == 2
        assert 'project = "theirs"' in unnamed.err
    (tmp_path / "theirs" / "interlingua.toml").write_text('project = "theirs"\n')
    for words in (one, all_):
        named = cli(*words, "--to", "theirs/agents.py", *store)
        assert named.code == 5
        assert "belongs to project ours" in named.err
    assert cli("runs", "show", run, "--json", *store).json["origin"] == "ours file:agents.py"
    assert [event["kind"] for event in cli("runs", "log", run, "--json", *store).lines].count("moved") == 0


def stdio_of(folder: Path, file: str) -> str:
    """A target whose agents are those of a file, in a process and a project of its own."""
    words = shlex.join([sys.executable, "-m", "interlingua", "stdio", "--as", "mcp", str(folder / file)])
    return f"mcp:{words} --store {folder / 'there.db'}"


def mounted(shop: Path, **entry: str) -> None:
    lines = [f"{name} = {json.dumps(value)}" for name, value in entry.items()]
    (shop / "interlingua.toml").write_text("\n".join(['project = "shop"', "[[mounts]]", *lines, ""]))


def test_a_run_moves_to_a_mount_that_calls_its_agent_so(cli: Cli, shop: Path) -> None:
    run, target = waiting(cli), stdio_of(shop, "others.py")
    mounted(shop, target=target, **{"as": "mailer"})
    done = cli("runs", "move", run, "--to", target)
    assert done.code == 0, done.err
    assert origin_of(cli, run).endswith("#other")
    second = waiting(cli)
    mounted(shop, target=target, prefix="their-")
    done = cli("runs", "move", second, "--to", target)
    assert done.code == 3
    assert "the target has no agent mailer; a run moves to an agent of its name (it has: their-other)" in done.err
    assert origin_of(cli, second).endswith("file:old.py")


@pytest.mark.parametrize("name", [{"as": "post"}, {"prefix": "their-"}])
def test_a_run_of_a_mount_with_a_name_of_its_own_moves_to_another_mount(
    cli: Cli, shop: Path, env: dict[str, str], name: dict[str, str]
) -> None:
    old, new = stdio_of(shop, "old.py"), stdio_of(shop, "new.py")
    mounted(shop, target=old, **name)
    with started(["serve", "--port", "0", "--no-peer-ports"], env, shop) as server:
        begun = cli("run", f"{server.address}#{name.get('as', 'their-mailer')}", "--no-input")
        assert begun.code == 4, begun.err
    done = cli("runs", "move", "last", "--to", new)
    assert done.code == 0, done.err
    assert origin_of(cli, "last").endswith(f"{mount_source(new, 'mailer')}")
    mounted(shop, target=old, **name)
    done = cli("runs", "move", "last", "--to", old)
    assert done.code == 0, done.err
    assert origin_of(cli, "last").endswith(f"{mount_source(old, 'mailer')}")

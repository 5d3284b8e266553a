"""Two projects of one user: each has its own store, questions and keys, although their agents have the same names."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from tests.kit.commands import PATIENCE, Result, start_command
from tests.kit.servers import started

Run = Callable[..., Result]

AGENTS = '''
import interlingua as il


class Approval(il.Question[il.Verdict]):
    """{name}: Send it?"""


@il.agent(asks=[Approval])
async def mailer(text: str, ctx: il.Context):
    """Asks before it sends."""
    verdict = await ctx.ask(Approval())
    yield "{name} sent it" if verdict.approved else "not sent"
'''

TWO_QUESTIONS = """
import asyncio
import interlingua as il


@il.agent(asks=[il.Confirm])
async def payer(ctx: il.Context[None, None]) -> str:
    answers = await asyncio.gather(ctx.ask(il.Confirm("Pay 1?")), ctx.ask(il.Confirm("Pay 1000000?")))
    return " ".join(str(answer.approved) for answer in answers)
"""


@pytest.fixture
def env(env: dict[str, str]) -> dict[str, str]:
    """Nobody names a store or a project."""
    return {name: value for name, value in env.items() if name not in ("INTERLINGUA_STORE", "INTERLINGUA_PROJECT")}


@pytest.fixture
def projects(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("A", "B"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "agents.py").write_text(AGENTS.replace("{name}", name))
    return tmp_path / "A", tmp_path / "B"


@pytest.fixture
def at(env: dict[str, str]) -> Run:
    """Run a command in a folder."""

    def run(folder: Path, *args: str, **extra: str) -> Result:
        process = start_command(args, {**env, **extra}, folder, stdin=subprocess.DEVNULL)
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        return Result(subprocess.CompletedProcess(args, process.wait(), out, err))

    return run


def test_two_projects_with_an_agent_of_the_same_name_do_not_touch_each_other(
    at: Run, projects: tuple[Path, Path]
) -> None:
    for folder in projects:
        done = at(folder, "run", "agents.py", "hello")
        assert done.code == 4, done.err
        assert "store: .interlingua/store.db" in done.err
    for folder in projects:
        (question,) = at(folder, "questions", "--json").json
        assert question["prompt"] == f"{folder.name}: Send it?"
        answered = at(folder, "questions", "answer", question["id"], "y")
        assert answered.code == 0
        assert f"{folder.name}: Send it?" in answered.err, "what is approved is printed"
        assert at(folder, "run", "agents.py", "--resume", "last").out.strip() == f"{folder.name} sent it"


def test_a_key_of_one_project_does_nothing_at_the_server_of_another(
    at: Run, env: dict[str, str], projects: tuple[Path, Path]
) -> None:
    ours, theirs = projects
    with started(["serve", "agents.py", "--port", "0", "--no-peer-ports"], env, theirs) as server:
        search = f"{server.address}/connect/agents/search"
        assert at(ours, "keys", "add", "laptop").code == 0
        assert httpx2.post(search, json={}).status_code == 200
        assert at(theirs, "keys", "list").out.startswith("No keys.")


def test_a_command_that_only_looks_says_where_it_looked_and_makes_nothing(at: Run, projects: tuple[Path, Path]) -> None:
    folder, _ = projects
    for words in (
        ("runs", "list"), ("questions", "list"), ("threads", "list"), ("workers",), ("callbacks", "list"),
        ("keys", "list"), ("audit", "tree", "last"), ("store", "check"), ("questions", "answer", "1a2b", "y"),
    ):  # fmt: skip
        done = at(folder, *words)
        assert done.code == 3, (words, done.err)
        assert f"the project in {folder} has no store yet: there is no {folder}/.interlingua/store.db" in done.err
        named = at(folder, *words, "--store", "absent/store.db")
        assert named.code == 3
        assert "there is no store absent/store.db" in named.err
    assert [file.name for file in folder.iterdir()] == ["agents.py"]


def test_a_signing_key_that_comes_before_the_store_is_ignored_by_git(at: Run, projects: tuple[Path, Path]) -> None:
    folder, _ = projects
    assert at(folder, "audit", "key").code == 0
    assert (folder / ".interlingua" / ".gitignore").read_text() == "*\n"
    assert (folder / ".interlingua" / "store.db.key").exists()


def test_a_store_of_one_project_is_refused_to_another(at: Run, projects: tuple[Path, Path], tmp_path: Path) -> None:
    ours, theirs = projects
    shared = str(tmp_path / "shared.db")
    unnamed = at(ours, "run", "agents.py", "hi", "--store", shared)
    assert unnamed.code == 2
    assert 'project = "A"' in unnamed.err
    assert not (tmp_path / "shared.db").exists()
    for folder in projects:
        (folder / "interlingua.toml").write_text(f'project = "{folder.name}"\n')
    assert at(ours, "run", "agents.py", "hi", "--store", shared).code == 4
    refused = at(theirs, "run", "agents.py", "hi", "--store", shared)
    assert refused.code == 5
    assert "belongs to project A" in refused.err
    assert at(theirs, "run", "agents.py", "hi", "--store", shared, INTERLINGUA_PROJECT="A").code == 4


def test_a_folder_that_is_not_there_is_not_made_for_a_store(at: Run, projects: tuple[Path, Path]) -> None:
    folder, _ = projects
    done = at(folder, "run", "agents.py", "hi", "--store", "absent/s.db", INTERLINGUA_PROJECT="A")
    assert done.code == 2
    assert "there is no folder absent; make it first" in done.err
    assert not (folder / "absent").exists()


@pytest.mark.parametrize("name", [".", "inner"])
def test_a_folder_is_no_store(at: Run, projects: tuple[Path, Path], name: str) -> None:
    folder, _ = projects
    (folder / "inner").mkdir()
    done = at(folder, "run", "agents.py", "hi", "--store", name, INTERLINGUA_PROJECT="A")
    assert done.code == 2
    assert "it is a folder; name a file in it" in done.err


def test_last_is_refused_without_a_terminal(at: Run, projects: tuple[Path, Path]) -> None:
    folder, _ = projects
    at(folder, "run", "agents.py", "hello")
    for command in ("questions", "runs"):
        done = at(folder, command, "answer", "last", "y")
        assert done.code == 2
        assert "`last` needs a terminal" in done.err
    (question,) = at(folder, "questions", "--json").json
    assert at(folder, "runs", "answer", question["id"], "y").code == 0


def test_a_run_that_asks_several_questions_does_not_say_which_one_is_answered(
    at: Run, projects: tuple[Path, Path]
) -> None:
    folder, _ = projects
    (folder / "agents.py").write_text(TWO_QUESTIONS)
    at(folder, "run", "agents.py")
    asked = at(folder, "questions", "--json").json
    done = at(folder, "runs", "answer", asked[0]["run"], "y")
    assert done.code == 2
    for question, prompt in zip(asked, ("Pay 1?", "Pay 1000000?"), strict=True):
        assert f"{question['id'][-8:]}  {prompt}" in done.err
    assert len(at(folder, "questions", "--json").json) == 2
    assert at(folder, "runs", "answer", asked[1]["id"], "n").code == 0
    assert at(folder, "runs", "answer", asked[0]["run"], "y").code == 0


def test_revoking_the_last_key_says_what_happens_and_how_to_open_the_server_again(
    at: Run, env: dict[str, str], projects: tuple[Path, Path]
) -> None:
    folder, _ = projects
    at(folder, "keys", "add", "laptop")
    at(folder, "keys", "add", "other")
    assert "last valid key" not in at(folder, "keys", "revoke", "other").err
    said = at(folder, "keys", "revoke", "laptop").err
    assert "refuse every caller" in said
    assert "interlingua keys add NAME" in said
    with started(["serve", "agents.py", "--port", "0", "--no-peer-ports"], env, folder) as server:
        search = f"{server.address}/connect/agents/search"
        assert httpx2.post(search, json={}).status_code == 401
        secret = at(folder, "keys", "add", "new").out.strip()
        assert httpx2.post(search, json={}, headers={"x-api-key": secret}).status_code == 200

"""A server that takes up what has changed while it runs: by SIGHUP, or by looking at its files all the time."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pexpect
import pytest

from tests.kit.commands import COMMAND
from tests.kit.servers import Process, started
from tests.kit.wait_for import PATIENCE

CREW = Path(__file__).parent.parent / "cli" / "crew"
AGENTS = """import asyncio

import interlingua as il

@il.agent
async def say(text: str) -> str:
    return "old"

@il.agent
async def stream(gate: str):
    yield "old begins, "
    with open(gate) as pipe:
        await asyncio.to_thread(pipe.readline)
    yield "old ends"

@il.agent(asks=[il.Confirm])
async def ask(ctx: il.Context[None, None]) -> str:
    await ctx.ask(il.Confirm("Go on?"))
    return "old"

@il.agent(process=True)
def work() -> str:
    return "old"
"""
NEW = AGENTS.replace("old", "new")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "agents.py").write_text(AGENTS)
    return tmp_path


def serve(env: dict[str, str], home: Path, *args: str) -> AbstractContextManager[Process]:
    return started(["serve", *args, "--port", "0", "--no-peer-ports"], env, home)


def hang_up(server: Process, last: str) -> None:
    """Have it reload, and wait until it says this."""
    server.popen.send_signal(signal.SIGHUP)
    server.read_until(last)


def at(server: Process) -> str:
    return server.address + "/connect"


def run(server: Process, agent: str, given: Any = None) -> Any:
    body = {"agent_id": agent, "input": {"text": "x"} if given is None else given}
    answer = httpx2.post(f"{at(server)}/runs/wait", json=body, timeout=PATIENCE).json()["output"]
    return answer["values"]["text"] if answer["type"] == "result" else answer


def names(server: Process) -> list[str]:
    found = httpx2.post(f"{at(server)}/agents/search", json={}).json()
    return sorted(one["metadata"]["ref"]["name"] for one in found)


@contextmanager
def streaming(server: Process, home: Path) -> Iterator[tuple[Iterator[str], Callable[[], None]]]:
    """A run that has said its first words: its lines, and what opens the gate that it waits at."""
    gate = home / f"gate-{os.urandom(4).hex()}"
    os.mkfifo(gate)
    pipe = os.open(gate, os.O_RDWR)

    def go_on() -> None:
        os.write(pipe, b"go on\n")

    body = {"agent_id": "stream", "input": {"gate": str(gate)}, "stream_mode": "custom"}
    try:
        with httpx2.stream("POST", f"{at(server)}/runs/stream", json=body, timeout=PATIENCE) as answer:
            lines = answer.iter_lines()
            first = next(line for line in lines if "begins" in line)
            assert "begins" in first
            yield lines, go_on
    finally:
        go_on()  # whatever went wrong: the server could not end
        os.close(pipe)


# -- SIGHUP ---------------------------------------------------------------------------------------------------


def test_a_hangup_while_a_run_streams_drops_nothing_and_new_runs_have_the_new_code(
    env: dict[str, str], home: Path
) -> None:
    with serve(env, home, "agents.py") as server:
        assert (run(server, "say"), run(server, "work", {})) == ("old", "old")
        with streaming(server, home) as (lines, go_on):
            (home / "agents.py").write_text(NEW)
            hang_up(server, "agents.py is reloaded: say@0.1.0, stream@0.1.0, ask@0.1.0, work@0.1.0")
            assert (run(server, "say"), run(server, "work", {})) == ("new", "new")
            go_on()
            rest = "".join(lines)
        assert "old ends" in rest
        assert "new" not in rest
        with streaming(server, home) as (lines, go_on):
            go_on()
            assert "new ends" in "".join(lines)


def test_a_run_that_waits_is_entered_with_the_new_code_and_one_of_a_version_that_is_gone_with_the_last(
    env: dict[str, str], home: Path
) -> None:
    (home / "interlingua.toml").write_text('[limits]\npark_after = 0\n[[agents]]\nfile = "agents.py"\n')

    def ask() -> str:
        body = {"agent_id": "ask", "input": {}}
        told = httpx2.post(f"{at(server)}/runs/wait", json=body, timeout=PATIENCE).json()
        assert told["output"]["type"] == "interrupt", told
        return str(told["run"]["run_id"])

    def answer(waiting: str) -> str:
        httpx2.post(f"{at(server)}/runs/{waiting}", json={"approved": True}).raise_for_status()
        told = httpx2.get(f"{at(server)}/runs/{waiting}/wait", timeout=PATIENCE).json()
        return str(told["output"]["values"]["text"])

    with serve(env, home) as server:
        waiting = ask()
        (home / "agents.py").write_text(NEW)
        hang_up(server, "is reloaded")
        assert answer(waiting) == "new"
        waiting = ask()
        newest = NEW.replace("new", "newest").replace("@il.agent(asks", '@il.agent(version="2.0", asks')
        (home / "agents.py").write_text(newest)
        hang_up(server, "ask@2.0")
        assert answer(waiting) == "new", "there is no newer code of that version"
        assert answer(ask()) == "newest"


def test_a_file_that_does_not_load_keeps_its_agents_and_says_what_is_wrong_until_it_is_mended(
    env: dict[str, str], home: Path
) -> None:
    with serve(env, home, "agents.py") as server:
        (home / "agents.py").write_text("def broken(:\n")
        hang_up(server, "what was loaded before stays")
        assert "SyntaxError" in server.said
        assert run(server, "say") == "old"
        hang_up(server, "what was loaded before stays")
        for end in ("import sys\nsys.exit(2)\n", "raise KeyboardInterrupt\n"):
            (home / "agents.py").write_text(end)
            hang_up(server, "what was loaded before stays")
            assert run(server, "say") == "old"
        (home / "agents.py").write_text(NEW)
        hang_up(server, "is reloaded")
        assert run(server, "say") == "new"
        hang_up(server, "nothing has changed")


def test_what_the_file_says_of_agents_and_mounts_is_taken_up_and_the_rest_needs_a_restart(
    env: dict[str, str], home: Path
) -> None:
    (home / "other.py").write_text(
        "import interlingua as il\n\n@il.agent\nasync def other(text: str) -> str:\n    return text\n"
    )
    config = home / "interlingua.toml"
    config.write_text('[[agents]]\nfile = "agents.py"\nonly = ["say", "stream"]\n')
    far = {**env, "INTERLINGUA_STORE": str(home / "far.db")}
    with serve(env, home) as server, serve(far, home, "other.py") as other:
        assert names(server) == ["say", "stream"]
        with streaming(server, home) as (lines, go_on):
            config.write_text(
                f'[server]\nshutdown_grace = 5\n[callbacks]\nsecret = "sesame"\n[[agents]]\nfile = "other.py"\n'
                f'[[mounts]]\ntarget = "connect+{at(other)}"\nprefix = "far-"\n'
            )
            hang_up(server, "is up; agents: far-other@0.1.0")
            assert "needs a restart: server.shutdown_grace (3 → 5), callbacks.secret" in server.said
            assert "sesame" not in server.said
            assert "agents.py is served no more" in server.said
            assert "other.py is served: other@0.1.0" in server.said
            assert names(server) == ["far-other", "other"]
            assert run(server, "far-other") == "x"
            go_on()
            assert "old ends" in "".join(lines)
        config.write_text("[serverr]\n")
        hang_up(server, "did you mean server?")
        assert names(server) == ["far-other", "other"]
        config.write_text('[[agents]]\nfile = "other.py"\n')
        hang_up(server, "no longer mounted")
        assert names(server) == ["other"]


def test_an_agent_can_move_from_one_file_to_another_and_two_of_one_name_cannot_be(
    env: dict[str, str], home: Path
) -> None:
    one = "import interlingua as il\n\n@il.agent\nasync def {}(text: str) -> str:\n    return '{}'\n"
    (home / "a.py").write_text(one.format("x", "x of a"))
    (home / "b.py").write_text(one.format("y", "y of b"))
    with serve(env, home, "a.py", "b.py") as server:
        (home / "a.py").write_text(one.format("y", "y of a"))
        (home / "b.py").write_text(one.format("x", "x of b"))
        hang_up(server, "b.py is reloaded")
        assert (run(server, "x"), run(server, "y")) == ("x of b", "y of a")
        (home / "b.py").write_text(one.format("y", "y of b"))
        hang_up(server, "there are two agents y@0.1.0")
        assert (run(server, "x"), run(server, "y")) == ("x of b", "y of a"), "what was there stays"


# -- --reload -------------------------------------------------------------------------------------------------


def test_with_reload_files_of_agents_what_they_import_and_the_config_are_watched(
    env: dict[str, str], home: Path
) -> None:
    (home / "agents.py").write_text(
        "import interlingua as il\nimport words\n\n@il.agent\nasync def say(text: str) -> str:\n    return words.ONE\n"
    )
    (home / "words.py").write_text("from more import ONE\n")
    (home / "more.py").write_text("ONE = 'one'\n")
    config = home / "interlingua.toml"
    config.write_text('[[agents]]\nfile = "agents.py"\n')
    with serve(env, home, "--reload") as server:
        assert run(server, "say") == "one"
        (home / "more.py").write_text("ONE = 'two'\n")
        server.read_until("agents.py is reloaded")
        assert run(server, "say") == "two"
        (home / "words.py").write_text("ONE = 'three'\n")
        server.read_until("agents.py is reloaded")
        assert run(server, "say") == "three"
        (home / "agents.py").write_text("no python\n")
        server.read_until("what was loaded before stays")
        assert r"\x0a" not in server.said
        assert re.search(r"(?m)^    .*no python", server.said), "an error keeps its lines"
        config.write_text('[[agents]]\nfile = "agents.py"\n[[agents]]\nfile = "soon.py"\n')
        server.read_until("there is no file")
        (home / "soon.py").write_text(AGENTS)
        server.read_until("there are two agents say@0.1.0")
        assert (run(server, "say"), names(server)) == ("three", ["say"])
        (home / "agents.py").write_text(AGENTS.replace("def ", "def other_"))
        server.read_until("soon.py is reloaded")
        assert run(server, "say") == "old"


def test_with_reload_the_folder_of_a_team_is_watched(env: dict[str, str], home: Path) -> None:
    shutil.copytree(CREW, home / "crew", ignore=shutil.ignore_patterns("__pycache__"))
    with serve(env, home, "agents.py", "team:crew", "--reload") as server:
        before = names(server)
        team = next(name for name in before if name not in ("say", "stream", "ask", "work"))
        described = (home / "crew" / "team.toml").read_text()
        (home / "crew" / "team.toml").write_text(described + "\n[broken\n")
        server.read_until("what was loaded before stays")
        assert names(server) == before
        (home / "crew" / "team.toml").write_text(described.replace(f'name = "{team}"', 'name = "troupe"'))
        server.read_until("crew is reloaded: troupe@")
        assert "troupe" in names(server)
        assert team not in names(server)


def test_where_the_terminal_is_gone_a_hangup_ends_the_server(home: Path, env: dict[str, str]) -> None:
    args = [*COMMAND[1:], "serve", "agents.py", "--port", "0", "--no-peer-ports"]
    child = pexpect.spawn(COMMAND[0], args, env=env, cwd=str(home), encoding="utf-8", timeout=30)
    child.expect("Ctrl-C stops")
    child.kill(signal.SIGHUP)
    child.expect("nothing has changed")  # its terminal is there
    os.close(child.child_fd)  # the terminal is gone, and the kernel says so
    assert os.waitpid(child.pid, 0)[1] == 0
    child.closed, child.child_fd, child.terminated = True, -1, True

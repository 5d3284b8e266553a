"""`interlingua run ADDRESS`: a client of the server there, which keeps the run."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.commands import PATIENCE, Result, start_command
from tests.kit.servers import Process, started
from tests.kit.terminal import Terminal
from tests.protocols.mcp.mount_web import served as foreign_mcp

AGENTS = '''
import interlingua as il


class Letter(il.Question[il.Verdict]):
    """Send the letter?"""


class Bill(il.Question[il.Verdict]):
    """Send the bill?"""


@il.agent(asks=[Letter, Bill])
async def mailer(text: str, ctx: il.Context):
    """Asks twice before it sends."""
    yield f"to {text}: "
    for question in (Letter(), Bill()):
        verdict = await ctx.ask(question)
        if not verdict.approved:
            yield "not sent"
            return
    with open("sent", "a") as file:
        file.write(f"{text}\\n")
    yield "sent"
'''

Run = Callable[..., Result]
ATTACHABLE = ["connect", "cap", "mcp", "peer", "acp", "editor+http", "editor+ws"]
"""Protocols whose runs are found by the id that the first command printed. `acp` is peer over a connection."""


@pytest.fixture
def env(env: dict[str, str]) -> dict[str, str]:
    """Nobody names a store or a project."""
    return {name: value for name, value in env.items() if name not in ("INTERLINGUA_STORE", "INTERLINGUA_PROJECT")}


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The project of the server; its client works in the folder above."""
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "agents.py").write_text(AGENTS)
    return folder


@pytest.fixture
def server(env: dict[str, str], there: Path) -> Iterator[Process]:
    ports = [word for door in ("port", "peer-port", "peer-http-port") for word in (f"--{door}", "0")]
    with started(["serve", "agents.py", *ports], env, there) as process:
        yield process


@pytest.fixture
def at(env: dict[str, str]) -> Run:
    """Run a command in a folder."""

    def run(folder: Path, *args: str) -> Result:
        process = start_command(args, env, folder, stdin=subprocess.DEVNULL)
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        return Result(subprocess.CompletedProcess(args, process.wait(), out, err))

    return run


def mailer(server: Process, protocol: str) -> str:
    if protocol == "acp":
        return f"{server.link}#mailer"
    if protocol.startswith("editor+"):
        return f"{protocol}{server.address.removeprefix('http')}/editor#mailer"
    return f"{protocol}+{server.address}/{protocol}#mailer"


def shown(target: str) -> str:
    """A target without the token of its link."""
    return re.sub(r"/tok_\w+", "/…", target)


def printed(text: str) -> str:
    found = re.search(r"run (\S+) at \S+#mailer", text)
    assert found is not None, text
    return found[1]


def answer(at: Run, there: Path, what: str) -> None:
    """Answers the only question that is open at the server, and waits until the server has asked the next one."""
    (question,) = at(there, "questions", "--json").json
    assert question["prompt"] == f"Send {what}?"
    assert at(there, "questions", "answer", question["id"], "y").code == 0
    until = time.monotonic() + PATIENCE
    while what == "the letter" and prompts(at, there) != ["Send the bill?"]:
        assert time.monotonic() < until, "the bill was not asked for"


def prompts(at: Run, there: Path) -> list[str]:
    listed: Any = at(there, "questions", "--json").json
    return [question["prompt"] for question in listed]


def runs(at: Run, there: Path) -> list[tuple[str, str]]:
    listed: Any = at(there, "runs", "list", "--json").json
    return [(run["id"], run["status"]) for run in listed]


@pytest.mark.parametrize("protocol", ATTACHABLE)
def test_a_run_at_an_address_is_the_servers_and_goes_on_by_its_id(
    at: Run, server: Process, there: Path, tmp_path: Path, protocol: str
) -> None:
    target = mailer(server, protocol)
    begun = at(tmp_path, "run", target, "ada", "--no-input")
    assert begun.code == 4, begun.err
    id_ = printed(begun.err)
    ((run, status),) = runs(at, there)
    assert status == "waiting"
    assert id_ == run or not protocol.startswith(("connect", "cap", "mcp")), "the others have ids of their own"
    assert f"interlingua run {shown(target)} --attach {id_}" in begun.err
    assert "questions answer" not in begun.err, "there is no store here in which it could be answered"
    answer(at, there, "the letter")
    again = at(tmp_path, "run", target, "--attach", id_, "--no-input")
    assert again.code == 4, again.err
    assert printed(again.err) == id_
    assert "Send the bill?" in again.err
    assert again.err.count("question · ") == 1, "the letter was answered before"
    answer(at, there, "the bill")
    ended = at(tmp_path, "run", target, "--attach", id_)
    assert (ended.code, ended.out.strip()) == (0, "to ada: sent"), ended.err
    assert (there / "sent").read_text() == "ada\n"
    assert [status for _, status in runs(at, there)] == ["succeeded"]
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".interlingua")] == []


@pytest.mark.parametrize("protocol", ATTACHABLE)
def test_what_a_run_asks_is_answered_where_it_is_attached(
    at: Run, server: Process, there: Path, tmp_path: Path, terminal: Callable[..., Terminal], protocol: str
) -> None:
    target = mailer(server, protocol)
    id_ = printed(at(tmp_path, "run", target, "ada", "--no-input").err)
    answer(at, there, "the letter")
    client = terminal("run", target, "--attach", id_)
    client.see("Send the bill?")
    client.see("[y/n] ")
    client.sendline("y")
    client.see("sent\r\n")
    client.see(f"run {id_} succeeded")
    assert client.finish() == 0
    assert (there / "sent").read_text() == "ada\n"
    assert [status for _, status in runs(at, there)] == ["succeeded"]


def test_ctrl_c_cancels_the_run_at_the_server(
    at: Run, server: Process, there: Path, terminal: Callable[..., Terminal]
) -> None:
    client = terminal("run", f"{server.address}#mailer", "ada")
    client.see("[y/n] ")
    client.sendintr()
    client.see("cancelled")
    assert client.finish() == 130
    ((_, status),) = runs(at, there)
    assert status == "cancelled"


def test_an_id_that_the_server_does_not_have(at: Run, server: Process, tmp_path: Path) -> None:
    for protocol in ATTACHABLE:
        done = at(tmp_path, "run", mailer(server, protocol), "--attach", "absent")
        assert (done.code, done.out) == (3, ""), done.err
        (line,) = done.err.splitlines()
        assert line.startswith("error: ")
        assert "absent" in line


def test_the_session_of_version_2_goes_on_too(at: Run, env: dict[str, str], server: Process, tmp_path: Path) -> None:
    env["INTERLINGUA_EDITOR_VERSION"] = "2"
    target = mailer(server, "editor+http")
    id_ = printed(at(tmp_path, "run", target, "ada", "--no-input").err)
    answer(at, tmp_path / "there", "the letter")
    again = at(tmp_path, "run", target, "--attach", id_, "--no-input")
    assert again.code == 4, again.err
    assert "Send the bill?" in again.err
    answer(at, tmp_path / "there", "the bill")
    ended = at(tmp_path, "run", target, "--attach", id_)
    assert (ended.code, ended.out.strip()) == (0, "to ada: sent"), ended.err


def test_json_tells_the_id_on_stderr_alone(at: Run, server: Process, there: Path, tmp_path: Path) -> None:
    done = at(tmp_path, "run", f"{server.address}#mailer", "ada", "--json", "--no-input")
    assert done.code == 4
    assert {event["kind"] for event in done.lines} >= {"created", "asked"}
    assert runs(at, there) == [(printed(done.err), "waiting")]


def test_a_task_that_the_node_does_not_have_is_not_begun(at: Run, server: Process, there: Path, tmp_path: Path) -> None:
    target = mailer(server, "acp")
    id_ = printed(at(tmp_path, "run", target, "ada", "--no-input").err)
    done = at(tmp_path, "run", target, "--attach", re.sub(r"task_\w+", "task_absent", id_))
    assert done.code == 3
    assert "there is no run 'task_absent' at acp://" in done.err
    assert len(runs(at, there)) == 1


async def test_a_server_that_cannot_go_on_with_a_run_is_named_with_the_reason(at: Run, tmp_path: Path) -> None:
    async with foreign_mcp("stream") as other:
        target = f"mcp+{other.address}"
        refused = await asyncio.to_thread(at, tmp_path, "run", target, "--attach", "1a2b")
    assert refused.code == 2
    assert f"nothing can go on with a run at {target}: MCP has no request that finds a run" in refused.err


def test_looking_and_running_leave_few_lines_in_the_log(
    at: Run, env: dict[str, str], there: Path, tmp_path: Path
) -> None:
    with started(["serve", "agents.py", "--port", "0", "--no-peer-ports"], env, there) as process:
        assert at(tmp_path, "inspect", process.address).code == 0
        assert at(tmp_path, "run", process.address, "ada", "--no-input").code == 4
    told = [line for line in process.rest.splitlines() if " INFO " in line]
    assert len(told) <= 3, process.rest
    assert "of mailer created" in told[0]


def test_options_of_the_other_kind_of_run_are_refused(at: Run, there: Path, tmp_path: Path) -> None:
    for words, said, hint in (
        (("http://127.0.0.1:9#x", "--resume", "1a2b"), "the server at an address", "--attach 1a2b"),
        (("http://127.0.0.1:9#x", "hi", "--store", "s.db"), "the server at an address", ""),
        ((f"{there}/agents.py", "--attach", "1a2b"), "not an address", "--resume 1a2b"),
        (("http://127.0.0.1:9#x", "hi", "--attach", "1a2b"), "INPUT cannot change it", ""),
    ):
        done = at(tmp_path, "run", *words)
        assert done.code == 2, words
        assert said in done.err
        assert hint in done.err

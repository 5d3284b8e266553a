"""What a mounted agent may do on this machine: files and commands of one directory, within the policy."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.engine.handler.workspace import TerminalOutput
from interlingua.model.errors import Denied, InvalidRequest, NotFound
from interlingua.protocols.editor.mount.local_files import Directory
from tests.kit.engines import finish, question, submit
from tests.kit.mounts.editor import AGENT, act, alive, gone, mounted, script


def read(path: Any, **more: Any) -> str:
    return act("call", "fs/read_text_file", path=str(path), **more)


def write(path: Any, content: str) -> str:
    return act("call", "fs/write_text_file", path=str(path), content=content)


async def answers(eng: il.Engine, *lines: str, **options: Any) -> list[Any]:
    """What the agent was answered, call by call."""
    run = await finish(eng, AGENT, script(*(line for pair in ((line, "say ,") for line in lines) for line in pair)))
    assert run.output is not None, run.error
    return list(json.loads(f"[{run.output['text'].rstrip(',')}]"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with a neighbour, and links that lead there."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (inside / "a.txt").write_text("one\ntwo\nthree\n")
    (inside / "link").symlink_to(outside / "secret")
    (inside / "door").symlink_to(outside)
    (inside / "dangling").symlink_to(outside / "new")
    (inside / "near").symlink_to(inside / "a.txt")
    return inside


OUTSIDE = [
    "../outside/secret",
    "link",
    "door/secret",
    "dangling",
    "door/new",
    "sub/../../outside/secret",
    "/etc/passwd",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_nothing_leads_outside(home: Path, path: str) -> None:
    files = Directory(str(home))
    with pytest.raises(Denied):
        files.read(path)
    with pytest.raises(Denied):
        files.read(str(home / path) if not path.startswith("/") else path)
    with pytest.raises(Denied):
        files.write(path, "x")
    assert not (home.parent / "outside" / "new").exists()
    assert (home.parent / "outside" / "secret").read_text() == "secret"


def test_a_directory_whose_name_begins_the_same_is_outside(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work-other").mkdir()
    (tmp_path / "work-other" / "x").write_text("x")
    with pytest.raises(Denied):
        Directory(str(tmp_path / "work")).read(str(tmp_path / "work-other" / "x"))


def test_a_link_that_is_put_there_in_between_leads_nowhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if somebody swapped the file for a link right after it was looked at."""
    files = Directory(str(home))
    target = home / "sub" / "file"
    target.parent.mkdir()
    target.write_text("fine")
    resolve = files.resolve

    def swap(path: str) -> tuple[str, str]:
        found = resolve(path)
        target.unlink()
        target.parent.rmdir()
        target.parent.symlink_to(home.parent / "outside")
        return found

    monkeypatch.setattr(files, "resolve", swap)
    with pytest.raises(Denied):
        files.read("sub/file")
    assert not (home.parent / "outside" / "file").exists()


def test_lines_of_a_file(home: Path) -> None:
    files = Directory(str(home))
    assert files.read("a.txt") == "one\ntwo\nthree\n"
    assert files.read("a.txt", 2, 1) == "two\n"
    assert files.read("a.txt", 2) == "two\nthree\n"
    assert files.read("a.txt", None, 2) == "one\ntwo\n"
    assert files.read("a.txt", 99, 2) == ""
    assert files.read("near") == "one\ntwo\nthree\n", "a link that stays inside is fine"


def test_what_is_no_file_is_refused(home: Path) -> None:
    files = Directory(str(home))
    os.mkfifo(home / "pipe")
    for path in ("pipe", ".", ""):
        with pytest.raises(InvalidRequest):
            files.read(path)
    with pytest.raises(NotFound):
        files.read("missing")
    with pytest.raises(InvalidRequest):
        files.read("a\0b")


def test_writing_makes_what_is_missing_on_the_way(home: Path) -> None:
    files = Directory(str(home))
    files.write("new/deep/file.txt", "grün")
    assert (home / "new/deep/file.txt").read_text() == "grün"
    files.write("a.txt", "short")
    assert (home / "a.txt").read_text() == "short"


# -- through an agent -----------------------------------------------------------------------------------------


async def test_reading_is_allowed_inside_and_refused_outside(store: Path, home: Path) -> None:
    async with mounted(store, directory=str(home)) as (eng, _):
        inside, outside, missing = await answers(
            eng, read(home / "a.txt", line=1, limit=1), read("/etc/passwd"), read(home / "none")
        )
        assert inside == {"content": "one\n"}
        assert "outside of" in outside["message"]
        assert missing["code"] == -32002


async def test_writing_is_asked_for_with_a_diff_and_done_when_allowed(store: Path, home: Path) -> None:
    async with mounted(store, directory=str(home)) as (eng, _):
        run = await submit(eng, AGENT, script(write(home / "a.txt", "one\n2\nthree\n")))
        asked = await question(eng, run.id)
        assert asked.type == "write_permission"
        assert asked.payload["path"] == str(home / "a.txt")
        assert "-two\n+2" in asked.payload["diff"]
        assert [o.kind for o in asked.options] == ["allow_once", "allow_always", "reject_once"]
        assert (home / "a.txt").read_text() == "one\ntwo\nthree\n"
        await eng.questions.answer(asked.id, {"choice": "allow"})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "{}"}
        assert (home / "a.txt").read_text() == "one\n2\nthree\n"


async def test_what_is_rejected_or_not_answered_is_not_written(store: Path, home: Path) -> None:
    async with mounted(store, directory=str(home), answer_within=0.3) as (eng, _):
        run = await submit(eng, AGENT, script(write(home / "b", "x")))
        await eng.questions.answer((await question(eng, run.id)).id, {"choice": "reject"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert "not allowed" in ended.output["text"]
        (told,) = await answers(eng, write(home / "b", "x"))
        assert "not allowed" in told["message"]
        assert not (home / "b").exists()


async def test_always_is_for_the_rest_of_the_session_and_only_for_its_kind(store: Path, home: Path) -> None:
    async with mounted(store, directory=str(home)) as (eng, _):
        lines = [write(home / "x", "1"), write(home / "y", "2"), act("call", "terminal/create", command="true")]
        run = await submit(eng, AGENT, script(*lines))
        await eng.questions.answer((await question(eng, run.id)).id, {"choice": "always"})
        async with asyncio.timeout(20):
            async for event in eng.runs.events(run.id):
                if event.kind == "asked" and event.body.question.type != "write_permission":
                    break
        assert event.body.question.type == "terminal_permission"
        assert (home / "y").read_text() == "2"
        await eng.runs.cancel(run.id)
        await eng.runs.wait(run.id, timeout=20)


async def test_a_policy_of_deny_is_not_even_offered(store: Path, home: Path) -> None:
    policy = {"read": "deny", "write": "deny", "terminal": "deny"}
    async with mounted(store, directory=str(home), **policy) as (eng, _):
        told = await answers(
            eng, read(home / "a.txt"), write(home / "n", "x"), act("call", "terminal/create", command="true")
        )
        assert ["not allowed" in answer["message"] for answer in told] == [True, True, True]
        run = await finish(eng, AGENT, script("seen"))
        assert run.output is not None
        offered = dict(json.loads(run.output["text"]))["initialize"]["clientCapabilities"]
        assert offered["fs"] == {"readTextFile": False, "writeTextFile": False}
        assert offered["terminal"] is False


async def terminal(eng: il.Engine, *actions: str, **create: Any) -> list[Any]:
    """A terminal's life: created, then asked."""
    lines = [act("call", "terminal/create", **create)]
    lines += [act("call", f"terminal/{action}", terminalId="term-1") for action in actions]
    return await answers(eng, *lines)


async def test_a_command_runs_with_nothing_on_its_stdin(store: Path, home: Path) -> None:
    async with mounted(store, directory=str(home), terminal="allow") as (eng, _):
        made, ended, output, released, after = await terminal(
            eng, "wait_for_exit", "output", "release", "output", command="sh",
            args=["-c", "cat; pwd; echo $WORD >&2; exit 7"], env=[{"name": "WORD", "value": "hi"}],
        )  # fmt: skip
        assert made == {"terminalId": "term-1"}
        assert ended == {"exitCode": 7, "signal": None}
        assert output == {
            "output": f"{home}\nhi\n", "truncated": False, "exitStatus": {"exitCode": 7, "signal": None},
        }  # fmt: skip
        assert released == {}
        assert after["code"] == -32002


async def test_output_is_cut_from_the_front_on_a_character(store: Path, home: Path) -> None:
    async with mounted(store, directory=str(home), terminal="allow") as (eng, _):
        _, _, output = await terminal(
            eng, "wait_for_exit", "output", command="printf 'abcüüü'", outputByteLimit=5
        )  # fmt: skip
        assert (output["output"], output["truncated"]) == ("üü", True)


async def test_killing_a_command_ends_what_it_started_and_keeps_its_output(store: Path, home: Path) -> None:
    async with mounted(store, directory=str(home), terminal="allow") as (eng, _):
        os.mkfifo(home / "pid")
        _, child, killed, ended, output = await answers(
            eng, act("call", "terminal/create", command="sleep 100 & echo started; echo $! > pid; wait"),
            f"hear {home / 'pid'}",
            *(act("call", f"terminal/{action}", terminalId="term-1") for action in ("kill", "wait_for_exit", "output")),
        )  # fmt: skip
        assert (killed, ended) == ({}, {"exitCode": None, "signal": "SIGTERM"})
        assert output["exitStatus"]["signal"] == "SIGTERM"
        assert output["output"] == "started\n"
        await gone(child)


async def test_what_a_command_left_behind_does_not_hold_up_its_end(store: Path, home: Path) -> None:
    async with mounted(store, directory=str(home), terminal="allow") as (eng, _):
        _, ended, output, _ = await terminal(
            eng, "wait_for_exit", "output", "release", command="sleep 100 & echo $! > pid; echo done"
        )
        assert (ended["exitCode"], output["output"]) == (0, "done\n")
        await gone(int((home / "pid").read_text()))


async def test_terminals_end_with_their_session(store: Path, home: Path) -> None:
    async with mounted(store, directory=str(home), terminal="allow") as (eng, _):
        os.mkfifo(home / "pid")
        lines = act("call", "terminal/create", command="echo $$ > pid; exec sleep 100"), f"hear {home / 'pid'}"
        _, pid = await answers(eng, *lines)
        await gone(pid)
    assert not alive(pid)


async def test_a_command_is_asked_for_and_its_directory_must_be_inside(store: Path, home: Path) -> None:
    async with mounted(store, directory=str(home)) as (eng, _):
        (refused,) = await answers(eng, act("call", "terminal/create", command="true", cwd="/"))
        assert "outside of" in refused["message"]
        run = await submit(eng, AGENT, script(act("call", "terminal/create", command="rm", args=["-r", "x"])))
        asked = await question(eng, run.id)
        assert (asked.type, asked.payload) == ("terminal_permission", {"command": "rm -r x", "cwd": str(home)})
        await eng.questions.answer(asked.id, {"choice": "reject"})
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.SUCCEEDED


# -- through the editor that the run comes from ---------------------------------------------------------------


class FakeTerminal:
    id = "there"

    async def output(self) -> TerminalOutput:
        return TerminalOutput("out", exit_code=0, exited=True)

    wait = output

    async def kill(self) -> None: ...
    async def release(self) -> None: ...


class FakeEditor:
    def __init__(self, cwd: str) -> None:
        self.cwd = cwd
        self.directories = ["/more"]
        self.mcp_servers = [{"name": "tools", "command": "/bin/tools", "args": [], "env": []}]
        self.can_read = self.can_write = self.can_run = True
        self.written: list[tuple[str, str]] = []

    async def read(self, path: str, *, line: int | None = None, limit: int | None = None) -> str:
        return f"unsaved {path} {line}"

    async def write(self, path: str, text: str) -> None:
        self.written.append((path, text))

    async def run(self, command: str, *args: str, **more: Any) -> FakeTerminal:
        return FakeTerminal()


async def test_a_run_from_an_editor_has_its_files_terminals_and_tool_servers(store: Path, home: Path) -> None:
    given = {"able": {"sessionCapabilities": {"additionalDirectories": {}}}}
    async with mounted(store, given, directory="/") as (eng, _):
        editor = FakeEditor(str(home))
        eng.workspaces.attach("t", editor)
        lines = [
            read("/x", line=3), write("/y", "z"), act("call", "terminal/create", command="make"),
            act("call", "terminal/output", terminalId="there"), "say |", "seen",
        ]  # fmt: skip
        run = await finish(eng, AGENT, script(*lines), thread="t", create_thread=True)
        assert run.output is not None, run.error
        said, _, asked = run.output["text"].partition("|")
        assert "unsaved /x 3" in said
        assert editor.written == [("/y", "z")]
        assert '"output": "out"' in said
        opened = [params for method, params in json.loads(asked) if method == "session/new"][-1]
        assert opened == {
            "cwd": str(home), "mcpServers": editor.mcp_servers, "additionalDirectories": ["/more"],
        }  # fmt: skip

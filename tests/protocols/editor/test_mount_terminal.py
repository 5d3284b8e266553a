"""`interlingua run editor:COMMAND` as a person meets it: a coding agent at the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.commands import Result
from tests.kit.mounts.editor import PERMISSION, act, alive, command, update
from tests.kit.terminal import Terminal

Cli = Callable[..., Result]
At = Callable[..., Terminal]
RED, GREEN, DIM = "\x1b[31m", "\x1b[32m", "\x1b[2;3m"

DIFF = [{"type": "diff", "path": "/a.py", "oldText": "one\ntwo\n", "newText": "one\n2\n"}]


def thought(text: str) -> str:
    return update("agent_thought_chunk", content={"type": "text", "text": text})


def test_text_streams_to_stdout_and_the_rest_goes_beside_it(cli: Cli) -> None:
    lines = ["say Hello", thought("let me "), thought("see"), "say  there."]
    done = cli("run", f"editor:{command()}", "\n".join(lines))
    assert (done.code, done.out) == (0, "Hello there.\n")
    assert "· let me see\n" in done.err, "a thought in pieces reads as one"


def test_diffs_are_in_colour_and_permissions_are_asked(terminal: At, env: dict[str, str]) -> None:
    del env["NO_COLOR"]
    env["TERM"] = "xterm-256color"
    call = update("tool_call", toolCallId="t", title="Edit a.py", status="pending", content=DIFF)
    ask = act(
        "call", "session/request_permission", toolCall={"toolCallId": "t"},
        options=[
            {"optionId": "yes", "name": "Allow it", "kind": "allow_once"},
            {"optionId": "no", "name": "Do not", "kind": "reject_once"},
        ],
    )  # fmt: skip
    at = terminal("run", f"editor:{command()}", "\n".join([thought("hm"), call, ask]))
    at.see(f"{DIM}· hm")
    at.see("Edit a.py")
    at.see(f"{RED}-two")
    at.see(f"{GREEN}+2")
    at.see("question · permission")
    at.see("1) Allow it")
    at.see("2) Do not")
    at.see("[1-2] ")
    at.sendline("2")
    at.see('"optionId": "no"')
    at.see("succeeded")
    assert at.finish() == 0


def test_ctrl_c_cancels_the_turn_and_leaves_no_process(terminal: At, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    at = terminal("run", f"editor:{command({'pidfile': str(pids)})}", "say working\nwait")
    at.see("working")
    at.sendintr()
    at.see("last words")
    at.see("cancelled")
    assert at.finish() == 130
    assert not alive(int(pids.read_text()))


def test_writing_a_file_is_asked_for_with_its_diff(terminal: At, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    write = act("call", "fs/write_text_file", path=str(tmp_path / "a.txt"), content="two\n")
    at = terminal("run", f"editor:{command()}", write)
    at.see(f"Write {tmp_path / 'a.txt'}?")
    at.see("-one")
    at.see("+two")
    at.see("[1-3] ")
    at.sendline("1")
    assert at.finish() == 0
    assert (tmp_path / "a.txt").read_text() == "two\n"


def test_without_a_terminal_a_permission_leaves_the_run_waiting(cli: Cli) -> None:
    done = cli("run", f"editor:{command()}", PERMISSION)
    assert done.code == 4
    assert "Remove the file" in done.err
    assert "interlingua questions answer" in done.err


def test_a_command_that_does_not_start_says_why(cli: Cli) -> None:
    done = cli("run", f"editor:{command({'dead': True})}", "hello")
    assert done.code == 1
    assert "it exited with status 4; the last it said: no such model" in done.err


def test_a_login_that_is_needed_is_explained(cli: Cli) -> None:
    given = {
        "init": {"authMethods": [{"id": "in", "name": "Log in", "type": "terminal", "args": ["login"]}]},
        "errors": {"session/new": {"code": -32000, "message": "Authentication required"}},
    }
    done = cli("run", f"editor:{command(given)}", "hello")
    assert done.code != 0
    assert "login` in a terminal" in done.err


@pytest.mark.parametrize("version", ["1", "2"])
def test_the_version_is_chosen_by_a_variable(cli: Cli, version: str) -> None:
    target = f"editor:{command({'version': int(version)})}"
    done = cli("run", target, "seen", INTERLINGUA_EDITOR_VERSION=version)
    assert done.code == 0, done.err
    assert dict(json.loads(done.out))["initialize"]["protocolVersion"] == int(version)

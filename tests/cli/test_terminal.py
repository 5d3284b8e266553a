"""`interlingua run` at a real terminal: prompts, other people's answers, and Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pexpect
import pytest

from tests.kit.commands import COMMAND, PATIENCE, Result
from tests.kit.terminal import Terminal

from .conftest import EXAMPLES, ZOO, nothing_ran

Cli = Callable[..., Result]
At = Callable[..., Terminal]


def test_yes(terminal: At) -> None:
    at = terminal("run", f"{ZOO}:confirm")
    at.see("Shall I do it?")
    at.see("[y/n] ")
    at.sendline("maybe")
    at.see("answer y or n")
    at.see("[y/n] ")
    at.sendline("y")
    at.see("done\r\n")
    at.see("succeeded")
    assert at.finish() == 0


def test_no_with_a_reason(terminal: At) -> None:
    at = terminal("run", f"{ZOO}:confirm")
    at.see("[y/n] ")
    at.sendline("n")
    at.see("reason (optional): ")
    at.sendline("not today")
    at.see("stopped: not today")
    assert at.finish() == 0


def test_no_with_a_reason_in_one_line(terminal: At) -> None:
    at = terminal("run", f"{ZOO}:confirm")
    at.see("[y/n] ")
    at.sendline("n, too early")
    at.see("stopped: too early")
    assert at.finish() == 0


def test_an_answer_that_is_itself_true_or_false(terminal: At) -> None:
    at = terminal("run", f"{ZOO}:flag")
    at.see("Raise the flag?")
    at.sendline("y")
    at.see("up\r\n")
    assert at.finish() == 0


def test_a_choice_by_number(terminal: At) -> None:
    at = terminal("run", f"{ZOO}:choose")
    at.see("Which colour?")
    at.see("1) Red")
    at.see("2) Green")
    at.see("[1-2] ")
    at.sendline("3")
    at.see("choose a number from 1 to 2")
    at.see("[1-2] ")
    at.sendline("2")
    at.see("g\r\n")
    assert at.finish() == 0


def test_a_form_is_asked_field_by_field_and_checked(terminal: At) -> None:
    at = terminal("run", f"{ZOO}:order")
    at.see("What would you like?")
    at.see("table: 7")
    at.see("name (text): ")
    at.sendline("")
    at.see("name needs a value")
    at.see("name (text): ")
    at.sendline("tea")
    at.see("count (whole number) [3]: ")
    at.sendline("many")
    at.see("'many' is not a whole number")
    at.see("count (whole number) [3]: ")
    at.sendline("")
    at.see("size (large | small) [small]: ")
    at.sendline("large")
    at.see("notes (list, with commas)")
    at.sendline("hot, strong")
    at.see("3 large tea hot/strong\r\n")
    assert at.finish() == 0


def test_what_was_typed_before_a_question_appeared_does_not_answer_it(terminal: At) -> None:
    at = terminal("run", f"{ZOO}:twice")
    at.see("[y/n] ")
    at.send("y\ny\ny\n")
    at.see("Second?")
    at.see("[y/n] ")
    at.sendline("n")
    at.see("reason (optional): ")
    at.sendline("")
    at.see("True False")
    assert at.finish() == 0


def test_an_answer_from_another_shell_ends_the_prompt(terminal: At, cli: Cli) -> None:
    at = terminal("run", f"{ZOO}:confirm")
    at.see("[y/n] ")
    at.send("half an ans")
    (question,) = cli("questions", "list", "--json").json
    assert "goes on" in cli("questions", "answer", question["id"][-8:], "y").err
    at.see("answered by owner through cli")
    at.see("done\r\n")
    assert at.finish() == 0


def test_a_childs_question_is_asked_where_its_parent_is_watched(terminal: At) -> None:
    at = terminal("run", f"{ZOO}:delegate")
    at.see("Shall I do the child's work?")
    at.sendline("y")
    at.see("child says done")
    assert at.finish() == 0


def test_ctrl_d_leaves_the_run_waiting(terminal: At, cli: Cli) -> None:
    at = terminal("run", f"{ZOO}:confirm")
    at.see("[y/n] ")
    at.sendeof()
    at.see("interlingua questions answer")
    assert at.finish() == 4
    assert cli("runs", "list", "--json").json[0]["status"] == "waiting"


def test_no_input_asks_nothing_even_at_a_terminal(terminal: At) -> None:
    at = terminal("run", f"{ZOO}:confirm", "--no-input")
    at.see("interlingua questions answer")
    assert at.finish() == 4


def test_missing_input_is_asked_for(terminal: At) -> None:
    at = terminal("run", f"{ZOO}:shout")
    at.see("text (text): ")
    at.sendline("louder")
    at.see("LOUDER!")
    assert at.finish() == 0


@pytest.mark.parametrize("command", ["questions", "runs"])
def test_the_last_question_is_answered_after_it_was_shown_and_confirmed(terminal: At, cli: Cli, command: str) -> None:
    assert cli("run", f"{ZOO}:confirm", "--no-input").code == 4
    for said in ("n", "", "\x04"):  # no, nothing, and Ctrl-D
        at = terminal(command, "answer", "last", "y")
        at.see("Shall I do it?")
        at.see('answer it with {"approved":true')
        at.see("[y/n] ")
        at.send(said if said == "\x04" else f"{said}\n")
        at.see("nothing was answered")
        assert at.finish() == 1
    (question,) = cli("questions", "list", "--json").json
    assert question["state"] == "open"
    at = terminal(command, "answer", "last", "y")
    at.see("[y/n] ")
    at.sendline("y")
    at.see("answered; nobody runs it now")
    assert at.finish() == 0
    assert cli("questions", "list", "--json").json == []


def test_the_last_question_without_an_answer_is_asked_and_the_typed_answer_counts(terminal: At, cli: Cli) -> None:
    assert cli("run", f"{ZOO}:confirm", "--no-input").code == 4
    at = terminal("questions", "answer", "last")
    at.see("Shall I do it?")
    at.see("[y/n] ")
    at.sendline("y")
    at.see("answered; nobody runs it now")
    assert at.finish() == 0
    assert cli("questions", "list", "--json").json == []


@pytest.mark.parametrize("agent", ["ticks", "hold", "confirm", "grind"])
def test_ctrl_c_cancels_the_run_and_waits_for_its_end(terminal: At, cli: Cli, agent: str) -> None:
    at = terminal("run", f"{ZOO}:{agent}")
    if agent == "hold":
        _wait_for_status(cli, "running")
    else:
        at.see({"ticks": "tick3", "confirm": "[y/n] ", "grind": "grinding"}[agent])
    at.sendintr()
    at.expect("cancelled\r\n")
    assert "cancelling: Ctrl-C" in at.before
    assert "Traceback" not in at.before
    assert at.finish() == 130
    assert cli("runs", "list", "--json").json[0]["status"] == "cancelled"


@pytest.mark.usefixtures("in_a_file")  # elsewhere a process that is gone is missed when its lease is over
def test_a_second_ctrl_c_leaves_at_once_and_the_run_can_be_ended_later(terminal: At, cli: Cli) -> None:
    at = terminal("run", f"{ZOO}:stubborn")
    at.see("started")
    at.sendintr()
    at.see("cancelling")
    at.sendintr()
    assert at.finish() == 130
    assert cli("runs", "list", "--json").json[0]["status"] == "cancelling"
    assert cli("runs", "cancel", "last").out.endswith(" cancelled\n")


def test_ctrl_c_gets_through_to_an_agent_that_keeps_the_event_loop(terminal: At) -> None:
    at = terminal("run", f"{ZOO}:hog")
    at.see("hogging")
    at.sendintr()
    at.expect([r"\^C", pexpect.TIMEOUT], timeout=2)
    while at.isalive():
        at.sendintr()
        at.expect([pexpect.EOF, r"\^C"])
    assert at.finish() == 130


def test_ctrl_c_at_the_prompt_for_input_starts_nothing(terminal: At, cli: Cli) -> None:
    at = terminal("run", f"{ZOO}:shout")
    at.see("text (text): ")
    at.sendintr()
    assert at.finish() == 130
    assert "Traceback" not in at.before
    assert nothing_ran(cli)


def test_text_of_an_agent_cannot_drive_the_terminal(terminal: At) -> None:
    at = terminal("run", f"{ZOO}:shout", "a\x1b[31mb\x07c")
    at.see("A[31MBC!")
    assert at.finish() == 0


@pytest.mark.usefixtures("quick_tools")
def test_the_demo_asks_and_stays_up_until_ctrl_c(terminal: At) -> None:
    at = terminal("demo", "--no-team")
    at.see("hello Connect")
    at.see("Shall this mail be sent?")
    at.see("ada@example.org")
    at.see("[y/n] ")
    at.sendline("y")
    at.see('"message": "Sent."')
    at.see("and all together 36")
    at.see("Still up")
    at.expect(r"(http://[0-9.:]+/connect)")
    door = at.match[1]
    at.see("Ctrl-C stops.")
    answer = httpx2.post(f"{door}/runs/wait", json={"agent_id": "echo", "input": "still there"})
    assert answer.json()["output"]["values"] == {"text": "still there "}
    at.sendintr()
    assert at.finish() == 0


def test_serve_cuts_no_address_at_a_narrow_terminal_and_says_goodbye(terminal: At) -> None:
    at = terminal("serve", ZOO, "--port", "0", "--no-peer-ports", "--mount", "cap:true", columns=30)
    at.see("Ctrl-C stops.")
    shown = at.before
    found = re.search(r"Serving on (http://\S+)", shown)
    assert found is not None, shown
    for door in ("cap", "connect", "editor", "mcp", "peer"):
        assert f"{found[1]}/{door}" in shown
    assert "…" not in shown.partition("store: ")[0]
    at.sendintr()
    at.see("Stopping")
    at.see("Goodbye.")
    assert at.finish() == 0


def test_a_mail_that_is_not_approved_is_not_sent(terminal: At) -> None:
    at = terminal("run", str(EXAMPLES / "mailcomposer.py"), "To: ada@example.org. Subject: Lunch. At noon?")
    at.see("recipients: ada@example.org")
    at.sendline("n no time")
    at.see("Not sent.")
    assert at.finish() == 0


def test_a_hangup_cancels_the_run_as_ctrl_c_does(terminal: At, cli: Cli) -> None:
    at = terminal("run", f"{ZOO}:confirm")
    at.see("[y/n] ")
    os.kill(at.pid, signal.SIGHUP)
    assert at.finish() == 130
    assert cli("questions", "list", "--json").json == []
    assert cli("runs", "list", "--json").json[0]["status"] == "cancelled"


def test_a_terminal_that_goes_away_cancels_the_run(terminal: At, cli: Cli) -> None:
    at = terminal("run", f"{ZOO}:confirm")
    at.see("[y/n] ")
    at.ptyproc.fileobj.close()  # as when the window is closed: nobody can read what it writes, and it may get SIGHUP
    with contextlib.suppress(ProcessLookupError):
        os.kill(at.pid, signal.SIGHUP)
    at.wait()
    _wait_for_status(cli, "cancelled")


@pytest.mark.parametrize(("agent", "said"), [("confirm", "[y/n] "), ("ticks", "tick3")])
def test_a_terminal_that_goes_away_without_a_signal_cancels_the_run(
    env: dict[str, str], tmp_path: Path, cli: Cli, agent: str, said: str
) -> None:
    """The shell gets the SIGHUP, and its jobs later, or never. Until then reads and writes are all that tells."""
    ours, theirs = pty.openpty()
    words = [*COMMAND, "run", f"{ZOO}:{agent}"]
    ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with subprocess.Popen(words, env=env, cwd=tmp_path, start_new_session=True, **ends) as process:  # type: ignore[call-overload]
        try:
            os.close(theirs)
            seen = b""
            while said.encode() not in seen:
                seen += os.read(ours, 4096)
            os.close(ours)
            assert process.wait(PATIENCE) == 130
        finally:
            process.kill()
    assert cli("runs", "list", "--json").json[0]["status"] == "cancelled"


def _wait_for_status(cli: Cli, status: str) -> None:
    """Every look is a process of its own, so this waits without sleeping. The other one starts from nothing, which can
    take longer than a hundred looks."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        listed = cli("runs", "list", "--json")
        runs = listed.json if listed.code == 0 else []  # before there is a store
        if runs and runs[0]["status"] == status:
            return
    raise AssertionError(f"no run became {status}")

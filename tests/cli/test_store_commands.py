"""`runs`, `threads` and `questions`: on a store that is empty, that is full, and that another process is using."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

from tests.kit.commands import Result
from tests.kit.terminal import Terminal

from .conftest import EXAMPLES, ZOO

Cli = Callable[..., Result]
Start = Callable[..., subprocess.Popen[str]]


def read(process: subprocess.Popen[str], text: str) -> None:
    """Wait until a process has printed something."""
    assert process.stdout is not None
    seen = ""
    while text not in seen:
        chunk = process.stdout.read(1)
        assert chunk, f"it ended after {seen!r}"
        seen += chunk


def test_empty_states_say_what_to_do(cli: Cli) -> None:
    cli("keys", "add", "laptop")  # makes the store
    assert cli("runs", "list").out == "No runs yet. Try: interlingua demo\n"
    assert "interlingua run FILE --thread NAME" in cli("threads", "list").out
    assert cli("questions", "list").out == "Nothing waits for an answer.\n"
    for what in ("runs", "threads", "questions"):
        assert cli(what, "list", "--json").json == []
    assert cli("runs", "show", "last").code == 3


def test_what_is_not_there_is_not_found(here: Cli) -> None:
    here("run", f"{ZOO}:shout", "hi")
    for args in (
        ("runs", "show", "zzz"),
        ("runs", "follow", "01a1de97-1299-7e22-bc4f-3260440dd4d4"),
        ("runs", "cancel", "zzz"),
        ("runs", "send", "zzz", "hi"),
        ("threads", "show", "zzz"),
        ("threads", "history", "zzz"),
        ("questions", "show", "zzz"),
        ("questions", "answer", "01a1de97-1299-7e22-bc4f-3260440dd4d4", "y"),
    ):
        done = here(*args)
        assert (done.code, done.out) == (3, ""), args
        assert "error: there is no" in done.err
        assert "hint: interlingua" in done.err
        assert "Traceback" not in done.err


def test_ids_may_be_any_part_that_fits_only_one(cli: Cli) -> None:
    for text in ("one", "two"):
        cli("run", f"{ZOO}:shout", text)
    two, one = (run["id"] for run in cli("runs", "list", "--json").json)
    for part in (one, one[-8:], one[-12:-2], one.upper()[-10:]):
        assert cli("runs", "show", part, "--json").json["id"] == one
    assert cli("runs", "show", "last", "--json").json["id"] == two
    several = cli("runs", "show", one[:6])
    assert several.code == 2
    assert "2 runs fit" in several.err
    assert one[-8:] in several.err
    assert one[-8:] in cli("runs", "list").out


def test_a_run_is_shown_with_everything_in_it(cli: Cli) -> None:
    cli("run", f"{ZOO}:busy")
    shown = cli("runs", "show", "last").out
    for words in ("busy 0.1.0", "succeeded", "just now", "ago", "busy done", "created", "thought", "tool_call",
                  "finished", "Edit notes in_progress"):  # fmt: skip
        if words in ("just now", "ago"):
            assert "just now" in shown or " ago" in shown
        else:
            assert words in shown
    assert "\x1b" not in shown
    data = cli("runs", "show", "last", "--json").json
    assert [event["seq"] for event in data["events"]] == list(range(1, len(data["events"]) + 1))
    cli("run", f"{ZOO}:crash", "x")
    assert "ValueError: boom x (agent_crashed)" in cli("runs", "show", "last").out
    cli("run", f"{ZOO}:confirm")
    waiting = cli("runs", "show", "last")
    assert "Shall I do it?" in waiting.out + waiting.err
    assert "interlingua questions answer" in waiting.out


def test_runs_are_listed_by_status_and_agent(cli: Cli) -> None:
    cli("run", f"{ZOO}:shout", "hi")
    cli("run", f"{ZOO}:confirm")
    assert [run["agent"] for run in cli("runs", "list", "--status", "waiting", "--json").json] == ["confirm"]
    assert [run["agent"] for run in cli("runs", "list", "--agent", "shout", "--json").json] == ["shout"]
    assert cli("runs", "list", "--status", "failed").out == "No such runs.\n"
    wrong = cli("runs", "list", "--status", "odd")
    assert wrong.code == 2
    assert "waiting" in wrong.err


def test_a_run_of_another_process_is_followed_and_cancelled_from_here(cli: Cli, start: Start) -> None:
    runner = start("run", f"{ZOO}:ticks")
    read(runner, "tick1")
    follower, lines = start("runs", "follow", "last"), start("runs", "follow", "last", "--json")
    read(follower, "tick3")
    done = cli("runs", "cancel", "last", "--reason", "enough")
    assert (done.code, done.out.split()[-1]) == (0, "cancelled")
    for process in (runner, follower, lines):
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
    events = [json.loads(line) for line in out.splitlines()]
    assert events[0]["kind"] == "created"
    assert events[-1]["body"]["status"] == "cancelled"
    assert any(e["kind"] == "cancel_requested" and e["body"]["reason"] == "enough" for e in events)
    assert cli("runs", "cancel", "last").code == 5


def test_a_message_reaches_a_run_of_another_process(cli: Cli, start: Start) -> None:
    runner = start("run", f"{ZOO}:mailbox")
    read(runner, "listening ")
    assert cli("runs", "send", "last", "good news").code == 0
    out, _ = runner.communicate(timeout=60)
    assert (runner.returncode, out) == (0, "got good news\n")
    assert cli("runs", "send", "last", "too late").code == 5


def test_a_question_of_another_process_is_answered_from_here_once(cli: Cli, terminal: Callable[..., Terminal]) -> None:
    at = terminal("run", f"{ZOO}:order")
    at.see("name (text): ")
    question = cli("questions", "list", "--json").json[0]
    shown = cli("questions", "show", question["id"][-8:])
    assert "What would you like?" in shown.out
    assert "count (whole number, default 3)" in shown.out
    bad = cli("questions", "answer", question["id"], '{"name": "tea", "count": "x"}')
    assert bad.code == 2
    assert "/count" in bad.err
    missing = cli("questions", "answer", question["id"])
    assert missing.code == 2
    assert "name (text, required)" in missing.err
    good = cli("runs", "answer", question["run"], '{"name": "tea", "count": 1}', "--json")
    assert good.json["answer"] == {"name": "tea", "count": 1}
    at.see("1 small tea")
    assert at.finish() == 0
    again = cli("questions", "answer", question["id"], "coffee")
    assert again.code == 5
    assert "answered already" in again.err
    assert cli("runs", "answer", question["run"], "coffee").code == 5
    (past,) = cli("questions", "list", "--all", "--json").json
    assert past["state"] == "answered"


def test_a_question_is_answered_at_the_terminal_of_another_shell(cli: Cli, terminal: Callable[..., Terminal]) -> None:
    assert cli("run", f"{ZOO}:choose").code == 4
    question = cli("questions", "list", "--json").json[0]["id"]
    at = terminal("questions", "answer", question[-8:])
    at.see("2) Green")
    at.sendline("Green")
    at.see("answered")
    assert at.finish() == 0
    assert cli("run", f"{ZOO}:choose", "--resume", "last").out == "g\n"


def test_ctrl_c_ends_the_following_and_not_the_run(
    cli: Cli, start: Start, terminal: Callable[..., Terminal]
) -> None:  # fmt: skip
    runner = start("run", f"{ZOO}:ticks")
    read(runner, "tick1")
    at = terminal("runs", "follow", "last")
    at.see("tick1")
    at.sendintr()
    at.see("the run goes on")
    assert at.finish() == 130
    assert cli("runs", "list", "--json").json[0]["status"] in ("running", "pending")
    read(runner, "tick")


def test_following_can_begin_in_the_middle(cli: Cli) -> None:
    cli("run", str(EXAMPLES / "counter.py"), '{"to": 3, "delay": 0.01}')
    events = cli("runs", "follow", "last", "--json").lines
    second = [event["seq"] for event in events if event["kind"] == "delta"][1]
    assert cli("runs", "follow", "last").out == "1 2 3 and all together 6\n"
    assert cli("runs", "follow", "last", "--after", str(second)).out == "3 and all together 6\n"


def test_a_waiting_run_that_nobody_runs_is_cancelled_here(cli: Cli) -> None:
    cli("run", f"{ZOO}:confirm")
    assert cli("runs", "cancel", "last", "--json").json[0]["status"] == "cancelled"
    assert cli("questions", "list").out == "Nothing waits for an answer.\n"


def test_following_a_run_that_nobody_runs_says_so(cli: Cli, start: Start) -> None:
    cli("run", f"{ZOO}:confirm")
    follower = start("runs", "follow", "last")
    assert follower.stderr is not None
    assert "nobody runs it now" in follower.stderr.readline()
    cli("questions", "answer", cli("questions", "list", "--json").json[0]["id"], "y")
    assert cli("run", f"{ZOO}:confirm", "--resume", "last").out == "done\n"
    out, _ = follower.communicate(timeout=60)
    assert (follower.returncode, out) == (0, "done\n")


def test_deleting_asks_first(cli: Cli, terminal: Callable[..., Terminal]) -> None:
    cli("run", f"{ZOO}:shout", "hi")
    refused = cli("runs", "delete", "last")
    assert refused.code == 2
    assert "--yes" in refused.err
    at = terminal("runs", "delete", "last")
    at.see("[y/n] ")
    at.sendline("n")
    assert at.finish() == 1
    assert len(cli("runs", "list", "--json").json) == 1
    assert cli("runs", "delete", "last", "--yes").code == 0
    assert cli("runs", "list", "--json").json == []


def test_a_run_that_has_not_ended_is_not_deleted(cli: Cli) -> None:
    cli("run", f"{ZOO}:confirm")
    assert cli("runs", "delete", "last", "--yes").code == 5


def test_threads_are_listed_shown_and_deleted_with_their_history(cli: Cli) -> None:
    for text in ("one", "two"):
        cli("run", f"{ZOO}:remember", text, "--thread", "trip")
    assert "trip" in cli("threads", "list").out
    shown = cli("threads", "show", "trip")
    for words in ('"last": "two"', "before: one", "remember", "idle"):
        assert words in shown.out
    assert cli("threads", "show", "tri", "--json").json["values"] == {"last": "two"}
    assert [point["values"]["last"] for point in cli("threads", "history", "trip", "--json").json] == ["two", "one"]
    assert '{"last":"one"}' in cli("threads", "history", "trip").out
    assert cli("threads", "list", "--status", "odd").code == 2
    assert cli("threads", "delete", "trip", "--yes").code == 0
    assert cli("threads", "list", "--json").json == []


def test_a_killed_run_goes_on_where_it_was(cli: Cli, start: Start) -> None:
    runner = start("run", str(EXAMPLES / "counter.py"), '{"to": 6, "delay": 0.1}')
    read(runner, "3 ")
    runner.kill()
    runner.wait()
    done = cli("run", str(EXAMPLES / "counter.py"), "--resume", "last")
    assert (done.code, done.out) == (0, "1 2 3 4 5 6 and all together 21\n")
    assert cli("runs", "show", "last", "--json").json["output"] == {"text": "1 2 3 4 5 6 and all together 21"}


def test_output_that_no_longer_stands_is_shown_again_from_where_it_does(cli: Cli, start: Start) -> None:
    runner = start("run", f"{ZOO}:fickle")
    read(runner, "first ")
    runner.kill()
    runner.wait()
    done = cli("run", f"{ZOO}:fickle", "--resume", "last", FICKLE_ENDS="1")
    assert done.code == 0, done.err
    assert "started again" in done.err
    result = cli("runs", "show", "last", "--json").json["output"]["text"]
    assert f"process {runner.pid} first \n" in done.out
    assert done.out.splitlines()[-1] == result
    assert str(runner.pid) not in result

"""`interlingua team run` as people meet it: a team of Python functions, what it says, and its owner who steps in."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.commands import Result
from tests.kit.terminal import Terminal

from .conftest import ZOO

Cli = Callable[..., Result]
At = Callable[..., Terminal]
Start = Callable[..., subprocess.Popen[str]]

CREW = str(Path(__file__).with_name("crew"))
pytestmark = pytest.mark.usefixtures("quick_tools")
RUN = ("team", "run", CREW)

THE_TALK = """\
T1 orchestrator → pm-1  delegation
  sales of Q4
T1 pm-1 → user  question
  Which market?
T1 user → pm-1  answer
  Europe
T1 pm-1 ✗ refused to delegate to qa-1: pm-1 may not delegate to qa-1: its allowed_agents are analyst-1, writer-1 (denied)
  T1.1 pm-1 → analyst-1  delegation
    analyse sales of Q4
    rule: When data must be analysed.
    reason: it is about numbers
    + Figures.total: 41  unverified
  T1.1 analyst-1 ▸ Figures.total {"quarter":"Q4"}
  T1.1 analyst-1 ✓ Figures.total → {"quarter":"Q4","total":42}
  T1.1 analyst-1 ✗ refused Figures.drop: analyst-1 may not call drop of Figures: its tools there are total (denied)
  T1.1 analyst-1 → pm-1  message
    Should I look further?
    + Figures.total: {"quarter":"Q4","total":42}
  T1.1 pm-1 → analyst-1  message
    Yes, for Europe.
    T1.1.1 analyst-1 → qa-1  delegation  in review
      Please review.
    T1.1.1 qa-1 → analyst-1  inquiry  in review
      Which source?
  T1.1 analyst-1 ▸ Figures.total {"quarter":"Q4"}
  T1.1 analyst-1 ✓ Figures.total → {"quarter":"Q4","total":42}
  T1.1 analyst-1 ✗ refused Figures.drop: analyst-1 may not call drop of Figures: its tools there are total (denied)
    T1.1.1 analyst-1 → qa-1  delegation  in review
      Please review.
    T1.1.1 qa-1 → pm-1  message (approve)  in review
      Verified.
    T1.1.1 qa-1 → pm-1  result (approve)
      Verified.
      + text 42, from the closed sales
T1 pm-1 → orchestrator  result
  Report: 42, from the closed sales
"""  # noqa: E501 - as it is printed
THE_END = "task T1 succeeded\ninterlingua audit export T1\n"


def the_question(cli: Cli) -> str:
    (question,) = cli("questions", "list", "--json").json
    return str(question["id"])


def entries(text: str) -> list[str]:
    """What was shown, entry by entry, in no order: runs that work at the same time are shown as they are read."""
    found: list[str] = []
    for line in text.splitlines():
        if re.match(r" *T1[. ]", line):
            found.append(line)
        elif found:
            found[-1] += "\n" + line
    return sorted(found)


# -- without a terminal ---------------------------------------------------------------------------------------


def test_a_question_leaves_the_task_waiting_and_says_how_to_go_on(cli: Cli) -> None:
    done = cli(*RUN, "sales of Q4")
    assert (done.code, done.out) == (4, "")
    *talk, how, task, take_up, audit = done.err.splitlines()
    assert "\n".join(talk) + "\n" == "".join(THE_TALK.partition("  Which market?\n")[:2])
    question = the_question(cli)
    assert how.endswith(f"waits; answer with: interlingua questions answer {question} 'your text'")
    assert task == "task T1 waits"
    assert take_up == f"then take it up again with: interlingua team run {CREW} --resume T1"
    assert audit == "interlingua audit export T1"


def test_the_hint_of_an_answer_is_the_command_that_takes_the_task_up_again(cli: Cli) -> None:
    assert cli(*RUN, "sales of Q4").code == 4
    command = f"interlingua team run {CREW} --resume T1"
    answered = cli("questions", "answer", the_question(cli), "Europe")
    assert answered.err.endswith(f"answered; nobody runs it now, take it up with: {command}\n")
    assert cli(*command.split()[1:]).out == "Report: 42, from the closed sales\n"


def test_hints_name_the_store_that_was_given(cli: Cli, tmp_path: Path) -> None:
    store = str(tmp_path / "other.db")
    done = cli(*RUN, "sales of Q4", "--store", store)
    assert f"interlingua team run {CREW} --resume T1 --store {store}\n" in done.err
    (question,) = cli("questions", "list", "--json", "--store", store).json
    answered = cli("questions", "answer", question["id"], "Europe", "--store", store)
    assert answered.err.endswith(f"take it up with: interlingua team run {CREW} --resume T1 --store {store}\n")


def test_a_task_is_taken_up_again_with_all_that_was_said_before_and_its_result_is_all_there_is_on_stdout(
    cli: Cli,
) -> None:
    assert cli(*RUN, "sales of Q4").code == 4
    assert cli("questions", "answer", the_question(cli), "Europe").code == 0
    done = cli(*RUN, "--resume", "T1")
    assert (done.code, done.out) == (0, "Report: 42, from the closed sales\n")
    assert done.err.endswith(THE_END)
    assert entries(done.err.removesuffix(THE_END)) == entries(THE_TALK)
    again = cli(*RUN, "--resume", "T1.1")  # by a part of it, and after its end: nothing is done again
    assert (again.code, again.out) == (0, done.out)
    assert again.err == THE_TALK + THE_END, "from the logs alone it is in the order of time"


def test_events_of_all_runs_are_printed_as_json_lines(cli: Cli) -> None:
    assert cli(*RUN, "sales of Q4").code == 4
    assert cli("questions", "answer", the_question(cli), "Europe").code == 0
    done = cli(*RUN, "--resume", "T1", "--events")
    assert done.code == 0
    assert done.err == THE_END
    logs = defaultdict(list)
    for event in done.lines:
        logs[event["run"]].append(event)
    for events in logs.values():
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert (events[0]["kind"], events[-1]["kind"]) == ("created", "finished")
    agents = sorted(events[0]["body"]["request"]["agent"] for events in logs.values())
    assert agents == [
        "crew", "crew/analyst-1", "crew/analyst-1/work", "crew/analyst-1/work", "crew/pm-1", "crew/qa-1/review",
        "crew/qa-1/review",
    ]  # fmt: skip
    kinds = {event["kind"] for event in done.lines}
    assert {"said", "refused", "tool_refused", "tool_call", "asked", "answered"} <= kinds


def test_a_task_is_told_as_one_json_object(cli: Cli) -> None:
    waiting = cli(*RUN, "sales of Q4", "--json")
    assert waiting.code == 4
    assert waiting.json["task"] == "T1"
    assert (waiting.json["status"], "output" in waiting.json) == ("waiting", False)
    assert [question["prompt"] for question in waiting.json["questions"]] == ["Which market?"]
    assert cli("questions", "answer", the_question(cli), "Europe").code == 0
    done = cli(*RUN, "--resume", "T1", "--json").json
    assert (done["status"], done["output"]) == ("succeeded", {"text": "Report: 42, from the closed sales"})
    said = [event["body"] for event in done["conversation"]]
    assert [(one["task"], one["sender"], one["recipient"]) for one in said][:3] == [
        ("T1", "orchestrator", "pm-1"), ("T1", "pm-1", "user"), ("T1", "user", "pm-1")
    ]  # fmt: skip
    assert not any(one.get("held") for one in said), "that is what everybody may see"


def test_what_is_done_about_errors_is_shown_and_a_failed_task_is_exit_code_1(cli: Cli) -> None:
    done = cli(*RUN, "fail at once")
    assert (done.code, done.out) == (1, "")
    for line in (
        "  T1.1 analyst-1 → pm-1  error 502 broken",
        "T1 pm-1 policy analyst-1 failed with 502 broken: retry at once",
        "  T1.2 pm-1 → analyst-1#2  delegation",
        "T1 pm-1 policy analyst-1 failed with 502 broken: give up (step 2)",
        "T1 orchestrator policy pm-1 failed with 502 child_failed: retry at once",
        "task T1 failed",
    ):
        assert f"{line}\n" in done.err
    assert "error: " in done.err


def test_where_an_agent_crashed_is_told(cli: Cli) -> None:
    done = cli(*RUN, "break")
    assert done.code == 1
    assert "error: ValueError: no plan (agent_crashed)" in done.err
    assert "handlers.py" in done.err
    assert 'raise ValueError("no plan")' in done.err


def test_a_team_is_a_target_of_run_as_well(cli: Cli) -> None:
    assert cli("run", f"team:{CREW}", "sales of Q4").code == 4
    assert cli("questions", "answer", the_question(cli), "Europe").code == 0
    done = cli(*RUN, "--resume", "last")
    assert (done.code, done.out) == (0, "Report: 42, from the closed sales\n")


def test_wrong_usage_starts_nothing(here: Cli, tmp_path: Path) -> None:
    unsound, mindless = tmp_path / "unsound", tmp_path / "mindless"
    for folder in (unsound, mindless):
        shutil.copytree(CREW, folder)
    (unsound / "agents.json").write_text('[{"id": "pm-1"}]')
    (mindless / "handlers.py").unlink()
    for args, code, words in [
        ([CREW], 2, '"text" is a required property'),
        ([CREW, "hi", "--events", "--json"], 2, "take one of them"),
        ([CREW, "hi", "--resume", "T1"], 2, "TASK cannot change it"),
        (["nowhere", "hi"], 2, "there is no such file or folder"),
        ([str(unsound), "hi"], 2, "/0/system_prompt"),
        ([str(mindless), "hi"], 2, "nobody thinks for pm-1"),
    ]:
        done = here("team", "run", *args)
        assert (done.code, done.out) == (code, ""), args
        assert words in done.err
        assert "Traceback" not in done.err
    assert not (tmp_path / "store.db").exists()


def test_only_a_task_of_this_team_is_taken_up(cli: Cli) -> None:
    assert cli("run", f"{ZOO}:shout", "hi").code == 0
    assert cli(*RUN, "--resume", "T1").code == 3
    other = cli(*RUN, "--resume", "last")
    assert other.code == 2
    assert "last is a task of shout, and not of the team crew" in other.err


def test_a_killed_process_leaves_a_task_that_another_one_finishes(cli: Cli, start: Start) -> None:
    process = start(*RUN, "wait for it")
    assert process.stderr is not None
    for line in process.stderr:
        if "delegation" in line:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    (run,) = cli("runs", "list", "--agent", "crew", "--json").json
    assert cli("runs", "send", run["id"], "here it comes").code == 0
    done = cli(*RUN, "--resume", "T1")
    assert (done.code, done.out) == (0, "heard: here it comes\n")
    assert "T1 user → pm-1  message\n  here it comes\n" in done.err


def test_a_reader_that_leaves_cancels_the_task(cli: Cli, start: Start) -> None:
    process = start(*RUN, "listen to me", "--events")
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stdout:
        if '"kind":"created"' in line and '"agent":"crew/analyst-1/work"' in line:
            break
    process.stdout.close()
    (run,) = cli("runs", "list", "--agent", "crew", "--json").json
    assert cli("runs", "send", run["id"], "more to tell").code == 0
    assert process.wait(60) == 141
    assert "Traceback" not in process.stderr.read()
    assert cli("runs", "show", run["id"], "--json").json["status"] == "cancelled"


# -- at a terminal --------------------------------------------------------------------------------------------


def test_the_conversation_unfolds_and_plain_text_answers_what_is_asked(terminal: At) -> None:
    at = terminal(*RUN, "sales of Q4")
    at.see("@AGENT TEXT sends a message")
    at.see("T1 pm-1 → user  question")
    at.see("answer: ")
    at.sendline("Europe")
    at.see("T1 user → pm-1  answer")
    at.see("T1.1 pm-1 → analyst-1  delegation")
    at.see("T1.1.1 qa-1 → analyst-1  inquiry  in review")
    at.see("T1.1.1 qa-1 → pm-1  result (approve)")
    at.see("T1 pm-1 → orchestrator  result")
    at.see("\nReport: 42, from the closed sales\r\n")
    at.see("task T1 succeeded")
    at.see("interlingua audit export T1")
    assert at.finish() == 0


def test_a_message_to_an_agent_reaches_it_at_any_time(terminal: At) -> None:
    at = terminal(*RUN, "listen to me")
    at.see("T1.1 pm-1 → analyst-1  delegation")
    at.sendline("is anybody there?")
    at.see("nothing is asked now; @AGENT TEXT sends a message")
    at.sendline("@nobody hello")
    at.see("'nobody' takes no part in T1 (there are: analyst-1, pm-1)")
    at.sendline("@analyst-1 hello there")
    at.see("T1.1 user → analyst-1  message")
    at.see("found: heard hello there\r\n")
    assert at.finish() == 0


def test_commands_are_no_answers_and_the_question_stays(terminal: At) -> None:
    at = terminal(*RUN, "sales of Q4")
    at.see("answer: ")
    at.sendline("/tree")
    at.see("T1 pm-1  waiting")
    at.see("answer: ")
    at.sendline("/help")
    at.see("/cancel     cancels the task")
    at.see("answer: ")
    at.sendline("/etc/hosts")
    at.see("there is no /etc/hosts; /help tells what is")
    at.see("answer: ")
    at.sendline(" /etc/hosts")
    at.see("Yes, for /etc/hosts.")
    assert at.finish() == 0


@pytest.mark.parametrize("task", ["wait for it", "sales of Q4", "listen to me"])
@pytest.mark.parametrize("way", ["command", "key"])
def test_a_task_is_cancelled_by_a_command_or_a_key(terminal: At, cli: Cli, way: str, task: str) -> None:
    at = terminal(*RUN, task)
    at.see("answer: " if task.startswith("sales") else "delegation")
    if way == "command":
        at.sendline("/cancel")
    else:
        at.sendintr()
    at.see("cancelling: ")
    at.see("task T1 cancelled")
    assert at.finish() == 130
    assert "Traceback" not in at.before
    (run,) = cli("runs", "list", "--agent", "crew", "--json").json
    assert run["status"] == "cancelled"


def test_ctrl_d_leaves_the_task_waiting(terminal: At, cli: Cli) -> None:
    at = terminal(*RUN, "sales of Q4")
    at.see("answer: ")
    at.sendeof()
    at.see("interlingua questions answer")
    at.see("--resume T1")
    assert at.finish() == 4
    assert len(cli("questions", "list", "--json").json) == 1


def test_no_input_asks_nothing_even_at_a_terminal(terminal: At) -> None:
    at = terminal(*RUN, "sales of Q4", "--no-input")
    at.see("interlingua questions answer")
    assert at.finish() == 4
    assert "answer: " not in at.before


def test_an_answer_from_another_shell_ends_the_prompt(terminal: At, cli: Cli) -> None:
    at = terminal(*RUN, "sales of Q4")
    at.see("answer: ")
    at.send("half an ans")
    assert cli("questions", "answer", the_question(cli), "Asia").code == 0
    at.see("answered by owner through cli")
    at.see("Yes, for Asia.")
    assert at.finish() == 0


def test_an_answer_of_several_members_is_asked_member_by_member(terminal: At) -> None:
    at = terminal(*RUN, "order something")
    at.see("name (text): ")
    at.sendline("tea")
    at.see("count (whole number): ")
    at.sendline("two")
    at.see("'two' is not a whole number")
    at.see("count (whole number): ")
    at.sendline("2")
    at.see("2 tea\r\n")
    assert at.finish() == 0


def test_an_error_is_escalated_to_the_user_who_may_answer_for_the_agent(terminal: At) -> None:
    at = terminal(*RUN, "late again")
    at.see("T1 pm-1 policy analyst-1 failed with 504 timed_out: escalate to user")
    at.see("decision (retry | fail | answer): ")
    at.sendline("answer")
    at.see("text (text, optional): ")
    at.sendline("about forty")
    at.see("found: about forty\r\n")
    assert at.finish() == 0


def test_the_user_oversees_by_typed_verdicts(terminal: At) -> None:
    at = terminal(*RUN, "write to all")
    at.see("May writer-1 hand over this result?")
    at.see("[approve | reject WHY | inquire WHAT] ")
    at.sendline("looks good to me")
    at.see("say approve, reject and why, or inquire and what")
    at.sendline("inquire who are all?")
    at.see("1 times asked")
    at.see("[approve | reject WHY | inquire WHAT] ")
    at.sendline("approve")
    at.see("as written: Dear all, 1 times asked.\r\n")
    assert at.finish() == 0


def test_what_the_user_rejects_again_and_again_is_not_handed_over(terminal: At) -> None:
    at = terminal(*RUN, "write to all")
    for _ in range(3):
        at.see("[approve | reject WHY | inquire WHAT] ")
        at.sendline("reject too short")
    at.see("T1.1 writer-1 → pm-1  error 422 rejected")
    at.see("not written: rejected\r\n")
    assert at.finish() == 0


def test_text_of_an_agent_cannot_drive_the_terminal(terminal: At) -> None:
    at = terminal(*RUN, "wait a\x1b[31mb\x07c")
    at.see("wait a[31mbc")
    at.sendline("@pm-1 x\x1b[31my")
    at.see("heard: x")
    assert at.finish() == 0
    assert "\x1b[31m" not in at.before


def test_a_terminal_that_goes_away_leaves_a_task_that_can_be_taken_up(terminal: At, cli: Cli) -> None:
    at = terminal(*RUN, "sales of Q4")
    at.see("answer: ")
    os.kill(at.pid, signal.SIGHUP)
    assert at.finish() != 0
    assert cli("questions", "answer", the_question(cli), "Europe").code == 0
    done = cli(*RUN, "--resume", "T1")
    assert (done.code, done.out) == (0, "Report: 42, from the closed sales\n")

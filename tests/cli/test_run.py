"""`interlingua run` without a terminal: what goes where, and what the exit code says."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.commands import Result

from .conftest import EXAMPLES, ZOO

Cli = Callable[..., Result]


def test_text_goes_to_stdout_and_nothing_else_does(cli: Cli) -> None:
    done = cli("run", str(EXAMPLES / "echo.py"), "hello there")
    assert (done.code, done.out) == (0, "hello there \n")
    assert re.fullmatch(r"store: \S+\n", done.err)


def test_output_streams_before_the_run_has_ended(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("run", f"{ZOO}:ticks")  # never ends by itself
    assert process.stdout is not None
    assert process.stdout.read(12) == "tick0 tick1 "


def test_members_beside_the_text_are_printed_as_json_after_it(cli: Cli) -> None:
    assert cli("run", f"{ZOO}:report", "cats").out == 'All about cats.\n{\n  "words": 3\n}\n'


def test_an_output_without_text_is_printed_as_json(cli: Cli) -> None:
    assert cli("run", f"{ZOO}:total", '{"values": [1, 2]}').json == {"value": 3}


def test_json_prints_one_event_per_line(cli: Cli) -> None:
    done = cli("run", f"{ZOO}:shout", "hi", "--json")
    assert done.code == 0
    assert [event["kind"] for event in done.lines] == ["created", "started", "finished"]
    assert [event["seq"] for event in done.lines] == [1, 2, 3]
    last = done.lines[-1]
    assert last["body"] == {"status": "succeeded", "output": {"text": "HI!"}}
    assert last["time"].endswith("Z")
    assert "T" in last["time"]
    assert done.err == ""


def test_what_an_agents_code_prints_stays_off_stdout(cli: Cli) -> None:
    done = cli("run", f"{ZOO}:chatty", "hi", "--json")
    assert [event["kind"] for event in done.lines] == ["created", "started", "finished"]
    assert done.err == "printed by the way\n"


@pytest.mark.parametrize(
    ("args", "stdin", "out"),
    [
        (["plain text"], None, "PLAIN TEXT!\n"),
        (['{"text": "object", "mark": "?"}'], None, "OBJECT?\n"),
        (["{not an object"], None, "{NOT AN OBJECT!\n"),
        (["-"], "from stdin\n", "FROM STDIN!\n"),
        (["-"], '{"text": "json on stdin"}', "JSON ON STDIN!\n"),
        (["@input.txt"], None, "FROM A FILE!\n"),
    ],
)
def test_input_is_text_or_an_object_from_the_command_line_stdin_or_a_file(
    cli: Cli, tmp_path: Path, args: list[str], stdin: str | None, out: str
) -> None:
    (tmp_path / "input.txt").write_text("from a file\n")
    done = cli("run", f"{ZOO}:shout", *args, stdin=stdin)
    assert (done.code, done.out) == (0, out)


def test_bad_input_names_the_path_and_the_fields_and_changes_nothing(here: Cli, tmp_path: Path) -> None:
    for args, words in [
        ([f"{ZOO}:total", '{"values": [1, "a"]}'], ["/values/1", "values (list, required)"]),
        ([f"{ZOO}:shout"], ['"text" is a required property', 'mark (text, default "!")']),
        ([f"{ZOO}:shout", '{"text": "a", "more": 1}'], ["more"]),
        ([f"{ZOO}:total", "text"], ["takes no plain text"]),
        ([f"{ZOO}:shout", "@missing.txt"], ["missing.txt cannot be read"]),
        ([f"{ZOO}:shout", "hi", "--agent-config", "{"], ["--agent-config is not JSON"]),
        ([f"{ZOO}:shout", "hi", "--metadata", "odd"], ["KEY=VALUE"]),
    ]:
        done = here("run", *args)
        assert (done.code, done.out) == (2, ""), args
        for word in words:
            assert word in done.err
        assert "Traceback" not in done.err
    assert not (tmp_path / "store.db").exists()


def test_a_config_that_does_not_fit_is_refused_with_its_path(cli: Cli) -> None:
    done = cli("run", str(EXAMPLES / "mailcomposer.py"), "hi", "--agent-config", '{"style": "rude"}')
    assert done.code == 2
    assert "/style" in done.err


def test_a_config_may_come_from_a_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "style.json").write_text('{"style": "friendly"}')
    text = "To: a@b.example. Subject: Hi."
    done = cli("run", str(EXAMPLES / "mailcomposer.py"), text, "--agent-config", "@style.json")
    assert done.code == 4
    assert "Cheers" in done.err


def test_a_failed_run_says_where_in_the_agents_file(cli: Cli) -> None:
    done = cli("run", f"{ZOO}:crash", "bang")
    assert done.code == 1
    assert "error: ValueError: boom bang" in done.err
    assert f'File "{ZOO}"' in done.err
    assert "Traceback" not in done.err
    assert "Traceback" in cli("--debug", "run", f"{ZOO}:crash", "bang").err


def test_a_run_that_takes_too_long_ends_with_124(cli: Cli) -> None:
    done = cli("run", f"{ZOO}:hold", "--timeout", "0.1")
    assert done.code == 124
    assert "longer than 0.1 s" in done.err


def test_activity_is_shown_on_stderr_and_cannot_drive_the_terminal(cli: Cli) -> None:
    done = cli("run", f"{ZOO}:busy")
    assert done.out == "busy done\n"
    for words in ("· hmm", "✓ look", "▸ leap", "○ land", "Edit notes completed", "-two", "+three", "result.txt",
                  "a result", "by the way", "warning: careful"):  # fmt: skip
        assert words in done.err
    assert "\x1b" not in done.err


def test_a_thread_remembers_and_metadata_is_kept(cli: Cli) -> None:
    first = cli("run", f"{ZOO}:remember", "one", "--thread", "mine", "--metadata", "n=1", "--metadata", "who=me")
    assert first.out == "before: nothing\n"
    assert cli("run", f"{ZOO}:remember", "two", "--thread", "mine").out == "before: one\n"
    runs = cli("runs", "list", "--json").json
    assert runs[1]["metadata"] == {"n": 1, "who": "me"}


def test_a_thread_can_be_named_by_the_end_of_its_id(cli: Cli) -> None:
    name = "01a1de97-1299-7e22-bc4f-3260440dd4d4"
    cli("run", f"{ZOO}:remember", "one", "--thread", name)
    assert cli("run", f"{ZOO}:remember", "two", "--thread", name[-8:]).out == "before: one\n"


def test_a_busy_thread_is_a_conflict(cli: Cli, start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("run", f"{ZOO}:ticks", "--thread", "t")
    assert process.stdout is not None
    process.stdout.read(5)
    done = cli("run", f"{ZOO}:remember", "x", "--thread", "t")
    assert done.code == 5
    assert "hint: " in done.err


def test_a_question_without_a_terminal_leaves_the_run_waiting_and_it_is_taken_up_again(cli: Cli) -> None:
    first = cli("run", f"{ZOO}:twice")
    assert (first.code, first.out) == (4, "")
    assert "First?" in first.err
    (question,) = cli("questions", "list", "--json").json
    assert f"interlingua questions answer {question['id']} y" in first.err
    answered = cli("questions", "answer", question["id"], "n", "--reason", "no")
    assert answered.code == 0
    assert f"take it up with: interlingua run {ZOO}:twice --resume {question['run'][-8:]}\n" in answered.err
    second = cli("run", f"{ZOO}:twice", "--resume", question["run"][-8:])
    assert second.code == 4
    assert "Second?" in second.err
    assert "First?" not in second.err
    assert cli("runs", "answer", question["run"], "y").code == 0
    last = cli("run", f"{ZOO}:twice", "--resume", "last")
    assert (last.code, last.out) == (0, "False True\n")
    follow = cli("runs", "follow", question["run"])
    assert (follow.code, follow.out) == (0, "False True\n")


def test_resume_needs_the_agents_code_and_takes_no_new_input(cli: Cli) -> None:
    assert cli("run", f"{ZOO}:confirm").code == 4
    wrong = cli("run", str(EXAMPLES / "echo.py"), "--resume", "last")
    assert wrong.code == 2
    assert "confirm@0.1.0" in wrong.err
    assert cli("run", f"{ZOO}:confirm", "text", "--resume", "last").code == 2
    assert cli("run", f"{ZOO}:confirm", "--resume", "nothing").code == 3


def test_a_childs_question_shows_on_its_parent(cli: Cli) -> None:
    done = cli("run", f"{ZOO}:delegate")
    assert done.code == 4
    assert "the child's work" in done.err
    assert cli("runs", "answer", cli("runs", "list", "--agent", "delegate", "--json").json[0]["id"], "y").code == 0
    parent = cli("runs", "list", "--agent", "delegate", "--json").json[0]["id"]
    assert cli("run", ZOO + ":delegate", "--resume", parent).out == "child says done\n"


def test_a_reader_that_leaves_ends_the_run(cli: Cli, start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("run", f"{ZOO}:ticks")
    assert process.stdout is not None
    process.stdout.read(5)
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.stdout = None
    assert cli("runs", "list", "--json").json[0]["status"] == "cancelled"


def test_a_store_that_cannot_be_opened_is_said_plainly(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "garbage.db").write_bytes(b"this is no database, and never was" * 100)
    done = cli("run", f"{ZOO}:shout", "hi", "--store", "garbage.db")
    assert done.code == 2
    assert "garbage.db cannot be opened" in done.err
    missing = cli("runs", "list", "--store", "missing.db")
    assert missing.code == 3
    assert not (tmp_path / "missing.db").exists()


def test_a_run_started_here_is_json_that_others_can_read_back(cli: Cli) -> None:
    done = cli("run", f"{ZOO}:confirm", "--json")
    assert done.code == 4
    asked = done.lines[-1]["body"]["question"]
    assert asked["prompt"] == "Shall I do it?"
    assert json.loads(json.dumps(asked))["asked_at"].endswith("Z")

"""The lines that the demo shows: whoever pastes one into another terminal gets what the demo got."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from interlingua.cli.demo.tour import program
from tests.kit import warm_python
from tests.kit.commands import COMMAND, PATIENCE, clean_env
from tests.kit.terminal import Terminal

At = Callable[..., Terminal]
Paste = Callable[[str], subprocess.Popen[str]]

INTERLINGUA = shlex.join(COMMAND)

# What ends otherwise than well, and should: a change that is noticed, and a question that nobody is there to answer.
_CODES = {"sed s/Europe/Africa/g": 1, "--thread lunch": 4}


@pytest.fixture
def pasted(tmp_path: Path) -> Paste:
    """A line in a shell of somebody who has nothing of the demo's, in the same folder."""
    home = tmp_path / "home"
    home.mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": clean_env()["PYTHONPATH"]}

    def paste(line: str) -> subprocess.Popen[str]:
        line = line.replace(INTERLINGUA, warm_python.interlingua())
        return subprocess.Popen(
            ["bash", "-c", line if "|" in line else f"exec {line}"], env=env, cwd=tmp_path, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return paste


@pytest.mark.skipif(shutil.which("curl") is None, reason="the lines are for curl")
@pytest.mark.usefixtures("quick_tools")
def test_every_line_that_the_demo_shows_works_in_another_terminal(terminal: At, pasted: Paste) -> None:
    at = terminal("demo")
    said = ""
    for question, answer in (("[y/n] ", "y"), ("\nanswer: ", "by region")):
        at.expect_exact(question)
        said += at.before
        at.sendline(answer)
    at.see("Ctrl-C stops.")
    said += at.before
    lines = [line[2:] for line in said.replace("\r", "").splitlines() if line.startswith("$ ")]
    kinds = {shlex.split(line.removeprefix(INTERLINGUA))[0] for line in lines}
    assert kinds == {"curl", "stdio", "questions", "audit", "cp", "run", "serve", "inspect"}
    for line in lines:
        process = pasted(line)
        if line.startswith(f"{INTERLINGUA} serve"):
            assert process.stderr is not None
            assert any("Serving on" in told for told in process.stderr), line
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == next((code for part, code in _CODES.items() if part in line), 0), (line, out, err)
        if "#echo" in line:
            assert out.strip() == "hello"
        if line.startswith("curl"):
            assert out, line
            assert "not found" not in out.lower()
    at.sendintr()
    assert at.finish() == 0


@pytest.mark.usefixtures("quick_tools")
def test_a_question_of_the_demo_may_be_answered_in_another_terminal(terminal: At, pasted: Paste) -> None:
    at = terminal("demo", "--no-team")
    at.expect_exact("[y/n] ")
    shown = re.search(r"^\$ (.* questions list --store .*)\r$", at.before, re.MULTILINE)
    assert shown is not None
    out, err = pasted(shown[1] + " --json").communicate(timeout=PATIENCE)
    question = re.search(r'"id": "([^"]+)"', out)
    assert question is not None, (out, err)
    answering = pasted(shown[1].replace("questions list", f"questions answer {question[1]} n"))
    answering.communicate(timeout=PATIENCE)
    assert answering.returncode == 0
    at.see("answered by owner through cli")
    at.see('"message": "Not sent."')
    at.see("Ctrl-C stops.")
    at.sendintr()
    assert at.finish() == 0


@pytest.mark.parametrize(
    ("called", "path", "told"),
    [
        ("/opt/il/bin/interlingua", "/usr/bin", "/opt/il/bin/interlingua"),
        ("{here}/.venv/bin/interlingua", "/usr/bin", ".venv/bin/interlingua"),
        ("{here}/.venv/bin/interlingua", "{here}/.venv/bin", "interlingua"),
        ("{here}/a b/interlingua", "/usr/bin", "'a b/interlingua'"),
        ("/somewhere/interlingua/__main__.py", "{here}/.venv/bin", "{python} -m interlingua"),
    ],
)
def test_the_program_is_named_as_it_can_be_started_again(
    called: str, path: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / ".venv" / "bin" / "interlingua"
    script.parent.mkdir(parents=True)
    script.touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [called.format(here=tmp_path), "demo"])
    monkeypatch.setattr(sys, "executable", "/opt/py/bin/python")
    monkeypatch.setenv("PATH", path.format(here=tmp_path))
    assert program() == told.format(python="/opt/py/bin/python")

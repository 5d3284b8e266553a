"""Ctrl-C at every moment of `interlingua run`: it starts nothing, or ends what it started; it is never lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.commands import Result

from .conftest import ZOO, nothing_ran

Cli = Callable[..., Result]
PRESSED = str(Path(__file__).with_name("pressed.py"))

# As `python -m interlingua`, and Ctrl-C is pressed when the module is asked for that the first argument names.
IMPORTING = """
import runpy, signal, sys

class Press:
    def find_spec(self, name, path, target=None):
        if name == wanted:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

wanted = sys.argv.pop(1)
sys.meta_path.insert(0, Press())
runpy.run_module("interlingua", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    "module", ["typer", "interlingua.cli.app", "interlingua.terminal.session", "interlingua.protocols.targets"]
)
def test_ctrl_c_while_the_command_is_still_imported_starts_nothing(
    env: dict[str, str], tmp_path: Path, cli: Cli, module: str
) -> None:
    command = [sys.executable, "-c", IMPORTING, module, "run", f"{ZOO}:shout", "hello"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert nothing_ran(cli)


@pytest.mark.parametrize("window", ["the file is loaded", "the store is opened", "the store is open"])
def test_ctrl_c_before_the_run_is_submitted_starts_nothing(cli: Cli, window: str) -> None:
    done = cli("run", f"{PRESSED}:hold", WINDOW=window)
    assert (done.code, done.out) == (130, "")
    assert "Traceback" not in done.err
    assert nothing_ran(cli)


@pytest.mark.parametrize(
    "window",
    [
        "the run is submitted",
        "the run has begun, and nobody knows",
        "the run is on disk",
        "its card is looked up",
        "it is about to be followed",
    ],
)
def test_ctrl_c_while_the_run_is_submitted_cancels_it(cli: Cli, window: str) -> None:
    done = cli("run", f"{PRESSED}:hold", WINDOW=window)
    assert done.code == 130
    assert "cancelling: Ctrl-C" in done.err
    assert "Traceback" not in done.err
    (run,) = cli("runs", "list", "--json").json
    assert run["status"] == "cancelled"


@pytest.mark.parametrize("window", ["the store is closed", "the store is shut"])
def test_ctrl_c_after_the_run_has_ended_leaves_it_as_it_ended(cli: Cli, window: str) -> None:
    done = cli("run", f"{PRESSED}:quick", WINDOW=window)
    assert (done.code, done.out) in ((0, "done\n"), (130, "done\n"))
    assert "Traceback" not in done.err
    (run,) = cli("runs", "list", "--json").json
    assert run["status"] == "succeeded"

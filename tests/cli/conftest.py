"""The command line in this process, and files of agents for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interlingua.cli.main import main
from tests.kit.commands import Result

ZOO = str(Path(__file__).with_name("zoo.py"))
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def nothing_ran(cli: Callable[..., Result]) -> bool:
    """Whether no run was begun: there is no store, or it holds none."""
    listed = cli("runs", "list", "--json")
    return listed.code == 3 or listed.json == []


@pytest.fixture
def here(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Result]]:
    """As `cli`, in this process: for long tables of things that go wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in os.environ:
        if name.startswith("INTERLINGUA_"):
            monkeypatch.delenv(name)
    for name in ("INTERLINGUA_STORE", "INTERLINGUA_PROJECT", "NO_COLOR", "TERM", "COLUMNS"):
        monkeypatch.setenv(name, env[name])

    def run(*args: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["interlingua", *args])
        try:
            main()
            code = 0
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        out, err = capfd.readouterr()
        return Result(subprocess.CompletedProcess(args, code, out, err))

    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield run
    for name, module in list(sys.modules.items()):  # the agents' files; other tests have files of the same name
        if str(getattr(module, "__file__", "")).startswith((str(tmp_path), ZOO)):
            del sys.modules[name]

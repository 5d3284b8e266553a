"""The manual is `--help`: nothing in it may be missing. And the command line is quick to answer."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer.main

from interlingua import __version__
from interlingua.cli.app import PANELS, app
from interlingua.server.config.settings import all_settings
from tests.kit.commands import COMMAND, Result

from .conftest import nothing_ran

Cli = Callable[..., Result]


def commands() -> Iterator[tuple[str, Any]]:
    def walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield path, command
        for name, sub in getattr(command, "commands", {}).items():
            yield from walk(f"{path} {name}".strip(), sub)

    yield from walk("", typer.main.get_command(app))


@pytest.mark.parametrize(
    ("path", "command"), list(commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_and_option_has_help(path: str, command: Any) -> None:
    assert command.help
    assert len(command.help) > 20
    if not hasattr(command, "commands"):
        assert command.epilog, f"{path} has no examples"
        assert "Examples" in command.epilog
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{path} {parameter.name} has no help"


def test_examples_in_the_help_name_commands_and_options_that_exist() -> None:
    known = dict(commands())
    for path, command in known.items():
        for example in re.findall(r"`(?:[^`|]*\| )?interlingua ([^`]*)`", command.epilog or ""):
            words = example.split()
            name = " ".join(words[:2]) if " ".join(words[:2]) in known else words[0]
            assert name in known, f"{path}: {example}"
            options = {opt for parameter in known[name].params for opt in parameter.opts}
            for word in words:
                if word.startswith("--"):
                    assert word in options, f"{path}: {example}"


def test_help_tells_the_exit_codes(cli: Cli) -> None:
    for args in (["--help"], ["run", "--help"], ["run", "-h"]):
        done = cli(*args)
        assert done.code == 0
        assert "124 timed out" in done.out
        assert "4 waits for an answer" in done.out
    assert "Usage" in cli("runs", "follow", "--help").out


@pytest.mark.parametrize("path", [path for path, _ in commands()])
def test_every_command_tells_its_usage_when_it_is_asked(path: str, here: Cli) -> None:
    done = here(*path.split(), "--help")
    assert (done.code, done.err) == (0, "")
    assert f"Usage: interlingua {path}".rstrip() in done.out


@pytest.mark.parametrize("command", ["serve", "worker", "config show"])
def test_the_help_of_settings_fits_on_one_screen_and_help_all_shows_all(cli: Cli, command: str) -> None:
    brief, whole = cli(*command.split(), "--help"), cli(*command.split(), "--help-all")
    assert (brief.code, whole.code, brief.err, whole.err) == (0, 0, "", "")
    assert len(brief.out.strip().splitlines()) <= 32
    assert "--help-all" in brief.out
    assert "--limits-max-running" not in brief.out
    for one in all_settings():
        for flag in one.flags.split("/"):
            assert flag in whole.out or command == "worker", flag


def test_the_help_of_serve_has_the_options_that_people_need(cli: Cli) -> None:
    shown = set(re.findall(r"--[a-z-]+", cli("serve", "--help").out))
    assert shown - {"--help-all", "--help"} == {
        "--config", "--host", "--port", "--store", "--mount", "--door", "--log", "--allow-host", "--allow-origin",
        "--issuer", "--audience",
    }  # fmt: skip


def test_the_commands_are_listed_by_what_they_are_for(cli: Cli) -> None:
    shown = cli("--help").out
    places = [shown.index(f" {panel} ") for panel in PANELS]
    assert places == sorted(places)


def test_wrong_usage_is_exit_code_2(here: Cli) -> None:
    for args in (["rnu"], ["run"], ["run", "a.py", "--odd"], ["runs", "show"], ["runs", "list", "--limit", "0"]):
        done = here(*args)
        assert (done.code, done.out) == (2, ""), args


def test_the_version_is_told_in_every_way(cli: Cli) -> None:
    for args in (["--version"], ["-V"], ["--debug", "--version"]):
        assert cli(*args).out == f"interlingua {__version__}\n"


def test_the_version_comes_before_anything_heavy_is_imported() -> None:
    code = (
        "import sys; sys.argv = ['interlingua', '--version']\n"
        "from interlingua.cli.main import main; main()\n"
        "heavy = {'typer', 'rich', 'msgspec', 'asyncio', 'sqlite3', 'jsonschema_rs'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_version_is_told_in_less_than_200_ms() -> None:
    def once() -> float:
        begin = time.perf_counter()
        subprocess.run([*COMMAND, "--version"], check=True, capture_output=True)
        return time.perf_counter() - begin

    assert min(once() for _ in range(5)) < 0.2


def test_help_does_not_start_the_engine() -> None:
    code = (
        "import sys; sys.argv = ['interlingua', 'run', '--help']\n"
        "from interlingua.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'sqlite3', 'jsonschema_rs', 'interlingua.engine.engine'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.usefixtures("quick_tools")
def test_the_demo_shows_five_protocols_an_answer_from_elsewhere_and_a_run_that_outlives_its_server(cli: Cli) -> None:
    begin = time.perf_counter()
    with socket.socket() as taken:  # another port will do
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # somebody else has it, which is as good
            taken.bind(("127.0.0.1", 8000))
            taken.listen()
        done = cli("demo", "--no-team", "--store", "tour.db")
    assert time.perf_counter() - begin < 60
    assert done.code == 0, done.err
    assert "curl -s http://127.0.0.1:" in done.err
    assert "curl -s http://127.0.0.1:8000/" not in done.err
    for words in (
        '{"text": "hello Connect "}', '{"text": "hello MCP "}', '[{"type": "text", "content": "hello peer "}]',
        '"text": "hello editor "', '"recipient_id": "user", "content": "hello CAP "',
        'shouter: {"text": "WRITE IT ONCE "}', 'turner: {"text": "ecno ti etirw"}', 'initials: {"text": "wio"}',
        'teller: {"text": "3 words"}', 'sorter: {"text": "it once write"}',
    ):  # fmt: skip
        assert words in done.out
    asked = done.out.index("the run waits for an answer: Shall this mail be sent?")
    assert (
        asked < done.out.index("Shall this mail be sent? (mail_send_approval)") < done.out.index('"message": "Sent."')
    )
    assert re.search(r"Process \d+ is gone, by kill -9", done.err)
    halves = re.search(r"^(1 2 3 4 .*)\n(.*and all together 36)$", done.out, re.MULTILINE)
    assert halves is not None
    assert (halves[1] + halves[2]).split()[:8] == ["1", "2", "3", "4", "5", "6", "7", "8"]
    kept = cli("runs", "list", "--store", "tour.db", "--json").json
    assert len(kept) == 12, "five doors, five mounts, a mail and a counter"
    assert {run["status"] for run in kept} == {"succeeded"}
    assert "Ctrl-C stops" not in done.err, "without a terminal it does not stay"


@pytest.mark.usefixtures("quick_tools")
def test_the_demo_has_a_team_whose_audit_notices_a_change(cli: Cli) -> None:
    done = cli("demo")
    assert done.code == 0
    assert nothing_ran(cli)  # it has a store of its own
    for words in (".1.1 qa-1 → analyst-1  inquiry", "the tour answers: Regional"):
        assert words in done.err
    assert "runs: nothing was changed" in done.out
    assert re.search(r"event \d+ \(said\) of run .* was changed", done.out)


def test_the_demo_does_not_ask_a_store_with_keys_without_one(cli: Cli) -> None:
    assert cli("keys", "add", "laptop", "--store", "tour.db").code == 0
    done = cli("demo", "--no-team", "--store", "tour.db")
    assert done.code == 0
    assert "This store has keys" in done.err

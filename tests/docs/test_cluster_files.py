"""The files of examples/cluster: what they start exists, with the flags and variables that they use."""

from __future__ import annotations

import configparser
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from interlingua.cli.app import app
from interlingua.cli.flags import SettingsCommand
from interlingua.server.config.settings import ENTRIES, all_settings

CLUSTER = Path(__file__).resolve().parents[2] / "examples" / "cluster"
UNITS = sorted(CLUSTER.glob("*.service"))


def command(words: list[str]) -> Any:
    """The command that some words start, and it takes every flag among them."""
    found: Any = typer.main.get_command(app)
    while hasattr(found, "commands"):
        assert words[0] in found.commands, words
        found = found.commands[words[0]]
        words = words[1:]
    context = found.make_context(words[0] if words else "", list(words), resilient_parsing=False)
    assert context.command is found
    return found


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load((CLUSTER / "compose.yaml").read_text())


def ours(compose: Any) -> Iterator[tuple[str, Any]]:
    for name, service in compose["services"].items():
        if service["command"][0] == "interlingua" if "command" in service else False:
            yield name, service


def test_every_command_of_the_compose_file_exists_with_its_flags(compose: Any) -> None:
    found = {name: command(service["command"][1:]) for name, service in ours(compose)}
    assert set(found) == {"migrate", "server", "worker"}
    assert isinstance(found["worker"], SettingsCommand)


def test_the_variables_of_the_compose_file_are_settings(compose: Any) -> None:
    known = {one.variable for one in (*all_settings(), *ENTRIES)}
    for _, service in ours(compose):
        assert set(service["environment"]) <= known
        assert service["environment"]["INTERLINGUA_STORE"].startswith("postgresql://")


def test_what_services_need_of_each_other_is_in_the_compose_file(compose: Any) -> None:
    for service in compose["services"].values():
        assert set(service.get("depends_on", ())) <= set(compose["services"])
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or (CLUSTER / source).exists(), source
        for config in service.get("configs", ()):
            assert config["source"] in compose["configs"]
    for told in re.findall(r"docker compose run --rm (\w+)(?: interlingua (.+?))?(?: {2,}#|$)", raw(), re.MULTILINE):
        assert told[0] in compose["services"]
        if told[1]:
            command(shlex.split(told[1]))


def test_only_the_balancer_has_a_port_and_that_on_loopback(compose: Any) -> None:
    ports = {name: service["ports"] for name, service in compose["services"].items() if "ports" in service}
    assert ports == {"balancer": ["127.0.0.1:8080:8080"]}


def raw() -> str:
    return (CLUSTER / "compose.yaml").read_text()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_what_a_unit_starts_exists_with_its_flags_and_is_kept_in(unit: Path) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",), delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit.read_text())
    assert parser.sections() == ["Unit", "Service", "Install"]
    service = parser["Service"]
    program, *words = shlex.split(service["ExecStart"].replace("%i", "1"))
    assert program.endswith("/bin/interlingua")
    command(words)
    assert "-HUP" in service["ExecReload"]
    assert service["User"] == "interlingua"
    for wall in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "RestrictNamespaces"):
        assert service[wall] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    graces = {one.path: one.default for one in all_settings() if one.name in ("shutdown_grace", "cancel_grace")}
    assert int(service["TimeoutStopSec"]) > graces["limits.shutdown_grace"] + graces["limits.cancel_grace"]


def test_there_is_a_unit_for_servers_and_one_for_workers() -> None:
    assert [unit.name for unit in UNITS] == ["interlingua-worker@.service", "interlingua.service"]

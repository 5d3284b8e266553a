"""The table of settings is the truth: what it says is what the program does, and nothing in the program is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer.main

from interlingua.cli.app import app
from interlingua.engine.settings import Settings
from interlingua.protocols.installed import protocols
from interlingua.protocols.peer.config import DoorSettings as PeerSettings
from interlingua.protocols.peer.config import NodeSettings
from interlingua.server.app import ServeSettings
from interlingua.server.config.build import doors, engine_settings, serve_settings
from interlingua.server.config.fields import Entries, Setting
from interlingua.server.config.load import Config, read
from interlingua.server.config.settings import ENTRIES, Mounting, all_settings, sections

SETTINGS = all_settings()
# Flags of `interlingua peer` that are other words for one that is a setting, or for its log.
OTHER_WORDS = {"relay_url", "extensions", "limitations_json", "verbose"}
# What is no part of what the server is made with: the command reads it.
OF_THE_COMMAND = {
    "project",
    "store.path",
    "auth.audience",
    "auth.jwks_url",
    "auth.scopes",
}
# What means something only beside something else.
TOGETHER: dict[str, dict[str, Any]] = {
    "doors.connect.host": {"doors.connect.port": 1},
    "doors.mcp.host": {"doors.mcp.port": 1},
    "doors.editor.host": {"doors.editor.port": 1},
    "doors.cap.host": {"doors.cap.port": 1},
    "doors.peer.door_host": {"doors.peer.door_port": 1},
    "doors.peer.tls_key": {"doors.peer.tls_cert": __file__},
}
SAMPLES: dict[str, Any] = {
    "bus.url": "nats://192.0.2.1",
    "server.advertise": "http://192.0.2.1:8000",
    "server.metrics": "192.0.2.1:9100",
    "doors.peer.config": "node.json", "doors.peer.relay": "acp+ws://192.0.2.1", "doors.peer.transport_modes": "p2p",
    "doors.peer.join": ["acp://192.0.2.1/tok_0123456789abcdef"], "doors.peer.availability_mode": "persistent",
    "doors.peer.next_active_at": "2026-11-15T09:00:00Z", "doors.peer.availability_cron": "0 9 * * *",
    "doors.peer.extension": ["https://example.org/x"], "doors.peer.tls_cert": __file__, "doors.peer.tls_key": __file__,
    "doors.peer.tls_ca": __file__, "doors.peer.limitations": "no images", "doors.peer.heartbeat_interval": 60.0,
}  # fmt: skip


def another(setting: Setting) -> Any:
    """A value that is not the default."""
    if setting.path in SAMPLES:
        return SAMPLES[setting.path]
    if setting.choices:
        return next(one for one in setting.choices if one != setting.default)
    given = {
        "text": "other", "path": "other", "texts": ["other"], "numbers": [1.5, 2.0], "yes": not setting.default,
        "counts": {"other": 2, "another@1.0": 3},
    }  # fmt: skip
    if setting.kind in given:
        return given[setting.kind]
    value = (setting.default or 0) + 1
    return float(value) if setting.kind == "number" else value


def as_text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ",".join(f"{name}={number}" for name, number in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


async def test_without_anything_said_all_is_as_the_program_has_it() -> None:
    config = read(None, environ={})
    assert engine_settings(config) == Settings()
    assert doors(config) == {one.name: one.load("door_settings")() for one in protocols() if one.door}
    made = await serve_settings(config)
    assert made == ServeSettings(listeners=True, doors=made.doors, mounting=Mounting())


def test_every_field_of_the_engine_the_mounts_and_the_doors_is_a_setting() -> None:
    described = {(section.type, one.field) for section in sections().values() for one in section.settings}
    for type_ in (Settings, Mounting, *(one.load("door_settings") for one in protocols() if one.door)):
        other_words = OTHER_WORDS if type_ is PeerSettings else set()
        assert {name for name in type_.__struct_fields__ if (type_, name) not in described} == other_words
    told = {*PeerSettings.__struct_fields__, "availability", "interfaces", "extensions", "limitations"}
    assert set(NodeSettings.__struct_fields__) - told == {"listens", "calls", "multicast_interface"}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.path)
async def test_every_setting_has_an_effect_and_its_variable_and_flag_mean_the_same(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "node.json").write_text('{"name": "Other"}')
    value, beside = another(setting), TOGETHER.get(setting.path, {})
    variables = {one.variable: str(beside[one.path]) for one in SETTINGS if one.path in beside}
    by_variable = read(None, environ={**variables, setting.variable: as_text(value)})
    by_flag = read(None, {setting.parameter: value}, environ=variables)
    for config in (by_variable, by_flag):
        config.check()
        expected = Path(value) if setting.kind == "path" else value
        assert config[setting.path] == (tuple(value) if isinstance(setting.default, tuple) else expected)
        assert config[setting.path] != setting.default
    assert by_variable.values[setting.path].origin == setting.variable
    assert by_flag.values[setting.path].origin in setting.flags.split("/")
    if setting.path not in OF_THE_COMMAND:
        assert await serve_settings(by_flag) != await serve_settings(read(None, environ=variables)), "it does nothing"


def test_every_setting_is_a_flag_of_serve() -> None:
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    declared = {opt for parameter in serve.params for opt in (*parameter.opts, *parameter.secondary_opts)}
    for one in SETTINGS:
        assert set(one.flags.split("/")) <= declared
    assert {one.flag for one in ENTRIES if one.flag != "TARGET"} <= declared


def test_names_are_never_used_twice_and_every_section_is_described() -> None:
    for names in ([one.path for one in SETTINGS], [one.variable for one in (*SETTINGS, *ENTRIES)],
                  [flag for one in SETTINGS for flag in one.flags.split("/")]):  # fmt: skip
        assert len(names) == len(set(names))
    assert {one.section for one in SETTINGS} == set(sections())
    assert all(one.help.endswith(".") for one in (*SETTINGS, *(m for e in ENTRIES for m in e.members)))


def entry(path: str) -> Entries:
    return next(one for one in ENTRIES if one.path == path)


@pytest.mark.parametrize("path", [one.path for one in ENTRIES])
def test_entries_come_from_the_file_from_variables_and_from_flags_and_add_up(path: str, tmp_path: Path) -> None:
    entries = entry(path)
    file = tmp_path / "interlingua.toml"
    file.write_text(f'[[{path}]]\n{entries.plain} = "one"\n')
    config: Config = read(
        file, {entries.parameter: ["four", f'{{"{entries.plain}": "five"}}']},
        environ={entries.variable: f'["two", {{"{entries.plain}": "three"}}]'},
    )  # fmt: skip
    config.check()
    found = [Path(str(one[entries.plain])).name for one in config.entries[path]]
    assert found == ["one", "two", "three", "four", "five"]
    assert [one.origin for one in config.entries[path]] == [
        f"{file}:1", entries.variable, entries.variable, entries.flag, entries.flag,
    ]  # fmt: skip


def test_limits_of_agents_are_a_table_in_the_file_and_pairs_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "interlingua.toml"
    file.write_text('[limits.agents]\nslow = 2\n"org.example.slow@1.0" = 1\n')
    assert engine_settings(read(file, environ={})).agents == {"slow": 2, "org.example.slow@1.0": 1}
    for text in ("slow=2, fast=3", '{"slow": 2, "fast": 3}'):
        config = read(file, environ={"INTERLINGUA_LIMITS_AGENTS": text})
        assert engine_settings(config).agents == {"slow": 2, "fast": 3}
    assert engine_settings(read(file, {"limits_agents": ["slow=5"]}, environ={})).agents == {"slow": 5}
    for wrong in (["slow"], ["slow=many"], ["slow=-1"], ["=1"]):
        (problem,) = read(None, {"limits_agents": wrong}, environ={}).problems
        assert str(problem).startswith(
            "--limit-agent: limits.agents: must be a table of whole numbers, at least 0, not "
        )
    file.write_text("[limits]\nagents = 3\n")
    (problem,) = read(file, environ={}).problems
    assert "must be a table of whole numbers" in str(problem)

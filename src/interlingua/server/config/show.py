"""Writes settings down: those in force with the origin of each, and a file to begin with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any

from ...protocols.installed import protocols
from ...protocols.targets import TargetError, parse, spelled
from ...security.redaction import redact_text
from .fields import Entries, Setting
from .load import HIDDEN, Config, Value
from .settings import ENTRIES, all_settings, sections
from .toml_lines import names_variables

_WIDTH = 100
_COMMON = ("server.host", "server.port", "server.log", "store.path", "store.ttl_runs")
_EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "agents": [{"file": "agents.py"}],
    "teams": [{"dir": "sales-team"}],
    "auth.issuers": [{"issuer": "https://login.example.org", "audience": ["agents"]}],
}


def toml(value: Any) -> str:
    """Returns a value as TOML. Texts are written as in JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(name)} = {toml(inner)}" for name, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False)


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else json.dumps(name)


# -- what is in force -----------------------------------------------------------------------------------------


def effective(config: Config, *, changed: bool = False) -> Iterator[str]:
    """Yields the settings in force as TOML, each with its origin. `changed`: without defaults."""
    yield f"# {config.file}" if config.file is not None else "# no config file"
    for section in sections():
        own = [one for one in all_settings() if one.section == section]
        lines = [_in_force(one, config.values[one.path]) for one in own if not changed or config.given(one.path)]
        if lines:
            yield f"\n[{section}]" if section else ""
            yield from _aligned(lines)
    for entries in ENTRIES:
        for entry in config.entries[entries.path]:
            yield f"\n[[{entries.path}]]  # {entry.origin}"
            members = {one.path: one for one in entries.members}
            for name, value in entry.values.items():
                if value.origin != "default":
                    yield f"{name} = {toml(_shown(members[name], value))}"


def _in_force(setting: Setting, value: Value) -> tuple[str, str]:
    if value.value is None:
        return f"# {setting.name} is not set", value.origin
    return f"{setting.name} = {toml(_shown(setting, value))}", value.origin


def _shown(setting: Setting, value: Value) -> Any:
    """Returns a value as people may see it: a secret only as the name of its variable, also inside a table."""
    if isinstance(value.value, dict) and setting.secret:
        written = value.written if isinstance(value.written, dict) else {}
        return {name: _secret(written.get(name)) for name in value.value}
    found = value.shown(setting)
    if not isinstance(found, str):
        return found
    return _target(found, value.value) if setting.path == "target" else redact_text(found)


def _target(written: str, text: str) -> str:
    """Returns the target of a mount without its secrets."""
    try:
        return spelled(written, parse(text))
    except TargetError:  # `config check` says what is wrong with it
        return spelled(written, None)


def _secret(written: Any) -> Any:
    return written if names_variables(written) else HIDDEN


def _aligned(lines: list[tuple[str, str]]) -> Iterator[str]:
    width = min(50, max(len(text) for text, _ in lines))
    for text, origin in lines:
        yield f"{text:<{width}}  # {origin}"


def as_json(config: Config) -> dict[str, Any]:
    """Returns the settings in force for programs."""
    return {
        "file": str(config.file) if config.file is not None else None,
        "settings": {
            one.path: {"value": _plain(_shown(one, value := config.values[one.path])), "from": value.origin}
            for one in all_settings()
        },
        "entries": {
            entries.path: [
                {
                    "from": entry.origin,
                    **{
                        one.path: _plain(_shown(one, entry.values[one.path]))
                        for one in entries.members
                        if entry.values[one.path].origin != "default"
                    },
                }
                for entry in config.entries[entries.path]
            ]
            for entries in ENTRIES
        },
    }


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


# -- a file to begin with -------------------------------------------------------------------------------------


def template(files: list[str], *, everything: bool = False) -> str:
    """Returns a commented file. `files`: those with agents; `everything`: with every setting."""
    lines = [
        "# Settings of `interlingua serve`. Commented lines show the defaults.",
        "# Each setting is also a flag (--limits-max-running) and a variable (INTERLINGUA_LIMITS_MAX_RUNNING). Flags",
        "# override variables, and variables override this file. In texts, ${NAME} is the variable NAME. Relative",
        "# paths are relative to this file. `interlingua config check` finds mistakes. SIGHUP reloads agents, mounts",
        "# and teams; other changes need a restart.",
    ]
    entries = {one.path: one for one in ENTRIES}
    lines += ["", *(line for one in all_settings() if not one.section for line in _commented(one))]
    for path in ("agents", "mounts", "teams"):
        lines += ["", *_comment(entries[path].help)]
        if path == "agents" and files:
            for file in files:
                lines += ["[[agents]]", f"file = {toml(file)}"]
        else:
            lines += _example(entries[path], everything)
    for section, declared in sections().items():
        own = [one for one in all_settings() if one.section == section and (everything or one.path in _COMMON)]
        if own and section:
            lines += ["", *_comment(declared.help), f"[{section}]", *(line for one in own for line in _commented(one))]
        if section == "auth":
            lines += ["", *_comment(entries["auth.issuers"].help), *_example(entries["auth.issuers"], everything)]
    return "\n".join(lines) + "\n"


def _commented(setting: Setting) -> list[str]:
    return [*_comment(_described(setting)), f"# {setting.name} = {_sample(setting)}"]


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in wrap(text, _WIDTH)]


def _described(setting: Setting) -> str:
    return f"{setting.help} ({setting.allowed}{'' if setting.default is not None else '; not set'})"


def _sample(setting: Setting) -> str:
    return "…" if setting.default is None else toml(setting.default)


def _example(entries: Entries, everything: bool) -> list[str]:
    lines = []
    for example in _mounts() if entries.path == "mounts" else _EXAMPLES[entries.path]:
        lines += [f"# [[{entries.path}]]", *(f"# {name} = {toml(value)}" for name, value in example.items())]
    if everything:
        lines += [line for one in entries.members for line in _comment(f"  {one.name}: {one.help}")]
    return lines


def _mounts() -> list[dict[str, Any]]:
    """Returns an address and a command, each as the preferred protocol that has one writes it."""
    mounted = [kind for protocol in protocols() for kind in protocol.targets]
    address = next(kind.example for kind in mounted if kind.scheme.endswith("+https"))
    command = next(kind.example for kind in mounted if kind.form == "command")
    return [
        {"target": f"{address.replace('HOST', 'agents.example.org')}#echo", "as": "echo", "key": "${EXAMPLE_KEY}"},
        {"target": command, "prefix": "some-", "env": {"API_TOKEN": "${SOME_TOKEN}"}},
    ]

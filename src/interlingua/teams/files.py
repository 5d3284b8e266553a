"""Reads teams from files: a folder of manifests, or one file, in JSON, YAML or TOML.

    sales/
      team.toml       servers, entry, limits, policy, model (team.yaml and team.json as well); may be left out
      pm.json         a manifest; those in a folder `agents` count too
      analyst.yaml

One file holds a manifest, a list of them, or a whole team, with the manifests under `agents`. In a folder `agents`
lists the files to take where not all are manifests. All faults are reported at once, with file and path.
This is the one module of the teams that reads files; it starts nothing.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Final

import msgspec

from .. import extras
from ..model import json_values
from ..model.error_numbers import ErrorNumber
from ..model.errors import DefinitionError, Invalid
from ..model.pointers import escape
from ..model.team.authority import DEFAULT_POLICY, Limits, Policy, Step
from ..model.team.manifest import Problem, Server, Team, check, manifest_problems, read_manifest, type_problems

SUFFIXES: Final = (".json", ".yaml", ".yml", ".toml")
MAX_BYTES = 4_000_000  # of one file

_MEMBERS = ("name", "description", "entry", "model", "servers", "limits", "policy", "agents")
_HIGHER = ("overseer", "user", "orchestrator")
_DEFAULT = "default"  # the key of a policy for all codes that it does not name


class Unreadable(Exception):
    """A file that holds no JSON value, in any of the formats. The text says why."""


def load_team(path: str | Path) -> Team:
    """Loads a team without errors. Raises DefinitionError with all faults."""
    team, problems = load(path)
    if wrong := [str(problem) for problem in problems if problem.severity == "error"]:
        raise DefinitionError(f"the team {path} cannot be used:\n" + "\n".join(wrong))
    return team


def load(path: str | Path) -> tuple[Team, list[Problem]]:
    """Loads a team as far as it can be read. Also returns all faults, with warnings."""
    place = Path(path)
    folder = place if place.is_dir() else place.parent
    reader = _Reader(folder)
    if place.is_dir():
        reader.folder()
    elif not place.exists():
        reader.problem(place.name, "", "there is no such file or folder")
        return reader.team, reader.problems
    elif _is_config(place):
        reader.folder()
    else:
        reader.file(place)
    found = check(reader.team)
    return reader.team, [*reader.problems, *found] if reader.team.manifests or not reader.problems else reader.problems


def _is_config(path: Path) -> bool:
    return path.stem == "team" and path.suffix.lower() in SUFFIXES


class _Reader:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.team = Team(folder.resolve().name or "team")
        self.problems: list[Problem] = []

    def problem(self, file: str, path: str, message: str, *, warning: bool = False) -> None:
        self.problems.append(Problem(file, path, message, "warning" if warning else "error"))

    # -- which files --------------------------------------------------------------------------------------

    def folder(self) -> None:
        configs = [one for one in self._files(self._folder) if _is_config(one)]
        for other in configs[1:]:
            self.problem(other.name, "", f"is a second file of the team beside {configs[0].name}: keep one")
        listed = False
        if configs and (config := self._value(configs[0])) is not None:
            listed = self.config(config, configs[0].name)
        if not listed:
            manifests = [one for one in self._files(self._folder) if not _is_config(one)]
            for one in (*manifests, *self._files(self._folder / "agents")):
                self._manifests(one)

    def file(self, path: Path) -> None:
        self.team.name = path.stem
        value = self._value(path)
        if isinstance(value, dict) and "agents" in value:
            self.config(value, self._name(path))
        elif value is not None:
            self._take(value, self._name(path))

    def _files(self, folder: Path) -> list[Path]:
        if not folder.is_dir():
            return []
        found = [one for one in folder.iterdir() if one.suffix.lower() in SUFFIXES and not one.name.startswith(".")]
        return sorted(one for one in found if one.is_file())

    def _name(self, path: Path) -> str:
        """Returns the name of a file in problems: relative to the team's folder."""
        return path.relative_to(self._folder).as_posix() if path.is_relative_to(self._folder) else str(path)

    # -- their contents -----------------------------------------------------------------------------------

    def _value(self, path: Path) -> Any:
        """Returns the value in a file, as plain JSON; None where it cannot be read."""
        try:
            value = read(path)
            json_values.check(value, Invalid, what=path.name)
        except Unreadable as error:
            self.problem(self._name(path), "", str(error))
        except Invalid as error:
            self.problem(self._name(path), error.path, error.message)
        else:
            if value is None:
                self.problem(self._name(path), "", "is empty")
            return value
        return None

    def _manifests(self, path: Path) -> None:
        value = self._value(path)
        if value is not None:
            self._take(value, self._name(path))

    def _take(self, value: Any, file: str, path: str = "") -> None:
        """Takes one manifest, or several."""
        if isinstance(value, list):
            for index, one in enumerate(value):
                self._take(one, file, f"{path}/{index}")
            return
        if not (problems := manifest_problems(value, file)):
            self.team.add(read_manifest(value, file + (f"#{path}" if path else "")))
            return
        self.problems.extend(msgspec.structs.replace(one, path=path + one.path) for one in problems)
        if isinstance(value, dict) and isinstance(value.get("id"), str):
            self.team.invalid_ids.add(value["id"])  # other agents may still name it

    def config(self, value: Any, file: str) -> bool:
        """Reads the settings of the team as a whole. Returns True where they list the manifests."""
        self.team.file = file
        if not isinstance(value, dict):
            self.problem(file, "", "is an object with servers, entry, limits, policy, model or agents")
            return False
        for name in ("name", "description", "entry", "model"):
            if name in value and not self._wrong(value[name], str, f"/{name}"):
                setattr(self.team, name, value[name])
        if "limits" in value and not self._wrong(value["limits"], Limits, "/limits"):
            self.team.limits = msgspec.convert(value["limits"], Limits)
        for id_, server in self._members(value, "servers").items():
            if not self._wrong(server, Server, f"/servers/{escape(id_)}"):
                self.team.servers[id_] = msgspec.convert(server, Server)
        if "policy" in value:
            self.team.policy = self._policy(self._members(value, "policy"))
        self.team.extra = {name: given for name, given in value.items() if name not in _MEMBERS}
        for name in self.team.extra:
            self.problem(file, f"/{escape(name)}", f"is not known here (known are {', '.join(_MEMBERS)})", warning=True)
        return "agents" in value and self._listed(value["agents"], file)

    def _wrong(self, value: Any, kind: Any, path: str) -> bool:
        found = type_problems(value, kind, path, self.team.file)
        self.problems.extend(found)
        return bool(found)

    def _members(self, value: dict[str, Any], name: str) -> dict[str, Any]:
        found = value.get(name, {})
        return {} if self._wrong(found, dict[str, Any], f"/{name}") else found

    def _listed(self, agents: Any, file: str) -> bool:
        """Takes the manifests of a list: names of files, or the manifests themselves."""
        if not isinstance(agents, list):
            self.problem(file, "/agents", "is a list of manifests, or of files that hold some")
            return True
        for index, one in enumerate(agents):
            if not isinstance(one, str):
                self._take(one, file, f"/agents/{index}")
            elif (path := self._folder / one).is_file():
                self._manifests(path)
            else:
                self.problem(file, f"/agents/{index}", f"there is no file {one[:200]}")
        return True

    def _policy(self, table: dict[str, Any]) -> Policy:
        """Returns the default policy with the given codes. A code is a number, or its name."""
        steps, default = dict(DEFAULT_POLICY.steps), DEFAULT_POLICY.default
        names = {code.name.lower(): int(code) for code in ErrorNumber}
        for key, value in table.items():
            number = names.get(key.lower()) or (int(key) if key.isascii() and key.isdigit() and len(key) < 6 else None)
            if number is None and key != _DEFAULT:
                known = ", ".join([*names, _DEFAULT])
                self.problem(self.team.file, f"/policy/{escape(key)}", f"is no error code: a number, or one of {known}")
                continue
            listed = value if isinstance(value, list) else [value]
            found = [
                self._step(one, f"/policy/{escape(key)}" + f"/{i}" * isinstance(value, list))
                for i, one in enumerate(listed)
            ]
            taken = tuple(step for step in found if step is not None)
            if number is None:
                default = taken
            else:
                steps[number] = taken
        return Policy(steps, default)

    def _step(self, value: Any, path: str) -> Step | None:
        """Returns a step from an object, or from words: `retry`, `reassign`, `reassign AGENT`, `escalate user`,
        `fail`."""
        if isinstance(value, str):
            do, _, to = value.partition(" ")
            value = {"do": do, **({"to": to} if to else {})}
            if type_problems(value, Step, path):
                self.problem(
                    self.team.file, path, f"is retry, reassign [AGENT], escalate WHOM or fail, got {do[:80]!r}"
                )
                return None
        elif self._wrong(value, Step, path):
            return None
        step = msgspec.convert(value, Step)
        if step.do == "escalate" and step.to not in _HIGHER:
            self.problem(self.team.file, path, f"escalate says to whom: {', '.join(_HIGHER)}")
            return None
        if step.do in ("retry", "fail") and step.to is not None:
            self.problem(self.team.file, path, "only escalate and reassign say to whom")
            return None
        return step


# -- formats --------------------------------------------------------------------------------------------------


def read(path: Path) -> Any:
    """Returns the value in a file, by its suffix. Raises Unreadable."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise Unreadable(f"is larger than {MAX_BYTES} bytes")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Unreadable("is not UTF-8") from None
    match path.suffix.lower():
        case ".json":
            return _json(text)
        case ".toml":
            try:
                return tomllib.loads(text)
            except (tomllib.TOMLDecodeError, RecursionError) as error:
                raise Unreadable(f"is no TOML: {error}") from None
        case ".yaml" | ".yml":
            return _yaml(text)
    raise Unreadable(f"is none of {', '.join(SUFFIXES)}")


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"is no JSON: {error}") from None


def _yaml(text: str) -> Any:
    extras.require("a team in YAML", "pyyaml", "yaml", "yaml")
    import yaml  # type: ignore[import-untyped, unused-ignore]

    class Loader(yaml.SafeLoader):  # type: ignore[misc, unused-ignore]
        """Loads plain values only. A repeated key is an error, because one value would silently be lost. A reference is
        refused, because every reader copies its value, so that a small file could become a huge team."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            self.flatten_mapping(node)
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            _refuse_twice([key for key in keys if isinstance(key, str)])
            return dict(super().construct_mapping(node, deep))

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise Unreadable("has an alias (*name): write the value out")
            return super().compose_node(parent, index)

    try:
        return yaml.load(text, Loader)  # noqa: S506 - a safe loader, with less
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Unreadable(f"is no YAML: {' '.join(str(error).split())}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_twice([key for key, _ in pairs])
    return dict(pairs)


def _refuse_twice(keys: list[str]) -> None:
    if len(set(keys)) < len(keys):
        twice = next(key for index, key in enumerate(keys) if key in keys[:index])
        raise Unreadable(f"has the key {twice[:80]!r} twice in one object")

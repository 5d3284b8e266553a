"""The requirements manifest: every sentence that we promise to keep, and the tests that show that we do.

One TOML file per source of promises lies beside this module. `load_all` reads them, `problems` says what is wrong with
them; the test suite, the generator of docs/conformance.md and the mutation check all start from here. Tests are
looked up by parsing their files, so nothing has to be collected or imported.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter, defaultdict
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from interlingua.protocols.installed import protocols

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
MUTANTS = FOLDER / "mutants.toml"

LEVELS = ("must", "should", "may", "feature")
STATUSES = ("tested", "deviates", "pending")

OURS = "tests/conform/test_ours.py::test_our_doors_keep_the_requirement"
"""The test that looks at our own doors from outside, one item for each requirement that can be seen so."""

_ORDER = ("engine", *(protocol.name for protocol in protocols()))  # others follow, by name


class ManifestError(ValueError):
    """A file that cannot even be read as a manifest."""


@dataclass(frozen=True)
class Requirement:
    id: str
    section: str
    level: str
    text: str
    status: str
    tests: tuple[str, ...] = ()
    reason: str = ""  # why we differ; only of what deviates
    outside: bool = False  # true if the checker sees it: it looks at our own doors then, which is its test

    @property
    def shown_by(self) -> tuple[str, ...]:
        """The tests that are run for it: those that it names, or the look of the checker at our doors."""
        return self.tests or ((f"{OURS}[{self.id}]",) if self.outside else ())


@dataclass(frozen=True)
class Manifest:
    protocol: str
    title: str
    requirements: tuple[Requirement, ...]


@dataclass(frozen=True)
class Mutant:
    """A small breakage of the code, and the requirement whose tests must notice it."""

    file: str
    find: str
    replace: str
    kills: str
    tests: tuple[str, ...] = ()  # where not all tests of that requirement are meant


def load(path: Path) -> Manifest:
    data = _read(path)
    seed = data.get("seed", {})
    for name in ("protocol", "title"):
        if not isinstance(seed.get(name), str):
            raise ManifestError(f"{path.name}: [seed] needs a {name}")
    if unknown := set(data) - {"seed", "requirement"}:
        raise ManifestError(f"{path.name}: unknown table {min(unknown)!r}")
    found = tuple(_entry(Requirement, entry, path) for entry in data.get("requirement", []))
    return Manifest(seed["protocol"], seed["title"], found)


def load_all(folder: Path = FOLDER) -> list[Manifest]:
    manifests = [load(path) for path in folder.glob("*.toml") if path.name != MUTANTS.name]
    return sorted(
        manifests, key=lambda m: (_ORDER.index(m.protocol) if m.protocol in _ORDER else len(_ORDER), m.protocol)
    )


def load_mutants(path: Path = MUTANTS) -> list[Mutant]:
    return [_entry(Mutant, entry, path) for entry in _read(path).get("mutant", [])]


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{path.name}: {error}") from error


def _entry(kind: type[Any], entry: dict[str, Any], path: Path) -> Any:
    name = entry.get("id") or entry.get("kills") or "?"
    values: dict[str, Any] = {}
    for field in fields(kind):
        value = entry.pop(field.name, None)
        if field.name == "tests":
            value = [] if value is None else value
            if not isinstance(value, list) or not all(isinstance(test, str) for test in value):
                raise ManifestError(f"{path.name}: {name}: tests is a list of texts")
            value = tuple(value)
        elif field.name == "outside":
            value = False if value is None else value
            if not isinstance(value, bool):
                raise ManifestError(f"{path.name}: {name}: outside is true or false")
        elif value is None:
            if field.name != "reason":
                raise ManifestError(f"{path.name}: {name} has no {field.name}")
            value = ""
        elif not isinstance(value, str):
            raise ManifestError(f"{path.name}: {name}: {field.name} is a text")
        values[field.name] = value
    if entry:
        raise ManifestError(f"{path.name}: {name} has an unknown field {min(entry)!r}")
    return kind(**values)


# --- what can be wrong --------------------------------------------------------------------------------------


def problems(manifests: list[Manifest], root: Path = ROOT) -> list[str]:
    """Everything that is wrong with these manifests, one sentence each."""
    return [
        *_bad_ids(manifests),
        *(problem for manifest in manifests for entry in manifest.requirements for problem in _bad_entry(entry, root)),
        *_musts_without_a_test_of_their_own(manifests),
    ]


def _bad_ids(manifests: list[Manifest]) -> list[str]:
    ids = Counter(entry.id for manifest in manifests for entry in manifest.requirements)
    found = [f"{name} is the id of {count} requirements" for name, count in ids.items() if count > 1]
    for manifest in manifests:
        for entry in manifest.requirements:
            if not re.fullmatch(rf"{re.escape(manifest.protocol)}(\.[a-z0-9-]+)+", entry.id):
                found.append(f"{entry.id} is not an id of {manifest.protocol}: {manifest.protocol}.lower-case-words")
    return found


def _bad_entry(entry: Requirement, root: Path) -> list[str]:
    found = []
    if entry.level not in LEVELS:
        found.append(f"{entry.id}: unknown level {entry.level!r} (one of {', '.join(LEVELS)})")
    if entry.status not in STATUSES:
        found.append(f"{entry.id}: unknown status {entry.status!r} (one of {', '.join(STATUSES)})")
    if not entry.text.strip() or not entry.section.strip():
        found.append(f"{entry.id}: text and section cannot be empty")
    if entry.status == "tested" and not entry.shown_by:
        found.append(f"{entry.id} is tested, but names no test")
    if entry.status == "pending" and entry.tests:
        found.append(f"{entry.id} is pending, but names tests: it is tested then")
    if entry.status == "deviates" and not entry.reason.strip():
        found.append(f"{entry.id} deviates, but gives no reason")
    if entry.status != "deviates" and entry.reason:
        found.append(f"{entry.id} gives a reason, but does not deviate")
    found.extend(f"{entry.id} names {test} twice" for test, count in Counter(entry.tests).items() if count > 1)
    found.extend(f"{entry.id}: {why}" for test in entry.tests if (why := missing(test, root)))
    return found


def _musts_without_a_test_of_their_own(manifests: list[Manifest]) -> list[str]:
    musts = [entry for manifest in manifests for entry in manifest.requirements if entry.level == "must"]
    users: dict[str, set[str]] = defaultdict(set)
    for entry in musts:
        for test in entry.tests:
            users[test].add(entry.id)
    return [
        f"{entry.id} is a must, but has no test of its own: "
        f"{', '.join(sorted(set().union(*(users[test] for test in entry.tests)) - {entry.id}))} name the same ones"
        for entry in musts
        if entry.status == "tested" and entry.tests and all(len(users[test]) > 1 for test in entry.tests)
    ]


def mutant_problems(mutants: list[Mutant], manifests: list[Manifest], root: Path = ROOT) -> list[str]:
    """What is wrong with the list of mutants, found without running any."""
    known = {entry.id: entry for manifest in manifests for entry in manifest.requirements}
    found = []
    seen: set[tuple[str, str, str]] = set()
    for mutant in mutants:
        name = f"{mutant.file} {_short(mutant.find)!r}"
        if (key := (mutant.file, mutant.find, mutant.replace)) in seen:
            found.append(f"{name} is in the list twice")
        seen.add(key)
        entry = known.get(mutant.kills)
        if entry is None:
            found.append(f"{name} should kill {mutant.kills}, which is no requirement")
        elif not mutant.tests and not entry.shown_by:
            found.append(f"{name} should kill {mutant.kills}, which has no tests")
        found.extend(f"{name}: {why}" for test in mutant.tests if (why := missing(test, root)))
        if mutant.find == mutant.replace:
            found.append(f"{name} changes nothing")
        path = root / mutant.file
        if not mutant.file.startswith("src/") or not path.is_file():
            found.append(f"{name}: there is no such file under src/")
        elif (count := path.read_text().count(mutant.find)) != 1:
            found.append(f"{name}: the text occurs {count} times in the file, and must occur once")
    return found


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."


# --- finding tests ------------------------------------------------------------------------------------------


def missing(test: str, root: Path = ROOT) -> str | None:
    """Why there is no test `file::function`, `file::Class::function` or one of these with `[parameter]`."""
    place, bracket, _ = test.partition("[")
    file, *names = place.split("::")
    if not names or (bracket and not test.endswith("]")):
        return f"{test} is not written as file::function, file::Class::function or function[parameter]"
    tree = _tree(root / file)
    if tree is None:
        return f"there is no file {file}"
    node: ast.AST = tree
    for name in names:
        for child in getattr(node, "body", []):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and child.name == name:
                node = child
                break
        else:
            return f"there is no {'::'.join(names)} in {file}"
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test"):
        return f"{place} is not a test"
    if bracket and not any("parametrize" in ast.unparse(decorator) for decorator in node.decorator_list):
        return f"{place} has no parameters"
    return None


@cache
def _tree(path: Path) -> ast.Module | None:
    return ast.parse(path.read_text()) if path.is_file() else None

"""The manifest is honest: every check that keeps it so, on the real one and on small bad ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlingua.protocols.installed import protocols
from tools import conformance, mutants

from .manifest import (
    OURS,
    ManifestError,
    Mutant,
    load,
    load_all,
    load_mutants,
    missing,
    mutant_problems,
    problems,
)

GOOD = {
    "id": "x.rule",
    "section": "1",
    "level": "must",
    "text": "A rule.",
    "status": "tested",
    "tests": ["tests/test_x.py::test_rule"],
}

TEST_FILE = """\
import pytest

def test_rule(): ...
async def test_other_rule(): ...
@pytest.mark.parametrize("n", [1, 2])
def test_many(n): ...
def not_one(): ...
class TestGroup:
    def test_inside(self): ...
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with one test file and one source file."""
    for name, text in {"tests/test_x.py": TEST_FILE, "src/x.py": "a = 1\nb = 1\nc = 2\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def written(folder: Path, *entries: dict[str, Any], protocol: str = "x") -> Path:
    def said(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else repr(value)

    lines = ["[seed]", f'protocol = "{protocol}"', 'title = "X"']
    for entry in entries:
        lines.append("[[requirement]]")
        lines.extend(f"{name} = {said(value)}" for name, value in entry.items())
    path = folder / f"{protocol}.toml"
    path.write_text("\n".join(lines))
    return path


def found(root: Path, *entries: dict[str, Any]) -> list[str]:
    return problems([load(written(root, *entries))], root)


# --- the real ones ------------------------------------------------------------------------------------------


def test_the_manifest_has_no_problems() -> None:
    assert problems(load_all()) == []


def test_there_is_a_manifest_of_the_engine_and_of_every_protocol() -> None:
    assert [manifest.protocol for manifest in load_all()] == ["engine", *(one.name for one in protocols())]


def test_every_mutant_still_fits_the_code_and_names_a_tested_requirement() -> None:
    assert mutant_problems(load_mutants(), load_all()) == []


def test_the_conformance_page_is_up_to_date() -> None:
    assert conformance.main(["--check"]) == 0, "run `make docs`"


# --- each check can fail ------------------------------------------------------------------------------------


def test_a_good_manifest_has_no_problems(root: Path) -> None:
    assert found(root, GOOD) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"level": "shall"}, "x.rule: unknown level 'shall' (one of must, should, may, feature)"),
        ({"status": "done"}, "x.rule: unknown status 'done' (one of tested, deviates, pending)"),
        ({"text": " "}, "x.rule: text and section cannot be empty"),
        ({"tests": []}, "x.rule is tested, but names no test"),
        ({"status": "pending"}, "x.rule is pending, but names tests: it is tested then"),
        ({"status": "deviates"}, "x.rule deviates, but gives no reason"),
        ({"reason": "because"}, "x.rule gives a reason, but does not deviate"),
        ({"tests": ["tests/test_x.py::test_rule"] * 2}, "x.rule names tests/test_x.py::test_rule twice"),
        ({"tests": ["tests/test_x.py::test_gone"]}, "x.rule: there is no test_gone in tests/test_x.py"),
        ({"id": "y.rule"}, "y.rule is not an id of x: x.lower-case-words"),
        ({"id": "x.Rule"}, "x.Rule is not an id of x: x.lower-case-words"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_bad_entry_is_found(root: Path, change: dict[str, Any], problem: str) -> None:
    assert found(root, {**GOOD, **change}) == [problem]


def test_a_requirement_that_the_checker_sees_needs_no_test_of_its_own(root: Path) -> None:
    seen = {name: value for name, value in {**GOOD, "outside": True}.items() if name != "tests"}
    manifest = load(written(root, seen))
    assert problems([manifest], root) == []
    assert manifest.requirements[0].shown_by == (f"{OURS}[x.rule]",)
    assert mutant_problems([Mutant("src/x.py", "c = 2", "c = 3", "x.rule")], [manifest], root) == []


def test_an_id_that_is_used_twice_is_found(root: Path) -> None:
    again = {**GOOD, "level": "should"}
    assert found(root, GOOD, again) == ["x.rule is the id of 2 requirements"]


def test_an_id_that_two_files_use_is_found(root: Path) -> None:
    one, two = load(written(root, GOOD)), load(written(root, {**GOOD, "level": "may"}, protocol="x.y"))
    assert "x.rule is the id of 2 requirements" in problems([one, two], root)


def test_a_must_that_shares_all_its_tests_with_another_must_is_found(root: Path) -> None:
    other = {**GOOD, "id": "x.other", "tests": [*GOOD["tests"], "tests/test_x.py::test_other_rule"]}
    assert found(root, GOOD, other) == ["x.rule is a must, but has no test of its own: x.other name the same ones"]


def test_a_must_may_share_tests_with_what_is_not_a_must(root: Path) -> None:
    assert found(root, GOOD, {**GOOD, "id": "x.other", "level": "feature"}) == []


def test_parameters_of_one_test_are_tests_of_their_own(root: Path) -> None:
    one = {**GOOD, "tests": ["tests/test_x.py::test_many[1]"]}
    two = {**GOOD, "id": "x.other", "tests": ["tests/test_x.py::test_many[2]"]}
    assert found(root, one, two) == []


@pytest.mark.parametrize(
    "test", ["test_rule", "test_other_rule", "test_many", "test_many[1]", "TestGroup::test_inside"]
)
def test_tests_are_found_by_their_name(root: Path, test: str) -> None:
    assert missing(f"tests/test_x.py::{test}", root) is None


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("tests/test_y.py::test_rule", "there is no file tests/test_y.py"),
        ("tests/test_x.py::test_gone", "there is no test_gone in tests/test_x.py"),
        ("tests/test_x.py::TestGroup::test_rule", "there is no TestGroup::test_rule in tests/test_x.py"),
        ("tests/test_x.py::test_inside", "there is no test_inside in tests/test_x.py"),
        ("tests/test_x.py::not_one", "tests/test_x.py::not_one is not a test"),
        ("tests/test_x.py::TestGroup", "tests/test_x.py::TestGroup is not a test"),
        ("tests/test_x.py::test_rule[1]", "tests/test_x.py::test_rule has no parameters"),
        ("tests/test_x.py", "tests/test_x.py is not written as file::function, "),
        ("tests/test_x.py::test_many[1", "tests/test_x.py::test_many[1 is not written as file::function, "),
    ],
)
def test_tests_that_do_not_exist_are_named(root: Path, test: str, why: str) -> None:
    assert (missing(test, root) or "").startswith(why)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({name: value for name, value in GOOD.items() if name != "level"}, "x.toml: x.rule has no level"),
        ({**GOOD, "levle": "must"}, "x.toml: x.rule has an unknown field 'levle'"),
        ({**GOOD, "tests": "test_rule"}, "x.toml: x.rule: tests is a list of texts"),
        ({**GOOD, "text": 5}, "x.toml: x.rule: text is a text"),
    ],
    ids=["field-missing", "field-unknown", "tests-no-list", "text-no-text"],
)
def test_a_file_that_is_no_manifest_is_refused(tmp_path: Path, entry: dict[str, Any], why: str) -> None:
    with pytest.raises(ManifestError) as caught:
        load(written(tmp_path, entry))
    assert str(caught.value) == why


@pytest.mark.parametrize("text", ["[seed]\ntitle = 'X'", "[seed]\nprotocol = 'x'", "[seed", "[sead]\n"])
def test_a_file_without_its_head_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(ManifestError, match=r"^x\.toml: "):
        load(tmp_path / "x.toml")


@pytest.mark.parametrize("stale", ["", "something else"])
def test_a_page_that_is_not_up_to_date_is_found(tmp_path: Path, stale: str) -> None:
    page = tmp_path / "conformance.md"
    if stale:
        page.write_text(stale)
    assert conformance.main(["--check", "--page", str(page)]) == 1
    assert conformance.main(["--page", str(page)]) == 0
    assert conformance.main(["--check", "--page", str(page)]) == 0


def test_the_page_shows_counts_and_deviations(root: Path) -> None:
    deviating = {**GOOD, "id": "x.other", "status": "deviates", "reason": "It | hurts.", "tests": []}
    page = conformance.render([load(written(root, GOOD, deviating, {**GOOD, "id": "x.more", "level": "may"}))])
    assert "| `x` | must | 1 | 1 | 0 | 2 |" in page
    assert "| `x` | may | 1 | 0 | 0 | 1 |" in page
    assert "| **all** |  | **2** | **1** | **0** | **3** |" in page
    assert "It \\| hurts." in page
    assert "| `x.rule` | 1 | must | A rule. | `test_x.py::test_rule` |" in page


# --- mutants ------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check writes nothing that it compiles: what was compiled when it was installed has to be found. And to load
    the plugins that the chosen tests do not use takes longer than these tests."""
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:xdist")


@pytest.mark.parametrize(
    ("mutant", "problem"),
    [
        (Mutant("src/x.py", "= 1", "= 3", "x.rule"), "the text occurs 2 times in the file, and must occur once"),
        (Mutant("src/x.py", "d = 1", "d = 3", "x.rule"), "the text occurs 0 times in the file, and must occur once"),
        (Mutant("src/y.py", "a", "b", "x.rule"), "there is no such file under src/"),
        (Mutant("tests/test_x.py", "async", "", "x.rule"), "there is no such file under src/"),
        (Mutant("src/x.py", "c = 2", "c = 2", "x.rule"), "changes nothing"),
        (Mutant("src/x.py", "c = 2", "c = 3", "x.gone"), "should kill x.gone, which is no requirement"),
        (Mutant("src/x.py", "c = 2", "c = 3", "x.pending"), "should kill x.pending, which has no tests"),
        (Mutant("src/x.py", "c = 2", "c = 3", "x.rule", ("tests/test_x.py::test_gone",)), "there is no test_gone in"),
    ],
    ids=["ambiguous", "gone", "no-file", "not-under-src", "no-change", "no-requirement", "no-tests", "no-such-test"],
)
def test_a_mutant_that_does_not_fit_is_found(root: Path, mutant: Mutant, problem: str) -> None:
    pending = {**GOOD, "id": "x.pending", "status": "pending", "tests": []}
    (only,) = mutant_problems([mutant], [load(written(root, GOOD, pending))], root)
    assert problem in only


def test_a_mutant_that_is_listed_twice_is_found(root: Path) -> None:
    mutant = Mutant("src/x.py", "c = 2", "c = 3", "x.rule")
    (only,) = mutant_problems([mutant, mutant], [load(written(root, GOOD))], root)
    assert only.endswith("is in the list twice")


KILLED = """\
[[mutant]]
file = "src/interlingua/model/delta.py"
find = "return left + right if right else left"
replace = "return left - right if right else left"
kills = "mcp.delta.example-1-plus-2"
"""
SURVIVES = KILLED.replace("left - right if", "right + left if")
BROKEN = KILLED.replace("left - right if", "left - - - if")


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        (KILLED, 0, ["1 of 1 killed, 0 survived"]),
        (KILLED + SURVIVES + BROKEN, 1, ["1/3 killed", "2/3 SURVIVED", "3/3 SURVIVED", "1 of 3 killed, 2 survived"]),
    ],
    ids=["killed", "survives-or-does-not-load"],
)
@pytest.mark.usefixtures("quick")
def test_the_mutation_check_tells_killed_from_survived(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, code: int, told: list[str]
) -> None:
    (tmp_path / "list.toml").write_text(text)
    assert mutants.main(["--list", str(tmp_path / "list.toml"), "--at-least", "1"]) == code
    lines = capfd.readouterr().out.splitlines()
    assert lines[-1] == told[-1]
    assert all(any(line.startswith(one) for line in lines) for one in told)


def test_the_mutation_check_fails_when_there_are_too_few(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([(0, "as it is"), (1, "broken")])  # what the tests come to is not what this is about
    monkeypatch.setattr(mutants, "run_tests", lambda *_: next(found))
    (tmp_path / "list.toml").write_text(KILLED)
    assert mutants.main(["--list", str(tmp_path / "list.toml")]) == 1
    said = capfd.readouterr()
    assert "there are 1 mutants, and should be at least 40" in said.err
    assert said.out.splitlines()[-1] == "1 of 1 killed, 0 survived"

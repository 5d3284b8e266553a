"""tools/duplicates.py: what it breaks, and which tests it lets go, on a project of one module."""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.requirements.manifest import OURS
from tools.duplicates import (
    Asked,
    Breakage,
    Outcome,
    Recorded,
    Tree,
    breakages,
    chosen,
    main,
    outside,
    try_out,
    verdicts,
)

SOURCE = '''\
"""Prices."""

import logging

log = logging.getLogger("shop")


def price(count: int, member: bool = False) -> int:
    """What so many cost."""
    total = count * 10
    if count >= 5 and not member:
        total -= 3
    log.info("asked")
    return total


def check(count: int) -> None:
    if count < 0:
        raise ValueError(f"there are no {count + 1} things")


def prices(counts):
    yield from counts
    for count in counts:
        yield price(count)
'''
TESTS = """\
import pytest
from shop.price import check, price


@pytest.mark.parametrize(("count", "cost"), [(0, 0), (4, 40), (5, 47), (6, 57)])
def test_every_price(count, cost):
    assert price(count) == cost
    assert price(count, True) == count * 10


def test_five_cost_less():
    assert price(5) == 47


@pytest.mark.parametrize("count", [-1, -2])
def test_less_than_nothing_is_refused(count):
    with pytest.raises(ValueError):
        check(count)


def test_nothing_is_fine():
    check(0)


def test_that_fails_anyway():
    assert price(1) == 11
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins that the chosen tests do not use take longer to load than these tests take."""
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:xdist -p no:schemathesis")


def _written() -> dict[str, str]:
    """The breakages of the module, by what was there."""
    return {f"{made.line} {made.was}": made.text for made in breakages("price.py", SOURCE.encode())}


def test_conditions_statements_and_numbers_are_broken() -> None:
    made = _written()
    assert made["10 10"] == "11"
    assert made["11 count >= 5"] == "(count > 5)"
    assert made["11 count >= 5 and not member"] == "(count >= 5 or not member)"
    assert made["11 not member"] == "(bool(member))"
    assert made["12 total -= 3"] == "pass"
    assert made["14 return total"] == "return None"
    assert made["23 yield from counts"] == "yield from ()"
    assert made["25 yield price(count)"] == "if False: yield"
    assert made['19 raise ValueError(f"there are no {count + 1} things")'] == "pass"


def test_what_only_people_read_is_not_broken() -> None:
    assert not [key for key in _written() if "log" in key or "Prices" in key or key.endswith(" 1")]


def test_defaults_and_annotations_are_not_broken() -> None:
    assert not [key for key in _written() if key.startswith("8 ")]


def test_what_is_broken_is_still_python_and_no_longer_the_same() -> None:
    source = SOURCE.encode()
    for made in breakages("price.py", source):
        broken = made.apply(source)
        assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(source)), made


def test_breakages_are_chosen_on_the_lines_that_the_fewest_tests_execute() -> None:
    lines = {"narrow": {("price.py", 10), ("price.py", 18)}, "wide": {("price.py", 10)}, "other": {("price.py", 10)}}
    tried = chosen(["narrow"], lines, {"price.py": SOURCE.encode()}, 1)
    assert [breakage.line for breakage in tried["narrow"]] == [18]


def _at(line: int) -> Breakage:
    return Breakage("price.py", line, 0, 1, "pass", "x")


def test_a_test_goes_only_where_those_that_are_left_notice_all_that_it_does() -> None:
    tried = {test: [_at(line) for line in range(1, 7)] for test in "abc"}
    outcomes = [
        *(Outcome(_at(line), "one that stays", frozenset("abc")) for line in (1, 2, 3)),
        Outcome(_at(4), None, frozenset("ab")),
        Outcome(_at(5), None, frozenset("c")),
        Outcome(_at(6), None),
    ]
    found = {verdict.test: verdict for verdict in verdicts(tried, outcomes)}
    assert [found[test].may_go for test in "abc"] == [True, False, False], "of a and b one is left"
    assert found["a"].noticed == 4
    assert found["a"].by == ("b", "one that stays")
    assert found["c"].by == (str(_at(5)),)


def test_a_test_that_notices_hardly_anything_stays() -> None:
    outcomes = [Outcome(_at(line), "one that stays", frozenset("a" if line == 1 else "")) for line in (1, 2, 3, 4)]
    (verdict,) = verdicts({"a": [_at(line) for line in (1, 2, 3, 4)]}, outcomes)
    assert not verdict.may_go
    assert verdict.noticed == 1


def test_a_test_whose_breakages_were_not_all_tried_stays() -> None:
    outcomes = [Outcome(_at(line), "one that stays", frozenset("a")) for line in (1, 2, 3)]
    (verdict,) = verdicts({"a": [_at(line) for line in (1, 2, 3, 4)]}, outcomes)
    assert not verdict.may_go


class _Recording(Tree):
    """Says which tests fail, and notes what it was asked."""

    def __init__(self, failing: set[str]) -> None:
        self.failing = failing
        self.asked: list[list[str]] = []

    def broken(self, breakage: Breakage) -> Any:
        return contextlib.nullcontext()

    def run(self, tests: Iterable[str], *options: str, traces: str | None = None, timeout: float) -> Recorded:
        self.asked.append(list(tests))
        return Recorded(failed=self.failing & set(tests))


def test_the_look_from_outside_is_taken_for_what_a_candidate_notices() -> None:
    asked = Asked({"judge"}, {"narrow"}, set(), {"look"})
    unseen = _Recording({"look"})
    assert try_out(unseen, _at(1), asked, 1) == Outcome(_at(1), None)
    assert unseen.asked == [["narrow"]]
    assert try_out(_Recording({"narrow"}), _at(1), asked, 1) == Outcome(_at(1), None, frozenset({"narrow"}))
    assert try_out(_Recording({"narrow", "look"}), _at(1), asked, 1) == Outcome(_at(1), "look", frozenset({"narrow"}))


def test_the_looks_from_outside_are_those_of_one_protocol() -> None:
    assert f"{OURS}[connect.runs.post]" in outside("connect")
    assert all("[connect." in look for look in outside("connect"))
    with pytest.raises(SystemExit, match="'conect'"):
        outside("conect")


@pytest.mark.usefixtures("quick")
def test_a_test_that_others_imply_may_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "shop"
    (root / "src" / "shop").mkdir(parents=True)
    (root / "src" / "shop" / "price.py").write_text(SOURCE)
    (root / "tests").mkdir()
    (root / "tests" / "test_price.py").write_text(TESTS)
    to = tmp_path / "verdicts"
    keep = ["--keep", "test_every_price", "--keep", "test_nothing_is_fine"]
    given = ["tests", "--breaks", "src/shop", *keep, "--each", "4", "--to", str(to)]
    assert main(given, root) == 0
    found = {one["test"].rpartition("::")[2]: one for one in map(json.loads, to.read_text().splitlines())}
    assert "test_that_fails_anyway" in capsys.readouterr().out
    assert sorted(found) == ["test_five_cost_less", "test_less_than_nothing_is_refused"]
    assert found["test_five_cost_less"]["may_go"]
    assert found["test_five_cost_less"]["by"] == ["tests/test_price.py::test_every_price"]
    assert not found["test_less_than_nothing_is_refused"]["may_go"], "only it notices that nothing is refused"
    assert (root / "src" / "shop" / "price.py").read_text() == SOURCE, "all work is done on copies"

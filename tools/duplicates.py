"""The duplicate check: which tests may go, because whatever they notice is noticed by others too.

`python tools/duplicates.py tests/engine --breaks src/interlingua/engine` breaks the lines that a test executes, one
small thing at a time, on copies. A test may go when every breakage that it notices is noticed by a test that stays.
Tests that a requirement or a listed mutant names always stay, and so do those of `--keep`; only the others are
candidates. A candidate that noticed hardly any breakage has not been judged, and stays. The breakages are a sample, and
coarse: read a test before you let it go.

`--outside connect` asks the checker instead, which looks at our doors in processes of their own: a test of a door may
go when every breakage that it notices is noticed from outside too.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

TOOLS = Path(__file__).parent
ROOT = TOOLS.parent
sys.path[:0] = [str(ROOT), str(TOOLS)]

from line_recorder import TO, TRACES  # noqa: E402
from mutants import copy_of  # noqa: E402

from tests.requirements.manifest import OURS, load_all, load_mutants  # noqa: E402

PARALLEL = 2
EACH = 8  # breakages for a candidate, on the lines that the fewest tests execute
LEAST = 3  # noticed breakages without which a candidate is not judged
PATIENCE = 20.0  # seconds for one test; one that takes longer has failed

Place = tuple[str, int]  # a file below the project, and a line


# --- breakages -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Breakage:
    """One small change: the bytes from `start` to `end` of a file become `text`."""

    file: str
    line: int
    start: int
    end: int
    text: str
    was: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.was} → {self.text or 'nothing'}"


_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_NOT_BROKEN = ("log", "log_", "logger", "warnings")  # what is only told to people


def breakages(file: str, source: bytes) -> list[Breakage]:
    """All that the lines of a file allow, in their order. Each of them is valid Python."""
    return sorted(_Breaker(file, source).made, key=lambda made: (made.line, made.start, made.end, made.text))


class _Breaker(ast.NodeVisitor):
    def __init__(self, file: str, source: bytes) -> None:
        self._file = file
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self.made: list[Breakage] = []
        self.visit(ast.parse(source))

    def _place(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _become(self, node: ast.expr | ast.stmt, text: str) -> None:
        start, end = self._place(node)
        was = " ".join(self._source[start:end].decode().split())
        self.made.append(Breakage(self._file, node.lineno, start, end, text, was))

    # -- where nothing is broken

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Texts for people; and before Python 3.12 the places of what is in them are wrong."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for statement in node.body:  # not its annotations, defaults and decorators
            self.visit(statement)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_Assert(self, node: ast.Assert) -> None:
        """States what holds in any case."""

    # -- statements

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Yield | ast.YieldFrom):  # what yields nothing else is a generator still
            self._become(node, "if False: yield" if isinstance(node.value, ast.Yield) else "yield from ()")
            self.generic_visit(node)
            return
        called = node.value.value if isinstance(node.value, ast.Await) else node.value
        if not isinstance(called, ast.Call):
            return  # docstrings
        owner = called.func.value if isinstance(called.func, ast.Attribute) else None
        if isinstance(owner, ast.Name) and owner.id in _NOT_BROKEN:
            return
        self._become(node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._become(node, "pass")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._become(node, "pass")

    def visit_Raise(self, node: ast.Raise) -> None:
        self._become(node, "pass")

    def visit_Delete(self, node: ast.Delete) -> None:
        self._become(node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self._become(node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._become(node, "break")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            if not (isinstance(node.value, ast.Constant) and node.value.value is None):
                self._become(node, "return None")
            self.visit(node.value)

    # -- expressions

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            operator = _COMPARED[type(node.ops[0])]()
            self._become(node, f"({ast.unparse(ast.Compare(node.left, [operator], node.comparators))})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        operator = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._become(node, f"({ast.unparse(ast.BoolOp(operator, node.values))})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._become(node, f"(bool({ast.unparse(node.operand)}))")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp):  # those are broken themselves
            self._become(node.test, f"(not ({ast.unparse(node.test)}))")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if node.value is True or node.value is False:
            self._become(node, str(not node.value))
        elif isinstance(node.value, int):
            self._become(node, str(node.value + 1))


# --- choosing ------------------------------------------------------------------------------------------------


@dataclass
class Recorded:
    """The tests that passed and failed, without their parameters, and the lines that each one executed."""

    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    lines: dict[str, set[Place]] = field(default_factory=lambda: defaultdict(set))


def function(test: str) -> str:
    """The test without its parameters: it goes as a whole, or stays."""
    return test.partition("[")[0]


def named() -> set[str]:
    """The tests that a requirement or a listed mutant names."""
    by_requirements = {test for manifest in load_all() for entry in manifest.requirements for test in entry.tests}
    by_mutants = {test for mutant in load_mutants() for test in mutant.tests}
    return {function(test) for test in by_requirements | by_mutants}


def chosen(
    candidates: Iterable[str], lines: Mapping[str, set[Place]], sources: Mapping[str, bytes], each: int
) -> dict[str, list[Breakage]]:
    """Some breakages for each candidate, on those of its lines that the fewest tests execute."""
    users: dict[Place, int] = defaultdict(int)
    for executed in lines.values():
        for place in executed:
            users[place] += 1
    possible: dict[Place, list[Breakage]] = defaultdict(list)
    for file, source in sources.items():
        for breakage in breakages(file, source):
            possible[file, breakage.line].append(breakage)
    taken: dict[str, list[Breakage]] = {}
    for candidate in sorted(candidates):
        places = sorted((at for at in lines.get(candidate, ()) if at in possible), key=lambda at: (users[at], at))
        first = [breakage for at in places for breakage in possible[at][: max(1, each // 4)]]  # of one line not all
        taken[candidate] = first[:each]
    return taken


@dataclass
class Outcome:
    """The tests that noticed a breakage."""

    breakage: Breakage
    stays: str | None  # a test that stays, and noticed it; one is enough
    noticed: frozenset[str] = frozenset()  # the candidates that did


@dataclass
class Verdict:
    test: str
    may_go: bool
    noticed: int  # breakages
    by: tuple[str, ...]  # the breakages that only it notices; where there are none, the tests that notice what it does


def verdicts(tried: Mapping[str, list[Breakage]], outcomes: Iterable[Outcome]) -> list[Verdict]:
    """Let candidates go, one after another: each only where those that are left notice all that it does.

    First those that notice the least by themselves. `tried`: the breakages that were chosen for each candidate; one of
    which some were not tried stays."""
    outcomes = list(outcomes)
    done = {outcome.breakage for outcome in outcomes}
    left = set(tried)
    alone = {test: sum(outcome.noticed == {test} for outcome in outcomes) for test in left}
    made = []
    for test in sorted(left, key=lambda test: (alone[test], test)):
        own = [outcome for outcome in outcomes if test in outcome.noticed]
        others = {
            outcome.breakage: outcome.stays or min(outcome.noticed & left - {test}, default="") for outcome in own
        }
        needed = tuple(str(breakage) for breakage, other in others.items() if not other)
        may_go = not needed and len(own) >= LEAST and done.issuperset(tried[test])
        if may_go:
            left.discard(test)
        made.append(Verdict(test, may_go, len(own), needed or tuple(sorted(set(others.values())))))
    return made


# --- running -------------------------------------------------------------------------------------------------


class Tree:
    """A copy of the project, in which tests are run."""

    def __init__(self, folder: Path, options: list[str]) -> None:
        self._folder = folder
        self._options = options

    def run(self, tests: Iterable[str], *options: str, traces: str | None = None, timeout: float) -> Recorded | None:
        """What became of the tests; None where they did not end in time, or could not be run at all."""
        with tempfile.TemporaryDirectory(prefix="recorded-") as noted:
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(self._folder / "src"), str(self._folder), str(TOOLS)]),
                "PYTHONDONTWRITEBYTECODE": "1",  # two breakages within a second could have the same time and size
                TO: noted,
            }
            environment.pop(TRACES, None)
            if traces is not None:
                environment[TRACES] = str(self._folder / traces)
            command = [
                sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=no", "-p", "line_recorder",
                "-p", "no:cacheprovider", *self._options, *options, *tests,
            ]  # fmt: skip
            with subprocess.Popen(
                command, cwd=self._folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            ) as process:  # fmt: skip
                try:
                    process.wait(timeout)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, 9)  # with whatever the tests had started
                    process.wait()
                    return None
            files = list(Path(noted).glob("*.json"))
            return self._read(files) if files and process.returncode in (0, 1) else None

    def _read(self, files: list[Path]) -> Recorded:
        recorded = Recorded()
        for file in files:
            noted = json.loads(file.read_text())
            recorded.failed |= {function(test) for test in noted["failed"]}
            recorded.passed |= {function(test) for test in noted["passed"]}
            for test, lines in noted["lines"].items():
                places = {(Path(path).relative_to(self._folder.resolve()).as_posix(), line) for path, line in lines}
                recorded.lines[function(test)] |= places
        recorded.passed -= recorded.failed
        return recorded

    def broken(self, breakage: Breakage) -> _Broken:
        return _Broken(self._folder / breakage.file, breakage)


class _Broken:
    """The breakage is in the copy as long as this is entered."""

    def __init__(self, path: Path, breakage: Breakage) -> None:
        self._path = path
        self._breakage = breakage
        self._whole = path.read_bytes()

    def __enter__(self) -> None:
        self._path.write_bytes(self._breakage.apply(self._whole))

    def __exit__(self, *_: object) -> None:
        self._path.write_bytes(self._whole)


def outside(protocol: str) -> set[str]:
    """The tests by which the checker looks at our doors of a protocol."""
    found = {
        f"{OURS}[{entry.id}]"
        for manifest in load_all()
        for entry in manifest.requirements
        if manifest.protocol == protocol and entry.outside
    }
    if not found:
        raise SystemExit(f"nothing of {protocol!r} is seen from outside")
    return found


@dataclass
class Asked:
    """The tests that are run for a breakage."""

    judges: set[str]  # that stay; until one of them notices
    candidates: set[str]  # that it was chosen for
    others: set[str]  # candidates that execute the line, too; asked where no judge notices
    outside: set[str] = field(default_factory=set)  # the look from outside; asked last, and instead of judges


def try_out(tree: Tree, breakage: Breakage, asked: Asked, timeout: float) -> Outcome:
    stays = None
    with tree.broken(breakage):
        if asked.outside:
            return _seen_from_outside(tree, breakage, asked, timeout)
        if asked.judges:
            recorded = tree.run(sorted(asked.judges), "-x", timeout=timeout)
            if recorded is None:  # everything notices what makes loading fail, or nothing end
                return Outcome(breakage, "a test that did not end, or could not be loaded")
            stays = min(recorded.failed, default=None)
        candidates = asked.candidates if stays else asked.candidates | asked.others
        recorded = tree.run(sorted(candidates), timeout=timeout)
        return Outcome(breakage, stays, frozenset(recorded.failed if recorded is not None else candidates))


def _seen_from_outside(tree: Tree, breakage: Breakage, asked: Asked, timeout: float) -> Outcome:
    """A look from outside takes long: it is taken only for what a candidate notices."""
    recorded = tree.run(sorted(asked.candidates), timeout=timeout)
    noticed = frozenset(recorded.failed if recorded is not None else asked.candidates)
    if not noticed:
        return Outcome(breakage, None)
    recorded = tree.run(sorted(asked.outside), "-x", timeout=timeout)
    if recorded is None:
        return Outcome(breakage, "a look that did not end", noticed)
    return Outcome(breakage, min(recorded.failed, default=None), noticed)


def _each(
    work: list[Breakage], trees: list[Tree], do: Callable[[Tree, Breakage], Outcome | None]
) -> Iterator[Outcome | None]:
    free: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    for tree in trees:
        free.put(tree)

    def one(breakage: Breakage) -> Outcome | None:
        tree = free.get()
        try:
            return do(tree, breakage)
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(trees)) as pool:
        yield from pool.map(one, work)


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("tests", nargs="+", help="folders or files of tests")
    parser.add_argument("--breaks", required=True, metavar="FOLDER", help="the code that is broken, below the project")
    parser.add_argument("--keep", action="append", default=[], metavar="TEXT", help="tests with this in their id stay")
    parser.add_argument(
        "--judges", action="append", default=[], metavar="TEXT", help="only tests with this in their id count as others"
    )
    parser.add_argument("--outside", metavar="PROTOCOL", help="only the checker's look at our doors counts as others")
    parser.add_argument("--each", type=int, default=EACH, help="breakages for each candidate")
    parser.add_argument(
        "--candidates", action="append", default=[], metavar="TEXT", help="only tests with this in their id may go"
    )
    parser.add_argument("--parallel", type=int, default=PARALLEL, help="copies in which tests are run at the same time")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for the tests of one breakage")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds for one test")
    parser.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="after so long no other breakage is tried; who needs one stays",
    )
    parser.add_argument("--to", type=Path, help="a file for the verdicts, as JSON lines")
    options = parser.parse_args(argv)

    with tempfile.TemporaryDirectory(prefix="duplicates-") as folder:
        first = copy_of(root, Path(folder) / "0")
        copies = [first, *(copy_of(first, Path(folder) / str(number)) for number in range(1, options.parallel))]
        trees = [Tree(copy, [f"--timeout={options.patience:g}"]) for copy in copies]
        recorded = trees[0].run(options.tests, traces=options.breaks, timeout=options.timeout * 10)
        if recorded is None or not recorded.passed:
            print("the tests do not run on code that is not broken", file=sys.stderr)
            return 1
        if recorded.failed:  # tracing makes some too slow
            print(f"{len(recorded.failed)} tests fail while lines are noted, and stay:", *sorted(recorded.failed))
        candidates = {test for test in recorded.passed - named() if not any(text in test for text in options.keep)}
        if options.candidates:
            candidates = {test for test in candidates if any(text in test for text in options.candidates)}
        lines = {test: recorded.lines[test] for test in recorded.passed}
        sources = {
            path.relative_to(first).as_posix(): path.read_bytes()
            for path in sorted((first / options.breaks).rglob("*.py"))
        }
        looks = outside(options.outside) if options.outside else set()
        judges = recorded.passed - candidates
        if options.judges:
            judges = {test for test in judges if any(text in test for text in options.judges)}
        tried = chosen(candidates, lines, sources, options.each)
        work = list(dict.fromkeys(breakage for some in tried.values() for breakage in some))
        print(f"{len(candidates)} candidates of {len(recorded.passed)} tests, {len(work)} breakages", flush=True)

        begun = time.monotonic()

        def do(tree: Tree, breakage: Breakage) -> Outcome | None:
            if time.monotonic() - begun > options.seconds:
                return None
            executing = {test for test, places in lines.items() if (breakage.file, breakage.line) in places}
            chosen_for = {test for test, some in tried.items() if breakage in some}
            asked = Asked(executing & judges, chosen_for, executing & candidates - chosen_for, looks)
            return try_out(tree, breakage, asked, options.timeout)

        outcomes = []
        for number, outcome in enumerate(_each(work, trees, do), 1):
            if outcome is None:
                continue
            outcomes.append(outcome)
            who = ", ".join([*([outcome.stays] if outcome.stays else []), *sorted(outcome.noticed)]) or "nobody"
            took = time.monotonic() - begun
            print(f"{number}/{len(work)} {took:5.0f} s  {outcome.breakage}\n    noticed by {who}", flush=True)
    found = verdicts(tried, outcomes)
    for verdict in sorted(found, key=lambda verdict: (not verdict.may_go, verdict.test)):
        print(f"{'may go' if verdict.may_go else 'stays '} {verdict.test} ({verdict.noticed} breakages noticed)")
        for line in verdict.by:
            print(f"    {line}")
    if options.to is not None:
        options.to.write_text("".join(json.dumps(verdict.__dict__) + "\n" for verdict in found))
    print(f"{sum(verdict.may_go for verdict in found)} of {len(found)} candidates may go")
    return 0


if __name__ == "__main__":
    sys.exit(main())

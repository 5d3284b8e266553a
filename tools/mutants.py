"""The mutation check: breaks the code on purpose, one small thing at a time, and expects a test to turn red.

The breakages are in tests/requirements/mutants.toml, each with the id of the requirement whose tests must notice. All
work is done on copies. A breakage that no test notices has survived, and so has one that does not even load: it would
prove nothing.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.requirements.manifest import (  # noqa: E402
    MUTANTS,
    Mutant,
    load_all,
    load_mutants,
    mutant_problems,
    problems,
)

COPIED = ("src", "tests", "examples", "tools", "bench", "docs")
AT_LEAST = 40
TIMEOUT = 120.0
PARALLEL = 2
_TESTS_FAILED = 1  # pytest's exit code for that, as opposed to tests that could not be run at all


@dataclass
class Verdict:
    mutant: Mutant
    killed: bool
    how: str
    seconds: float


def copy_of(root: Path, target: Path) -> Path:
    """The project, as far as its tests need it."""
    skip = shutil.ignore_patterns("__pycache__", "results", "*.egg-info")
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, target / name, ignore=skip)
    for file in (*root.glob("*.toml"), *root.glob("*.md"), root / "Makefile"):
        if file.is_file():
            shutil.copy(file, target / file.name)
    return target


def run_tests(tree: Path, tests: list[str], timeout: float) -> tuple[int | None, str]:
    """The exit code of pytest, None after a timeout; and what it said."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)]),
        "PYTHONDONTWRITEBYTECODE": "1",  # two breakages within a second could have the same time and size
        "HYPOTHESIS_STORAGE_DIRECTORY": str(tree / ".hypothesis"),
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)  # with whatever the tests had started
            process.communicate()
            return None, f"no result after {timeout:g} s"
        return process.returncode, output


def try_mutant(tree: Path, mutant: Mutant, tests: list[str], timeout: float) -> Verdict:
    path = tree / mutant.file
    whole = path.read_text()
    begun = time.monotonic()
    path.write_text(whole.replace(mutant.find, mutant.replace))
    try:
        code, output = run_tests(tree, tests, timeout)
    finally:
        path.write_text(whole)
    took = time.monotonic() - begun
    if code == _TESTS_FAILED:
        failed = [line for line in output.splitlines() if line.startswith("FAILED ")]
        return Verdict(mutant, True, failed[0].split()[1].rpartition("::")[2] if failed else "a test failed", took)
    if code is None:
        return Verdict(mutant, True, output, took)
    how = "survived" if code == 0 else f"pytest could not run the tests (exit code {code}):\n{output[-1500:]}"
    return Verdict(mutant, False, how, took)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", metavar="ID|FILE", help="only those that kill this id, or are in this file")
    parser.add_argument("--list", type=Path, default=MUTANTS, help="another list than tests/requirements/mutants.toml")
    parser.add_argument("--at-least", type=int, default=AT_LEAST, help="how many there have to be")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds for the tests of one breakage")
    options = parser.parse_args(argv)

    mutants, manifests = load_mutants(options.list), load_all()
    wrong = [*problems(manifests), *mutant_problems(mutants, manifests)]
    if len(mutants) < options.at_least:
        wrong.append(f"there are {len(mutants)} mutants, and should be at least {options.at_least}")
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
    if options.only:
        wanted = options.only
        mutants = [m for m in mutants if m.kills == wanted or m.kills.startswith(wanted + ".") or wanted in m.file]
    if any("occurs" in problem or "no such file" in problem for problem in wrong) or not mutants:
        return 1
    listed = {entry.id: entry.shown_by for manifest in manifests for entry in manifest.requirements}
    tests = {id(mutant): list(mutant.tests or listed.get(mutant.kills, ())) for mutant in mutants}
    everything = sorted({test for chosen in tests.values() for test in chosen})

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
        first = copy_of(ROOT, Path(folder) / "0")
        trees.put(first)
        for number in range(1, PARALLEL):  # of the one that is tried below: the checkout may change meanwhile
            trees.put(copy_of(first, Path(folder) / str(number)))

        print(f"{len(everything)} tests, on code that is not broken", flush=True)
        tree = trees.get()
        code, output = run_tests(tree, everything, max(options.timeout, TIMEOUT) * 5)
        trees.put(tree)
        if code != 0:
            print(output, "the tests do not pass on code that is not broken", sep="\n", file=sys.stderr)
            return 1

        def one(mutant: Mutant) -> Verdict:
            tree = trees.get()
            try:
                return try_mutant(tree, mutant, tests[id(mutant)], options.timeout)
            finally:
                trees.put(tree)

        survivors = 0
        width = len(str(len(mutants)))
        with ThreadPoolExecutor(PARALLEL) as pool:
            for number, verdict in enumerate(pool.map(one, mutants), 1):
                survivors += not verdict.killed
                mark = "killed  " if verdict.killed else "SURVIVED"
                print(
                    f"{number:>{width}}/{len(mutants)} {mark} {verdict.seconds:5.1f} s  {verdict.mutant.kills:<44} "
                    f"{verdict.how}",
                    flush=True,
                )
                if not verdict.killed:
                    print(f"    {verdict.mutant.file}:\n{verdict.mutant.find}\n    became\n{verdict.mutant.replace}")
    print(f"{len(mutants) - survivors} of {len(mutants)} killed, {survivors} survived")
    return 1 if survivors or wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes docs/conformance.md, and the catalogue of what can be seen from outside, from the requirements manifest.

`--check` only says whether they are up to date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.requirements.manifest import LEVELS, STATUSES, Manifest, Requirement, load_all, problems  # noqa: E402

PAGE = ROOT / "docs" / "conformance.md"
CATALOGUE = ROOT / "src" / "interlingua_conform" / "catalogue.json"

INTRO = """\
# Conformance

Every normative sentence and every feature of the documents that we implement, in our words, with the tests that show
it. *Tested*: the tests named show it, or `interlingua conform`, which the test suite runs against our own doors.
*Deviates*: we do something else, for the reason given. *Pending*: not there yet.

This page is made by `make docs` from `tests/requirements/*.toml`; edit those. The test suite fails when an entry
names a test that does not exist, when a must has no test of its own, and when this page is not up to date.
"""


def render(manifests: list[Manifest]) -> str:
    parts = [INTRO, "## Summary\n", _summary(manifests), "## Deviations\n", _deviations(manifests)]
    for manifest in manifests:
        parts += [f"## {manifest.title} (`{manifest.protocol}`)\n", _entries(manifest)]
    return "\n".join(parts)


def catalogue(manifests: list[Manifest]) -> str:
    """What `interlingua conform` tells of a requirement: it ships with the package, which has no tests."""
    rows = [
        json.dumps({"id": entry.id, "section": entry.section, "level": entry.level, "text": entry.text})
        for manifest in manifests
        for entry in manifest.requirements
        if entry.outside
    ]
    return "[\n" + ",\n".join(rows) + "\n]\n"


def _summary(manifests: list[Manifest]) -> str:
    """Per protocol and level: how many, and how they stand."""
    rows = []
    total: Counter[str] = Counter()
    for manifest in manifests:
        for level in LEVELS:
            counts = Counter(entry.status for entry in manifest.requirements if entry.level == level)
            if counts:
                rows.append([f"`{manifest.protocol}`", level, *_counts(counts)])
        total.update(entry.status for entry in manifest.requirements)
    rows.append(["**all**", "", *(f"**{count}**" for count in _counts(total))])
    return _table(["protocol", "level", *STATUSES, "total"], rows, right=frozenset({2, 3, 4, 5}))


def _counts(counts: Counter[str]) -> list[str]:
    return [str(counts[status]) for status in STATUSES] + [str(counts.total())]


def _deviations(manifests: list[Manifest]) -> str:
    rows = [
        [f"`{entry.id}`", entry.level, entry.text, entry.reason, _tests(entry)]
        for manifest in manifests
        for entry in manifest.requirements
        if entry.status == "deviates"
    ]
    if not rows:
        return "None.\n"
    return "Where we differ on purpose.\n\n" + _table(
        ["id", "level", "what is asked", "what we do, and why", "tests"], rows
    )


def _entries(manifest: Manifest) -> str:
    rows = [
        [f"`{entry.id}`", entry.section, entry.level, entry.text, _standing(entry)] for entry in manifest.requirements
    ]
    return _table(["id", "section", "level", "text", "tests"], rows)


def _standing(entry: Requirement) -> str:
    if entry.status == "deviates":
        return "deviates (see above)"
    return "pending" if entry.status == "pending" else _tests(entry)


def _tests(entry: Requirement) -> str:
    shown = [f"`{test.removeprefix('tests/')}`" for test in entry.tests]
    return "<br>".join(shown or (["`interlingua conform`"] if entry.outside else []))


def _table(head: list[str], rows: list[list[str]], right: frozenset[int] = frozenset()) -> str:
    rule = ["---:" if at in right else "---" for at in range(len(head))]
    lines = [head, rule, *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is not up to date")
    parser.add_argument("--page", type=Path, default=PAGE, help="another page than docs/conformance.md")
    parser.add_argument("--catalogue", type=Path, default=CATALOGUE, help="another file than the one in the package")
    options = parser.parse_args(argv)
    manifests = load_all()
    if found := problems(manifests):
        print(*found, sep="\n", file=sys.stderr)
        return 1
    stale = 0
    for page, wanted in ((options.page, render(manifests)), (options.catalogue, catalogue(manifests))):
        if not options.check:
            page.parent.mkdir(exist_ok=True)
            page.write_text(wanted)
        elif not page.is_file() or page.read_text() != wanted:
            print(f"{page} is not up to date: run `make docs`", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())

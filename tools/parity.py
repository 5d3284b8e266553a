"""Writes docs/parity.md, and its short form in README.md, from the tables of the protocols; `--check` only says whether
they are up to date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from interlingua.protocols.installed import protocols
from interlingua.protocols.parity import FEATURES, Carried

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "parity.md"
README = ROOT / "README.md"

SIDES = {"DOOR": "door", "MOUNT": "mount"}

Tables = dict[str, dict[str, dict[str, Carried]]]  # by side, protocol and feature
Place = tuple[str, str, str]  # the same three

INTRO = """\
# Parity

An agent can be mounted from any of the five protocols and served on any of them. This page tells what each side
carries, where on its wire, and what a pair of them loses. Something is lost only where a wire has no place for it.

This page is made by `make docs` from the tables in each protocol's `parity.py`; edit those. The tests in
`tests/matrix` try every pair, with sources and clients that share no code with this project: where no loss is declared
all of it must arrive, and where one is declared, exactly what is left.
"""

_DOORS = """\
## Doors

How what an agent has reaches a client of ours. A number in brackets is that of a loss, below.
"""

_MOUNTS = """\
## Mounts

How what a caller of ours has reaches an agent that is mounted, and how what that has comes back.
"""

_PAIRS = """\
## Pairs

What is lost on the way from a client of a door (columns) to an agent that is mounted (rows) and back: the numbers of
the losses above, of both sides together.
"""


def tables() -> Tables:
    found: Tables = {side: {} for side in SIDES}
    for protocol in protocols():
        module = protocol.load("parity")
        for side in SIDES:
            found[side][protocol.name] = getattr(module, side)
    return found


def problems(given: Tables) -> list[str]:
    """What is wrong with the tables: each has one entry per feature, in their order, and says how."""
    wanted = [feature.id for feature in FEATURES]
    found = []
    for side, by_protocol in given.items():
        for protocol, table in by_protocol.items():
            name = f"{side} of {protocol}"
            if list(table) != wanted:
                odd = sorted(set(wanted) ^ set(table)) or ["they are in another order"]
                found.append(f"{name} does not have the features of parity.FEATURES: {', '.join(odd)}")
            found += [f"{name}: {feature} does not say how" for feature, one in table.items() if not one.how]
            found += [
                f"{name}: what is lost of {feature} is no sentence"
                for feature, one in table.items()
                if one.lost and not (one.lost[0].isupper() and one.lost.endswith("."))
            ]
    return found


def losses(given: Tables) -> dict[Place, int]:
    """Each loss with its number."""
    places = [
        (side, protocol, feature.id)
        for side in SIDES
        for protocol in given[side]
        for feature in FEATURES
        if given[side][protocol][feature.id].lost
    ]
    return {place: number for number, place in enumerate(places, 1)}


def render(given: Tables) -> str:
    numbers = losses(given)
    parts = [
        INTRO, _DOORS, _carried(given, "DOOR", numbers), _MOUNTS, _carried(given, "MOUNT", numbers),
        "## Losses\n", _notes(given, numbers), _PAIRS, _pairs(given, numbers),
    ]  # fmt: skip
    return "\n".join(parts)


def short(given: Tables, text: str) -> str:
    """The text of the readme, with the pairs and what is lost between its marks."""
    before, begin, rest = text.partition("<!-- parity:begin -->\n")
    _, end, after = rest.partition("<!-- parity:end -->")
    if not begin or not end:
        raise ValueError("there should be <!-- parity:begin --> and <!-- parity:end -->, each on a line of its own")
    numbers = losses(given)
    return before + begin + _pairs(given, numbers, nothing="all") + "\n" + _notes(given, numbers) + end + after


def _carried(given: Tables, side: str, numbers: dict[Place, int]) -> str:
    rows = []
    for feature in FEATURES:
        row = [feature.title]
        for protocol in given[side]:
            number = numbers.get((side, protocol, feature.id))
            row.append(given[side][protocol][feature.id].how + (f" ({number})" if number else ""))
        rows.append(row)
    return _table(["", *(f"`{protocol}`" for protocol in given[side])], rows)


def _notes(given: Tables, numbers: dict[Place, int]) -> str:
    titles = {feature.id: feature.title for feature in FEATURES}
    lines = [
        f"{number}. `{protocol}` {SIDES[side]}, {titles[feature]}. {given[side][protocol][feature].lost}"
        for (side, protocol, feature), number in numbers.items()
    ]
    return "\n".join(lines or ["None."]) + "\n"


def _pairs(given: Tables, numbers: dict[Place, int], nothing: str = "nothing") -> str:
    rows = []
    for mounted in given["MOUNT"]:
        row = [f"`{mounted}`"]
        for served in given["DOOR"]:
            both = {("MOUNT", mounted), ("DOOR", served)}
            lost = [number for (side, protocol, _), number in numbers.items() if (side, protocol) in both]
            row.append(("all but " if nothing == "all" and lost else "") + (", ".join(map(str, lost)) or nothing))
        rows.append(row)
    return _table(["mounted from", *(f"served on `{protocol}`" for protocol in given["DOOR"])], rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is not up to date")
    parser.add_argument("--page", type=Path, default=PAGE, help="another page than docs/parity.md")
    parser.add_argument("--readme", type=Path, default=README, help="another page than README.md")
    options = parser.parse_args(argv)
    given = tables()
    if found := problems(given):
        print(*found, sep="\n", file=sys.stderr)
        return 1
    for page, wanted in (
        (options.page, render(given)),
        (options.readme, short(given, options.readme.read_text())),
    ):
        if page.is_file() and page.read_text() == wanted:
            continue
        if options.check:
            print(f"{page} is not up to date: run `make docs`", file=sys.stderr)
            return 1
        page.parent.mkdir(exist_ok=True)
        page.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes what docs/engine.md shows of the code: the life of a run, the errors, the settings. `--check` only compares.

Each part stands between two marks, `<!-- name:begin -->` and `<!-- name:end -->`; the text around them is written by
hand.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from interlingua.engine.settings import Settings
from interlingua.model.errors import all_errors
from interlingua.model.status import diagram
from interlingua.server.config.fields import described

PAGE = Path(__file__).parent.parent / "docs" / "engine.md"


def status_part() -> str:
    return f"```mermaid\n{diagram()}\n```"


def errors_part() -> str:
    rows = []
    for cls in all_errors():
        doc = (cls.__dict__.get("__doc__") or "").strip().splitlines()
        rows.append([f"`{cls.code}`", f"`{cls.__name__}`", "yes" if cls.transient else "no", doc[0] if doc else ""])
    return _table(["code", "class", "transient", "meaning"], rows)


def settings_part() -> str:
    """The settings with their defaults."""
    rows = [
        [f"`{one.field}`", f"`{getattr(Settings(), one.field)!r}`", one.help] for one in described(Settings, "limits")
    ]
    return _table(["setting", "default", "meaning"], rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) + " |" for row in lines
    )


PARTS = {"status": status_part, "errors": errors_part, "settings": settings_part}


def render(page: str) -> str:
    """The page with every part as it should be. Raises ValueError where a mark is missing."""
    for name, part in PARTS.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
            raise ValueError(f"the page needs one {begin.strip()} and, after it, one {end}")
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}{part()}\n{end}{rest.partition(end)[2]}"
    return page


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is not up to date")
    parser.add_argument("--page", type=Path, default=PAGE, help="another page than docs/engine.md")
    options = parser.parse_args(argv)
    page: Path = options.page
    text = page.read_text()
    wanted = render(text)
    if options.check:
        if text != wanted:
            print(f"{page} is not up to date: run `make docs`", file=sys.stderr)
            return 1
        return 0
    page.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())

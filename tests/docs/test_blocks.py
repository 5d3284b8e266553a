"""Every code block of the documentation is run: what a page says is what happens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .blocks import NOT_RUN, RUN, SHOWN, read
from .pages import ROOT, Page, fits

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Reports on servers of others: what they show was seen there, and `make interop` is what meets them again.
REPORTS = sorted((ROOT / "docs").glob("*/*.md"))

MOST_NOT_RUN = 6

# These are about the reader's `agents.py`, and do not say what is in it. All others begin in an empty folder.
OWN_AGENTS = {"audit", "cluster", "configuration", "connect", "editors", "mcp", "peers", "production"}


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    opened = Page(tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize("file", [pytest.param(file, id=str(file.relative_to(ROOT))) for file in PAGES])
def test_the_blocks_of_a_page_do_what_it_says(file: Path, page: Page) -> None:
    if file.stem in OWN_AGENTS:
        page.give_agents()
    for block in read(file, ROOT):
        if block.language in RUN and block.reason is None:
            page.run(block)


@pytest.mark.parametrize("file", [pytest.param(file, id=str(file.relative_to(ROOT))) for file in PAGES + REPORTS])
def test_the_links_of_a_page_lead_somewhere(file: Path) -> None:
    for name, heading in _LINK.findall(file.read_text()):
        target = (file.parent / name).resolve() if name else file
        assert target.exists(), f"{file.name} links to {name}, which is not there"
        if heading:
            assert heading in _headings(target), f"{file.name} links to {name}#{heading}: there is no such heading"


_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")


def _headings(file: Path) -> set[str]:
    """As they are in links: in small letters, without punctuation, with dashes for spaces."""
    found = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in found}


def test_the_blocks_of_reports_are_of_a_known_language() -> None:
    found = [block for file in REPORTS for block in read(file, ROOT)]  # which refuses any other
    assert all(block.language in (*RUN, *SHOWN) for block in found)


def test_what_is_not_run_is_little_and_says_why() -> None:
    left = [block for file in PAGES for block in read(file, ROOT) if block.reason is not None]
    listed = "\n".join(f"{block.place}: {block.reason}" for block in left)
    assert len(left) <= MOST_NOT_RUN, f"more is not run than has to be:\n{listed}"
    assert all(len(str(block.reason).split()) > 2 for block in left), f"a reason is a sentence:\n{listed}"
    assert all(block.language in RUN for block in left), f"what is only shown needs no reason:\n{listed}"


@pytest.mark.parametrize("text", ["```\nx\n```\n", "```pyhton\nx\n```\n", "```python sometimes\nx\n```\n", "```json\n"])
def test_a_block_that_nobody_can_test_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(text)
    with pytest.raises(ValueError, match=r"page\.md:1: "):
        read(tmp_path / "page.md", tmp_path)


def test_blocks_are_read_with_their_language_their_file_and_their_reason(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        "One\n\n```python\n# one.py\nx = 1\n```\n"
        f"\n```console {NOT_RUN} it needs a network\n$ a\n```\n\n```{SHOWN[0]}\n```\n"
    )
    one, two, three = read(tmp_path / "page.md", tmp_path)
    assert (one.language, one.file, one.reason, one.number) == ("python", "one.py", None, 3)
    assert (two.language, two.file, two.reason) == ("console", None, "it needs a network")
    assert (three.language, three.text) == ("text", "")


@pytest.mark.parametrize(
    ("language", "text", "wrong"),
    [
        ("python", "raise LookupError('here')", "here"),
        ("console", "$ interlingua run agents.py hello\ngoodbye", "prints something else:\nhello"),
        ("console", "$ interlingua run nothing.py hello", "exit code"),
        ("console", "$ interlingua run nothing.py hello\n$ echo $?\n0", "the exit code is"),
        ("console", "$ echo tok_…", "nothing was printed that begins with tok_"),
        ("console", "$ make nonsense", "exit code 2"),
        ("console", "$ interlingua serve nothing.py &", "has not printed"),
        ("json", "{", "Expecting"),
        ("toml", "a = ", "Invalid value"),
    ],
)
def test_a_block_that_is_wrong_fails(language: str, text: str, wrong: str, page: Page) -> None:
    page.give_agents()
    (page.folder / "page.md").write_text(f"```{language}\n{text}\n```\n")
    (block,) = read(page.folder / "page.md", page.folder)
    with pytest.raises(Exception, match=wrong) as raised:
        page.run(block)
    assert "in page.md:1" in raised.value.__notes__


@pytest.mark.parametrize(
    ("shown", "text", "right"),
    [
        (["a"], "a \n", True),
        (["a"], "a\nb\n", False),
        (["a", "…"], "a\nb\nc\n", True),
        (["…", "c"], "a\nb\nc\n", True),
        (["x…z"], "xyz\n", True),
        (["x…z"], "xy\nz\n", False),
    ],
)
def test_an_ellipsis_stands_for_the_rest_of_a_line_or_for_lines(shown: list[str], text: str, right: bool) -> None:
    assert fits(shown, text) is right

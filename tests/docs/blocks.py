"""Reads the code blocks of a page: their language, what stands in them, and why one is not run. It runs nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

RUN = ("python", "console", "toml", "json")
SHOWN = ("text", "ini", "nginx", "lua", "mermaid")  # of other programs: only shown
NOT_RUN = "not-run"

_FENCE = re.compile(r"^( *)(`{3,})(.*)$")


@dataclass
class Command:
    line: str
    shown: list[str] = field(default_factory=list)
    """What the page says that it prints; nothing where the page does not say."""


@dataclass
class Block:
    page: str
    number: int
    """The line on which it begins."""
    language: str
    reason: str | None
    """Why it is not run, where it is not."""
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.number}"

    @property
    def file(self) -> str | None:
        """The file that it says it is, in a comment on its first line."""
        found = re.match(r"# ([\w.-]+\.(?:py|toml))\n", self.text)
        return found[1] if found else None

    def commands(self) -> list[Command]:
        found: list[Command] = []
        goes_on = False
        for line in self.text.splitlines():
            if goes_on:
                found[-1].line += "\n" + line
            elif line.startswith("$ "):
                found.append(Command(line[2:]))
            elif found:
                found[-1].shown.append(line)
            else:
                raise ValueError(f"{self.place}: begins with something else than a command: {line}")
            goes_on = line.endswith("\\") and (goes_on or line.startswith("$ "))
        return found


def read(page: Path, root: Path) -> list[Block]:
    """The blocks of a page. What is no code block of ours, or is not closed, is a mistake of the page."""
    name = str(page.relative_to(root))
    found: list[Block] = []
    opened: tuple[int, str, str, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None:
            if fence:
                opened, lines = (number, fence[1], fence[2], fence[3].strip()), []
        elif fence and fence[2] == opened[2] and not fence[3]:
            found.append(_block(name, opened[0], opened[3], "".join(f"{one}\n" for one in lines)))
            opened = None
        else:
            lines.append(line.removeprefix(opened[1]))
    if opened is not None:
        raise ValueError(f"{name}:{opened[0]}: the block is never closed")
    return found


def _block(page: str, number: int, info: str, text: str) -> Block:
    language, _, rest = info.partition(" ")
    reason: str | None = None
    if rest:
        mark, _, reason = rest.partition(" ")
        if mark != NOT_RUN or not reason:
            raise ValueError(f"{page}:{number}: {info!r} should be a language, or `LANGUAGE {NOT_RUN} REASON`")
    if language not in (*RUN, *SHOWN):
        raise ValueError(f"{page}:{number}: nobody knows how to test {language or 'a block without a language'!r}")
    return Block(page, number, language, reason, text)

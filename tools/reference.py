"""Writes the reference pages: the settings in docs/configuration.md, all commands in docs/cli.md, and the settings of
mounts on the pages of their protocols.

`--check` only compares. In the first page the tables stand between marks, `<!-- name:begin -->` and
`<!-- name:end -->`, and the text around them is written by hand; the second is made as a whole.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main

from interlingua.cli.app import app
from interlingua.mounts.settings import variable
from interlingua.protocols.installed import protocols
from interlingua.server.config.fields import Setting, described
from interlingua.server.config.settings import ENTRIES, all_settings, sections
from interlingua.server.config.show import toml

_MOUNT = re.compile(
    r"(?P<begin><!-- mount:(?P<name>[\w-]+):begin -->\n).*?(?P<end><!-- mount:(?P=name):end -->)", re.DOTALL
)
DOCS = Path(__file__).parent.parent / "docs"


# -- settings -------------------------------------------------------------------------------------------------


def settings_part() -> str:
    """Every setting, by section."""
    parts = []
    for section, declared in sections().items():
        own = [one for one in all_settings() if one.section == section]
        head = f"### [{section}]\n\n" if section else ""
        parts.append(f"{head}{declared.help}\n\n{_settings(own)}")
    return "\n\n".join(parts)


def _settings(settings: list[Setting]) -> str:
    rows = []
    for one in settings:
        flag = "<br>".join(f"`{part}`" for part in one.flags.split("/"))
        default = "" if one.default is None else f"`{toml(one.default)}`"
        help_ = one.help + (" *Secret.*" if one.secret else "")
        rows.append([f"`{one.name}`", one.allowed, default, help_, flag, f"`{one.variable}`"])
    return _table(["key", "is", "default", "meaning", "flag", "variable"], rows)


def entries_part() -> str:
    """The lists of tables."""
    parts = []
    for entries in ENTRIES:
        flag = "a target without a flag" if not entries.flag.startswith("-") else f"`{entries.flag}`"
        rows = [
            [f"`{one.name}`", one.allowed, one.help + (" *Secret.*" if one.secret else "")]
            for one in entries.members
        ]  # fmt: skip
        parts.append(
            f"### [[{entries.path}]]\n\n{entries.help} On the command line: {flag}; as a variable: "
            f"`{entries.variable}`. A plain text is its `{entries.plain}`.\n\n" + _table(["key", "is", "meaning"], rows)
        )
    return "\n\n".join(parts)


PARTS: dict[str, Callable[[], str]] = {"entries": entries_part, "settings": settings_part}


def configuration(page: str) -> str:
    """The page with its parts as they should be. Raises ValueError where a mark is missing."""
    for name, part in PARTS.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
            raise ValueError(f"the page needs one {begin.strip()} and, after it, one {end}")
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}{part()}\n{end}{rest.partition(end)[2]}"
    return page


def with_mounts(page: str) -> str:
    """Returns a page with its tables of mount settings as they should be."""

    def table(marks: re.Match[str]) -> str:
        name = marks["name"]
        struct = next(protocol for protocol in protocols() if protocol.name == name).load("mount_settings")
        rows = []
        for one in described(struct, ""):
            default = "" if one.default is None else f"`{toml(one.default)}`"
            rows.append([f"`{variable(name, one.field)}`", one.allowed, default, one.help])
        return f"{marks['begin']}{_table(['variable', 'is', 'default', 'meaning'], rows)}\n{marks['end']}"

    return _MOUNT.sub(table, page)


# -- commands -------------------------------------------------------------------------------------------------

_HEAD = """# The command line

Every command with its arguments and options, as `--help` shows them; of `serve`, `worker` and `config show`, as
`--help-all` does. `interlingua demo` uses most of them, and [configuration](configuration.md) describes the settings of
`serve`.
"""


def commands_page() -> str:
    return "\n".join([_HEAD, *_command("interlingua", typer.main.get_command(app), 2)]).rstrip() + "\n"


def _command(name: str, command: Any, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}\n"
    yield f"{_text(command.help or '')}\n"
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and one.name != "help"]
    if arguments:
        rows = [[f"`{one.metavar or one.name.upper()}`", _text(one.help)] for one in arguments]
        yield _table(["argument", "meaning"], rows) + "\n"
    panels: dict[str, list[Any]] = {}
    for one in options:
        panels.setdefault(getattr(one, "rich_help_panel", None) or "", []).append(one)
    for panel, own in panels.items():
        if panel:
            yield f"**{panel}**\n"
        yield _table(["option", "meaning", "default"], [_option(one) for one in own]) + "\n"
    if command.epilog and not getattr(command, "commands", None):
        yield f"{_text(command.epilog)}\n"
    for sub, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _command(f"{name} {sub}", inner, min(level + 1, 4))
    if command.epilog and getattr(command, "commands", None):
        yield f"{_text(command.epilog)}\n"


def _option(option: Any) -> list[str]:
    names = [*option.opts, *option.secondary_opts]
    value = "" if option.is_flag else f" {option.metavar or names[0].strip('-').rpartition('-')[2].upper()}"
    said = option.show_default
    default = said if isinstance(said, str) else _default(option.default) if said else ""
    variable = f" (variable `{option.envvar}`)" if option.envvar else ""
    shown = ", ".join(f"`{name}{value if name.startswith('--') else ''}`" for name in names)
    return [shown, _text(option.help) + variable, f"`{default}`" if default else ""]


def _default(value: Any) -> str:
    return (
        "" if value is None or value is False or value == [] or callable(value) else str(getattr(value, "value", value))
    )


def _text(text: str) -> str:
    """Paragraphs, each on one line."""
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()))


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) + " |" for row in lines
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is not up to date")
    parser.add_argument("--docs", type=Path, default=DOCS, help="another folder than docs")
    options = parser.parse_args(argv)
    docs: Path = options.docs
    by_hand = docs / "configuration.md"
    wanted = {by_hand: configuration(by_hand.read_text()), docs / "cli.md": commands_page()}
    texts = {page: page.read_text() for page in sorted(docs.glob("*.md")) if page not in wanted}
    wanted |= {page: with_mounts(text) for page, text in texts.items() if _MOUNT.search(text)}
    stale = [page for page, text in wanted.items() if not page.exists() or page.read_text() != text]
    for page in stale:
        if options.check:
            print(f"{page} is not up to date: run `make docs`", file=sys.stderr)
        else:
            page.write_text(wanted[page])
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())

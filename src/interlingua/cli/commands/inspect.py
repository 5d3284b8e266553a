"""`interlingua inspect`: which of the protocols something speaks."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import Json, examples

if TYPE_CHECKING:
    from ...detection.detect import Spoken

EPILOG = (
    examples(
        "interlingua inspect http://localhost:8000",
        "interlingua inspect claude-agent-acp",
        "interlingua inspect 'acp://127.0.0.1:7801/TOKEN' --json",
    )
    + "\n\n**Exit codes:** 0 one of the five is spoken · 1 none is, or something is wrong with it · 2 usage"
)

_FEW = 8  # capabilities on a line
_MOST = 20  # agents, or things that are wrong, of which each has a line

Header = Annotated[
    list[str] | None,
    typer.Option(
        "--header", "-H", metavar="'NAME: VALUE'", show_default=False,
        help="A header for every request, such as `authorization: Bearer …` (repeatable).",
    ),
]  # fmt: skip


def inspect(
    target: Annotated[
        str,
        typer.Argument(
            metavar="URL|COMMAND", help="An address, a link, or a command in quotes.", show_default=False
        ),
    ],
    header: Header = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Find out which agent protocols a server speaks.

    Four protocols are called ACP.

    Each protocol is tried at the address and below its usual prefix, or on the pipes of the command, which is started
    once for each. Shown are versions, agents, capabilities, what it gets wrong as far as that shows without running
    anything, and the target to give to `interlingua run`. `interlingua conform` looks closer.
    """
    from ...terminal.session import go

    go(_inspect(target, header or [], json))


async def _inspect(target: str, header: list[str], json: bool) -> int:
    from ...detection.detect import inspect as look
    from ...detection.detect import is_installed

    found, odd = await look(target, headers_of(header))
    if json:
        typer.echo(_as_json(found, odd))
    else:
        _show(target, found, odd)
    ours = [spoken for spoken in found if is_installed(spoken)]
    return 0 if ours and not any(spoken.wrong for spoken in ours) else 1


def headers_of(written: list[str]) -> dict[str, str]:
    """Headers as curl takes them."""
    from ...terminal.errors import CommandError

    found = {}
    for line in written:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise CommandError(f"{line!r} is no header", hint="write it as 'NAME: VALUE'")
        found[name.strip().lower()] = value.strip()
    return found


def _as_json(found: list[Spoken], odd: list[str]) -> str:
    import msgspec

    from ...terminal.console import as_json

    return as_json({"spoken": msgspec.to_builtins(found), "odd": odd})


def _folded(capabilities: list[str]) -> str:
    """The first few: some servers name forty, of which most say the same again."""
    few = capabilities[:_FEW]
    more = len(capabilities) - len(few)
    return ", ".join(few) + (f", and {more} more; --json has all" if more else "")


def _show(target: str, found: list[Spoken], odd: list[str]) -> None:
    from ...terminal.console import console

    out = console()

    def line(text: str, style: str = "") -> None:
        out.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    if not found:
        line("None of the protocols is spoken there.")
    for spoken in found:
        line(spoken.title, "bold")
        named = " ".join(part for part in (spoken.name, spoken.version) if part)
        for label, text in (
            ("server", named),
            ("versions", ", ".join(v for v in spoken.protocol_versions if v)),
            ("able to", _folded(spoken.capabilities)),
        ):
            if text:
                line(f"  {label:<9} {text}")
        for at, agent in enumerate(spoken.agents[:_MOST]):
            about = f": {agent.description}" if agent.description else ""
            line(f"  {'agents' if at == 0 else '':<9} {agent.name}{about}")
        if len(spoken.agents) > _MOST:
            line(f"  {'':<9} and {len(spoken.agents) - _MOST} more; --json has all")
        for text in spoken.wrong[:_MOST]:
            line(f"  {'wrong':<9} {text}", "red")
        if len(spoken.wrong) > _MOST:
            line(f"  {'':<9} and {len(spoken.wrong) - _MOST} more; --json has all", "red")
        for text in spoken.notes:
            line(f"  {'note':<9} {text}")
        if spoken.target is not None:
            which = f"#{spoken.agents[0].name}" if len(spoken.agents) > 1 else ""
            line(f"  $ interlingua run '{spoken.target}{which}' hello")
            first = f" --agent {shlex.quote(spoken.agents[0].name)}" if len(spoken.agents) > 1 else ""
            line(f"  $ interlingua conform '{spoken.target}'{first}")
    for text in odd:
        line(f"note: {text}")

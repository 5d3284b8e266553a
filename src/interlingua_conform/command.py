"""`interlingua conform`: checks from outside how much of a protocol's document a server keeps."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlingua.cli.commands.inspect import Header, headers_of
from interlingua.cli.options import Json, examples

from . import PROTOCOLS

if TYPE_CHECKING:
    from interlingua.protocols.base import Command

    from .base import Finding, Subject

EPILOG = (
    examples(
        "interlingua conform http://localhost:8000/connect --agent echo",
        "interlingua conform editor:claude-agent-acp",
        "interlingua conform 'mcp:python server.py' --slow counter --only mcp.progress",
        "interlingua conform peer+http://localhost:8000/peer --json > findings.json",
    )
    + "\n\n**Exit codes:** 0 nothing failed · 1 something did · 2 usage · 3 nothing answers there"
)

_MARKS = {"pass": ("✓", "green"), "fail": ("✗", "bold red"), "not applicable": ("–", "dim")}


def _role(name: str, text: str) -> Any:
    return typer.Option(f"--{name}", metavar="AGENT", help=text, show_default=False)


def add_conform(to: typer.Typer, command: Command) -> None:
    to.command(command.name, epilog=EPILOG, rich_help_panel=command.panel)(conform)


def conform(
    target: Annotated[
        str, typer.Argument(metavar="URL|COMMAND", help="A target, or a plain address.", show_default=False)
    ],
    protocol: Annotated[
        str | None,
        typer.Option("--protocol", help=f"Which one to look at: {', '.join(PROTOCOLS)}.", show_default=False),
    ] = None,
    agent: Annotated[str | None, _role("agent", "An agent that answers soon; the first one, without this.")] = None,
    asks: Annotated[
        str | None, _role("asks", "An agent that asks a question, of any shape; it gets an answer that fits.")
    ] = None,
    slow: Annotated[
        str | None, _role("slow", "An agent that runs until it is cancelled, and says something every second.")
    ] = None,
    fails: Annotated[str | None, _role("fails", "An agent that always fails.")] = None,
    input_: Annotated[
        str | None,
        typer.Option(
            "--input", metavar="JSON", show_default=False, help="What to give to it; made from its schema without this."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="ID", help="Only these, or all that begin so (repeatable).", show_default=False),
    ] = None,
    header: Header = None,
    secret: Annotated[
        str | None,
        typer.Option(
            "--secret",
            envvar="INTERLINGUA_PEER_SECRET",
            show_default=False,
            help="What a node signs its messages with, where it does.",
        ),
    ] = None,
    patience: Annotated[float, typer.Option("--patience", help="Seconds that an answer may take.")] = 10.0,
    failures: Annotated[bool, typer.Option("--failures", help="Show only what failed.")] = False,
    json: Json = False,
) -> None:
    """Check a server of any protocol against its document.

    The checks see what any client can see.

    Each requirement that can be seen from outside passes, fails, or does not apply to this server; it is shown with its
    id, its section and what it asks for. Agents of the server are run for this: name ones that do no harm. What needs
    an agent that asks, is slow or fails does not apply unless you name one.
    """
    from interlingua.terminal.session import go

    seen = {"headers": headers_of(header or []), "patience": patience, "secret": secret}
    go(_reached(_conform(target, protocol, _roles(agent, asks, slow, fails, input_), only, seen, failures, json)))


async def _reached(checking: Coroutine[Any, Any, int]) -> int:
    """Runs the checks, and exits with a code of its own if the server cannot be reached: that says nothing about its
    conformance."""
    from interlingua.model.errors import Unavailable
    from interlingua.terminal.errors import CommandError, ExitCode

    try:
        return await checking
    except Unavailable as error:
        raise CommandError(error.message, exit_code=ExitCode.NOT_FOUND) from error


def _roles(agent: str | None, asks: str | None, slow: str | None, fails: str | None, given: str | None) -> Any:
    from interlingua.terminal.input_args import json_of

    from .base import Roles

    return Roles(
        agent=agent, asking=asks, slow=slow, failing=fails, input=None if given is None else json_of(given, "--input")
    )


async def _conform(
    text: str, protocol: str | None, roles: Any, only: list[str] | None, seen: dict[str, Any], failures: bool,
    json: bool,
) -> int:  # fmt: skip
    import msgspec

    from . import suite
    from .base import Report
    from .base import conform as check

    found, subject = await _subject(text, protocol, seen["headers"])
    subject = msgspec.structs.replace(subject, roles=roles, **seen)
    report = Report(found, text)
    checks = suite(found)
    if only is not None:
        _known(only, found, checks.ids)
    async for finding in check(checks, subject, only):
        report.findings.append(finding)
        if not json and (finding.verdict == "fail" or not failures):
            _show(finding)
    if json:
        from interlingua.terminal.console import as_json

        typer.echo(as_json({**msgspec.to_builtins(report), "counts": _counts(report.findings)}))
    else:
        counts = _counts(report.findings)
        _tell_unseen(report.findings, roles)
        typer.echo(f"{found}: " + ", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
    return 1 if report.failed else 0


async def _subject(text: str, protocol: str | None, headers: dict[str, str]) -> tuple[str, Subject]:
    """Returns the protocol to check, and the server that a target names."""
    from interlingua.detection.detect import addressed, detected
    from interlingua.protocols.targets import kinds, protocol_of
    from interlingua.terminal.errors import CommandError
    from interlingua.transports.process.child_process import words_of

    from .base import Subject

    if protocol is not None and protocol not in PROTOCOLS:
        raise CommandError(f"there is no protocol {protocol!r}", hint=f"there are {', '.join(PROTOCOLS)}")
    text = addressed(text)
    scheme, mark, rest = text.partition("://")
    if not mark or " " in scheme:
        kind, colon, command = text.partition(":")
        if colon and kind in kinds() and (owner := protocol_of(kind)) is not None:
            return protocol or owner.name, Subject(command=tuple(words_of(command, kind)))
        if protocol is None:
            raise CommandError(
                f"which protocol does {text!r} speak?", hint="say it with --protocol, or ask `interlingua inspect`"
            )
        return protocol, Subject(command=tuple(words_of(text, protocol)))
    if (owner := protocol_of(scheme)) is not None:
        address = text if kinds()[scheme].secret_path else f"{scheme.rpartition('+')[2]}://{rest}"
        return protocol or owner.name, Subject(address=address)
    if scheme in ("ws", "wss"):
        named = (one for one in PROTOCOLS if f"{one}+{scheme}" in kinds())
        return protocol or next(named), Subject(address=text)
    if protocol is None:
        spoken = await detected(text, headers)
        assert spoken.target is not None
        return spoken.protocol, Subject(address=spoken.target.partition("+")[2])
    return protocol, Subject(address=await _below(text, protocol, headers))


async def _below(address: str, protocol: str, headers: dict[str, str]) -> str:
    """Returns the address at which a protocol is spoken: the given one, or one below it."""
    from interlingua.detection.at_address import look

    if address.startswith(("http://", "https://")):
        found, _ = await look(address, headers)
        for spoken in found:
            if spoken.protocol == protocol and spoken.target is not None:
                return spoken.target.partition("+")[2]
    return address


def _known(only: list[str], protocol: str, ids: list[str]) -> None:
    from interlingua.terminal.errors import CommandError

    from . import suite

    for wanted in only:
        if any(name.startswith(wanted) for name in ids):
            continue
        for other in PROTOCOLS:
            if any(name.startswith(wanted) for name in suite(other).ids):
                raise CommandError(
                    f"{wanted} is of the protocol {other}, and the server is looked at as one of {protocol}",
                    hint=f"ask for the other one: --protocol {other}",
                )
        raise CommandError(f"no requirement that can be seen from outside begins with {wanted}")


def _counts(findings: list[Finding]) -> dict[str, int]:
    return {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in _MARKS}


def _tell_unseen(findings: list[Finding], roles: Any) -> None:
    """Prints how many more checks would apply with further agents named, and the options that name them."""
    from .base import OPTIONS

    options = [option for role, option in OPTIONS.items() if getattr(roles, role) is None]
    needed = [f for f in findings if f.verdict == "not applicable" and any(option in f.why for option in options)]
    if needed:
        wanted = [option for option in options if any(option in finding.why for finding in needed)]
        typer.echo(f"{len(needed)} of those that do not apply need an agent that you name with {', '.join(wanted)}")


def _show(finding: Finding) -> None:
    from interlingua.terminal.console import console

    mark, style = _MARKS[finding.verdict]
    out = console()

    def line(text: str, style: str = "") -> None:
        out.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    line(f"{mark} {finding.id}  [{finding.section}; {finding.level}]", style)
    line(f"    {finding.text}")
    if finding.why:
        line(
            f"    {'→' if finding.verdict == 'fail' else '·'} {finding.why}",
            "red" if finding.verdict == "fail" else "dim",
        )

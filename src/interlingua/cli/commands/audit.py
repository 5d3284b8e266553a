"""`interlingua audit`: the history of a task, as a file that proves itself, and as a tree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import Json, Store, examples

if TYPE_CHECKING:
    from ...engine.reading import AnyEngine
    from ...model.audit.export import Report
    from ...security.signing_key import SigningKey
    from ...server.audit import Branch

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Export the proof of a task, verify it, show who delegated what.\n\n"
    "Each run's log is a chain of hashes, and the logs of a task name each other. An export is signed with the owner's "
    "key. These commands are the owner's: they show sealed runs of overseen agents too.",
)

_NOTES = 30  # the number of notes shown

Task = Annotated[
    str,
    typer.Argument(
        metavar="TASK|RUN", help="A task of a team (T1, T1.1), or a run: its id, a part of it, or `last`.",
        show_default=False,
    ),
]  # fmt: skip
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--signing-key", metavar="FILE",
        help="The private key; it is made if it does not exist. By default the key beside the store.",
        show_default=False,
    ),
]  # fmt: skip


@app.command(
    "export",
    epilog=examples("interlingua audit export T1", "interlingua audit export last -o evidence.jsonl"),
)
def export(
    task: Task,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The file to write; `-` is stdout. By default audit-TASK.jsonl.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite an existing file.")] = False,
    key: KeyFile = None,
    store: Store = None,
) -> None:  # fmt: skip
    """Write a task, or a run, with all runs below it into one signed file.

    An export of runs that have not ended has the events so far. It contains every message, also those that oversight
    withheld, so only its owner can read the file.
    """
    from ...terminal.session import go

    go(_export(task, output, force, key, store))


async def _export(task: str, output: Path | None, force: bool, key: Path | None, store: Path | None) -> int:
    import sys

    from ...engine.ids import now
    from ...model.audit.verify import Checker
    from ...security.signing_key import genuine
    from ...server.audit import export as lines_of
    from ...terminal.session import reader_at
    from ...terminal.short_ids import short

    async with reader_at(store) as engine:
        run, label = await _find(engine, task)
        owner = _key(key, store)
        checker = Checker(genuine, lambda public: public == owner.public)
        file = output or Path(f"audit-{label or short(run)}.jsonl")
        lines = lines_of(engine, run, owner, now=now(), task=label)
        if str(file) == "-":
            async for line in lines:
                checker.feed(line)
                sys.stdout.buffer.write(line)
        else:
            with _Draft(file, force) as draft:
                async for line in lines:
                    checker.feed(line)
                    draft.write(line)
    return _exported(checker.finish(), file, owner)


class _Draft:
    """A file that is there whole or not at all, and readable by its owner alone."""

    def __init__(self, file: Path, force: bool) -> None:
        self._file = file
        self._force = force

    def __enter__(self) -> Any:
        import os
        import secrets

        from ...terminal.errors import CommandError

        if self._file.is_dir():
            raise CommandError(f"{self._file} is a folder", hint="name a file in it with -o")
        if self._file.exists() and not self._force:
            raise CommandError(
                f"there is a file {self._file} already", hint="-o names another one, --force replaces it"
            )
        self._draft = self._file.with_name(f".{self._file.name}.{secrets.token_hex(6)}")
        try:
            handle = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise CommandError(
                f"{self._file} cannot be written: {error.strerror}", hint="-o names another file"
            ) from error
        self._out = os.fdopen(handle, "wb")
        return self._out

    def __exit__(self, kind: object, *_: object) -> None:
        import os

        try:
            with self._out as out:
                if kind is None:
                    out.flush()
                    os.fsync(out.fileno())
            if kind is None:
                self._draft.replace(self._file)
        finally:
            self._draft.unlink(missing_ok=True)


def _exported(report: Report, file: Path, key: SigningKey) -> int:
    from ...terminal.console import note
    from ...terminal.errors import ExitCode, complain

    for warning in key.warnings:
        note(f"warning: {warning}")
    for told in _some(report.notes):
        note(told)
    where = "" if str(file) == "-" else f" to {file}"
    note(f"{_counted(report)} exported{where}, signed with {key.fingerprint}")
    if not report.ok:
        complain(
            f"it is exported as it is in the store, where something was changed: {report.problems[0].message}",
            "interlingua audit verify FILE tells of everything",
        )
        return ExitCode.FAILED
    if str(file) != "-":
        typer.echo(file)
    return ExitCode.SUCCEEDED


@app.command(
    "verify",
    epilog=examples(
        "interlingua audit verify audit-T1.jsonl --public-key owner.pub", "interlingua audit verify audit-T1.jsonl"
    ),
)
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The export; `-` is stdin.", show_default=False)],
    key: Annotated[
        str | None,
        typer.Option(
            "--public-key", metavar="PUB",
            help="The owner's public key: its text, its fingerprint, or a file that holds it. Without it, the command "
            "checks integrity, but not origin.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Check that nothing in an export was changed, added or removed, and who signed it.

    The command needs no store and no network. It names the first changed event. The exit code is 0 for an intact file.
    """
    import sys

    from ...model.audit.verify import verify as check
    from ...model.errors import NotFound
    from ...security.signing_key import Expected, genuine
    from ...server.audit import read_lines
    from ...terminal.errors import CommandError

    trusts = Expected(key) if key is not None else None
    try:
        if str(file) == "-":
            report = check(read_lines(sys.stdin.buffer), genuine, trusts)
        else:
            with file.open("rb") as source:
                report = check(read_lines(source), genuine, trusts)
    except FileNotFoundError:
        raise NotFound(f"there is no file {file}") from None
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}") from error
    if json:
        _print_report(report, trusts is not None)
    else:
        _show_report(report, file, trusts is not None)
    raise typer.Exit(0 if report.ok else 1)


def _origin(report: Report, asked: bool) -> str:
    return "unchecked" if not asked else "checked" if report.origin else "failed"


def _print_report(report: Report, asked: bool) -> None:
    import msgspec

    from ...security.signing_key import fingerprint
    from ...terminal.console import as_json
    from ...terminal.times import iso

    told = {"ok": report.ok, **msgspec.to_builtins(report), "origin": _origin(report, asked)}
    told["fingerprint"] = fingerprint(report.key) if report.key else None
    told["exported_at"] = iso(report.exported_at) if report.exported_at is not None else None
    typer.echo(as_json(told))


def _show_report(report: Report, file: Path, asked: bool) -> None:
    from rich.text import Text

    from ...security.signing_key import fingerprint
    from ...terminal.console import clean, console
    from ...terminal.times import iso

    def say(text: str, style: str = "") -> None:
        console().print(Text(clean(text), style), soft_wrap=True)

    name = "the export" if str(file) == "-" else str(file)
    if report.ok:
        say(f"{name} is whole: {_counted(report)}, as exported {iso(report.exported_at or 0)}", "green")
    else:
        say(f"{name} is not what was exported", "bold red")
        for number, problem in enumerate(report.problems):
            say(f"{'first' if number == 0 else 'also'}: {problem.message}")
        if report.more:
            say(f"and {report.more} more")
    for told in _some(report.notes):
        say(told, "dim")
    if report.key and not asked:
        say(f"it says that it was signed with the key {fingerprint(report.key)}")
        say(
            "only integrity was checked, not origin: anybody can make a key. Give the owner's with --public-key, or "
            "compare the fingerprint with the one that the owner tells you.",
            "yellow",
        )
    elif report.origin and report.ok:
        say(f"it was signed with the key that you gave, {fingerprint(report.key)}", "green")
    elif report.key:
        say(f"it says that it was signed with the key {fingerprint(report.key)}")


def _some(notes: list[str]) -> list[str]:
    return notes if len(notes) <= _NOTES else [*notes[:_NOTES], f"and {len(notes) - _NOTES} more remarks"]


def _counted(report: Report) -> str:
    def many(count: int, what: str) -> str:
        return f"{count} {what}{'' if count == 1 else 's'}"

    task = f" of task {report.task}" if report.task else ""
    return f"{many(report.runs, 'run')} with {many(report.events, 'event')}{task}"


@app.command("key", epilog=examples("interlingua audit key", "interlingua audit key --public > owner.pub"))
def key_(
    public: Annotated[bool, typer.Option("--public", help="Print the public key, and nothing else.")] = False,
    key: KeyFile = None,
    store: Store = None,
) -> None:
    """Show the public key of exports, for those who verify them. It is made if it does not exist."""
    from ...terminal.console import clean, note

    owner = _key(key, store)
    for warning in owner.warnings:
        note(f"warning: {warning}")
    if public:
        typer.echo(owner.public)
        return
    typer.echo(f"public key   {owner.public}")
    typer.echo(f"fingerprint  {owner.fingerprint}")
    typer.echo(f"kept in      {clean(str(_key_file(key, store)))}")


def _key_file(key: Path | None, store: Path | None) -> Path:
    from ...server.paths import Place, audit_key
    from ...server.stores import is_postgres

    if key is not None:
        return key.expanduser()
    place = Place(store)
    if not is_postgres(place.store):
        place.project.prepare(place.store)
    return audit_key(place.store)


def _key(key: Path | None, store: Path | None) -> SigningKey:
    from ...security.signing_key import SigningKey

    return SigningKey.load_or_create(_key_file(key, store))


@app.command("tree", epilog=examples("interlingua audit tree T1", "interlingua audit tree last --json"))
def tree(task: Task, json: Json = False, store: Store = None) -> None:
    """Show who delegated what to whom, when and why, with results, reviews and refusals."""
    from ...terminal.session import go

    go(_tree(task, json, store))


async def _tree(task: str, json: bool, store: Path | None) -> None:
    from ...engine.ids import now
    from ...server.audit import collect
    from ...terminal.console import as_json, console
    from ...terminal.session import reader_at
    from ...terminal.task_tree import plain, view

    async with reader_at(store) as engine:
        run, _ = await _find(engine, task)
        found: Branch = (await collect(engine.runs, run)).tree()
    if json:
        typer.echo(as_json(plain(found)))
    else:
        console().print(view(found, now()))


async def _find(engine: AnyEngine, given: str) -> tuple[str, str]:
    """The run that is meant, and the label of its task where that was given."""
    from ...model.errors import RunNotFound
    from ...model.filters import RunFilter
    from ...model.team.task_ids import is_task
    from ...terminal.short_ids import find_run

    if is_task(given):
        row = await engine.teams.task(given)
        # A whole task begins with the team's own run, on whose log the conversation is.
        return (row.root if row.parent is None else row.run), given
    try:
        return await find_run(engine, given), ""
    except RunNotFound:
        rows = await engine.runs.rows(RunFilter(sealed=True, limit=1_000_000))
        sealed = [row.id for row in rows if row.sealed and row.id.endswith(given.lower())]
        if len(sealed) != 1:
            raise
        return sealed[0], ""

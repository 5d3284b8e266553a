"""`interlingua run`: run an agent here, and talk to it at the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from ..options import EXIT_CODES, Json, NoInput, Store, Trace, examples

if TYPE_CHECKING:
    from ...engine.engine import Engine
    from ...engine.reading import AnyEngine
    from ...model.card import AgentCard
    from ...protocols.targets import Target
    from ...server.loading.target import Loaded
    from ...terminal.crash import CrashSite
    from ...terminal.errors import ExitCode
    from ...terminal.events.views import View
    from ...terminal.keyboard import Interrupts
    from ..server_run import ServerRun

EPILOG = (
    examples(
        'interlingua run agents.py "hello there"',
        "interlingua run agents.py:counter '{\"to\": 10}' --json",
        'interlingua run mail.py --thread trip --agent-config \'{"style": "friendly"}\' "To: ada@example.org"',
        "git diff | interlingua run review.py -",
        "interlingua run editor:claude-agent-acp 'what does this project do?'",
        "interlingua run mail.py --resume 1a2b3c4d",
        "interlingua run http://127.0.0.1:8000#mailer 'to ada@example.org'",
    )
    + "\n\n"
    + EXIT_CODES
)


def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="The agent: `FILE` or `FILE:AGENT`, an address, or a command as `PROTOCOL:COMMAND`.",
            show_default=False,
        ),
    ],
    input_: Annotated[
        str | None,
        typer.Argument(
            metavar="INPUT",
            help="Text for the agent's text field, or a JSON object. `-` reads stdin, `@FILE` a file.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    store: Store = None,
    thread: Annotated[
        str | None,
        typer.Option("--thread", metavar="ID", help="Keep state on this thread; a new name creates it."),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--agent-config", metavar="JSON|@FILE", help="The agent's configuration, a JSON object."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", metavar="SECONDS", min=0, help="Seconds that the agent may run; waiting does not count."
        ),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", metavar="KEY=VALUE", help="A note on the run (repeatable)."),
    ] = None,
    no_input: NoInput = False,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="RUN", help="Resume this run, instead of starting one."),
    ] = None,
    attach: Annotated[
        str | None,
        typer.Option("--attach", metavar="ID", help="Continue this run of the server at the address."),
    ] = None,
    trace: Trace = None,
) -> None:
    """Run an agent and stream its output.

    stdout has only the agent's output: its text as it comes, and other members as JSON at the end. stderr has its
    activity (thoughts, plans, tool calls, artifacts) and its questions.

    The command asks the agent's questions at the terminal: yes or no, a choice, or a form. Without a terminal, the run
    is left waiting: answer with `interlingua questions answer`, then continue with `--resume`. An answer from another
    shell is accepted too.

    The server at an address keeps its runs, and nothing of them is stored here. The command prints the id of the run
    there, and `--attach` continues it: with its output so far, its questions and its result.

    Ctrl-C, SIGTERM and SIGHUP cancel the run and wait for its end; a second one exits at once.
    """
    import contextlib
    import sys

    from ...server.wire_trace import tapped
    from ...terminal.session import go

    out = sys.stdout
    # Text that an agent's code prints must not mix with its output.
    with contextlib.redirect_stdout(sys.stderr), tapped(trace):
        go(_run(out, target, input_, json, store, thread, config, timeout, metadata or [], no_input, resume, attach))


async def _run(
    out: TextIO, target: str, input_: str | None, json: bool, store: Path | None, thread: str | None,
    config: str | None, timeout: float | None, metadata: list[str], no_input: bool, resume: str | None,
    attach: str | None,
) -> int:  # fmt: skip
    from ...protocols.targets import parse, spelled
    from ...server.loading.target import load
    from ...server.paths import Place, nearby
    from ...terminal.console import note
    from ...terminal.crash import CrashSite
    from ...terminal.input_args import input_of, json_of, metadata_of
    from ...terminal.keyboard import Interrupts
    from ...terminal.session import engine_in, engine_of_client, interactive
    from ..server_run import agent_at

    parsed = parse(target)
    _check_whose(parsed, store, resume, attach)
    if attach is not None:
        _check_unchanged("--attach", input_, thread, config, timeout, metadata)
    if parsed.is_address:
        loaded = await load(parsed)
        agent, told = agent_at(loaded, spelled(target, parsed), attach)
        ask = interactive() and not no_input
        value = await input_of(agent.card, input_, ask=ask) if attach is None else {}
        options = json_of(config, "--agent-config") if config is not None else None
        notes = metadata_of(metadata)
        async with (
            engine_of_client([agent]) as (engine, folder),
            Interrupts(engine, hangup=True, folder=folder) as interrupts,
        ):
            with CrashSite() as site:
                id_ = await _submitted(engine, agent.card, value, options, thread, timeout, notes)
                return await _watch(engine, id_, out, json, ask, site, interrupts, told)
    place = Place(store, [parsed])
    loaded = await load(parsed, place.project.root)
    card: AgentCard = loaded.chosen.card
    ask = interactive() and not no_input
    if resume is not None:
        _check_unchanged("--resume", input_, thread, config, timeout, metadata)
        async with engine_in(place, loaded.agents) as engine, Interrupts(engine, hangup=True) as interrupts:
            if not json:
                note(f"store: {nearby(place.store)}")
            with CrashSite() as site:
                id_ = await _resumed(engine, loaded, resume)
                return await _watch(engine, id_, out, json, ask, site, interrupts)
    # Everything is checked before the store is opened: bad input changes nothing.
    value = await input_of(card, input_, ask=ask)
    options = json_of(config, "--agent-config") if config is not None else None
    notes = metadata_of(metadata)
    async with (
        engine_in(place, loaded.agents, create=True) as engine,
        Interrupts(engine, hangup=True) as interrupts,
    ):
        if not json:
            note(f"store: {nearby(place.store)}")
        with CrashSite() as site:
            id_ = await _submitted(engine, card, value, options, thread, timeout, notes)
            return await _watch(engine, id_, out, json, ask, site, interrupts)


def _check_whose(target: Target, store: Path | None, resume: str | None, attach: str | None) -> None:
    """Checks that the options fit the target: a run of this project, or a run of a server. Raises CommandError for
    options of the other kind."""
    from ...terminal.errors import CommandError

    if not target.is_address and attach is not None:
        raise CommandError(
            "--attach continues a run of a server, and the target is not an address",
            hint=f"to resume a run of this project: --resume {attach}",
        )
    if target.is_address and resume is not None:
        raise CommandError(
            "--resume resumes a run of this project, and the server at an address keeps its own runs",
            hint=f"to continue it: --attach {resume}",
        )
    if target.is_address and store is not None:
        raise CommandError("--store has no effect: the server at an address keeps its own runs")


def _check_unchanged(
    option: str, input_: str | None, thread: str | None, config: str | None, timeout: float | None,
    metadata: list[str],
) -> None:  # fmt: skip
    from ...terminal.errors import CommandError

    given = {"INPUT": input_, "--thread": thread, "--agent-config": config, "--timeout": timeout}
    wrong = [name for name, value in given.items() if value is not None] + (["--metadata"] if metadata else [])
    if wrong:
        raise CommandError(f"{option} continues a run as it was started; {', '.join(wrong)} cannot change it")


async def _submitted(
    engine: Engine, card: AgentCard, value: dict[str, Any], config: Any, thread: str | None, timeout: float | None,
    notes: dict[str, Any],
) -> str:  # fmt: skip
    from ...model.run import RunRequest
    from ...terminal.short_ids import thread_to_use

    if thread is not None:
        thread = await thread_to_use(engine, thread)
    request = RunRequest(
        card.name, card.version, value, config, metadata=notes, thread=thread, create_thread=thread is not None,
        timeout=timeout,
    )  # fmt: skip
    return (await engine.runs.submit(request)).id


async def _resumed(engine: Engine, loaded: Loaded, part: str) -> str:
    from ...model.run_identity import queue
    from ...terminal.errors import CommandError
    from ...terminal.short_ids import find_run, short

    found = await engine.runs.get(await find_run(engine, part))
    if found.status.final or engine.agents.serving(queue(found.origin, found.agent, found.version)) is not None:
        return found.id
    if engine.agents.find(found.agent, found.version) is None:
        here = ", ".join(agent.card.key for agent in loaded.agents)
        raise CommandError(f"run {part} is one of {found.agent}@{found.version}, and the target has {here}")
    raise CommandError(
        f"run {part} belongs to the code of {found.origin.strip()}, and the target is other code",
        hint=f"to go on with the target's code: interlingua runs move {short(found.id)} --to TARGET",
    )


async def _watch(
    engine: Engine, run: str, out: TextIO, json: bool, ask: bool, site: CrashSite, interrupts: Interrupts,
    at_server: ServerRun | None = None,
) -> ExitCode:  # fmt: skip
    import contextlib

    from ...model.errors import Conflict
    from ...terminal.ask import AskAtTerminal
    from ...terminal.errors import ExitCode
    from ...terminal.events.views import JsonView, TextView
    from ...terminal.follow_run import Watch

    view: View = JsonView(out) if json else TextView(await card_of(engine, run), out, crash_site=site)
    asker = AskAtTerminal() if ask else None
    how = None
    if at_server is not None:
        at_server.show_in(view)
        how = at_server.how_to_answer
    watch = Watch(engine, run, view, asker=asker, leave_waiting=True, owned=interrupts, how=how)
    try:
        code = await watch.follow()
        return code if at_server is None else await at_server.exit_code(engine, run, code)
    except OSError as error:  # the reader of the output has gone
        terminal = interrupts.terminal_went_away()
        if not terminal and not isinstance(error, BrokenPipeError):
            raise
        with contextlib.suppress(Conflict):  # it has just ended by itself
            await engine.runs.cancel(
                run, reason="the terminal was closed" if terminal else "the reader of the output left"
            )
        with contextlib.suppress(TimeoutError):
            await engine.runs.wait(run, timeout=10)
        if terminal:
            return ExitCode.CANCELLED
        raise


async def card_of(engine: AnyEngine, run: str) -> AgentCard | None:
    """The card of a run's agent, as far as this store knows it."""
    from ...model.errors import NotFound

    found = await engine.runs.get(run)
    try:
        return await engine.agents.card(found.agent, found.version)
    except NotFound:
        return None

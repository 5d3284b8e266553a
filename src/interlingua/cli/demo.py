"""`interlingua demo`: a short guided tour, with three example agents."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Store
from .tour import command, over_http, say

if TYPE_CHECKING:
    from ..app.serve import Server
    from ..engine.agents import Agent
    from ..engine.engine import Engine
    from ..model.run import RunRequest


def demo(
    store: Store = None,
    team: Annotated[bool, typer.Option(help="The part about a team, which starts tool servers.")] = True,
) -> None:
    """A short guided tour: three agents, a question, a thread, what remains of it all, the same over HTTP, and a team.

    Takes less than a minute. The agents are served meanwhile; at a terminal they stay up afterwards, until Ctrl-C.
    Runs in a temporary store, unless `--store` names one.
    """
    from .session import go

    if store is not None:
        go(_demo(store, kept=True, team=team))
    with tempfile.TemporaryDirectory(prefix="interlingua-demo-") as folder:
        go(_demo(Path(folder) / "demo.db", kept=False, team=team))


async def _demo(store: Path, *, kept: bool, team: bool) -> int:
    from ..app.demo import EXAMPLES, example, serving_somewhere
    from ..app.files import agents_of_file
    from .session import interactive
    from .team_tour import sales_team, with_team

    files = {name: example(name) for name in EXAMPLES}
    agents: dict[str, Agent[..., Any]] = {name: agents_of_file(file)[0] for name, file in files.items()}
    crew = sales_team() if team else None
    async with serving_somewhere(store, [*agents.values(), *([crew] if crew is not None else [])]) as server:
        code = await _tour(server, files, agents) or await over_http(server)
        if not code and team:
            code = await with_team(server, crew)
        if code:
            return code
        _farewell(files, store if kept else None)
        if interactive():
            await _stay(server)
    return 0


async def _tour(server: Server, files: dict[str, Path], agents: dict[str, Agent[..., Any]]) -> int:
    from ..model.run import RunRequest

    engine = server.engine
    say("Interlingua", "Write an agent once. Every agent protocol speaks to it. Here are three agents.")

    say("1  echo", f"An agent is a Python function ({files['echo'].name}). What it yields streams as it comes.")
    code = await _act(engine, "run echo.py 'hello from an agent'", _request(agents["echo"], text="hello from an agent"))
    if code:
        return code

    say(
        "2  mailcomposer",
        "It remembers what was said on a thread, and it has a config. First it only gets the text of a mail.",
    )
    mail = agents["mailcomposer"]
    thread, friendly = (await engine.create_thread()).id, {"style": "friendly"}
    options = """--thread lunch --config '{"style": "friendly"}'"""
    first = "To: ada@example.org. Shall we have lunch at noon?"
    request = _request(mail, thread, friendly, message=first)
    code = await _act(engine, f"run mailcomposer.py {options} '{first}'", request)
    if code:
        return code
    say("", "On the same thread it still knows that. It asks before it sends, and waits as long as it takes.")
    request = _request(mail, thread, friendly, message="Subject: Lunch")
    code = await _act(engine, f"run mailcomposer.py {options} 'Subject: Lunch'", request)
    if code:
        return code

    say("3  counter", "It takes its time and shows its plan. Ctrl-C would cancel it.")
    request = RunRequest(agents["counter"].card.name, agents["counter"].card.version, {"to": 5, "delay": 0.3})
    code = await _act(engine, "run counter.py '{\"to\": 5}'", request)
    if code:
        return code
    await _what_remains(engine)
    return 0


async def _stay(server: Server) -> None:
    """Leave the agents up for whoever wants to try the lines above."""
    import asyncio
    import signal

    from .serve import say as line

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    line("")
    for protocol, _ in server.app.doors.values():
        line(f"The agents stay up: {protocol.title} on {server.address}{protocol.prefix}")
    line("Ctrl-C stops.")
    await stop.wait()
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)


def _request(
    agent: Agent[..., Any], thread: str | None = None, config: dict[str, Any] | None = None, **members: Any
) -> RunRequest:
    from ..model.run import RunRequest

    return RunRequest(agent.card.name, agent.card.version, members, config, thread=thread)


async def _act(engine: Engine, line: str, request: RunRequest) -> int:
    from .ask import AskAtTerminal, Asker, SayYes
    from .output import TextView
    from .session import interactive
    from .watch import Watch

    command(line)
    run = await engine.submit(request)
    asker: Asker = AskAtTerminal() if interactive() else SayYes()
    view = TextView(await engine.card(run.agent, run.version))
    return await Watch(engine, run.id, view, asker=asker, leave_waiting=True, owns=True).follow()


async def _what_remains(engine: Engine) -> None:
    from ..store.base import RunFilter
    from . import tables

    say("4  the log", "Everything that happened is on disk: after a crash, a run goes on from there.")
    command("runs show last")
    (last,) = await engine.runs(RunFilter(limit=1))
    run = await engine.run(last.id)
    tables.run(run, [event async for event in engine.events(run.id, follow=False)], json=False)


def _farewell(files: dict[str, Path], store: Path | None) -> None:
    import os

    where = Path(os.path.relpath(files["echo"].parent))
    if len(str(where)) > len(str(files["echo"].parent)):
        where = files["echo"].parent
    say("Now you", "Read the three files: each takes a minute. Then try:")
    option = f" --store {store}" if store is not None else ""
    command(f"run {where / 'mailcomposer.py'} --thread lunch 'To: ada@example.org. Subject: Lunch.'{option}")
    command(f"run {where / 'counter.py'} '{{\"to\": 20}}'{option}    (and press Ctrl-C)")
    command(f"runs list{option}")

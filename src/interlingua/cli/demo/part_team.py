"""The part of the demo that is about a team: manifests, tools, a question, a review, and the audit of it all."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .door_tour import Doors
from .tour import command, path, program, prompt, say, show

if TYPE_CHECKING:
    from ...engine.engine import Engine
    from ...model.run import Question

_TASK = "Analyze last quarter's sales trends"
_PACKAGE = "mcp"  # reaches the tools of a team
_ANSWER = "Regional breakdowns, please."


def team_folder(project: Path) -> Path | None:
    """Puts the team of the demo into the demo's project. Returns None if the package that reaches its tools is not
    installed."""
    if find_spec(_PACKAGE) is None:
        return None
    from .processes import team_project

    return team_project(project, "sales-team")


async def with_team(doors: Doors, folder: Path | None, store: Path) -> int:
    if folder is None:
        say("5  a team", "The team is left out: its tools need a package. pip install 'interlingua[teams]'")
        return 0
    from ...terminal.events.conversation import Conversation
    from ...terminal.events.screen import Screen
    from ...terminal.keyboard import Interrupts
    from ...terminal.session import engine_at, interactive
    from ..commands.team.run import follow

    say(
        "5  a team",
        "Three agents with manifests: one plans, one analyses, one verifies. Their tools are real MCP servers, who may "
        "do what is checked by the engine, and nobody sees the analysis before it is approved.",
    )
    door = doors.first(lambda demo: demo.delegate)
    delegate = door.demo.delegate
    assert delegate is not None
    async with engine_at(store) as engine, Interrupts() as interrupts:
        run = await delegate(door, "sales-team", _TASK)
        screen = Screen(Conversation(run))
        ask = interactive()
        asker = None if ask else Says(screen)
        code, _ = await follow(engine, run, screen, interrupts=interrupts, ask=ask, asker=asker)
        if not code:
            await _audited(engine, run, screen.conversation.label, store)
    return code


class Says:
    """Answers in place of a person at the terminal."""

    def __init__(self, screen: Any) -> None:
        self._screen = screen

    async def ask(self, question: Question) -> Any:
        self._screen.aside(f"(there is no terminal to ask, so the tour answers: {_ANSWER})")
        return {"text": _ANSWER}


async def _audited(engine: Engine, run: str, label: str, store: Path) -> None:
    from ...engine.ids import now
    from ...model.audit.verify import verify
    from ...security.signing_key import SigningKey, genuine
    from ...server.audit import export

    say("", "Who did what for whom is on record, every event chained to the one before. An export of it proves itself:")
    exported = f"audit export {label} --store {path(store)} --output -"
    command(exported, "audit verify -")
    with tempfile.TemporaryDirectory(prefix="interlingua-demo-") as folder:
        key = SigningKey.load_or_create(Path(folder) / "audit.key")
        lines = [line async for line in export(engine, run, key, now=now(), task=label)]
    report = verify(lines, genuine, lambda public: public == key.public)
    show(
        f"{report.events} events of {report.runs} runs: "
        + ("nothing was changed" if report.ok else report.problems[0].message)
    )
    say("", "With Europe's numbers turned into Africa's:")
    prompt(f"{program()} {exported} | sed s/Europe/Africa/g | {program()} audit verify -")
    forged = [line.replace(b"Europe", b"Africa") for line in lines]
    report_of_forged = verify(forged, genuine, lambda public: public == key.public)
    show(report_of_forged.problems[0].message if report_of_forged.problems else "nobody would notice")

"""`interlingua team run`: follows the whole tree of a team's task, sealed runs included, and lets its owner step in."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.text import Text

from ....model.errors import Conflict, InterlinguaError, NotFound, RunNotFound
from ....model.events import ChildCalled, DelegationRefused, Event, RunFinished
from ....model.run import Question, RunRequest
from ....model.team.task_ids import is_task
from ....terminal.console import as_json, clean, note
from ....terminal.errors import CommandError, ExitCode
from ....terminal.events.conversation import Conversation, Line
from ....terminal.events.screen import Screen
from ....terminal.follow_run import Watch
from ....terminal.keyboard import Interrupts
from .input import Command, Tell, Typed

if TYPE_CHECKING:
    from ....engine.agents.agent import Agent
    from ....engine.engine import Engine
    from ....terminal.ask import Asker
    from ....terminal.crash import CrashSite


class Tree:
    """Shows the events of a run and of all runs below it, each once. To `Watch` it is the view of the first."""

    def __init__(self, engine: Engine, root: str, screen: Screen) -> None:
        self._engine = engine
        self._root = root
        self._screen = screen
        self._seen = {root: 0}  # the last event that was shown, run by run
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self.finished: Event | None = None  # the event that ended the whole task
        self.left: tuple[list[Question], str] | None = None  # the questions left open, if they cannot be asked here

    def event(self, event: Event) -> None:
        if event.seq <= self._seen.get(event.run, 0):
            return
        self._seen[event.run] = event.seq
        self._screen.event(event)
        match event.body:
            case ChildCalled(run=run):
                self._seen.setdefault(run, 0)
                if run not in self._jobs:
                    self._jobs[run] = asyncio.create_task(self._follow(run))
            case DelegationRefused(run=str(run)) if run in self._jobs:
                self._jobs[run].cancel()
            case RunFinished() if event.run == self._root:
                self.finished = event

    async def _follow(self, run: str) -> None:
        while True:
            hint = self._engine.runs.next_hint(run)
            try:
                await self._read(run)
                return
            except RunNotFound:  # it was called for, and is not there yet
                await hint
            finally:
                hint.cancel()

    async def _read(self, run: str) -> None:
        events = self._engine.runs.events(run, after=self._seen[run], sealed=True)
        async with contextlib.aclosing(events) as following:  # type: ignore[type-var]
            async for event in following:
                self.event(event)

    async def catch_up(self) -> None:
        """Shows the events on the logs so far, of all runs together, in the order of time."""
        found: list[tuple[int, int, Event]] = []
        runs = list(self._seen)
        for run in runs:  # it grows on the way
            last = 0
            with contextlib.suppress(RunNotFound):
                async for event in self._engine.runs.events(
                    run, after=self._seen.get(run, 0), follow=False, sealed=True
                ):
                    last = max(last, event.time)  # clocks are set back, logs are not
                    found.append((last, event.seq, event))
                    if isinstance(event.body, ChildCalled) and event.body.run not in runs:
                        runs.append(event.body.run)
        for _, _, event in sorted(found, key=lambda one: one[:2]):
            self.event(event)

    async def close(self) -> None:
        for job in self._jobs.values():
            job.cancel()
        ended = await asyncio.gather(*self._jobs.values(), return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error

    # -- as the view of a watch ---------------------------------------------------------------------------

    def begin(self, output: Any) -> None:
        pass

    def restarted(self, output: Any) -> None:
        pass

    def make_room(self) -> None:
        pass

    def aside(self, text: str) -> None:
        self._screen.aside(text)

    def waits(self, questions: list[Question], how: str) -> None:
        self.left = questions, how


class Owner:
    """Carries out the commands and messages that the owner of a task types, beside answers."""

    def __init__(self, engine: Engine, root: str, screen: Screen) -> None:
        self._engine = engine
        self._root = root
        self._screen = screen

    async def act(self, meant: Tell | Command) -> None:
        label = self._screen.conversation.label
        try:
            match meant:
                case Command(name="cancel"):
                    await self._engine.runs.cancel(self._root, reason="the user cancelled it")
                case _ if not label:
                    self._screen.aside("the task has not begun yet")
                case Tell(agent=agent, text=text):
                    await self._engine.teams.tell(label, agent, text)
                case Command():
                    self._screen.lines(await self.tree(label))
        except InterlinguaError as error:
            self._screen.aside(error.message)

    async def tree(self, label: str) -> list[Line]:
        """Returns a line for each task of the team, with its agent and its status."""
        lines: list[Line] = []
        for task in await self._engine.teams.tasks(label):
            status = "is gone"
            with contextlib.suppress(NotFound):
                status = (await self._engine.runs.get(task.run, sealed=True)).status.value.replace("_", " ")
            does = f"{'reviews: ' if task.review else ''}{status}"
            told = Text.assemble((f"{clean(task.label)} ", "dim"), (clean(task.agent), "bold"), f"  {does}")
            lines.append(Line(task.label.count("."), told))
        return lines


async def follow(
    engine: Engine, root: str, screen: Screen, *, interrupts: Interrupts, ask: bool, asker: Asker | None = None
) -> tuple[ExitCode, Tree]:
    """Shows a task from its beginning to its end, or until it waits for an answer that cannot be given here.

    `interrupts`: end the task; `ask`: the person at the terminal answers; `asker`: answers in that person's place.
    """
    tree = Tree(engine, root, screen)
    typed = Typed(screen, Owner(engine, root, screen).act, tree.catch_up) if ask else None
    typing = asyncio.create_task(typed.run()) if typed is not None else None
    try:
        await tree.catch_up()  # past events of a resumed task come in the order of time
        watch = Watch(engine, root, tree, asker=typed or asker, leave_waiting=True, owned=interrupts)
        code = await watch.follow()
        screen.prompt("")
        await tree.catch_up()
    finally:
        if typing is not None:
            typing.cancel()
            await asyncio.wait([typing])
        await tree.close()
    if typing is not None and not typing.cancelled():
        typing.result()
    return code, tree


async def run(
    out: TextIO, place: Path, task: str | None, *, model: str | None, store: Path | None, events: bool, json: bool,
    resume: str | None, no_input: bool,
) -> int:  # fmt: skip
    from ....protocols.targets import Target
    from ....server.loading.team import load_team
    from ....terminal.crash import CrashSite
    from ....terminal.input_args import input_of
    from ....terminal.session import engine_at, interactive

    agent = await load_team(place, model=model)
    ask = interactive() and not no_input
    if resume is not None and task is not None:
        raise CommandError("--resume takes up a task as it was given; TASK cannot change it")
    # Everything is checked before the store is opened: bad input changes nothing.
    value = await input_of(agent.card, task, ask=ask) if resume is None else None
    async with (
        engine_at(store, [agent], targets=[Target("team", str(place))], create=resume is None) as engine,
        Interrupts(engine) as interrupts,
    ):
        with CrashSite() as site:
            if resume is not None:
                root = await _resumed(engine, agent, resume)
            else:
                root = (await engine.runs.submit(RunRequest(agent.card.name, agent.card.version, value))).id
            screen = Screen(Conversation(root), out if events else None)
            if ask:
                note("@AGENT TEXT sends a message to an agent, /help tells what else can be typed")
            try:
                code, tree = await follow(engine, root, screen, interrupts=interrupts, ask=ask)
                await _finish(engine, root, agent, screen, tree, code, out, events, json, site)
            except BrokenPipeError:  # the reader of the output has gone
                await _give_up(engine, root)
                raise
            _remarks(screen, tree, code, place, store, model)
            return code


async def _resumed(engine: Engine, agent: Agent[..., Any], name: str) -> str:
    from ....terminal.short_ids import find_run

    found = await engine.runs.get(
        (await engine.teams.task(name)).root if is_task(name) else await find_run(engine, name)
    )
    if found.root is not None and found.root != found.id:
        found = await engine.runs.get(found.root)
    if found.agent != agent.card.name:
        raise CommandError(f"{name} is a task of {found.agent}, and not of the team {agent.card.name}")
    return found.id


async def _finish(
    engine: Engine, root: str, agent: Agent[..., Any], screen: Screen, tree: Tree, code: ExitCode, out: TextIO,
    events: bool, json: bool, site: CrashSite,
) -> None:  # fmt: skip
    from ....terminal.events.views import TextView

    if tree.left is not None:
        screen.waits(*tree.left)
    if json:
        out.write(as_json(await _summary(engine, root, screen.conversation.label)) + "\n")
        out.flush()
    elif tree.finished is not None and not events:
        TextView(agent.card, out, crash_site=site).event(tree.finished)


async def _summary(engine: Engine, root: str, label: str) -> dict[str, Any]:
    """Returns the output of `--json`: the end of the task, and everything that was said in it."""
    from ....terminal.events.as_json import event_json, plain

    told = plain(await engine.runs.get(root))
    said = [event_json(event) for event, _ in await engine.teams.conversation(root)]
    kept = {name: value for name, value in told.items() if name in ("status", "output", "error", "questions")}
    return {"task": label, "run": root, **kept, "conversation": said}


def _remarks(
    screen: Screen, tree: Tree, code: ExitCode, place: Path, store: Path | None, model: str | None
) -> None:  # fmt: skip
    label, at = screen.conversation.label, f" --store {shlex.quote(str(store))}" if store is not None else ""
    if not label:
        return
    ended = tree.finished.body if tree.finished is not None else None
    status = ended.status.value.replace("_", " ") if isinstance(ended, RunFinished) else "waits"
    note(f"task {label} {status}")
    if code is ExitCode.WAITING:
        thinks = f" --model {shlex.quote(model)}" if model is not None else ""
        resume = f"interlingua team run {shlex.quote(str(place))} --resume {label}{thinks}{at}"
        note(f"then take it up again with: {resume}")
    note(f"interlingua audit export {label}{at}")


async def _give_up(engine: Engine, root: str) -> None:
    with contextlib.suppress(Conflict, NotFound):
        await engine.runs.cancel(root, reason="the reader of the output left")
    with contextlib.suppress(TimeoutError):
        await engine.runs.wait(root, timeout=10)

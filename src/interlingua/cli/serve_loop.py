"""Holds what `serve` and `worker` share: reading their settings, loading their agents, and waiting for their end. Each
opens its own server or worker for that time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Sequence

    from ..engine.agents.agent import Agent
    from ..server.config.load import Config
    from ..server.logs import LogFormat
    from ..server.mounts.entry import MountEntry
    from ..server.paths import Place
    from ..server.project import Project
    from ..server.reload import Reloader
    from ..server.worker_process import Workplace

    Open = Callable[
        [Config, Path | str, Project, list[Agent[..., Any]], list[MountEntry]],
        Awaitable[AbstractAsyncContextManager[Any]],
    ]
    Show = Callable[[Any, LogFormat], None]

_FEW = 8  # agents that are named


def stay(config: Path | None, targets: list[str], flags: dict[str, Any], verb: str, open_: Open, show: Show) -> None:
    """Reads the settings, opens the server or worker, shows it, and leaves when a signal asks for it. `verb`: the
    command's name."""
    from ..server.config.load import read
    from ..server.event_loop import new_event_loop
    from ..server.logs import LogFormat, logging_as
    from ..terminal.session import go

    place, file, flags = where(config, targets, flags, verb)

    def again() -> Config:
        return read(file, flags, store_from=place.file)

    settings = again()
    settings.check()
    form = LogFormat(settings["server.log"])
    with logging_as(form):
        go(_stay(settings, place.project, form, again, open_, show), new_event_loop)


def where(
    config: Path | None, targets: list[str], flags: dict[str, Any], verb: str
) -> tuple[Place, Path | None, dict[str, Any]]:
    """The place of the command, the config file that it reads as a whole, if any, and the flags with every target
    among those that it belongs to."""
    import os

    from ..protocols.targets import parse
    from ..server.config.settings import ENTRIES
    from ..server.paths import Place
    from ..server.project import CONFIG
    from ..terminal.errors import CommandError

    parsed = [parse(text) for text in targets]
    place = Place(targets=parsed, config=config)
    named: dict[str, list[str]] = {"agents": [], "teams": [], "mounts": []}
    for text, target in zip(targets, parsed, strict=True):
        kind = {"file": "agents", "team": "teams"}.get(target.kind, "mounts")
        named[kind].append(target.rest if target.kind == "team" else text)
    wanted = {name: [*texts, *(flags.get(name) or [])] for name, texts in named.items()}
    file = place.named_file if any(wanted.values()) else place.file
    variables = [os.environ.get(one.variable) for one in ENTRIES if one.path in named]
    # A server may have doors alone: for what the workers of its store have.
    doors = verb == "serve" and (flags.get("store_path") is not None or flags.get("server_elsewhere"))
    if file is None and not any(wanted.values()) and not any(variables) and not doors:
        raise CommandError(
            f"there is nothing to {'run' if verb == 'worker' else 'serve'}: no target, and no interlingua.toml here",
            hint=f"interlingua {verb} agents.py, or interlingua config init, which writes {CONFIG}",
        )
    return place, file, {**flags, **wanted}


async def _stay(
    config: Config, project: Project, form: LogFormat, again: Callable[[], Config], open_: Open, show: Show
) -> int:
    import asyncio

    from ..server.config import build
    from ..server.loading import sources
    from ..server.logs import LogFormat
    from ..server.reload import Reloader
    from ..terminal.signals import Signals

    stop, reload, is_up = asyncio.Event(), asyncio.Event(), False
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def end() -> None:
        stop.set()
        if not is_up:
            task.cancel()

    with Signals(end, hangup=_hangup(reload)) as signals:
        try:
            mounts = build.mounts(config)
            own = await sources.load_all(config, project.root)
            agents = [agent for source in own for agent in source.agents]
            project = project.renamed(config["project"])
            store = config["store.path"] or project.store
            async with await open_(config, store, project, agents, mounts) as place:
                signals.engine = place.engine
                is_up = True
                reloader = Reloader(place, config, own, again)
                reloading = [loop.create_task(_reload(reloader, reload))]
                show(place, form)
                if form is not LogFormat.JSON:  # a reader of JSON lines wants nothing else
                    say("Ctrl-C stops.")
                if config["server.reload"]:
                    reloading.append(loop.create_task(reloader.watch()))
                await stop.wait()
                if form is not LogFormat.JSON:
                    _say_last("Stopping: what runs is finished, or handed on. Ctrl-C again leaves at once.")
                for work in reloading:
                    work.cancel()
                await asyncio.gather(*reloading, return_exceptions=True)
        except asyncio.CancelledError:
            if is_up or signals.number is None:
                raise
            return 128 + signals.number  # before it was up
    if form is not LogFormat.JSON:
        _say_last("Stopped. Goodbye.")
    return 0


def _say_last(text: str) -> None:
    import contextlib

    with contextlib.suppress(OSError):  # the terminal may be gone
        say(text)


def _hangup(reload: asyncio.Event) -> Callable[[], bool]:
    """Handles SIGHUP: it reloads, but if the terminal is gone, it ends the process like Ctrl-C. (Not if the process was
    started with `nohup`.)"""
    import asyncio

    from ..terminal.signals import Signals

    loop = asyncio.get_running_loop()
    at_terminal = _has_terminal() and not Signals.outlives_terminal()

    def hung_up() -> bool:
        if at_terminal and not _has_terminal():
            return True
        loop.call_soon_threadsafe(reload.set)
        return False

    return hung_up


async def _reload(reloader: Reloader, wanted: asyncio.Event) -> None:
    while True:
        await wanted.wait()
        wanted.clear()
        await reloader.reload()


def _has_terminal() -> bool:
    import os

    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def show_mounts(place: Workplace) -> None:
    if not len(place.mounts):
        return
    rows = [
        (
            view.mount,
            f"{view.state}: {view.reason}" if view.reason else view.state,
            ", ".join(view.agents) or "none yet",
        )
        for view in place.mounts.views()
    ]
    say_rows(("mount", "state", "agents"), rows)


def say_rows(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Shows a table whose cells are never cut, however narrow the terminal is: people copy addresses from it."""
    from ..terminal.console import clean

    cells = [names, *(tuple(map(clean, row)) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(names))]
    for row in cells:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def named(place: Workplace) -> str:
    """The agents, or the first of many."""
    names = [f"{agent.card.name} {agent.card.version}" for agent in place.engine.agents]
    return ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")


def say(text: str) -> None:
    from ..terminal.console import error_console

    error_console().print(text, soft_wrap=True, markup=False)

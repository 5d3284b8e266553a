"""`interlingua worker`: a process that runs agents and has no doors."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..flags import given
from ..options import examples
from ..serve_loop import ConfigFile, named, say, show_mounts, stay

if TYPE_CHECKING:
    from pathlib import Path

    from ...engine.agents.agent import Agent
    from ...server.config.load import Config
    from ...server.logs import LogFormat
    from ...server.mounts.entry import MountEntry
    from ...server.project import Project
    from ...server.worker_process import Workplace

EPILOG = (
    examples(
        "interlingua worker agents.py --store postgresql://user@host/agents --bus nats://host:4222",
        "interlingua worker --config interlingua.toml --limits-max-running 50",
        "interlingua worker team:sales --log json",
    )
    + "\n\nEvery option is also a key of `interlingua.toml` and a variable, the same ones as for `interlingua serve`; "
    "what is said there of doors and callers has no meaning here."
)


def worker(
    ctx: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            help="What to run: files with agents in them, `team:DIR`, or mounts. Without any, what the config file "
            "says.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
) -> None:  # fmt: skip
    """Run agents for the servers that share this store, and open no door.

    It takes runs that are due, of the agents that it has, up to `--limits-max-running` at once. With `--metrics 9000`
    it tells on that port how it is doing. SIGHUP reloads agents, teams and mounts. Ctrl-C or SIGTERM stops: running
    agents are finished, or handed back to the others.
    """
    stay(config, targets or [], given(ctx), "worker", _open, _show)


async def _open(
    config: Config, store: Path | str, project: Project, agents: list[Agent[..., Any]], mounts: list[MountEntry]
) -> AbstractAsyncContextManager[Workplace]:
    from ...server.config import build
    from ...server.worker_process import working

    settings = build.work_settings(config)
    config.check()
    return working(store, agents, settings, mounts, project=project.claim(store), root=project.root)


def _show(place: Workplace, form: LogFormat) -> None:
    import logging
    import os

    from ...server.logs import LogFormat
    from ...server.paths import nearby

    engine = place.engine
    if form is LogFormat.JSON:
        fields = {
            "worker": engine.cluster.worker_id,
            "pid": os.getpid(),
            "store": place.store,
            "bus": place.bus or None,
            "metrics": place.metrics,
            "agents": [agent.card.key for agent in engine.agents],
        }
        logging.getLogger("interlingua").info("working on %s", place.store, extra={"fields": fields})
        return
    say(f"Working on {nearby(place.store)}" + (f", told by {place.bus}" if place.bus else ""))
    say(f"worker {engine.cluster.worker_id}, pid {os.getpid()}, at most {engine.settings.max_running} runs at once")
    say(f"agents: {named(place) or 'none yet'}")
    if place.metrics:
        say(f"metrics at {place.metrics}")
    show_mounts(place)

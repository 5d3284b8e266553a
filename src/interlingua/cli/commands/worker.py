"""`interlingua worker`: a process that runs agents and has no doors."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..flags import given
from ..options import ConfigFile, examples
from ..serve_loop import named, say, show_mounts, stay

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
            metavar="TARGET",
            help="Files with agents, `team:DIR`, or mounts. By default those of the config file.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
) -> None:  # fmt: skip
    """Run agents for the servers on this store.

    A worker opens no door. It claims due runs of its agents, at most `--limits-max-running` at once. With
    `--metrics 9000` it serves metrics at that port. SIGHUP reloads agents, teams and mounts. Ctrl-C or SIGTERM stops
    the worker: running agents finish, or their runs go back to the other processes.
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

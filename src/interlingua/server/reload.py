"""Reloads agents, teams and mounts from their files, while everything that runs goes on.

A run stays with the code that it began with; a run whose handler starts again (after a long wait, or a crash) has the
new code. If something does not load, its earlier version stays. Everything else in a config file needs a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..engine.agents.agent import Agent
from ..model.errors import DefinitionError, InterlinguaError
from .config import build
from .config.load import Config
from .config.settings import all_settings
from .loading.file import forget_modules
from .loading.sources import Source, Stamp, origins, said, stamp_of
from .logs import KEEPS_LINES
from .worker_process import Workplace

log = logging.getLogger("interlingua.reload")

POLL = 0.5  # seconds


class Reloader:
    """Keeps the agents, teams and mounts of a process as its settings say. `read` reads those anew."""

    def __init__(self, place: Workplace, config: Config, sources: list[Source], read: Callable[[], Config]) -> None:
        self._place = place
        self._started = config
        self._sources = sources
        self._read = read
        self._lock = asyncio.Lock()
        self._seen = self._config_stamp()

    async def reload(self, *, look: bool = True) -> list[str]:
        """Returns what is wrong. `look`: also at mounts about which nothing has changed."""
        async with self._lock:
            self._seen = self._config_stamp()
            problems = await self._reload(look)
        for problem in problems:
            log.error("%s", problem, extra={KEEPS_LINES: True})  # a traceback of a file is in it
        return problems

    async def _reload(self, look: bool) -> list[str]:
        try:
            config = self._read()
            entries = build.mounts(config)
            wanted = origins(config)
            config.check()
        except InterlinguaError as error:
            return [f"nothing was reloaded: {error.message}"]
        self._tell_unchangeable(config)
        known = {source.origin.same: source for source in self._sources}
        gone = [source for same, source in known.items() if same not in {one.same for one in wanted}]
        problems: list[str] = []
        root = self._place.engine.agents.root
        self._sources = [known.get(origin.same) or Source(origin, root) for origin in wanted]
        changed = [
            source
            for source in self._sources
            if source.origin.same not in known or source.changed or source.problem  # another one may have been mended
        ]
        forget_modules({name: at for source in changed for name, at in source.stale_modules.items()})
        fresh: list[tuple[Source, list[Agent[..., Any]]]] = []
        for source in changed:
            with contextlib.suppress(InterlinguaError):  # it is kept as the problem of the source
                fresh.append((source, await source.load()))
        self._put_in_place(gone, fresh)
        for source in self._sources:
            if source.problem:
                problems.append(source.problem + ("; what was loaded before stays" if source.agents else ""))
        added, removed = await self._place.mounts.change(entries, wait=0)
        if look:
            self._place.mounts.look()
        new = {source.origin.same for source in self._sources} - known.keys()
        self._say(fresh, new, gone, added, removed, problems)
        return problems

    def _put_in_place(self, gone: list[Source], fresh: list[tuple[Source, list[Agent[..., Any]]]]) -> None:
        """Exchanges all agents in one step, so that an agent can move from one file to another. If that fails,
        exchanges them source by source, so that the ones that fit are there."""
        engine = self._place.engine
        if fresh:
            engine.renew_processes()
        leaving = [agent for source in gone for agent in source.agents]
        try:
            old = [agent for source, _ in fresh for agent in source.agents]
            if leaving or fresh:
                engine.teams.exchange([*leaving, *old], [agent for _, agents in fresh for agent in agents])
            for source, agents in fresh:
                source.agents = agents
        except DefinitionError:
            engine.teams.exchange(leaving, [])
            for source, agents in fresh:
                try:
                    engine.teams.exchange(source.agents, agents)
                    source.agents = agents
                except DefinitionError as error:
                    source.problem = said(source.origin, error)

    def _tell_unchangeable(self, config: Config) -> None:
        before, changed = self._started, []
        for setting in all_settings():
            if before[setting.path] != config[setting.path]:
                was, now = before.values[setting.path].shown(setting), config.values[setting.path].shown(setting)
                changed.append(f"{setting.path} ({was} → {now})" if not setting.secret else setting.path)
        told = [[{name: one.value for name, one in e.values.items()} for e in c.entries["auth.issuers"]]
                for c in (before, config)]  # fmt: skip
        if told[0] != told[1]:
            changed.append("auth.issuers")
        if changed:
            log.warning("needs a restart: %s", ", ".join(changed))

    def _say(
        self, fresh: list[tuple[Source, list[Agent[..., Any]]]], new: set[Any], gone: list[Source], added: list[str],
        removed: list[str], problems: list[str],
    ) -> None:  # fmt: skip
        for source, agents in fresh:
            if source.agents is agents:
                what = "served" if source.origin.same in new else "reloaded"
                log.info("%s is %s: %s", source.origin.path, what, ", ".join(agent.card.key for agent in agents))
        for source in gone:
            log.info("%s is served no more", source.origin.path)
        for text, names in (("new mount: %s", added), ("no longer mounted: %s", removed)):
            for name in names:
                log.info(text, name)
        if not (fresh or gone or added or removed or problems):
            log.info("reloaded: nothing has changed")

    # -- watching -----------------------------------------------------------------------------------------

    def _config_stamp(self) -> Stamp:
        file = self._started.file
        return stamp_of([Path(file)]) if file is not None else {}

    async def watch(self, every: float = POLL) -> None:
        """Reloads whenever a file of the config, an agent or a team has changed, for ever."""
        while True:
            await asyncio.sleep(every)
            if self._config_stamp() != self._seen or any(source.changed for source in self._sources):
                await self.reload(look=False)

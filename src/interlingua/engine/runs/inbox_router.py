"""The router of news for runs: to the execution, to the entry of a run that is about to execute, or to the owner."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Protocol

from ...store.changes import PutInbox
from ...store.ports import Store
from ...store.rows import InboxItem
from ..execution.entry import Entry
from .cluster_port import ANYBODY, ClusterPort

log = logging.getLogger("interlingua.engine")


class Receiver(Protocol):
    """An execution that takes news."""

    @property
    def over(self) -> bool: ...

    def take(self, item: InboxItem) -> bool:
        """Takes an item. Returns False if the inbox must be read from the store."""

    def pull_soon(self) -> object: ...

    async def pull_inbox(self) -> None: ...


class InboxRouter:
    def __init__(self, worker: str, store: Store, cluster: ClusterPort, executions: Mapping[str, Receiver]) -> None:
        self.coming: dict[str, Entry] = {}  # runs that are being written or claimed by this process
        self._worker = worker
        self._store = store
        self._cluster = cluster
        self._executions = executions
        self._claims = 0  # under way
        self._news_during_claim: set[str] = set()  # of runs that are not here: one of them may be claimed now
        self._store_changed = asyncio.Event()

    def notify_run(self, run: str, news: PutInbox | None = None, owner: str | None = ANYBODY) -> None:
        """Notifies whoever has a run of a new item in its inbox. `news`: the item, if known, which saves a read.
        `owner`: the worker that owns the run, or None if no worker does."""
        execution = self._execution(run)
        if execution is not None:
            item = InboxItem(news.id, run, news.kind, news.body) if news is not None and news.id else None
            if item is None or not execution.take(item):
                execution.pull_soon()
        elif not self._note(run):
            self._cluster.tell_owner(run, owner)

    def notify_from_bus(self, run: str) -> bool:
        """As `notify_run`, for news from another process. Returns False if the run is neither here nor being entered:
        it may have been handed back or suspended a moment ago."""
        execution = self._execution(run)
        if execution is None:
            return self._note(run)
        execution.pull_soon()
        return True

    def store_changed(self) -> None:
        """Schedules a read of the inboxes of all local runs, because another process may have written to the store."""
        self._store_changed.set()

    async def follow_store(self) -> None:
        while True:
            await self._store_changed.wait()
            self._store_changed.clear()
            try:
                for run in await self._store.claims.owned_with_news(self._worker):
                    execution = self._execution(run)
                    if execution is None:
                        self._note(run)
                    else:
                        await execution.pull_inbox()
            except Exception as error:
                log.error("could not read inboxes: %s", error)

    @contextlib.contextmanager
    def claiming(self) -> Iterator[list[Entry]]:
        """Collects news while runs are being claimed. The caller adds the entries of claimed runs to the list."""
        entries: list[Entry] = []
        self._claims += 1
        try:
            yield entries
        finally:
            for entry in entries:
                if entry.row.id in self._news_during_claim:
                    entry.inbox_empty = False
                self.coming[entry.row.id] = entry
            self._claims -= 1
            if not self._claims:
                self._news_during_claim.clear()

    @property
    def lets_in(self) -> bool:
        """True while runs that this worker has claimed are not entered yet."""
        return any(entry.claimed for entry in self.coming.values())

    def _execution(self, run: str) -> Receiver | None:
        execution = self._executions.get(run)
        return execution if execution is not None and not execution.over else None

    def _note(self, run: str) -> bool:
        """Notes news of a run without an execution here. Returns True if the run is being entered."""
        entry = self.coming.get(run)
        if entry is not None:
            entry.inbox_empty = False
        elif self._claims:
            self._news_during_claim.add(run)
        return entry is not None

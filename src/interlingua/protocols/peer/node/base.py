"""The part of a node on which its other parts stand: engine, settings, records, and work beside."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ....engine.engine import Engine
from ....model.documents import Change, WriteResult
from ..config import NodeSettings
from ..wire import frames
from ..wire.signatures import Trust
from .node_store import Journal
from .offered_files import OfferedFiles

if TYPE_CHECKING:
    from .peers import Peer, Peers

log = logging.getLogger("interlingua.peer")


class NodeBase(ABC):
    peers: Peers

    def __init__(self, engine: Engine, settings: NodeSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.name = settings.name
        self.running = False
        self.session_id = frames.new_id("sess")
        self.trust = Trust(settings.secret, None, settings.hmac_window, settings.strict)
        self.journal = Journal(engine.documents, f"peer:{self.name}")
        self.files = OfferedFiles(engine, self.journal, settings.public_url)
        self.read = asyncio.Event()  # messages were read
        self.told_last: asyncio.Future[WriteResult] | None = None  # the newest write that is not awaited
        self._tasks: set[asyncio.Task[Any]] = set()
        self._news: set[asyncio.Future[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a job that ends with the node. Its failure is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self.running:
            log.error("something went wrong beside: %s", error, exc_info=error)

    def keep_beside(self, changes: list[Change]) -> None:
        """Queues changes to be kept, without waiting for them."""
        self.told_last = self.journal.keep(changes)
        self.told_last.add_done_callback(_looked_at)

    def told_of_peer(self, peer: Peer, event: str, **more: Any) -> None:
        body = {"event": event, "peer_id": peer.id, "name": peer.name, "session_id": self.session_id, **more}
        if self.running:
            self.keep_beside([self.journal.event("peer", body)])

    @abstractmethod
    async def undeliverable(self, peer: Peer, frame: dict[str, Any], code: str, why: str) -> None:
        """Something for a peer can never be sent to it."""

    def woke(self) -> None:
        """Wakes the readers, because there may be something to receive."""
        waiting, self._news = self._news, set()
        for one in waiting:
            if not one.done():
                one.set_result(None)

    def news(self) -> asyncio.Future[None]:
        """Returns a future that is done when there may be something to receive."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._news.add(future)
        future.add_done_callback(lambda done: self._news.discard(done))
        return future


def _looked_at(kept: asyncio.Future[Any]) -> None:
    """Logs the failure of a job whose result is not awaited."""
    if not kept.cancelled() and (error := kept.exception()) is not None:
        log.error("something could not be kept: %s", error)

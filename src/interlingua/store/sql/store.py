"""A store in SQL: the ten ports over one database."""

from __future__ import annotations

from collections.abc import Callable

from .callbacks import SqlCallbacks
from .cards import SqlCards
from .claims import Liveness, SqlClaims
from .database import Database
from .delegations import SqlDelegations
from .documents import SqlDocuments
from .instances import SqlInstances
from .keys import SqlKeys
from .questions import SqlQuestions
from .runs import SqlRuns
from .threads import SqlThreads


class SqlStore:
    """Owns the ports, and the database that they share. A subclass for each kind of database opens it."""

    def __init__(self, database: Database, liveness: Liveness, shown: str) -> None:
        self.database = database
        self.clock = database.clock
        self.documents = SqlDocuments(database)
        self.runs = SqlRuns(database, self.documents.waiting)
        self.claims = SqlClaims(database, liveness)
        self.threads = SqlThreads(database)
        self.questions = SqlQuestions(database)
        self.delegations = SqlDelegations(database)
        self.callbacks = SqlCallbacks(database)
        self.cards = SqlCards(database)
        self.instances = SqlInstances(database)
        self.keys = SqlKeys(database)
        self.on_change: Callable[[], None] = lambda: None
        self.shown = shown
        self.waits_for_server = False

    async def open(self, *, read_only: bool = False) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def trouble(self) -> str | None:
        return None

    @property
    def batches(self) -> int:
        """The number of transactions that this process committed."""
        return self.database.writer.batches

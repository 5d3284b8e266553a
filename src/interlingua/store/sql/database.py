"""The database of a store: reads in threads, and the one writer. The ports are written over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import msgspec

from ...model.errors import Conflict, InvalidRequest, StoreError
from ...runtime.clock import Clock
from ..changes import Appender
from .dialect import Call, Connection, Dialect, LockList

T = TypeVar("T")


class WriteQueue(Protocol):
    """Queues writes. All that are queued together share a transaction."""

    batches: int  # committed so far

    def append(self, log: Appender) -> None: ...

    def call(
        self, fn: Call, then: Callable[[Any], None] | None = None, locks: LockList = (), *,
        passes_by: Callable[[], bool] | None = None,
    ) -> asyncio.Future[Any]: ...  # fmt: skip

    def submit(
        self, fn: Call, then: Callable[[Any], None] | None, locks: LockList, sealing: Callable[[], None] | None
    ) -> asyncio.Future[Any]: ...

    def backlog(self) -> int: ...

    async def close(self) -> None: ...


class NoWriter:
    """The write queue of a store that is open for reading: refuses everything."""

    batches = 0

    def append(self, log: Appender) -> None:
        raise self._refusal()

    def call(
        self, fn: Call, then: Callable[[Any], None] | None = None, locks: LockList = (), *,
        passes_by: Callable[[], bool] | None = None,
    ) -> asyncio.Future[Any]:  # fmt: skip
        raise self._refusal()

    def submit(
        self, fn: Call, then: Callable[[Any], None] | None, locks: LockList, sealing: Callable[[], None] | None
    ) -> asyncio.Future[Any]:
        raise self._refusal()

    def backlog(self) -> int:
        return 0

    async def close(self) -> None:
        """Closes nothing."""

    def _refusal(self) -> Conflict:
        return Conflict("the store is open for reading, and takes no changes")


class Database:
    """Gives the ports connections to read on, and the writer. A subclass for each kind of database opens them."""

    writer: WriteQueue

    def __init__(self, dialect: Dialect, clock: Clock) -> None:
        self.dialect = dialect
        self.clock = clock

    # -- life ---------------------------------------------------------------------------------------------

    def start_threads(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.readers = ThreadPoolExecutor(4, thread_name_prefix="interlingua-reader")
        self._searchers = ThreadPoolExecutor(2, "interlingua-search", initializer=self.begin_searches)

    async def stop_threads(self) -> None:
        """Waits for reads that are under way. The event loop goes on: a read may need it to end."""
        for threads in (self.readers, self._searchers):
            await asyncio.to_thread(threads.shutdown)

    def begin_searches(self) -> None:
        """Prepares a thread that only searches, before its first search."""

    def with_connection(self, fn: Callable[[Connection], T]) -> T:
        """Calls it in a thread that reads, with that thread's own connection."""
        raise NotImplementedError

    # -- reading ------------------------------------------------------------------------------------------

    async def read(self, fn: Callable[[Connection], T]) -> T:
        return await self._read_on(self.readers, fn)

    async def read_row(self, fn: Callable[[Connection], T | None]) -> T | None:
        """Reads one small row that is found by its key."""
        return await self.read(fn)

    async def search(self, fn: Callable[[Connection], T]) -> T:
        """Reads with a statement that may look at every row: searches wait for each other, and other reads do not."""
        return await self._read_on(self._searchers, fn)

    def look(self, fn: Callable[[Connection], T]) -> T | None:
        """Reads one small row at once, on the event loop. Returns None if the database makes it wait."""
        return None

    async def _read_on(self, threads: ThreadPoolExecutor, fn: Callable[[Connection], T]) -> T:
        try:
            return await self.loop.run_in_executor(threads, self.with_connection, fn)
        except UnicodeEncodeError:
            raise InvalidRequest("an id with half a character in it; ids are plain text") from None
        except (self.dialect.error, msgspec.DecodeError) as error:
            if (why := self.dialect.refusal(error)) is not None:
                raise InvalidRequest(why) from error
            raise StoreError("the store could not be read", why=error) from error

    # -- writing ------------------------------------------------------------------------------------------

    def write(self, fn: Call, locks: LockList = (), passes_by: Callable[[], bool] | None = None) -> asyncio.Future[Any]:
        """Calls it within the next transaction.

        `locks`: what it is known to touch. They are taken before anything else, those of all who share the transaction
        in one order, so that no two transactions wait for each other. `passes_by` says right before it, in the writer's
        thread, whether it writes nothing but output.
        """
        return self.writer.call(fn, locks=locks, passes_by=passes_by)

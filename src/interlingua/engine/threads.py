"""Threads: state that lasts over runs. The part of the engine's API that is about them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..model import values
from ..model.content import Message
from ..model.errors import InvalidRequest, InvalidState, ThreadNotFound
from ..model.run import OWNER, Caller, Checkpoint, Thread
from ..store.base import Store, ThreadFilter
from .ids import new_id, now


class Threads:
    store: Store

    async def create_thread(
        self,
        thread: str | None = None,
        *,
        metadata: dict[str, Any] | None = None,
        caller: Caller = OWNER,
        if_exists: Literal["raise", "keep"] = "raise",
    ) -> Thread:
        values.check(metadata or {}, InvalidRequest, what="metadata")
        time = now()
        fresh = Thread(thread or new_id(), "idle", time, time, caller.id, metadata=metadata or {})
        return await self.store.create_thread(fresh, if_exists=if_exists)

    async def thread(self, thread: str) -> Thread:
        found = await self.store.thread(thread)
        if found is None:
            raise ThreadNotFound(f"there is no thread {thread}")
        return found

    async def threads(self, where: ThreadFilter) -> list[Thread]:
        """Newest first."""
        return await self.store.threads(where)

    async def patch_thread(
        self,
        thread: str,
        *,
        values_: Any = msgspec.UNSET,
        metadata: dict[str, Any] | None = None,
        messages: list[Message] | None = None,
        checkpoint: str | None = None,
    ) -> Thread:
        """Change a thread from outside. Metadata is merged; so are values, into those of `checkpoint` or the newest."""
        if values_ is not msgspec.UNSET:
            values.check(values_, InvalidState, what="values")
        values.check(metadata or {}, InvalidRequest, what="metadata")
        return await self.store.patch_thread(
            thread,
            checkpoint=new_id(),
            values_=values_,
            metadata=metadata,
            base=checkpoint,
            messages=messages,
            now=now(),
        )

    async def copy_thread(self, thread: str) -> Thread:
        """A thread of its own with the same values, history and messages."""
        return await self.store.copy_thread(thread, new_id(), new_id, now())

    async def delete_thread(self, thread: str) -> None:
        await self.store.delete_thread(thread, now())

    async def history(self, thread: str, *, before: str | None = None, limit: int = 10) -> list[Checkpoint]:
        """Checkpoints, newest first."""
        return await self.store.history(thread, before=before, limit=limit)

    async def messages(self, thread: str, *, upto: int | None = None) -> list[Message]:
        await self.thread(thread)
        return await self.store.messages(thread, upto=upto)

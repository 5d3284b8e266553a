"""Threads: state that lasts over runs."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ...model import json_values
from ...model.card import AgentCard, Schema
from ...model.content import Message
from ...model.errors import Conflict, InvalidRequest, InvalidState, ThreadNotFound
from ...model.filters import RunFilter, ThreadFilter
from ...model.run import OWNER, Caller, Checkpoint, Thread, check_id
from ...model.schemas import Validator
from ...store.ports import Store
from ..agents.agent import Registry
from ..ids import new_id

_LOOK_BACK = (10, 190)  # runs of a thread, newest first: the first page nearly always tells


class ThreadQueries:
    """Finds threads, and checks whose state they hold."""

    def __init__(self, store: Store, agents: Registry) -> None:
        self._store = store
        self._agents = agents

    async def get(self, thread: str) -> Thread:
        row = await self._store.threads.get(thread)
        if row is None:
            raise ThreadNotFound(f"there is no thread {thread}")
        return row

    async def find(self, thread: str) -> Thread | None:
        """Returns a thread; None where there is none."""
        return await self._store.threads.get(thread)

    async def search(self, where: ThreadFilter) -> list[Thread]:
        """Newest first."""
        return await self._store.threads.search(where)

    async def history(self, thread: str, *, before: str | None = None, limit: int = 10) -> list[Checkpoint]:
        """Checkpoints, newest first."""
        return await self._store.threads.history(thread, before=before, limit=limit)

    async def messages(self, thread: str, *, upto: int | None = None) -> list[Message]:
        await self.get(thread)
        return await self._store.threads.messages(thread, upto=upto)

    # -- whose state it is --------------------------------------------------------------------------------

    async def check_state(self, thread: Thread, card: AgentCard) -> None:
        """Refuses a run whose agent keeps another state than the thread has.

        Agents share a thread when their state schemas are the same, or when they keep none. Another version of the
        same agent may have another schema: an update must not orphan its threads, so there the values decide. The
        state is checked again when the run has the thread.
        """
        if card.state is None:
            return
        other = await self._keeper(thread.id)
        if other is not None and other.name != card.name and not same_state(other.state, card.state):
            raise Conflict(
                f"thread {thread.id} holds the state of agent {other.key}, and agent {card.key} keeps another; agents "
                "share a thread when their state schemas are the same"
            )
        if thread.values and thread.active is None:
            try:
                Validator(card.state, what="state").check(thread.values, InvalidState, checked=True)
            except InvalidState as error:
                raise Conflict(f"the values of thread {thread.id} do not fit agent {card.key}: {error}") from None

    async def check_values(self, thread: str, values_: dict[str, Any], *, checkpoint: str | None = None) -> None:
        """Refuses values that would not fit the agent whose state the thread holds."""
        keeper = await self._keeper(thread)
        if keeper is None or keeper.state is None:
            return
        if checkpoint is None:
            base = (await self.get(thread)).values
        else:
            stored = await self._store.threads.checkpoint(checkpoint)
            base = stored.values if stored is not None and stored.thread == thread else None
        merged = {**base, **values_} if isinstance(base, dict) else values_
        try:
            Validator(keeper.state, what="values").check(merged, InvalidState)
        except InvalidState as error:
            raise InvalidState(f"agent {keeper.key}: {error.message}", path=f"/values{error.path}") from None

    async def is_described(self, thread: Thread) -> bool:
        """Returns True if callers can know what the thread's state means: it came from outside, or from an agent whose
        card describes it."""
        before: str | None = None
        written = False
        for limit in _LOOK_BACK if thread.values else ():
            states = await self.history(thread.id, before=before, limit=limit)
            for state in states:
                writer = await self._writer(state)
                if writer is None:
                    continue
                card = await self._card_of(*writer)
                if card is None or card.state is not None:
                    return True
                written = True
            if len(states) < limit:
                break
            before = states[-1].id
        return not written

    async def _writer(self, state: Checkpoint) -> tuple[str, str] | None:
        """Name and version of the agent that left a state; None for what was put there from outside."""
        if "agent" in state.metadata:
            name, _, version = str(state.metadata["agent"]).partition("@")
            return name, version
        run = await self._store.runs.get(state.run) if state.run is not None else None  # written before that was kept
        return (run.agent, run.version) if run is not None else None

    async def _card_of(self, name: str, version: str) -> AgentCard | None:
        agent = self._agents.code(name, version)
        if agent is not None:
            return agent.card
        stored = await self._store.cards.get(name, version)
        return stored.card if stored is not None else None

    async def _keeper(self, thread: str) -> AgentCard | None:
        """The card of the agent whose state the thread holds: the newest that ran there and keeps one.

        Runs tell first: one that has not ended yet has left no state. On a copy, and after runs were deleted, it is
        the state that tells.
        """
        known: set[tuple[str, str]] = set()
        offset = 0
        for limit in _LOOK_BACK:
            runs = await self._store.runs.search(RunFilter(thread=thread, limit=limit, offset=offset, sealed=True))
            writers = {(run.agent, run.version): None for run in runs}
            card = await self._first_with_state(writers, known)
            if card is not None:
                return card
            if len(runs) < limit:
                break
            offset += limit
        before: str | None = None
        for limit in _LOOK_BACK:
            states = await self.history(thread, before=before, limit=limit)
            writers = {writer: None for state in states if (writer := await self._writer(state)) is not None}
            card = await self._first_with_state(writers, known)
            if card is not None:
                return card
            if len(states) < limit:
                break
            before = states[-1].id
        return None

    async def _first_with_state(
        self, writers: dict[tuple[str, str], None], known: set[tuple[str, str]]
    ) -> AgentCard | None:
        for writer in writers:
            if writer not in known:
                known.add(writer)
                card = await self._card_of(*writer)
                if card is not None and card.state is not None:
                    return card
        return None


class ThreadService(ThreadQueries):
    """Makes, reads, changes and forgets threads."""

    async def create(
        self,
        thread: str | None = None,
        *,
        metadata: dict[str, Any] | None = None,
        caller: Caller = OWNER,
        if_exists: Literal["raise", "keep"] = "raise",
    ) -> Thread:
        json_values.check(metadata or {}, InvalidRequest, what="metadata")
        check_id(caller.id, "the id of the caller")
        if thread is not None:
            check_id(thread, "the thread id", "/thread_id")
        time = self._store.clock.now()
        fresh = Thread(thread or new_id(), "idle", time, time, caller.id, metadata=metadata or {})
        return await self._store.threads.create(fresh, if_exists=if_exists)

    async def patch(
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
            json_values.check(values_, InvalidState, what="values")
        json_values.check(metadata or {}, InvalidRequest, what="metadata")
        return await self._store.threads.patch(
            thread,
            checkpoint=new_id(),
            values_=values_,
            metadata=metadata,
            base=checkpoint,
            messages=messages,
            now=self._store.clock.now(),
        )

    async def copy(self, thread: str) -> Thread:
        """A thread of its own with the same values, history and messages."""
        return await self._store.threads.copy(thread, new_id(), new_id, self._store.clock.now())

    async def delete(self, thread: str) -> None:
        await self._store.threads.delete(thread, self._store.clock.now())


def same_state(one: Schema | None, other: Schema | None) -> bool:
    """True if two schemas describe the same values, whatever their titles."""
    return json_values.canonical(_bare(one)) == json_values.canonical(_bare(other))


def _bare(schema: Any) -> Any:
    """A schema without its titles and descriptions. Members of an object may have those names; they stay."""
    if isinstance(schema, list):
        return [_bare(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    bare: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "patternProperties") and isinstance(value, dict):
            bare[key] = {name: _bare(member) for name, member in value.items()}
        elif key not in ("title", "description"):
            bare[key] = value if key in ("const", "enum", "default") else _bare(value)
    return bare

"""Session affinity: which replica holds a client session, and how another one rebuilds it.

The id of a session names the process that created it. Its note in the store names the current holder, and contains the
data with which another replica rebuilds the session after the holder died. Only the door knows the format of a note.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ...model.documents import Change, Document, Drop, Put
from ...model.errors import NotFound
from ...runtime.clock import Clock

if TYPE_CHECKING:
    from ...store.ports import DocumentStore
    from .membership import Membership, Replica

_NAME = re.compile("[0-9a-f]{8}")  # of a replica: nothing is looked for under any other

Fits = Callable[[Document], bool]
"""Decides if a note belongs to the client. Other clients do not learn that it exists."""
Adopt = Callable[[Document, int], Awaitable[None]]
"""(a note, how many processes had it before) → it is made anew, here."""


class SessionAffinity:
    """The sessions of one kind."""

    def __init__(
        self,
        documents: DocumentStore,
        clock: Clock,
        membership: Membership,
        kind: str,
        keep: float,
        let_go: Callable[[], None],
        beside: str | None = None,
    ) -> None:
        """`keep`: seconds after which a note is dropped whose process is dead and that nobody asks for. `let_go`: ends
        all that is here, and leaves the notes. `beside`: a space of documents whose topic is the key of a note, dropped
        with it."""
        self._documents = documents
        self._clock = clock
        self._replicas = membership
        self._space = f"placed:{kind}"
        self._keep = keep
        self._beside = beside
        self._here = set[str]()  # ids of what this process has made, or taken over
        self._moved: dict[str, str] = {}  # ids whose process is dead: the replica that has them
        self._orphans: dict[str, float] = {}  # notes without a living process: since when that is known here
        self._taking: dict[str, asyncio.Task[Replica | None]] = {}
        self._jobs = self._replicas.jobs  # they end with the process's membership
        self._swept = 0.0
        self._let_go = let_go
        self._was_given_up = False
        self._replicas.given_up.append(self._given_up)
        self._replicas.duties.append(self._sweep)

    def id(self, secret: str) -> str:
        """Creates a session id, which tells all replicas where to look first."""
        return f"{self._replicas.id}.{secret}"

    @staticmethod
    def key(id_: str) -> str:
        """Hashes an id, so that a reader of the store cannot act as a client that only presents its id."""
        return hashlib.sha256(id_.encode()).hexdigest()[:32]

    def note(self, id_: str, body: bytes, owner: str, times: int = 0) -> Awaitable[object]:
        self._here.add(id_)
        put = Put(self._space, self.key(id_), body, state=self._replicas.id, topic=str(times), owner=owner)
        return self._documents.write([put])

    async def drop(self, id_: str) -> None:
        self._moved.pop(id_, None)
        self._here.discard(id_)
        await self._drop(self.key(id_))

    async def _drop(self, key: str) -> None:
        changes: list[Change] = [Drop(self._space, key)]
        if self._beside is not None:
            beside = await self._documents.search(self._beside, topic=key, limit=10_000)
            changes += [Drop(self._beside, document.id) for document in beside]
        await self._documents.write(changes)

    def foreign(self, id_: str) -> bool:
        """True if a session that is not here may be at another replica. Reads nothing."""
        name, mark, _ = id_.partition(".")
        return bool(mark) and (self._was_given_up or name != self._replicas.id)

    def _given_up(self) -> None:
        self._was_given_up = True
        self._here.clear()
        self._let_go()

    async def locate(self, id_: str, fits: Fits, adopt: Adopt) -> Replica | None:
        """The replica that has it; None where that is this one, or nobody. What a dead one had is taken over. To be
        asked for what is not here."""
        named = self._moved.get(id_) or id_.partition(".")[0]
        first = await self._replicas.find(named) if _NAME.fullmatch(named) else None
        if first is not None and first.id != self._replicas.id:
            return first
        taking = self._taking.get(id_)
        if taking is None:
            taking = self._taking[id_] = self._jobs.share(self._find(id_, fits, adopt))
            taking.add_done_callback(lambda _: self._taking.pop(id_, None))
        return await asyncio.shield(taking)

    async def _find(self, id_: str, fits: Fits, adopt: Adopt) -> Replica | None:
        for _ in range(3):  # others may take it at the same time: the first one has it
            note = await self._documents.get(self._space, self.key(id_))
            if note is None or not fits(note):
                return None
            holder = await self._replicas.find(note.state)
            if holder is not None and holder.id != self._replicas.id:
                self._remember(id_, holder.id)
                return holder
            if note.state == self._replicas.id and id_ in self._here:
                return None  # who asks looked before it had been taken over
            times = int(note.topic) + 1
            mine = Put(
                self._space, note.id, note.body, state=self._replicas.id, topic=str(times), owner=note.owner,
                version=note.version,
            )  # fmt: skip
            if (await self._documents.write([mine])).stale is None:
                await adopt(note, times)
                self._here.add(id_)
                self._replicas.taken_over += 1
                self._moved.pop(id_, None)
                return None
        return None

    def _remember(self, id_: str, holder: str) -> None:
        if len(self._moved) >= 10_000:
            self._moved.clear()  # it is read again
        self._moved[id_] = holder

    async def _sweep(self) -> None:
        """Forget what dead processes have left and nobody has come back to."""
        time = self._clock.monotonic()
        if time - self._swept < min(60.0, self._keep):
            return
        self._swept = time
        orphans: dict[str, float] = {}
        after: str | None = None
        with contextlib.suppress(NotFound):  # another one sweeps, too: the rest is for the next time
            while page := await self._documents.search(self._space, after=after, limit=500):
                after = page[-1].id
                for note in page:
                    if self._replicas.living(note.state) is None:
                        orphans[note.id] = self._orphans.get(note.id, time)
        for key in [key for key, since in orphans.items() if time - since > self._keep]:
            del orphans[key]
            await self._drop(key)
        self._orphans = orphans

"""The clients of a door over HTTP: whose they are, how many there may be, and when they end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from interlingua.doors.replica_notes import Note
from interlingua.doors.rpc_errors import Refused
from interlingua.doors.sessions import ClientSession, ResumableSession, Sessions, wait_for_room
from interlingua.engine.engine import Engine
from interlingua.model.run import Caller
from interlingua.transports.jsonrpc.connection import Connection
from tests.kit.engines import engine
from tests.kit.wait_for import wait_for

ANN, BOB = Caller("ann"), Caller("bob")


class Session(ResumableSession):
    endings: list[tuple[str, bool]] = []

    @property
    def rpc(self) -> Connection:
        raise AssertionError("nobody asks here")

    def note_extra(self) -> Any:
        return {"number": 1}

    async def restore(self, note: Note) -> None:
        pass

    async def end(self, *, deleted: bool) -> None:
        Session.endings.append((self.id, deleted))


class Socket(ClientSession):
    async def end(self, *, deleted: bool) -> None:
        pass


@contextlib.asynccontextmanager
async def sessions(store: Path, **settings: Any) -> AsyncIterator[tuple[Engine, Sessions[Session]]]:
    Session.endings = []
    async with engine(store) as eng:
        all_: Sessions[Session] = Sessions(
            eng, "test", **{"limit": 10, "idle": 60.0, **settings},
            open_=lambda caller, id_, times: Session(all_, caller, id_, times), id_in=lambda scope: scope.get("id"),
        )  # fmt: skip
        yield eng, all_
        await all_.close()


def refused(all_: Sessions[Session], caller: Caller) -> int:
    with pytest.raises(Refused) as raised:
        all_.open(caller)
    return raised.value.status


async def test_a_session_is_its_callers_with_the_same_rights(store: Path) -> None:
    async with sessions(store) as (_, all_):
        session = all_.open(ANN)
        assert all_.find(session.id, Caller("ann"), Session) is session
        assert all_.find(session.id, BOB, Session) is None
        assert all_.find(session.id, Caller("ann", scopes=("do:run",)), Session) is None
        assert all_.find(session.id, ANN, Socket) is None


async def test_places_are_limited_and_no_caller_has_all_of_them(store: Path) -> None:
    async with sessions(store, limit=2) as (_, all_):
        all_.open(ANN)
        assert refused(all_, ANN) == 429
        all_.add(Socket(all_, BOB, "socket"))
        assert refused(all_, Caller("eve")) == 503


async def test_a_silent_session_gives_way_where_that_is_the_rule(store: Path) -> None:
    async with sessions(store, limit=3, displaces=True) as (_, all_):
        older, newer, bobs = all_.open(ANN), all_.open(ANN), all_.open(BOB)
        assert refused(all_, Caller("eve")) == 503  # none is silent
        for session in (bobs, newer, older):
            with session.busy():
                pass
        newest = all_.open(ANN)  # she has her share, and one of hers goes
        assert (newer.ended, older.ended, bobs.ended, newest.ended) == (True, False, False, False)


async def test_a_silent_session_is_forgotten_and_its_note_goes(store: Path) -> None:
    async with sessions(store, idle=0.05) as (eng, all_):
        session, used = all_.open(ANN), all_.open(ANN)
        used.enter()
        await session.opened({"version": 1})
        assert await eng.documents.count("placed:test") == 1
        with session.busy():
            pass
        await wait_for(lambda: Session.endings == [(session.id, False)])
        assert list(all_) == [used]
        while await eng.documents.count("placed:test"):
            await asyncio.sleep(0)


async def test_a_session_ends_once_and_knows_if_its_client_wanted_that(store: Path) -> None:
    async with sessions(store) as (eng, all_):
        deleted, stopped = all_.open(ANN), all_.open(ANN)
        for session in (deleted, stopped):
            await session.opened({})
        await all_.delete(deleted)
        all_.forget(deleted)
        await all_.close()
        assert Session.endings == [(deleted.id, True), (stopped.id, False)]
        assert await eng.documents.count("placed:test") == 1, "the server comes back, and with it the session"
        assert refused(all_, ANN) == 503


async def test_who_does_not_read_is_told_to_read() -> None:
    await wait_for_room(asyncio.sleep(0), 1)
    with pytest.raises(Refused, match="read") as raised:
        await wait_for_room(asyncio.Event().wait(), 0.01)  # type: ignore[arg-type]
    assert raised.value.status == 429

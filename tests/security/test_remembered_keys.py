"""Remembered records of keys: nothing is read twice in a row, and nothing that was revoked is taken for long."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from interlingua.model.errors import StoreError
from interlingua.security import remembered_keys
from interlingua.security.auth import Authenticator
from interlingua.security.errors import Unauthenticated
from interlingua.security.keys import KeyRecord, make_key
from interlingua.security.remembered_keys import REMEMBERED_FOR, RememberedKeys
from tests.kit.keys import NOW_MICROS, Clock, MemoryKeys

SECRET, RECORD = make_key("ci", ["do:run"], NOW_MICROS)


class CountedKeys(MemoryKeys):
    """Counts reads. With a gate, a read has its record and then waits until the gate is open."""

    def __init__(self, *records: KeyRecord, gate: asyncio.Event | None = None) -> None:
        super().__init__(*records)
        self.reads = 0
        self.gate = gate

    async def get(self, key_id: str) -> KeyRecord | None:
        self.reads += 1
        record = await super().get(key_id)
        if self.gate is not None:
            await self.gate.wait()
        return record


class Server:
    """An authenticator with remembered keys, and what is under it."""

    def __init__(self, *records: KeyRecord) -> None:
        used = [msgspec.structs.replace(record, last_used_at=NOW_MICROS) for record in records]
        self.stored = CountedKeys(*used)
        self.age, self.clock = Clock(0), Clock()
        self.keys = RememberedKeys(self.stored, clock=self.age)
        self.auth = Authenticator(self.keys, clock=self.clock)

    async def accepts(self, secret: str) -> bool:
        try:
            await self.auth.authenticate({"x-api-key": secret})
        except Unauthenticated:
            return False
        return True


async def test_a_key_that_comes_again_costs_no_read() -> None:
    server = Server(RECORD)
    for _ in range(10):
        assert await server.accepts(SECRET)
    assert server.stored.reads == 1


async def test_a_key_that_this_process_revokes_is_refused_at_once() -> None:
    server = Server(RECORD)
    assert await server.accepts(SECRET)
    assert await server.keys.revoke(RECORD.id, NOW_MICROS)
    assert not await server.accepts(SECRET)


async def test_a_key_that_another_process_revokes_is_refused_when_its_record_is_too_old() -> None:
    server = Server(RECORD)
    assert await server.accepts(SECRET)
    await server.stored.revoke(RECORD.id, NOW_MICROS)
    server.age.now += REMEMBERED_FOR - 0.001
    assert await server.accepts(SECRET)
    server.age.now += 0.001
    assert not await server.accepts(SECRET)


async def test_using_a_key_does_not_make_its_record_younger() -> None:
    server = Server(RECORD)
    for _ in range(10):
        assert await server.accepts(SECRET)
        server.age.now += REMEMBERED_FOR / 5
    assert server.stored.reads == 2


async def test_a_key_that_expires_is_refused_at_once() -> None:
    secret, record = make_key("short", [], NOW_MICROS, expires_at=NOW_MICROS + 5_000_000)
    server = Server(record)
    assert await server.accepts(secret)
    server.clock.now += 5
    assert not await server.accepts(secret)
    assert server.stored.reads == 1


async def test_a_wrong_secret_of_a_remembered_key_is_refused() -> None:
    server = Server(RECORD)
    assert await server.accepts(SECRET)
    assert not await server.accepts(SECRET[:-1] + ("a" if SECRET[-1] != "a" else "b"))


async def test_a_key_that_is_unknown_is_not_remembered() -> None:
    server = Server()
    assert not await server.accepts(SECRET)
    await server.stored.put(RECORD)
    assert await server.accepts(SECRET)


async def test_a_record_that_was_read_before_a_change_is_not_remembered_after_it() -> None:
    gate = asyncio.Event()
    stored = CountedKeys(RECORD, gate=gate)
    keys = RememberedKeys(stored, clock=Clock(0))
    reading = asyncio.ensure_future(keys.get(RECORD.id))
    await asyncio.sleep(0)
    await keys.revoke(RECORD.id, NOW_MICROS)
    gate.set()
    await reading
    record = await keys.get(RECORD.id)
    assert record is not None
    assert record.revoked_at == NOW_MICROS


async def test_the_age_of_a_record_counts_from_before_it_was_read() -> None:
    gate, age = asyncio.Event(), Clock(0)
    stored = CountedKeys(RECORD, gate=gate)
    keys = RememberedKeys(stored, clock=age)
    reading = asyncio.ensure_future(keys.get(RECORD.id))
    await asyncio.sleep(0)
    await stored.revoke(RECORD.id, NOW_MICROS)  # by another process
    age.now += REMEMBERED_FOR
    gate.set()
    await reading
    record = await keys.get(RECORD.id)
    assert record is not None
    assert record.revoked_at == NOW_MICROS


async def test_noting_the_use_of_a_key_reads_its_record_again() -> None:
    server = Server(RECORD)
    server.clock.now += 60
    for _ in range(3):
        assert await server.accepts(SECRET)
    assert server.stored.touched == [(RECORD.id, NOW_MICROS + 60_000_000)]


async def test_a_record_that_is_put_anew_counts_at_once() -> None:
    server = Server(RECORD)
    assert await server.accepts(SECRET)
    await server.keys.put(msgspec.structs.replace(RECORD, scopes=["do:read"]))
    caller = await server.auth.authenticate({"x-api-key": SECRET})
    assert caller.scopes == ("do:read",)


async def test_so_many_records_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered_keys, "_LIMIT", 3)
    records = [make_key(f"key {at}", [], NOW_MICROS)[1] for at in range(10)]
    stored = CountedKeys(*records)
    keys = RememberedKeys(stored, clock=Clock(0))
    for record in records:
        assert await keys.get(record.id) == record
        assert len(keys._records) <= 3


async def test_a_store_that_is_away_answers_for_no_key_that_it_was_not_asked_for() -> None:
    class Away(CountedKeys):
        async def get(self, key_id: str) -> KeyRecord | None:
            raise StoreError("the store is away")

    with pytest.raises(StoreError):
        await Authenticator(RememberedKeys(Away())).authenticate({"x-api-key": SECRET})

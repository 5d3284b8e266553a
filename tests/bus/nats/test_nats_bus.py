"""What the bus on NATS does besides: events, inboxes, work and presence, and what becomes of it when servers go."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from interlingua.bus.nats import nats_bus, subject_bus
from interlingua.bus.open import open_bus
from interlingua.bus.port import WORK, BusSettings, CommittedEvents
from interlingua.model.errors import Unavailable
from interlingua.server.dev.local_nats import LocalNats
from tests.kit.buses import FakeListener, Heard
from tests.kit.nats import opened
from tests.kit.wait_for import wait_for


def received(heard: Heard) -> list[tuple[int, int, bytes]]:
    return [(one.first, one.last, one.rows) for one in heard.items if isinstance(one, CommittedEvents)]


# -- events ------------------------------------------------------------------------------------------------


async def test_what_is_committed_reaches_readers_elsewhere_in_order(nats_url: str) -> None:
    async with opened(nats_url) as owner, opened(nats_url) as reader:
        listener, heard = FakeListener("w"), Heard()
        owner.attach(listener)
        reader.follow("run", heard)
        await listener.heard.until(lambda: ("watched", "run") in listener.heard.items)
        assert owner.has_readers("run")
        for seq in range(1, 2001):
            owner.publish_events("run", seq, seq, f"row {seq}".encode())
        await heard.count(2000)
        assert received(heard) == [(seq, seq, f"row {seq}".encode()) for seq in range(1, 2001)]
        assert 0 < reader.health.lag < 5


async def test_nothing_is_sent_of_runs_that_nobody_elsewhere_reads(nats_url: str) -> None:
    async with opened(nats_url) as owner, opened(nats_url) as other:
        heard = Heard()
        owner.subscribe("run", heard)
        other.subscribe(WORK, heard.about("work"))
        for _ in range(100):
            owner.publish("run")
        owner.publish(WORK)
        await heard.until(lambda: "work" in heard.items)
        assert not owner.has_readers("run")
        assert len(heard.items) == 101
        assert owner.health.sent <= 4  # who is there, what is read here, and that there is work


async def test_events_too_large_for_a_message_are_left_to_the_store(nats_url: str) -> None:
    async with opened(nats_url) as owner, opened(nats_url) as reader:
        listener, heard = FakeListener("w"), Heard()
        owner.attach(listener)
        reader.follow("run", heard)
        await listener.heard.until(lambda: ("watched", "run") in listener.heard.items)
        owner.publish_events("run", 1, 9, b"x" * owner.max_payload)
        owner.publish_events("run", 10, 10, b"small")
        await heard.count(2)
        assert received(heard) == [(1, 9, b""), (10, 10, b"small")]


async def test_a_run_is_listened_to_only_while_somebody_reads_it(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlingua.bus.nats.subscriptions.LINGER", 0.0)
    async with opened(nats_url) as reader:
        ends = [reader.follow("run", Heard()), reader.subscribe("run", Heard())]
        assert "run" in reader._read_here
        ends[0]()
        reader.tick()
        assert "run" in reader._read_here
        ends[1]()
        reader.tick()
        assert "run" not in reader._read_here


async def test_each_reader_of_a_run_is_told_and_nobody_else(nats_url: str) -> None:
    async with opened(nats_url) as owner, opened(nats_url) as one, opened(nats_url) as two, opened(nats_url) as none:
        listener, first, second = FakeListener("w"), Heard(), Heard()
        owner.attach(listener)
        before = set(one._connection._subscriptions)
        one.follow("run", first)
        two.follow("run", second)
        two.follow("other", second)
        await listener.heard.until(lambda: len(set(owner._read_elsewhere.readers("run"))) == 2)
        await listener.heard.until(lambda: ("watched", "other") in listener.heard.items)
        owner.publish_events("run", 1, 1, b"row")
        owner.publish_events("other", 1, 1, b"row")
        await first.count(1)
        await second.count(2)
        assert (none.health.received, one.health.received, two.health.received) == (0, 1, 2)
        assert set(one._connection._subscriptions) == before  # the server keeps nothing for a run


async def test_messages_that_come_faster_than_they_are_looked_at_mean_that_something_changed(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_bus, "_PENDING", 4)
    async with opened(nats_url) as owner, opened(nats_url) as reader:
        listener, heard = FakeListener("w"), Heard()
        owner.attach(listener)
        reader.follow("run", heard)
        await listener.heard.until(lambda: ("watched", "run") in listener.heard.items)
        for seq in range(1, 501):
            owner.publish_events("run", seq, seq, b"row")
        await heard.until(lambda: reader.health.overflowed > 0)
        assert (0, -1, b"") in received(heard)


# -- inboxes, presence, prefixes ---------------------------------------------------------------------------


async def test_only_the_owner_of_a_run_hears_of_its_inbox_where_that_is_known(nats_url: str) -> None:
    async with opened(nats_url) as one, opened(nats_url) as two, opened(nats_url) as teller:
        first, second = FakeListener("first"), FakeListener("second")
        one.attach(first)
        two.attach(second)
        await until_present(teller, {"first", "second"})
        teller.notify_owner("first", "mine")
        teller.notify_owner(None, "anyone's")
        await first.heard.count(2)
        await second.heard.count(1)
        assert first.heard.items == [("told", "mine"), ("told", "anyone's")]
        assert second.heard.items == [("told", "anyone's")]


async def until_connected(bus: nats_bus.NatsBus) -> None:
    await wait_for(lambda: bus.health.connected)


async def until_present(bus: nats_bus.NatsBus, workers: set[str]) -> None:
    await wait_for(lambda: {one.worker for one in bus.present()} == workers)


async def test_whoever_comes_learns_at_once_who_is_there(nats_url: str) -> None:
    async with opened(nats_url) as one:
        one.attach(FakeListener("first", ["echo@1"]))
        async with opened(nats_url) as two:
            await until_present(two, {"first"})
            assert two.present()[0].queues == ["echo@1"]
            two.attach(FakeListener("second"))
            await until_present(one, {"second"})
        await until_present(one, set())


async def test_installations_that_share_a_server_hear_nothing_of_each_other(nats_url: str) -> None:
    async with opened(nats_url) as one, opened(nats_url, prefix="another") as other, opened(nats_url) as same:
        heard = Heard()
        other.subscribe(WORK, heard.about("other"))
        same.subscribe(WORK, heard.about("same"))
        other_listener = FakeListener("w")
        other.attach(other_listener)
        one.publish(WORK)
        one.notify_owner(None, "run")
        await heard.count(1)
        await other._connection._client.flush()  # type: ignore[union-attr]
        assert heard.items == ["same"]
        assert other_listener.heard.items == []


async def test_messages_that_are_not_ours_are_passed_over(nats_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(nats_url) as one, opened(nats_url) as stranger:
        heard = Heard()
        one.subscribe(WORK, heard.about("work"))
        client = stranger._connection._client
        assert client is not None
        for subject in (one.subjects.watch, one.subjects.presence, one.subjects.inbox):
            await client.publish(subject, b"\xff\x00 nonsense")
            await client.publish(subject, b"")
        stranger.publish(WORK)
        await heard.count(1)
        assert one.health.connected


# -- work --------------------------------------------------------------------------------------------------


async def until_ready(*buses: nats_bus.NatsBus) -> None:
    await wait_for(lambda: all(bus.work.ready for bus in buses))


async def test_work_goes_to_one_of_those_who_have_the_agent(nats_url: str) -> None:
    async with opened(nats_url) as giving, opened(nats_url) as one, opened(nats_url) as two, opened(nats_url) as other:
        ears = [FakeListener("one"), FakeListener("two"), FakeListener("other")]
        both = Heard()
        for bus, listener, agent in zip((one, two, other), ears, ("echo@1", "echo@1", "else@1"), strict=True):
            listener.offers = both if agent == "echo@1" else listener.offers
            bus.attach(listener)
            bus.serve([agent])
        await until_ready(giving, one, two, other)
        for number in range(50):
            assert giving.offer("echo@1", f"run-{number}", 0)
        assert giving.offer("else@1", "last", 0)
        await both.count(50)
        await ears[2].offers.count(1)
        assert sorted(map(str, both.items)) == sorted(str(("echo@1", f"run-{number}")) for number in range(50))
        assert ears[2].offers.items == [("else@1", "last")]


async def test_work_offered_before_anybody_has_the_agent_waits_for_one(nats_url: str) -> None:
    async with opened(nats_url) as giving:
        await until_ready(giving)
        giving.offer("echo@1", "run", 0)
        giving.offer("echo@1", "run", 0)  # the same again is the same
        await giving.send_queue.emptied()
        async with opened(nats_url) as taking:
            listener = FakeListener("w")
            taking.attach(listener)
            taking.serve(["echo@1"])
            await listener.offers.count(1)
            giving.offer("echo@1", "next", 0)
            await listener.offers.count(2)
            assert listener.offers.items == [("echo@1", "run"), ("echo@1", "next")]
            assert taking.health.work_lag > 0


async def test_who_has_no_free_slot_takes_no_work(nats_url: str) -> None:
    async with opened(nats_url) as full, opened(nats_url) as free:
        busy, idle = FakeListener("busy"), FakeListener("idle")
        busy.free.clear()
        for bus, listener in ((full, busy), (free, idle)):
            bus.attach(listener)
            bus.serve(["echo@1"])
        await until_ready(full, free)
        for number in range(10):
            full.offer("echo@1", f"run-{number}", 0)
        await idle.offers.count(10)
        assert busy.offers.items == []


async def test_work_that_was_pulled_and_not_settled_is_offered_again(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_bus, "_ACK_WAIT", 0.3)
    async with opened(nats_url) as giving:
        dying = nats_bus.NatsBus(BusSettings(url=nats_url))
        await dying.open()
        listener = FakeListener("dying")
        pulled, never = asyncio.Event(), asyncio.Event()

        async def offered(agent: str, run: str, *, again: bool) -> bool:
            pulled.set()
            await never.wait()  # it dies before the store is asked
            return True

        listener.offered = offered  # type: ignore[method-assign]
        dying.attach(listener)
        dying.serve(["echo@1"])
        await until_ready(giving, dying)
        giving.offer("echo@1", "run", 0)
        await pulled.wait()
        await dying.close()
        async with opened(nats_url) as next_one:
            heir = FakeListener("heir")
            next_one.attach(heir)
            next_one.serve(["echo@1"])
            await heir.offers.count(1)
            assert heir.offers.items == [("echo@1", "run")]


async def test_work_that_nobody_has_room_for_is_offered_again(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlingua.bus.nats.work_queue._AGAIN", 0.05)
    async with opened(nats_url) as bus:
        listener = FakeListener("w")
        listener.accepts = False
        bus.attach(listener)
        bus.serve(["echo@1"])
        await until_ready(bus)
        bus.offer("echo@1", "run", 0)
        await listener.offers.count(3)
        listener.accepts = True
        known = len(listener.offers.items)
        await listener.offers.count(known + 1)


async def test_without_jetstream_nothing_is_handed_out_and_the_rest_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LocalNats(tmp_path / "nats", jetstream=False) as server:
        async with opened(server.url) as one, opened(server.url) as two:
            await wait_for(lambda: sum("hands out no work" in record.message for record in caplog.records) == 2)
            assert not one.offer("echo@1", "run", 0)
            heard = Heard()
            two.subscribe(WORK, heard.about("work"))
            one.publish(WORK)
            await heard.count(1)


# -- servers that go ---------------------------------------------------------------------------------------


async def test_a_server_that_was_killed_is_found_again_and_everyone_looks_for_what_was_missed(tmp_path: Path) -> None:
    server = LocalNats(tmp_path / "nats")
    await asyncio.to_thread(server.start)
    try:
        async with opened(server.url) as one, opened(server.url) as two:
            listener, heard, reading = FakeListener("w"), Heard(), Heard()
            one.attach(listener)
            two.subscribe("run", heard.about("run"))
            two.follow("read", reading)
            await listener.heard.until(lambda: ("watched", "run") in listener.heard.items)
            await asyncio.to_thread(server.kill)
            await wait_for(lambda: not one.health.connected and not two.health.connected)
            for _ in range(100_000):  # none of this waits, and nothing of it is kept
                one.publish("run")
                one.publish_events("run", 1, 1, b"x" * 1000)
            assert len(one.send_queue) == 0
            assert one.health.dropped >= 100_000
            heard.items.clear()
            listener.heard.items.clear()
            await asyncio.to_thread(server.start)
            await listener.heard.until(lambda: ("missed",) in listener.heard.items, 20)
            await heard.until(lambda: "run" in heard.items, 20)
            await reading.until(lambda: bool(reading.items), 20)
            assert received(reading)[0] == (0, -1, b"")
            # And it all goes on as before, without anybody listening anew.
            await listener.heard.until(lambda: ("watched", "read") in listener.heard.items, 20)
            one.publish_events("read", 7, 7, b"row")
            await reading.until(lambda: (7, 7, b"row") in received(reading))
    finally:
        await asyncio.to_thread(server.stop)


async def test_a_server_that_does_not_read_holds_up_nobody_and_fills_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_bus, "_PING", 1)
    server = LocalNats(tmp_path / "nats")
    await asyncio.to_thread(server.start)
    try:
        async with opened(server.url) as one, opened(server.url) as two:
            listener, missed = FakeListener("w"), FakeListener("x")
            one.attach(listener)
            two.attach(missed)
            two.follow("run", Heard())
            await listener.heard.until(lambda: ("watched", "run") in listener.heard.items)
            os.kill(server.pid, signal.SIGSTOP)
            slowest, loop = 0.0, asyncio.get_running_loop()
            for _ in range(200):
                before = loop.time()
                for _ in range(200):
                    one.publish_events("run", 1, 1, b"x" * 2000)
                await asyncio.sleep(0)
                slowest = max(slowest, loop.time() - before)
            assert one.health.dropped > 0
            assert len(one.send_queue) <= subject_bus._MAX_ITEMS
            assert one.send_queue._bytes <= subject_bus._MAX_BYTES
            assert slowest < 2.0
            os.kill(server.pid, signal.SIGCONT)
            await missed.heard.until(lambda: ("missed",) in missed.heard.items, 30)
    finally:
        await asyncio.to_thread(server.kill)


async def test_a_server_that_is_down_at_the_start_is_found_when_it_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = LocalNats(tmp_path / "nats")
    async with opened(server.url) as one, opened(server.url) as two:
        assert not one.health.connected
        assert "cannot be reached" in caplog.text
        heard, listener = Heard(), FakeListener("w")
        one.attach(listener)
        two.subscribe("run", heard.about("run"))
        await asyncio.to_thread(server.start)
        try:
            await listener.heard.until(lambda: ("watched", "run") in listener.heard.items, 20)
            heard.items.clear()
            one.publish("run")
            await heard.count(1)
        finally:
            await asyncio.to_thread(server.stop)
    assert sum("cannot be reached" in record.message for record in caplog.records) <= 4  # not with every try


async def test_a_connection_that_the_server_ends_for_good_is_made_anew(tmp_path: Path) -> None:
    """nats-py gives up after such an error."""
    server = LocalNats(tmp_path / "nats", config="max_connections: 1")
    await asyncio.to_thread(server.start)
    try:
        async with opened(server.url) as one:
            await until_connected(one)
            async with opened(server.url) as two:
                assert not two.health.connected
                await one.close()
                await until_connected(two)
    finally:
        await asyncio.to_thread(server.stop)


def test_a_server_of_our_own_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom interlingua.server.dev.local_nats import LocalNats\n"
        "server = LocalNats(Path(sys.argv[1]))\nserver.start()\nprint(server.pid, server.port, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, check=False)
    pid, port = map(int, done.stdout.split())
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            break
        time.sleep(0.01)
    else:
        os.kill(pid, signal.SIGKILL)
        pytest.fail("the server is still there")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "interlingua.bus.nats.nats_bus")
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(Unavailable, match=r"pip install 'interlingua\[nats\]'"):
        open_bus("nats://127.0.0.1")


def test_what_nobody_needs_is_not_imported() -> None:
    script = "import interlingua, interlingua.bus.open, sys; print('nats' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

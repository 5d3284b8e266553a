"""Engines that share a store and a bus: what one does reaches the others at once, and nothing depends on it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.bus.nats.nats_bus import NatsBus
from interlingua.bus.port import BusSettings
from interlingua.engine.cluster.link import ClusterLink
from interlingua.model.errors import AgentNotFound, RunNotFound
from interlingua.model.events import OutputDelta
from interlingua.model.filters import QuestionFilter
from interlingua.model.status import Status
from interlingua.server.dev.local_nats import LocalNats
from interlingua.store.rows import EventRow
from tests.kit import processes
from tests.kit.wait_for import wait_for

from .agents_process import AGENTS, SETTINGS, ask, forever, listen, talk

SOON = 25.0  # seconds, on a crowded machine; whoever is not told looks only after thirty
QUICK = il.Settings(park_after=0, cancel_grace=0.5, shutdown_grace=0.5, sweep_every=0.05, stall_warning=0)


@asynccontextmanager
async def engine(
    store: Path, bus: Any, *agents: il.Agent[..., Any], settings: il.Settings = SETTINGS
) -> AsyncIterator[il.Engine]:
    async with il.Engine(store, agents=agents, bus=bus, settings=settings) as made:
        made.core.store.on_change = lambda: None  # the file tells nothing
        yield made


@asynccontextmanager
async def working(store: Path, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another process, with agents."""
    process = await processes.start_warm("bus.nats.agents_process", store, url)
    async with processes.ended(process, gently=True):
        assert await processes.said(process)
        yield process


async def submit(eng: il.Engine, agent: str, **input_: Any) -> str:
    return (await eng.runs.submit(il.RunRequest(agent, input=input_))).id


async def events(eng: il.Engine, run: str, after: int = 0) -> list[il.Event]:
    return [event async for event in eng.runs.events(run, after=after)]


def spoken(log: list[il.Event]) -> str:
    return "".join(event.body.delta["text"] for event in log if isinstance(event.body, OutputDelta))


def words(n: int) -> str:
    return "".join(f"{number} " for number in range(n))


def contiguous(log: list[il.Event]) -> bool:
    """No event twice, none missing, none out of order."""
    return [event.first for event in log] == [1, *(event.seq + 1 for event in log[:-1])]


def counting(eng: il.Engine, monkeypatch: pytest.MonkeyPatch, name: str = "events") -> list[tuple[Any, ...]]:
    """Every call of a method of the store's runs from now on."""
    calls: list[tuple[Any, ...]] = []
    asked = getattr(eng.core.store.runs, name)

    async def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return await asked(*args, **kwargs)

    monkeypatch.setattr(eng.core.store.runs, name, call)
    return calls


# -- told by the bus ---------------------------------------------------------------------------------------


async def test_a_run_of_another_process_is_streamed_and_the_store_is_not_read_for_it(
    store: Path, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(store, nats_url), engine(store, nats_url) as eng:
        reads, looks = counting(eng, monkeypatch), counting(eng, monkeypatch, "get")
        async with asyncio.timeout(SOON):
            run = await submit(eng, "talk", n=300, pause=0.001)
            log = await events(eng, run)
        assert contiguous(log)
        assert log[-1].kind == "finished"
        assert spoken(log) == words(300)
        assert len(log) > 50
        assert len(reads) + len(looks) < 12  # to begin with, and what was committed before anybody listened


async def test_what_is_submitted_to_be_waited_for_is_told_whole_and_the_store_is_not_read_for_it(
    store: Path, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(store, nats_url), engine(store, nats_url) as eng:
        reads = [counting(eng, monkeypatch, name) for name in ("events", "get", "ends")]
        caller = il.Caller("key:1", "laptop")
        request = il.RunRequest("talk", input={"n": 300}, metadata={"a": [1]}, caller=caller)
        async with asyncio.timeout(SOON):
            made = await eng.runs.submit(request, watch=True)
            ended = await eng.runs.wait(made.id)
        assert ended.output == {"text": words(300)}
        assert reads == [[], [], []]
        log = eng.runs.committed_events(made.id)
        assert log is not None
        assert contiguous(log)
        assert spoken(log) == words(300)
        assert await eng.runs.get(made.id) == ended  # as the store has it
        assert [event async for event in eng.runs.events(made.id, follow=False)][-1] == log[-1]


async def test_what_is_submitted_to_be_read_is_told_from_its_beginning(
    store: Path, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(store, nats_url), engine(store, nats_url) as eng:
        reads = [counting(eng, monkeypatch, name) for name in ("events", "get", "ends")]
        async with asyncio.timeout(SOON):
            made = await eng.runs.submit(il.RunRequest("talk", input={"n": 300, "pause": 0.001}), watch=True)
            log = await events(eng, made.id)
        assert contiguous(log)
        assert log[0].kind == "created"
        assert spoken(log) == words(300)
        assert reads == [[], [], []]


async def test_waiting_ends_at_a_question_and_goes_on_after_its_answer_whoever_runs_it(
    store: Path, nats_url: str
) -> None:
    async with working(store, nats_url), engine(store, nats_url) as eng, asyncio.timeout(SOON):
        made = await eng.runs.submit(il.RunRequest("ask"), watch=True)
        view = await eng.runs.wait(made.id, settled=True)
        assert view.status is Status.WAITING
        waiting = asyncio.create_task(eng.runs.wait(made.id))
        await eng.questions.answer(view.questions[0].id, {"approved": True})
        assert (await waiting).output == {"text": "True"}
        assert eng.runs.committed_events(made.id) is not None


async def test_waiting_for_what_is_cancelled_and_forgotten_elsewhere_finds_that_it_is_gone(
    store: Path, nats_url: str
) -> None:
    async with working(store, nats_url), engine(store, nats_url) as eng, asyncio.timeout(SOON):
        made = await eng.runs.submit(il.RunRequest("forever"), watch=True)
        async for event in eng.runs.events(made.id):
            if event.kind == "thought":
                break
        waiting = asyncio.create_task(eng.runs.wait(made.id))
        await eng.runs.cancel(made.id, rollback=True)
        with pytest.raises(RunNotFound):
            await waiting


async def test_the_same_key_again_waits_for_the_same_run(store: Path, nats_url: str) -> None:
    async with working(store, nats_url), engine(store, nats_url) as eng, asyncio.timeout(SOON):
        request = il.RunRequest("talk", input={"n": 3}, key="once")
        first = await eng.runs.submit(request, watch=True)
        again = await eng.runs.submit(request, watch=True)
        assert first.id == again.id
        assert await eng.runs.wait(again.id) == await eng.runs.wait(first.id)


async def test_an_answer_a_message_and_a_cancel_reach_the_owner_at_once(store: Path, nats_url: str) -> None:
    async with working(store, nats_url), engine(store, nats_url) as eng:
        async with asyncio.timeout(SOON):
            run = await submit(eng, "ask")
            view = await eng.runs.wait(run, settled=True)
            await eng.questions.answer(view.questions[0].id, {"approved": True})
            assert (await eng.runs.wait(run)).output == {"text": "True"}
        async with asyncio.timeout(SOON):
            run = await submit(eng, "listen")
            async for event in eng.runs.events(run):
                if event.kind == "started":
                    break
            await eng.runs.send(run, "hello")
            assert (await eng.runs.wait(run)).output == {"text": "hello"}
        async with asyncio.timeout(SOON):
            run = await submit(eng, "forever")
            async for event in eng.runs.events(run):
                if event.kind == "thought":
                    break
            await eng.runs.cancel(run)
            assert (await eng.runs.wait(run)).status is il.Status.CANCELLED


async def test_an_answer_wakes_a_run_that_nobody_has_in_memory(store: Path, nats_url: str) -> None:
    parking = il.Settings(park_after=0, sweep_every=30, stall_warning=0, cancel_grace=0.5, shutdown_grace=0.5)
    async with engine(store, nats_url, ask, settings=parking) as owner, engine(store, nats_url) as other:
        async with asyncio.timeout(SOON):
            run = await submit(owner, "ask")
            view = await owner.runs.wait(run, settled=True)
            while (row := await owner.core.store.runs.get(run)) is not None and row.worker is not None:
                await asyncio.sleep(0.01)
            await other.questions.answer(view.questions[0].id, {"approved": False})
            assert (await other.runs.wait(run)).output == {"text": "False"}


async def test_a_parent_hears_of_a_child_that_ran_in_another_process(store: Path, nats_url: str) -> None:
    @il.agent
    async def parent(ctx: il.Context[None, None]) -> str:
        return str((await ctx.call("talk", {"n": 3}))["text"])

    async with engine(store, nats_url, talk), engine(store, nats_url, parent) as eng:
        async with asyncio.timeout(SOON):
            run = await submit(eng, "parent")
            assert (await eng.runs.wait(run)).output == {"text": words(3)}


async def test_runs_that_are_offered_while_others_are_claimed_are_claimed_together(
    store: Path, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    async with engine(store, nats_url, talk) as owner, engine(store, nats_url) as eng, asyncio.timeout(SOON):
        claim = owner.core.store.claims.claim
        assert isinstance(owner.core.worker.cluster, ClusterLink)
        offers = owner.core.worker.cluster.offers

        async def held_up(worker: str, queues: list[str], time: int, limit: int, **more: Any) -> Any:
            limits.append(limit)
            # Whatever came before it was looked at is claimed at first, which is one as a rule.
            while len(limits) == 1 and limit + offers.waiting(owner.agents.queue(talk)) < 10:
                await asyncio.sleep(0.01)
            return await claim(worker, queues, time, limit, **more)

        async def nothing_forgotten() -> float:
            return 60.0

        await until_ready(owner, eng)  # a run that cannot be offered is found by the search for forgotten ones
        # The worker looks for forgotten runs now and then: it would take all ten, or keep the slots for them.
        monkeypatch.setattr(owner.core.worker.claims, "claim_due", nothing_forgotten)
        monkeypatch.setattr(owner.core.store.claims, "claim", held_up)
        runs = [await submit(eng, "talk", n=3) for _ in range(10)]
        for run in runs:
            assert (await eng.runs.wait(run)).output == {"text": words(3)}
    assert sum(limits[:2]) == 10


async def test_what_is_sent_to_a_run_between_its_claim_and_its_beginning_reaches_it(
    store: Path, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(store, nats_url, listen) as owner, engine(store, nats_url) as eng, asyncio.timeout(SOON):
        claim, hear, heard = owner.core.store.claims.claim, owner.core.worker.notify_from_bus, asyncio.Event()

        def hears(run: str) -> None:
            hear(run)
            heard.set()

        async def then_sent(*args: Any, **more: Any) -> Any:
            rows = await claim(*args, **more)
            for row in rows:
                await eng.runs.send(row.id, "early")
                await heard.wait()
            return rows

        monkeypatch.setattr(owner.core.worker, "notify_from_bus", hears)
        monkeypatch.setattr(owner.core.store.claims, "claim", then_sent)
        run = await submit(eng, "listen")
        assert (await eng.runs.wait(run)).output == {"text": "early"}


async def test_whoever_watches_questions_hears_of_those_that_are_asked_and_answered_elsewhere(
    store: Path, nats_url: str
) -> None:
    async with engine(store, nats_url, ask) as owner, engine(store, nats_url) as eng, engine(store, nats_url) as other:
        async with asyncio.timeout(SOON):
            hint = eng.runs.next_hint("questions")
            while not all(one.core.bus.has_readers("questions") for one in (owner, other)):  # type: ignore[attr-defined]
                await asyncio.sleep(0.01)
            run = await submit(other, "ask")
            await hint
            (asked,) = await eng.core.store.questions.search(QuestionFilter(run=run))
            hint = eng.runs.next_hint("questions")
            await other.questions.answer(asked.question.id, {"approved": True})
            await hint


async def test_readers_of_one_run_share_what_is_told_of_it(
    store: Path, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(store, nats_url), engine(store, nats_url) as eng:
        async with asyncio.timeout(SOON):
            run = await submit(eng, "talk", n=200, pause=0.001)
            logs = await asyncio.gather(*(events(eng, run) for _ in range(20)))
        assert all(contiguous(log) and spoken(log) == words(200) for log in logs)
        assert isinstance(eng.core.worker.cluster, ClusterLink)
        assert eng.core.worker.cluster._remote_logs == {}  # nobody reads any more


async def test_a_reader_takes_up_where_another_left_in_another_process(store: Path, nats_url: str) -> None:
    async with working(store, nats_url), engine(store, nats_url) as one, engine(store, nats_url) as two:
        async with asyncio.timeout(SOON):
            run = await submit(one, "talk", n=400, pause=0.001)
            begun: list[il.Event] = []
            async for event in one.runs.events(run):
                begun.append(event)
                if event.seq > 40:
                    break
            log = [*begun, *await events(two, run, begun[-1].seq)]
        assert contiguous(log)
        assert spoken(log) == words(400)


async def test_a_run_that_has_ended_is_read_without_listening_to_it(store: Path, nats_url: str) -> None:
    async with engine(store, nats_url, talk) as one, engine(store, nats_url) as two:
        run = await submit(one, "talk", n=3)
        await one.runs.wait(run)
        sent = two.core.bus.health.sent  # type: ignore[attr-defined]
        assert spoken(await events(two, run)) == words(3)
        assert two.core.bus.health.sent == sent  # type: ignore[attr-defined]


# -- a bus that is not to be relied on ---------------------------------------------------------------------


class Unreliable(NatsBus):
    """Loses events, tells them twice, and mixes them up."""

    def __init__(self, url: str, seed: int, lost: float) -> None:
        super().__init__(BusSettings(url=url))
        self._chance = random.Random(seed)
        self._share = lost
        self._late: list[tuple[str, bytes]] = []
        self.spoilt = 0

    def _receive(self, run: str, data: bytes) -> None:
        chance = self._chance.random()
        if chance < self._share:
            self.spoilt += 1
            return
        if chance < self._share + 0.2:
            self.spoilt += 1
            self._late.append((run, data))  # told later, and after others
            return
        super()._receive(run, data)
        if chance > 0.8:
            self.spoilt += 1
            super()._receive(run, data)
        while self._late and self._chance.random() < 0.4:
            super()._receive(*self._late.pop(self._chance.randrange(len(self._late))))


@pytest.mark.parametrize(
    ("seed", "many"), [(1, 1000), (2, 1000), *(pytest.param(seed, 10_000, marks=pytest.mark.faults) for seed in (1, 2))]
)
async def test_a_reader_elsewhere_gets_everything_once_and_in_order_whatever_the_bus_does(
    store: Path, nats_url: str, seed: int, many: int
) -> None:
    bus = Unreliable(nats_url, seed, 0.2)
    settings = il.Settings(sweep_every=0.2, stall_warning=0)
    async with working(store, nats_url), engine(store, bus, settings=settings) as eng:
        async with asyncio.timeout(60):
            run = await submit(eng, "talk", n=many, pause=0.0001)
            log = await events(eng, run)
        assert contiguous(log)
        assert spoken(log) == words(many)
        assert log[-1].kind == "finished"
        assert bus.spoilt > many // 50
        assert await eng.runs.verify(run) is None


class Deaf(NatsBus):
    """Everything that is said is lost on the way."""

    def __init__(self, url: str) -> None:
        super().__init__(BusSettings(url=url, hand_out="off"))

    def _send(self, subject: str, payload: bytes, **more: Any) -> bool:
        return True


async def test_when_the_bus_loses_everything_everything_still_happens(store: Path, nats_url: str) -> None:
    async with (
        engine(store, Deaf(nats_url), *AGENTS, settings=QUICK),
        engine(store, Deaf(nats_url), settings=QUICK) as eng,
    ):
        async with asyncio.timeout(30):
            run = await submit(eng, "ask")
            view = await eng.runs.wait(run, settled=True)
            await eng.questions.answer(view.questions[0].id, {"approved": True})
            assert (await eng.runs.wait(run)).output == {"text": "True"}
            log = await events(eng, await submit(eng, "talk", n=200, pause=0.001))
            assert contiguous(log)
            assert spoken(log) == words(200)
            expected = await eng.runs.submit(il.RunRequest("talk", input={"n": 20}), watch=True)
            assert (await eng.runs.wait(expected.id)).output == {"text": words(20)}
        about = eng.core.worker.meters.agents.of("talk")
        assert about.from_store.keys() == {"silence"}
        assert about.delivery.count == 0


async def test_what_is_missing_on_the_bus_is_read_from_the_store(
    store: Path, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Holed(NatsBus):
        told = 0

        def _receive(self, run: str, data: bytes) -> None:
            self.told += data.count(b"delta") > 0
            if self.told != 20:  # by then nobody has to be told any more that somebody listens
                super()._receive(run, data)

    bus = Holed(BusSettings(url=nats_url))
    async with working(store, nats_url), engine(store, bus) as eng:
        async with asyncio.timeout(SOON):
            run = await submit(eng, "talk", n=200, pause=0.001)
            log = await events(eng, run)
        assert bus.told > 20
        assert contiguous(log)
        assert spoken(log) == words(200)
        about = eng.core.worker.meters.agents.of("talk")
        assert about.from_store == {"gap": 1}
        assert about.delivery.count > 20
        assert 0 < about.delivery.total < SOON * about.delivery.count


async def test_events_too_large_for_the_bus_reach_readers_too(store: Path, nats_url: str) -> None:
    @il.agent
    async def shout(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        for letter in "abc":
            yield letter * 2_000_000
            await asyncio.sleep(0.05)

    async with engine(store, nats_url, shout), engine(store, nats_url) as eng:
        async with asyncio.timeout(SOON):
            log = await events(eng, await submit(eng, "shout"))
        assert contiguous(log)
        assert spoken(log) == "".join(letter * 2_000_000 for letter in "abc")


async def test_a_bus_that_is_killed_while_a_run_streams_costs_time_and_nothing_else(
    store: Path, tmp_path: Path
) -> None:
    server = LocalNats(tmp_path / "nats")
    await asyncio.to_thread(server.start)
    try:
        settings = il.Settings(sweep_every=0.2, stall_warning=0, cancel_grace=0.5, shutdown_grace=0.5)
        async with working(store, server.url), engine(store, server.url, settings=settings) as eng:
            async with asyncio.timeout(60):
                run = await submit(eng, "talk", n=1500, pause=0.001)
                log: list[il.Event] = []
                killed = started = False
                async for event in eng.runs.events(run):
                    log.append(event)
                    if event.seq > 100 and not killed:
                        killed = True
                        await asyncio.to_thread(server.kill)
                    elif event.seq > 300 and not started:
                        started = True
                        await asyncio.to_thread(server.start)
            assert started
            assert contiguous(log)
            assert spoken(log) == words(1500)
            async with asyncio.timeout(20):  # and afterwards it is there again
                run = await submit(eng, "talk", n=3)
                assert spoken(await events(eng, run)) == words(3)
    finally:
        await asyncio.to_thread(server.stop)


# -- work that is handed out -------------------------------------------------------------------------------


async def until_ready(*engines: il.Engine) -> None:
    await wait_for(lambda: all(eng.core.bus.work.ready for eng in engines))  # type: ignore[attr-defined]


async def test_runs_beyond_the_slots_of_one_process_run_in_another(store: Path, nats_url: str) -> None:
    running: dict[str, int] = {}
    here = asyncio.Event()
    go = asyncio.Event()

    def busy(name: str) -> il.Agent[..., Any]:
        @il.agent(name="busy")
        async def busy_() -> str:
            running[name] = running.get(name, 0) + 1
            if sum(running.values()) == 4:
                here.set()
            await go.wait()
            return name

        return busy_

    two = il.Settings(max_running=2, sweep_every=30, stall_warning=0, cancel_grace=0.5, shutdown_grace=0.5)
    async with (
        engine(store, nats_url, busy("first"), settings=two) as first,
        engine(store, nats_url, busy("second"), settings=two) as second,
    ):
        await until_ready(first, second)
        async with asyncio.timeout(SOON):
            runs = [await submit(first, "busy") for _ in range(6)]
            await here.wait()
            assert running == {"first": 2, "second": 2}
            go.set()
            outputs = [(await first.runs.wait(run)).output for run in runs]
        assert {"text": "second"} in outputs
        assert len(outputs) == 6


async def test_an_agent_at_its_limit_is_offered_nothing_and_takes_the_next_when_it_may(
    store: Path, nats_url: str
) -> None:
    running: dict[str, int] = {}
    here, go = asyncio.Event(), asyncio.Event()

    def single(name: str) -> il.Agent[..., Any]:
        @il.agent(name="single", max_running=1)
        async def single_() -> str:
            running[name] = running.get(name, 0) + 1
            assert running[name] == 1
            if len(running) == 2:
                here.set()
            await go.wait()
            running[name] -= 1
            return name

        return single_

    @il.agent
    async def beside() -> str:
        return "done"

    rarely = il.Settings(sweep_every=30, stall_warning=0, cancel_grace=0.5, shutdown_grace=0.5)
    async with (
        engine(store, nats_url, single("first"), settings=rarely) as first,
        engine(store, nats_url, single("second"), beside, settings=rarely) as second,
    ):
        await until_ready(first, second)
        async with asyncio.timeout(SOON):
            runs = [await submit(first, "single") for _ in range(6)]
            await here.wait()
            await first.runs.wait(await submit(first, "beside"))
            go.set()
            for run in runs:
                assert (await first.runs.wait(run)).status is il.Status.SUCCEEDED


async def test_a_run_is_entered_once_however_often_it_is_offered(store: Path, nats_url: str) -> None:
    entered: list[str] = []

    @il.agent
    async def once(ctx: il.Context[None, None]) -> str:
        entered.append(ctx.run_id)
        return "done"

    async with (
        engine(store, nats_url) as giving,
        engine(store, nats_url, once) as one,
        engine(store, nats_url, once) as two,
    ):
        await until_ready(giving, one, two)
        async with asyncio.timeout(SOON):
            runs = [await submit(giving, "once") for _ in range(30)]
            for number, run in enumerate(runs):
                giving.core.bus.offer("once@0.1.0", run, 100 + number)  # type: ignore[attr-defined]
            for run in runs:
                await giving.runs.wait(run)
        assert sorted(entered) == sorted(runs)


async def test_the_runs_of_a_process_that_was_killed_are_taken_up_by_another(store: Path, nats_url: str) -> None:
    settings = il.Settings(sweep_every=0.2, stall_warning=0, cancel_grace=0.5, shutdown_grace=0.5)
    async with working(store, nats_url) as process, engine(store, nats_url, settings=settings) as eng:
        async with asyncio.timeout(30):
            run = await submit(eng, "talk", n=400, pause=0.002)
            async for event in eng.runs.events(run):
                if event.seq > 50:
                    os.kill(process.pid, signal.SIGKILL)
                    break
            await process.wait()
            async with working(store, nats_url):
                log = await events(eng, run)
        assert contiguous(log)
        assert log[-1].kind == "finished"
        assert await eng.runs.verify(run) is None


async def test_whoever_finds_that_a_process_died_tells_those_who_can_go_on_with_its_runs(
    store: Path, nats_url: str
) -> None:
    quick = il.Settings(sweep_every=0.2, stall_warning=0, cancel_grace=0.5, shutdown_grace=0.5)
    async with working(store, nats_url) as process, engine(store, nats_url, settings=quick) as finder:
        async with asyncio.timeout(30):
            run = await submit(finder, "talk", n=400, pause=0.002)
            async for event in finder.runs.events(run):
                if event.seq > 50:
                    break
            async with engine(store, nats_url, *AGENTS) as other:  # which looks for itself only after thirty seconds
                os.kill(process.pid, signal.SIGKILL)
                await process.wait()
                log = await events(finder, run)
                assert other.core.worker.meters.taken_over == 1
        assert spoken(log) == words(400)


async def test_whoever_buries_a_process_tells_those_who_can_take_its_runs(store: Path, nats_url: str) -> None:
    """A server that runs nothing itself is often the first to see that a worker is dead."""
    looks_often = il.Settings(max_running=0, sweep_every=0.05, stall_warning=0)
    async with engine(store, nats_url, *AGENTS, settings=looks_often) as server, working(store, nats_url) as first:
        run = await submit(server, "talk", n=200, pause=0.02)
        async for event in server.runs.events(run):
            if event.kind == "delta":
                break
        async with engine(store, nats_url, *AGENTS) as other:  # who looks only after half a minute
            # A file tells everybody who has it open that somebody wrote; a database server does not.
            other.core.store.on_change = lambda: None
            first.kill()
            async with asyncio.timeout(25):
                assert spoken(await events(server, run)) == words(200)
        assert other.core.worker.meters.taken_over == 1


async def test_whoever_waits_for_what_others_write_hears_when_the_bus_may_have_missed_it(
    store: Path, tmp_path: Path
) -> None:
    """Keys and peers' journals are no runs: nobody tells of them on the bus, and after a gap they look, too."""
    with LocalNats(tmp_path / "nats") as server:
        async with engine(store, server.url) as eng:
            await until_ready(eng)
            looked = asyncio.Event()
            eng.core.worker.foreign.append(looked.set)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await asyncio.wait_for(looked.wait(), 20)


async def test_everyone_knows_who_is_there_with_which_agents(store: Path, nats_url: str) -> None:
    async with engine(store, nats_url, ask) as one, engine(store, nats_url, listen, forever) as two:
        async with asyncio.timeout(SOON):
            while not (present := two.core.bus.present()):  # type: ignore[attr-defined]
                await asyncio.sleep(0.01)
        assert [(about.worker, about.queues, about.pid) for about in present] == [
            (one.core.worker.id, [one.agents.queue(ask)], os.getpid())
        ]
        with pytest.raises(AgentNotFound):
            await submit(two, "nobody")


async def test_what_is_told_of_a_run_is_what_is_in_the_store(store: Path, nats_url: str) -> None:
    """Hashes and all: a mirror holds nothing that was not committed."""
    async with engine(store, nats_url, talk) as owner, engine(store, nats_url) as eng:
        told: list[il.Event] = []
        async with asyncio.timeout(SOON):
            run = await submit(owner, "talk", n=100, pause=0.002)
            reader = eng.runs.reader(run)
            while not reader.over:
                told += await reader.read()
            reader.close()
        rows: dict[int, EventRow] = {row.seq: row for row in await owner.core.store.runs.event_rows(run, 0, 1000)}
        assert [event.hash for event in told] == [rows[event.seq].hash for event in told]
        assert [event.time for event in told] == [rows[event.seq].time for event in told]

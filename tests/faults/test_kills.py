"""kill -9 at random moments under load. Afterwards everything that was acknowledged is there, once.

The client is this process: it writes down each acknowledgement the moment it reads it, and the killed process has no
say in that. 50 kills in the suite; `make faults` does a thousand.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.events import QuestionAnswered, Recorded, RunFinished
from interlingua.model.filters import RunFilter
from tests.faults.agents import ALL
from tests.faults.conftest import LEASE
from tests.kit import processes
from tests.kit.postgres import forget, fresh


class Client:
    """Drives the server, kills it, starts it again, and remembers what it was told."""

    def __init__(self, store: Path | str, traces: Path, seed: int, longest_life: float) -> None:
        self.store = store
        self.traces = traces
        self.longest_life = longest_life  # seconds
        self.random = random.Random(seed)
        self.runs: dict[str, dict[str, Any]] = {}  # acknowledged: run → request
        self.answered: set[str] = set()  # acknowledged answers
        self.sent: dict[str, list[str]] = {}  # acknowledged messages, in order
        self.kills = 0
        self._tags: dict[int, tuple[str, Any]] = {}
        self._next_tag = 0
        self._unsent: set[str] = set()  # listeners that may still be sent to

    async def start(self) -> asyncio.subprocess.Process:
        process = await processes.start_warm("faults.server", self.store, TRACES=str(self.traces))
        assert await processes.said(process) == "ready"
        return process

    def order(self, kind: str, memo: Any, **order: Any) -> bytes:
        self._next_tag += 1
        self._tags[self._next_tag] = (kind, memo)
        return json.dumps({"do": kind, "tag": self._next_tag, **order}).encode() + b"\n"

    def some_work(self) -> bytes:
        choice = self.random.choice(
            [
                "quick",
                "stream",
                "steps",
                "branches",
                "branches",
                "asker",
                "asker",
                "child_caller",
                "tally",
                "listener",
                "send",
                "questions",
            ]
        )
        n = self.random.randint(1, 9)
        if choice == "questions":
            return self.order("questions", None)
        if choice == "send":
            if not self._unsent:
                return self.order("questions", None)
            run = self.random.choice(sorted(self._unsent))
            self._unsent.discard(run)  # one at a time: what is in flight when it dies may or may not have arrived
            text = str(self.random.random())
            return self.order("send", (run, text), run=run, text=text)
        request: dict[str, Any] = {"agent": choice, "input": {"n": n}}
        if choice == "stream":
            request["input"]["n"] = n * 20
        if choice == "tally":
            request |= {"thread": f"thread-{n % 3}", "create_thread": True, "when_busy": "enqueue"}
        if choice == "quick" and n < 5:
            request["key"] = f"key-{self.random.random()}"
        return self.order("submit", request, request=request)

    def note(self, line: bytes) -> list[bytes]:
        """Write down what was acknowledged. Returns what to do next because of it."""
        told = json.loads(line)
        kind, memo = self._tags.pop(told["tag"])
        if "ok" not in told:
            return []
        if kind == "submit":
            self.runs[told["ok"]] = memo
            if memo["agent"] == "listener":
                self._unsent.add(told["ok"])
        elif kind == "answer":
            self.answered.add(memo)
        elif kind == "send":
            self.sent.setdefault(memo[0], []).append(memo[1])
            self._unsent.add(memo[0])
        elif kind == "questions":
            return [self.order("answer", q, question=q) for q in told["ok"] if self.random.random() < 0.5]
        return []

    async def life(self) -> None:
        """One life of the server: load until a random moment, then kill -9."""
        process = await self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        loop = asyncio.get_running_loop()
        end = loop.time() + self.random.uniform(0.0, self.longest_life)
        try:
            process.stdin.write(b"".join(self.some_work() for _ in range(8)))
            while (left := end - loop.time()) > 0:
                try:
                    async with asyncio.timeout(left):
                        line = await process.stdout.readline()
                except TimeoutError:
                    break
                process.stdin.write(b"".join([*self.note(line), self.some_work()]))
        finally:
            process.kill()
            self.kills += 1
        while line := await process.stdout.readline():  # acknowledged before it died, read after
            if line.endswith(b"\n"):
                self.note(line)
        await processes.end(process)
        self._tags.clear()


def executions(traces: Path) -> dict[tuple[str, str], list[str]]:
    """The marks of every step's executions, in order: by run and step."""
    marks: dict[tuple[str, str], list[str]] = {}
    for line in traces.read_text().splitlines() if traces.exists() else []:
        run, step, mark = line.split()
        marks.setdefault((run, step), []).append(mark)
    return marks


async def check(client: Client) -> Counter[str]:
    """A clean engine takes over; everything ends that can end, and the promises are held against the log."""
    seen: Counter[str] = Counter()
    settings = il.Settings(park_after=0.2, sweep_every=0.05, stall_warning=0)
    os.environ["TRACES"] = str(client.traces)
    async with il.Engine(client.store, agents=ALL, settings=settings) as eng:
        everything = await eng.runs.search(RunFilter(limit=1_000_000))
        known = {run.id for run in everything}
        assert set(client.runs) <= known, "an acknowledged run is missing"
        working = [run for run in everything if run.agent != "listener"]  # those wait for messages that may never come
        for run in working:
            await eng.runs.wait(run.id, timeout=60, settled=run.agent == "asker")
        marks = executions(client.traces)
        for run in working:
            request = client.runs.get(run.id)
            settled = await eng.runs.wait(run.id, timeout=60, settled=run.agent == "asker")
            events = [event async for event in eng.runs.events(run.id, follow=False)]
            seqs = [number for event in events for number in range(event.first, event.seq + 1)]
            assert seqs == list(range(1, len(seqs) + 1)), "a gap in the log"
            assert await eng.runs.verify(run.id) is None, "the chain is broken"
            ends = [event for event in events if isinstance(event.body, RunFinished)]
            assert len(ends) <= 1, "a run ended twice"
            assert bool(ends) == settled.status.final
            if settled.status.final:
                # Whoever dies three times without progress is given up, and its children with it; nothing else fails.
                if run.parent is not None and settled.status is il.Status.CANCELLED:
                    seen[f"{run.agent} cancelled with its parent"] += 1
                    continue
                assert settled.status is il.Status.SUCCEEDED or settled.error.code == "run_lost", settled.error  # type: ignore[union-attr]
            seen[f"{run.agent} {settled.status.value}"] += 1
            if request is not None and settled.status is il.Status.SUCCEEDED:
                n = request["input"]["n"]
                match run.agent:
                    case "quick":
                        assert settled.output == {"value": n}
                    case "stream":
                        assert settled.output == {"text": "".join(f"{k} " for k in range(n))}
                    case "steps":
                        assert len(settled.output["value"]) == n
                    case "branches":
                        assert settled.output == {"value": [f"c{k}" for k in range(n)]}
                    case "child_caller":
                        assert settled.output == {"value": 2 * n + 1}
            if run.agent == "steps":
                for event in events:
                    if isinstance(event.body, Recorded):
                        ran = marks[run.id, event.body.key.split(":")[1]]
                        assert ran[-1] == event.body.value, "a step ran again after it was recorded"
                        seen["repeated before recorded"] += len(ran) - 1
            if run.agent == "branches":
                invoices = [
                    event.body.value.split(":") for event in events
                    if isinstance(event.body, Recorded) and event.body.key.endswith(":invoice")
                ]  # fmt: skip
                assert len({customer for customer, _ in invoices}) == len(invoices), "an invoice was made twice"
                for customer, mark in invoices:
                    assert marks[run.id, customer][-1] == mark, "a step ran again after it was recorded"
            if run.agent == "asker" and not settled.status.final:
                assert settled.status is il.Status.WAITING, "a run that waited no longer waits"
            for event in events:
                if isinstance(event.body, QuestionAnswered):
                    client.answered.discard(event.body.question)
        assert not client.answered, "an acknowledged answer is in no log"
        for run_id, texts in client.sent.items():
            got = [e.body.message.text async for e in eng.runs.events(run_id, follow=False) if e.kind == "received"]  # type: ignore[union-attr]
            known = [text for text in got if text in texts]
            # An agent that has read all it wanted ends; what was sent after that it has not read.
            expected = texts[: len(known)] if (await eng.runs.get(run_id)).status.final else texts
            assert known == expected, "an acknowledged message is missing or out of order"
        for thread in {r.thread for r in everything if r.thread}:
            values = (await eng.threads.get(thread)).values
            wins = [
                r for r in everything if r.thread == thread and (await eng.runs.get(r.id)).status is il.Status.SUCCEEDED
            ]
            total = sum([(await eng.runs.get(r.id)).request.input["n"] for r in wins])  # type: ignore[union-attr]
            assert values == {"total": total}, "thread state lost or counted twice"
    return seen


async def kill_often(store: Path | str, tmp_path: Path, kills: int, seed: int, longest_life: float = 0.25) -> None:
    client = Client(store, tmp_path / "traces", seed, longest_life)
    while client.kills < kills:
        await client.life()
    seen = await check(client)
    print(f"\n{client.kills} kills, {len(client.runs)} acknowledged runs: {dict(sorted(seen.items()))}")
    assert len(client.runs) >= kills  # there was load worth the name
    assert any("succeeded" in name for name in seen)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_acknowledged_is_lost_in_fifty_kills(tmp_path: Path, seed: int) -> None:
    await kill_often(tmp_path / "store.db", tmp_path, 25, seed)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 110))
async def test_nothing_acknowledged_is_lost_in_a_thousand_kills(tmp_path: Path, seed: int) -> None:
    await kill_often(tmp_path / "store.db", tmp_path, 100, seed)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(200, 205))
async def test_nothing_acknowledged_is_lost_in_hundreds_of_kills_on_postgres(
    postgres: str, tmp_path: Path, seed: int
) -> None:
    """A process that was killed is missed when its lease has run out: many lives are longer than that, and take over
    what the one before had."""
    store = f"{fresh(postgres)}&lease={LEASE:g}"
    await kill_often(store, tmp_path, 40, seed, longest_life=3 * LEASE)
    forget(store)

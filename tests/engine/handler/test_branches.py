"""Replay by branches: each task of a handler gets its own records back, and what does not fit blocks the run."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

import interlingua as il
from interlingua.engine.agents.codec import Codec
from interlingua.engine.log.record_keys import place_of
from interlingua.model.errors import InvalidRequest
from interlingua.model.events import QuestionAsked, Recorded, RunRestarted, Thought
from tests.kit.engines import PATIENT, QUICK, blocked, bodies, crash, engine, finish, log, parked, question, submit

Wait = Callable[[str], Awaitable[None]]


class Gate:
    """Holds back branches by name, so that they come in another order than the last time."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self._passed: dict[str, asyncio.Event] = {}

    async def wait(self, name: str) -> None:
        if name in self.order:
            place = self.order.index(name)
            if place:
                await self._event(self.order[place - 1]).wait()
        self._event(name).set()

    def _event(self, name: str) -> asyncio.Event:
        return self._passed.setdefault(name, asyncio.Event())

    def set_order(self, *names: str) -> None:
        self.order = list(names)
        self._passed.clear()


async def both_recorded(eng: il.Engine, run: str, count: int) -> None:
    async with asyncio.timeout(20):
        while len(await bodies(eng, run, Recorded)) < count:
            await eng.runs.next_hint(run)


@pytest.mark.parametrize("how", ["gather", "group", "tasks", "wait_for"])
async def test_branches_get_their_own_records_in_whatever_order_they_come(store: Path, how: str) -> None:
    """Nobody gets the invoice of somebody else."""
    gate, mailed, done = Gate(), list[str](), Counter[str]()

    async def fetch(customer: str) -> str:
        done[customer] += 1
        return f"invoice of {customer}"

    @il.agent(asks=[il.Confirm])
    async def billing(ctx: il.Context[None, None]) -> str:
        async def bill(customer: str) -> None:
            await gate.wait(customer)
            invoice = await ctx.step("fetch", lambda: fetch(customer))
            await ctx.ask(il.Confirm(f"Send to {customer}?"))
            mailed.append(f"{customer}: {invoice}")

        if how == "gather":
            await asyncio.gather(bill("ada"), bill("bob"))
        elif how == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(bill("ada"))
                group.create_task(bill("bob"))
        elif how == "tasks":
            tasks = [asyncio.create_task(bill("ada")), asyncio.create_task(bill("bob"))]
            for task in tasks:
                await task
        else:
            await asyncio.gather(asyncio.wait_for(bill("ada"), 60), asyncio.wait_for(bill("bob"), 60))
        return "done"

    gate.set_order("ada", "bob")
    eng = await engine(store, billing, settings=PATIENT).__aenter__()
    run = await submit(eng, "billing")
    await question(eng, run.id)
    await both_recorded(eng, run.id, 2)
    await crash(eng)

    gate.set_order("bob", "ada")
    async with engine(store, billing) as eng:
        async with asyncio.timeout(20):
            while len(await eng.questions.open()) < 2:
                await eng.runs.next_hint(run.id)
        asked = {one.payload["message"]: one for one in await eng.questions.open()}
        await eng.questions.answer(asked["Send to bob?"].id, {"approved": True})
        await eng.questions.answer(asked["Send to ada?"].id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "done"}
        assert len(await bodies(eng, run.id, QuestionAsked)) == 2
    assert set(mailed) == {"ada: invoice of ada", "bob: invoice of bob"}
    assert done == {"ada": 1, "bob": 1}


async def test_branches_get_their_own_records_after_every_park(store: Path) -> None:
    gate, seen, order = Gate(), list[tuple[str, str, str]](), ["ada", "bob"]

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        order.reverse()  # the tasks come in another order each time
        gate.set_order(*order)

        async def work(name: str) -> str:
            await gate.wait(name)
            id_ = ctx.uuid()
            value = await ctx.step("name", lambda: name)
            seen.append((name, value, id_))
            await ctx.ask(il.Confirm(f"First of {name}?"))
            await ctx.ask(il.Confirm(f"Second of {name}?"))
            return value

        return " ".join(await asyncio.gather(work("ada"), work("bob")))

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        for _ in range(4):
            await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "ada bob"}
        assert len(await bodies(eng, run.id, QuestionAsked)) == 4
    assert len(set(seen)) == 2
    assert all(name == value for name, value, _ in seen)


async def test_children_of_branches_are_called_once(store: Path) -> None:
    gate, calls = Gate(), Counter[str]()

    @il.agent
    async def child(name: str) -> str:
        calls[name] += 1
        return f"work of {name}"

    @il.agent(asks=[il.Confirm])
    async def parent(ctx: il.Context[None, None]) -> str:
        async def work(name: str) -> str:
            await gate.wait(name)
            return str(await ctx.call(child, name=name))

        results = await asyncio.gather(work("ada"), work("bob"))
        await ctx.ask(il.Confirm("Good?"))
        return " ".join(results)

    gate.set_order("ada", "bob")
    eng = await engine(store, parent, child, settings=PATIENT).__aenter__()
    run = await submit(eng, "parent")
    asked = await question(eng, run.id)
    await crash(eng)
    gate.set_order("bob", "ada")
    async with engine(store, parent, child) as eng:
        await eng.questions.answer(asked.id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "work of ada work of bob"}
    assert calls == {"ada": 1, "bob": 1}


async def test_messages_stay_with_the_branch_that_took_them(store: Path) -> None:
    gate, taken = Gate(), list[tuple[str, str]]()

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        async def read(name: str) -> None:
            await gate.wait(name)
            taken.append((name, (await ctx.receive()).text))

        await asyncio.gather(read("ada"), read("bob"))
        await ctx.ask(il.Confirm("Good?"))
        return "done"

    gate.set_order("ada", "bob")
    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.runs.send(run.id, "one")
        await eng.runs.send(run.id, "two")
        asked = await question(eng, run.id)
        await parked(eng, run.id)
        gate.set_order("bob", "ada")
        await eng.questions.answer(asked.id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "done"}
    assert len(taken) > 2
    assert len(set(taken)) == 2


async def test_branches_have_paths_and_steps_make_none(store: Path) -> None:
    async def in_a_step(ctx: il.Context[None, None]) -> str:
        async def inner() -> None:
            await ctx.thought("inside")

        await asyncio.gather(inner(), inner())
        return "done"

    @il.agent
    async def agent(ctx: il.Context[None, None]) -> str:
        async def leaf() -> None:
            ctx.uuid()

        async def branch() -> None:
            await asyncio.gather(leaf(), leaf())
            ctx.uuid()

        await ctx.step("first", in_a_step, ctx)
        await asyncio.gather(branch(), branch())
        await ctx.step("last", lambda: None)
        return "done"

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.error is None
        places = [place_of(record.key) for record in await bodies(eng, run.id, Recorded)]
    found = {(place.branch, place.position, place.kind) for place in places if place is not None}
    assert found == {
        ("", 1, "step"), ("1.1", 1, "uuid"), ("1.2", 1, "uuid"), ("2.1", 1, "uuid"), ("2.2", 1, "uuid"),
        ("1", 1, "uuid"), ("2", 1, "uuid"), ("", 2, "step"),
    }  # fmt: skip


async def test_a_record_with_a_key_is_matched_by_that_alone(store: Path) -> None:
    calls: list[int] = []
    entries = 0

    def charge(amount: int) -> int:
        calls.append(amount)
        return amount

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        nonlocal entries
        entries += 1
        if entries == 1:
            first = await ctx.step("charge", charge, 10, key="the-charge")
            await ctx.ask(il.Confirm("Good?"), key="good")
        else:  # in another branch, by another name, with other arguments
            first, _ = await asyncio.gather(
                ctx.step("pay", charge, 999, key="the-charge"), ctx.ask(il.Confirm("Fine?"), key="good")
            )
        return str(first)

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "10"}
    assert calls == [10]


@pytest.mark.parametrize("how", ["result", "failure", "cancelled"])
async def test_a_key_that_several_branches_use_at_once_is_one_step(store: Path, how: str) -> None:
    calls: list[str] = []
    entries = 0

    async def charge(branch: str) -> str:
        calls.append(branch)
        await asyncio.sleep(0.05)
        if how == "failure":
            raise ValueError("no money")
        return f"charged by {branch}"

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> list[str]:
        nonlocal entries
        entries += 1

        async def pay(branch: str) -> str:
            try:
                return str(await ctx.step("charge", charge, branch, key="order-1"))
            except il.StepFailed as error:
                return error.error.message

        tasks = [asyncio.create_task(pay(branch)) for branch in "abc"]
        if how == "cancelled" and entries == 1:
            await asyncio.sleep(0.02)
            tasks[0].cancel()
        paid = await asyncio.gather(*tasks, return_exceptions=True)
        await ctx.ask(il.Confirm("Good?"))
        return [str(one) for one in paid if not isinstance(one, BaseException)]

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        asked = await question(eng, run.id)
        await parked(eng, run.id)
        await eng.questions.answer(asked.id, {"approved": True})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert len(await bodies(eng, run.id, Recorded)) == 1
    assert ended.output is not None
    assert calls == (["a", "b"] if how == "cancelled" else ["a"])
    said = {"result": "charged by a", "failure": "ValueError: no money", "cancelled": "charged by b"}
    assert set(ended.output["value"]) == {said[how]}
    assert entries == 2


@pytest.mark.parametrize("settings", [QUICK, PATIENT], ids=["parked", "in memory"])
async def test_a_key_that_several_branches_use_at_once_is_one_question(store: Path, settings: il.Settings) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> list[bool]:
        verdicts = await asyncio.gather(*(ctx.ask(il.Confirm("Pay?"), key="order-1") for _ in range(3)))
        await ctx.ask(il.Confirm("Good?"))
        return [verdict.approved for verdict in verdicts]

    async with engine(store, agent, settings=settings) as eng:
        run = await submit(eng, "agent")
        for _ in range(2):
            (open_,) = (await eng.runs.wait(run.id, timeout=20, settled=True)).questions
            await eng.questions.answer(open_.id, {"approved": True})
            async with asyncio.timeout(20):
                while open_.id in [one.id for one in await eng.questions.open(run=run.id)]:
                    await eng.runs.next_hint(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"value": [True, True, True]}
        assert len(await bodies(eng, run.id, QuestionAsked)) == 2


async def test_one_deadline_is_that_of_all_who_ask_by_a_key(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> list[str]:
        async def ask(limit: float | None) -> str:
            try:
                async with asyncio.timeout(limit):
                    await ctx.ask(il.Confirm("Pay?"), deadline=0.3, key="order-1")
            except TimeoutError:
                return "gave up"
            except il.QuestionExpired:
                return "expired"
            return "answered"

        return await asyncio.gather(ask(None), ask(0.05), ask(None))

    async with engine(store, agent, settings=PATIENT) as eng:
        assert (await finish(eng, "agent")).output == {"value": ["expired", "gave up", "expired"]}


@pytest.mark.parametrize("settings", [QUICK, PATIENT], ids=["parked", "in memory"])
async def test_a_question_that_expired_is_asked_anew_by_the_same_key(store: Path, settings: il.Settings) -> None:
    expired = False

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        nonlocal expired
        while True:
            try:
                verdict = await ctx.ask(il.Confirm("Pay?"), deadline=60 if expired else 0.2, key="order-1")
                return str(verdict.approved)
            except il.QuestionExpired:
                expired = True
                await ctx.thought("again")

    async with engine(store, agent, settings=settings) as eng:
        run = await submit(eng, "agent")
        async with asyncio.timeout(20):
            while len(asked := await bodies(eng, run.id, QuestionAsked)) < 2:
                await eng.runs.next_hint(run.id)
        await eng.questions.answer(asked[1].question.id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "True"}
        assert len(await bodies(eng, run.id, Thought)) == 1


# -- other code ---------------------------------------------------------------------------------------------


def charge(amount: int = 0) -> int:
    CHARGED.append(amount)
    return amount


class Opaque:
    """Cannot be written as JSON."""


class Order(pydantic.BaseModel):
    amount: int


CHARGED: list[int] = []
Code = Callable[[il.Context[None, None]], Awaitable[Any]]


async def _charge_10(ctx: il.Context[None, None]) -> None:
    await ctx.step("charge", charge, 10)


async def _charge_999(ctx: il.Context[None, None]) -> None:
    await ctx.step("charge", charge, 999)


async def _refund_10(ctx: il.Context[None, None]) -> None:
    await ctx.step("refund", charge, 10)


async def _uuid_before(ctx: il.Context[None, None]) -> None:
    ctx.uuid()
    await _charge_10(ctx)


async def _charge_nothing(ctx: il.Context[None, None]) -> None:
    await ctx.step("charge", charge)


async def _charge_10_by_a_client(ctx: il.Context[None, None]) -> None:
    await ctx.step("charge", lambda client, amount, by: charge(amount), Opaque(), 10, by=Opaque())


async def _charge_999_by_a_client(ctx: il.Context[None, None]) -> None:
    await ctx.step("charge", lambda client, amount, by: charge(amount), Opaque(), 999, by=Opaque())


async def _charge_an_order_of_10(ctx: il.Context[None, None]) -> None:
    await ctx.step("charge", lambda orders: charge(orders[0].amount), [Order(amount=10)])


async def _charge_an_order_of_999(ctx: il.Context[None, None]) -> None:
    await ctx.step("charge", lambda orders: charge(orders[0].amount), [Order(amount=999)])


async def _nothing(ctx: il.Context[None, None]) -> None:
    pass


async def _call(ctx: il.Context[None, None]) -> None:
    await ctx.call("helper", amount=10)


async def _call_other(ctx: il.Context[None, None]) -> None:
    await ctx.call("helper", amount=999)


async def _in_a_branch(ctx: il.Context[None, None]) -> None:
    await asyncio.gather(_charge_10(ctx), asyncio.sleep(0))


async def _in_a_shorter_branch(ctx: il.Context[None, None]) -> None:
    await asyncio.gather(_nothing(ctx), asyncio.sleep(0))


CHANGES: dict[str, tuple[Code, Code, str]] = {
    "other arguments": (
        _charge_10, _charge_999, "the history has step 'charge' (10) here; the code calls step 'charge' (999)"
    ),
    "no arguments": (
        _charge_10, _charge_nothing, "the history has step 'charge' (10) here; the code calls step 'charge'"
    ),
    "other arguments beside some that cannot be written down": (
        _charge_10_by_a_client, _charge_999_by_a_client,
        "the history has step 'charge' (…, 10, by=…) here; the code calls step 'charge' (…, 999, by=…)",
    ),
    "other models": (
        _charge_an_order_of_10, _charge_an_order_of_999,
        "the history has step 'charge' ([{\"amount\":10}]) here; the code calls step 'charge' ([{\"amount\":999}])",
    ),
    "another name": (
        _charge_10, _refund_10, "the history has step 'charge' (10) here; the code calls step 'refund' (10)"
    ),
    "another kind": (_charge_10, _uuid_before, "the history has step 'charge' (10) here; the code calls uuid"),
    "left out": (
        _charge_10, _nothing,
        "the history has step 'charge' (10) here; the code calls ask 'confirm' ({\"message\":\"Good?\"})",
    ),
    "another child": (
        _call, _call_other,
        "the history has call 'helper' ({\"amount\":10}) here; the code calls call 'helper' ({\"amount\":999})",
    ),
    "a shorter branch": (
        _in_a_branch, _in_a_shorter_branch, "the history has step 'charge' (10) here; the code ended"
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
async def test_other_code_blocks_the_run_and_nothing_is_executed(store: Path, change: str) -> None:
    before, after, message = CHANGES[change]
    CHARGED.clear()

    @il.agent
    async def helper(amount: int) -> int:
        return charge(amount)

    def agent_with(code: Code) -> il.Agent[..., Any]:
        @il.agent(name="payer", asks=[il.Confirm])
        async def payer(ctx: il.Context[None, None]) -> str:
            await code(ctx)
            await ctx.ask(il.Confirm("Good?"))
            return "done"

        return payer

    async with engine(store, agent_with(before), helper) as eng:
        run = await submit(eng, "payer")
        asked = await question(eng, run.id)
        await parked(eng, run.id)
    async with engine(store, agent_with(after), helper) as eng:
        await eng.questions.answer(asked.id, {"approved": True})
        found = (await blocked(eng, run.id)).blocked
        assert found is not None
        assert (found.reason, found.message) == ("history_mismatch", message)
        assert [one.id for one in await eng.questions.open()] == []
    assert CHARGED == [10]


async def test_history_that_the_code_does_not_come_to_blocks_the_run(store: Path) -> None:
    entries = 0

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        nonlocal entries
        entries += 1
        if entries == 1:
            await ctx.ask(il.Confirm("Good?"))
        return "done"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        found = (await blocked(eng, run.id)).blocked
        assert found is not None
        assert found.message == 'the history has ask \'confirm\' ({"message":"Good?"}) here; the code ended'


async def test_a_question_that_is_asked_in_other_words_is_not_answered_by_the_old_answer(store: Path) -> None:
    drafts = iter(["first draft", "second draft"])

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        await ctx.ask(il.Confirm(next(drafts)))
        return "sent"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        found = (await blocked(eng, run.id)).blocked
        assert found is not None
        assert "first draft" in found.message
        assert "second draft" in found.message
        assert found.details["history"].startswith("ask 'confirm'")


async def test_arguments_that_cannot_be_written_down_are_not_compared(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        await ctx.step("open", lambda *things, **more: None, Opaque(), [Opaque()], 10, more=Opaque())
        await ctx.step("close", lambda thing: None, Opaque())
        await ctx.ask(il.Confirm("Good?"))
        return "done"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "done"}


async def test_how_long_a_wait_is_may_change_and_the_moment_that_was_noted_stays(store: Path) -> None:
    limits = itertools.chain([0.01], itertools.repeat(600.0))

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        limit = next(limits)
        await ctx.sleep(limit)
        await ctx.ask(il.Confirm("Good?"), deadline=600 + limit)
        return "done"

    async with engine(store, agent, settings=PATIENT) as eng:
        run = await submit(eng, "agent")
        asked = await question(eng, run.id)
        await crash(eng)
    async with engine(store, agent) as eng:
        assert (await question(eng, run.id)).deadline == asked.deadline
        await eng.questions.answer(asked.id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "done"}


class TagsQuestion(il.Question[il.Verdict]):
    tags: set[int]


class TaggedModel(pydantic.BaseModel):
    tags: frozenset[int]
    names: list[str] = ["b", "a"]
    pairs: list[tuple[int, set[int]]] = []


@dataclasses.dataclass(frozen=True)
class Tagged:
    tags: frozenset[int]
    by_name: dict[str, tuple[set[int], ...]] = dataclasses.field(default_factory=dict)


class Tags(msgspec.Struct):
    tags: set[int]


@pytest.mark.parametrize("what", ["step", "nested", "question", "call", "output"])
async def test_sets_are_the_same_in_whatever_order_they_list_their_members(store: Path, what: str) -> None:
    """A set of texts lists its members in another order in each process."""
    entries = 0

    @il.agent
    async def helper(tags: set[int]) -> int:
        return len(tags)

    @il.agent(asks=[il.Confirm, TagsQuestion])
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[Tags]:
        nonlocal entries
        entries += 1
        tags = {0, 8} if entries == 1 else {8, 0}
        assert list(tags) == ([0, 8] if entries == 1 else [8, 0])
        match what:
            case "step":
                await ctx.step("count", len, tags)
            case "nested":
                await ctx.step("keep", lambda *some, **more: None, Tagged(frozenset(tags), {"a": (tags,)}), more=[tags])
            case "question":
                await ctx.ask(TagsQuestion(tags))
            case "call":
                await ctx.call(helper, tags=tags)
        yield Tags(tags)
        await ctx.ask(il.Confirm("Good?"))

    async with engine(store, agent, helper) as eng:
        run = await submit(eng, "agent")
        for _ in range(2 if what == "question" else 1):
            await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output == {"tags": [0, 8]}
        assert entries > 1
        assert not await bodies(eng, run.id, RunRestarted)


def test_so_are_those_of_pydantic_models() -> None:
    codec = Codec(dict[str, TaggedModel], what="the value")
    for tags in {0, 8}, {8, 0}:
        model = TaggedModel(tags=frozenset(tags), pairs=[(1, tags)])
        assert codec.encode({"a": model}) == {"a": {"tags": [0, 8], "names": ["b", "a"], "pairs": [[1, [0, 8]]]}}


async def test_a_call_that_was_cut_short_left_no_record_and_is_made_again(store: Path) -> None:
    tries = 0

    async def slow() -> None:
        nonlocal tries
        tries += 1
        await asyncio.Event().wait()

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        try:
            async with asyncio.timeout(0.05):
                await ctx.step("slow", slow)
        except TimeoutError:
            await ctx.step("note", lambda: "too slow")
        await ctx.ask(il.Confirm("Good?"))
        return "done"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "done"}
    assert tries == 2


async def test_history_of_a_branch_that_was_cancelled_need_not_be_used(store: Path) -> None:
    entries = 0

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        nonlocal entries
        entries += 1

        async def beside() -> None:
            if entries > 1:
                await asyncio.Event().wait()
            await ctx.step("beside", lambda: None)
            await asyncio.Event().wait()

        task = asyncio.create_task(beside())
        await ctx.step("work", asyncio.sleep, 0.05)
        task.cancel()
        await ctx.ask(il.Confirm("Good?"))
        return "done"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "done"}
        assert len(await bodies(eng, run.id, Recorded)) == 2


# -- threads --------------------------------------------------------------------------------------------------


async def test_a_thread_that_an_async_handler_started_may_not_use_its_context(store: Path) -> None:
    @il.agent
    async def agent(ctx: il.Context[None, None]) -> str:
        return await asyncio.to_thread(ctx.uuid)

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.error is not None
        assert "in a thread that its handler started itself" in run.error.message


async def test_a_thread_that_a_plain_handler_started_may_not_use_its_context(store: Path) -> None:
    errors: list[BaseException] = []

    @il.agent
    def agent(ctx: il.SyncContext[None, None]) -> str:
        def work() -> None:
            try:
                ctx.step("charge", lambda: 1)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return str(ctx.step("mine", lambda: 2))

    async with engine(store, agent) as eng:
        run = await finish(eng, "agent")
        assert run.output == {"text": "2"}
        assert len(await bodies(eng, run.id, Recorded)) == 1
    (error,) = errors
    assert isinstance(error, InvalidRequest)
    assert "in a thread that its handler started itself" in error.message


async def test_a_plain_handler_is_one_branch(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    def agent(ctx: il.SyncContext[None, None]) -> str:
        first = ctx.uuid()
        ctx.step("work", lambda: None)
        ctx.ask(il.Confirm("Good?"))
        return first

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.error is None
        records = await bodies(eng, run.id, Recorded)
        assert [record.key for record in records] == ["uuid@/1:", "step@/2:work"]
        assert done.output == {"text": records[0].value}


async def test_a_task_factory_of_the_program_still_makes_the_tasks(store: Path) -> None:
    made: list[Any] = []

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **more)
        made.append(task)
        return task

    @il.agent
    async def agent(ctx: il.Context[None, None]) -> str:
        async def work() -> str:
            return await ctx.step("work", lambda: "done")

        return (await asyncio.gather(work(), work()))[1]

    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)
    try:
        async with engine(store, agent) as eng:
            run = await finish(eng, "agent")
            assert run.output == {"text": "done"}
            keys = {record.key for record in await bodies(eng, run.id, Recorded)}
    finally:
        loop.set_task_factory(None)
    assert keys == {"step@1/1:work", "step@2/1:work"}
    assert made


async def test_generators_may_have_branches(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        async def work(name: str) -> str:
            return str(await ctx.step("work", lambda: name))

        for name in await asyncio.gather(work("ada"), work("bob")):
            yield f"{name} "
        await ctx.ask(il.Confirm("Good?"))
        yield "done"

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "ada bob done"}
        assert not [event for event in await log(eng, run.id) if event.kind == "restarted"]


# -- what comes first ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["ada", "bob"])
async def test_the_first_of_two_answers_is_the_first_again(store: Path, first: str) -> None:
    """In a replay both are there at once."""
    seen: list[list[str]] = []

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        asking = {asyncio.create_task(ctx.ask(il.Confirm(name))): name for name in ("ada", "bob")}
        done, left = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        seen.append(sorted(asking[task] for task in done))
        (winner,) = seen[-1]
        await ctx.step(winner, lambda: None)
        await asyncio.wait(left)
        await ctx.ask(il.Confirm("Good?"))
        return winner

    other = {"ada": "bob", "bob": "ada"}[first]
    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        async with asyncio.timeout(20):
            while len(await eng.questions.open()) < 2:
                await eng.runs.next_hint(run.id)
        asked = {one.payload["message"]: one for one in await eng.questions.open()}
        await eng.questions.answer(asked[first].id, {"approved": True})
        async with asyncio.timeout(20):
            while not await bodies(eng, run.id, Recorded):
                await eng.runs.next_hint(run.id)
        await eng.questions.answer(asked[other].id, {"approved": True})
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": first}
    assert len(seen) > 1
    assert seen == [[first]] * len(seen)


@pytest.mark.parametrize("late", [False, True])
async def test_a_wait_that_was_faster_than_an_answer_is_so_again(store: Path, late: bool) -> None:
    seen: list[str] = []

    @il.agent(asks=[il.Confirm])
    async def agent(ctx: il.Context[None, None]) -> str:
        asking = asyncio.create_task(ctx.ask(il.Confirm("first")))
        waiting = asyncio.create_task(ctx.sleep(0.2 if late else 0.5))
        done, _ = await asyncio.wait([asking, waiting], return_when=asyncio.FIRST_COMPLETED)
        seen.append("both" if len(done) == 2 else "answer" if asking in done else "time")
        await ctx.step(seen[-1], lambda: None)
        await asyncio.gather(asking, waiting)
        await ctx.ask(il.Confirm("second"))
        return seen[-1]

    async with engine(store, agent) as eng:
        run = await submit(eng, "agent")
        asked = await question(eng, run.id)
        if late:
            async with asyncio.timeout(20):
                while "time" not in seen:
                    await eng.runs.next_hint(run.id)
        await eng.questions.answer(asked.id, {"approved": True})
        async with asyncio.timeout(20):
            while not (left := [one for one in await eng.questions.open() if one.id != asked.id]):
                await eng.runs.next_hint(run.id)
        await parked(eng, run.id)
        await eng.questions.answer(left[0].id, {"approved": True})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "time" if late else "answer"}
    assert len(set(seen)) == 1

"""Answers that cross with the next question on the wire: they answer the one that they were given for, or none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.events import Warned
from interlingua.protocols.peer.mount.connection import Connection
from tests.kit.engines import bodies, question, submit
from tests.kit.mounts.peer import BINDINGS, mounted, output, remote, runs_of
from tests.kit.peer_nodes import at_door, checked, running_node, text

from .test_mount_odd import CHOICE, asked_again, puppet

NAMED = "interlingua/question"


@il.agent(asks=[il.Confirm])
async def twice(ctx: il.Context[Any, Any], text: str) -> str:
    first = await ctx.ask(il.Confirm("Paint it?"))
    second = await ctx.ask(il.Confirm("Burn it?"))
    return f"{first.approved} {second.approved}"


class Held:
    """Answers on their way, which arrive when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent = asyncio.Event()
        self._held: list[tuple[Connection, dict[str, Any]]] = []
        self._send = Connection.send
        held = self

        def send(connection: Connection, frame: dict[str, Any]) -> None:
            if frame["type"] == "acp.message" and not held.sent.is_set():
                held._held.append((connection, frame))
                held.sent.set()
            else:
                held._send(connection, frame)

        monkeypatch.setattr(Connection, "send", send)

    def arrive(self) -> None:
        for connection, frame in self._held:
            self._send(connection, frame)


@pytest.mark.parametrize("kind", BINDINGS)
async def test_an_answer_that_crosses_with_the_next_question_does_not_answer_that(
    store: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with remote(kind, agents=[twice]) as there, mounted(store, there.link) as (eng, _):
        held = Held(monkeypatch)
        run = await submit(eng, "twice", {"text": "x"})
        here = await question(eng, run.id)
        (far,) = await runs_of(there.node)
        paint = await question(there.engine, far.id)
        await eng.questions.answer(here.id, {"approved": True}, by=il.Caller("ada"))
        await asyncio.wait_for(held.sent.wait(), 20)
        await there.engine.questions.answer(paint.id, {"approved": False})  # somebody there is first
        burn = await asked_again(eng, run.id, here.id)
        held.arrive()
        async for event in eng.runs.events(run.id):
            if isinstance(event.body, Warned):
                break
        late = event.body
        assert isinstance(late, Warned)
        assert late.message.startswith("the answer given here (by ada) came too late: the question had been answered")
        assert late.details == {"question": here.id}
        assert [one.prompt for one in await there.engine.questions.open(run=far.id)] == ["Burn it?"]
        await eng.questions.answer(burn.id, {"approved": False})
        assert await output(eng, run.id) == {"text": "False False"}
        assert len(await bodies(eng, run.id, Warned)) == 1


async def test_an_answer_names_the_question_that_it_is_for(store: Path) -> None:
    async with puppet(store) as (there, eng, run, task):
        await there.tell(task, "input_required", question={"id": "q1", "type": "colour", "answer_schema": CHOICE})
        await eng.questions.answer((await question(eng, run)).id, {"colour": "blue"})
        assert (await there.came("acp.message", task_id=task))["metadata"] == {NAMED: "q1"}
        await there.tell(task, "completed", artifact={"parts": text("blue it is")})
        await output(eng, run)


async def test_an_answer_to_a_question_that_is_over_is_refused_and_says_so() -> None:
    async with at_door(twice) as (_, http):
        made = [checked(await http.post("/tasks", json={"role": "user", "text": "x"}), 201)["id"] for _ in range(2)]
        task, other = [checked(await http.get(f"/tasks/{id_}:wait"), 200)["task"] for id_ in made]
        paint, path = task["question"]["id"], f"/tasks/{task['id']}:continue"
        yes = {"role": "user", "parts": [{"type": "data", "content": {"answer": {"approved": True}}}]}
        answer = {**yes, "task_id": task["id"], "metadata": {NAMED: paint}}
        told = checked(await http.post("/message:send", json={**answer, "sync": True}), 200)
        burn = told["task"]["question"]
        assert burn["prompt"] == "Burn it?"
        for refused in (await http.post(path, json=answer), await http.post("/message:send", json=answer)):
            error = checked(refused, 400)
            assert (error["error_code"], error["code"]) == ("ERR_INVALID_REQUEST", "already_answered")
            assert f"question {paint} is answered already" in error["error"]
        wrong = {**answer, "metadata": {NAMED: other["question"]["id"]}}
        assert "has not asked" in checked(await http.post(path, json=wrong), 400)["error"]
        checked(await http.post(path, json={**answer, "metadata": {NAMED: burn["id"]}}), 200)
        done = checked(await http.get(f"/tasks/{task['id']}:wait"), 200)["task"]
        assert done["artifact"]["parts"] == text("True True")
        late = checked(await http.post("/message:send", json={**answer, "task_id": other["id"]}), 400)
        assert "has not asked" in late["error"]


async def test_a_wait_that_begins_beside_an_answer_does_not_show_the_answered_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with at_door(twice) as (node, http):
        made = checked(await http.post("/tasks", json={"role": "user", "text": "x"}), 201)["id"]
        asked = checked(await http.get(f"/tasks/{made}:wait"), 200)["task"]["question"]
        assert asked["prompt"] == "Paint it?"
        journal, looks = node.node.journal, 0
        task_of = journal.task

        async def answered_meanwhile(scope: str, id_: str) -> Any:
            nonlocal looks
            task = await task_of(scope, id_)
            looks += 1
            if looks == 2:  # the first look finds the task, the second one is that of the wait
                await node.node.engine.questions.answer(asked["id"], {"approved": True})
            return task

        monkeypatch.setattr(journal, "task", answered_meanwhile)
        burn = checked(await http.get(f"/tasks/{made}:wait"), 200)["task"]["question"]
        assert looks > 2
        assert burn["prompt"] == "Burn it?"


async def test_an_answer_to_a_question_that_is_over_is_nothing_for_an_agent_that_works_to_read() -> None:
    heard, goes_on = asyncio.Event(), asyncio.Event()

    @il.agent(asks=[il.Confirm])
    async def once(ctx: il.Context[Any, Any], text: str) -> str:
        await ctx.ask(il.Confirm("Paint it?"))
        heard.set()
        await goes_on.wait()
        return f"{len(ctx.messages)}"

    async with at_door(once) as (_, http):
        made = checked(await http.post("/tasks", json={"role": "user", "text": "x"}), 201)["id"]
        task = checked(await http.get(f"/tasks/{made}:wait"), 200)["task"]
        answer = {"role": "user", "text": "yes", "task_id": made, "metadata": {NAMED: task["question"]["id"]}}
        checked(await http.post("/message:send", json=answer), 200)
        await asyncio.wait_for(heard.wait(), 20)
        assert checked(await http.post("/message:send", json=answer), 400)["code"] == "already_answered"
        goes_on.set()
        done = checked(await http.get(f"/tasks/{made}:wait"), 200)["task"]
        assert done["artifact"]["parts"] == text("1")


async def test_an_answer_names_its_question_also_to_the_peer_that_works_on_the_task() -> None:
    async with running_node("Ann") as ann, running_node("Ben", agents=[twice]) as ben:
        await ann.connect(ben)
        task = (await ann.post("/tasks", {"role": "user", "text": "x"}, 201))["id"]
        await ann.state(task, "input_required")
        asked = (await ann.get(f"/tasks/{task}"))["question"]
        path = f"/tasks/{task}:continue"
        wrong = await ann.http.post(path, json={"text": "yes", "metadata": {NAMED: "another"}})
        assert checked(wrong, 400)["code"] == "already_answered"
        await ann.post(path, {"text": "yes", "metadata": {NAMED: asked["id"]}})
        (run,) = await runs_of(ben.node)
        burn = await asked_again(ben.node.engine, run.id, asked["id"])
        assert burn.prompt == "Burn it?"

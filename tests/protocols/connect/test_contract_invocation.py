"""What the document asks of invocations: what they take, what they return, and what the execution identifier is for."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

import interlingua as il

from .test_door import AGENTS, NOBODY, Gate, Receiver, Style, chat, echo, mailer, up


async def test_an_invocation_starts_the_agent_and_nothing_else_does(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s:
        await s.post("/agents/search", {})
        await s.get("/agents/held/descriptor")
        await s.thread()
        assert gate.runs == []
        run = await s.run("held")
        await gate.entered.get()
        assert gate.runs == [run]
        gate.go.set()


async def test_the_agent_gets_exactly_the_input_of_its_invocation(store: Path) -> None:
    got: list[Any] = []

    @il.agent
    async def keeper(things: dict[str, Any], more: list[Any]) -> str:
        got.append((things, more))
        return "kept"

    async with up(store, keeper) as s:
        given = {"things": {"a": [1, None, {"b": "ü"}]}, "more": [True, 2.5]}
        await s.post("/runs/wait", {"agent_id": "keeper", "input": given})
        assert got == [(given["things"], given["more"])]
        await s.post("/runs/wait", {"agent_id": "keeper"}, 422)


async def test_an_invocation_takes_a_configuration_or_none(store: Path) -> None:
    got: list[str] = []

    @il.agent
    async def styled(ctx: il.Context[None, Style]) -> str:
        got.append(ctx.config.style)
        return ctx.config.style

    async with up(store, styled) as s:
        for path in ("/runs/wait", f"/threads/{await s.thread()}/runs/wait"):
            given = {"agent_id": "styled", "config": {"configurable": {"style": "friendly"}}}
            assert (await s.post(path, given))["output"]["result"] == {"text": "friendly"}
            assert (await s.post(path, {"agent_id": "styled"}))["output"]["result"] == {"text": "formal"}
        assert got == ["friendly", "formal"] * 2


async def test_instead_of_a_configuration_an_invocation_takes_a_configured_instance(store: Path) -> None:
    async with up(store) as s:
        made = await s.post("/agents/greeter/configurations", {"config": {"style": "friendly"}})
        (agent,) = await s.post("/agents/search", {"name": "greeter"})
        body = {"agent_id": made["config_id"], "input": {"name": "Ada"}}
        for base in ("/runs", f"/threads/{await s.thread()}/runs"):
            told = await s.post(f"{base}/wait", body)
            assert told["output"]["result"] == {"message": "Hi Ada!"}
            assert told["run"]["agent_id"] == agent["agent_id"], "the agent is the one that was configured"
            _, last = (await s.streamed("POST", f"{base}/stream", body))[-1]
            assert last["result"] == {"message": "Hi Ada!"}


async def test_with_an_execution_id_that_execution_is_meant_and_without_one_a_new_one(store: Path) -> None:
    async with up(store) as s:
        first = await s.run("mailer")
        second = await s.run("mailer")
        assert first != second
        await s.output(first)
        await s.output(second)
        assert (await s.post(f"/runs/{first}", {"approved": True}))["run_id"] == first
        assert (await s.output(first))["type"] == "result"
        assert (await s.output(second))["type"] == "interrupt", "it was not meant"


async def test_an_invocation_with_an_execution_id_goes_on_where_the_agent_stopped(store: Path) -> None:
    steps: list[str] = []

    @il.agent(asks=[il.AskText])
    async def halting(ctx: il.Context[None, None]) -> str:
        steps.append("asks")
        answer = await ctx.ask(il.AskText("And now?"))
        steps.append(f"has {answer.text}")
        return answer.text

    async with up(store, halting) as s:
        run = await s.run("halting")
        assert (await s.output(run))["type"] == "interrupt"
        assert steps == ["asks"]
        await s.post(f"/runs/{run}", {"text": "on"})
        assert (await s.output(run))["result"] == {"text": "on"}
        assert steps[-1] == "has on"
        assert await s.post("/runs/search", {}) == [await s.get(f"/runs/{run}")], "and no other run was made"
        await s.post(f"/runs/{NOBODY}", {"text": "on"}, 404)


@pytest.mark.parametrize("base", ["/runs", "thread"])
async def test_a_synchronous_invocation_returns_the_output_itself(store: Path, base: str) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s:
        base = f"/threads/{await s.thread()}/runs" if base == "thread" else base
        invoked = asyncio.create_task(s.post(f"{base}/wait", {"agent_id": "held", "input": {"text": "on"}}))
        await gate.entered.get()
        assert not invoked.done()
        gate.go.set()
        assert (await invoked)["output"]["result"] == {"text": "held on"}


async def test_every_way_to_invoke_returns_an_execution_id_that_names_the_run(store: Path) -> None:
    async with up(store, echo) as s:
        body = {"agent_id": "echo", "input": {"text": "a"}}
        found = []
        for base in ("/runs", f"/threads/{await s.thread()}/runs"):
            in_background = (await s.post(base, body))["run_id"]
            await s.output(in_background, base)  # a thread has one run at a time
            waited = (await s.post(f"{base}/wait", body))["run"]["run_id"]
            streamed = {update["run_id"] for _, update in await s.streamed("POST", f"{base}/stream", body)}
            assert len(streamed) == 1
            for run in (in_background, waited, *streamed):
                assert (await s.get(f"{base}/{run}"))["run_id"] == run
                found.append(str(uuid.UUID(run)))
        assert len(set(found)) == 6


async def test_the_execution_id_gives_the_output_of_an_execution_that_went_on_alone(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s, Receiver() as receiver:
        run = await s.run("held", {"text": "on"}, webhook=receiver.url)
        await gate.entered.get()
        async with s.stream("GET", f"/runs/{run}/stream") as updates:
            gate.go.set()
            streamed = [update async for _, update in updates]
        _, called = (await receiver.until("success"))[-1]
        assert called["run_id"] == run
        assert streamed[-1]["result"] == (await s.output(called["run_id"]))["result"] == {"text": "held on"}


@pytest.mark.parametrize("way", ["background", "wait", "stream"])
async def test_the_execution_id_that_was_returned_resumes_the_execution(store: Path, way: str) -> None:
    async with up(store, mailer) as s:
        body = {"agent_id": "mailer"}
        if way == "background":
            run = (await s.post("/runs", body))["run_id"]
            await s.output(run)
        elif way == "wait":
            run = (await s.post("/runs/wait", body))["run"]["run_id"]
        else:
            (update,) = [update for _, update in await s.streamed("POST", "/runs/stream", body)]
            assert update["type"] == "interrupt"
            run = update["run_id"]
        await s.post(f"/runs/{run}", {"approved": False, "reason": way})
        assert (await s.output(run))["result"] == {"message": f"Not sent: {way}"}


async def test_the_result_of_an_invocation_is_retrieved_by_waiting_by_stream_and_after_a_callback(store: Path) -> None:
    async with up(store, echo) as s, Receiver() as receiver:
        run = await s.run("echo", {"text": "a b"}, webhook=receiver.url)
        result = {"text": "a b "}
        await receiver.until("success")
        waited = await s.output(run)
        assert (waited["type"], waited["result"], waited["values"]) == ("result", result, result)
        _, last = (await s.streamed("GET", f"/runs/{run}/stream"))[-1]
        assert (last["status"], last["result"]) == ("success", result)
        _, whole = (await s.streamed("GET", f"/runs/{run}/stream", **{"last-event-id": "0"}))[-1]
        assert whole["result"] == result


async def test_one_run_is_one_execution_of_one_agent(store: Path) -> None:
    gate = Gate()
    gate.go.set()
    async with up(store, gate.agent, echo) as s:
        (agent,) = await s.post("/agents/search", {"name": "held"})
        runs = [await s.run("held") for _ in range(3)]
        for run in runs:
            for _ in range(2):  # asking again executes nothing again
                assert (await s.output(run))["type"] == "result"
            assert (await s.get(f"/runs/{run}"))["agent_id"] == agent["agent_id"]
        assert sorted(gate.runs) == sorted(runs)


async def test_every_run_of_a_thread_says_which_thread_it_belongs_to(store: Path) -> None:
    async with up(store, chat, mailer) as s:
        threads = [await s.thread(), await s.thread()]
        body = {"agent_id": "chat", "input": {"message": "a"}}
        for thread in threads:
            base = f"/threads/{thread}/runs"
            made = await s.post(base, body)
            waited = (await s.get(f"{base}/{made['run_id']}/wait"))["run"]
            more = (await s.post(f"{base}/wait", body))["run"]
            assert {run["thread_id"] for run in (made, waited, more)} == {thread}
            assert {run["thread_id"] for run in await s.get(base)} == {thread}
            assert len(await s.get(base)) == 2
        kept = (await s.post("/runs/wait", {**body, "on_completion": "keep"}))["run"]
        assert kept["thread_id"] not in threads, "a run that was put on no thread gets one of its own"
        assert (await s.get(f"/threads/{kept['thread_id']}"))["values"] == {"messages": ["a", "Hello a"]}


async def test_every_agent_is_invoked_in_the_same_way(store: Path) -> None:
    """Functions, generators, agents that ask and agents that fail: one request, one kind of answer."""
    inputs = {"echo": {"text": "a"}, "greeter": {"name": "a"}, "chat": {"message": "a"}, "plain": {"text": "a"}}
    async with up(store) as s:
        for agent in AGENTS:
            body = {"agent_id": agent.card.name, "input": inputs.get(agent.card.name, {})}
            told = await s.post("/runs/wait", body)
            expected = {"success": "result", "interrupted": "interrupt", "error": "error", "timeout": "error"}
            assert told["output"]["type"] == expected[told["run"]["status"]], agent.card.name


async def test_a_run_that_was_just_created_is_pending_however_quick_its_agent_is(store: Path) -> None:
    async with up(store) as s:
        made = await s.post("/runs", {"agent_id": "echo", "input": {"text": "a"}})
        assert made["status"] == "pending"
        assert (await s.get(f"/runs/{made['run_id']}/wait"))["run"]["status"] == "success"

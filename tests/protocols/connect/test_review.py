"""The Connect door and mount where things meet: disconnects and interrupts, scopes and reading, rollbacks and waits."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import interlingua as il
from interlingua.mounts import http
from interlingua.protocols.connect.config import DoorSettings
from interlingua.protocols.connect.mount import remote_run
from interlingua.security.tokens import Issuer
from tests.kit.engines import question as question_of
from tests.kit.engines import settle, submit
from tests.kit.mounts.connect import door, local
from tests.kit.wait_for import wait_for

from .test_contract_auth import ISSUER, token
from .test_contract_threads import secretive
from .test_door import Gate, Up, _keys, chat, echo, plain, up
from .test_rude import Raw


class Asker:
    """Makes an agent that says something, asks, and goes on, each when it is told to."""

    def __init__(self) -> None:
        self.ask, self.entered, self.go = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @il.agent(asks=[il.Confirm])
        async def asker(ctx: il.Context[None, None]) -> AsyncIterator[str]:
            yield "well "
            await self.ask.wait()
            await ctx.ask(il.Confirm("Go on?"))
            self.entered.set()
            await self.go.wait()
            yield "done"

        self.agent = asker


class Looks:
    """Holds back the looks at runs whose clients have gone, until the test wants them."""

    def __init__(self, s: Up) -> None:
        s.door.settings = DoorSettings(disconnect_grace=0, keep_alive=0.01)
        self._look = s.door.watchers._unwatched
        self.due: list[str] = []
        s.door.watchers._unwatched = self.due.append  # type: ignore[method-assign]

    async def happen(self) -> None:
        await settle()
        for run in self.due:
            self._look(run)
        await settle()


IN_MEMORY = il.Settings(park_after=60, cancel_grace=0.5, shutdown_grace=0.5, sweep_every=0.05, stall_warning=0)


def key(secret: str) -> dict[str, dict[str, str]]:
    return {"headers": {"x-api-key": secret}}


# -- disconnects and interrupts -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["wait", "stream"])
async def test_a_run_that_has_asked_goes_on_after_its_answer_though_nobody_watches(store: Path, how: str) -> None:
    asker = Asker()
    asker.ask.set()
    async with up(store, asker.agent, engine=IN_MEMORY) as s:
        looks = Looks(s)
        if how == "wait":
            run = (await s.post("/runs/wait", {"agent_id": "asker"}))["run"]["run_id"]
        else:
            run = (await s.streamed("POST", "/runs/stream", {"agent_id": "asker"}))[-1][1]["run_id"]
        await settle()
        await s.post(f"/runs/{run}", {"approved": True})
        await asyncio.wait_for(asker.entered.wait(), 20)
        await looks.happen()
        asker.go.set()
        assert (await s.output(run))["values"] == {"text": "well done"}


async def test_a_wait_that_gives_up_is_no_disconnect(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s:
        looks = Looks(s)
        await s.ask("POST", "/runs/wait?timeout=0.01", {"agent_id": "held"}, 204)
        await asyncio.wait_for(gate.entered.get(), 20)
        await s.get(f"/runs/{gate.runs[0]}/wait?timeout=0", 204)
        await looks.happen()
        gate.go.set()
        assert (await s.output(gate.runs[0]))["values"] == {"text": "held it"}


async def test_a_run_whose_stream_was_cut_before_it_asked_goes_on_when_it_is_answered(store: Path) -> None:
    asker = Asker()
    async with up(store, asker.agent, engine=IN_MEMORY) as s:
        looks = Looks(s)
        async with s.stream("POST", "/runs/stream", {"agent_id": "asker"}) as updates:
            run = (await anext(updates))[1]["run_id"]
        await wait_for(lambda: looks.due)
        asker.ask.set()
        await question_of(s.server.engine, run)
        await s.post(f"/runs/{run}", {"approved": True})
        await asyncio.wait_for(asker.entered.wait(), 20)
        await looks.happen()
        asker.go.set()
        assert (await s.output(run))["values"] == {"text": "well done"}


async def test_a_run_whose_stream_was_cut_and_that_asks_nothing_is_cancelled(store: Path) -> None:
    asker = Asker()
    async with up(store, asker.agent, engine=IN_MEMORY) as s:
        looks = Looks(s)
        async with s.stream("POST", "/runs/stream", {"agent_id": "asker"}) as updates:
            run = (await anext(updates))[1]["run_id"]
        await wait_for(lambda: looks.due)
        await looks.happen()
        assert (await s.server.engine.runs.wait(run, timeout=20)).status is il.Status.CANCELLED


async def test_each_drop_has_a_grace_of_its_own(store: Path) -> None:
    asker = Asker()
    async with up(store, asker.agent, engine=IN_MEMORY) as s:
        looks = Looks(s)
        async with s.stream("POST", "/runs/stream", {"agent_id": "asker"}) as updates:
            run = (await anext(updates))[1]["run_id"]
        await wait_for(lambda: looks.due)
        s.door.settings = DoorSettings(disconnect_grace=3600, keep_alive=0.01)
        async with s.http.stream("GET", f"/runs/{run}/stream", headers={"last-event-id": "0"}) as answer:
            await anext(answer.aiter_raw())
        await wait_for(lambda: run not in s.door.watchers.counts)
        await looks.happen()  # of the first drop, after the second
        asker.ask.set()
        assert (await s.get(f"/runs/{run}/wait"))["run"]["status"] == "interrupted"


async def test_a_client_that_leaves_before_its_stream_begins_has_left(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s:
        s.door.settings = DoorSettings(disconnect_grace=0)
        for _ in range(5):
            raw = await Raw.to(s)
            body = b'{"agent_id": "held"}'
            raw.writer.write(raw.head("/runs/stream", len(body)) + body)
            await raw.leave(rudely=False)
            await asyncio.wait_for(gate.entered.get(), 20)
            ended = await s.server.engine.runs.wait(gate.runs[-1], timeout=20)
            assert ended.status is il.Status.CANCELLED


# -- scopes ---------------------------------------------------------------------------------------------------


async def test_runs_of_agents_out_of_reach_are_not_there(store: Path) -> None:
    (owner,) = await _keys(store, "owner")
    (narrow,) = await _keys(store, "narrow", scopes=("agents:echo", "see:all"))
    (wide,) = await _keys(store, "wide", scopes=("agents:ch*", "agents:echo@0.1.3", "see:all"))
    async with up(store, chat, echo) as s:
        thread = (await s.post("/threads", {}, **key(owner)))["thread_id"]
        base = f"/threads/{thread}/runs"
        runs: dict[str, Any] = {}
        for agent, input_ in (("chat", {"message": "a"}), ("echo", {"text": "a"})):
            body = {"agent_id": agent, "input": input_}
            runs[agent] = (await s.post("/runs/wait", body, **key(owner)))["run"]["run_id"]
            runs[agent + " there"] = (await s.post(f"{base}/wait", body, **key(owner)))["run"]["run_id"]
        for tail in ("", "/wait", "/stream"):
            await s.get(f"/runs/{runs['chat']}{tail}", 404, **key(narrow))
            await s.get(f"{base}/{runs['chat there']}{tail}", 404, **key(narrow))
            assert (await s.http.get(f"/runs/{runs['echo']}{tail}", **key(narrow))).status_code == 200
        for method, tail in (("POST", ""), ("DELETE", ""), ("POST", "/cancel")):
            await s.ask(method, f"/runs/{runs['chat']}{tail}", {}, 404, **key(narrow))
        for secret, expected in ((narrow, ["echo"]), (wide, ["chat", "echo"]), (owner, ["chat", "echo"])):
            found = await s.post("/runs/search", {}, **key(secret))
            assert sorted(r["run_id"] for r in found) == sorted(runs[agent] for agent in expected)
            listed = await s.get(base, **key(secret))
            assert sorted(r["run_id"] for r in listed) == sorted(runs[f"{agent} there"] for agent in expected)
        assert await s.post("/runs/search", {"agent_id": (await _id(s, "chat", owner))}, **key(narrow)) == []


async def _id(s: Up, agent: str, secret: str) -> str:
    (found,) = await s.post("/agents/search", {"name": agent}, **key(secret))
    return str(found["agent_id"])


async def test_whoever_may_not_read_reads_nothing(store: Path) -> None:
    (runner,) = await _keys(store, "runner", scopes=("do:run", "do:config"))
    (mute,) = await _keys(store, "mute", scopes=("do:config", "see:all"))
    async with up(store, chat) as s:
        thread = (await s.post("/threads", {}, **key(runner)))["thread_id"]
        body = {"agent_id": "chat", "input": {"message": "a"}}
        told = await s.post(f"/threads/{thread}/runs/wait", body, **key(runner))
        assert told["output"]["type"] == "result", "what a run comes to is the answer to making it"
        run = told["run"]["run_id"]
        for secret in (runner, mute):
            for path in ("", "/runs", "/history", f"/runs/{run}", f"/runs/{run}/wait", f"/runs/{run}/stream"):
                await s.get(f"/threads/{thread}{path}", 403, **key(secret))
            await s.get(f"/runs/{run}", 403, **key(secret))
            for path in ("/runs/search", "/threads/search"):
                await s.post(path, {}, 403, **key(secret))
        # Making, changing and copying threads answers with them, and without what is on them.
        for method, path, change in (
            ("POST", "/threads", {"thread_id": thread, "if_exists": "do_nothing"}),
            ("PATCH", f"/threads/{thread}", {"metadata": {"a": 1}}),
            ("POST", f"/threads/{thread}/copy", {}),
        ):
            shown = await s.ask(method, path, change, **key(runner))
            assert {"values", "messages"}.isdisjoint(shown)


async def test_a_token_with_less_scope_reads_less(store: Path) -> None:
    async with up(store, chat, echo, issuers=[ISSUER]) as s:

        def of(**claims: Any) -> dict[str, Any]:
            return {"headers": {"authorization": f"Bearer {token(**claims)}"}}

        told = await s.post("/runs/wait", {"agent_id": "chat", "input": {"message": "a"}}, **of())
        run = told["run"]["run_id"]
        await s.get(f"/runs/{run}/wait", 404, **of(scope="agents:echo"))
        await s.get(f"/runs/{run}/wait", 403, **of(scope="agents:chat do:run"))
        await s.get(f"/runs/{run}/wait", **of(scope="agents:chat do:read"))


async def test_a_configuration_of_an_agent_out_of_reach_is_not_there(store: Path) -> None:
    (owner,) = await _keys(store, "owner")
    (narrow,) = await _keys(store, "narrow", scopes=("agents:echo", "see:all"))
    async with up(store, chat, echo) as s:
        made = (await s.post("/agents/chat/configurations", {"config": {}}, **key(owner)))["config_id"]
        await s.get(f"/configurations/{made}", **key(owner))
        await s.get(f"/configurations/{made}", 404, **key(narrow))


async def test_the_default_agent_is_one_that_the_caller_may_run(store: Path) -> None:
    (narrow,) = await _keys(store, "narrow", scopes=("agents:echo",))
    async with up(store, chat, echo) as s:
        told = await s.post("/runs/wait", {"input": {"text": "a"}}, **key(narrow))
        assert told["output"]["values"] == {"text": "a "}


async def test_a_rollback_needs_the_right_to_delete_and_taking_a_thread_the_right_to_cancel(store: Path) -> None:
    (runner,) = await _keys(store, "runner", scopes=("do:run", "do:read"))
    (canceller,) = await _keys(store, "canceller", scopes=("do:run", "do:read", "do:cancel", "see:all"))
    (elsewhere,) = await _keys(store, "elsewhere", scopes=("agents:echo", "see:all"))
    (deleter,) = await _keys(store, "deleter", scopes=("do:run", "do:cancel", "do:delete", "see:all"))
    gate = Gate()
    async with up(store, gate.agent, echo) as s:
        thread = (await s.post("/threads", {}, **key(runner)))["thread_id"]
        base = f"/threads/{thread}/runs"
        run = (await s.post(base, {"agent_id": "held"}, **key(runner)))["run_id"]
        await asyncio.wait_for(gate.entered.get(), 20)
        await s.ask("POST", f"{base}/{run}/cancel?action=rollback", None, 403, **key(canceller))
        for strategy, secret in (
            ("interrupt", runner), ("rollback", runner), ("rollback", canceller), ("interrupt", elsewhere),
            ("rollback", elsewhere),
        ):  # fmt: skip
            body = {"agent_id": "echo", "input": {"text": "a"}, "multitask_strategy": strategy}
            await s.post(base, body, 403, **key(secret))
            await s.post(base, {**body, "after_seconds": 1}, 403, **key(secret))
        assert (await s.get(f"{base}/{run}", **key(runner)))["status"] == "pending", "nobody has touched it"
        body = {"agent_id": "echo", "input": {"text": "a"}, "multitask_strategy": "rollback"}
        assert (await s.post(f"{base}/wait", body, **key(deleter)))["run"]["status"] == "success"
        await s.get(f"{base}/{run}", 404, **key(runner))
        done = (await s.post(f"{base}/wait", {**body, "multitask_strategy": "reject"}, **key(canceller)))["run"]
        await s.ask("POST", f"{base}/{done['run_id']}/cancel?action=rollback", None, 403, **key(canceller))
        await s.get(f"{base}/{done['run_id']}", **key(canceller))


async def test_a_thread_shows_only_runs_that_its_reader_may_see(store: Path) -> None:
    (owner,) = await _keys(store, "owner")
    (admin,) = await _keys(store, "admin", scopes=("*",))
    async with up(store, echo) as s:
        thread = (await s.post("/threads", {}, **key(owner)))["thread_id"]
        base = f"/threads/{thread}/runs"
        body = {"agent_id": "echo", "input": {"text": "a"}}
        mine = (await s.post(f"{base}/wait", body, **key(owner)))["run"]["run_id"]
        theirs = (await s.post(f"{base}/wait", body, **key(admin)))["run"]["run_id"]
        assert [r["run_id"] for r in await s.get(base, **key(owner))] == [mine]
        assert [r["run_id"] for r in await s.get(base, **key(admin))] == [theirs, mine]


# -- threads that are kept ------------------------------------------------------------------------------------


async def test_nobody_can_make_the_thread_of_somebody_elses_run_first(store: Path) -> None:
    victim, attacker = await _keys(store, "victim", "attacker")
    async with up(store, chat) as s:
        body = {"agent_id": "chat", "input": {"message": "secret"}, "on_completion": "keep"}
        first = await s.post("/runs/wait", body, headers={"x-api-key": victim, "idempotency-key": "one"})
        who = (await s.server.engine.runs.get(first["run"]["run_id"])).caller
        guess = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{who} two"))
        await s.post("/threads", {"thread_id": guess}, **key(attacker))
        headers = {"x-api-key": victim, "idempotency-key": "two"}
        runs = [(await s.post("/runs/wait", body, headers=headers))["run"] for _ in range(2)]
        assert runs[0] == runs[1]
        assert "values" not in await s.get(f"/threads/{guess}", **key(attacker))
        assert (await s.get(f"/threads/{runs[0]['thread_id']}", **key(victim)))["values"]
        await s.get(f"/threads/{runs[0]['thread_id']}", 404, **key(attacker))


async def test_a_run_of_an_agent_without_threads_keeps_none(store: Path) -> None:
    async with up(store, plain) as s:
        body = {"agent_id": "plain", "input": {"text": "a"}, "on_completion": "keep"}
        told = await s.post("/runs/wait", body)
        assert told["run"]["status"] == "success"
        assert "thread_id" not in told["run"]
        assert await s.post("/threads/search", {}) == []


# -- runs that are rolled back, or deleted --------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "in another process"])
async def test_whoever_streams_or_waits_for_a_run_that_is_rolled_back_is_told_its_end(
    store: Path, elsewhere: bool
) -> None:
    gate = Gate()
    async with up(store, gate.agent) as owner, up(store, echo) as other:
        s = other if elsewhere else owner
        run = await owner.run("held")
        await asyncio.wait_for(gate.entered.get(), 20)
        waiting = asyncio.create_task(s.get(f"/runs/{run}/wait"))
        async with s.stream("GET", f"/runs/{run}/stream", **{"last-event-id": "0"}) as updates:
            await settle()
            await owner.ask("POST", f"/runs/{run}/cancel?action=rollback&wait=true", None, 204)
            async with asyncio.timeout(20):
                told = [data async for _, data in updates]
                waited = await waiting
        assert (told[-1]["type"], told[-1]["code"], told[-1]["status"]) == ("error", "cancelled", "error")
        assert sum(data["type"] == "error" for data in told) == 1
        assert (waited["run"]["status"], waited["output"]["code"]) == ("error", "cancelled")
        await s.get(f"/runs/{run}", 404)


async def test_a_rollback_of_a_run_that_has_ended_takes_its_state_back(store: Path) -> None:
    async with up(store, chat) as s:
        thread = await s.chatted("a", "b")
        before = (await s.get(f"/threads/{thread}/history"))[1]
        last = (await s.get(f"/threads/{thread}/runs"))[0]["run_id"]
        await s.ask("POST", f"/threads/{thread}/runs/{last}/cancel?action=rollback", None, 204)
        assert (await s.get(f"/threads/{thread}"))["values"] == {"messages": ["a", "Hello a"]}
        assert await s.get(f"/threads/{thread}/history") == [before]


async def test_history_names_no_run_that_was_deleted(store: Path) -> None:
    async with up(store, chat) as s:
        thread = await s.chatted("a", "b")
        (last, first) = [run["run_id"] for run in await s.get(f"/threads/{thread}/runs")]
        await s.delete(f"/threads/{thread}/runs/{last}")
        history = await s.get(f"/threads/{thread}/history")
        assert [state["metadata"].get("run_id") for state in history] == [None, first]
        assert all(set(state["metadata"]) <= {"created_at", "run_id"} for state in history)


async def test_a_search_passes_over_runs_that_are_deleted_meanwhile(store: Path) -> None:
    async with up(store, echo) as s:
        engine = s.server.engine
        thread = await s.thread()
        body = {"agent_id": "echo", "input": {"text": "a"}}
        runs = [(await s.post("/runs/wait", body))["run"]["run_id"] for _ in range(2)]
        there = [(await s.post(f"/threads/{thread}/runs/wait", body))["run"]["run_id"] for _ in range(2)]
        find = engine.runs.search

        async def find_and_lose(where: Any) -> list[il.Run]:
            found = await find(where)
            await engine.runs.delete(found[0].id)
            return found

        engine.runs.search = find_and_lose  # type: ignore[method-assign]
        assert [r["run_id"] for r in await s.post("/runs/search", {})] == runs[:1]
        assert [r["run_id"] for r in await s.get(f"/threads/{thread}/runs")] == there[:1]


# -- threads --------------------------------------------------------------------------------------------------


async def test_state_that_is_not_shown_cannot_be_guessed_by_searching_for_it(store: Path) -> None:
    async with up(store, secretive) as s:
        mine = await s.thread()
        await s.ask("PATCH", f"/threads/{mine}", {"values": {"seen": ["a"]}})
        hidden = await s.thread()
        body = {"agent_id": "secretive", "input": {"text": "a"}}
        run = (await s.post(f"/threads/{hidden}/runs/wait", body))["run"]["run_id"]
        for _ in range(2):
            for page in ({}, {"limit": 1}):
                found = await s.post("/threads/search", {"values": {"seen": ["a"]}, **page})
                assert [thread["thread_id"] for thread in found] == [mine]
            assert await s.post("/threads/search", {"values": {"seen": ["a"]}, "offset": 1}) == []
            assert "values" not in await s.get(f"/threads/{hidden}")
            # Also when the run that wrote it is gone.
            assert (await s.http.delete(f"/threads/{hidden}/runs/{run}")).status_code in (204, 404)


async def test_a_copy_takes_only_runs_and_values_that_fit_the_state_it_was_given(store: Path) -> None:
    @il.agent
    async def teller(ctx: il.Context[dict[str, int], None]) -> str:
        return str(ctx.state)

    async with up(store, chat, teller) as s:
        copy = (await s.post(f"/threads/{await s.chatted('a')}/copy"))["thread_id"]
        await s.post(f"/threads/{copy}/runs/wait", {"agent_id": "teller"}, 409)
        await s.ask("PATCH", f"/threads/{copy}", {"values": {"messages": 5}}, 422)
        await s.post(f"/threads/{copy}/runs/wait", {"agent_id": "chat", "input": {"message": "b"}})


async def test_a_delayed_run_keeps_its_strategy(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent, chat) as s:
        thread = await s.thread()
        base = f"/threads/{thread}/runs"
        held = await s.run("held", base=base)
        await asyncio.wait_for(gate.entered.get(), 20)
        late = await s.run("chat", {"message": "a"}, base, after_seconds=1)
        assert (await s.output(late, base))["code"] == "thread_busy"
        late = await s.run("chat", {"message": "a"}, base, after_seconds=1, multitask_strategy="rollback")
        assert (await s.output(late, base))["type"] == "result"
        await s.get(f"{base}/{held}", 404)


# -- errors ---------------------------------------------------------------------------------------------------


async def test_keys_that_cannot_be_fetched_are_no_fault_of_ours_and_pass(store: Path, tmp_path: Path) -> None:
    issuer = Issuer("https://issuer.example", "interlingua", jwks_url="http://127.0.0.1:9/keys")
    async with up(store, echo, issuers=[issuer]) as s:
        refused = await s.http.post("/runs/search", json={}, headers={"authorization": f"Bearer {token()}"})
        assert (refused.status_code, refused.headers["x-error-transient"]) == (503, "true")
        assert refused.headers["x-error-code"] == "keys_unavailable"
    async with up(tmp_path / "other.db", echo) as s:
        (listed,) = [error for error in await s.get("/errors") if error["code"] == "keys_unavailable"]
        assert (listed["errcode"], listed["transient"]) == (5032, True)


# -- the mount ------------------------------------------------------------------------------------------------


class Failing(httpx2.AsyncHTTPTransport):
    """A way to a server that, from some moment on, answers looks at runs with an error, or not at all. A stream that
    begins with its run is cut off at once."""

    def __init__(self, answer: int | None, times: int | None = None) -> None:
        super().__init__()
        self.answer, self.times = answer, times
        self.down = asyncio.Event()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.down.is_set() and request.method == "GET" and "/runs/" in request.url.path and self.times != 0:
            if self.times is not None:
                self.times -= 1
            if self.answer is None:
                raise httpx2.ReadTimeout("no answer", request=request)
            return httpx2.Response(self.answer, json="no", request=request)
        answer = await super().handle_async_request(request)
        if self.down.is_set() and request.method == "POST" and request.url.path.endswith("/runs/stream"):
            await answer.aclose()
            return httpx2.Response(answer.status_code, headers=answer.headers, content=b"", request=request)
        return answer

    async def aclose(self) -> None:
        """Shared by the clients of a test; there is nothing to keep."""


def through(way: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_(address: http.HttpAddress) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=address.base, timeout=20, transport=way)

    monkeypatch.setattr(http.HttpAddress, "open", open_)
    # A run on a thread, or of a server that is not ours, is made first and looked at then.
    monkeypatch.setattr(remote_run.ConnectRun, "begins_with_its_stream", False)


@pytest.mark.parametrize("answer", [401, 403, 410, 500, 503, None])
async def test_a_mounted_run_does_not_wait_for_ever_for_a_server_that_tells_nothing(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, answer: int | None
) -> None:
    monkeypatch.setattr(http, "PATIENCE", 0.1)
    way = Failing(answer)
    way.down.set()
    through(way, monkeypatch)
    async with door(tmp_path) as server, local(store, server.address + "/connect") as eng:
        run = await submit(eng, "words", {"text": "one two"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.status is il.Status.FAILED
        assert ended.error is not None
        expected = {401: "denied", 403: "denied", 410: "remote_failed"}
        assert ended.error.code == expected.get(answer or 0, "unavailable")
        assert ended.error.transient is (ended.error.code == "unavailable")


async def test_an_answer_is_not_lost_where_the_server_tells_nothing_for_a_moment(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Failing(503, times=3)
    through(way, monkeypatch)
    async with door(tmp_path) as server, local(store, server.address + "/connect") as eng:
        run = await submit(eng, "careful", {"text": "hm"})
        asked = await question_of(eng, run.id)
        way.down.set()
        await eng.questions.answer(asked.id, {"approved": True})
        async with asyncio.timeout(20):
            while (later := await question_of(eng, run.id)).id == asked.id:
                await eng.runs.next_hint(run.id)
        assert later.type == "ask_text"

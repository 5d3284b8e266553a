"""A run that starts here is told of in the transactions that it is written in. Whatever goes wrong with that, it is
told all the same, and once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from websockets.asyncio.client import connect

import interlingua as il
from interlingua.model.documents import Follow, Put
from interlingua.model.errors import StoreError
from interlingua.model.run import RunRequest
from interlingua.protocols.peer.node.peers import Outbox
from interlingua.store.sql.dialect import Pipelined
from tests.kit.peer_nodes import WAIT, at_door, checked, echo, events, painter, running_node, shout


async def sent(http: Any, text: str, **more: Any) -> Any:
    return checked(await http.post("/message:send", json={"role": "user", "text": text, "sync": True, **more}), 200)


def words(answer: Any) -> str:
    return "".join(part["content"] for part in answer["reply"]["parts"])


class Transactions:
    """What is written of runs from now on: the kinds of events, and whether anything is kept with them."""

    def __init__(self, node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[list[str], bool]] = []
        self.kept: list[Sequence[Any]] = []
        store: Any = node.engine.core.store
        write, keep = store.database.writer._transaction, store.documents.write

        def noted(sealed: Any, calls: Any, results: Any) -> None:
            new = sum(isinstance(call, Pipelined) for call, *_ in calls)
            kinds = ["created"] * new + [event.kind for one in sealed for event in one.events]
            if kinds:
                self.seen.append((kinds, len(calls) > new))
            write(sealed, calls, results)

        def kept(changes: Sequence[Any], heed: Any = None) -> Any:
            self.kept.append(changes)
            return keep(changes, heed)

        monkeypatch.setattr(store.database.writer, "_transaction", noted)
        monkeypatch.setattr(store.documents, "write", kept)


async def test_a_message_and_its_reply_are_kept_in_the_two_commits_of_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async with at_door(shout) as (node, http):
        transactions = Transactions(node.node, monkeypatch)
        assert words(await sent(http, "hello")) == "HELLO"
        assert transactions.seen == [(["created"], True), (["started", "finished"], True)]
        assert len(transactions.kept) == 2


async def test_a_task_is_kept_in_the_two_commits_of_its_run_and_tells_all_its_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with at_door(shout) as (node, http):
        transactions = Transactions(node.node, monkeypatch)
        task = checked(await http.post("/tasks", json={"role": "user", "text": "hi"}), 201)["task"]
        assert task["status"] == "submitted"
        await node.state(task["id"], "completed")
        assert transactions.seen == [(["created"], True), (["started", "finished"], True)]
        assert len(transactions.kept) == 2
        async with events(http, f"/tasks/{task['id']}:subscribe") as stream:
            states = [event["state"] for event in await stream.rest() if "state" in event]
        assert states == ["submitted", "working", "completed"]


async def test_what_was_told_while_it_was_written_is_not_told_again_after_a_restart(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    async with at_door(shout, store=store) as (node, http):
        await sent(http, "hello")
        told = await node.node.journal.feed().stored(0)
    async with running_node("Agents", agents=[shout], store=store) as again:
        engine = again.node.engine
        assert await engine.core.store.documents.followed(f"{again.node.journal.name}/work") == []
        after = await again.node.journal.feed().stored(0)
        assert [(event.seq, event.body) for event in after] == [(event.seq, event.body) for event in told]


async def test_a_run_that_is_set_aside_is_told_of_when_it_goes_on() -> None:
    settings = il.Settings(park_after=0.0)
    async with at_door(painter, engine=settings) as (node, http):
        asked = await sent(http, "a house")
        task = asked["task"]["id"]
        assert asked["task"]["status"] == "input_required"
        answer = {"role": "user", "text": "red"}
        checked(await http.post(f"/tasks/{task}:continue", json=answer), 200)
        await node.state(task, "completed")
        assert not node.node.working.witnessed


class _Refused:
    """The store, which refuses once what is kept of a run."""

    def __init__(self, node: Any, how: Any, wanted: Any = lambda follow: follow.hash is not None) -> None:
        self._keep = node.engine.core.store.documents.write
        self._how, self._wanted, self.refused = how, wanted, 0
        node.engine.core.store.documents.write = self.keep

    def keep(self, changes: Sequence[Any], heed: Any = None) -> Any:
        follows = [change for change in changes if isinstance(change, Follow)]
        if not self.refused and follows and self._wanted(follows[0]):
            self.refused += 1
            return self._how(self._keep, changes, heed)
        return self._keep(changes, heed)


def _fails(keep: Any, changes: Sequence[Any], heed: Any) -> Any:
    future = asyncio.get_running_loop().create_future()
    future.set_exception(StoreError("the disk is full"))
    return future


def _finds_another(keep: Any, changes: Sequence[Any], heed: Any) -> Any:
    """As if somebody had changed the task meanwhile."""
    return keep([Put("nobody", "x", b"", version=7), *changes], heed)


def _is_not_in_the_log(keep: Any, changes: Sequence[Any], heed: Any) -> Any:
    """As if another worker had taken the run, and written something else there."""
    other = b"x" * 32
    return keep([structs.replace(one, hash=other) if isinstance(one, Follow) else one for one in changes], heed)


@pytest.mark.parametrize("how", [_fails, _finds_another, _is_not_in_the_log])
async def test_what_could_not_be_kept_with_the_run_is_told_in_the_usual_way(how: Any) -> None:
    async with at_door(shout) as (node, http):
        refusing = _Refused(node.node, how)
        task = checked(await http.post("/tasks", json={"role": "user", "text": "hi"}), 201)["task"]["id"]
        await node.state(task, "completed")
        assert refusing.refused
        async with events(http, f"/tasks/{task}:subscribe") as stream:
            states = [event["state"] for event in await stream.rest() if "state" in event]
        assert states == ["submitted", "working", "completed"]


@pytest.mark.parametrize("how", [_fails, _finds_another, _is_not_in_the_log])
async def test_a_message_is_answered_whatever_could_not_be_kept_with_its_run(how: Any) -> None:
    async with at_door(echo) as (node, http):
        refusing = _Refused(node.node, how)
        assert words(await sent(http, "hello")) == "you said hello"
        assert refusing.refused
        runs = [event for event in await node.node.journal.feed().stored(0) if b'"outbound"' in event.body]
        assert len(runs) == 1


async def test_what_the_store_refuses_of_a_run_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    @il.agent
    async def noting(text: str) -> str:
        called.append(text)
        return text.upper()

    async with at_door(noting) as (node, http):
        store: Any = node.node.engine.core.store
        write, refused = store.database.writer._transaction, []

        def refuses(sealed: Any, calls: Any, results: Any) -> None:
            if any(isinstance(call, Pipelined) for call, *_ in calls) and len(refused) < 2:  # with others, then alone
                refused.append(calls)
                raise OSError("the disk is full")
            write(sealed, calls, results)

        monkeypatch.setattr(store.database.writer, "_transaction", refuses)
        answer = await http.post("/message:send", json={"role": "user", "text": "lost", "sync": True})
        assert (answer.status_code, len(refused)) == (500, 2)
        assert words(await sent(http, "hello")) == "HELLO"
        told = b"".join([event.body for event in await node.node.journal.feed().stored(0)])
        assert b"HELLO" in told
        assert b"lost" not in told.lower()
        assert called == ["hello"]
        assert not node.node.working.witnessed


async def test_a_run_that_starts_elsewhere_is_told_of_when_it_is_read(tmp_path: Path) -> None:
    async with at_door(shout, store=tmp_path / "s.db", engine=il.Settings(max_running=1)) as (node, http):
        engine, gate = node.node.engine, asyncio.Event()

        @il.agent
        async def holds() -> str:
            await gate.wait()
            return "free"

        engine.teams.add(holds)
        held = await engine.runs.submit(RunRequest("holds"))  # takes the one slot
        task = checked(await http.post("/tasks", json={"role": "user", "text": "hi"}), 201)["task"]["id"]
        assert not node.node.working.witnessed
        gate.set()
        await node.state(task, "completed")
        await engine.runs.wait(held.id)
        async with events(http, f"/tasks/{task}:subscribe") as stream:
            states = [event["state"] for event in await stream.rest() if "state" in event]
        assert states == ["submitted", "working", "completed"]


async def test_output_that_comes_while_older_letters_still_go_out_follows_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As right after a peer has connected. A piece that was left out would hold up all the output until the end."""

    @il.agent
    async def says(text: str) -> AsyncIterator[str]:
        yield "first "
        await asyncio.sleep(3600)

    read, may_read = Outbox._send_some, asyncio.Event()

    async def held(self: Outbox, session: Any) -> bool:
        await may_read.wait()
        return await read(self, session)

    monkeypatch.setattr(Outbox, "_send_some", held)
    card = {"name": "Guest", "capabilities": {"task_delegation": True, "task_chunks": True}}
    async with (
        running_node("Host", agents=[says]) as host,
        connect(str(host.node.link).replace("acp://", "ws://")) as guest,
    ):
        await guest.send(json.dumps({"type": "acp.agent_card", "card": card}))
        given = {"role": "user", "parts": [{"type": "text", "content": "x"}]}
        await guest.send(json.dumps({"type": "task.delegate", "message_id": "m", "task_id": "t", "payload": given}))
        await host.until(lambda event: event["type"] == "artifact")
        may_read.set()
        seen: list[Any] = []
        while not seen or "chunk" not in seen[-1]:
            seen.append(json.loads(await asyncio.wait_for(guest.recv(), WAIT)))
        assert seen[-1]["chunk_number"] == 1
        assert "working" in [frame.get("status") for frame in seen[:-1]]

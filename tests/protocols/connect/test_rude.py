"""Bad input and bad manners: each gets a clear error of the protocol, and nothing is lost, stuck or disturbed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

import interlingua as il
from interlingua.model.card import QuestionType
from interlingua.protocols.connect import translate
from interlingua.protocols.connect.config import DoorSettings
from interlingua.protocols.connect.door import openapi

from .test_door import NOBODY, Chat, Gate, Up, chat, echo, greeter, plain, up

JSON = {"content-type": "application/json"}
TAKES_A_BODY = [
    (method.upper(), path)
    for path, methods in openapi.paths().items()
    for method, operation in methods.items()
    if "requestBody" in operation
]
TAKES_AN_ID = [(method.upper(), path) for path, methods in openapi.paths().items() for method in methods if "{" in path]


async def still_serves(s: Up) -> None:
    told = await s.post("/runs/wait", {"agent_id": "echo", "input": {"text": "a"}})
    assert told["output"]["values"] == {"text": "a "}


class Patient:
    """A server with a thread, and an interrupted run on it and beside it, to which nothing may happen."""

    def __init__(self, s: Up) -> None:
        self.s = s

    async def __aenter__(self) -> Patient:
        self.run = (await self.s.post("/runs/wait", {"agent_id": "mailer"}))["run"]["run_id"]
        self.thread = await self.s.thread()
        base = f"/threads/{self.thread}/runs"
        self.thread_run = (await self.s.post(base + "/wait", {"agent_id": "mailer"}))["run"]["run_id"]
        self.before = await self._state()
        return self

    async def __aexit__(self, *error: object) -> None:
        if error[0] is None:
            assert await self._state() == self.before, "nothing was made, changed or taken away"
            await still_serves(self.s)

    async def _state(self) -> Any:
        runs = await self.s.post("/runs/search", {"limit": 1000})
        runs += await self.s.get(f"/threads/{self.thread}/runs")
        threads = await self.s.post("/threads/search", {"limit": 1000})
        told = [(t["thread_id"], t["status"], t["metadata"], t.get("values")) for t in threads]
        return [(run["run_id"], run["status"]) for run in runs], told

    def at(self, path: str) -> str:
        """A path of the document with what is there."""
        run = self.thread_run if "thread_id" in path else self.run
        return path.format(agent_id="greeter", config_id=NOBODY, run_id=run, thread_id=self.thread)


# -- bodies ---------------------------------------------------------------------------------------------------

DEEP = 10_000
BODIES = {
    "malformed": (422, [b"{", b"nul", b'{"a": NaN}', b"\xff\xfe", b"{} {}", b'"\\ud800"', b"'a'"], JSON),
    "of the wrong type": (422, [b"[]", b'"text"', b"1", b"true", b"null"], JSON),
    "too large": (413, [b'{"a": "' + b"a" * 3000 + b'"}'], JSON),
    "too deep": (
        413,
        [b'{"a":' * DEEP + b"1" + b"}" * DEEP, b'{"metadata": {"a": ' + b"[" * DEEP + b"]" * DEEP + b"}}"],
        JSON,
    ),
    "of another content type": (415, [b"{}", b"a=1"], {"content-type": "application/x-www-form-urlencoded"}),
}


@pytest.mark.parametrize("kind", list(BODIES))
async def test_a_body_that_makes_no_sense_is_refused_by_every_operation(store: Path, kind: str) -> None:
    status, bodies, headers = BODIES[kind]
    async with up(store) as s, Patient(s) as patient:
        if kind == "too large":
            s.door.settings = DoorSettings(max_body_bytes=1000)
        for method, path in TAKES_A_BODY:
            for body in bodies:
                answer = await s.http.request(method, patient.at(path), content=body, headers=headers)
                # The answer to a question may be any JSON: whether it fits is for the question's schema to say.
                assert answer.status_code == status, (method, path, body[:40], answer.status_code, answer.text)
                assert isinstance(answer.json(), str)
                assert answer.headers["x-error-code"]


async def test_an_id_that_is_not_there_is_404_for_every_operation(store: Path) -> None:
    async with up(store) as s, Patient(s):
        for method, path in TAKES_AN_ID:
            for unknown in (NOBODY, "nonsense", "a%20b", "%00", "é" * 200):
                at = path.format(agent_id=unknown, config_id=unknown, run_id=unknown, thread_id=unknown)
                content = b"{}" if method in ("POST", "PATCH") else None
                answer = await s.http.request(method, at, content=content, headers=JSON if content else None)
                assert answer.status_code == 404, (method, at, answer.status_code, answer.text)
                assert isinstance(answer.json(), str)


# -- what makes no sense is refused when it is submitted ------------------------------------------------------


async def test_ids_that_a_client_chooses_are_uuids(store: Path) -> None:
    async with up(store) as s:
        for wrong in ("mine", "", "12345", NOBODY + "0", "{" + NOBODY + "}"):
            assert "/thread_id" in await s.post("/threads", {"thread_id": wrong}, 422)
        body = {"agent_id": "echo", "input": {"text": "a"}}
        for kind in ("", "/wait", "/stream"):
            assert "thread_id" in await s.post(f"/threads/mine/runs{kind}", {**body, "if_not_exists": "create"}, 422)
            await s.post(f"/threads/mine/runs{kind}", body, 404)
        assert await s.post("/threads/search", {}) == []


NO_ADDRESS = [
    "callme", "/callme", "//here/callme", "ftp://here/", "http://", "https:///x", "mailto:a@b.c", "http://a b/",
    "http://here:99999/", "http://[::1", "javascript:alert(1)",
]  # fmt: skip


@pytest.mark.parametrize("wrong", NO_ADDRESS)
async def test_a_webhook_is_an_absolute_http_address(store: Path, wrong: str) -> None:
    async with up(store) as s:
        body = {"agent_id": "echo", "input": {"text": "a"}}
        for kind in ("", "/wait", "/stream"):
            assert "/webhook" in await s.post(f"/runs{kind}", {**body, "webhook": wrong}, 422)
        for callback in (wrong, {"POST": wrong}, {"url": wrong}):
            assert "/callback" in await s.post("/runs", {**body, "callback": callback}, 422)
        assert await s.post("/runs/search", {}) == []


async def test_an_empty_agent_id_is_told_what_to_do(store: Path) -> None:
    async with up(store) as s:
        for path in ("/runs", "/runs/wait", "/runs/stream", f"/threads/{await s.thread()}/runs"):
            assert "leave it out" in await s.post(path, {"agent_id": ""}, 422)


async def test_values_of_a_thread_are_an_object_that_fits_the_agents_there(store: Path) -> None:
    async with up(store) as s:
        thread = await s.chatted("a")
        before = await s.get(f"/threads/{thread}")
        for wrong in ([1], "text", 3, True):
            assert "/values" in await s.ask("PATCH", f"/threads/{thread}", {"values": wrong}, 422)
        said = await s.ask("PATCH", f"/threads/{thread}", {"values": {"messages": 3}}, 422)
        assert "messages" in said
        assert "chat@0.1.0" in said
        assert await s.get(f"/threads/{thread}") == before
        fitting = await s.ask("PATCH", f"/threads/{thread}", {"values": {"messages": ["b"]}})
        assert fitting["values"] == {"messages": ["b"]}
        free = await s.ask("PATCH", f"/threads/{await s.thread()}", {"values": {"anything": 1}})
        assert free["values"] == {"anything": 1}, "where no agent was yet, nothing is known to be wrong"


async def test_agents_that_agree_on_the_state_share_a_thread(store: Path) -> None:
    class Talk(msgspec.Struct):
        """The same as Chat, under another name."""

        messages: list[str] = []

    @il.agent
    async def twin(ctx: il.Context[Talk, None]) -> str:
        return " ".join(ctx.state.messages)

    async with up(store, chat, twin, echo) as s:
        thread = await s.chatted("Hello")
        for agent, input_ in (("twin", {}), ("echo", {"text": "x"}), ("chat", {"message": "again"})):
            told = await s.post(f"/threads/{thread}/runs/wait", {"agent_id": agent, "input": input_})
            assert told["run"]["status"] == "success", told


async def test_another_version_of_an_agent_takes_over_its_threads_when_their_values_fit(store: Path) -> None:
    class Longer(msgspec.Struct):
        messages: list[str] = []
        mood: str = "fine"

    class Other(msgspec.Struct):
        messages: int = 0

    @il.agent(name="chat", version="0.2.0")
    async def newer(ctx: il.Context[Longer, None]) -> str:
        return ctx.state.mood

    @il.agent(name="chat", version="0.3.0")
    async def breaking(ctx: il.Context[Other, None]) -> str:
        return str(ctx.state.messages)

    async with up(store, chat, newer, breaking) as s:
        ids = {a["metadata"]["ref"]["version"]: a["agent_id"] for a in await s.post("/agents/search", {})}
        thread = await s.thread()
        for version, status in (("0.1.0", 200), ("0.2.0", 200), ("0.3.0", 409)):
            input_ = {"message": "a"} if version == "0.1.0" else {}
            told = await s.post(f"/threads/{thread}/runs/wait", {"agent_id": ids[version], "input": input_}, status)
        assert "do not fit agent chat@0.3.0" in told


async def test_a_configured_instance_whose_agent_is_gone_is_404_and_says_so(store: Path) -> None:
    async with up(store) as s:
        made = await s.post("/agents/greeter/configurations", {"config": {"style": "friendly"}})
    async with up(store, echo) as s:
        body = {"agent_id": made["config_id"], "input": {"name": "Ada"}}
        for path in ("/runs", "/runs/wait", "/runs/stream"):
            assert "greeter@0.1.0, which is not served here" in await s.post(path, body, 404)
        assert await s.get(f"/configurations/{made['config_id']}") == made
    async with up(store, greeter) as s:
        assert (await s.post("/runs/wait", body))["output"]["values"] == {"message": "Hi Ada!"}


async def test_a_last_event_id_that_no_update_has_is_422_and_says_so(store: Path) -> None:
    async with up(store) as s:
        run = await s.run("echo", {"text": "a"})
        await s.output(run)
        for unknown in ("x", "-1", "1.5", "1.0.0", "1e3", "9999", "9" * 5000, "0x1"):
            answer = await s.http.get(f"/runs/{run}/stream", headers={"last-event-id": unknown})
            assert answer.status_code == 422, unknown
            assert "start" in answer.json(), "and what to do"


# -- descriptors are checked when an agent is registered ------------------------------------------------------


def _questions(*types: str) -> list[QuestionType]:
    return [QuestionType(type_, {"type": "object"}, {"type": "object"}) for type_ in types]


def _made(base: il.Agent[..., Any], **changes: Any) -> il.Agent[..., Any]:
    card = msgspec.structs.replace(base.card, name="odd", **changes)
    return il.Agent(card, base.fn, shape=base.shape, params=base.params, ctx_param=base.ctx_param, output=base.output)


ODD: dict[str, tuple[Any, str]] = {
    "state without threads": ({"state": {"type": "object"}, "metadata": {"connect": {"threads": False}}},
                              "specs.thread_state is given, but capabilities.threads is false"),
    "an interrupt twice": ({"questions": _questions("sure", "sure")}, "interrupt_type 'sure' is there twice"),
    "interrupts and none": ({"metadata": {"connect": {"interrupts": True}}}, "specs.interrupts lists none"),
    "no interrupts and one": ({"questions": _questions("sure"), "metadata": {"connect": {"interrupts": False}}},
                              "capabilities.interrupts is false"),
    "a mode that is none": ({"metadata": {"connect": {"streaming": {"customs": True}}}}, "customs"),
    "no object": ({"metadata": {"connect": "all of it"}}, 'metadata["connect"]'),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(ODD))
async def test_an_agent_whose_descriptor_breaks_a_rule_is_refused_by_name(store: Path, kind: str) -> None:
    changes, rule = ODD[kind]
    odd = _made(plain, **{"metadata": {}, **changes})
    with pytest.raises(il.DefinitionError) as at_the_start:
        async with up(store, echo, odd):
            pass
    async with up(store, echo) as s:
        with pytest.raises(il.DefinitionError) as later:
            s.server.engine.agents.add(odd)
        assert [a["metadata"]["ref"]["name"] for a in await s.post("/agents/search", {})] == ["echo"]
        await still_serves(s)
    for refused in (at_the_start, later):
        assert "agent odd@0.1.0" in refused.value.message
        assert rule in refused.value.message


async def test_a_mount_with_an_odd_card_is_served_with_what_keeps_the_rules(store: Path) -> None:
    for changes, _ in ODD.values():
        metadata = {**changes.get("metadata", {}), "mounted_from": "http://elsewhere"}
        async with up(store, echo, _made(plain, **{**changes, "metadata": metadata})) as s:
            told = await s.get("/agents/odd/descriptor")
            assert translate.inconsistencies(told) == []
            run = await s.post("/runs/wait", {"agent_id": "odd", "input": {"text": "a"}})
            assert run["output"]["values"] == {"text": "A"}


# -- bad manners ----------------------------------------------------------------------------------------------


class Raw:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self.reader, self.writer, self._host = reader, writer, host

    @classmethod
    async def to(cls, s: Up) -> Raw:
        url = httpx2.URL(s.server.address)
        assert url.port
        reader, writer = await asyncio.open_connection(url.host, url.port)
        return cls(reader, writer, f"{url.host}:{url.port}")

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def head(self, path: str, length: int) -> bytes:
        lines = [f"POST /connect{path} HTTP/1.1", f"host: {self._host}", "content-type: application/json"]
        return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()

    async def leave(self, *, rudely: bool) -> None:
        if rudely:
            self.writer.transport.abort()
        else:
            self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


async def test_bodies_and_heads_that_trickle_in_hold_up_nobody(store: Path) -> None:
    async with up(store) as s:
        s.door.settings = DoorSettings(body_timeout=0.5)
        slow = [await Raw.to(s) for _ in range(40)]
        for n, raw in enumerate(slow):
            await raw.send(raw.head("/runs/wait", 100) + b"{" if n % 2 else b"POST /connect/runs HT")
        async with asyncio.timeout(20):
            await still_serves(s)
            for raw in slow[1::2]:
                assert b" 408 " in await raw.reader.readline()
        for raw in slow:
            await raw.leave(rudely=True)
        await still_serves(s)
        assert len(await s.post("/runs/search", {})) == 2


POINTS = ["in the head", "before the body", "in the body", "after the body"]


@pytest.mark.parametrize("rudely", [False, True])
@pytest.mark.parametrize("point", POINTS)
async def test_a_client_may_leave_at_any_point_and_every_run_ends(store: Path, point: str, rudely: bool) -> None:
    async with up(store) as s:
        s.door.settings = DoorSettings(disconnect_grace=0)
        thread = await s.thread()
        body = json.dumps({"agent_id": "echo", "input": {"text": "a b c"}, "multitask_strategy": "enqueue"}).encode()
        for path in ("/runs", "/runs/wait", "/runs/stream"):
            for base in ("", f"/threads/{thread}"):
                raw = await Raw.to(s)
                head = raw.head(base + path, len(body))
                await raw.send({
                    "in the head": head[: len(head) // 2], "before the body": head,
                    "in the body": head + body[: len(body) // 2], "after the body": head + body,
                }[point])  # fmt: skip
                await raw.leave(rudely=rudely)
        await still_serves(s)
    # What was under way when the server stopped goes on when it is back: nothing is left over.
    async with up(store) as s:
        engine = s.server.engine
        begun = {r["run_id"] for r in await s.post("/runs/search", {"limit": 100})}
        begun |= {r["run_id"] for r in await s.get(f"/threads/{thread}/runs")}
        assert len(begun) == 1 or point == "after the body", "what was not asked for in full is not done"
        for run in begun:
            assert (await engine.runs.wait(run, timeout=20)).status.final
        assert (await s.get(f"/threads/{thread}"))["status"] in ("idle", "error")
        told = await s.post(f"/threads/{thread}/runs/wait", {"agent_id": "echo", "input": {"text": "a"}})
        assert told["run"]["status"] == "success"


@pytest.mark.parametrize("kind", ["wait", "stream"])
async def test_a_client_that_leaves_while_it_waits_frees_the_thread(store: Path, kind: str) -> None:
    gate = Gate()
    async with up(store, gate.agent, echo) as s:
        s.door.settings = DoorSettings(disconnect_grace=0)
        thread = await s.thread()
        raw = await Raw.to(s)
        body = b'{"agent_id": "held"}'
        await raw.send(raw.head(f"/threads/{thread}/runs/{kind}", len(body)) + body)
        await gate.entered.get()
        await raw.leave(rudely=True)
        ended = await s.server.engine.runs.wait(gate.runs[0], timeout=20)
        assert ended.status is il.Status.CANCELLED
        assert (await s.get(f"/threads/{thread}"))["status"] in ("idle", "error")
        gate.go.set()
        again = await s.post(f"/threads/{thread}/runs/wait", {"agent_id": "held"})
        assert again["run"]["status"] == "success"
        await still_serves(s)


async def test_a_server_that_stops_cancels_nobodys_run(store: Path) -> None:
    gate = Gate()
    async with httpx2.AsyncClient(timeout=30) as client:
        async with up(store, gate.agent) as s:
            s.door.settings = DoorSettings(disconnect_grace=0, keep_alive=0.01)
            url = f"{s.server.address}/connect/runs/wait"
            waiting = asyncio.create_task(client.post(url, json={"agent_id": "held"}))
            await gate.entered.get()
        await asyncio.gather(waiting, return_exceptions=True)
    gate.go.set()
    async with up(store, gate.agent) as s:
        ended = await s.server.engine.runs.wait(gate.runs[0], timeout=20)
        assert ended.status is il.Status.SUCCEEDED, "the server left, not its client"


# -- races ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_a_thread", [False, True])
async def test_of_many_answers_at_once_exactly_one_wins(store: Path, on_a_thread: bool) -> None:
    async with up(store) as s:
        base = f"/threads/{await s.thread()}/runs" if on_a_thread else "/runs"
        for _ in range(3):
            run = (await s.post(f"{base}/wait", {"agent_id": "mailer"}))["run"]["run_id"]
            answers = await asyncio.gather(
                *(s.http.post(f"{base}/{run}", json={"approved": False, "reason": str(n)}) for n in range(10))
            )
            won = [n for n, answer in enumerate(answers) if answer.status_code == 200]
            assert sorted(a.status_code for a in answers) == [200] + [409] * 9
            assert (await s.output(run, base))["values"] == {"message": f"Not sent: {won[0]}"}


@pytest.mark.parametrize("action", ["interrupt", "rollback"])
@pytest.mark.parametrize("wait", ["true", "false"])
async def test_a_cancel_that_races_completion_leaves_a_consistent_end(store: Path, action: str, wait: str) -> None:
    @il.agent
    async def racer(ctx: il.Context[Chat, None], turns: int) -> AsyncIterator[str]:
        for _ in range(turns):
            yield "."
            await asyncio.sleep(0)
        ctx.state.messages.append("there")

    ends = set()
    async with up(store, racer, echo) as s:
        for n in range(40):
            thread = await s.thread()
            base = f"/threads/{thread}/runs"
            run = await s.run("racer", {"turns": n % 10}, base)
            await s.ask("POST", f"{base}/{run}/cancel", None, 204, params={"action": action, "wait": wait})
            if action == "rollback":
                if wait == "true":
                    await s.get(f"{base}/{run}", 404)
                else:
                    assert (await s.http.get(f"{base}/{run}/wait")).status_code in (200, 404)
                ends.add("gone")
            else:
                told = await s.get(f"{base}/{run}/wait")
                assert (told["run"]["status"], told["output"]["type"]) in (("success", "result"), ("error", "error"))
                assert await s.get(f"{base}/{run}/wait") == told, "an end stays as it is"
                done = (await s.get(f"/threads/{thread}")).get("values") == {"messages": ["there"]}
                assert done == (told["run"]["status"] == "success"), "state and status tell the same"
                ends.add(told["run"]["status"])
            # Whoever won, the thread is free.
            again = await s.post(f"{base}/wait", {"agent_id": "echo", "input": {"text": "a"},
                                                  "multitask_strategy": "enqueue"})  # fmt: skip
            assert again["run"]["status"] == "success"
    assert ends <= {"success", "error", "gone"}

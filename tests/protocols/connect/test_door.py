"""The Connect door from outside: plain HTTP requests to a real server, every operation and every option of it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import random
import string
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import httpx2
import msgspec
import pytest

import interlingua as il
from interlingua.cli.demo.processes import example
from interlingua.model.filters import RunFilter
from interlingua.protocols.connect import translate
from interlingua.protocols.connect.config import DoorSettings
from interlingua.protocols.connect.door.http import ConnectDoor
from interlingua.security import webhook_signatures
from interlingua.security.keys import make_key
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.server.auth.stored_keys import StoredKeys
from interlingua.server.config.settings import CallbackSettings
from interlingua.store.open import open_store
from tests.kit.engines import QUICK

NOBODY = str(uuid.UUID(int=7))


# -- agents ---------------------------------------------------------------------------------------------------


class Chat(msgspec.Struct):
    messages: list[str] = []


class Style(msgspec.Struct):
    style: Literal["formal", "friendly"] = "formal"


class Reply(msgspec.Struct):
    message: str


class MailSendApproval(il.Question[il.Verdict]):
    """Shall this mail be sent?"""

    subject: str
    body: str
    recipients: list[str]


class OutOfStamps(il.AgentError):
    """There are not enough stamps."""

    code = "out_of_stamps"
    transient = True

    class Details(msgspec.Struct):
        needed: int


@il.agent(version="0.1.3", description="Says it again.")
async def echo(text: str) -> AsyncIterator[str]:
    for word in text.split():
        yield word + " "


@il.agent
async def greeter(ctx: il.Context[None, Style], name: str) -> Reply:
    return Reply(f"Hi {name}!" if ctx.config.style == "friendly" else f"Good day, {name}.")


@il.agent
async def chat(ctx: il.Context[Chat, None], message: str) -> Reply:
    known = [said.removeprefix("Hello, my name is ") for said in ctx.state.messages if "my name is" in said]
    reply = f"Yes, your name is {known[0]}" if known else f"Hello {message.removeprefix('Hello, my name is ')}"
    ctx.state.messages += [message, reply]
    return Reply(reply)


@il.agent(asks=[MailSendApproval])
async def mailer(ctx: il.Context[Chat, None], message: str = "hi") -> Reply:
    verdict = await ctx.ask(MailSendApproval(subject="Lunch", body=message, recipients=["ada@example.org"]))
    ctx.state.messages.append(message)
    return Reply("Sent." if verdict.approved else f"Not sent: {verdict.reason}")


@il.agent(errors=[OutOfStamps])
async def postman() -> str:
    raise OutOfStamps("two stamps are missing", details={"needed": 2})


@il.agent(metadata={"connect": {"threads": False, "callbacks": False, "streaming": {}}})
async def plain(text: str) -> str:
    return text.upper()


@il.agent(timeout=0.05)
async def sleeper() -> str:
    await asyncio.Event().wait()
    return "never"


@il.agent
async def busybody(ctx: il.Context[None, None]) -> str:
    await ctx.thought("let me see")
    await ctx.emit("one ")
    await ctx.warn("that was close")
    return "one two"


class Gate:
    """Makes an agent that says when it is entered, and goes on when it is told to."""

    def __init__(self) -> None:
        self.entered: asyncio.Queue[str] = asyncio.Queue()
        self.go = asyncio.Event()
        self.runs: list[str] = []

        @il.agent
        async def held(ctx: il.Context[Chat, None], text: str = "it") -> str:
            self.runs.append(ctx.run_id)
            self.entered.put_nowait(text)
            await self.go.wait()
            ctx.state.messages.append(text)
            return f"held {text}"

        self.agent = held


class Teller:
    """Makes an agent that gives its output piece by piece, as the test asks for it."""

    def __init__(self, *pieces: str) -> None:
        self.next = asyncio.Semaphore(0)

        @il.agent
        async def teller() -> AsyncIterator[Reply]:
            for piece in pieces:
                await self.next.acquire()
                yield {"message": piece}  # type: ignore[misc]
            await self.next.acquire()

        self.agent = teller


AGENTS = (echo, greeter, chat, mailer, postman, plain, sleeper, busybody)


# -- the server -----------------------------------------------------------------------------------------------


class Up:
    """A server that is up, with a client of its Connect door."""

    def __init__(self, server: Server, http: httpx2.AsyncClient) -> None:
        self.server = server
        self.http = http

    @property
    def door(self) -> ConnectDoor:
        owner: ConnectDoor = self.server.engine.callbacks.formats["connect"].__self__  # type: ignore[attr-defined]
        return owner

    async def ask(self, method: str, path: str, body: Any = None, status: int = 200, **options: Any) -> Any:
        """One request; the answer's JSON. `status` is what is expected of it."""
        if body is not None:
            options["json"] = body
        answer = await self.http.request(method, path, **options)
        assert answer.status_code == status, (answer.status_code, answer.text)
        if status == 204:
            assert answer.content == b""
            return None
        assert answer.headers["content-type"] == "application/json"
        return answer.json()

    async def post(self, path: str, body: Any = None, status: int = 200, **options: Any) -> Any:
        return await self.ask("POST", path, {} if body is None else body, status, **options)

    async def get(self, path: str, status: int = 200, **options: Any) -> Any:
        return await self.ask("GET", path, None, status, **options)

    async def delete(self, path: str, status: int = 204) -> Any:
        return await self.ask("DELETE", path, None, status)

    async def run(self, agent: str, input_: Any = None, base: str = "/runs", **options: Any) -> str:
        made = await self.post(base, {"agent_id": agent, "input": input_ or {}, **options})
        run: str = made["run_id"]
        return run

    async def output(self, run: str, base: str = "/runs") -> Any:
        return (await self.get(f"{base}/{run}/wait"))["output"]

    async def thread(self, **body: Any) -> str:
        thread: str = (await self.post("/threads", body))["thread_id"]
        return thread

    async def chatted(self, *said: str) -> str:
        """A thread on which this was said to the chat agent."""
        thread = await self.thread()
        for message in said:
            run = {"agent_id": "chat", "input": {"message": message}}
            await self.post(f"/threads/{thread}/runs/wait", run)
        return thread

    @contextlib.asynccontextmanager
    async def stream(self, method: str, path: str, body: Any = None, **headers: str) -> AsyncIterator[Any]:
        """The updates of a stream as (id, data), read as they come."""
        async with self.http.stream(method, path, json=body, headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield _updates(answer)

    async def streamed(self, method: str, path: str, body: Any = None, **headers: str) -> list[tuple[str, Any]]:
        async with self.stream(method, path, body, **headers) as updates:
            return [update async for update in updates]


async def _updates(answer: httpx2.Response) -> AsyncIterator[tuple[str, Any]]:
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            assert name not in fields, f"{name} twice in one event"
            fields[name] = value
        else:
            assert fields["event"] == "agent_event"
            yield fields["id"], json.loads(fields["data"])
            fields = {}


@contextlib.asynccontextmanager
async def up(store: Path, *agents: il.Agent[..., Any], **settings: Any) -> AsyncIterator[Up]:
    options = ServeSettings(**{"port": 0, "engine": QUICK, **settings})
    async with (
        serving(store, agents or AGENTS, options) as server,
        httpx2.AsyncClient(base_url=server.address + "/connect", timeout=30) as http,
    ):
        yield Up(server, http)


class Receiver:
    """A webhook receiver: keeps what it is sent, and answers with the given codes, then 200."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.got: asyncio.Queue[tuple[dict[str, str], bytes]] = asyncio.Queue()
        self.url = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers["content-length"]))
            code = self.codes.pop(0) if self.codes else 200
            writer.write(f"HTTP/1.1 {code} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
            await writer.drain()
            assert head[0].startswith("POST /callme ")
            self.got.put_nowait((headers, body))
        writer.close()

    async def __aenter__(self) -> Receiver:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/callme"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def until(self, status: str) -> list[tuple[dict[str, str], Any]]:
        """What was sent, up to the run object with this status."""
        found: list[tuple[dict[str, str], Any]] = []
        async with asyncio.timeout(20):
            while not found or found[-1][1]["status"] != status:
                headers, body = await self.got.get()
                found.append((headers, json.loads(body)))
        return found


# -- agents (operations 1 to 3) -------------------------------------------------------------------------------


async def test_an_empty_search_lists_every_agent_with_id_and_metadata(store: Path) -> None:
    async with up(store) as s:
        found = await s.post("/agents/search", {})
        assert [a["metadata"]["ref"]["name"] for a in found] == [a.card.name for a in AGENTS]
        assert all(uuid.UUID(a["agent_id"]) and a["id"] == a["agent_id"] for a in found)
        first = {"ref": {"name": "echo", "version": "0.1.3"}, "description": "Says it again."}
        assert found[0]["metadata"] == first


async def test_a_search_by_name_and_version_finds_exactly_that_agent(store: Path) -> None:
    @il.agent(name="smart-agent", version="0.1.3")
    async def new() -> str:
        return "new"

    @il.agent(name="smart-agent", version="0.1.2")
    async def old() -> str:
        return "old"

    async with up(store, new, old, echo) as s:
        both = await s.post("/agents/search", {"name": "smart-agent"})
        assert sorted(a["metadata"]["ref"]["version"] for a in both) == ["0.1.2", "0.1.3"]
        (only,) = await s.post("/agents/search", {"name": "smart-agent", "version": "0.1.3"})
        assert only["metadata"]["ref"] == {"name": "smart-agent", "version": "0.1.3"}
        assert (await s.output(await s.run(only["agent_id"])))["values"] == {"text": "new"}
        assert [a["metadata"]["ref"]["version"] for a in await s.post("/agents/search", {"version": "0.1.2"})] == [
            "0.1.2"
        ]
        assert await s.post("/agents/search", {"name": "nobody"}) == []


async def test_a_search_pages_by_limit_and_offset(store: Path) -> None:
    async with up(store) as s:
        everyone = await s.post("/agents/search", {})
        assert await s.post("/agents/search", {"limit": 2, "offset": 1}) == everyone[1:3]
        assert await s.post("/agents/search", {"offset": 100}) == []
        for wrong in ({"limit": 0}, {"limit": 1001}, {"offset": -1}, {"name": 3}, []):
            assert isinstance(await s.post("/agents/search", wrong, 422), str)


async def test_an_agent_and_its_descriptor_are_found_by_id(store: Path) -> None:
    async with up(store) as s:
        (mail,) = await s.post("/agents/search", {"name": "mailer"})
        assert await s.get(f"/agents/{mail['agent_id']}") == mail
        described = await s.get(f"/agents/{mail['agent_id']}/descriptor")
        assert await s.get(f"/agents/agent/{mail['agent_id']}/descriptor") == described
        assert described["metadata"] == mail["metadata"]
        specs = described["specs"]
        assert specs["capabilities"] == {
            "threads": True, "interrupts": True, "callbacks": True, "streaming": {"values": True, "custom": True},
        }  # fmt: skip
        (interrupt,) = specs["interrupts"]
        assert interrupt["interrupt_type"] == "mail_send_approval"
        assert set(interrupt["interrupt_payload"]["required"]) == {"subject", "body", "recipients"}
        assert "approved" in json.dumps(interrupt["resume_payload"])
        assert "messages" in json.dumps(specs["thread_state"])
        assert specs["input"]["properties"]["message"]["type"] == "string"
        assert "message" in json.dumps(specs["output"])


async def test_every_served_descriptor_keeps_the_consistency_rules(store: Path) -> None:
    async with up(store) as s:
        for agent in await s.post("/agents/search", {}):
            described = await s.get(f"/agents/{agent['agent_id']}/descriptor")
            assert translate.inconsistencies(described) == []
            assert {"capabilities", "input", "output", "config"} <= set(described["specs"])


async def test_agents_and_descriptors_that_are_not_there_answer_404(store: Path) -> None:
    async with up(store) as s:
        for path in ("", "/descriptor", "/capabilities", "/errors", "/configurations"):
            assert isinstance(await s.get(f"/agents/{NOBODY}{path}", 404), str)
        assert isinstance(await s.get(f"/agents/agent/{NOBODY}/descriptor", 404), str)


async def test_the_capabilities_endpoint_tells_what_an_agent_supports(store: Path) -> None:
    async with up(store) as s:
        assert await s.get("/agents/plain/capabilities") == {
            "threads": False, "interrupts": False, "callbacks": False, "streaming": {"values": False, "custom": False},
        }  # fmt: skip
        assert (await s.get("/agents/mailer/capabilities"))["interrupts"] is True
        assert "thread_state" not in (await s.get("/agents/plain/descriptor"))["specs"]


async def test_what_the_capabilities_deny_is_refused(store: Path) -> None:
    async with up(store) as s, Receiver() as receiver:
        body = {"agent_id": "plain", "input": {"text": "a"}}
        assert "stream" in await s.post("/runs/stream", body, 422)
        assert "stream" in await s.post("/runs", {**body, "stream_mode": "values"}, 422)
        thread = await s.thread()
        assert "threads" in await s.post(f"/threads/{thread}/runs", body, 422)
        quiet = await s.post("/runs/wait", {**body, "webhook": receiver.url})
        assert quiet["output"]["values"] == {"text": "A"}
        loud = await s.post("/runs", {"agent_id": "echo", "input": {"text": "a"}, "webhook": receiver.url})
        told = await receiver.until("success")
        assert {run["run_id"] for _, run in told} == {loud["run_id"]}, "callbacks that are denied have no effect"


async def test_the_error_tables_define_code_description_transience_and_details(store: Path) -> None:
    async with up(store) as s:
        table = await s.get("/errors")
        assert len({entry["code"] for entry in table}) == len(table) > 20
        assert all(set(e) == {"errcode", "code", "description", "transient", "details"} for e in table)
        assert all(
            isinstance(e["errcode"], int) and e["description"] and isinstance(e["transient"], bool) for e in table
        )
        (own,) = await s.get("/agents/postman/errors")
        assert (own["code"], own["transient"]) == ("out_of_stamps", True)
        assert own["description"] == "There are not enough stamps."
        assert own["details"]["properties"]["needed"]["type"] == "integer"
        assert await s.get("/agents/echo/errors") == []
        raised = await s.output(await s.run("postman"))
        assert raised["errcode"] == own["errcode"]


async def test_the_mail_composer_of_the_document_is_served_as_the_document_says(store: Path) -> None:
    spec = importlib.util.spec_from_file_location("mailcomposer", example("mailcomposer"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    async with up(store, module.compose) as s:
        (agent,) = await s.post("/agents/search", {"name": "org.agntcy.mailcomposer", "version": "0.0.1"})
        specs = (await s.get(f"/agents/{agent['agent_id']}/descriptor"))["specs"]
        able = specs["capabilities"]
        assert (able["threads"], able["interrupts"], able["callbacks"]) == (True, True, True)
        assert specs["input"]["properties"]["message"]["type"] == "string"
        assert specs["output"]["properties"]["message"]["type"] == "string"
        assert specs["config"]["properties"]["style"]["enum"] == ["formal", "friendly"]
        messages = specs["thread_state"]["properties"]["messages"]
        assert (messages["type"], messages["items"]["type"]) == ("array", "string")
        (interrupt,) = specs["interrupts"]
        assert interrupt["interrupt_type"] == "mail_send_approval"
        assert set(interrupt["interrupt_payload"]["required"]) == {"subject", "body", "recipients"}
        resume = interrupt["resume_payload"]
        assert resume["required"] == ["approved"]
        assert resume["properties"]["approved"]["type"] == "boolean"
        assert "reason" in resume["properties"]
        thread = await s.thread()
        said = "To: ada@example.org. Subject: Lunch. At noon?"
        body: dict[str, Any] = {"agent_id": agent["agent_id"], "input": {"message": said}}
        rude = {**body, "config": {"configurable": {"style": "rude"}}}
        await s.post(f"/threads/{thread}/runs", rude, 422)
        friendly = {**body, "config": {"configurable": {"style": "friendly"}}}
        asked = await s.post(f"/threads/{thread}/runs/wait", friendly)
        payload = asked["output"]["interrupt"]["mail_send_approval"]
        assert (payload["subject"], payload["recipients"]) == ("Lunch", ["ada@example.org"])
        assert payload["body"].startswith("Hi!")
        run = asked["run"]["run_id"]
        await s.post(f"/threads/{thread}/runs/{run}", {"reason": "x"}, 422)
        await s.post(f"/threads/{thread}/runs/{run}", {"approved": True, "reason": "fine"})
        assert (await s.output(run, f"/threads/{thread}/runs"))["values"] == {"message": "Sent."}
        assert (await s.get(f"/threads/{thread}"))["values"]["messages"] == [said]


# -- runs (operations 21 to 30) -------------------------------------------------------------------------------


async def test_a_background_run_is_pending_then_polled_then_waited_for(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s:
        body = {"agent_id": "held", "input": {"text": "a"}, "metadata": {"tag": 1}}
        made = await s.post("/runs", body)
        assert made["status"] == "pending"
        assert uuid.UUID(made["run_id"])
        assert uuid.UUID(made["agent_id"])
        assert made["created_at"].endswith("Z")
        assert made["updated_at"].endswith("Z")
        assert {**made["creation"], **body} == made["creation"]
        assert "thread_id" not in made
        await gate.entered.get()
        assert (await s.get(f"/runs/{made['run_id']}"))["status"] == "pending"
        gate.go.set()
        waited = await s.get(f"/runs/{made['run_id']}/wait")
        assert waited["output"] == {"type": "result", "values": {"text": "held a"}, "result": {"text": "held a"}}
        polled = await s.get(f"/runs/{made['run_id']}")
        assert polled["status"] == "success"
        assert waited["run"] == polled
        assert await s.get(f"/runs/{made['run_id']}/wait") == waited, "again, at once"


async def test_create_and_wait_answers_with_run_and_output(store: Path) -> None:
    async with up(store) as s:
        told = await s.post("/runs/wait", {"agent_id": "echo", "input": {"text": "a b"}})
        assert told["run"]["status"] == "success"
        assert told["output"]["values"] == {"text": "a b "}


async def test_without_an_agent_the_default_agent_runs(store: Path) -> None:
    async with up(store) as s:
        told = await s.post("/runs/wait", {"input": {"text": "a"}})
        assert told["output"]["values"] == {"text": "a "}
        (first,) = await s.post("/agents/search", {"name": "echo"})
        assert told["run"]["agent_id"] == first["agent_id"]


async def test_config_flavours_one_run_and_is_checked_against_the_schema(store: Path) -> None:
    async with up(store) as s:
        body: dict[str, Any] = {"agent_id": "greeter", "input": {"name": "Ada"}}
        friendly = {**body, "config": {"configurable": {"style": "friendly"}, "tags": ["a"], "recursion_limit": 5}}
        assert (await s.post("/runs/wait", friendly))["output"]["values"] == {"message": "Hi Ada!"}
        assert (await s.post("/runs/wait", body))["output"]["values"] == {"message": "Good day, Ada."}
        rude = {**body, "config": {"configurable": {"style": "rude"}}}
        assert isinstance(await s.post("/runs", rude, 422), str)
        assert isinstance(await s.post("/runs", {"agent_id": "greeter", "input": {"name": 3}}, 422), str)


async def test_a_failing_run_says_code_description_and_transience(store: Path) -> None:
    async with up(store) as s:
        told = await s.post("/runs/wait", {"agent_id": "postman"})
        assert told["run"]["status"] == "error"
        output = told["output"]
        assert (output["type"], output["run_id"]) == ("error", told["run"]["run_id"])
        assert (output["errcode"], output["description"]) == (translate.OWN_ERRORS, "two stamps are missing")
        assert (output["code"], output["transient"], output["details"]) == ("out_of_stamps", True, {"needed": 2})


async def test_a_run_that_takes_too_long_has_the_status_timeout(store: Path) -> None:
    async with up(store) as s:
        told = await s.post("/runs/wait", {"agent_id": "sleeper"})
        assert told["run"]["status"] == "timeout"
        assert (told["output"]["type"], told["output"]["code"]) == ("error", "timed_out")
        (_, last) = (await s.streamed("GET", f"/runs/{told['run']['run_id']}/stream"))[-1]
        assert (last["type"], last["status"]) == ("error", "timeout")


async def test_a_wait_that_times_out_has_no_content_and_harms_nothing(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s:
        run = await s.run("held")
        await gate.entered.get()
        assert await s.get(f"/runs/{run}/wait?timeout=0.01", 204) is None
        for wrong in ("soon", "-1", "nan"):
            await s.get(f"/runs/{run}/wait?timeout={wrong}", 422)
        waiting = asyncio.create_task(s.get(f"/runs/{run}/wait?timeout=20"))
        gate.go.set()
        assert (await waiting)["run"]["status"] == "success"


async def test_whoever_knows_an_interrupt_can_wait_until_it_is_asked_no_more(store: Path) -> None:
    go = asyncio.Event()

    @il.agent(asks=[il.Confirm])
    async def asker(ctx: il.Context[None, None]) -> str:
        verdict = await ctx.ask(il.Confirm("Go?"))
        await go.wait()
        return str(verdict.approved)

    async with up(store, asker) as s:
        run = await s.run("asker")
        told = (await s.get(f"/runs/{run}/wait"))["output"]
        known = told["interrupt_id"]
        assert await s.get(f"/runs/{run}/wait?while={known}&timeout=0.01", 204) is None
        assert (await s.get(f"/runs/{run}/wait?while={NOBODY}"))["output"] == told, "that is not what it asks"
        waiting = asyncio.create_task(s.get(f"/runs/{run}/wait?while={known}"))
        await s.post(f"/runs/{run}", {"approved": True})
        answered = await waiting
        assert "output" not in answered, "it goes on"
        assert answered["run"]["status"] == "pending"
        go.set()
        assert (await s.get(f"/runs/{run}/wait"))["output"]["values"] == {"text": "True"}
        assert (await s.get(f"/runs/{run}/wait?while={known}"))["run"]["status"] == "success"


async def test_whoever_waits_for_that_does_not_keep_the_server_from_stopping(store: Path) -> None:
    waits = asyncio.Event()
    async with up(store) as s:
        told = await s.post("/runs/wait", {"agent_id": "mailer", "input": {"message": "at noon?"}})
        path = f"/runs/{told['run']['run_id']}/wait?while={told['output']['interrupt_id']}"
        look = s.server.engine.questions.get

        async def looked(question: str) -> Any:
            waits.set()
            return await look(question)

        s.server.engine.questions.get = looked  # type: ignore[method-assign]
        async with httpx2.AsyncClient(base_url=f"{s.server.address}/connect") as other:
            waiting = asyncio.create_task(other.get(path))
            await waits.wait()
            await s.server.app.close_streams()
            assert (await waiting).status_code == 204


@pytest.mark.parametrize("base", ["/runs", "/threads/5f0b6c1e-4a0e-4b52-9a55-0d0c7b1f6f1d/runs"])
async def test_who_does_not_say_how_long_it_would_wait_begins_no_run(store: Path, base: str) -> None:
    async with up(store) as s:
        for wrong in ("soon", "-1", "nan", "true", ""):
            body = {
                "agent_id": "echo",
                "input": {"text": "a"},
                **({} if base == "/runs" else {"if_not_exists": "create"}),
            }
            assert "timeout" in await s.post(f"{base}/wait?timeout={wrong}", body, 422)
        assert await s.server.engine.runs.search(RunFilter()) == []


async def test_runs_are_searched_by_agent_status_and_metadata_with_paging(store: Path) -> None:
    async with up(store) as s:
        runs = []
        for n in range(4):
            run = await s.run("echo", {"text": str(n)}, metadata={"n": n, "even": n % 2 == 0})
            await s.output(run)
            runs.append(run)
        failed = await s.run("postman", metadata={"even": True})
        await s.output(failed)

        async def search(**where: Any) -> list[str]:
            return [run["run_id"] for run in await s.post("/runs/search", where)]

        assert await search() == [failed, *runs[::-1]]
        assert await search(limit=2, offset=1) == [runs[3], runs[2]]
        assert await search(metadata={"even": True}) == [failed, runs[2], runs[0]]
        assert await search(metadata={"even": True, "n": 2}) == [runs[2]]
        assert await search(status="error") == [failed]
        assert await search(status="pending") == []
        (agent,) = await s.post("/agents/search", {"name": "postman"})
        assert await search(agent_id=agent["agent_id"]) == [failed]
        assert await search(agent_id="postman") == [failed], "a name does as well"
        assert await search(agent_id="echo", metadata={"n": 2}) == [runs[2]]
        assert await search(agent_id="nobody") == []
        assert await search(agent_id=agent["agent_id"], status="success") == []
        assert await search(agent_id=NOBODY) == []
        for wrong in ({"status": "running"}, {"limit": 0}, {"metadata": 3}):
            await s.post("/runs/search", wrong, 422)


async def test_a_stateless_search_leaves_out_the_runs_of_threads(store: Path) -> None:
    async with up(store) as s:
        thread = await s.chatted("a")
        run = await s.run("echo", {"text": "a"})
        await s.output(run)
        assert [r["run_id"] for r in await s.post("/runs/search", {})] == [run]
        assert len(await s.get(f"/threads/{thread}/runs")) == 1


async def test_a_deleted_run_is_gone_even_when_it_was_running(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent, echo) as s:
        done = await s.run("echo", {"text": "a"})
        await s.output(done)
        running = await s.run("held")
        await gate.entered.get()
        for run in (done, running):
            await s.delete(f"/runs/{run}")
            for method, path in (
                ("GET", ""),
                ("GET", "/wait"),
                ("GET", "/stream"),
                ("DELETE", ""),
                ("POST", "/cancel"),
            ):
                assert isinstance(await s.ask(method, f"/runs/{run}{path}", None, 404), str)
        assert await s.post("/runs/search", {}) == []


async def test_cancel_stops_a_run_and_with_wait_returns_when_it_has_stopped(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s:
        first = await s.run("held")
        await gate.entered.get()
        await s.ask("POST", f"/runs/{first}/cancel?wait=true&action=interrupt", None, 204)
        assert (await s.get(f"/runs/{first}"))["status"] == "error"
        assert (await s.output(first))["code"] == "cancelled"
        second = await s.run("held")
        await gate.entered.get()
        await s.ask("POST", f"/runs/{second}/cancel", None, 204)
        assert (await s.output(second))["code"] == "cancelled"
        await s.ask("POST", f"/runs/{second}/cancel?wait=maybe", None, 422)
        await s.ask("POST", f"/runs/{second}/cancel?action=explode", None, 422)


async def test_cancel_with_rollback_leaves_nothing_of_the_run(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent, echo) as s:
        run = await s.run("held")
        await gate.entered.get()
        await s.ask("POST", f"/runs/{run}/cancel?wait=true&action=rollback", None, 204)
        await s.get(f"/runs/{run}", 404)
        done = await s.run("echo", {"text": "a"})
        await s.output(done)
        await s.ask("POST", f"/runs/{done}/cancel?action=rollback", None, 204)
        await s.get(f"/runs/{done}", 404)


async def test_cancel_of_a_finished_run_changes_nothing(store: Path) -> None:
    async with up(store) as s:
        run = await s.run("echo", {"text": "a"})
        before = await s.get(f"/runs/{run}/wait")
        await s.ask("POST", f"/runs/{run}/cancel?wait=true", None, 204)
        assert await s.get(f"/runs/{run}/wait") == before


async def test_cancels_that_race_completion_leave_every_run_ended(store: Path) -> None:
    async with up(store) as s:

        async def race() -> str:
            run = await s.run("echo", {"text": "a b c"})
            await s.ask("POST", f"/runs/{run}/cancel?wait=true", None, 204)
            status: str = (await s.get(f"/runs/{run}"))["status"]
            return status

        assert set(await asyncio.gather(*(race() for _ in range(20)))) <= {"success", "error"}


async def test_after_seconds_starts_a_run_later_and_it_is_pending_meanwhile(store: Path) -> None:
    gate = Gate()
    gate.go.set()
    async with up(store, gate.agent) as s:
        began = time.monotonic()
        run = await s.run("held", after_seconds=1)
        assert gate.entered.empty()
        assert (await s.get(f"/runs/{run}"))["status"] == "pending"
        assert (await s.output(run))["values"] == {"text": "held it"}
        assert time.monotonic() - began >= 1
        await s.post("/runs", {"agent_id": "held", "after_seconds": -1}, 422)


async def test_on_completion_keep_keeps_the_thread_and_delete_does_not(store: Path) -> None:
    async with up(store) as s:
        body = {"agent_id": "chat", "input": {"message": "Hello, my name is Ada"}}
        kept = await s.post("/runs/wait", {**body, "on_completion": "keep"})
        thread = kept["run"]["thread_id"]
        assert (await s.get(f"/threads/{thread}"))["values"]["messages"][0] == "Hello, my name is Ada"
        await s.post("/runs/wait", {**body, "on_completion": "delete"})
        assert [t["thread_id"] for t in await s.post("/threads/search", {})] == [thread]


@pytest.mark.parametrize("path", ["/runs", "/runs/wait"])
async def test_an_idempotency_key_makes_one_run_of_two_requests(store: Path, path: str) -> None:
    async with up(store) as s:
        body = {"agent_id": "echo", "input": {"text": "a"}}
        key = {"idempotency-key": "k1"}
        answers = [await s.post(path, body, headers=key) for _ in range(2)]
        assert len({answer.get("run", answer)["run_id"] for answer in answers}) == 1
        await s.post(path, {**body, "input": {"text": "b"}}, 409, headers=key)
        assert len(await s.post("/runs/search", {})) == 1


async def test_an_idempotency_key_works_for_streams_and_for_runs_that_keep_their_thread(store: Path) -> None:
    async with up(store) as s:
        body = {"agent_id": "echo", "input": {"text": "a"}}
        told = [await s.streamed("POST", "/runs/stream", body, **{"idempotency-key": "k1"}) for _ in range(2)]
        assert told[0][-1] == told[1][-1]
        kept = {**body, "on_completion": "keep"}
        runs = [await s.post("/runs/wait", kept, headers={"idempotency-key": "k2"}) for _ in range(2)]
        assert runs[0]["run"]["thread_id"] == runs[1]["run"]["thread_id"]


async def test_keys_and_ids_that_are_too_long_are_invalid(store: Path) -> None:
    long = "".join(random.Random(7).choices(string.ascii_letters, k=5000))
    async with up(store) as s:
        body = {"agent_id": "echo", "input": {"text": "a"}}
        for path in ("/runs", "/runs/wait", "/runs/stream"):
            for kept in ({}, {"on_completion": "keep"}):
                await s.post(path, {**body, **kept}, 422, headers={"idempotency-key": long})
        await s.post("/threads", {"thread_id": long}, 422)
        assert await s.post("/runs/search", {}) == []


async def test_a_restart_keeps_runs_and_their_output(store: Path) -> None:
    async with up(store) as s:
        run = await s.run("echo", {"text": "a"})
        before = await s.get(f"/runs/{run}/wait")
    async with up(store) as s:
        assert await s.get(f"/runs/{run}/wait") == before
        (end,) = await s.streamed("GET", f"/runs/{run}/stream")
        assert end[1]["status"] == "success"


# -- interrupts -----------------------------------------------------------------------------------------------


async def test_an_interrupt_is_output_and_a_bare_payload_resumes_the_run(store: Path) -> None:
    async with up(store) as s:
        told = await s.post("/runs/wait", {"agent_id": "mailer", "input": {"message": "at noon?"}})
        run = told["run"]["run_id"]
        assert told["run"]["status"] == "interrupted"
        output = told["output"]
        payload = {"subject": "Lunch", "body": "at noon?", "recipients": ["ada@example.org"]}
        assert output["type"] == "interrupt"
        assert output["interrupt"] == {"mail_send_approval": payload}
        assert (output["interrupt_type"], output["interrupt_payload"]) == ("mail_send_approval", payload)
        resumed = await s.post(f"/runs/{run}", {"approved": True})
        assert (resumed["run_id"], resumed["status"]) == (run, "pending")
        assert (await s.output(run))["values"] == {"message": "Sent."}


async def test_the_envelope_of_interrupt_type_and_resume_payload_resumes_too(store: Path) -> None:
    async with up(store) as s:
        run = await s.run("mailer")
        assert (await s.output(run))["type"] == "interrupt"
        wrong = {"interrupt_type": "weather", "resume_payload": {"approved": True}}
        assert "mail_send_approval" in await s.post(f"/runs/{run}", wrong, 409)
        answer = {"approved": False, "reason": "too early"}
        await s.post(f"/runs/{run}", {"interrupt_type": "mail_send_approval", "resume_payload": answer})
        assert (await s.output(run))["values"] == {"message": "Not sent: too early"}


async def test_an_answer_that_does_not_fit_is_refused_and_the_run_still_waits(store: Path) -> None:
    async with up(store) as s:
        run = await s.run("mailer")
        await s.output(run)
        for wrong in (
            {"approved": "yes"},
            {},
            [],
            "yes",
            {"interrupt_type": "mail_send_approval", "resume_payload": 3},
        ):
            assert isinstance(await s.post(f"/runs/{run}", wrong, 422), str)
        assert (await s.get(f"/runs/{run}"))["status"] == "interrupted"
        await s.post(f"/runs/{run}", {"approved": True})
        assert (await s.output(run))["values"] == {"message": "Sent."}


async def test_of_two_answers_at_once_one_wins_and_the_other_gets_409(store: Path) -> None:
    async with up(store) as s:
        for _ in range(5):
            run = await s.run("mailer")
            await s.output(run)
            answers = await asyncio.gather(
                s.http.post(f"/runs/{run}", json={"approved": True}),
                s.http.post(f"/runs/{run}", json={"approved": False, "reason": "no"}),
            )
            assert sorted(a.status_code for a in answers) == [200, 409]
            won = "Sent." if answers[0].status_code == 200 else "Not sent: no"
            assert (await s.output(run))["values"] == {"message": won}


async def test_only_an_interrupted_run_can_be_resumed(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent, mailer) as s:
        running = await s.run("held")
        await gate.entered.get()
        await s.post(f"/runs/{running}", {"approved": True}, 409)
        gate.go.set()
        assert (await s.output(running))["type"] == "result"
        await s.post(f"/runs/{running}", {"approved": True}, 409)
        await s.post(f"/runs/{NOBODY}", {"approved": True}, 404)
        cancelled = await s.run("mailer")
        await s.output(cancelled)
        await s.ask("POST", f"/runs/{cancelled}/cancel?wait=true", None, 204)
        await s.post(f"/runs/{cancelled}", {"approved": True}, 409)


async def test_an_interrupted_run_is_resumed_after_a_restart(store: Path) -> None:
    async with up(store) as s:
        thread = await s.thread()
        run = await s.run("mailer", base=f"/threads/{thread}/runs")
        before = await s.output(run, f"/threads/{thread}/runs")
    async with up(store) as s:
        assert (await s.get(f"/threads/{thread}"))["status"] == "interrupted"
        assert await s.output(run, f"/threads/{thread}/runs") == before
        await s.post(f"/threads/{thread}/runs/{run}", {"approved": True})
        assert (await s.output(run, f"/threads/{thread}/runs"))["values"] == {"message": "Sent."}
        assert (await s.get(f"/threads/{thread}"))["values"] == {"messages": ["hi"]}


# -- streams --------------------------------------------------------------------------------------------------


async def test_values_grow_and_each_replaces_the_one_before(store: Path) -> None:
    words = ["Hello", ", how", " can", " I help", " you", " today"]
    teller = Teller(*words)
    async with up(store, teller.agent) as s:
        s.door.settings = DoorSettings(values_per_second=1e6)
        told: list[tuple[str, Any]] = []
        async with s.stream("POST", "/runs/stream", {"agent_id": "teller", "stream_mode": "values"}) as updates:
            for n in range(len(words)):
                teller.next.release()
                told.append(await anext(updates))
                assert told[-1][1]["values"] == {"message": "".join(words[: n + 1])}
            teller.next.release()
            told += [update async for update in updates]
        run = told[0][1]["run_id"]
        for _, data in told:
            assert (data["type"], data["run_id"], data["result"]) == ("values", run, data["values"])
        assert [data["status"] for _, data in told] == ["pending"] * len(words) + ["success"]
        assert told[-1][1]["values"] == {"message": "Hello, how can I help you today"}
        ids = [id_ for id_, _ in told]
        assert len(set(ids)) == len(ids)
        assert (await s.get(f"/runs/{run}"))["status"] == "success"


async def test_custom_updates_are_fragments_and_activity(store: Path) -> None:
    async with up(store) as s:
        told = await s.streamed("POST", "/runs/stream", {"agent_id": "busybody", "stream_mode": "custom"})
        custom = [data["update"] for _, data in told if data["type"] == "custom"]
        assert [update["kind"] for update in custom][:3] == ["thought", "delta", "warning"]
        assert custom[1]["delta"] == {"text": "one "}
        assert [data["type"] for _, data in told][-1] == "values", "the end tells the whole result"
        assert told[-1][1]["values"] == {"text": "one two"}
        schema = (await s.get("/agents/busybody/descriptor"))["specs"]["custom_streaming_update"]
        assert {update["kind"] for update in custom} <= set(schema["properties"]["kind"]["enum"])


async def test_both_modes_at_once_send_both_kinds(store: Path) -> None:
    async with up(store) as s:
        s.door.settings = DoorSettings(values_per_second=1e6)
        body = {"agent_id": "busybody", "stream_mode": ["values", "custom"]}
        told = await s.streamed("POST", "/runs/stream", body)
        kinds = [data["type"] for _, data in told]
        assert {"values", "custom"} == set(kinds)
        assert kinds[-1] == "values"
        assert len({id_ for id_, _ in told}) == len(told)
        for wrong in ("tokens", ["values", "tokens"], 3):
            await s.post("/runs/stream", {**body, "stream_mode": wrong}, 422)


async def test_the_bytes_of_a_stream_are_one_ascii_line_of_data_with_lf_ends(store: Path) -> None:
    nasty = "line\u2028sep\u2029nel\u0085vt\x0bff\x0cend é"

    @il.agent
    async def shout() -> str:
        return nasty

    async with up(store, shout) as s:
        answer = await s.http.post("/runs/stream", json={}, headers={"accept": "application/json"})
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.content.isascii()
        assert b"\r" not in answer.content
        assert answer.content.endswith(b"\n\n")
        for block in answer.content.decode().removesuffix("\n\n").split("\n\n"):
            assert [line.partition(": ")[0] for line in block.splitlines()] == ["id", "event", "data"]
        last = json.loads(answer.content.decode().splitlines()[-2].removeprefix("data: "))
        assert last["values"] == {"text": nasty}


async def test_a_quiet_stream_is_kept_alive_by_comments_with_one_newline(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s:
        s.door.settings = DoorSettings(keep_alive=0.01)
        async with s.http.stream("POST", "/runs/stream", json={}) as answer:
            raw = answer.aiter_raw()
            assert (await anext(raw)).startswith(b": ")
            gate.go.set()
            rest = b"".join([chunk async for chunk in raw])
        comments = [line for line in rest.split(b"\n\n") if line.startswith(b":")]
        assert all(b"data: " in block for block in comments), "no comment stands alone as an event"


async def test_a_stream_is_taken_up_after_the_last_event_id(store: Path) -> None:
    teller = Teller("a", "b", "c")
    async with up(store, teller.agent) as s:
        s.door.settings = DoorSettings(values_per_second=1e6)
        body = {"agent_id": "teller", "on_disconnect": "continue"}
        async with s.stream("POST", "/runs/stream", body) as updates:
            teller.next.release()
            last, data = await anext(updates)
            assert data["values"] == {"message": "a"}
        path = f"/runs/{data['run_id']}/stream"
        async with s.stream("GET", path, **{"last-event-id": last}) as updates:
            teller.next.release()
            second, data = await anext(updates)
            assert data["values"] == {"message": "ab"}
            teller.next.release()
            teller.next.release()
            rest = [update async for update in updates]
        assert rest[-1][1]["values"] == {"message": "abc"}
        assert last not in {second, *(id_ for id_, _ in rest)}, "nothing comes twice"
        replayed = await s.streamed("GET", path, **{"last-event-id": last})
        assert replayed[-1] == rest[-1], "also when the run is over"
        assert await s.streamed("GET", path, **{"last-event-id": rest[-1][0]}) == []
        assert "Last-Event-ID" in await s.get(path, 422, headers={"last-event-id": "mine"})


async def test_a_stream_can_be_taken_up_at_every_id_in_both_modes(store: Path) -> None:
    async with up(store) as s:
        s.door.settings = DoorSettings(values_per_second=1e6)
        body = {"agent_id": "busybody", "stream_mode": ["custom", "values"]}
        told = await s.streamed("POST", "/runs/stream", body)
        path = f"/runs/{told[0][1]['run_id']}/stream"
        for place, (id_, _) in enumerate(told):
            rest = await s.streamed("GET", path, **{"last-event-id": id_})
            custom = [update for update in rest if update[1]["type"] == "custom"]
            assert custom == [update for update in told[place + 1 :] if update[1]["type"] == "custom"]
            assert rest[-1:] == (told[-1:] if place < len(told) - 1 else [])


async def test_a_join_tells_only_what_comes_after_it(store: Path) -> None:
    teller = Teller("a", "b")
    async with up(store, teller.agent) as s:
        s.door.settings = DoorSettings(values_per_second=1e6)
        body = {"agent_id": "teller", "on_disconnect": "continue"}
        async with s.stream("POST", "/runs/stream", body) as first:
            teller.next.release()
            _, data = await anext(first)
            async with s.stream("GET", f"/runs/{data['run_id']}/stream") as second:
                teller.next.release()
                assert (await anext(first))[1]["values"] == {"message": "ab"}
                assert (await anext(second))[1]["values"] == {"message": "ab"}
                teller.next.release()
                ends = [[u async for u in updates][-1] for updates in (first, second)]
        assert ends[0] == ends[1]
        assert ends[0][1]["status"] == "success"


async def test_a_join_after_the_end_tells_how_it_ended_and_closes(store: Path) -> None:
    async with up(store) as s:
        run = await s.run("echo", {"text": "a"})
        await s.output(run)
        ((_, end),) = await s.streamed("GET", f"/runs/{run}/stream")
        assert (end["type"], end["status"], end["values"]) == ("values", "success", {"text": "a "})
        failed = await s.run("postman")
        await s.output(failed)
        ((_, end),) = await s.streamed("GET", f"/runs/{failed}/stream")
        assert (end["type"], end["status"], end["code"]) == ("error", "error", "out_of_stamps")
        assert (end["errcode"], end["run_id"]) == (translate.OWN_ERRORS, failed)


async def test_a_stream_ends_at_an_interrupt_and_goes_on_after_the_answer(store: Path) -> None:
    async with up(store) as s:
        ((asked, data),) = await s.streamed("POST", "/runs/stream", {"agent_id": "mailer"})
        run = data["run_id"]
        assert (data["type"], data["status"]) == ("interrupt", "interrupted")
        assert next(iter(data["interrupt"])) == data["interrupt_type"] == "mail_send_approval"
        ((_, joined),) = await s.streamed("GET", f"/runs/{run}/stream")
        assert joined == data, "whoever joins now is told the question"
        await s.post(f"/runs/{run}", {"approved": True})
        rest = await s.streamed("GET", f"/runs/{run}/stream", **{"last-event-id": asked})
        assert [update["type"] for _, update in rest] == ["values"]
        assert rest[-1][1]["values"] == {"message": "Sent."}


async def test_a_stream_that_cannot_start_answers_with_a_plain_error(store: Path) -> None:
    async with up(store) as s:
        await s.post("/runs/stream", {"agent_id": NOBODY}, 404)
        await s.post("/runs/stream", {"agent_id": "echo", "input": {"text": 3}}, 422)
        await s.get(f"/runs/{NOBODY}/stream", 404)


# -- disconnects ----------------------------------------------------------------------------------------------


async def test_on_disconnect_cancel_ends_the_run_after_the_grace_and_continue_does_not(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s:
        s.door.settings = DoorSettings(disconnect_grace=0.01, keep_alive=0.01)
        runs = []
        for choice in ("continue", "cancel"):
            body = {"agent_id": "held", "on_disconnect": choice, "metadata": {"choice": choice}}
            async with s.http.stream("POST", "/runs/stream", json=body) as answer:
                assert answer.status_code == 200
                await gate.entered.get()
            (found,) = await s.post("/runs/search", {"metadata": {"choice": choice}})
            runs.append(found["run_id"])
        kept, cancelled = runs
        ended = await s.server.engine.runs.wait(cancelled, timeout=20)
        assert ended.status is il.Status.CANCELLED
        assert (await s.get(f"/runs/{kept}"))["status"] == "pending"
        gate.go.set()
        assert (await s.output(kept))["values"] == {"text": "held it"}


async def test_a_dropped_wait_cancels_its_run_too(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s:
        s.door.settings = DoorSettings(disconnect_grace=0.01)
        waiting = asyncio.create_task(s.post("/runs/wait", {"agent_id": "held"}))
        await gate.entered.get()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (await s.server.engine.runs.wait(gate.runs[0], timeout=20)).status is il.Status.CANCELLED


async def test_a_stream_taken_up_within_the_grace_is_not_cancelled(store: Path) -> None:
    teller = Teller("a", "b")
    async with up(store, teller.agent) as s:
        s.door.settings = DoorSettings(disconnect_grace=0.3, values_per_second=1e6, keep_alive=0.01)
        looked = asyncio.Event()
        look = s.door.watchers._unwatched

        def noted(run: str) -> None:
            look(run)
            looked.set()

        s.door.watchers._unwatched = noted  # type: ignore[method-assign]
        async with s.stream("POST", "/runs/stream", {"agent_id": "teller"}) as updates:
            teller.next.release()
            last, data = await anext(updates)
        async with s.stream("GET", f"/runs/{data['run_id']}/stream", **{"last-event-id": last}) as updates:
            await asyncio.wait_for(looked.wait(), 20)
            for _ in range(2):
                teller.next.release()
            assert [u async for u in updates][-1][1]["values"] == {"message": "ab"}


async def test_a_background_run_outlives_whoever_joins_and_leaves(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s:
        s.door.settings = DoorSettings(disconnect_grace=0, keep_alive=0.01)
        run = await s.run("held")
        await gate.entered.get()
        async with s.http.stream("GET", f"/runs/{run}/stream") as answer:
            assert (await anext(answer.aiter_raw())).startswith(b":")
        leaver = asyncio.create_task(s.get(f"/runs/{run}/wait"))
        await s.get(f"/runs/{run}/wait?timeout=0", 204)
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)
        async with s.stream("POST", "/runs/stream", {"agent_id": "held"}) as updates:
            gate.go.set()
            assert [u async for u in updates][-1][1]["status"] == "success"
        assert (await s.output(run))["values"] == {"text": "held it"}


async def test_a_client_that_leaves_disturbs_no_other_stream(store: Path) -> None:
    teller = Teller("a", "b")
    async with up(store, teller.agent) as s:
        s.door.settings = DoorSettings(values_per_second=1e6, keep_alive=0.01)
        async with s.stream("POST", "/runs/stream", {"agent_id": "teller"}) as mine:
            teller.next.release()
            _, data = await anext(mine)
            for _ in range(5):
                async with s.http.stream("GET", f"/runs/{data['run_id']}/stream") as answer:
                    await anext(answer.aiter_raw())
            teller.next.release()
            teller.next.release()
            assert [u async for u in mine][-1][1]["values"] == {"message": "ab"}


# -- threads (operations 4 to 11) -----------------------------------------------------------------------------


async def test_a_thread_is_made_idle_and_found_again(store: Path) -> None:
    async with up(store) as s:
        made = await s.post("/threads", {"metadata": {"a": 1}})
        assert uuid.UUID(made["thread_id"])
        assert (made["status"], made["metadata"]) == ("idle", {"a": 1})
        assert (made["created_at"][-1], made["updated_at"][-1]) == ("Z", "Z")
        assert await s.get(f"/threads/{made['thread_id']}") == made
        assert (await s.ask("POST", "/threads"))["status"] == "idle", "a body is not needed"


async def test_if_exists_raises_or_gives_the_thread_that_is_there(store: Path) -> None:
    async with up(store) as s:
        wanted = str(uuid.uuid4())
        made = await s.post("/threads", {"thread_id": wanted, "metadata": {"a": 1}})
        assert made["thread_id"] == wanted
        assert isinstance(await s.post("/threads", {"thread_id": wanted}, 409), str)
        assert isinstance(await s.post("/threads", {"thread_id": wanted, "if_exists": "raise"}, 409), str)
        again = await s.post("/threads", {"thread_id": wanted, "if_exists": "do_nothing", "metadata": {"a": 2}})
        assert again == made


async def test_runs_on_a_thread_share_its_state(store: Path) -> None:
    async with up(store) as s:
        thread = await s.chatted("Hello, my name is John", "Can you remind my name?")
        told = await s.get(f"/threads/{thread}")
        assert told["status"] == "idle"
        assert told["values"] == {
            "messages": ["Hello, my name is John", "Hello John", "Can you remind my name?", "Yes, your name is John"]
        }


async def test_agents_with_one_state_schema_share_a_thread_and_others_are_refused(store: Path) -> None:
    class Tally(msgspec.Struct):
        messages: int = 0

    @il.agent
    async def counter(ctx: il.Context[Tally, None]) -> str:
        return str(ctx.state.messages)

    async with up(store, chat, mailer, counter) as s:
        thread = await s.chatted("a")
        run = (await s.post(f"/threads/{thread}/runs/wait", {"agent_id": "mailer"}))["run"]["run_id"]
        await s.post(f"/threads/{thread}/runs/{run}", {"approved": True})
        await s.output(run, f"/threads/{thread}/runs")
        assert (await s.get(f"/threads/{thread}"))["values"]["messages"][-1] == "hi"
        before = (await s.get(f"/threads/{thread}"))["values"]
        for kind in ("", "/wait", "/stream"):
            refused = await s.post(f"/threads/{thread}/runs{kind}", {"agent_id": "counter"}, 409)
            assert "mailer@0.1.0" in refused, "whose state the thread holds"
            assert "counter@0.1.0" in refused
        assert len(await s.get(f"/threads/{thread}/runs")) == 2
        assert (await s.get(f"/threads/{thread}"))["values"] == before


async def test_threads_are_searched_by_metadata_values_and_status_with_paging(store: Path) -> None:
    async with up(store) as s:
        threads = [await s.thread(metadata={"n": n, "even": n % 2 == 0}) for n in range(4)]
        for thread in threads[:2]:
            await s.post(f"/threads/{thread}/runs/wait", {"agent_id": "chat", "input": {"message": "a"}})
        await s.post(f"/threads/{threads[3]}/runs/wait", {"agent_id": "mailer"})

        async def search(**where: Any) -> set[int]:
            return {t["metadata"]["n"] for t in await s.post("/threads/search", where)}

        assert await search() == {0, 1, 2, 3}
        assert await search(metadata={"even": True}) == {0, 2}
        assert await search(values={"messages": ["a", "Hello a"]}) == {0, 1}
        assert await search(values={"messages": []}) <= {2}
        assert await search(status="interrupted") == {3}
        assert await search(status="idle", metadata={"even": False}) == {1}
        pages = [await search(limit=3), await search(limit=3, offset=3)]
        assert [len(page) for page in pages] == [3, 1]
        assert pages[0] | pages[1] == {0, 1, 2, 3}
        await s.post("/threads/search", {"status": "asleep"}, 422)


async def test_history_is_newest_first_with_limit_and_before(store: Path) -> None:
    async with up(store) as s:
        thread = await s.chatted("a", "b", "c")
        states = await s.get(f"/threads/{thread}/history")
        assert [len(state["values"]["messages"]) for state in states[:3]] == [6, 4, 2]
        assert all(uuid.UUID(state["checkpoint"]["checkpoint_id"]) for state in states)
        assert await s.get(f"/threads/{thread}/history?limit=1") == states[:1]
        before = states[0]["checkpoint"]["checkpoint_id"]
        assert await s.get(f"/threads/{thread}/history?before={before}") == states[1:]
        assert await s.get(f"/threads/{thread}/history?before={before}&limit=1") == states[1:2]
        await s.get(f"/threads/{thread}/history?before={NOBODY}", 404)
        await s.get(f"/threads/{thread}/history?limit=0", 422)


async def test_a_patch_merges_metadata_and_changes_values(store: Path) -> None:
    async with up(store) as s:
        thread = await s.thread(metadata={"a": 1, "b": 1})
        assert (await s.ask("PATCH", f"/threads/{thread}", {"metadata": {"b": 2}}))["metadata"] == {"a": 1, "b": 2}
        assert await s.get(f"/threads/{thread}/history") == [], "metadata alone makes no new state"
        told = await s.ask("PATCH", f"/threads/{thread}", {"values": {"messages": ["Hello, my name is Eve"]}})
        assert told["values"] == {"messages": ["Hello, my name is Eve"]}
        run = {"agent_id": "chat", "input": {"message": "Who am I?"}}
        done = await s.post(f"/threads/{thread}/runs/wait", run)
        assert done["output"]["values"] == {"message": "Yes, your name is Eve"}
        for wrong in ({"metadata": 3}, {"checkpoint": 3}, {"messages": [{"role": "user"}]}):
            await s.ask("PATCH", f"/threads/{thread}", wrong, 422)


async def test_a_patch_from_a_checkpoint_branches_there(store: Path) -> None:
    async with up(store) as s:
        thread = await s.chatted("a", "b")
        newest, first = await s.get(f"/threads/{thread}/history")
        told = await s.ask("PATCH", f"/threads/{thread}", {"checkpoint": first["checkpoint"]})
        assert told["values"] == first["values"]
        kept = [state["checkpoint"] for state in await s.get(f"/threads/{thread}/history")]
        assert newest["checkpoint"] in kept, "nothing of the past is lost"
        body = {"checkpoint": newest["checkpoint"], "metadata": {"m": 1}}
        told = await s.ask("PATCH", f"/threads/{thread}", body)
        assert (told["values"], told["metadata"]) == (first["values"], {"m": 1}), "ignored for metadata alone"
        await s.ask("PATCH", f"/threads/{thread}", {"checkpoint": {"checkpoint_id": NOBODY}}, 404)


async def test_messages_of_a_thread_are_told_and_can_be_added(store: Path) -> None:
    async with up(store) as s:
        thread = await s.thread()
        message = {"role": "user", "content": "remember this"}
        told = await s.ask("PATCH", f"/threads/{thread}", {"messages": [message]})
        assert [(m["role"], m["content"]) for m in told["messages"]] == [("user", "remember this")]
        blocks = [{"type": "text", "text": "and "}, {"type": "text", "text": "this"}]
        told = await s.ask("PATCH", f"/threads/{thread}", {"messages": [{"role": "assistant", "content": blocks}]})
        assert (told["messages"][-1]["role"], told["messages"][-1]["content"]) == ("assistant", "and this")


async def test_a_copy_has_state_and_history_and_goes_its_own_way(store: Path) -> None:
    async with up(store) as s:
        thread = await s.chatted("a", "b")
        copy = await s.ask("POST", f"/threads/{thread}/copy")
        original = await s.get(f"/threads/{thread}")
        assert copy["thread_id"] != thread
        assert (copy["values"], copy["status"]) == (original["values"], "idle")

        async def values(of: str) -> list[Any]:
            return [state["values"] for state in await s.get(f"/threads/{of}/history")]

        assert await values(copy["thread_id"]) == await values(thread)
        await s.ask("PATCH", f"/threads/{copy['thread_id']}", {"values": {"messages": []}})
        assert await s.get(f"/threads/{thread}") == original


async def test_a_deleted_thread_is_gone_but_not_while_a_run_is_pending(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s:
        thread = await s.thread()
        run = await s.run("held", base=f"/threads/{thread}/runs")
        await gate.entered.get()
        await s.delete(f"/threads/{thread}", 409)
        gate.go.set()
        await s.output(run, f"/threads/{thread}/runs")
        await s.delete(f"/threads/{thread}")
        for method, path in (("GET", ""), ("GET", "/history"), ("GET", "/runs"), ("POST", "/copy"), ("DELETE", "")):
            assert isinstance(await s.ask(method, f"/threads/{thread}{path}", None, 404), str)
        await s.ask("PATCH", f"/threads/{thread}", {"metadata": {}}, 404)
        assert await s.post("/threads/search", {}) == []


# -- runs on threads (operations 11 to 20) --------------------------------------------------------------------


async def test_the_runs_of_a_thread_are_listed_newest_first_with_paging(store: Path) -> None:
    async with up(store) as s:
        thread = await s.chatted("a", "b", "c")
        runs = await s.get(f"/threads/{thread}/runs")
        assert [run["creation"]["input"]["message"] for run in runs] == ["c", "b", "a"]
        assert {run["thread_id"] for run in runs} == {thread}
        assert await s.get(f"/threads/{thread}/runs?limit=1&offset=1") == runs[1:2]
        await s.get(f"/threads/{thread}/runs?limit=0", 422)
        await s.get(f"/threads/{thread}/runs?offset=x", 422)


async def test_every_operation_on_a_thread_run_works_and_only_on_its_thread(store: Path) -> None:
    async with up(store) as s:
        thread, other = await s.thread(), await s.thread()
        base = f"/threads/{thread}/runs"
        body = {"agent_id": "mailer", "input": {"message": "a"}, "stream_subgraphs": True, "metadata": {"m": 1}}
        made = await s.post(base, body)
        assert {**made["creation"], **body} == made["creation"]
        assert (made["status"], made["thread_id"]) == ("pending", thread)
        run = made["run_id"]
        assert (await s.output(run, base))["type"] == "interrupt"
        assert (await s.get(f"/threads/{thread}"))["status"] == "interrupted"
        assert (await s.get(f"{base}/{run}"))["status"] == "interrupted"
        elsewhere = f"/threads/{other}/runs/{run}"
        operations = (("GET", ""), ("DELETE", ""), ("GET", "/wait"), ("GET", "/stream"), ("POST", "/cancel"))
        for method, path in operations:
            await s.ask(method, elsewhere + path, None, 404)
        await s.post(elsewhere, {"approved": True}, 404)
        resumed = await s.post(f"{base}/{run}", {"approved": True})
        assert (resumed["run_id"], resumed["status"]) == (run, "pending")
        assert (await s.output(run, base))["values"] == {"message": "Sent."}
        ((_, end),) = await s.streamed("GET", f"{base}/{run}/stream")
        assert end["status"] == "success"
        await s.ask("POST", f"{base}/{run}/cancel", None, 204)
        await s.delete(f"{base}/{run}")
        await s.get(f"{base}/{run}", 404)


async def test_a_run_on_a_thread_streams_its_output(store: Path) -> None:
    async with up(store) as s:
        thread = await s.thread()
        body = {"agent_id": "chat", "input": {"message": "a"}}
        told = await s.streamed("POST", f"/threads/{thread}/runs/stream", body)
        assert told[-1][1]["values"] == {"message": "Hello a"}
        assert (await s.get(f"/threads/{thread}"))["values"] == {"messages": ["a", "Hello a"]}


async def test_a_run_that_is_over_at_once_is_streamed_as_it_can_be_read_later(store: Path) -> None:
    async with up(store) as s:
        base, said = f"/threads/{await s.thread()}/runs", list[str]()
        for word in ("a", "b"):
            told = await s.streamed("POST", f"{base}/stream", {"agent_id": "chat", "input": {"message": word}})
            later = await s.streamed("GET", f"{base}/{told[-1][1]['run_id']}/stream", **{"last-event-id": "0"})
            said += [word, f"Hello {word}"]
            assert told == later
            assert told[-1][1]["thread_values"] == {"messages": said}


async def test_if_not_exists_makes_the_thread_or_answers_404(store: Path) -> None:
    async with up(store) as s:
        thread = str(uuid.uuid4())
        body = {"agent_id": "chat", "input": {"message": "a"}}
        for path in ("", "/wait", "/stream"):
            await s.post(f"/threads/{thread}/runs{path}", body, 404)
        await s.post(f"/threads/{thread}/runs", {**body, "if_not_exists": "reject"}, 404)
        made = await s.post(f"/threads/{thread}/runs/wait", {**body, "if_not_exists": "create"})
        assert made["run"]["thread_id"] == thread
        assert (await s.get(f"/threads/{thread}"))["values"] == {"messages": ["a", "Hello a"]}


async def test_a_second_run_on_a_busy_thread_is_rejected_by_default(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent, mailer) as s:
        thread = await s.thread()
        base = f"/threads/{thread}/runs"
        run = await s.run("held", base=base)
        await gate.entered.get()
        assert (await s.get(f"/threads/{thread}"))["status"] == "busy"
        for path in ("", "/wait", "/stream"):
            assert isinstance(await s.post(base + path, {"agent_id": "held"}, 409), str)
            await s.post(base + path, {"agent_id": "held", "multitask_strategy": "reject"}, 409)
        gate.go.set()
        await s.output(run, base)
        interrupted = await s.run("mailer", base=base)
        await s.output(interrupted, base)
        await s.post(base, {"agent_id": "held"}, 409)
        assert len(await s.get(base)) == 2


async def test_enqueue_runs_one_after_the_other(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s:
        base = f"/threads/{await s.thread()}/runs"
        first = await s.run("held", {"text": "1"}, base)
        await gate.entered.get()
        later = [await s.run("held", {"text": t}, base, multitask_strategy="enqueue") for t in ("2", "3")]
        assert [(await s.get(f"{base}/{run}"))["status"] for run in later] == ["pending", "pending"]
        assert gate.entered.empty()
        gate.go.set()
        for run, text in zip([first, *later], "123", strict=True):
            assert (await s.output(run, base))["values"] == {"text": f"held {text}"}
        assert (await s.get(base.removesuffix("/runs")))["values"] == {"messages": ["1", "2", "3"]}


@pytest.mark.parametrize("strategy", ["interrupt", "rollback"])
async def test_interrupt_and_rollback_put_the_new_run_in_the_place_of_the_old(store: Path, strategy: str) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s:
        base = f"/threads/{await s.thread()}/runs"
        old = await s.run("held", {"text": "old"}, base)
        assert await gate.entered.get() == "old"
        new = await s.run("held", {"text": "new"}, base, multitask_strategy=strategy)
        async with asyncio.timeout(20):
            assert await gate.entered.get() == "new"
        if strategy == "rollback":
            await s.get(f"{base}/{old}", 404)
        else:
            assert (await s.output(old, base))["code"] == "cancelled"
        gate.go.set()
        assert (await s.output(new, base))["values"] == {"text": "held new"}
        assert (await s.get(base.removesuffix("/runs")))["values"] == {"messages": ["new"]}


async def test_a_cancelled_thread_run_leaves_the_thread_idle_and_rollback_also_its_state(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent, chat) as s:
        thread = await s.chatted("a")
        before = await s.get(f"/threads/{thread}")
        base = f"/threads/{thread}/runs"
        for action in ("interrupt", "rollback"):
            run = await s.run("held", base=base)
            await gate.entered.get()
            await s.ask("POST", f"{base}/{run}/cancel?wait=1&action={action}", None, 204)
            now = await s.get(f"/threads/{thread}")
            assert now["values"] == before["values"]
            if action == "rollback":
                await s.get(f"{base}/{run}", 404)
        assert now["status"] == "idle"


async def test_a_thread_of_agents_without_state_shows_no_values(store: Path) -> None:
    async with up(store) as s:
        thread = await s.thread()
        await s.post(f"/threads/{thread}/runs/wait", {"agent_id": "echo", "input": {"text": "a"}})
        assert "thread_state" not in (await s.get("/agents/echo/descriptor"))["specs"]
        assert "values" not in await s.get(f"/threads/{thread}")


async def test_a_run_that_fails_leaves_the_state_of_its_thread_alone(store: Path) -> None:
    async with up(store) as s:
        thread = await s.chatted("a")
        before = (await s.get(f"/threads/{thread}"))["values"]
        done = await s.post(f"/threads/{thread}/runs/wait", {"agent_id": "postman"})
        assert done["run"]["status"] == "error"
        now = await s.get(f"/threads/{thread}")
        assert (now["values"], now["status"]) == (before, "error")
        after = {"agent_id": "chat", "input": {"message": "b"}}
        assert (await s.post(f"/threads/{thread}/runs/wait", after))["run"]["status"] == "success"
        assert (await s.get(f"/threads/{thread}"))["status"] == "idle"


# -- configured instances -------------------------------------------------------------------------------------


async def test_a_configured_instance_is_used_in_runs_listed_deleted_and_survives_a_restart(store: Path) -> None:
    async with up(store) as s:
        body = {"config": {"style": "friendly"}, "name": "warm", "metadata": {"m": 1}}
        made = await s.post("/agents/greeter/configurations", body)
        (agent,) = await s.post("/agents/search", {"name": "greeter"})
        assert made["agent_id"] == agent["agent_id"]
        assert (made["config"], made["name"], made["metadata"]) == ({"style": "friendly"}, "warm", {"m": 1})
        config_id = made["config_id"]
        run = {"agent_id": config_id, "input": {"name": "Ada"}}
        for _ in range(2):
            assert (await s.post("/runs/wait", run))["output"]["values"] == {"message": "Hi Ada!"}
        formal = {**run, "config": {"configurable": {"style": "formal"}}}
        assert (await s.post("/runs/wait", formal))["output"]["values"] == {"message": "Good day, Ada."}
        assert isinstance(await s.post("/agents/greeter/configurations", {"config": {"style": "rude"}}, 422), str)
        assert await s.get("/agents/echo/configurations") == []
    async with up(store) as s:
        assert await s.get("/agents/greeter/configurations") == [made]
        assert await s.get(f"/configurations/{config_id}") == made
        thread = await s.thread()
        told = await s.post(f"/threads/{thread}/runs/wait", run)
        assert told["output"]["values"] == {"message": "Hi Ada!"}
        await s.delete(f"/configurations/{config_id}")
        await s.get(f"/configurations/{config_id}", 404)
        await s.delete(f"/configurations/{config_id}", 404)
        await s.post("/runs", run, 404)


# -- who may ask ----------------------------------------------------------------------------------------------


async def _keys(store: Path, *names: str, scopes: tuple[str, ...] = ()) -> list[str]:
    opened = open_store(store)
    await opened.open()
    secrets = []
    for name in names:
        secret, record = make_key(name, scopes, int(time.time() * 1e6))
        await StoredKeys(opened.keys).put(record)
        secrets.append(secret)
    await opened.close()
    return secrets


async def test_the_authentication_schemes_are_told_without_credentials(store: Path) -> None:
    async with up(store) as s:
        assert await s.get("/auth") == {"schemes": []}
    await _keys(store, "ada")
    async with up(store) as s:
        schemes = (await s.get("/auth"))["schemes"]
        assert {"apiKey", "http"} == {scheme["type"] for scheme in schemes}
        assert schemes[0]["name"] == "x-api-key"
        await s.post("/agents/search", {}, 401)


async def test_keys_are_taken_as_x_api_key_and_as_bearer(store: Path) -> None:
    (ada,) = await _keys(store, "ada")
    async with up(store) as s:
        answer = await s.http.post("/agents/search", json={})
        assert answer.status_code == 401
        assert isinstance(answer.json(), str)
        assert "www-authenticate" in answer.headers
        for headers in ({"x-api-key": ada}, {"authorization": f"Bearer {ada}"}):
            assert len(await s.post("/agents/search", {}, headers=headers)) == len(AGENTS)
        for headers in ({"x-api-key": ada + "x"}, {"authorization": "Bearer nonsense"}, {"x-api-key": ""}):
            await s.post("/agents/search", {}, 401, headers=headers)
        for path in ("/runs", "/runs/wait", "/runs/stream", "/threads"):
            await s.post(path, {}, 401)
        await s.get(f"/runs/{NOBODY}", 401)


async def test_callers_see_only_their_own_runs_threads_and_configurations(store: Path) -> None:
    ada, bob = await _keys(store, "ada", "bob")
    (boss,) = await _keys(store, "boss", scopes=("*",))
    mine, theirs, all_ = ({"x-api-key": key} for key in (ada, bob, boss))
    async with up(store) as s:
        run = (await s.post("/runs/wait", {"agent_id": "mailer"}, headers=mine))["run"]["run_id"]
        thread = (await s.post("/threads", {}, headers=mine))["thread_id"]
        config = {"config": {"style": "friendly"}}
        config_id = (await s.post("/agents/greeter/configurations", config, headers=mine))["config_id"]
        for path in (f"/runs/{run}", f"/threads/{thread}", f"/configurations/{config_id}"):
            await s.get(path, 404, headers=theirs)
            await s.get(path, 200, headers=mine)
            await s.get(path, 200, headers=all_)
        for path in (
            f"/runs/{run}/wait",
            f"/runs/{run}/stream",
            f"/threads/{thread}/runs",
            f"/threads/{thread}/history",
        ):
            await s.get(path, 404, headers=theirs)
        await s.post(f"/runs/{run}", {"approved": True}, 404, headers=theirs)
        await s.ask("POST", f"/runs/{run}/cancel", None, 404, headers=theirs)
        await s.ask("DELETE", f"/runs/{run}", None, 404, headers=theirs)
        await s.ask("POST", f"/threads/{thread}/copy", None, 404, headers=theirs)
        taken = {"thread_id": thread, "if_exists": "do_nothing"}
        await s.post("/threads", taken, 409, headers=theirs)
        await s.post("/runs", {"agent_id": config_id, "input": {"name": "x"}}, 404, headers=theirs)
        for path in ("/runs/search", "/threads/search"):
            assert len(await s.post(path, {}, headers=mine)) == 1
            assert await s.post(path, {}, headers=theirs) == []
            assert len(await s.post(path, {}, headers=all_)) == 1
        assert await s.get("/agents/greeter/configurations", headers=theirs) == []


async def test_a_copied_thread_belongs_to_whoever_copied_it(store: Path) -> None:
    (ada,) = await _keys(store, "ada")
    headers = {"x-api-key": ada}
    async with up(store) as s:
        thread = (await s.post("/threads", {}, headers=headers))["thread_id"]
        copy = await s.ask("POST", f"/threads/{thread}/copy", None, headers=headers)
        assert (await s.get(f"/threads/{copy['thread_id']}", headers=headers))["status"] == "idle"


async def test_scopes_limit_agents_and_actions(store: Path) -> None:
    (reader,) = await _keys(store, "reader", scopes=("do:read", "agents:echo"))
    headers = {"x-api-key": reader}
    async with up(store) as s:
        (only,) = await s.post("/agents/search", {}, headers=headers)
        assert only["metadata"]["ref"]["name"] == "echo"
        await s.post("/runs", {"agent_id": "echo", "input": {"text": "a"}}, 403, headers=headers)
        await s.post("/runs", {"agent_id": "mailer"}, 404, headers=headers)


async def test_a_key_that_may_only_read_changes_no_threads(store: Path) -> None:
    (reader,) = await _keys(store, "reader", scopes=("do:read", "see:all"))
    (ada,) = await _keys(store, "ada")
    headers = {"x-api-key": reader}
    async with up(store) as s:
        thread = (await s.post("/threads", {}, headers={"x-api-key": ada}))["thread_id"]
        await s.get(f"/threads/{thread}", headers=headers)
        await s.post("/threads", {}, 403, headers=headers)
        await s.ask("PATCH", f"/threads/{thread}", {"values": {"messages": []}}, 403, headers=headers)
        await s.ask("POST", f"/threads/{thread}/copy", None, 403, headers=headers)
        await s.ask("DELETE", f"/threads/{thread}", None, 403, headers=headers)


async def test_nobody_runs_on_the_thread_of_another_caller(store: Path) -> None:
    ada, bob = await _keys(store, "ada", "bob")
    async with up(store) as s:
        thread = (await s.post("/threads", {}, headers={"x-api-key": ada}))["thread_id"]
        body = {"agent_id": "chat", "input": {"message": "Hello, my name is Mallory"}}
        for path in ("", "/wait", "/stream"):
            for choice in ("reject", "create"):
                given = {**body, "if_not_exists": choice}
                await s.post(f"/threads/{thread}/runs{path}", given, 404, headers={"x-api-key": bob})
        assert await s.get(f"/threads/{thread}/runs", headers={"x-api-key": ada}) == []


async def test_an_idempotency_key_is_a_callers_own(store: Path) -> None:
    ada, bob = await _keys(store, "ada", "bob")
    async with up(store) as s:
        body = {"agent_id": "echo", "input": {"text": "a"}}
        runs = [await s.post("/runs", body, headers={"x-api-key": k, "idempotency-key": "k"}) for k in (ada, bob)]
        assert runs[0]["run_id"] != runs[1]["run_id"]


async def test_a_foreign_host_or_origin_is_refused(store: Path) -> None:
    async with up(store) as s:
        await s.post("/agents/search", {}, 403, headers={"host": "evil.example"})
        await s.post("/agents/search", {}, 403, headers={"origin": "https://evil.example"})
        await s.post("/agents/search", {}, headers={"origin": s.server.address})


# -- callbacks ------------------------------------------------------------------------------------------------


async def test_each_status_change_is_posted_in_order_with_a_delivery_id(store: Path) -> None:
    async with up(store) as s, Receiver() as receiver:
        run = await s.run("mailer", webhook=receiver.url)
        asked = await receiver.until("interrupted")
        await s.post(f"/runs/{run}", {"approved": True})
        told = asked + await receiver.until("success")
        assert [body["status"] for _, body in told] == ["interrupted", "pending", "success"]
        assert all(body["run_id"] == run and body["creation"]["webhook"] == receiver.url for _, body in told)
        ids = [int(headers["x-interlingua-delivery"]) for headers, _ in told]
        assert ids == sorted(set(ids)), "every delivery has an id of its own, in order"
        assert (await s.output(run))["values"] == {"message": "Sent."}


@pytest.mark.parametrize("spelling", ["webhook", "callback", "object"])
async def test_the_earlier_spellings_of_webhook_are_taken(store: Path, spelling: str) -> None:
    async with up(store) as s, Receiver() as receiver:
        given = {"webhook": receiver.url} if spelling == "webhook" else {"callback": receiver.url}
        run = await s.run(
            "echo", {"text": "a"}, **({"callback": {"POST": receiver.url}} if spelling == "object" else given)
        )
        assert (await receiver.until("success"))[-1][1]["run_id"] == run


async def test_a_failed_delivery_is_tried_again_with_the_same_id(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlingua.engine.services.callbacks._FIRST_PAUSE", 0.01)
    async with up(store) as s, Receiver(500, 503) as receiver:
        run = await s.run("echo", {"text": "a"}, webhook=receiver.url)
        told = await receiver.until("success")
        if len(told) < 3:  # the very news that failed was the end of the run
            told += await receiver.until("success")
            told += await receiver.until("success")
        ids = [headers["x-interlingua-delivery"] for headers, _ in told]
        assert ids[0] == ids[1] == ids[2]
        assert {body["run_id"] for _, body in told} == {run}
        assert s.server.engine.callbacks.retried == 2


async def test_deliveries_are_signed_when_there_is_a_secret(store: Path) -> None:
    async with up(store, callbacks=CallbackSettings(secret="s3cret")) as s, Receiver() as receiver:
        await s.run("echo", {"text": "a"}, webhook=receiver.url)
        async with asyncio.timeout(20):
            headers, body = await receiver.got.get()
        stamp = int(headers[webhook_signatures.TIMESTAMP_HEADER])
        wanted = webhook_signatures.sign("s3cret", headers[webhook_signatures.DELIVERY_HEADER], stamp, body)
        assert headers[webhook_signatures.SIGNATURE_HEADER] == wanted


async def test_a_dead_receiver_disturbs_no_run_and_no_other_receiver(store: Path) -> None:
    async with up(store) as s, Receiver() as receiver:
        async with Receiver() as dead:
            pass
        first = await s.run("echo", {"text": "a"}, webhook=dead.url)
        second = await s.run("echo", {"text": "b"}, webhook=receiver.url)
        assert (await receiver.until("success"))[-1][1]["run_id"] == second
        assert (await s.output(first))["values"] == {"text": "a "}


# -- bad input ------------------------------------------------------------------------------------------------

WRITES = (
    ("POST", "/agents/search"), ("POST", "/threads"), ("POST", "/threads/search"), ("POST", "/runs"),
    ("POST", "/runs/search"), ("POST", "/runs/stream"), ("POST", "/runs/wait"),
)  # fmt: skip


async def test_malformed_json_and_wrong_types_are_422_with_a_text_that_says_where(store: Path) -> None:
    async with up(store) as s:
        thread = await s.thread()
        run = await s.run("mailer")
        await s.output(run)
        writes = [
            *WRITES,
            ("PATCH", f"/threads/{thread}"),
            ("POST", f"/runs/{run}"),
            ("POST", f"/threads/{thread}/runs"),
        ]
        json_type = {"content-type": "application/json"}
        for method, path in writes:
            for body in (b"{", b"nul", b'{"a": NaN}', b"\xff\xfe", b'{"a": 1} x', b'"\\ud800"'):
                assert isinstance(await s.ask(method, path, None, 422, content=body, headers=json_type), str), (
                    path,
                    body,
                )
        for wrong, where in (
            ({"metadata": [1]}, "/metadata"),
            ({"config": {"tags": [1]}}, "/config/tags"),
            ({"agent_id": 3}, "/agent_id"),
            ({"after_seconds": "soon"}, "/after_seconds"),
            ({"on_disconnect": "panic"}, "/on_disconnect"),
            ({"multitask_strategy": "x"}, "/multitask_strategy"),
            ({"webhook": ""}, "/webhook"),
            ({"on_completion": "x"}, "/on_completion"),
        ):
            assert where in await s.post("/runs", wrong, 422)
        assert (await s.get(f"/runs/{run}"))["status"] == "interrupted", "nothing was disturbed"


async def test_ids_that_are_not_there_are_404_whatever_they_look_like(store: Path) -> None:
    async with up(store) as s:
        for unknown in (NOBODY, "nonsense", "a%20b", "%00", "é" * 200):
            for path in ("", "/wait", "/stream"):
                await s.get(f"/runs/{unknown}{path}", 404)
            for path in ("", "/runs", "/history", f"/runs/{NOBODY}"):
                await s.get(f"/threads/{unknown}{path}", 404)
            await s.post("/runs", {"agent_id": unknown}, 404)


async def test_a_head_request_opens_no_stream(store: Path) -> None:
    async with up(store) as s:
        run = await s.run("echo", {"text": "a"})
        answer = await s.http.request("HEAD", f"/runs/{run}/stream")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


async def test_numbers_beyond_reason_are_422(store: Path) -> None:
    async with up(store) as s:
        thread = await s.thread()
        run = await s.run("echo", {"text": "a"})
        await s.output(run)
        for wrong in ("²", "9" * 25, "9" * 5000, "-1", "1.5", ""):
            assert isinstance(await s.get(f"/threads/{thread}/runs", 422, params={"offset": wrong}), str)
            assert isinstance(await s.get(f"/threads/{thread}/history", 422, params={"limit": wrong}), str)
        for path in ("/runs/search", "/threads/search"):
            assert isinstance(await s.post(path, {"offset": 2**63}, 422), str)
        await s.get(f"/runs/{run}/stream", 422, headers={"last-event-id": "9" * 5000})


async def test_metadata_is_found_whatever_its_keys_and_values_are(store: Path) -> None:
    async with up(store) as s:
        for metadata in (
            {'a"b': 1}, {"a\\b": 1}, {"a.b": 1}, {"": 1}, {"$": 1}, {"[0]": 1}, {"a'b": 1}, {"é\u2028": 1.5},
            {"n": None}, {"t": True}, {"deep": {"b": [1, {"c": None}]}},
        ):  # fmt: skip
            thread = await s.thread(metadata=metadata)
            run = await s.run("echo", {"text": "a"}, metadata=metadata)
            await s.output(run)
            found = await s.post("/threads/search", {"metadata": metadata})
            assert [t["thread_id"] for t in found] == [thread], metadata
            assert [r["run_id"] for r in await s.post("/runs/search", {"metadata": metadata})] == [run], metadata


async def test_a_body_that_is_too_large_is_413(store: Path) -> None:
    async with up(store) as s:
        s.door.settings = DoorSettings(max_body_bytes=1000)
        body = {"agent_id": "echo", "input": {"text": "a" * 2000}}
        for method, path in WRITES:
            await s.ask(method, path, body, 413)

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b'"' + b"a" * 500

        headers = {"content-type": "application/json"}
        answer = await s.http.post("/runs", content=chunks(), headers=headers)
        assert answer.status_code == 413, "also when its size is not told before"
        assert (await s.post("/runs/wait", {"agent_id": "echo", "input": {"text": "a"}}))["run"]["status"] == "success"


async def test_ten_thousand_levels_of_nesting_are_refused(store: Path) -> None:
    async with up(store) as s:
        headers = {"content-type": "application/json"}
        for deep in (b"[" * 10_000 + b"]" * 10_000, b'{"a":' * 10_000 + b"1" + b"}" * 10_000):
            for path in ("/runs", "/runs/wait", "/runs/stream"):
                body = b'{"agent_id": "echo", "input": ' + deep + b"}"
                answer = await s.http.post(path, content=body, headers=headers)
                assert answer.status_code in (413, 422), answer.text
                assert isinstance(answer.json(), str)
            answer = await s.http.post("/agents/search", content=deep, headers=headers)
            assert answer.status_code in (413, 422)


async def test_another_content_type_is_415(store: Path) -> None:
    async with up(store) as s:
        for wrong in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            for method, path in WRITES:
                await s.ask(method, path, None, 415, content=b"{}", headers={"content-type": wrong})
        right = {"content-type": "application/json; charset=utf-8"}
        assert await s.ask("POST", "/agents/search", None, content=b"{}", headers=right)


async def test_methods_and_paths_that_are_not_there(store: Path) -> None:
    async with up(store) as s:
        assert isinstance(await s.ask("PUT", "/runs", {}, 405), str)
        assert isinstance(await s.get("/agents/search/x/y", 404), str)


async def test_a_body_that_trickles_in_is_given_up(store: Path) -> None:
    async with up(store) as s:
        s.door.settings = DoorSettings(body_timeout=0.05)
        url = httpx2.URL(s.server.address)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        head = f"POST /connect/runs HTTP/1.1\r\nhost: {url.host}:{url.port}\r\ncontent-type: application/json\r\n"
        writer.write(head.encode() + b"content-length: 100\r\n\r\n{")
        async with asyncio.timeout(20):
            assert b" 408 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
        assert await s.post("/runs/search", {}) == []


@pytest.mark.parametrize("path", ["/runs", "/runs/wait", "/runs/stream"])
async def test_a_client_that_leaves_within_its_body_starts_nothing(store: Path, path: str) -> None:
    async with up(store) as s:
        url = httpx2.URL(s.server.address)
        _, writer = await asyncio.open_connection(url.host, url.port)
        head = f"POST /connect{path} HTTP/1.1\r\nhost: {url.host}:{url.port}\r\ncontent-type: application/json\r\n"
        writer.write(head.encode() + b"content-length: 100\r\n\r\n" + b'{"agent_id": "echo"')
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await s.post("/runs/wait", {"agent_id": "echo", "input": {"text": "a"}}))["run"]["status"] == "success"
        assert len(await s.post("/runs/search", {})) == 1


# -- beside the doors -----------------------------------------------------------------------------------------


async def test_health_readiness_and_metrics_are_served_beside_the_door(store: Path) -> None:
    async with up(store) as s:
        await s.post("/runs/wait", {"agent_id": "echo", "input": {"text": "a"}})
        base = s.server.address
        assert (await s.http.get(f"{base}/healthz")).text == "ok\n"
        assert (await s.http.get(f"{base}/readyz")).text == "ready\n"
        metrics = await s.http.get(f"{base}/metrics")
        assert metrics.headers["content-type"].startswith("text/plain")
        assert 'interlingua_runs_finished_total{agent="echo",status="succeeded"} 1' in metrics.text
        s.server.app.probes.ready = False
        assert (await s.http.get(f"{base}/readyz")).status_code == 503
        assert (await s.http.get(f"{base}/healthz")).status_code == 200

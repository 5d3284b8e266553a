"""Places where a question shows and can be answered: a client of each door over a real socket, and the command line.

Each begins a run or joins one that was begun elsewhere, waits until the question shows, answers it, and waits until it
is told that somebody else has.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import websockets.asyncio.client

from interlingua.model.filters import RunFilter
from interlingua.protocols.mcp import wire as mcp_wire
from interlingua.server.app import Server
from interlingua.transports.http.sse import Reader
from tests.kit.clients.mcp_http import Answer
from tests.kit.clients.mcp_http import Client as McpClient
from tests.kit.commands import process_env, start_command
from tests.kit.wait_for import PATIENCE

YES = {"approved": True, "reason": None}
WRONG = {"approved": "perhaps"}
AGENT = "asker"

Json = dict[str, Any]


class Begun:
    """A run, and the thread that it is on."""

    def __init__(self, run: str, thread: str | None) -> None:
        self.run = run
        self.thread = thread


class Place:
    name: ClassVar[str]
    door: ClassVar[str]  # as the record calls it
    begins: ClassVar[int] = 0  # of two places, the one with the higher number begins the run: the other can join it
    refuses: ClassVar[bool] = False  # whoever answers too late gets an error, and not only news

    def __init__(self, server: Server, key: str, store: Path) -> None:
        self.server = server
        self.key = key
        self.store = store
        self.http = httpx2.AsyncClient(
            base_url=server.address, headers={"x-api-key": key}, timeout=PATIENCE,
            limits=httpx2.Limits(max_connections=None),
        )  # fmt: skip
        self.begun: Begun
        self._left: list[Callable[[], Any]] = []

    async def __aenter__(self) -> Place:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for leave in reversed(self._left):
            await leave()
        await self.http.aclose()

    async def begin(self) -> Begun:
        raise NotImplementedError

    async def join(self, begun: Begun) -> None:
        """Show what was begun elsewhere."""
        self.begun = begun

    async def shown(self) -> None:
        """Wait until the question shows here."""
        raise NotImplementedError

    async def answer(self) -> None:
        assert await self.attempt() == ""

    async def attempt(self, given: Any = YES) -> str:
        """Answer, and give back why that was not taken."""
        raise NotImplementedError

    async def wrong(self) -> str:
        """Answer with what does not fit. What is said to that."""
        return await self.attempt(WRONG)

    async def told(self) -> None:
        """Wait until this place is told that somebody has answered."""
        raise NotImplementedError

    async def gone(self) -> None:
        """Wait until this place is told that nobody need answer any more, though nobody has."""
        await self.told()

    def deadline(self) -> Any:
        """Until when it can be answered, as it stands on the wire."""
        raise NotImplementedError

    async def _run_on(self, thread: str | None = None) -> str:
        async with asyncio.timeout(PATIENCE):
            while not (runs := await self.server.engine.runs.search(RunFilter(thread=thread))):
                await asyncio.sleep(0)
        return runs[0].id


class Events:
    """A stream of server-sent events, read in the background and looked through from its beginning."""

    def __init__(self, http: httpx2.AsyncClient, path: str, headers: dict[str, str] | None = None) -> None:
        self.got: list[tuple[str, Json]] = []
        self.last_id: str | None = None
        self._news = asyncio.Event()
        self._over = False
        self._task = asyncio.ensure_future(self._read(http, path, headers or {}))

    async def _read(self, http: httpx2.AsyncClient, path: str, headers: dict[str, str]) -> None:
        try:
            async with http.stream("GET", path, headers=headers, timeout=None) as response:
                assert response.status_code == 200, await response.aread()
                reader = Reader()
                async for chunk in response.aiter_bytes():
                    for event in reader.feed(chunk):
                        if event.data:
                            self.got.append((event.event or "", json.loads(event.data)))
                    self.last_id = reader.last_id
                    self._news.set()
        finally:
            self._over = True
            self._news.set()

    async def until(self, fits: Callable[[str, Json], Any]) -> Json:
        seen = 0
        async with asyncio.timeout(PATIENCE):
            while True:
                for kind, data in self.got[seen:]:
                    seen += 1
                    if fits(kind, data):
                        return data
                assert not self._over, f"the stream has ended: {self.got}"
                self._news.clear()
                await self._news.wait()

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


# -- connect --------------------------------------------------------------------------------------------------


class Connect(Place):
    """A stream ends at the interrupt; taken up again, it goes on behind it."""

    name, door, begins, refuses = "connect", "connect", 1, True

    async def begin(self) -> Begun:
        thread = str(uuid.uuid4())
        body = {"agent_id": AGENT, "input": {"text": "it"}, "if_not_exists": "create"}
        made = await self.http.post(f"/connect/threads/{thread}/runs", json=body)
        assert made.status_code == 200, made.text
        self.begun = Begun(made.json()["run_id"], thread)
        return self.begun

    @property
    def _path(self) -> str:
        return f"/connect/runs/{self.begun.run}"

    async def shown(self) -> None:
        stream = Events(self.http, f"{self._path}/stream", {"last-event-id": "0"})
        self._left.append(stream.leave)
        asked = await stream.until(lambda _, update: update["type"] == "interrupt")
        assert (asked["interrupt_type"], asked["status"]) == ("confirm", "interrupted")
        self._asked = asked
        await asyncio.wait({stream._task})
        self._at = stream.last_id

    def deadline(self) -> Any:
        return self._asked["deadline"]

    async def attempt(self, given: Any = YES) -> str:
        taken = await self.http.post(self._path, json=given)
        assert taken.status_code in (200, 409, 422)
        return "" if taken.status_code == 200 else taken.text

    async def told(self) -> None:
        assert self._at is not None
        await self.server.engine.runs.wait(
            self.begun.run, timeout=20
        )  # not every place hears that its answer was taken
        stream = Events(self.http, f"{self._path}/stream", {"last-event-id": self._at})
        self._left.append(stream.leave)
        done = await stream.until(lambda _, update: update["status"] != "pending")
        assert (done["type"], done["status"]) == ("values", "success"), "the interrupt is gone"
        assert (await self.http.get(self._path)).json()["status"] == "success"


# -- editors --------------------------------------------------------------------------------------------------


class Editor(Place):
    """A WebSocket; the question is a request of the server's, and is taken back."""

    name, door, begins = "editor", "editor", 2
    version: ClassVar[int] = 1

    async def _open(self) -> None:
        url = self.server.address.replace("http", "ws") + "/editor"
        headers = {"x-api-key": self.key}
        self._socket = await websockets.asyncio.client.connect(url, max_size=None, additional_headers=headers)
        self._left.append(self._socket.close)
        self._got: list[Json] = []
        self._news = asyncio.Event()
        reading = asyncio.ensure_future(self._read())

        async def leave() -> None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

        self._left.append(leave)
        self._id = 0
        more = {"info": {"name": "t", "version": "1"}} if self.version == 2 else {}
        await self._ask("initialize", {"protocolVersion": self.version, **more})

    async def _read(self) -> None:
        async for text in self._socket:
            got = json.loads(text)
            self._got += got if isinstance(got, list) else [got]
            self._news.set()

    async def _until(self, fits: Callable[[Json], Any]) -> Json:
        seen = 0
        async with asyncio.timeout(PATIENCE):
            while True:
                for message in self._got[seen:]:
                    seen += 1
                    if fits(message):
                        return message
                self._news.clear()
                await self._news.wait()

    async def _ask(self, method: str, params: Json) -> Json:
        self._id += 1
        id_ = self._id
        await self._socket.send(json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params}))
        answer = await self._until(lambda m: m.get("id") == id_ and "method" not in m)
        assert "result" in answer, answer
        return dict(answer["result"])

    async def begin(self) -> Begun:
        await self._open()
        session = (await self._ask("session/new", {"cwd": "/tmp", "mcpServers": []}))["sessionId"]
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "it"}]}
        self._id += 1
        await self._socket.send(
            json.dumps({"jsonrpc": "2.0", "id": self._id, "method": "session/prompt", "params": prompt})
        )
        self.begun = Begun(await self._run_on(session), session)
        return self.begun

    async def join(self, begun: Begun) -> None:
        self.begun = begun
        assert begun.thread is not None
        await self._open()
        method = "session/load" if self.version == 1 else "session/resume"
        await self._ask(method, {"sessionId": begun.thread, "cwd": "/tmp", "mcpServers": []})

    async def shown(self) -> None:
        self._request = await self._until(lambda m: m.get("method") == "session/request_permission")
        kinds = [option["kind"] for option in self._request["params"]["options"]]
        assert kinds == ["allow_once", "reject_once"]

    async def answer(self) -> None:
        chosen = self._request["params"]["options"][0]["optionId"]
        result = {"outcome": {"outcome": "selected", "optionId": chosen}}
        await self._socket.send(json.dumps({"jsonrpc": "2.0", "id": self._request["id"], "result": result}))

    def deadline(self) -> Any:
        return self._request["params"]["_meta"]["interlingua/deadline"]

    async def told(self) -> None:
        await self._taken_back("completed")

    async def gone(self) -> None:
        await self._taken_back("failed" if self.version == 1 else "cancelled")

    async def _taken_back(self, status: str) -> None:
        back = await self._until(lambda m: m.get("method") == "$/cancel_request")
        assert back["params"]["requestId"] == self._request["id"]

        def settled(message: Json) -> bool:
            update = message.get("params", {}).get("update", {})
            about = str(update.get("toolCallId", "")).startswith("question-")
            return about and update.get("status") == status

        await self._until(settled)


class Editor2(Editor):
    name, version = "editor v2", 2


# -- mcp ------------------------------------------------------------------------------------------------------


class Mcp(Place):
    """The question is an elicitation on the stream of the request, and is cancelled."""

    name, door = "mcp", "mcp"

    async def _client(self) -> McpClient:
        client = McpClient(self.http, f"{self.server.address}/mcp", {})

        async def leave() -> None:
            for answer in client.answers:
                await answer.leave()

        self._left.append(leave)
        await client.begin(elicitation={})
        return client

    async def _run(self, meta: Json) -> Answer:
        self._mcp = await self._client()
        return await self._mcp.ask("agents/run", {"name": AGENT, "input": {"text": "it"}, "_meta": meta})

    async def begin(self) -> Begun:
        self._answer = await self._run({})
        self.begun = Begun(await self._run_on(), None)
        return self.begun

    async def join(self, begun: Begun) -> None:
        self.begun = begun
        self._answer = await self._run({mcp_wire.META_RUN: begun.run})

    async def shown(self) -> None:
        while (asked := await self._answer.next()).get("method") != "elicitation/create":
            pass
        self._request = asked

    async def answer(self) -> None:
        await self._choose("yes")

    async def wrong(self) -> str:
        await self._choose("perhaps")
        await self.shown()
        return str(self._request["params"]["message"])

    async def _choose(self, choice: str) -> None:
        result = {"action": "accept", "content": {"choice": choice}}
        told = await self._mcp.post({"jsonrpc": "2.0", "id": self._request["id"], "result": result})
        assert told.status == 202

    def deadline(self) -> Any:
        return self._request["params"]["_meta"][mcp_wire.META_DEADLINE]

    async def told(self) -> None:
        taken, last = await self._answer.rest()
        assert (taken["method"], taken["params"]["requestId"]) == ("notifications/cancelled", self._request["id"])
        assert "output" in last["result"]


class McpReturned(Mcp):
    """The revision in which the server asks nothing by itself: the form is returned, and the request comes again."""

    name = "mcp, returned"

    async def _again(self, **more: Any) -> Json:
        able = {"elicitation": {"form": {}}}
        meta = {mcp_wire.META_CAPABILITIES: able, **more.pop("meta", {})}
        params = {"name": AGENT, "input": {"text": "it"}, "_meta": meta, **more}
        answer = await self._mcp.modern("agents/run", params)
        if answer.kind == "application/json":
            return dict(await answer.json())
        return dict((await answer.rest())[-1])

    async def begin(self) -> Begun:
        self._mcp = McpClient(self.http, f"{self.server.address}/mcp", {})
        self._form = (await self._again())["result"]
        self.begun = Begun(await self._run_on(), None)
        return self.begun

    async def join(self, begun: Begun) -> None:
        self.begun = begun
        self._mcp = McpClient(self.http, f"{self.server.address}/mcp", {})
        self._form = (await self._again(meta={mcp_wire.META_RUN: begun.run}))["result"]

    async def shown(self) -> None:
        assert self._form["resultType"] == "input_required", self._form

    async def answer(self) -> None:
        assert (await self._chosen("yes"))["output"] == {"text": "True None"}

    async def wrong(self) -> str:
        self._form = await self._chosen("perhaps")
        (asked,) = self._form["inputRequests"].values()
        return str(asked["params"]["message"])

    async def _chosen(self, choice: str) -> Json:
        (asked,) = self._form["inputRequests"]
        given = {asked: {"action": "accept", "content": {"choice": choice}}}
        return dict((await self._again(requestState=self._form["requestState"], inputResponses=given))["result"])

    def deadline(self) -> Any:
        (asked,) = self._form["inputRequests"].values()
        return asked["params"]["_meta"][mcp_wire.META_DEADLINE]

    async def told(self) -> None:
        """It hears of nothing until it comes again."""
        await self.server.engine.runs.wait(self.begun.run, timeout=20)
        told = await self._again(requestState=self._form["requestState"])
        assert told["result"]["resultType"] == "complete"
        assert "output" in told["result"]


# -- peers ----------------------------------------------------------------------------------------------------


class Peer(Place):
    """A task and its events. Nobody but who delegated it knows it, so it is begun here."""

    name, door, begins, refuses = "peer", "peer", 3, True

    async def begin(self) -> Begun:
        body = {"role": "user", "text": "it", "skill_id": AGENT, "context_id": "ctx_inbox"}
        made = await self.http.post("/peer/tasks", json=body)
        assert made.status_code == 201, made.text
        self._task = made.json()["id"]
        run = await self._run_on()
        self.begun = Begun(run, (await self.server.engine.runs.get(run)).thread)
        return self.begun

    async def shown(self) -> None:
        self._events = Events(self.http, f"/peer/tasks/{self._task}:subscribe")
        self._left.append(self._events.leave)
        await self._events.until(lambda _, event: event.get("state") == "input_required")
        self._asked = (await self.http.get(f"/peer/tasks/{self._task}")).json()["question"]
        assert self._asked["prompt"] == "Do it?"

    def deadline(self) -> Any:
        return self._asked["deadline"]

    async def attempt(self, given: Any = YES) -> str:
        body = {"parts": [{"type": "data", "content": {"answer": given}}]}
        told = await self.http.post(f"/peer/tasks/{self._task}:continue", json=body)
        assert told.status_code in (200, 400)
        return "" if told.status_code == 200 else str(told.json()["error"])

    async def told(self) -> None:
        await self._events.until(lambda _, event: event.get("state") == "completed")
        states = [event["state"] for _, event in self._events.got if "state" in event]
        assert states[states.index("input_required") :] == ["input_required", "working", "completed"]


# -- cap ------------------------------------------------------------------------------------------------------


class Cap(Place):
    """The task's conversation: what is asked, and what the user answered."""

    name, door, refuses = "cap", "cap", True

    async def begin(self) -> Begun:
        notice = {
            "type": "delegation_notice", "task_id": "T-inbox", "sender_id": "user", "recipient_id": AGENT,
            "context_summary": "it",
        }  # fmt: skip
        taken = await self.http.post("/cap/messages", json=notice)
        assert taken.status_code == 202, taken.text
        self.begun = Begun(taken.json()["run_id"], None)
        return self.begun

    async def shown(self) -> None:
        self._events = Events(self.http, f"/cap/tasks/{self.begun.run}/events")
        self._left.append(self._events.leave)
        asked = await self._events.until(
            lambda kind, data: kind == "message" and "question_type" in (data.get("metadata") or {})
        )
        self._asked = asked["metadata"]
        self._question = self._asked["question"]

    def deadline(self) -> Any:
        return self._asked["deadline"]

    async def attempt(self, given: Any = YES) -> str:
        message = {
            "type": "message", "task_id": self.begun.run, "sender_id": "user", "recipient_id": AGENT,
            "content": "yes", "metadata": {"question": self._question, "answer": given},
        }  # fmt: skip
        taken = await self.http.post("/cap/messages", json=message)
        assert taken.status_code in (202, 400, 409), taken.text
        if taken.status_code != 202:
            return str(taken.json()["error_message"])
        assert taken.json()["question"] == self._question
        return ""

    async def told(self) -> None:
        said = await self._events.until(lambda kind, data: kind == "message" and data["sender_id"] == "user" and (
            (data.get("metadata") or {}).get("question") == self._question
        ))  # fmt: skip
        assert said["metadata"]["answer"]["approved"] is True
        await self._events.until(lambda kind, data: kind == "status" and data["status"] == "succeeded")

    async def gone(self) -> None:
        said = await self._events.until(
            lambda kind, data: kind == "message" and "withdrawn" in (data.get("metadata") or {})
        )
        assert (said["sender_id"], said["recipient_id"]) == (AGENT, "user")
        assert said["metadata"]["question"] == self._question
        assert said["metadata"]["reply_expected"] is False


# -- the command line -----------------------------------------------------------------------------------------


class CommandLine(Place):
    """Another process on the same store."""

    name, door, begins, refuses = "cli", "cli", -1, True

    def _start(self, *args: str) -> subprocess.Popen[str]:
        folder = self.store.parent if isinstance(self.store, Path) else Path(tempfile.gettempdir())
        env = {**process_env(folder), "INTERLINGUA_STORE": str(self.store)}
        return start_command(args, env, folder)

    async def join(self, begun: Begun) -> None:
        self.begun = begun
        self._watch = self._start("questions", "watch", "--run", begun.run, "--json")

        async def leave() -> None:
            self._watch.kill()
            await asyncio.to_thread(self._watch.communicate)

        self._left.append(leave)

    async def _line(self) -> Json:
        assert self._watch.stdout is not None
        async with asyncio.timeout(PATIENCE):
            return dict(json.loads(await asyncio.to_thread(self._watch.stdout.readline)))

    async def shown(self) -> None:
        self._asked = await self._line()
        assert self._asked["event"] in ("open", "asked")

    async def attempt(self, given: Any = YES) -> str:
        process = self._start("questions", "answer", self._asked["id"], json.dumps(given))
        _, err = await asyncio.to_thread(process.communicate, None, PATIENCE)
        assert process.returncode in (0, 2, 5), err
        return "" if process.returncode == 0 else err

    def deadline(self) -> Any:
        return self._asked["deadline"]

    async def told(self, event: str = "answered") -> None:
        told = await self._line()
        assert (told["event"], told["id"]) == (event, self._asked["id"])

    async def gone(self) -> None:
        await self.told("withdrawn")


PLACES: tuple[type[Place], ...] = (Connect, Editor, Editor2, Mcp, McpReturned, Peer, Cap, CommandLine)


@contextlib.asynccontextmanager
async def both(x: Place, y: Place) -> Any:
    """The same question on both: begun at the one that only knows what it began, joined by the other."""
    async with x, y:
        first, second = (x, y) if x.begins >= y.begins else (y, x)
        await second.join(await first.begin())
        await asyncio.gather(x.shown(), y.shown())
        yield

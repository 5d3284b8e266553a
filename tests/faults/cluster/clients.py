"""Clients of a cluster that is being broken: they ask for runs, read them, answer, cancel, and come back after every
error, to whichever server answers. Whatever they were told they note, with the time at which they were told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2

from interlingua.model.status import Status
from interlingua.protocols.cap.conversation import place_of as cap_place
from interlingua.protocols.connect.stream import place_of as connect_place
from interlingua.transports.sse import Reader as SseReader
from interlingua.transports.sse import Received

from ..history import Accepted, Answered, History, Piece, Reader, Stopped

_AGAIN = 0.1  # seconds before something is tried again
_TRANSIENT = frozenset({500, 502, 503, 504})
_ANSWER = 20.0  # seconds after which an answer is not waited for any more
_LAST = 90.0  # seconds after which a client gives up: then the test has failed

Json = dict[str, Any]


class Crowd:
    """All clients of one cluster. They choose by dice what they do, of which the seed is known."""

    def __init__(self, addresses: list[str], history: History, seed: int) -> None:
        self.addresses = addresses
        self.history = history
        self.random = random.Random(seed)
        self.errors: Counter[str] = Counter()  # that were met and survived
        self.ended: Counter[str] = Counter()  # runs, by door and agent
        self.http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(_ANSWER, connect=5.0),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),  # a balancer keeps none either
        )
        self.may_answer = asyncio.Event()  # whoever is asked waits for this
        self.may_answer.set()
        self.asked = 0  # who wait for it
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._enough = False

    # -- all of them --------------------------------------------------------------------------------------

    def start(self, clients: int) -> None:
        """So many clients, each of which asks for one run after the other."""
        for _ in range(clients):
            self._spawn(self._client(random.Random(self.random.random())))

    def run(self, door: str, agent: str, text: str, **how: Any) -> None:
        """One more, for this run alone."""
        self._spawn(self._one(door, agent, text, random.Random(self.random.random()), **how))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()
        self.noted()

    async def finish(self) -> None:
        """No more runs; those that are under way are read to their end."""
        self._enough = True
        await self.until(lambda: not self._tasks)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.http.aclose()

    async def until(self, test: Callable[[], bool]) -> None:
        """Until something is so, that something which a client noted may have changed."""
        async with asyncio.timeout(_LAST):
            while self._failure is None and not test():
                await self._news.wait()
                self._news.clear()
        if self._failure is not None:
            raise self._failure

    def noted(self) -> None:
        self._news.set()

    def reading(self, agent: str = "count") -> int:
        """Readers that are in the middle of something."""
        return sum(
            reader.name.split()[1] == agent and any(piece.kind == "delta" for piece in reader.pieces)
            and reader.pieces[-1].kind != "end"
            for reader in self.history.readers
        )  # fmt: skip

    @property
    def finished(self) -> int:
        return sum(self.ended.values())

    async def _client(self, dice: random.Random) -> None:
        while not self._enough:
            door = dice.choice(["connect", "connect", "mcp", "cap"])
            agent = dice.choice(["count", "count", "count", "dice", "asker"])
            text = "1" if agent == "asker" else f"{dice.randint(10, 60)} 0.05"
            await self._one(door, agent, text, dice, cancels=agent == "count" and dice.random() < 0.2)

    async def _one(self, door: str, agent: str, text: str, dice: random.Random, *, cancels: bool = False) -> None:
        talks = {"connect": Connect, "cap": Cap, "mcp": Mcp}[door](self, agent, text, dice, cancels=cancels)
        await talks.talk()
        self.ended[f"{door} {agent}"] += 1
        self.noted()

    # -- one request --------------------------------------------------------------------------------------

    def address(self, dice: random.Random) -> str:
        return dice.choice(self.addresses)

    async def again(self, error: object) -> None:
        self.errors[str(error)] += 1
        await asyncio.sleep(_AGAIN)

    async def ask(
        self, dice: random.Random, method: str, path: str, body: Any = None, headers: Json | None = None
    ) -> httpx2.Response:
        """Until somebody answers, whatever that is."""
        while True:
            try:
                response = await self.http.request(method, self.address(dice) + path, json=body, headers=headers)
            except httpx2.TransportError as error:
                await self.again(type(error).__name__)
                continue
            if response.status_code not in _TRANSIENT:
                return response
            await self.again(response.status_code)

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, url: str, body: Any = None, headers: Json | None = None
    ) -> AsyncIterator[tuple[httpx2.Response, AsyncIterator[Received]]]:
        async with self.http.stream(method, url, json=body, headers=headers) as response:
            yield response, _events(response)


async def _events(response: httpx2.Response) -> AsyncIterator[Received]:
    reader = SseReader()
    async for chunk in response.aiter_bytes():
        for event in reader.feed(chunk):
            yield event


class Talk:
    """One client and one run, at one door."""

    door = ""

    def __init__(self, crowd: Crowd, agent: str, text: str, dice: random.Random, *, cancels: bool) -> None:
        self.crowd = crowd
        self.agent = agent
        self.text = text
        self.dice = dice
        self.key = f"{self.door} {uuid.UUID(int=dice.getrandbits(128))}"
        self.cancel_after = dice.randint(1, 8) if cancels else None  # pieces
        self.run = ""
        self.reader = self.read_anew()
        self.done = False

    def read_anew(self) -> Reader:
        """From here on, as somebody who has read nothing yet."""
        reader = Reader(f"{self.door} {self.agent} {self.key[-6:]}", self.run)
        self.crowd.history.readers.append(reader)
        self.reader = reader
        return reader

    async def accepted(self, run: str) -> None:
        self.run = self.reader.run = run
        self.crowd.history.accepted.append(Accepted(run, self.key, time.time(), self.door))
        self.crowd.noted()

    async def tell(self, piece: Piece) -> None:
        piece.time = time.time()
        self.reader.pieces.append(piece)
        self.done = self.done or piece.kind == "end"
        if self.cancel_after is not None and len(self.reader.pieces) >= self.cancel_after and not self.done:
            self.cancel_after = None
            await self.cancel()
        self.crowd.noted()

    async def read(self) -> None:
        """To the end, over as many connections as that takes."""
        while not self.done:
            self.reader.connections += 1
            try:
                await self.connected()
            except httpx2.TransportError as error:
                await self.crowd.again(f"stream: {type(error).__name__}")

    async def talk(self) -> None:
        raise NotImplementedError

    async def connected(self) -> None:
        """One connection, to its end."""
        raise NotImplementedError

    async def cancel(self) -> None:
        raise NotImplementedError

    async def name(self) -> Json:
        """A choice that nobody else makes."""
        self.crowd.asked += 1
        self.crowd.noted()
        await self.crowd.may_answer.wait()
        self.crowd.asked -= 1
        return {"who": f"{self.dice.getrandbits(48):012x}"}


class Connect(Talk):
    door = "connect"
    _last = "0"

    async def talk(self) -> None:
        body = {"agent_id": self.agent, "input": {"text": self.text}, "stream_mode": "custom"}
        response = await self.crowd.ask(self.dice, "POST", "/connect/runs", body, {"idempotency-key": self.key})
        assert response.status_code == 200, response.text
        await self.accepted(response.json()["run_id"])
        await self.read()

    async def connected(self) -> None:
        url = f"{self.crowd.address(self.dice)}/connect/runs/{self.run}/stream"
        async with self.crowd.stream("GET", url, headers={"last-event-id": self._last}) as (response, events):
            if response.status_code in _TRANSIENT:
                await self.crowd.again(f"stream: {response.status_code}")
                return
            if response.status_code != 200:
                raise AssertionError(
                    f"{self.run} after {self._last}: {response.status_code} {await response.aread()!r}"
                )
            async for event in events:
                await self._take(event)
        if not self.done and self.reader.pieces and self.reader.pieces[-1].kind == "asked":
            # Two who do not know of each other: one of them is first.
            names = [await self.name() for _ in range(self.dice.choice([1, 2]))]
            await asyncio.gather(*map(self._answer, names))

    async def _take(self, event: Received) -> None:
        told = json.loads(event.data)
        assert event.id is not None
        place = connect_place(event.id)
        assert place is not None, event.id
        self._last = event.id
        update = told.get("update", {})
        match told["type"], update.get("kind"):
            case "custom", "delta":
                await self.tell(Piece("delta", update["delta"], place))
            case "custom", "reset":
                await self.tell(Piece("reset", update["delta"], place))
            case "values", _ if told["status"] == "success":
                await self.tell(Piece("end", told["values"], place, status=Status.SUCCEEDED))
            case "interrupt", _:
                await self.tell(Piece("asked", None, place))
            case "error", _:
                await self.tell(Piece("end", None, place))
            case _:
                await self.tell(Piece("other", None, place))

    async def _answer(self, value: Json) -> None:
        response = await self.crowd.ask(self.dice, "POST", f"/connect/runs/{self.run}", value)
        if response.status_code == 200:
            self.crowd.history.answered.append(Answered(self.run, value, time.time()))
            self.crowd.noted()
        else:
            assert response.status_code == 409, response.text

    async def cancel(self) -> None:
        response = await self.crowd.ask(self.dice, "POST", f"/connect/runs/{self.run}/cancel")
        assert response.status_code == 204, response.text
        self.crowd.history.stopped.append(Stopped(self.run, time.time()))


class Cap(Talk):
    door = "cap"
    _last: str | None = None
    task = ""

    async def talk(self) -> None:
        self.task = self.key.replace(" ", "-")
        self.key = f"cap {self.task}"  # what the door makes of it
        notice = {
            "type": "delegation_notice", "task_id": self.task, "sender_id": "user", "recipient_id": self.agent,
            "context_summary": self.text,
        }  # fmt: skip
        response = await self.crowd.ask(self.dice, "POST", "/cap/messages", notice)
        assert response.status_code == 202, response.text
        await self.accepted(response.json()["run_id"])
        await self.read()

    async def connected(self) -> None:
        url = f"{self.crowd.address(self.dice)}/cap/tasks/{self.task}/events"
        headers = {} if self._last is None else {"last-event-id": self._last}
        async with self.crowd.stream("GET", url, headers=headers) as (response, events):
            if response.status_code in _TRANSIENT:
                await self.crowd.again(f"stream: {response.status_code}")
                return
            if response.status_code != 200:
                raise AssertionError(
                    f"{self.run} after {self._last}: {response.status_code} {await response.aread()!r}"
                )
            async for event in events:
                await self._take(event)

    async def _take(self, event: Received) -> None:
        told = json.loads(event.data)
        assert event.id is not None
        place = cap_place(event.id)
        assert place is not None, event.id
        self._last = event.id
        match event.event:
            case "delta":
                await self.tell(Piece("delta", told["delta"], place))
            case "reset":
                await self.tell(Piece("reset", told["output"], place))
            case "status" if told["final"]:
                await self.tell(Piece("end", told.get("output"), place, status=Status(told["status"])))
            case _:
                await self.tell(Piece("other", None, place))
                about = told.get("metadata") or {}
                if event.event == "message" and told["sender_id"] == self.agent and about.get("answer_schema"):
                    await self._answer(about["question"], await self.name())

    async def _answer(self, question: str, value: Json) -> None:
        message = {
            "type": "message", "task_id": self.task, "sender_id": "user", "recipient_id": self.agent,
            "content": value["who"], "metadata": {"question": question, "answer": value},
        }  # fmt: skip
        response = await self.crowd.ask(self.dice, "POST", "/cap/messages", message)
        if response.status_code == 202:
            self.crowd.history.answered.append(Answered(self.run, value, time.time(), question))
            self.crowd.noted()
        else:
            assert response.status_code == 409, response.text  # the answer came through, and its receipt did not

    async def cancel(self) -> None:
        response = await self.crowd.ask(self.dice, "POST", f"/cap/tasks/{self.task}/cancel")
        assert response.status_code == 202, response.text
        self.crowd.history.stopped.append(Stopped(self.run, time.time()))


class Mcp(Talk):
    """With a session, whose stream is taken up elsewhere. Where the session is lost, it begins anew, under the same
    key: that is the same run, from its beginning."""

    door = "mcp"
    _session: Json | None = None
    _last: str | None = None

    async def talk(self) -> None:
        await self.read()

    async def _begin(self) -> None:
        params = {
            "protocolVersion": "2025-11-25", "capabilities": {"elicitation": {"form": {}}},
            "clientInfo": {"name": "client", "version": "0"},
        }  # fmt: skip
        first = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        response = await self.crowd.ask(self.dice, "POST", "/mcp/", first, _headers({}))
        assert response.status_code == 200, response.text
        self._session = {"mcp-session-id": response.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        response = await self.crowd.ask(self.dice, "POST", "/mcp/", told, _headers(self._session))
        if response.status_code != 202:
            self._lost(response.status_code)

    def _lost(self, why: object) -> None:
        self.crowd.errors[f"mcp session: {why}"] += 1
        self._session, self._last = None, None
        if self.reader.pieces:
            self.read_anew()

    async def connected(self) -> None:
        if self._session is None:
            await self._begin()
        if self._session is None:
            return
        url = f"{self.crowd.address(self.dice)}/mcp/"
        if self._last is not None:
            headers = {**self._session, "accept": "text/event-stream", "last-event-id": self._last}
            async with self.crowd.stream("GET", url, headers=headers) as (response, events):
                await self._listen(response, events)
            return
        body = {
            "jsonrpc": "2.0", "id": 1, "method": "agents/run",
            "params": {
                "name": self.agent, "input": {"text": self.text},
                "_meta": {"progressToken": "t", "interlingua/key": self.key},
            },
        }  # fmt: skip
        try:
            async with self.crowd.stream("POST", url, body, _headers(self._session)) as (response, events):
                await self._listen(response, events)
        finally:
            if self._last is None:
                self._session = None  # whether the request arrived is not known: the key finds out

    async def _listen(self, response: httpx2.Response, events: AsyncIterator[Received]) -> None:
        if response.status_code in _TRANSIENT:
            await self.crowd.again(f"stream: {response.status_code}")
        elif response.status_code in (400, 404):
            self._lost(f"{response.status_code} {(await response.aread()).decode()[:200]}")
        elif response.status_code != 200:
            raise AssertionError(f"{self.key} after {self._last}: {response.status_code} {await response.aread()!r}")
        elif response.headers["content-type"].startswith("application/json"):
            await self._take(json.loads(await response.aread()))
        else:
            async for event in events:
                self._last = event.id or self._last
                if event.data:
                    await self._take(json.loads(event.data))
                if self.done:
                    return  # also where it was taken back: whatever comes then is for nobody

    async def _take(self, told: Json) -> None:
        if told.get("method") == "notifications/agents/run/progress":
            await self._known()
            await self.tell(Piece("delta", told["params"]["delta"]))
        elif told.get("method") == "elicitation/create":
            await self._known()
            await self._answer(told["id"], told["params"]["_meta"]["interlingua/question"], await self.name())
        elif "result" in told:
            await self._known()
            await self.tell(Piece("end", told["result"]["output"], status=Status.SUCCEEDED))
        elif "error" in told and not self.done:
            self.crowd.errors[f"mcp: {told['error']['message']}"] += 1
            if (told["error"].get("data") or {}).get("transient"):
                self._lost(told["error"]["message"])
            else:
                await self._known()
                await self.tell(Piece("end", None))

    async def _known(self) -> None:
        """Something was told of the run: so it was accepted. Which one it is, the key says, when all is over."""
        if not self.run:
            await self.accepted(self.key)

    async def _answer(self, id_: Any, question: str, value: Json) -> None:
        """The receipt says only that the answer has arrived: that it was taken is not told."""
        given = {"jsonrpc": "2.0", "id": id_, "result": {"action": "accept", "content": value}}
        assert self._session is not None
        await self.crowd.ask(self.dice, "POST", "/mcp/", given, _headers(self._session))

    async def cancel(self) -> None:
        """A notification: nobody says that it was heard."""
        told = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "reason": "enough"}}
        assert self._session is not None
        response = await self.crowd.ask(self.dice, "POST", "/mcp/", told, _headers(self._session))
        if response.status_code == 202:
            self.done = True  # a request that was taken back is not answered


def _headers(session: Json) -> Json:
    return {**session, "accept": "application/json, text/event-stream", "content-type": "application/json"}


def resolve(history: History) -> None:
    """Notes that name a run by its key name the run."""
    runs: dict[str, str] = {}
    for run, log in history.logs.items():
        body = log[0].body if log else None
        key = json.loads(body)["request"].get("key") if body is not None else None
        if key is not None:
            runs[key] = run
    for note in (*history.accepted, *history.readers):
        note.run = runs.get(note.run, note.run)
    history.readers = [reader for reader in history.readers if reader.pieces]

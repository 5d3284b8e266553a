"""Three doors, as a client meets them: it asks for one run, reads it to its end over as many connections as that takes,
answers what it is asked, and cancels if it likes. Whatever it is told it notes.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httpx2

from interlingua.model.status import Status
from interlingua.protocols.cap.projection import place_of as cap_place
from interlingua.protocols.connect.projection import place_of as connect_place
from interlingua.transports.http.sse import Received

from ..history import Accepted, Answered, Piece, Reader, Stopped

if TYPE_CHECKING:
    from .clients import Crowd

TRANSIENT = frozenset({500, 502, 503, 504})

Json = dict[str, Any]


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
            if response.status_code in TRANSIENT:
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
            if response.status_code in TRANSIENT:
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
        if response.status_code in TRANSIENT:
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


DOORS: dict[str, type[Talk]] = {"connect": Connect, "cap": Cap, "mcp": Mcp}

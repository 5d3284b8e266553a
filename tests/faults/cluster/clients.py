"""Clients of a cluster that is being broken: they ask for runs, read them, answer, cancel, and come back after every
error, to whichever server answers. Whatever they were told they note, with the time at which they were told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2

from interlingua.transports.http.sse import Reader as SseReader
from interlingua.transports.http.sse import Received

from ..history import History
from .doors import DOORS, TRANSIENT, Json

_AGAIN = 0.1  # seconds before something is tried again
_ANSWER = 20.0  # seconds after which an answer is not waited for any more
_LAST = 90.0  # seconds after which a client gives up: then the test has failed


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
        await DOORS[door](self, agent, text, dice, cancels=cancels).talk()
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
            if response.status_code not in TRANSIENT:
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

"""`Client`: runs agents, wherever they are."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, overload

import httpx2
import msgspec

from ..control import wire
from ..engine.engine import Engine
from ..model import json_values
from ..model.card import AgentCard
from ..model.errors import InterlinguaError, InvalidRequest
from ..model.run import WhenBusy
from .connect import Connection, connect
from .handles import OnQuestion, OpenQuestion, RunHandle, ThreadHandle
from .http_api import HttpApi

T = TypeVar("T")


class Unsupported(InterlinguaError):
    """The wire of a server cannot do this. A server of ours can."""

    code = "unsupported"


class Client:
    """Runs agents of a target.

        async with il.Client("http://127.0.0.1:8000", key=...) as client:
            print(await client.run("echo", text="hello"))

    `target`: the address of a server, any target that can be mounted, a file of agents, the path of a store, an
    `Engine`, or an ASGI app; without one, `$INTERLINGUA_URL`. `key`: an API key of the server; without one,
    `$INTERLINGUA_KEY`. `prefix`: the path below which a server or an app has its doors. `timeout`: seconds for a
    connection. `retries`: how often a request is repeated where the server is busy or away; nothing is done twice.
    """

    def __init__(
        self, target: str | Path | Engine | Any = None, *, key: str | None = None, prefix: str = "",
        timeout: float = 5.0, retries: int = 5, http: httpx2.AsyncClient | None = None,
    ) -> None:  # fmt: skip
        self._target = target
        self._options: dict[str, Any] = {"key": key, "prefix": prefix, "timeout": timeout, "http": http}
        self._retries = retries
        self._stack = contextlib.AsyncExitStack()
        self._connection: Connection | None = None
        self._started: set[str] = set()

    async def __aenter__(self) -> Client:
        self._connection = await self._stack.enter_async_context(connect(self._target, **self._options))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection. Runs at a server go on; those of a mounted target end with it."""
        self._connection = None
        await self._stack.aclose()

    @property
    def _api(self) -> HttpApi:
        if self._connection is None:
            raise InvalidRequest("the client is not open; use `async with il.Client(...) as client`")
        return HttpApi(self._connection.http, retries=self._retries)

    # -- agents -------------------------------------------------------------------------------------------

    async def agents(self) -> list[AgentCard]:
        """Returns the cards of the agents that there are."""
        return [agent.card for agent in (await self._api.get("/agents", wire.Agents)).agents]

    # -- runs ---------------------------------------------------------------------------------------------

    @overload
    async def run(
        self, agent: str, input: dict[str, Any] | str | None = None, *, output: type[T], version: str | None = None,
        config: Any = None, metadata: dict[str, Any] | None = None, thread: str | ThreadHandle | None = None,
        when_busy: WhenBusy = "reject", timeout: float | None = None, idempotency_key: str | None = None,
        on_question: OnQuestion | None = None, **inputs: Any,
    ) -> T: ...  # fmt: skip
    @overload
    async def run(
        self, agent: str, input: dict[str, Any] | str | None = None, *, version: str | None = None,
        config: Any = None, metadata: dict[str, Any] | None = None, thread: str | ThreadHandle | None = None,
        when_busy: WhenBusy = "reject", timeout: float | None = None, idempotency_key: str | None = None,
        on_question: OnQuestion | None = None, **inputs: Any,
    ) -> Any: ...  # fmt: skip
    async def run(
        self, agent: str, input: dict[str, Any] | str | None = None, *,
        output: Any = None, version: str | None = None, config: Any = None, metadata: dict[str, Any] | None = None,
        thread: str | ThreadHandle | None = None, when_busy: WhenBusy = "reject", timeout: float | None = None,
        idempotency_key: str | None = None, on_question: OnQuestion | None = None, **inputs: Any,
    ) -> Any:  # fmt: skip
        """Runs an agent and returns its output.

        `output`: the type to decode it to. `on_question`: answers what the run asks; without it a question raises
        `Waiting`, whose `run` is the handle. Raises `RunFailed` where the run does not succeed. Parameters of the agent
        may be given by name.
        """
        handle = await self.start(
            agent, input, version=version, config=config, metadata=metadata, thread=thread, when_busy=when_busy,
            timeout=timeout, idempotency_key=idempotency_key, **inputs,
        )  # fmt: skip
        return await handle.result(output=output, on_question=on_question)

    async def start(
        self, agent: str, input: dict[str, Any] | str | None = None, *,
        version: str | None = None, config: Any = None, metadata: dict[str, Any] | None = None,
        thread: str | ThreadHandle | None = None, when_busy: WhenBusy = "reject", delay: float = 0.0,
        timeout: float | None = None, idempotency_key: str | None = None, **inputs: Any,
    ) -> RunHandle:  # fmt: skip
        """Starts a run and returns its handle at once. The run is on disk then, and ends whatever happens here.

        `idempotency_key`: the same key is the same run; one is made where none is given, so that a request which was
        lost on its way is repeated without harm. `timeout`: seconds of execution.
        """
        if isinstance(input, str) and inputs:
            raise InvalidRequest("give the input as a text, or by name, not both")
        value: Any = input if isinstance(input, str) else {**(input or {}), **json_values.to_plain(inputs)}
        new = wire.NewRun(
            agent=agent, version=version, input=value, config=json_values.to_plain(config), metadata=metadata or {},
            thread=thread.id if isinstance(thread, ThreadHandle) else thread, create_thread=isinstance(thread, str),
            when_busy=when_busy, delay=delay, timeout=timeout, idempotency_key=idempotency_key or str(uuid.uuid4()),
        )  # fmt: skip
        run = await self._api.call("POST", "/runs", wire.Run, new)
        self._started.add(run.id)
        return RunHandle(self._api, run.id)

    def handle(self, run: str) -> RunHandle:
        """Returns the handle of a run by its id, which another process may have started."""
        if self._mounted and run not in self._started:
            raise Unsupported(f"{self._mounted}: a run that this client did not start cannot be found over this wire")
        return RunHandle(self._api, run)

    async def runs(self, **filters: Any) -> AsyncIterator[wire.Run]:
        """Yields runs, newest first. Filters are those of the control API: status, agent, thread, since, text, …"""
        where = wire.RunSearch(**filters)
        query = {name: getattr(where, name) for name in where.__struct_fields__}
        while True:
            page = await self._api.get("/runs", wire.Runs, query)
            for run in page.runs:
                yield run
            if page.cursor is None:
                return
            query["cursor"] = page.cursor

    # -- questions ----------------------------------------------------------------------------------------

    async def questions(self, *, run: str | None = None, follow: bool = False) -> AsyncIterator[OpenQuestion]:
        """Yields the open questions, and with `follow` those that are asked from now on."""
        if follow:
            async for received in self._api.stream("/questions", 0, {"run": run, "state": "open"}):
                question = msgspec.json.decode(received.data, type=wire.Question)
                if question.state == "open":
                    yield OpenQuestion(self._api, question)
            return
        cursor = 0
        while True:
            page = await self._api.get("/questions", wire.Questions, {"run": run, "cursor": cursor})
            for question in page.questions:
                yield OpenQuestion(self._api, question)
            if page.cursor == cursor:
                return
            cursor = page.cursor

    # -- threads ------------------------------------------------------------------------------------------

    async def create_thread(self, *, metadata: dict[str, Any] | None = None) -> ThreadHandle:
        """Makes a thread."""
        new = wire.NewThread(id=str(uuid.uuid4()), metadata=metadata or {})
        return ThreadHandle(self._api, (await self._api.call("POST", "/threads", wire.Thread, new)).id)

    def thread(self, thread: str) -> ThreadHandle:
        """Returns the handle of a thread by its id."""
        return ThreadHandle(self._api, thread)

    @property
    def _mounted(self) -> str:
        return self._connection.mounted if self._connection is not None else ""

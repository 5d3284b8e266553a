"""The Python client, against every kind of target: the same calls, the same answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import interlingua as il
from interlingua.client.http_api import HttpApi
from interlingua.model.errors import AgentNotFound, InvalidInput, Unavailable
from interlingua.model.events import QuestionAsked, RunFinished
from interlingua.server.app import Server
from tests.control.agents import AGENTS, add_key, serve
from tests.kit.engines import QUICK

Open = Callable[[], contextlib.AbstractAsyncContextManager[il.Client]]


@contextlib.asynccontextmanager
async def _server(store: Path) -> AsyncIterator[il.Client]:
    async with serve(store) as server, il.Client(server.address) as client:
        yield client


@contextlib.asynccontextmanager
async def _engine(store: Path) -> AsyncIterator[il.Client]:
    async with il.Engine(store, agents=AGENTS, settings=QUICK) as engine, il.Client(engine) as client:
        yield client


@contextlib.asynccontextmanager
async def _new_engine(store: Path) -> AsyncIterator[il.Client]:
    async with il.Client(il.Engine(":memory:", agents=AGENTS, settings=QUICK)) as client:
        yield client


@contextlib.asynccontextmanager
async def _file(store: Path) -> AsyncIterator[il.Client]:
    async with il.Client(str(Path(__file__).parent.parent / "control" / "agents.py")) as client:
        yield client


@contextlib.asynccontextmanager
async def _app(store: Path) -> AsyncIterator[il.Client]:
    async with serve(store) as server:
        outer = Starlette(routes=[Mount("/deep/down", app=server.app.asgi)])
        async with il.Client(outer, prefix="/deep/down") as client:
            yield client


@contextlib.asynccontextmanager
async def _mounted(store: Path) -> AsyncIterator[il.Client]:
    async with serve(store) as server, il.Client(f"connect+{server.address}/connect") as client:
        yield client


every = pytest.mark.parametrize(
    "opened", [_server, _engine, _new_engine, _file, _app, _mounted], ids=lambda one: one.__name__.strip("_")
)
Opened = Callable[[Path], contextlib.AbstractAsyncContextManager[il.Client]]


@every
async def test_an_agent_runs_and_its_output_comes_back(store: Path, opened: Opened) -> None:
    async with opened(store) as client:
        assert "echo" in [card.name for card in await client.agents()]
        assert await client.run("echo", text="hello there") == {"text": "hello there "}
        assert await client.run("echo", "hello") == {"text": "hello "}
        assert await client.run("echo", {"text": "typed"}, output=str) == "typed "


@every
async def test_a_run_streams_its_events_and_its_words(store: Path, opened: Opened) -> None:
    async with opened(store) as client:
        run = await client.start("echo", text="one two three")
        assert "".join([piece async for piece in run.text()]) == "one two three "
        events = [event async for event in run.events()]
        assert [event.seq for event in events] == sorted({event.seq for event in events})
        assert isinstance(events[-1].body, RunFinished)
        again = [event.seq async for event in run.events(after=events[1].seq)]
        assert again[-1] == events[-1].seq
        assert again[0] > events[1].seq
        assert await run.result() == {"text": "one two three "}
        assert await run.result(output=str) == "one two three "


@every
async def test_a_question_goes_to_the_handler_or_raises_and_never_hangs(store: Path, opened: Opened) -> None:
    async with opened(store) as client:

        async def yes(question: il.OpenQuestion) -> dict[str, Any]:
            assert question.prompt == "Really go?"
            return {"approved": True}

        assert await client.run("asker", "go", on_question=yes) == {"text": "yes"}
        assert await client.run("asker", "go", on_question=lambda _: {"approved": False}) == {"text": "no"}
        with pytest.raises(il.Waiting, match="Really go") as caught:
            await client.run("asker", "go")
        (question,) = caught.value.questions
        assert [one.id async for one in client.questions()] == [question.id]
        await question.answer(approved=True)
        assert await caught.value.run.result(timeout=20) == {"text": "yes"}


@every
async def test_a_run_that_fails_raises_what_the_agent_said(store: Path, opened: Opened) -> None:
    async with opened(store) as client:
        with pytest.raises(il.RunFailed, match="no luck today") as caught:
            await client.run("failing", "luck")
        assert caught.value.status is il.Status.FAILED
        assert caught.value.error is not None
        with pytest.raises(AgentNotFound):
            await client.run("nobody")
        with pytest.raises(InvalidInput) as wrong:
            await client.run("echo", {"text": 5})
        assert wrong.value.path == "/text"


@every
async def test_a_run_is_cancelled(store: Path, opened: Opened) -> None:
    async with opened(store) as client:
        run = await client.start("forever")
        await run.cancel("enough")
        with pytest.raises(il.RunFailed):
            await run.result(timeout=20)
        with pytest.raises(TimeoutError):
            await (await client.start("forever")).result(timeout=0.05)


async def test_another_client_goes_on_with_a_run_by_its_id(store: Path) -> None:
    async with serve(store) as server:
        async with il.Client(server.address) as client:
            id_ = (await client.start("asker", "go")).id
        async with il.Client(server.address) as client:
            run = client.handle(id_)
            view = await run.wait(settled=True)
            await run.answer(view.questions[0].id, {"approved": True})
            assert await run.result(output=str) == "yes"
            found = [run.id async for run in client.runs(agent=["asker"])]
            assert found == [id_]


async def test_what_a_wire_cannot_do_says_so(store: Path) -> None:
    async with _mounted(store) as client:
        with pytest.raises(il.Unsupported, match=r"connect\+http"):
            client.handle("somebody-elses")


async def test_threads_keep_state_over_runs(store: Path) -> None:
    async with _server(store) as client:
        thread = await client.create_thread(metadata={"about": "counting"})
        assert await client.run("counter", thread=thread, output=str) == "1"
        assert await client.run("counter", thread=thread.id, output=str) == "2"
        assert (await thread.get()).values == {"runs": 2}
        assert [state.values for state in await thread.history()] == [{"runs": 2}, {"runs": 1}]
        await thread.update({"runs": 9})
        assert await client.run("counter", thread=await thread.copy(), output=str) == "10"
        await thread.delete()


async def test_a_message_reaches_a_run(store: Path) -> None:
    async with _server(store) as client:
        run = await client.start("waiter")
        await run.send("hello")
        assert "hello" in await run.result(output=str)


async def test_a_client_follows_questions_as_they_are_asked(store: Path) -> None:
    async with _server(store) as client:
        run = await client.start("asker", "go")
        async for question in client.questions(follow=True):
            assert question.run == run.id
            await question.answer(approved=True)
            break
        assert await run.result(output=str) == "yes"


async def test_a_typed_object_goes_in_and_comes_out(store: Path) -> None:
    class Text(msgspec.Struct):
        text: str

    async with _server(store) as client:
        assert await client.run("echo", output=Text, text="x") == Text("x ")
        with pytest.raises(il.InterlinguaError, match="no int"):
            await client.run("echo", output=int, text="x")


async def test_a_key_is_needed_where_there_are_keys(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = await add_key(store, "ada", "*")
    async with serve(store) as server:
        async with il.Client(server.address, key=key) as client:
            assert await client.run("echo", "x", output=str) == "x "
        async with il.Client(server.address) as client:
            with pytest.raises(il.InterlinguaError, match="key"):
                await client.agents()
        monkeypatch.setenv("INTERLINGUA_URL", server.address)
        monkeypatch.setenv("INTERLINGUA_KEY", key)
        async with il.Client() as client:
            assert await client.run("echo", "x", output=str) == "x "


async def test_nobody_at_an_address_is_said(store: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(Unavailable, match="does not answer"):
            async with il.Client(f"http://127.0.0.1:{taken.getsockname()[1]}"):
                pass


async def test_a_client_that_is_not_open_says_how(store: Path) -> None:
    with pytest.raises(il.InterlinguaError, match="async with"):
        await il.Client(":memory:").agents()


class Cutting:
    """A proxy that cuts each connection after so many bytes of the answer, and once more further on each time."""

    def __init__(self, server: Server, first: int) -> None:
        self._port = int(server.address.rpartition(":")[2])
        self.allowed = first
        self.cuts = 0

    async def __aenter__(self) -> Cutting:
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._listening.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        streams = asyncio.Event()

        async def up() -> None:
            while data := await reader.read(65536):
                if b"/events" in data:
                    streams.set()
                back.write(data)

        asking = asyncio.create_task(up())
        try:
            left = None
            while data := await there.read(65536):
                if streams.is_set() and left is None:
                    left = self.allowed
                if left is not None:
                    if len(data) >= left:
                        writer.write(data[:left])
                        await writer.drain()
                        self.cuts += 1
                        self.allowed += 997  # else the head of the answer would be all that ever comes
                        return
                    left -= len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            asking.cancel()
            writer.close()
            back.close()


@pytest.mark.parametrize("offset", [0, 200])
async def test_a_stream_that_loses_its_connection_goes_on_at_its_cursor(store: Path, offset: int) -> None:
    async with serve(store) as server:
        async with il.Client(server.address) as client:
            run = await client.start("asker", "go")
            await run.wait(settled=True)
            await run.answer((await run.questions())[0], approved=True)
            expected = [event.seq async for event in run.events()]
        async with Cutting(server, 150 + offset) as proxy, il.Client(proxy.address, retries=60) as client:
            seen = [event async for event in client.handle(run.id).events()]
            assert [event.seq for event in seen] == expected
            assert any(isinstance(event.body, QuestionAsked) for event in seen)
            assert proxy.cuts


class _Cut(httpx2.AsyncByteStream):
    """A body that ends in the middle."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data[: self._at]
        if self._at < len(self._data):
            raise httpx2.ReadError("cut")


class _Replayed(httpx2.AsyncBaseTransport):
    """Answers with a recorded stream from its cursor on. The first answer is cut after so many bytes."""

    def __init__(self, events: list[bytes], cut_at: int) -> None:
        self._events, self._cut_at, self.requests = events, cut_at, 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests += 1
        data = b"".join(self._events[int(request.headers["last-event-id"]) :])
        at = self._cut_at if self.requests == 1 else len(data)
        return httpx2.Response(200, stream=_Cut(data, at), request=request)


async def test_a_stream_that_is_cut_at_any_byte_gives_every_event_once(store: Path) -> None:
    async with serve(store) as server, httpx2.AsyncClient(base_url=server.address) as http:
        async with il.Client(server.address) as client:
            run = await client.start("echo", text="one")
            await run.result()
        path = f"/api/v1/runs/{run.id}/events"
        whole = (await http.get(path, headers={"accept": "text/event-stream"})).content
    events = [block + b"\n\n" for block in whole.split(b"\n\n") if block]
    assert len(events) > 3
    for cut_at in range(len(whole)):
        transport = _Replayed(events, cut_at)
        async with httpx2.AsyncClient(base_url="http://there", transport=transport) as http:
            api = HttpApi(http, retries=1, pause=0.0)
            seen = [event.id async for event in api.stream("/runs/x/events", 0) if event.event != "end"]
        assert seen == [str(number + 1) for number in range(len(events) - 1)], cut_at
        assert transport.requests == 2

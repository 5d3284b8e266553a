"""Connections: order, slow handlers, batches, cancelling, back-pressure, and the end. Over a channel without bytes
where timing matters, over real pipes where it does not."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from interlingua.transports.jsonrpc.connection import Answer, Connection, ConnectionLost, RpcError
from interlingua.transports.jsonrpc.core import CANCELLED, INTERNAL_ERROR, Call, Notice
from interlingua.transports.jsonrpc.limits import Limits
from interlingua.transports.process.pipes import PipeChannel
from tests.kit.clients.editor import check_frame

SOON = 20.0


class Channel:
    """In memory. `full` makes senders wait."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self.outgoing: asyncio.Queue[Any] = asyncio.Queue()
        self.room = asyncio.Event()
        self.room.set()
        self.closed = 0

    async def receive(self) -> list[bytes]:
        return await self.incoming.get()

    def send(self, frame: bytes) -> None:
        told = json.loads(frame)
        check_frame(told)
        self.outgoing.put_nowait(told)

    async def drain(self) -> None:
        await self.room.wait()

    async def close(self) -> None:
        self.closed += 1

    # what the peer does

    def bring(self, *messages: Any) -> None:
        self.incoming.put_nowait([m if isinstance(m, bytes) else json.dumps(m).encode() for m in messages])

    def hang_up(self) -> None:
        self.incoming.put_nowait([])

    async def next(self) -> Any:
        async with asyncio.timeout(SOON):
            return await self.outgoing.get()


class Handler:
    """Methods are coroutine functions of the params; notices are kept."""

    def __init__(self) -> None:
        self.methods: dict[str, Callable[[Any], Awaitable[Any]]] = {}
        self.order: list[Any] = []
        self.notice: Callable[[Notice], Awaitable[None] | None] = lambda _: None

    async def called(self, call: Call) -> Any:
        self.order.append(call.id)
        return await self.methods[call.method](call.params)

    def noticed(self, notice: Notice) -> Awaitable[None] | None:
        self.order.append(notice.method)
        return self.notice(notice)

    def failure(self, error: Exception) -> RpcError:
        if isinstance(error, LookupError):
            raise error
        return RpcError(1234, str(error))


@contextlib.asynccontextmanager
async def serving(*, linger: float = 0.0, **options: Any) -> AsyncIterator[tuple[Connection, Channel, Handler]]:
    """A connection that is served, and that leaves no task behind."""
    channel, handler = Channel(), Handler()
    connection = Connection(channel, handler, **options)
    before = asyncio.all_tasks()
    run = asyncio.create_task(connection.run(linger=linger))
    try:
        yield connection, channel, handler
    finally:
        channel.room.set()
        channel.hang_up()
        async with asyncio.timeout(SOON):
            await run
        assert channel.closed
        assert not connection._tasks
        assert not connection._open
        assert not connection._later
        assert asyncio.all_tasks() - before == set()


def call(id_: Any, method: str = "m", params: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}


def note(method: str = "n", params: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def cancel(id_: Any) -> dict[str, Any]:
    return note("$/cancel_request", {"requestId": id_})


def result(id_: Any, value: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "result": value}


def failure(id_: Any, code: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": "no"}}


async def echo(params: Any) -> Any:
    return params


async def for_ever(_: Any) -> None:
    await asyncio.Event().wait()


# -- being asked ----------------------------------------------------------------------------------------------


async def test_a_slow_request_holds_up_nothing() -> None:
    async with serving() as (_, channel, handler):
        go = asyncio.Event()

        async def slow(_: Any) -> str:
            await go.wait()
            return "slow"

        handler.methods = {"slow": slow, "quick": echo}
        channel.bring(call(1, "slow"), call(2, "quick", {"a": 1}))
        assert await channel.next() == result(2, {"a": 1})
        go.set()
        assert await channel.next() == result(1, "slow")


async def test_everything_begins_in_the_order_in_which_it_came() -> None:
    async with serving() as (_, channel, handler):
        handler.methods = {"m": echo}
        channel.bring(*[call(n) if n % 3 else note(str(n)) for n in range(1, 100)])
        channel.bring([call(100), note("101"), call(102)], call(103))
        while (await channel.next()) != result(103, None):
            pass
        assert [int(one) for one in handler.order] == list(range(1, 104))


async def test_errors_of_handlers_are_told_and_those_without_a_name_are_not(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (_, channel, handler):

        async def raises(params: Any) -> None:
            known: list[Exception] = [RpcError(5, "mine", [1]), ValueError("known"), KeyError("secret")]
            raise known[params[0]]

        handler.methods = {"m": raises}
        channel.bring(call(1, params=[0]), call(2, params=[1]), call(3, params=[2]))
        answers = [(await channel.next())["error"] for _ in range(3)]
        assert answers[0] == {"code": 5, "message": "mine", "data": [1]}
        assert answers[1] == {"code": 1234, "message": "known"}
        assert answers[2]["code"] == INTERNAL_ERROR
        assert "secret" not in answers[2]["message"]
        assert "secret" in caplog.text


async def test_a_notification_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (_, channel, handler):

        async def later() -> None:
            raise ValueError("later")

        def notice(given: Notice) -> Awaitable[None] | None:
            if given.method == "now":
                raise ValueError("now")
            return later()

        handler.notice = notice
        handler.methods = {"m": echo}
        channel.bring(note("now"), note("later"), call(1))
        assert await channel.next() == result(1, None)
        assert "could not be handled: now" in caplog.text
        assert "could not be handled: later" in caplog.text


async def test_what_follows_an_answer_comes_right_after_it() -> None:
    async with serving() as (connection, channel, handler):

        async def opens(_: Any) -> Answer:
            return Answer("opened", lambda: connection.notify("news"))

        handler.methods = {"open": opens, "m": echo}
        channel.bring(call(1, "open"), call(2))
        assert [await channel.next() for _ in range(3)] == [
            result(1, "opened"),
            {"jsonrpc": "2.0", "method": "news"},
            result(2, None),
        ]


async def test_what_follows_an_answer_in_a_batch_comes_after_the_array() -> None:
    async with serving() as (connection, channel, handler):
        go = asyncio.Event()

        async def opens(params: Any) -> Answer:
            return Answer("opened", lambda: connection.notify(params[0]))

        async def slow(_: Any) -> None:
            await go.wait()

        handler.methods = {"open": opens, "slow": slow, "m": echo}
        channel.bring([call(1, "open", ["first"]), call(2, "slow"), call(3, "open", ["second"])], call(4))
        assert await channel.next() == result(4, None)
        go.set()
        assert sorted(answer["id"] for answer in await channel.next()) == [1, 2, 3]
        assert [(await channel.next())["method"] for _ in range(2)] == ["first", "second"]


async def test_what_follows_an_answer_and_fails_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (_, channel, handler):

        async def opens(_: Any) -> Answer:
            return Answer("opened", lambda: {}["nothing"])

        handler.methods = {"open": opens, "m": echo}
        channel.bring(call(1, "open"), call(2))
        assert await channel.next() == result(1, "opened")
        assert await channel.next() == result(2, None)
        assert "what follows an answer failed" in caplog.text


# -- cancelling -----------------------------------------------------------------------------------------------


async def test_a_request_that_is_taken_back_is_answered_as_cancelled() -> None:
    async with serving() as (_, channel, handler):
        handler.methods = {"m": for_ever}
        channel.bring(call(1), cancel(1), cancel(1), cancel("none"))
        answer = await channel.next()
        assert (answer["id"], answer["error"]["code"]) == (1, CANCELLED)
        assert channel.outgoing.empty()


async def test_a_handler_may_end_in_its_own_way_when_it_is_cancelled() -> None:
    async with serving() as (_, channel, handler):

        async def polite(_: Any) -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "stopped"
            return "never"

        handler.methods = {"m": polite}
        channel.bring(call(1), cancel(1))
        assert await channel.next() == result(1, "stopped")


async def test_a_sibling_inside_a_batch_is_cancelled_and_the_array_holds_it() -> None:
    async with serving() as (_, channel, handler):
        handler.methods = {"slow": for_ever, "m": echo}
        channel.bring([call(1, "slow"), call(2), cancel(1), note()])
        answers = {answer["id"]: answer for answer in await channel.next()}
        assert answers[1]["error"]["code"] == CANCELLED
        assert answers[2] == result(2, None)
        assert len(answers) == 2


# -- asking ---------------------------------------------------------------------------------------------------


async def test_requests_are_answered_in_any_order() -> None:
    async with serving() as (connection, channel, _):
        one = asyncio.create_task(connection.request("a", {"x": 1}))
        two = asyncio.create_task(connection.request("b"))
        first, second = await channel.next(), await channel.next()
        assert (first["method"], first["params"], second["method"]) == ("a", {"x": 1}, "b")
        channel.bring(result(second["id"], "two"), failure(first["id"], 7))
        assert await two == "two"
        with pytest.raises(RpcError) as caught:
            await one
        assert (caught.value.code, str(caught.value)) == (7, "no (7)")


async def test_a_request_may_ask_back_while_it_is_handled_even_in_a_batch() -> None:
    async with serving() as (connection, channel, handler):

        async def asks(params: Any) -> Any:
            return await connection.request("permission", params)

        handler.methods = {"asks": asks, "m": echo}
        channel.bring([call(1, "asks", {"n": 1}), call(2), call(3, "asks", {"n": 3})])
        first, second = await channel.next(), await channel.next()
        assert [first["method"], second["method"]] == ["permission", "permission"]
        channel.bring([result(second["id"], "yes"), result(first["id"], "no")])
        answers = {answer["id"]: answer["result"] for answer in await channel.next()}
        assert answers == {1: "no", 2: None, 3: "yes"}


async def test_cancelling_a_request_takes_it_back_at_the_peers_and_its_late_answer_is_nothing() -> None:
    async with serving() as (connection, channel, handler):
        handler.methods = {"m": echo}
        asking = asyncio.create_task(connection.request("slow"))
        asked = await channel.next()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await channel.next() == cancel(asked["id"])
        channel.bring(result(asked["id"], "late"), call(1))
        assert await channel.next() == result(1, None)


async def test_a_request_that_is_late_is_taken_back_too() -> None:
    async with serving() as (connection, channel, _):
        with pytest.raises(TimeoutError):
            await connection.request("slow", timeout=0.01)
        asked = await channel.next()
        assert await channel.next() == cancel(asked["id"])


async def test_an_error_that_comes_while_its_request_is_cancelled_is_nobodys() -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with serving() as (connection, channel, _):
        asking = asyncio.create_task(connection.request("slow"))
        asked = await channel.next()
        await connection.take(
            json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": 1, "message": "no"}}).encode()
        )
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        del asking
        assert channel.outgoing.empty(), "it was answered: there is nothing to take back"
    gc.collect()
    assert complaints == []


async def test_a_batch_of_ours_gives_results_and_errors_in_their_places() -> None:
    async with serving() as (connection, channel, _):
        asking = asyncio.create_task(connection.batch([("a", None, True), ("n", None, False), ("b", None, True)]))
        sent = await channel.next()
        assert [entry["method"] for entry in sent] == ["a", "n", "b"]
        one, two = sent[0]["id"], sent[2]["id"]
        channel.bring([{"jsonrpc": "2.0", "id": two, "error": {"code": 3, "message": "no"}}, result(one, "yes")])
        yes, no = await asking
        assert yes == "yes"
        assert isinstance(no, RpcError)


async def test_a_batch_that_the_peer_refuses_as_a_whole_fails_and_does_not_wait_for_ever() -> None:
    async with serving() as (connection, channel, _):
        asking = asyncio.create_task(connection.batch([("a", None, True), ("b", None, True)]))
        await channel.next()
        channel.bring({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "no batches"}})
        async with asyncio.timeout(SOON):
            errors = await asking
        assert [error.code for error in errors] == [-32600, -32600]


async def test_cancelling_a_batch_takes_back_what_is_still_open() -> None:
    async with serving() as (connection, channel, _):
        asking = asyncio.create_task(connection.batch([("a", None, True), ("b", None, True)]))
        one, two = await channel.next()
        channel.bring(result(one["id"], 1))
        while one["id"] in connection._open:
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await channel.next() == cancel(two["id"])
        assert channel.outgoing.empty()


async def test_what_cannot_be_written_is_the_callers_error_and_leaves_nothing_open() -> None:
    async with serving() as (connection, channel, _):
        with pytest.raises(TypeError):
            await connection.request("a", object())
        with pytest.raises(TypeError):
            await connection.batch([("a", object(), True)])
        assert channel.outgoing.empty()


# -- requests that come together ------------------------------------------------------------------------------


async def test_requests_that_come_together_begin_in_order_before_what_comes_after_them() -> None:
    async with serving() as (_, channel, handler):
        handler.methods = {"m": echo}
        channel.bring(*[call(number) for number in range(10)], note(), call(10))
        for number in range(11):
            assert (await channel.next())["id"] == number
        assert handler.order == [*range(10), "n", 10]


# -- back-pressure --------------------------------------------------------------------------------------------


async def test_whoever_asks_and_does_not_read_is_no_longer_listened_to() -> None:
    async with serving(limits=Limits(max_unread=1000)) as (_, channel, handler):
        handler.methods = {"m": echo}
        channel.room.clear()
        channel.bring(*[call(number, params={"text": "x" * 200}) for number in range(20)])
        for _ in range(100):
            await asyncio.sleep(0)
        assert 4 <= len(handler.order) < 8
        channel.room.set()
        while (await channel.next())["id"] != 19:
            pass
        assert handler.order == list(range(20))


async def test_whoever_sends_garbage_and_does_not_read_is_no_longer_listened_to() -> None:
    async with serving(limits=Limits(max_unread=1000)) as (_, channel, _handler):
        channel.room.clear()
        channel.bring(*[b"garbage"] * 100)
        for _ in range(200):
            await asyncio.sleep(0)
        assert 5 < channel.outgoing.qsize() < 20


async def test_a_peer_that_does_not_read_can_still_cancel_tell_and_answer() -> None:
    async with serving(limits=Limits(max_unread=0)) as (connection, channel, handler):
        handler.methods = {"m": for_ever}
        channel.bring(call(1))
        asking = asyncio.create_task(connection.request("a"))
        asked = await channel.next()
        channel.room.clear()
        channel.bring(note("told"), cancel(1), result(asked["id"], "yes"))
        assert await asking == "yes"
        assert (await channel.next())["error"]["code"] == CANCELLED
        assert handler.order == [1, "told"]


async def test_a_notification_that_waits_makes_the_peer_wait() -> None:
    async with serving() as (_, channel, handler):
        go = asyncio.Event()

        async def wait() -> None:
            await go.wait()

        handler.notice = lambda _: wait()
        handler.methods = {"m": echo}
        channel.bring(note("first"), note("second"), call(1))
        while not handler.order:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert handler.order == ["first"]
        go.set()
        assert await channel.next() == result(1, None)


# -- the end --------------------------------------------------------------------------------------------------


async def test_when_the_peer_goes_requests_fail_and_handlers_are_cancelled() -> None:
    cancelled = asyncio.Event()
    async with serving() as (connection, channel, handler):

        async def waits(_: Any) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        handler.methods = {"m": waits}
        channel.bring(call(1))
        asking = asyncio.create_task(connection.request("a"))
        batching = asyncio.create_task(connection.batch([("b", None, True)]))
        await channel.next()
        channel.hang_up()
        with pytest.raises(ConnectionLost):
            await asking
        [error] = await batching
        assert isinstance(error, ConnectionLost)
        await cancelled.wait()
        with pytest.raises(ConnectionLost):
            await connection.request("again")
        with pytest.raises(ConnectionLost):
            await connection.batch([("again", None, True)])
        connection.notify("nobody hears")


async def test_a_peer_that_closes_its_side_still_gets_the_answers_that_come_soon() -> None:
    async with serving(linger=SOON) as (connection, channel, handler):
        go = asyncio.Event()

        async def slow(_: Any) -> str:
            await go.wait()
            with pytest.raises(ConnectionLost):  # it will not answer any more
                await connection.request("a")
            return "slow"

        handler.methods = {"m": slow}
        channel.bring(call(1))
        channel.hang_up()
        while not connection._ended:
            await asyncio.sleep(0)
        go.set()
        assert await channel.next() == result(1, "slow")


async def test_lingering_has_an_end() -> None:
    async with serving(linger=0.01) as (_, channel, handler):
        handler.methods = {"m": for_ever}
        channel.bring(call(1))
        channel.hang_up()
        while not channel.closed:
            await asyncio.sleep(0.001)
        assert channel.outgoing.empty()


async def test_a_connection_whose_run_is_cancelled_closes_everything() -> None:
    channel, handler = Channel(), Handler()
    handler.methods = {"m": for_ever}
    connection = Connection(channel, handler)
    run = asyncio.create_task(connection.run())
    channel.bring(*[call(number) for number in range(10)])
    while len(handler.order) < 10:
        await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert channel.closed == 1
    assert connection.lost
    assert not connection._tasks
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_handler_may_close_its_own_connection() -> None:
    async with serving() as (connection, channel, handler):

        async def closes(_: Any) -> None:
            await connection.close()

        handler.methods = {"m": closes}
        channel.bring(call(1))
        while not channel.closed:
            await asyncio.sleep(0)


async def test_more_open_requests_than_allowed_are_refused_one_by_one() -> None:
    async with serving(limits=Limits(max_open=2)) as (_, channel, handler):
        handler.methods = {"m": for_ever}
        channel.bring(call(1), call(2), call(3), cancel(1))
        answers = [await channel.next() for _ in range(2)]
        assert sorted((a["id"], a["error"]["code"]) for a in answers) == [(1, CANCELLED), (3, -32600)]


# -- over pipes -----------------------------------------------------------------------------------------------


async def test_two_connections_ask_each_other_over_pipes_without_losing_anything() -> None:
    (a_read, b_write), (b_read, a_write) = os.pipe(), os.pipe()
    ends: list[Connection] = []
    handlers = [Handler(), Handler()]
    for reads, writes, handler in ((a_read, a_write, handlers[0]), (b_read, b_write, handlers[1])):
        handler.methods = {"echo": echo}
        ends.append(Connection(PipeChannel(reads, writes), handler))
    runs = [asyncio.create_task(end.run()) for end in ends]

    async def ask(end: Connection, number: int) -> None:
        params = {"n": number, "text": "ü\u2028" * (number * 37 % 5000)}
        end.notify(str(number))
        assert await end.request("echo", params) == params
        await end.drain()

    async with asyncio.timeout(60):
        await asyncio.gather(*(ask(end, number) for number in range(300) for end in ends))
    for handler in handlers:
        assert [one for one in handler.order if isinstance(one, str)] == [str(number) for number in range(300)]
    await ends[0].close()
    async with asyncio.timeout(SOON):
        await asyncio.gather(*runs)

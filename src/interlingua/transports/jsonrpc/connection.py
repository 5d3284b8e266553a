"""Runs a JSON-RPC connection: the rules of `core` over any channel, with asyncio.

Requests of the peer run as tasks, so that a slow one holds up nothing; they begin in the order in which they came.
Notifications are handled one after the other, and their handlers make the peer wait: that slows a flood down. A
notification's handler must therefore not wait for an answer over the same connection.

A peer that asks a lot and does not read the answers is not read any more, until it reads. A peer that only sends
answers, notifications or cancels is always read: a slow reader must be able to stop what it reads, and two sides that
both have much to send must not wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from .. import wire_tap
from ..channel import Channel
from .core import (
    CANCELLED,
    INTERNAL_ERROR,
    Batch,
    Call,
    CancelWanted,
    Id,
    IsPiece,
    Notice,
    Refused,
    Reply,
    Rpc,
    RpcError,
    no_piece,
)
from .limits import RpcLimits

log = logging.getLogger("interlingua.rpc")

_BEGIN_AT_ONCE = 16 * 1024  # bytes of requests that begin in one turn of the loop

__all__ = ["Answer", "Connection", "ConnectionLost", "Handler", "RpcError", "Trace"]


class ConnectionLost(ConnectionError):
    """The peer has gone before it answered."""


class Answer:
    """An answer, and a function to call right after it has been sent, before anything else is."""

    __slots__ = ("result", "then")

    def __init__(self, result: Any, then: Callable[[], None] | None = None) -> None:
        self.result = result
        self.then = then


class Handler(Protocol):
    async def called(self, call: Call) -> Any:
        """Answers a request: with a result, an `Answer`, or by raising. Cancelled when the peer cancels the request or
        has gone (`Connection.lost` tells them apart)."""
        ...

    def noticed(self, notice: Notice) -> Awaitable[None] | None: ...

    def failure(self, error: Exception) -> RpcError:
        """Turns an exception of `called` into the error that the peer gets."""
        ...


class _Nobody:
    async def called(self, call: Call) -> Any:
        raise ConnectionLost("the connection is over")

    def noticed(self, notice: Notice) -> None:
        pass

    def failure(self, error: Exception) -> RpcError:
        return RpcError(INTERNAL_ERROR, str(error))


_NOBODY = _Nobody()


class Trace(Protocol):
    """Sees every frame, both ways."""

    def received(self, frame: bytes) -> None: ...
    def sent(self, frame: bytes) -> None: ...


class Connection:
    def __init__(
        self,
        channel: Channel,
        handler: Handler,
        *,
        limits: RpcLimits | None = None,
        cancel: tuple[str, str] | None = ("$/cancel_request", "requestId"),
        batches: bool = True,
        silent_cancel: bool = False,
        trace: Trace | None = None,
        is_piece: IsPiece = no_piece,
    ) -> None:
        """`is_piece` tells the notifications that carry pieces of text; their handler joins halves of characters."""
        self.channel = channel
        self.handler: Handler = handler
        self.rpc = Rpc(limits, cancel=cancel, batches=batches, is_piece=is_piece)
        self.lost = False
        self._silent_cancel = silent_cancel  # a cancelled request gets no answer
        self._trace = trace if trace is not None else wire_tap.current
        self._unread = 0  # bytes of answers since the channel last had room
        self._ended = False  # nothing more comes from the peer, though it may still read
        self._tasks: dict[Call, asyncio.Task[None]] = {}
        self._beginning = 0  # bytes of requests that may not have had their first turn
        self._open: dict[Id, asyncio.Future[Any]] = {}
        self._batches: list[list[Id]] = []  # the open ones of this side, oldest first
        self._later: dict[Batch, list[Callable[[], None]]] = {}  # functions to call after an array has been sent

    # -- asking -------------------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        params: Any = None,
        *,
        timeout: float | None = None,
        about: Id | None = None,
        opened: Callable[[asyncio.Future[Any]], None] | None = None,
    ) -> Any:
        """Ask the peer. Raises RpcError for its error, ConnectionLost when it goes, TimeoutError when it is late.

        Cancelling this cancels the request at the peer too. `about` names the request of the peer that this one belongs
        to, for channels that carry each request apart. `opened` gets the future of the answer, which is done before
        later frames are read.
        """
        if self.lost or self._ended:
            raise ConnectionLost(f"{method}: the peer is gone")
        id_, frame = self.rpc.request(method, params)
        answer = self._open[id_] = asyncio.get_running_loop().create_future()
        if opened is not None:
            opened(answer)
        self._send(frame, about)
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except (asyncio.CancelledError, TimeoutError):
            self._take_back(id_, about)
            raise
        finally:
            self._forget(id_)

    def let_go(self) -> None:
        """Drops the handler, so that it can be freed while the connection lives on. All requests are asked and
        answered."""
        self.handler = _NOBODY

    def _take_back(self, id_: Id, about: Id | None = None) -> None:
        cancel = self.rpc.cancel(id_)
        if cancel is not None and not self.lost:
            self._send(cancel, about)

    def _forget(self, id_: Id) -> None:
        self._open.pop(id_, None)
        self.rpc.forget(id_)

    def notify(self, method: str, params: Any = None, *, about: Id | None = None) -> None:
        self._send(self.rpc.notify(method, params), about)

    async def batch(self, calls: Iterable[tuple[str, Any, bool]], *, timeout: float | None = None) -> list[Any]:
        """Sends one array, and waits for all answers: results, and RpcErrors in the places of those that failed.

        A peer that does not take arrays answers with an error without an id: then all requests have failed with it.
        """
        if self.lost or self._ended:
            raise ConnectionLost("a batch: the peer is gone")
        ids, frame = self.rpc.batch(calls)
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in ids]
        self._open.update(zip(ids, futures, strict=True))
        self._batches.append(ids)
        self._send(frame)
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.gather(*futures, return_exceptions=True)
        except (asyncio.CancelledError, TimeoutError):
            for id_ in ids:
                self._take_back(id_)
            raise
        finally:
            self._batches.remove(ids)
            for id_ in ids:
                self._forget(id_)

    async def drain(self, topic: Id | None = None) -> None:
        """Waits while the peer is slow to take the frames; on that topic, if the channel separates topics."""
        drain_topic = getattr(self.channel, "drain_topic", None)
        if topic is None or drain_topic is None:
            await self.channel.drain()
        else:
            await drain_topic(topic)

    def _send(self, frame: bytes, about: Id | None = None) -> None:
        if self._trace is not None:
            self._trace.sent(frame)
        if about is not None and (send_about := getattr(self.channel, "send_about", None)) is not None:
            send_about(frame, about)
        else:
            self.channel.send(frame)

    def _send_all(self) -> None:
        if self.rpc.sends:
            frames, self.rpc.sends = self.rpc.sends, []
            for frame in frames:
                self._unread += len(frame)
                self._send(frame)

    # -- being asked --------------------------------------------------------------------------------------

    async def run(self, *, linger: float = 0.0) -> None:
        """Serves the connection until the peer has gone; then ends everything that belongs to it.

        A peer may close its side and still read the answers, as a shell does that pipes a file into this program: open
        requests then have `linger` seconds to be answered.
        """
        try:
            while frames := await self.channel.receive():
                frames.reverse()
                while frames:  # each goes when it was taken, or a large one would stay until the next one comes
                    await self._take(frames.pop())
                if self._beginning:
                    asyncio.get_running_loop().call_soon(self._all_begun)
            self._peer_ended()
            if linger:
                await self._begin_all()
                if self._tasks:
                    await asyncio.wait(list(self._tasks.values()), timeout=linger)
        finally:
            await self.close()

    async def take(self, frame: bytes) -> None:
        """Takes a frame of the peer, and waits until the work that it asks for has begun. For transports without one
        stream of frames; `run` does this for the others."""
        await self._take(frame)
        if self._beginning:
            await self._begun()

    def _all_begun(self) -> None:
        self._beginning = 0

    async def _begun(self) -> None:
        """Lets the requests that came so far begin: they do so in their order, in the loop's next turn."""
        self._beginning = 0
        await asyncio.sleep(0)

    async def _take(self, frame: bytes) -> None:
        if self._trace is not None:
            self._trace.received(frame)
        if self._unread > self.rpc.limits.max_unread:
            await self.channel.drain()
            self._unread = 0
        for incoming in self.rpc.receive(frame):
            kind = type(incoming)
            if kind is Call:
                # Requests that came together begin together: a turn of the loop for each would cost more than most do.
                self._begin(incoming)  # type: ignore[arg-type]
                self._beginning += len(frame)
                # No more of them than may wait unread, should their answers be as long.
                if self._beginning >= min(_BEGIN_AT_ONCE, self.rpc.limits.max_unread - self._unread):
                    await self._begun()
                continue
            if self._beginning:
                await self._begun()  # before anything else that came after them is looked at
            if kind is Notice:
                try:
                    handled = self.handler.noticed(incoming)  # type: ignore[arg-type]
                    if handled is not None:
                        await handled
                except Exception:
                    log.exception("a notification could not be handled: %s", incoming.method)  # type: ignore[union-attr]
            elif kind is Reply:
                self._settle(incoming.id, incoming.result, incoming.error)  # type: ignore[union-attr]
            elif kind is CancelWanted:
                task = self._tasks.get(incoming.call)  # type: ignore[union-attr]
                if task is not None:
                    # Not at once: of a task that has not begun nothing would ever run, nor answer. (Frames that come
                    # side by side, as over HTTP, may be taken before the task of an earlier one has had its turn.)
                    asyncio.get_running_loop().call_soon(task.cancel)
            elif kind is Refused:
                self._refused(incoming.error)  # type: ignore[arg-type, union-attr]
        self._send_all()

    def _refused(self, error: RpcError) -> None:
        """Handles an error without an id: the peer could not read a message. Everything that this side sends can be
        read, except an array by a peer that takes none."""
        if self._batches:
            for id_ in self._batches[0]:
                self._settle(id_, None, error)
        else:
            log.warning("the peer could not read a message of ours: %s", error)

    def _settle(self, id_: Id, result: Any, error: Exception | None) -> None:
        future = self._open.pop(id_, None)
        if future is None or future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def _begin(self, call: Call) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(call))
        self._tasks[call] = task

    def reopen(self, requests: Iterable[tuple[Id, str, Any]]) -> list[Call]:
        """Begins with requests that were made elsewhere. They begin in the loop's next turn."""
        calls = self.rpc.reopen(requests)
        for call in calls:
            self._begin(call)
        return calls

    async def _begin_all(self) -> None:
        """Lets all waiting tasks begin when no more frames come. A task that is cancelled before it begins would run
        nothing."""
        if self._beginning:
            await self._begun()

    async def _answer(self, call: Call) -> None:
        then = None
        try:
            result = await self.handler.called(call)
            if type(result) is Answer:
                result, then = result.result, result.then
            self.rpc.answer(call, result)
        except asyncio.CancelledError:
            if self._silent_cancel:
                self.rpc.drop(call)
            else:
                self.rpc.fail(call, RpcError(CANCELLED, "the request was cancelled"))
        except RpcError as error:
            self.rpc.fail(call, error)
            _forget_frames(error)
        except Exception as error:
            self.rpc.fail(call, self._failure(call, error))
            _forget_frames(error)
        finally:
            self._tasks.pop(call, None)
        if not self.lost:
            self._send_all()
            self._then(call.batch, then)

    def _then(self, batch: Batch | None, then: Callable[[], None] | None) -> None:
        """Calls the function that follows an answer after it was sent, or keeps it until the array with the answer has
        been sent."""
        follows = [then] if then is not None else []
        if batch is not None:
            follows = self._later.pop(batch, []) + follows
            if batch.open:
                if follows:
                    self._later[batch] = follows
                return
        for follow in follows:
            try:
                follow()
            except Exception:
                log.exception("what follows an answer failed")

    def _failure(self, call: Call, error: Exception) -> RpcError:
        try:
            return self.handler.failure(error)
        except Exception:
            log.exception("%s failed", call.method)
            return RpcError(INTERNAL_ERROR, "something went wrong inside; the log has the details")

    # -- the end ------------------------------------------------------------------------------------------

    def _peer_ended(self) -> None:
        self._ended = True
        for id_ in list(self._open):
            self._settle(id_, None, ConnectionLost("the peer is gone"))

    async def close(self) -> None:
        if not self.lost:
            self.lost = True
            self._peer_ended()
            await self._begin_all()
            for task in list(self._tasks.values()):
                task.cancel()
        tasks = [task for task in self._tasks.values() if task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks, timeout=10.0)
        with contextlib.suppress(ConnectionError):
            await self.channel.close()


def _forget_frames(error: BaseException) -> None:
    """Its frames hold the request, and often the error itself: a large request that is refused would stay until the
    collector comes."""
    errors: list[BaseException | None] = [error]
    while errors:
        error_ = errors.pop()
        if error_ is not None and error_.__traceback__ is not None:
            error_.__traceback__ = None
            errors += [error_.__cause__, error_.__context__]

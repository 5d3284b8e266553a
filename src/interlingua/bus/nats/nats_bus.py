"""The bus over NATS: one connection per process, by nats-py. No other module imports that package.

This module reconnects by itself, because nats-py stops for good after some server errors, sends messages that piled up
while it was disconnected, and has no jitter. Every connection is a new client; messages that were lost in between are
replaced by reads of the store. Only the tasks of this module wait for the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
from nats import errors
from nats.aio.client import Client, RawCredentials
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext, api
from nats.js.errors import NotFoundError

from ...model.errors import InvalidRequest, Unavailable
from ...runtime.clock import SYSTEM_CLOCK, Clock, sleep
from ...runtime.job_group import JobGroup
from ..port import BusSettings
from .address import Address, parse
from .subject_bus import Handler, SubjectBus
from .work_queue import CANCEL_AGAIN

log = logging.getLogger("interlingua.bus")

_CONNECT = 4  # seconds; nats-py requires an integer
_PING = 5  # seconds; two unanswered pings mean that the server is gone
_RETRY_FIRST, _RETRY_LAST = 0.1, 5.0
_PENDING, _PENDING_BYTES = 65_536, 64 * 1024 * 1024  # unread messages of one subject
_TICK = 1.0
_GOODBYE = 1.0  # seconds to send the remaining messages when the bus is closed

_ACK_WAIT = 10.0  # seconds after which a pulled but unsettled offer goes to another worker
_PULL = 20.0  # seconds that a request for offers stays with the server
_MAX_AGE = 3600.0  # of an offer: by then a worker has found the due run by polling
_MAX_OFFERS = 100_000
_DUPLICATES = 60.0
_UNUSED = 7 * 86_400.0  # seconds after which a queue without workers is dropped


class _Client(Client):
    wants_tls = False

    def _connect_command(self) -> bytes:
        # nats-py would send the password in the clear if a server (or an attacker between) offers no TLS.
        if self.wants_tls and not self._server_info.get("tls_required"):
            raise ssl.SSLError("the server offers no TLS")
        return super()._connect_command()


class NatsBus(SubjectBus):
    def __init__(self, settings: BusSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        address = parse(settings)
        super().__init__(address.prefix, clock)
        self._connection = NatsConnection(self, settings, address)

    async def open(self) -> None:
        """Raises if the server refuses us for good. If it is down, the bus keeps trying to connect."""
        await self._connection.open()

    async def close(self) -> None:
        self.detach()
        await self._connection.close()
        await super().close()


class NatsConnection:
    """Carries the messages of a bus over a connection, which it makes anew whenever it is lost."""

    def __init__(self, bus: SubjectBus, settings: BusSettings, address: Address) -> None:
        self._bus = bus
        self._settings = settings
        self._address = address
        self._client: _Client | None = None  # while connected
        self._lost = asyncio.Event()
        self._subscriptions: dict[str, Subscription] = {}
        self._jobs = JobGroup("bus")

    async def open(self) -> None:
        options = self._options()
        try:
            await self._connect(options)
        except (OSError, errors.Error, ValueError) as error:
            reason = _permanent_reason(error)
            if reason is not None:
                raise Unavailable(
                    f"the bus at {self._address.shown} does not let us in: {reason}", transient=False
                ) from error
            self._warn_down(error)
        self._jobs.spawn(self._stay_connected(options))
        self._jobs.spawn(self._tick())

    async def close(self) -> None:
        if self._client is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE):
                    await self._bus.send_queue.emptied()
        await self._jobs.close(again=3 * _GOODBYE)  # the jobs clean up
        if self._client is not None:  # no task serves it yet
            await _close_client(self._client)
            self._client = None

    # -- connecting ---------------------------------------------------------------------------------------

    def _options(self) -> dict[str, Any]:
        settings = self._settings
        options: dict[str, Any] = {
            "servers": self._address.servers,
            "name": "interlingua",
            "no_echo": True,
            "allow_reconnect": False,  # see above
            "max_reconnect_attempts": 1,  # at 0, nats-py retries a dead server for ever
            "reconnect_time_wait": 0,
            "connect_timeout": _CONNECT,
            "ping_interval": _PING,
            "max_outstanding_pings": 2,
        }
        if settings.token is not None:
            options["token"] = settings.token
        if settings.credentials is not None:
            with _readable(settings.credentials):
                options["user_credentials"] = RawCredentials(settings.credentials.read_text())
        if settings.nkey is not None:
            with _readable(settings.nkey):
                options["nkeys_seed_str"] = settings.nkey.read_text().strip()
        if self._address.tls or settings.ca or settings.certificate:
            with _readable(settings.ca):
                context = ssl.create_default_context(cafile=settings.ca)
            if settings.certificate is not None:
                with _readable(settings.certificate):
                    context.load_cert_chain(settings.certificate, settings.key)
            options["tls"] = context
        return options

    async def _connect(self, options: dict[str, Any]) -> None:
        client, lost = _Client(), asyncio.Event()
        client.wants_tls = self._address.tls
        errors_seen: list[Exception] = []

        async def on_error(error: Exception) -> None:
            errors_seen[:] = [error]
            self._handle_error(error)

        async def closed() -> None:
            lost.set()

        self._subscriptions = {}
        try:
            async with asyncio.timeout(2 * _CONNECT * len(self._address.servers)):
                await client.connect(**options, error_cb=on_error, closed_cb=closed)
                for subject in list(self._bus.handlers):
                    await self._subscribe(client, subject)
                # The ping of nats-py's first flush overtakes earlier messages; that of the second does not. And if the
                # server's first messages came in an unusual order, nats-py never starts to send.
                await client.flush(_CONNECT)
                await client.flush(_CONNECT)
                if not client.is_connected:
                    raise errors.Error("the connection was not made")
            # From here on, no message is lost.
        except BaseException as error:
            await _close_client(client)
            if isinstance(error, errors.NoServersError) and errors_seen:
                raise errors_seen[0] from error
            raise
        self._client, self._lost, self._bus.max_payload = client, lost, client.max_payload
        self._bus.connected()
        for subject in self._bus.handlers.keys() - self._subscriptions.keys():
            self._bus.subscribe_to(subject, self._bus.handlers[subject])  # added meanwhile
        if self._bus.may_warn_again("down"):
            log.info("the bus at %s is there again", self._address.shown)

    async def _subscribe(self, client: _Client, subject: str) -> None:
        handler = self._bus.handlers.get(subject)
        if handler is not None and subject not in self._subscriptions:
            self._subscriptions[subject] = await client.subscribe(
                subject, cb=_callback(handler), pending_msgs_limit=_PENDING, pending_bytes_limit=_PENDING_BYTES
            )

    async def _stay_connected(self, options: dict[str, Any]) -> None:
        wait = _RETRY_FIRST
        first = True
        while True:
            if self._client is None:
                try:
                    await self._connect(options)
                except Exception as error:
                    self._warn_down(error)
                    # Many processes lost the same server: they must not reconnect all at once.
                    await sleep(self._bus.clock, wait * random.uniform(0.5, 1.5))
                    wait = min(2 * wait, _RETRY_LAST)
                    continue
                first = False
            assert self._client is not None
            wait = _RETRY_FIRST
            await self._serve(self._client, missed=not first)
            first = False

    async def _serve(self, client: _Client, *, missed: bool) -> None:
        """Serves a connection until it is lost."""
        jobs = JobGroup("bus", lambda error: log.debug("the work queue is not ready: %s", error))
        until_lost = [jobs.share(self._lost.wait()), jobs.share(self._write(client))]
        jobs.spawn(self._prepare(client))
        try:
            if missed:
                self._bus.missed()
            done, _ = await asyncio.wait(until_lost, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except Exception as error:
            self._handle_error(error)
        finally:
            self._client = None
            self._bus.disconnected()
            await jobs.close(CANCEL_AGAIN)
            await self._bus.work.stop()
            await _close_client(client)
        self._warn_down(ConnectionError("the connection was lost"))

    async def _write(self, client: _Client) -> None:
        while True:
            item = await self._bus.send_queue.get()
            if item.action == "publish":
                headers = None if item.id is None else {"Nats-Msg-Id": item.id}
                try:
                    await client.publish(item.subject, item.payload, headers=headers)
                    self._bus.health.sent += 1
                except (errors.MaxPayloadError, errors.BadSubjectError):
                    self._bus.health.dropped += 1
            elif item.action == "subscribe":
                await self._subscribe(client, item.subject)
            elif item.subject not in self._bus.handlers:
                known = self._subscriptions.pop(item.subject, None)
                if known is not None:
                    await known.unsubscribe()

    async def _tick(self) -> None:
        while True:
            await sleep(self._bus.clock, _TICK)
            self._bus.tick()

    async def _prepare(self, client: _Client) -> None:
        """Finds or creates the work queue. Without it, workers find due runs by polling, as they always do."""
        if self._settings.hand_out == "off":
            return
        stream, subjects = client.jetstream(timeout=_CONNECT), self._bus.subjects
        try:
            try:
                await stream.stream_info(subjects.stream)
            except NotFoundError:
                await stream.add_stream(_stream(subjects.stream, subjects.all_work, self._settings.hand_out))
        except Exception as error:
            self._bus.warn_once(
                "work",
                f"the bus at {self._address.shown} hands out no work ({_text_of(error)}): is JetStream on? Workers "
                "find due runs by polling",
            )
            return
        self._bus.work.start(_Queues(stream, subjects.stream))

    # -- errors -------------------------------------------------------------------------------------------

    def _handle_error(self, error: Exception) -> None:
        if isinstance(error, errors.SlowConsumerError):
            self._bus.overflowed(error.subject)
        elif isinstance(error, msgspec.MsgspecError | UnicodeDecodeError):
            self._bus.warn_once("odd", f"the bus at {self._address.shown} carries messages that are not ours: {error}")
        elif isinstance(error, errors.Error | OSError):
            log.debug("the bus: %s", error)
        else:
            log.error("a message of the bus could not be handled", exc_info=error)

    def _warn_down(self, error: BaseException) -> None:
        self._bus.warn_once(
            "down",
            f"the bus at {self._address.shown} cannot be reached ({_text_of(error)}); runs go on without it, and it is "
            "tried again",
        )


def _stream(name: str, subject: str, storage: str) -> api.StreamConfig:
    return api.StreamConfig(
        name=name,
        subjects=[subject],
        retention=api.RetentionPolicy.WORK_QUEUE,
        storage=api.StorageType.FILE if storage == "file" else api.StorageType.MEMORY,
        discard=api.DiscardPolicy.OLD,
        max_msgs=_MAX_OFFERS,
        max_age=_MAX_AGE,
        max_msg_size=1024,
        duplicate_window=_DUPLICATES,
    )


class _Queues:
    def __init__(self, stream: JetStreamContext, name: str) -> None:
        self._stream = stream
        self._name = name

    async def of(self, subject: str) -> _Queue:
        consumer = api.ConsumerConfig(
            ack_policy=api.AckPolicy.EXPLICIT, ack_wait=_ACK_WAIT, max_deliver=-1, inactive_threshold=_UNUSED
        )
        durable = subject.rpartition(".")[2]
        pull = await self._stream.pull_subscribe(subject, durable=durable, stream=self._name, config=consumer)
        return _Queue(pull)


class _Queue:
    def __init__(self, pull: JetStreamContext.PullSubscription) -> None:
        self._pull = pull

    async def next(self) -> _Offer | None:
        try:
            return _Offer((await self._pull.fetch(1, timeout=_PULL))[0])
        except TimeoutError:  # also nats-py's own
            return None

    async def close(self) -> None:
        with contextlib.suppress(errors.Error):
            await self._pull.unsubscribe()


class _Offer:
    def __init__(self, message: Msg) -> None:
        self._message = message

    @property
    def data(self) -> bytes:
        return self._message.data

    @property
    def again(self) -> bool:
        return (self._message.metadata.num_delivered or 1) > 1

    async def taken(self) -> None:
        await self._message.ack()

    async def later(self, seconds: float) -> None:
        await self._message.nak(delay=seconds)


@contextlib.contextmanager
def _readable(path: Path | None) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:  # also an SSLError: the file has other content
        raise InvalidRequest(f"the bus needs {path}, and that cannot be used: {error}") from error


def _callback(handler: Handler) -> Callable[[Msg], Coroutine[Any, Any, None]]:
    async def call(message: Msg) -> None:
        handler(message.data, message.subject)

    return call


def _text_of(error: BaseException) -> str:
    return str(error).removeprefix("nats: ").strip("'\" ") or type(error).__name__


def _permanent_reason(error: BaseException) -> str | None:
    """The reason why retrying cannot help; None if it may."""
    if isinstance(error, ssl.SSLError | ValueError):
        return _text_of(error)
    text = _text_of(error).lower()
    if isinstance(error, errors.Error) and ("authorization" in text or "authentication" in text):
        return f"{_text_of(error)}; check user and password, token, credentials or nkey"
    return None


async def _close_client(client: _Client) -> None:
    """Closes a connection that may be half open, or whose server no longer reads."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_GOODBYE):
            await client.close()

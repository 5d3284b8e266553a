"""NATS as the carrier of the bus, by nats-py, over one connection per process. Nothing else imports that package.

Connections are made and given up here and not by nats-py: that one stops for good after some errors of the server,
sends what piled up while it was away, and has no jitter. Every connection is a new client; what was missed in between
is looked up in the store. Nothing here waits for the network but tasks of its own.
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
from ..port import BusSettings
from .address import parse
from .subject_bus import Handler, SubjectBus
from .work_queue import end_all

log = logging.getLogger("interlingua.bus")

_CONNECT = 4  # seconds; nats-py wants it whole
_PING = 5  # seconds; two that are not answered mean that the server is gone
_RETRY_FIRST, _RETRY_LAST = 0.1, 5.0
_PENDING, _PENDING_BYTES = 65_536, 64 * 1024 * 1024  # that wait to be looked at, of one subject
_TICK = 1.0
_GOODBYE = 1.0  # seconds for what is still to be sent when the bus is closed

_ACK_WAIT = 10.0  # seconds after which work that was pulled and not settled is offered to others
_PULL = 20.0  # seconds that a request for work stays with the server
_MAX_AGE = 3600.0  # of an offer: whoever looks for due runs has long found the run
_MAX_OFFERS = 100_000
_DUPLICATES = 60.0
_UNUSED = 7 * 86_400.0  # seconds after which a queue that nobody serves is dropped


class _Client(Client):
    wants_tls = False

    def _connect_command(self) -> bytes:
        # nats-py goes on in the clear where a server (or who sits in between) offers no TLS, password and all.
        if self.wants_tls and not self._server_info.get("tls_required"):
            raise ssl.SSLError("the server offers no TLS")
        return super()._connect_command()


class NatsBus(SubjectBus):
    def __init__(self, settings: BusSettings) -> None:
        self._settings = settings
        self._address = parse(settings)
        super().__init__(self._address.prefix)
        self._client: _Client | None = None  # while connected
        self._lost = asyncio.Event()
        self._subscriptions: dict[str, Subscription] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Raises where the server will never let us in. One that is down is tried again, for ever."""
        options = self._options()
        try:
            await self._connect(options)
        except (OSError, errors.Error, ValueError) as error:
            reason = _final(error)
            if reason is not None:
                raise Unavailable(
                    f"the bus at {self._address.shown} does not let us in: {reason}", transient=False
                ) from error
            self._warn_down(error)
        self._spawn(self._stay_connected(options))
        self._spawn(self._tick())

    async def close(self) -> None:
        self.detach()
        if self._client is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE):
                    await self.outgoing.emptied()
        tasks, self._tasks = self._tasks, set()
        await end_all(tasks, again=3 * _GOODBYE)  # they have something to tidy up
        if self._client is not None:  # nobody has begun to look after it
            await _shut(self._client)
            self._client = None
        await super().close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- connecting ---------------------------------------------------------------------------------------

    def _options(self) -> dict[str, Any]:
        settings = self._settings
        options: dict[str, Any] = {
            "servers": self._address.servers,
            "name": "interlingua",
            "no_echo": True,
            "allow_reconnect": False,  # see above
            "max_reconnect_attempts": 1,  # at 0, nats-py tries a server that is down for ever
            "reconnect_time_wait": 0,
            "connect_timeout": _CONNECT,
            "ping_interval": _PING,
            "max_outstanding_pings": 2,
        }
        if settings.token is not None:
            options["token"] = settings.token
        if settings.credentials is not None:
            with _file(settings.credentials):
                options["user_credentials"] = RawCredentials(settings.credentials.read_text())
        if settings.nkey is not None:
            with _file(settings.nkey):
                options["nkeys_seed_str"] = settings.nkey.read_text().strip()
        if self._address.tls or settings.ca or settings.certificate:
            with _file(settings.ca):
                context = ssl.create_default_context(cafile=settings.ca)
            if settings.certificate is not None:
                with _file(settings.certificate):
                    context.load_cert_chain(settings.certificate, settings.key)
            options["tls"] = context
        return options

    async def _connect(self, options: dict[str, Any]) -> None:
        client, lost = _Client(), asyncio.Event()
        client.wants_tls = self._address.tls
        trouble: list[Exception] = []

        async def troubled(error: Exception) -> None:
            trouble[:] = [error]
            self._trouble(error)

        async def closed() -> None:
            lost.set()

        self._subscriptions = {}
        try:
            async with asyncio.timeout(2 * _CONNECT * len(self._address.servers)):
                await client.connect(**options, error_cb=troubled, closed_cb=closed)
                for subject in list(self.handlers):
                    await self._subscribe(client, subject)
                # The ping of nats-py's flush overtakes what was said before; that of the second one does not. And
                # where the server's first words came in another order than usual, it never begins to say anything.
                await client.flush(_CONNECT)
                await client.flush(_CONNECT)
                if not client.is_connected:
                    raise errors.Error("the connection was not made")
            # From here on, nothing is missed.
        except BaseException as error:
            await _shut(client)
            if isinstance(error, errors.NoServersError) and trouble:
                raise trouble[0] from error
            raise
        self._client, self._lost, self.max_payload = client, lost, client.max_payload
        self.connected()
        for subject in self.handlers.keys() - self._subscriptions.keys():
            self._listen(subject, self.handlers[subject])  # began meanwhile
        if "down" in self._warned:
            self._warned.discard("down")
            log.info("the bus at %s is there again", self._address.shown)

    async def _subscribe(self, client: _Client, subject: str) -> None:
        handler = self.handlers.get(subject)
        if handler is not None and subject not in self._subscriptions:
            self._subscriptions[subject] = await client.subscribe(
                subject, cb=_called(handler), pending_msgs_limit=_PENDING, pending_bytes_limit=_PENDING_BYTES
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
                    # Many processes have lost the same server: they must not come back all at once.
                    await asyncio.sleep(wait * random.uniform(0.5, 1.5))
                    wait = min(2 * wait, _RETRY_LAST)
                    continue
                first = False
            assert self._client is not None
            wait = _RETRY_FIRST
            await self._serve(self._client, missed=not first)
            first = False

    async def _serve(self, client: _Client, *, missed: bool) -> None:
        """Until the connection is lost."""
        tasks = [asyncio.create_task(work) for work in (self._lost.wait(), self._write(client), self._prepare(client))]
        try:
            if missed:
                self.missed()
            done, _ = await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except Exception as error:
            self._trouble(error)
        finally:
            self._client = None
            self.disconnected()
            await end_all(tasks)
            await self.work.stop()
            await _shut(client)
        self._warn_down(ConnectionError("the connection was lost"))

    async def _write(self, client: _Client) -> None:
        while True:
            item = await self.outgoing.get()
            if item.what == "say":
                headers = None if item.id is None else {"Nats-Msg-Id": item.id}
                try:
                    await client.publish(item.subject, item.payload, headers=headers)
                    self.health.sent += 1
                except (errors.MaxPayloadError, errors.BadSubjectError):
                    self.health.dropped += 1
            elif item.what == "listen":
                await self._subscribe(client, item.subject)
            elif item.subject not in self.handlers:
                known = self._subscriptions.pop(item.subject, None)
                if known is not None:
                    await known.unsubscribe()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            self.tick()

    async def _prepare(self, client: _Client) -> None:
        """Find or make the queue of work. Without it, workers look for due runs as they do anyway."""
        if self._settings.hand_out == "off":
            return
        stream = client.jetstream(timeout=_CONNECT)
        try:
            try:
                await stream.stream_info(self.subjects.stream)
            except NotFoundError:
                await stream.add_stream(_stream(self.subjects.stream, self.subjects.all_work, self._settings.hand_out))
        except Exception as error:
            self.warn_once(
                "work",
                f"the bus at {self._address.shown} hands out no work ({_said(error)}): is JetStream on? Workers look "
                "for due runs by themselves",
            )
            return
        self.work.start(_Queues(stream, self.subjects.stream))

    # -- trouble ------------------------------------------------------------------------------------------

    def _trouble(self, error: Exception) -> None:
        if isinstance(error, errors.SlowConsumerError):
            self.overflowed(error.subject)
        elif isinstance(error, msgspec.MsgspecError | UnicodeDecodeError):
            self.warn_once("odd", f"the bus at {self._address.shown} carries messages that are not ours: {error}")
        elif isinstance(error, errors.Error | OSError):
            log.debug("the bus: %s", error)
        else:
            log.error("a message of the bus could not be handled", exc_info=error)

    def _warn_down(self, error: BaseException) -> None:
        self.warn_once(
            "down",
            f"the bus at {self._address.shown} cannot be reached ({_said(error)}); runs go on without it, and it is "
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
def _file(path: Path | None) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:  # also an SSLError: it holds something else
        raise InvalidRequest(f"the bus needs {path}, and that cannot be used: {error}") from error


def _called(handler: Handler) -> Callable[[Msg], Coroutine[Any, Any, None]]:
    async def call(message: Msg) -> None:
        handler(message.data, message.subject)

    return call


def _said(error: BaseException) -> str:
    return str(error).removeprefix("nats: ").strip("'\" ") or type(error).__name__


def _final(error: BaseException) -> str | None:
    """Why trying again will not help; None where it may."""
    if isinstance(error, ssl.SSLError | ValueError):
        return _said(error)
    text = _said(error).lower()
    if isinstance(error, errors.Error) and ("authorization" in text or "authentication" in text):
        return f"{_said(error)}; check user and password, token, credentials or nkey"
    return None


async def _shut(client: _Client) -> None:
    """Close a connection that may be half open, or whose server does not read any more."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_GOODBYE):
            await client.close()

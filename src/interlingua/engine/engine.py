"""The engine's API: all that doors, the command line and tests may use. Nothing in it names a protocol."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..bus.base import WORK, Bus, BusSettings
from ..bus.opening import open_bus
from ..model import chain, values
from ..model.card import AgentCard
from ..model.content import Message, Part, parts_from
from ..model.errors import (
    AgentNotFound,
    ChildFailed,
    Conflict,
    Denied,
    ErrorInfo,
    InvalidConfig,
    InvalidInput,
    InvalidRequest,
    Overloaded,
    RunNotFound,
    TooLarge,
    Unavailable,
)
from ..model.events import KINDS, Event, RunCreated, RunFinished
from ..model.oversight import Assignment
from ..model.run import OWNER, Caller, Instance, Run, RunRequest, Thread
from ..model.schemas import Validator
from ..model.status import Status
from ..store import checking
from ..store.base import (
    Change,
    EventRow,
    Outrun,
    PutKey,
    RunFilter,
    RunRow,
    Store,
    Submission,
    Submitted,
    TakeThread,
)
from ..store.opening import open_store
from . import runlog, ways
from .agents import Agent, Registry
from .answering import Answering
from .callbacks import Callbacks
from .elsewhere import Elsewhere
from .execution import Execution
from .ids import new_id, now
from .log import LiveLog, encode
from .mounting import Offer
from .reader import Reader
from .reminders import Reminders
from .replay import Replay
from .replicas import Replicas
from .settings import Settings
from .speaking import MailKind
from .stall import StallWatch
from .teams import MEMBER_OF, Teams
from .threads import Threads
from .waiting import wait_elsewhere
from .worker import Worker
from .workspace import Editor

_BACKLOG = 50_000
_ENVELOPE = 64 * 1024  # of a request around its input
_PLAIN = Assignment()
_LONGEST = 9_999_999_999  # seconds; what comes after is beyond the clock


class Engine(Threads, Teams, Answering):
    """Runs agents and remembers everything. Use it as `async with Engine(path, agents=[...]) as engine`."""

    def __init__(
        self,
        store: Store | Path | str,
        *,
        agents: Iterable[Agent[..., Any]] = (),
        bus: Bus | BusSettings | str | None = None,
        settings: Settings | None = None,
    ) -> None:
        Teams.__init__(self)
        self.store: Store = open_store(store) if isinstance(store, str | Path) else store
        self.bus: Bus = open_bus(bus) if bus is None or isinstance(bus, str | BusSettings) else bus
        self.settings = settings or Settings()
        self.agents = Registry()
        for agent in agents:
            self.add(agent)
        self.callbacks = Callbacks(self, self.store)
        self.reminders = Reminders(self.store, self.callbacks)
        self.editors: dict[str, Editor] = {}  # by thread: what its caller offers to agents while it is there
        self.offer: Offer | None = None  # set by a door that can; for mounts whose wires carry files by address alone
        self.replicas = Replicas(self)
        self.elsewhere = Elsewhere(self)
        self.server = ""  # the id of its store among servers, once it is open
        self.away: Callable[[str], Unavailable | None] = lambda name: None  # set by whoever keeps mounts
        self._open = False
        self._counted, self._counted_at = 0, -1.0
        self._keys: set[tuple[str, str]] = set()  # of runs that have begun here and are not in the store yet
        self._on_threads: Counter[str] = Counter()  # threads, and how many runs for each are not in the store yet

    async def __aenter__(self) -> Engine:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        if self.settings.tune_interpreter:
            sys.setswitchinterval(min(sys.getswitchinterval(), 0.0001))
            if gc.get_threshold()[0] == 700:  # nobody else has tuned it
                gc.set_threshold(20_000, 20, 20)
        await self.store.open()
        try:
            await self.bus.open()
        except BaseException:
            await self.store.close()
            raise
        self.server = await ways.server_id(self.store)
        self.worker = Worker(self, self.store, self.bus, self.agents, self.settings)
        self.store.on_foreign_change = self.worker.foreign_change
        self.store.on_lost = self.worker.lost
        await self._publish_cards()
        self.agents.listeners.append(self._agents_changed)
        await self._count_pending()
        await self.worker.start()
        self.callbacks.start()
        self.reminders.start()
        self._stall = StallWatch(self.settings.stall_warning)
        self._open = True

    async def stop(self) -> None:
        if not self._open:
            return
        self._open = False
        await self.elsewhere.stop()
        self.agents.listeners.remove(self._agents_changed)
        self._stall.close()
        await self.reminders.stop()
        await self.callbacks.stop()
        await self.worker.stop()
        if self.tool_servers is not None:
            await self.tool_servers.close()
        await self.bus.close()
        await self.store.close()

    @property
    def running(self) -> bool:
        """Whether it takes runs; false from the moment that it begins to stop."""
        return self._open

    def _agents_changed(self) -> None:
        self.worker.spawn(self._publish_cards())
        self.worker.gates.refresh()
        self.elsewhere.hint()
        self.worker.look()
        if self.worker.others is not None:
            self.worker.others.agents_changed()

    async def _publish_cards(self) -> None:
        """Let every process of the store know what the agents are that are here."""
        if own := [*self.agents.own(), *self.agents.hidden()]:
            await self.store.put_cards([agent.card for agent in own])

    # -- agents -------------------------------------------------------------------------------------------

    def way(self, card: AgentCard) -> list[str]:
        """The servers that an agent has come by, this one last: for whoever mounts it from here."""
        return ways.way(card, self.server)

    async def card(self, name: str, version: str | None = None) -> AgentCard:
        """The card of an agent, here or in any process that ever shared this store."""
        agent = self.agents.find(name, version)
        if agent is not None:
            return agent.card
        card = await self.store.card(name, version)
        if card is None or MEMBER_OF in card.metadata:
            known = ", ".join(sorted({agent.card.name for agent in self.agents})) or "none"
            wanted = name if version is None else f"{name} {version}"
            raise self.no_agent(name, f"there is no agent {wanted} (there are: {known})")
        return card

    def no_agent(self, name: str, said: str) -> AgentNotFound | Unavailable:
        """What is to be raised where there is no agent of a name: that, or that whoever may have it is away."""
        return self.away(name) or AgentNotFound(said)

    async def configure(
        self, name: str, config: Any, *, version: str | None = None, caller: Caller = OWNER,
        label: str | None = None, metadata: dict[str, Any] | None = None,
    ) -> Instance:  # fmt: skip
        """Keep an agent with a configuration, under an id that later runs can use."""
        card = await self.card(name, version)
        if card.config is None and config not in (None, {}):
            raise InvalidConfig(f"agent {card.name} takes no config")
        values.check(metadata or {}, InvalidRequest, what="metadata")
        config = {} if config is None else config
        Validator(card.config or {"type": "object"}, what="config").check(config, InvalidConfig)
        made = Instance(new_id(), card.name, card.version, config, caller.id, now(), label, metadata or {})
        await self.store.put_instance(made)
        return made

    # -- runs ---------------------------------------------------------------------------------------------

    def submit(self, request: RunRequest, *, follow: bool = False) -> Coroutine[Any, Any, Run]:
        """Accept a run. When this has been awaited, the run is on disk and will end. `follow`: it is read or waited for
        here as soon as it is, which costs less where that is known before it begins."""
        return self._submit(request, new_id(), None, follow=follow)

    async def submit_child(self, request: RunRequest, run: str, parent: RunRow) -> None:
        """As `submit`, under a run. Submitting the same child again changes nothing."""
        known = "run" if self.worker.log_of(run) is not None else await self.store.known(run)
        if known == "run":
            return
        if known == "tombstone":
            gone = ErrorInfo(RunNotFound.code, f"run {run} was deleted")
            raise ChildFailed(f"agent {request.agent}: {gone.message}", error=gone, run=run)
        await self._submit(request, run, parent)

    def begin(self, request: RunRequest) -> LiveLog | None:
        """Accept a run that starts here and now: that needs no others, and no waiting. None where it is not so simple,
        and must be submitted. The run is on disk when its log has been flushed; until then nobody may hear of it."""
        agent = self._code(request, None)
        if agent is None or not agent.here or request.thread is not None or not self._starts_here(request, agent):
            return None
        return self._start_here(*self._written(request, new_id(), None, agent.card, agent), agent)

    def begun(self, log: LiveLog) -> Run:
        """A run that `begin` accepted, as its last commit left it."""
        return self._live_view(log, log.created)

    async def _submit(self, request: RunRequest, run: str, parent: RunRow | None, *, follow: bool = False) -> Run:
        agent = self._code(request, parent)
        card = agent.card if agent is not None else await self.card(request.agent, request.version)
        if parent is None:  # who calls has begun already, and waits for as long as it takes
            self.elsewhere.check(card, agent)
        row, created, encoded = self._written(request, run, parent, card, agent)
        thread = None
        starts = agent is not None and agent.here and self._starts_here(request, agent)
        if starts and request.thread is not None:
            thread = self._idle_thread(request.thread, agent)
            starts = thread is not None
        if agent is None or not starts:
            here = agent if agent is not None and agent.here else None
            return await self._submit_row(row, created, encoded, here, follow=follow)
        log = self._start_here(row, created, encoded, agent, thread)
        try:
            await log.flush()
        except Outrun:  # by another process: there is a run to be found now, or the thread to be waited for
            return await self._submit_row(*self._written(request, run, parent, card, agent), agent)
        return self._live_view(log, created)

    def _code(self, request: RunRequest, parent: RunRow | None) -> Agent[..., Any] | None:
        """What the run is to be entered with, where that is here; or what stands for it."""
        if not self._open:
            raise Unavailable("the engine is not running")
        if parent is None and (request.authority is not None or request.assignment is not None):
            raise Denied("authority and assignment of a run are given by the engine; leave them out")
        if parent is not None and parent.sealed and request.thread is not None:
            raise Denied("an overseen agent calls nobody on a thread: what is left there could be read before approval")
        if request.authority is None:
            return self.agents.find(request.agent, request.version)
        return self.agents.code(request.agent, request.version or "")

    def _starts_here(self, request: RunRequest, agent: Agent[..., Any]) -> bool:
        if request.delay or not self.worker.may_start(agent):
            return False
        if request.key is None:
            return True
        caller = request.caller.id
        return (caller, request.key) not in self._keys and self.store.key_is_free(caller, request.key)

    def _idle_thread(self, thread: str, agent: Agent[..., Any] | None) -> Thread | None:
        """A thread that a run can have at once. Runs get it in the order in which they came, so nobody may be on the
        way to it; and where another process is faster the run is entered once more, which not every agent can bear."""
        if thread in self._on_threads or agent is None or agent.retries == 0:
            return None
        return self.store.idle_thread(thread)

    def _written(
        self, request: RunRequest, run: str, parent: RunRow | None, card: AgentCard, agent: Agent[..., Any] | None
    ) -> tuple[RunRow, RunCreated, bytes]:
        """A request that is fine, as a run's row and its first event."""
        self._check(request, card, agent)
        if self.store.backlog() > _BACKLOG:
            raise Overloaded("the store cannot keep up; try again in a moment")
        time = now()
        request = self.begin_task(request, time)
        path = self.worker.path_of(parent) if parent is not None else ""
        row = RunRow(
            run, card.name, card.version, Status.PENDING, request.caller.id, request.thread,
            parent.id if parent is not None else None, path, values.encode(request.metadata), time, time,
            None, 0, 1, chain.GENESIS, 0, 0, 0, None, request.extra.get("mark"),
            int((parent is not None and parent.sealed) or (request.assignment or _PLAIN).sealed),
        )  # fmt: skip
        created = RunCreated(
            request, agent.digest if agent is not None else values.digest(msgspec.to_builtins(card)),
            row.parent, parent.head.hex() if parent is not None else None,
        )  # fmt: skip
        encoded = encode(created)  # before anything starts: what cannot be written down is refused here
        if len(encoded) > self.settings.max_input_bytes:
            self._check_sizes(request, len(encoded))
        return row, created, encoded

    def _start_here(
        self, row: RunRow, created: RunCreated, encoded: bytes, agent: Agent[..., Any], thread: Thread | None = None
    ) -> LiveLog:
        """The short way: nothing to agree on with others, so the run starts while its first events are written."""
        row.worker, row.wake_at, row.epoch = self.worker.id, None, 1
        log = LiveLog(self.store, row, in_store=False)
        log.created = created
        replay = Replay()
        replay.created = created
        taken: list[Change] = [*self._key_of(row, created.request)]
        execution = Execution(self.worker, agent, log, replay)
        if thread is not None:
            taken.append(TakeThread(thread.id, row.id, thread.version, thread.checkpoint))
            execution.submitted = Submitted(row, thread=thread)
        log.hold_back()
        log.append(created, *taken, encoded=encoded)
        # The handler's first turn comes before the writer's: what it does at once shares the first transaction.
        self.worker.enter_fresh(execution)
        log.let_go()
        if thread is not None:
            self._on_threads[thread.id] += 1
            log.flushed().add_done_callback(partial(self._has_thread, thread.id))
        if created.request.key is not None:
            used = row.caller, created.request.key
            self._keys.add(used)
            log.flushed().add_done_callback(partial(self._in_store, used))
        return log

    def _in_store(self, used: tuple[str, str], done: asyncio.Future[None]) -> None:
        self._keys.discard(used)
        if not done.cancelled():
            done.exception()  # whoever waits for the run is told

    def _has_thread(self, thread: str, done: asyncio.Future[None]) -> None:
        self._off_thread(thread)
        if not done.cancelled():
            done.exception()

    def _off_thread(self, thread: str) -> None:
        self._on_threads[thread] -= 1
        if not self._on_threads[thread]:
            del self._on_threads[thread]

    def _key_of(self, row: RunRow, request: RunRequest) -> list[PutKey]:
        if request.key is None:
            return []
        return [PutKey(row.caller, request.key, row.id, _digest(request))]

    async def _submit_row(
        self, row: RunRow, created: RunCreated, body: bytes, agent: Agent[..., Any] | None, *, follow: bool = False
    ) -> Run:
        request = created.request
        if await self._pending_runs() >= self.settings.max_pending:
            raise Overloaded(f"{self.settings.max_pending} runs are waiting already; try again later")
        kind = KINDS[RunCreated]
        head = chain.link(chain.GENESIS, row.id, 1, kind, row.created_at, chain.body_hash(body))
        row.next_seq, row.head = 2, head
        row.wake_at = row.created_at + int(request.delay * 1e6) if request.delay > 0 else 0
        take = self.worker.id if agent is not None and self.worker.may_start(agent) else None
        event = EventRow(row.id, 1, kind, row.created_at, head, body)
        submission = Submission(row, request, _digest(request), [event], take, row.created_at)
        mirror = None
        if follow and take is None and self.worker.others is not None:
            mirror = self.worker.others.expect(row, created, event)
        try:
            done = await self._place(submission, created, agent)
        except BaseException:
            if mirror is not None:
                mirror.let_go()
            raise
        if mirror is not None:
            mirror.submitted = done.row, created
        if done.existing:
            if mirror is not None:
                mirror.let_go()
            return await self.run(done.row.id)
        runlog.created(done.row)
        if done.cancel is not None:
            self.worker.told(done.cancel)
            if self.worker.execution(done.cancel) is None:
                await self.worker.claim_and_enter(done.cancel)
        if done.row.worker != self.worker.id:
            if self.worker.others is None:
                self.bus.publish(WORK)
            else:
                self.worker.others.submitted(done.row)
        return self.view(done.row, created)

    async def _place(self, submission: Submission, created: RunCreated, agent: Agent[..., Any] | None) -> Submitted:
        """Write a run down, and enter it where it may start here."""
        run = submission.row.id

        def enter(done: Submitted) -> None:
            # Not after the await below: a caller that goes away meanwhile must not leave the run half entered.
            if done.row.worker == self.worker.id and not done.existing and agent is not None:
                self.worker.enter_submitted(done, created, submission.events[0], agent)

        row = submission.row
        let_go = self.worker.reserve(f"{row.agent}@{row.version}") if submission.take is not None else None
        self.worker.expect(run)
        if row.thread is not None:
            self._on_threads[row.thread] += 1
        try:
            return await self.store.submit(submission, enter)
        finally:
            if row.thread is not None:
                self._off_thread(row.thread)
            if let_go is not None:
                let_go()
            self.worker.unexpect(run)

    async def _pending_runs(self) -> int:
        """How many wait for a slot. Counted some times per second and beside; only where the limit may be near is a
        count waited for: submissions that wait here overtake each other."""
        time = asyncio.get_running_loop().time()
        self._counted += 1
        if self._counted * 2 > self.settings.max_pending:
            await self._count_pending()
        elif time - self._counted_at > 0.2:
            self._counted_at = time
            self.worker.spawn(self._count_pending())
        return self._counted

    async def _count_pending(self) -> None:
        self._counted = await self.store.count_pending(self.settings.max_pending + 1)

    def _check_sizes(self, request: RunRequest, whole: int) -> None:
        limit = self.settings.max_input_bytes
        for what, value in (("input", request.input), ("config", request.config), ("metadata", request.metadata)):
            if value and len(values.encode(value)) > limit:
                raise TooLarge(f"the {what} is larger than {limit} bytes", path=f"/{what}")
        if whole > limit + _ENVELOPE:
            raise TooLarge(f"the request is larger than {limit} bytes")

    def _check(self, request: RunRequest, card: AgentCard, agent: Agent[..., Any] | None) -> None:
        if not isinstance(request.input, dict):
            raise InvalidInput(f"the input of an agent is an object, and this is {_kind(request.input)}")
        if request.metadata:
            values.check(request.metadata, InvalidRequest, what="metadata")
        if request.messages:
            values.check(msgspec.to_builtins(request.messages), InvalidRequest, what="messages")
        if agent is not None:
            agent.check_input.check(request.input, InvalidInput)
        else:
            Validator(card.input, what="input").check(request.input, InvalidInput)
        if request.config is not None:
            if card.config is None:
                if request.config != {}:
                    raise InvalidConfig(f"agent {card.name} takes no config")
            else:
                check = agent.check_config if agent is not None else None
                (check or Validator(card.config, what="config")).check(request.config, InvalidConfig)
        elif card.config is not None and card.config.get("required"):
            raise InvalidConfig(f"agent {card.name} needs a config with {', '.join(card.config['required'])}")
        for name, value in (("delay", request.delay), ("timeout", request.timeout)):
            if value is not None and not 0 <= value <= _LONGEST:
                raise InvalidRequest(
                    f"{name} is {value}; it is a number of seconds, from 0 to {_LONGEST:,}", path=f"/{name}"
                )

    async def has_run(self, run: str) -> bool:
        return self.worker.log_of(run) is not None or await self.store.run(run) is not None

    async def check_open(self, run: str) -> None:
        """Raise RunNotFound for a run that is sealed: only the owner may read it."""
        log = self.worker.log_of(run)
        row = log.row if log is not None else await self.store.run(run)
        if row is not None and row.sealed:
            raise RunNotFound(f"there is no run {run}")

    async def run(self, run: str, *, sealed: bool = False) -> Run:
        """A run as it is now. `sealed`, here and elsewhere, is for the owner: also one of an overseen agent."""
        log = self.worker.log_of(run)
        if log is not None and log.row.sealed and not sealed:
            raise RunNotFound(f"there is no run {run}")
        if log is not None and log.committed_row is not None:
            execution = self.worker.execution(run)
            if execution is not None or log.created is not None:
                created = execution.replay.created if execution is not None else log.created
                view = self._live_view(log, created)
                if view.status is not Status.WAITING:
                    return view
        return await self.full_view(await self.row(run, sealed=sealed))

    async def row(self, run: str, *, sealed: bool = False) -> RunRow:
        row = await self.store.run(run)
        if row is None or (row.sealed and not sealed):
            raise RunNotFound(f"there is no run {run}")
        return row

    async def runs(self, where: RunFilter) -> list[Run]:
        """Newest first."""
        return [self.view(row, None) for row in await self.store.runs(where)]

    async def wait(self, run: str, *, timeout: float | None = None, settled: bool = False, sealed: bool = False) -> Run:
        """Wait until a run has ended (`settled`: or waits for an answer). Raises TimeoutError.

        Giving up waiting does nothing to the run.
        """
        log = self.worker.log_of(run)
        if log is not None and log.finished is not None:
            return await self.run(run, sealed=sealed)
        async with asyncio.timeout(timeout):
            while True:
                log, row = self.worker.log_of(run), None
                if log is None and self.worker.others is not None:
                    ended = await wait_elsewhere(self, run, self.worker.others, settled=settled, sealed=sealed)
                    if ended is not None:
                        return ended
                    continue  # it is here now
                if log is not None:
                    if log.row.sealed and not sealed:
                        raise RunNotFound(f"there is no run {run}")
                    changed = log.changed()
                    status = log.committed_row.status if log.committed_row is not None else Status.PENDING
                else:
                    changed = self.next_hint(run)
                try:
                    if log is None:
                        row = await self.row(run, sealed=sealed)
                        status = row.status
                    if status.final:
                        return await (self.run(run, sealed=sealed) if row is None else self.full_view(row))
                    if settled and status is Status.WAITING:
                        view = await self.run(run, sealed=sealed)
                        if view.status is Status.WAITING or view.status.final:
                            return view
                    await changed
                finally:
                    changed.cancel()  # nobody is told of what nobody waits for

    def at_hand(self, run: str) -> list[Event] | None:
        """All events of a run, where that is here, or was followed here from its beginning to its end; None: they must
        be read."""
        log, others = self.worker.log_of(run), self.worker.others
        if log is None and others is not None:
            return others.at_hand(run)
        return log.since(0) if log is not None else None

    async def events(
        self, run: str, *, after: int = 0, follow: bool = True, sealed: bool = False
    ) -> AsyncIterator[Event]:
        """The log of a run after event `after`, and on as it grows, to its end.

        A reader that falls behind loses nothing: it is given neighbouring output deltas composed into one event, whose
        `first` tells the seq it begins with.
        """
        reader = self.reader(run, after, sealed=sealed)
        try:
            while not reader.over:
                batch = await reader.read(follow=follow)
                if not batch:
                    return
                for event in batch:
                    yield event
        finally:
            reader.close()

    def reader(self, run: str, after: int = 0, *, sealed: bool = False) -> Reader:
        """As `events`, read piece by piece, and with a time to wait."""
        return Reader(self, run, after, sealed=sealed)

    def next_hint(self, run: str) -> asyncio.Future[None]:
        """Done at the next news of a run, or when it is time to look anyway."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def fire() -> None:
            if not future.done():
                future.set_result(None)

        end = self.bus.subscribe(run, fire)
        timer = loop.call_later(self.settings.sweep_every, fire)  # hints may get lost: look anyway

        def clean(_: object) -> None:
            end()
            timer.cancel()

        future.add_done_callback(clean)
        return future

    async def cancel(
        self, run: str, *, reason: str = "", by: Caller = OWNER, rollback: bool = False, sealed: bool = False
    ) -> None:
        """Ask a run to stop; `rollback` deletes it afterwards. Returns when that is on disk, not when it stopped."""
        if not sealed:
            await self.check_open(run)
        body = values.encode({"by": by.id, "reason": reason, "rollback": rollback})
        _, owner = await self.store.deliver(run, "cancel", body, now())
        if owner is None and self.worker.execution(run) is None:
            await self.worker.claim_and_enter(run)
        else:
            self.worker.told(run, owner=owner)

    async def send(
        self,
        run: str,
        message: Message | str | Part | list[Part],
        *,
        sealed: bool = False,
        kind: MailKind = "message",
    ) -> None:
        """Put a message into a run's mailbox. Returns when it is on disk."""
        if not sealed:
            await self.check_open(run)
        if not isinstance(message, Message):
            message = Message("user", parts_from(message))
        plain = msgspec.to_builtins(message)
        values.check(plain, InvalidRequest, what="message")
        body = values.encode(message)
        if kind != "passed" and len(body) > self.settings.max_input_bytes:  # else it was weighed when it came
            raise TooLarge(f"the message is larger than {self.settings.max_input_bytes} bytes")
        _, owner = await self.store.deliver(run, kind, body, now())
        self.worker.told(run, owner=owner)

    async def delete(self, run: str, *, rollback: bool = False, sealed: bool = False) -> None:
        """Forget a run that has ended, and its children. A tombstone with its last hash remains.

        `rollback`: also what it did to its thread, where nobody has built on that yet.
        """
        if not sealed:
            await self.check_open(run)
        for gone in await self.store.delete_run(run, now(), rollback=rollback):
            self.worker.forget(gone)

    async def erase(self, run: str, seq: int, *, sealed: bool = False) -> None:
        """Forget what one event of a finished run said. Its hash stays, so the chain still verifies."""
        if not (await self.run(run, sealed=sealed)).status.final:
            raise Conflict(f"run {run} has not ended; only then can an event be erased")
        await self.store.erase_event(run, seq)
        self.worker.forget(run)

    async def verify(self, run: str, *, sealed: bool = False) -> int | None:
        """Check the hash chain of a run's log. Returns the seq of the first event that does not fit, or None."""
        if not sealed:
            await self.check_open(run)
        return await checking.verify(self.store, run)

    # -- views --------------------------------------------------------------------------------------------

    def _live_view(self, log: LiveLog, created: RunCreated | None) -> Run:
        row = log.committed_row
        assert row is not None
        log.created = created
        view = self.view(row, created)
        if log.finished is not None:
            view.output, view.error, view.usage = log.finished.output, log.finished.error, log.finished.usage
        return view

    async def full_view(self, row: RunRow) -> Run:
        ends = await self.store.ends(row.id)
        created = ends[0].body if ends and isinstance(ends[0].body, RunCreated) else None
        view = self.view(row, created)
        if row.status.final:
            if ends and isinstance(last := ends[-1].body, RunFinished):
                view.output, view.error, view.usage = last.output, last.error, last.usage
        elif row.status is Status.WAITING:
            view.questions = await self.questions(run=row.id)
            if not view.questions:
                view.status = Status.RUNNING  # the answer is accepted, and on its way into the log
        return view

    @staticmethod
    def view(row: RunRow, created: RunCreated | None) -> Run:
        """A run, as far as its row and its first event tell."""
        return Run(
            row.id, row.agent, row.version, row.status, row.created_at, row.updated_at, row.caller, row.next_seq - 1,
            row.head.hex(), row.thread, row.parent, row.path.split("/")[1] if row.path else row.id,
            values.decode(row.metadata), created.request if created is not None else None,
        )  # fmt: skip


def _digest(request: RunRequest) -> str:
    """What a request with an idempotency key has to have in common with the one before it."""
    same = msgspec.structs.replace(request, caller=OWNER, trace=None, key=None, extra={}, authority=None)
    return values.digest(msgspec.to_builtins(same))


def _kind(value: Any) -> str:
    names = {
        str: "text",
        list: "a list",
        bool: "true or false",
        int: "a number",
        float: "a number",
        type(None): "null",
    }
    return names.get(type(value), type(value).__name__)


IfExists = Literal["raise", "keep"]

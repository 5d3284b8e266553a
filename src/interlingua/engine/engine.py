"""The engine's API: all that doors, the command line and tests may use. Nothing in it names a protocol."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..bus.open import open_bus
from ..bus.port import Bus, BusSettings
from ..model import hash_chain, json_values
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
from ..model.filters import RunFilter
from ..model.run import OWNER, Caller, Instance, Run, RunRequest, check_id
from ..model.run_identity import Origin
from ..model.schemas import Validator
from ..model.status import Status
from ..model.team.oversight import Assignment
from ..runtime.closing import Step, close_all
from ..store import integrity
from ..store.changes import Submission, Submitted
from ..store.open import open_store
from ..store.ports import Store
from ..store.rows import EventRow, MoveTo, RunRow, StoredCard
from .agents import mount_path
from .agents.agent import Agent, Registry
from .cluster.membership import Replicas
from .cluster.remote_agents import AgentElsewhere, Elsewhere
from .cluster.remote_wait import wait_elsewhere
from .handler.workspace import Editor, Offer
from .ids import new_id, now
from .log.log_reader import LogReader
from .log.log_source import next_hint
from .log.run_log import LiveLog, Witness, encode, tell_witness
from .observe import run_logging
from .observe.loop_watchdog import StallWatch
from .runs import retry as retrying
from .runs import store_owner
from .runs.blocked_report import BlockedReport
from .runs.blocked_runs import read_reason
from .runs.worker import Worker
from .services.callbacks import Callbacks
from .services.questions import QuestionService
from .services.reminders import Reminders
from .services.threads import ThreadService
from .settings import Settings
from .teams.conversation import MailKind
from .teams.members import MEMBER_OF, Teams

_BACKLOG = 50_000
_MOMENT = 0.05  # seconds in which most short runs end
_ENVELOPE = 64 * 1024  # of a request around its input
_PLAIN = Assignment()
_LONGEST = 9_999_999_999  # seconds; what comes after is beyond the clock


class Engine(Teams):
    """Runs agents and remembers everything. Use it as `async with Engine(path, agents=[...]) as engine`."""

    def __init__(
        self,
        store: Store | Path | str,
        *,
        agents: Iterable[Agent[..., Any]] = (),
        bus: Bus | BusSettings | str | None = None,
        settings: Settings | None = None,
        project: str = "",
        root: Path | None = None,
    ) -> None:
        """`project`: the id of the project that the agents belong to; the store must belong to it, or to none yet.
        `root`: its folder, for those who ask whose store it is.

        An engine without a project is for stores without one. Without agents, it opens any store.
        """
        Teams.__init__(self)
        self.store: Store = open_store(store) if isinstance(store, str | Path) else store
        self.store.waits_for_server = True
        self.bus: Bus = open_bus(bus) if bus is None or isinstance(bus, str | BusSettings) else bus
        self.settings = settings or Settings()
        self.agents = Registry(project, root)
        for agent in agents:
            self.add(agent)
        self.threads = ThreadService(self.store, self.agents)
        self.questions = QuestionService(self.store, self.settings, self._answered)
        self.callbacks = Callbacks(self, self.store)
        self.reminders = Reminders(self.store, self.callbacks)
        self.editors: dict[str, Editor] = {}  # by thread: what its caller offers to agents while it is there
        self.offer: Offer | None = None  # set by a door that can; for mounts whose wires carry files by address alone
        self.replicas = Replicas(self)
        self.blocked_report = BlockedReport(self)
        self.elsewhere = Elsewhere(self)
        self.server = ""  # the id of its store among servers, once it is open
        self.away: Callable[[str], Unavailable | None] = lambda name: None  # set by whoever keeps mounts
        self._open = False
        self._opened: list[Step] = []  # how what was opened is closed
        self._counted, self._counted_at = 0, -1.0

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
        try:
            await self._start()
        except BaseException:
            with contextlib.suppress(Exception):  # what went wrong first is what counts
                await self._close()
            raise
        self._open = True

    async def _start(self) -> None:
        """Open one thing after the other, and note how each is closed."""
        opened = self._opened
        await self.store.open()
        opened.append(self.store.close)
        self.agents.project = await store_owner.join(self.store, self.agents)
        await self.bus.open()
        opened.append(self.bus.close)
        opened.append(self._close_tool_servers)
        self.server = await mount_path.server_id(self.store)
        self.worker = Worker(self, self.store, self.bus, self.agents, self.settings)
        self.store.on_change = self.worker.store_changed
        self.store.claims.on_lost = self.worker.on_lease_lost
        await self._publish_cards()
        self.agents.listeners.append(self._agents_changed)
        opened.append(lambda: self.agents.listeners.remove(self._agents_changed))
        await self._count_pending()
        opened.append(self.worker.stop)
        await self.worker.start()
        self.callbacks.start()
        opened.append(self.callbacks.stop)
        self.reminders.start()
        opened.append(self.reminders.stop)
        self._stall = StallWatch(self.settings.stall_warning)
        opened.append(self._stall.close)
        opened.append(self.elsewhere.stop)

    async def stop(self) -> None:
        """Finish what can be finished, hand back the rest, and close everything, whatever goes wrong on the way."""
        self._open = False
        await self._close()

    async def _close(self) -> None:
        steps, self._opened = self._opened[::-1], []
        await close_all(steps)

    async def _close_tool_servers(self) -> None:
        if self.tool_servers is not None:
            await self.tool_servers.close()

    async def abandon(self) -> None:
        """Hand all runs back at once, and write nothing more of them: for a process that is about to end."""
        self._open = False
        await self.worker.abandon()

    @property
    def running(self) -> bool:
        """Whether it takes runs; false from the moment that it begins to stop."""
        return self._open

    def _answered(self, run: str, owner: str | None) -> None:
        """Tell the owner of a run that an answer is there, and everybody that the questions changed."""
        self.worker.notify_run(run, owner=owner)
        self.worker.cluster.questions_changed()

    def _agents_changed(self) -> None:
        self.worker.spawn(self._publish_cards())
        self.worker.limits.refresh()
        self.worker.serve_soon()
        self.elsewhere.hint()
        self.worker.claims.blocked.hint()
        self.worker.cluster.agents_changed()

    async def _publish_cards(self) -> None:
        """Let every process of the store know what the agents are that are here."""
        if own := [*self.agents.own(), *self.agents.hidden()]:
            await self.store.cards.put([self._stored(agent) for agent in own])

    # -- agents -------------------------------------------------------------------------------------------

    def way(self, card: AgentCard) -> list[str]:
        """The servers that an agent has come by, this one last: for whoever mounts it from here."""
        return mount_path.path_through(card, self.server)

    async def card(self, name: str, version: str | None = None) -> AgentCard:
        """The card of an agent, here or in any process that ever shared this store."""
        agent = self.agents.find(name, version)
        if agent is not None:
            return agent.card
        return (await self._stored_card(name, version)).card

    async def _stored_card(self, name: str, version: str | None) -> StoredCard:
        """The card of an agent that is not here."""
        stored = await self.store.cards.get(name, version)
        if stored is None or MEMBER_OF in stored.card.metadata:
            known = ", ".join(sorted({agent.card.name for agent in self.agents})) or "none"
            wanted = name if version is None else f"{name} {version}"
            raise self.no_agent(name, f"there is no agent {wanted} (there are: {known})")
        return stored

    def _stored(self, agent: Agent[..., Any]) -> StoredCard:
        if isinstance(agent, AgentElsewhere):
            return agent.stored
        return StoredCard(str(self.agents.origin(agent)), agent.card)

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
        json_values.check(metadata or {}, InvalidRequest, what="metadata")
        config = {} if config is None else config
        Validator(card.config or {"type": "object"}, what="config").check(config, InvalidConfig)
        made = Instance(new_id(), card.name, card.version, config, caller.id, now(), label, metadata or {})
        await self.store.instances.put(made)
        return made

    # -- runs ---------------------------------------------------------------------------------------------

    def submit(
        self, request: RunRequest, *, run: str | None = None, follow: bool = False, witness: Witness | None = None
    ) -> Coroutine[Any, Any, Run]:
        """Accept a run. When this has been awaited, the run is on disk and will end. Where it raises, nothing was
        written and no agent was called.

        `run` is the id of the run, where the caller has chosen one. `follow`: the caller reads the run or waits for it
        next, which costs less where that is known before the run begins. `witness` tells of the run in the transactions
        that write it.
        """
        return self._submit(request, run or new_id(), None, follow=follow, witness=witness)

    async def submit_child(self, request: RunRequest, run: str, parent: RunRow) -> None:
        """As `submit`, under a run. Submitting the same child again changes nothing."""
        known = "run" if self.worker.log_of(run) is not None else await self.store.runs.known(run)
        if known == "run":
            return
        if known == "tombstone":
            gone = ErrorInfo(RunNotFound.code, f"run {run} was deleted")
            raise ChildFailed(f"agent {request.agent}: {gone.message}", error=gone, run=run)
        await self._submit(request, run, parent)

    async def _submit(
        self, request: RunRequest, run: str, parent: RunRow | None, *, follow: bool = False,
        witness: Witness | None = None,
    ) -> Run:  # fmt: skip
        """The one way in which a run begins: check the request, write the row and the first event in one transaction,
        and enter the run when that is committed."""
        agent = self._code(request, parent)
        if agent is not None:
            stored = self._stored(agent)
        else:
            stored = await self._stored_card(request.agent, request.version)
        if parent is None:  # who calls has begun already, and waits for as long as it takes
            self.elsewhere.check(stored.card, agent)
        row, created, body = self._written(request, run, parent, stored, agent)
        if request.thread is not None or not self._may_start(request, agent):
            await self._check_line(row.caller, request.key)
        kind = KINDS[RunCreated]
        first = EventRow(run, 1, kind, row.created_at, row.head, body)
        row.head = first.hash = hash_chain.link(row.head, run, 1, kind, row.created_at, hash_chain.body_hash(body))
        row.wake_at = row.created_at + int(request.delay * 1e6) if request.delay > 0 else 0
        here = agent if self._may_start(request, agent) else None
        remote = self.worker.cluster.follow_new(row, created, first) if follow and here is None else None
        try:
            done = await self._write(row, created, first, here, witness)
        except BaseException:
            if remote is not None:
                remote.release()
            raise
        if remote is not None:
            remote.submitted = done.row, created
        if done.existing:
            if remote is not None:
                remote.release()
            return await self.run(done.row.id, sealed=parent is not None)
        if done.cancel is not None:
            self.worker.notify_run(done.cancel)
            if self.worker.execution(done.cancel) is None:
                await self.worker.claim_and_enter(done.cancel)
        if done.row.worker != self.worker.id:
            self.worker.offer(done.row)
        return self.view(done.row, created)

    async def _write(
        self, row: RunRow, created: RunCreated, first: EventRow, here: Agent[..., Any] | None, witness: Witness | None
    ) -> Submitted:
        """Write a run down, and enter it where it starts `here`. What a witness keeps of its first event is in the same
        transaction."""
        worker = self.worker
        event = Event(row.id, first.seq, first.time, first.hash, created, first.seq, len(first.body or b""))

        def committed(done: Submitted) -> None:
            # In the writer's completion, and not after the await below: a caller that goes away meanwhile must not
            # leave the run half entered.
            if not done.existing:
                run_logging.created(done.row)
            mine = not done.existing and done.row.worker == worker.id
            if here is not None and mine and not worker.is_ending:  # else it is handed back with the others
                worker.enter_submitted(done, event, here, witness)
            elif witness is not None:
                witness.left(None)

        def sealing() -> None:
            nonlocal witness
            if witness is not None and not tell_witness(witness, [event]):
                witness = None

        request, take = created.request, None if here is None else worker.id
        submission = Submission(row, request, _digest(request), [first], take, row.created_at)
        writing = self.store.runs.submit(submission, committed, None if witness is None else sealing)
        writing.add_done_callback(worker.expect(row, reserve=here is not None))
        return await asyncio.shield(writing)

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

    def _may_start(self, request: RunRequest, agent: Agent[..., Any] | None) -> bool:
        """Whether a run may start here as soon as it is written down."""
        return agent is not None and agent.here and not request.delay and self.worker.limits.may_start(agent)

    def _written(
        self, request: RunRequest, run: str, parent: RunRow | None, stored: StoredCard, agent: Agent[..., Any] | None
    ) -> tuple[RunRow, RunCreated, bytes]:
        """A request that is fine, as a run's row and its first event."""
        card = stored.card
        self._check(request, card, agent)
        if self.store.runs.backlog() > _BACKLOG:
            raise Overloaded("the store cannot keep up; try again in a moment")
        time = now()
        request = self.begin_task(request, time)
        path = self.worker.path_of(parent) if parent is not None else ""
        row = RunRow(
            run, card.name, card.version, Status.PENDING, request.caller.id, request.thread,
            parent.id if parent is not None else None, path, json_values.encode(request.metadata), time, time,
            None, 0, 2, hash_chain.GENESIS, 0, 0, 0, None, request.extra.get("mark"),
            int((parent is not None and parent.sealed) or (request.assignment or _PLAIN).sealed),
            origin=stored.origin, queue=stored.queue,
        )  # fmt: skip
        created = RunCreated(
            request, agent.digest if agent is not None else json_values.digest(msgspec.to_builtins(card)),
            row.parent, parent.head.hex() if parent is not None else None, stored.origin,
            agent.code if agent is not None else "",
        )  # fmt: skip
        encoded = encode(created)  # before anything starts: what cannot be written down is refused here
        if len(encoded) > self.settings.max_input_bytes:
            self._check_sizes(request, len(encoded))
        return row, created, encoded

    async def _check_line(self, caller: str, key: str | None) -> None:
        """Refuse what would wait where too many do. A key that was used before makes no run: it gives that one."""
        if await self._pending_runs() < self.settings.max_pending:
            return
        if key is None or not await self.store.runs.is_key_known(caller, key):
            raise Overloaded(f"{self.settings.max_pending} runs are waiting already; try again later")

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
        self._counted = await self.store.runs.count_pending(self.settings.max_pending + 1)

    def _check_sizes(self, request: RunRequest, whole: int) -> None:
        """Each part may have the limit. The input is often the text of the messages, which must not count twice."""
        limit = self.settings.max_input_bytes
        for what, value in (
            ("input", request.input), ("config", request.config), ("metadata", request.metadata),
            ("messages", request.messages),
        ):  # fmt: skip
            weight = len(json_values.encode(value)) if value else 0
            if weight > limit:
                raise TooLarge(f"the {what} is larger than {limit} bytes: as JSON it has {weight}", path=f"/{what}")
            whole -= weight
        if whole > limit + _ENVELOPE:
            raise TooLarge(f"what comes with the input is larger than {limit} bytes: as JSON it has {whole}")

    def _check(self, request: RunRequest, card: AgentCard, agent: Agent[..., Any] | None) -> None:
        for what, id_, path in (
            ("the idempotency key", request.key, "/key"),
            ("the thread id", request.thread, "/thread"),
            ("the id of the caller", request.caller.id, ""),
        ):
            if id_ is not None:
                check_id(id_, what, path)
        if request.callback is not None:
            self.callbacks.check(request.callback.url, "/callback")
        if not isinstance(request.input, dict):
            raise InvalidInput(f"the input of an agent is an object, and this is {_kind(request.input)}")
        if request.metadata:
            json_values.check(request.metadata, InvalidRequest, what="metadata")
        if request.messages:
            json_values.check(msgspec.to_builtins(request.messages), InvalidRequest, what="messages")
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
        return self.worker.log_of(run) is not None or await self.store.runs.get(run) is not None

    async def check_open(self, run: str) -> None:
        """Raise RunNotFound for a run that is sealed: only the owner may read it."""
        await self.worker.sources.check_open(run)

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
        row = await self.store.runs.get(run)
        if row is None or (row.sealed and not sealed):
            raise RunNotFound(f"there is no run {run}")
        return row

    async def runs(self, where: RunFilter) -> list[Run]:
        """Newest first."""
        if where.blocked:
            return await self.blocked_report.runs(where)
        return [self.view(row, None) for row in await self.store.runs.search(where)]

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
                if log is None and (remote := await self.worker.cluster.remote_log(run)) is not None:
                    ended = await wait_elsewhere(self, run, remote, settled=settled, sealed=sealed)
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

    async def wait_a_moment(self, run: Run) -> Run:
        """The run when it has ended, where it is here and that is soon; else as it was. Costs less than a task that
        waits beside others."""
        log, loop = self.worker.log_of(run.id), asyncio.get_running_loop()
        until = loop.time() + _MOMENT
        while log is not None and log.lost is None and log.finished is None:
            left = until - loop.time()
            if left <= 0 or log.status is Status.WAITING:
                return run
            changed = log.changed()
            try:
                await asyncio.wait((changed,), timeout=left)
            finally:
                changed.cancel()
        return await self.run(run.id) if log is not None and log.finished is not None else run

    def at_hand(self, run: str) -> list[Event] | None:
        """All events of a run, where that is here, or was followed here from its beginning to its end; None: they must
        be read."""
        log = self.worker.log_of(run) or self.worker.cluster.followed(run)
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

    def reader(self, run: str, after: int = 0, *, sealed: bool = False) -> LogReader:
        """As `events`, read piece by piece, and with a time to wait."""
        return LogReader(self.worker.sources, run, after, sealed=sealed)

    def next_hint(self, run: str) -> asyncio.Future[None]:
        """Done at the next news of a run, or when it is time to look anyway."""
        return next_hint(self.bus, self.store.clock, run, self.settings.sweep_every)

    async def cancel(
        self, run: str, *, reason: str = "", by: Caller = OWNER, rollback: bool = False, sealed: bool = False
    ) -> None:
        """Ask a run to stop; `rollback` deletes it afterwards. Returns when that is on disk, not when it stopped."""
        if not sealed:
            await self.check_open(run)
        body = json_values.encode({"by": by.id, "reason": reason, "rollback": rollback})
        _, owner = await self.store.runs.deliver(run, "cancel", body, now())
        if owner is None and self.worker.execution(run) is None:
            await self.worker.claim_and_enter(run)
        else:
            self.worker.notify_run(run, owner=owner)

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
        json_values.check(plain, InvalidRequest, what="message")
        body = json_values.encode(message)
        if kind != "passed" and len(body) > self.settings.max_input_bytes:  # else it was weighed when it came
            most = self.settings.max_input_bytes
            raise TooLarge(f"the message is larger than {most} bytes: as JSON it has {len(body)}")
        _, owner = await self.store.runs.deliver(run, kind, body, now())
        self.worker.notify_run(run, owner=owner)

    async def move(self, run: str, origin: Origin | str, *, version: str | None = None, by: Caller = OWNER) -> None:
        """Give an unfinished run to the code of another origin, on purpose. `version`: of the agent there, where it is
        another. Refused while a worker has the run."""
        row = await self.row(run, sealed=True)
        to = MoveTo(str(origin), row.version if version is None else version, by.id, now())
        self.worker.announce(await self.store.claims.move(run, to))

    async def retry(self, run: str, *, by: Caller = OWNER) -> Run:
        """Let a blocked run go on at once, or continue a failed one from its last good record, as a new run."""
        return await retrying.retry(self, run, by)

    async def delete(self, run: str, *, rollback: bool = False, sealed: bool = False) -> None:
        """Forget a run that has ended, and its children. A tombstone with its last hash remains.

        `rollback`: also what it did to its thread, where nobody has built on that yet.
        """
        if not sealed:
            await self.check_open(run)
        for gone in await self.store.runs.delete(run, now(), rollback=rollback):
            self.worker.forget(gone)

    async def erase(self, run: str, seq: int, *, sealed: bool = False) -> None:
        """Forget what one event of a finished run said. Its hash stays, so the chain still verifies."""
        if not (await self.run(run, sealed=sealed)).status.final:
            raise Conflict(f"run {run} has not ended; only then can an event be erased")
        await self.store.runs.erase(run, seq)
        self.worker.forget(run)

    async def verify(self, run: str, *, sealed: bool = False) -> int | None:
        """Check the hash chain of a run's log. Returns the seq of the first event that does not fit, or None."""
        if not sealed:
            await self.check_open(run)
        return await integrity.verify(self.store.runs, run)

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
        ends = await self.store.runs.ends(row.id)
        created = ends[0].body if ends and isinstance(ends[0].body, RunCreated) else None
        view = self.view(row, created)
        view.blocked = await self.blocked_report.reason(row)
        if row.status.final:
            if ends and isinstance(last := ends[-1].body, RunFinished):
                view.output, view.error, view.usage = last.output, last.error, last.usage
        elif row.status is Status.WAITING:
            view.questions = await self.questions.open(run=row.id)
            if not view.questions:
                view.status = Status.RUNNING  # the answer is accepted, and on its way into the log
        return view

    @staticmethod
    def view(row: RunRow, created: RunCreated | None) -> Run:
        """A run, as far as its row and its first event tell."""
        return Run(
            row.id, row.agent, row.version, row.status, row.created_at, row.updated_at, row.caller, row.next_seq - 1,
            row.head.hex(), row.thread, row.parent, row.path.split("/")[1] if row.path else row.id,
            json_values.decode(row.metadata), created.request if created is not None else None,
            origin=row.origin, blocked=read_reason(row.blocked_reason) if row.blocked_reason is not None else None,
        )  # fmt: skip


def _digest(request: RunRequest) -> str:
    """What a request with an idempotency key has to have in common with the one before it."""
    same = msgspec.structs.replace(request, caller=OWNER, trace=None, key=None, extra={}, authority=None)
    return json_values.digest(msgspec.to_builtins(same))


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

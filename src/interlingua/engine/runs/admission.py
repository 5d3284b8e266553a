"""Admission: checks a request and makes the row and the first event of its run. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from ...model import hash_chain, json_values
from ...model.card import AgentCard
from ...model.errors import Denied, InvalidConfig, InvalidInput, InvalidRequest, Overloaded, TooLarge, Unavailable
from ...model.events import KINDS, Event, RunCreated
from ...model.run import OWNER, RunRequest, check_id
from ...model.schemas import Validator
from ...model.status import Status
from ...model.team.oversight import Assignment
from ...store.changes import Submission
from ...store.ports import Store
from ...store.rows import EventRow, RunRow
from ..agents.agent import Agent
from ..agents.catalog import AgentCatalog
from ..log.run_log import encode
from ..settings import Settings
from .concurrency_limits import ConcurrencyLimits
from .retry import continuation

_BACKLOG = 50_000
_ENVELOPE = 64 * 1024  # of a request around its input
_PLAIN = Assignment()
_LONGEST = 9_999_999_999  # seconds; what comes after is beyond the clock


class Slots(Protocol):
    """The slots of this process."""

    id: str

    @property
    def limits(self) -> ConcurrencyLimits: ...

    def spawn(self, work: Coroutine[Any, Any, None], /) -> object: ...


class NewRun(msgspec.Struct):
    """A run that was admitted, and is not written yet."""

    submission: Submission
    created: RunCreated
    agent: Agent[..., Any] | None  # the code that the run starts with here, as soon as it is written

    @property
    def row(self) -> RunRow:
        return self.submission.row

    @property
    def first(self) -> EventRow:
        return self.submission.events[0]


class Admission:
    """Checks requests: the agent, its availability, schemas, sizes, the line of waiting runs, a team's authority."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        agents: AgentCatalog,
        *,
        begin_task: Callable[[RunRequest, int], RunRequest],
        check_callback: Callable[[str, str], None],
        check_available: Callable[[AgentCard, Agent[..., Any] | None], None],
    ) -> None:
        self.is_open = False
        self.slots: Slots | None = None  # from the start of the engine on
        self._store = store
        self._settings = settings
        self._agents = agents
        self._begin_task = begin_task
        self._check_callback = check_callback
        self._check_available = check_available
        self._waiting, self._counted_at = 0, -1.0  # runs that wait for a slot, at the last count, and when that was

    async def admit(self, request: RunRequest, *, parent: RunRow | None, run: str) -> NewRun:
        """Returns the row and the first event of a run. Raises where the request is refused."""
        agent = self._code(request, parent)
        if agent is not None:
            stored = self._agents.stored(agent)
        else:
            stored = await self._agents.find_stored(request.agent, request.version)
        if parent is None:  # the caller of a child has begun already, and waits for as long as it takes
            self._check_available(stored.card, agent)
        self._check(request, stored.card, agent)
        self._check_backlog()
        time = self._store.clock.now()
        request = self._begin_task(request, time)
        created = RunCreated(
            request, agent.digest if agent is not None else json_values.digest(msgspec.to_builtins(stored.card)),
            parent.id if parent is not None else None, parent.head.hex() if parent is not None else None,
            stored.origin, agent.code if agent is not None else "",
        )  # fmt: skip
        body = encode(created)  # before anything starts: what cannot be written down is refused here
        if len(body) > self._settings.max_input_bytes:
            self._check_sizes(request, len(body))
        if request.thread is not None or not self._may_start(request, agent):
            await self._check_line(request.caller.id, request.key)
        row = RunRow(
            run, stored.card.name, stored.card.version, Status.PENDING, request.caller.id, request.thread,
            created.parent, parent.path_below if parent is not None else "",
            json_values.encode(request.metadata), time, time, None, 0, 2, hash_chain.GENESIS, 0, 0, 0, None,
            request.extra.get("mark"),
            int((parent is not None and parent.sealed) or (request.assignment or _PLAIN).sealed),
            origin=stored.origin, queue=stored.queue,
        )  # fmt: skip
        kind = KINDS[RunCreated]
        first = EventRow(run, 1, kind, time, row.head, body)
        row.head = first.hash = hash_chain.link(row.head, run, 1, kind, time, hash_chain.body_hash(body))
        row.wake_at = time + int(request.delay * 1e6) if request.delay > 0 else 0
        here = agent if self._may_start(request, agent) else None
        take = None if here is None else self._slots.id
        return NewRun(Submission(row, request, _digest(request), [first], take, time), created, here)

    async def admit_continuation(self, failed: RunRow, events: list[Event]) -> NewRun:
        """Returns the run that continues a failed one, with the records that it keeps. It stands in line."""
        self._check_open()
        self._check_backlog()
        await self._check_line(failed.caller, None)
        submission, created = continuation(failed, events, self._store.clock.now())
        return NewRun(submission, created, None)

    def _check_open(self) -> None:
        if not self.is_open:
            raise Unavailable("the engine is not running")

    def _check_backlog(self) -> None:
        if self._store.runs.backlog() > _BACKLOG:
            raise Overloaded("the store cannot keep up; try again in a moment")

    @property
    def _slots(self) -> Slots:
        assert self.slots is not None
        return self.slots

    def _code(self, request: RunRequest, parent: RunRow | None) -> Agent[..., Any] | None:
        """Returns the agent that the run is entered with, where its code or a stand-in for it is here."""
        self._check_open()
        if parent is None and (request.authority is not None or request.assignment is not None):
            raise Denied("authority and assignment of a run are given by the engine; leave them out")
        if parent is not None and parent.sealed and request.thread is not None:
            raise Denied("an overseen agent calls nobody on a thread: what is left there could be read before approval")
        if request.authority is None:
            return self._agents.find(request.agent, request.version)
        return self._agents.code(request.agent, request.version or "")

    def _may_start(self, request: RunRequest, agent: Agent[..., Any] | None) -> bool:
        """Returns True if a run may start here as soon as it is written."""
        return agent is not None and agent.here and not request.delay and self._slots.limits.may_start(agent)

    # -- the line of runs that wait for a slot ------------------------------------------------------------

    async def _check_line(self, caller: str, key: str | None) -> None:
        """Refuses a run that would wait where too many wait. A key that was used before makes no run: it gives that
        one."""
        if await self._waiting_runs() < self._settings.max_pending:
            return
        if key is None or not await self._store.runs.is_key_known(caller, key):
            raise Overloaded(f"{self._settings.max_pending} runs are waiting already; try again later")

    async def _waiting_runs(self) -> int:
        """Returns how many runs wait for a slot. They are counted a few times per second, in the background; only near
        the limit is a count awaited: submissions that wait here overtake each other."""
        time = self._store.clock.monotonic()
        self._waiting += 1
        if self._waiting * 2 > self._settings.max_pending:
            await self.count_waiting()
        elif time - self._counted_at > 0.2:
            self._counted_at = time
            self._slots.spawn(self.count_waiting())
        return self._waiting

    async def count_waiting(self) -> None:
        self._waiting = await self._store.runs.count_pending(self._settings.max_pending + 1)

    # -- the request --------------------------------------------------------------------------------------

    def _check_sizes(self, request: RunRequest, whole: int) -> None:
        """Each part may have the limit. The input is often the text of the messages, which must not count twice."""
        limit = self._settings.max_input_bytes
        for name, value in (
            ("input", request.input), ("config", request.config), ("metadata", request.metadata),
            ("messages", request.messages),
        ):  # fmt: skip
            size = len(json_values.encode(value)) if value else 0
            if size > limit:
                raise TooLarge(f"the {name} is larger than {limit} bytes: as JSON it has {size}", path=f"/{name}")
            whole -= size
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
            self._check_callback(request.callback.url, "/callback")
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
        _check_config(request, card, agent)
        for name, value in (("delay", request.delay), ("timeout", request.timeout)):
            if value is not None and not 0 <= value <= _LONGEST:
                raise InvalidRequest(
                    f"{name} is {value}; it is a number of seconds, from 0 to {_LONGEST:,}", path=f"/{name}"
                )


def _check_config(request: RunRequest, card: AgentCard, agent: Agent[..., Any] | None) -> None:
    if request.config is not None:
        if card.config is None:
            if request.config != {}:
                raise InvalidConfig(f"agent {card.name} takes no config")
        else:
            check = agent.check_config if agent is not None else None
            (check or Validator(card.config, what="config")).check(request.config, InvalidConfig)
    elif card.config is not None and card.config.get("required"):
        raise InvalidConfig(f"agent {card.name} needs a config with {', '.join(card.config['required'])}")


def _digest(request: RunRequest) -> str:
    """Returns the digest of all that a request shares with an earlier one of the same idempotency key."""
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

"""Keeps mounts connected: a mount that is down is shown as down and tried again, and its agents answer that it is down.

An agent of a mount is registered once and stays, whatever happens to the connection behind it: each run asks here for
the current agent. The store keeps the cards of a mount, so that its agents are there after a restart while it is down.
The protocol of a mount decides what it is made of.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import math
import random
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from ...engine.agents.agent import Agent
from ...engine.engine import Engine
from ...engine.handler.mounted_run import LeftRun, MountedRun
from ...engine.ids import now
from ...model import json_values
from ...model.card import ANY_OBJECT, AgentCard
from ...model.documents import Put
from ...model.errors import AgentNotFound, DefinitionError, InterlinguaError, InvalidInput, StoreError, Unavailable
from ...model.schemas import Validator
from ...protocols.targets import Target, source_of_mount
from ...security.redaction import redact_text
from ..config.settings import Mounting
from ..loading.target import resolve
from .entry import MountEntry, MountView, State, left_out, let_go, load
from .line_watch import Line

log = logging.getLogger("interlingua.mounts")

_REST = 30.0  # seconds, where it is not looked at by the clock
_SPACE = "mounts"  # the space of documents in the store that has the cards of each mount


class Supervised:
    """Keeps one mount: connects it, and registers its agents."""

    def __init__(self, engine: Engine, entry: MountEntry, settings: Mounting) -> None:
        self.entry = entry
        self.state: State = "starting"
        self.reason = ""
        self.tries = 0  # failed tries since it was up
        self.since = now()
        self.tried = asyncio.Event()  # the first time
        self.left_out: list[str] = []
        self._engine = engine
        self._settings = settings
        self._target: Target | None = None  # once it is known what is spoken there
        self._found: dict[str, Agent[..., Any]] = {}  # the real agents, by the key that they have at the mount
        self._offered: dict[str, Agent[..., Any]] = {}  # the registered agents, by the same key
        self._remembered: set[str] = set()  # keys of those made from a card of the store
        self._unseen: set[str] = set()  # keys of those made from a name alone
        self._away: dict[str, str] = {}  # agents that it has and that are not mounted: why, by their names here
        self._away_told: set[str] = set()
        self._names_told: set[str] = set()  # agents with the name of an agent outside this mount, already warned of
        self._changed = asyncio.Event()  # its state, or what is behind it
        self._look_again = asyncio.Event()
        self._suspect = False  # something ended that was open to it: whether it is there has to be seen, no more
        self._line = Line(self._lost, settings.refresh or _REST)
        self._looked_at = 0.0
        self._next_try: float | None = None
        self._running = 0  # runs that are at it
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def agents(self) -> list[Agent[..., Any]]:
        return list(self._offered.values())

    def view(self) -> MountView:
        return MountView(
            self.entry.name, self.state, self.since, [agent.card.key for agent in self.agents],
            self.reason if self.state == "down" else "", self.tries, self._next_in(),
            [*self.left_out, *_left_out(self._away)],
        )  # fmt: skip

    def _next_in(self) -> float | None:
        if self.state != "down" or self._next_try is None:
            return None
        return round(max(0.0, self._next_try - time.monotonic()), 1)

    # -- life ---------------------------------------------------------------------------------------------

    async def remember(self, before: Supervised | None = None) -> None:
        """Offers the agents that the mount had when it was seen last. `before`: another entry for the same mount, whose
        agents these replace."""
        found = await self._engine.documents.get(_SPACE, self.entry.remembered_as)
        try:
            cards = msgspec.json.decode(found.body, type=list[AgentCard]) if found is not None else []
        except msgspec.DecodeError:
            cards = []  # an older version wrote it down in another way
        if before is not None:
            self._offered, before._offered = before._offered, {}
        cards = [card for card in cards if not self.entry.only or card.name in self.entry.only]
        unseen = self.entry.unseen(cards)
        self._unseen = {card.key for card in unseen}
        offered = {card.key: self._stand_in(card) for card in [*cards, *unseen]}
        self._remembered = set(offered)
        self._offer(offered)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def close(self, *, remove: bool = False) -> None:
        """Ends the looks at the mount. `remove`: its agents are unregistered here; runs that use it go on."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._line.drop()
        if remove:
            self._offer({})
            self._changed.set()
            await self._let_go(self._found)

    def look(self) -> None:
        """Looks at the mount now, without waiting for the next planned try."""
        self._suspect = False
        self._look_again.set()

    def _lost(self) -> None:
        """A connection to it, or its process, has ended by itself."""
        if not self._closed and not self._look_again.is_set():
            self._suspect = True
            self._look_again.set()

    async def _keep(self) -> None:
        forced = True
        while True:
            await self._look(forced)
            if self.state == "up" and self._target is not None:
                self._line.hold(self._target)
            self.tried.set()
            wait = self._wait()
            self._next_try = None if wait is None else time.monotonic() + wait
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._look_again.wait()
            forced = self._look_again.is_set() and not self._suspect
            self._look_again.clear()
            self._suspect = False
            self._next_try = None
            # Many runs that fail at once are one reason to look.
            await asyncio.sleep(max(0.0, self._looked_at + self._settings.retry_first - time.monotonic()))

    def _wait(self) -> float | None:
        """Seconds until the next look; None: until there is a reason."""
        s = self._settings
        if self.state == "down":
            longest = min(s.retry_last, s.retry_first * 2.0 ** min(self.tries - 1, 30))
            return longest * random.uniform(0.5, 1.0)  # so that waiting servers do not all come at once
        if not s.refresh or not self.entry.target.is_address:
            return None
        return s.refresh * random.uniform(0.8, 1.2)

    async def _look(self, forced: bool) -> None:
        self._looked_at = time.monotonic()
        try:
            target = self._target = self._target or await resolve(self.entry.target)
            reach = next((agent.reach for agent in self._found.values() if agent.reach is not None), None)
            if self.state == "up" and reach is not None:
                await reach()
                if not forced:
                    return
            away: dict[str, str] = {}
            relist = None
            if self.state == "up" and not forced:
                relist = next((agent.relist for agent in self._found.values() if agent.relist is not None), None)
            agents = await load(self.entry, target, partial(self._may_come, away), relist)
            self._away = away
            await self._is_up(agents, same_connection=relist is not None)
        except (InterlinguaError, OSError) as error:
            self._is_down(error)
        except Exception as error:
            log.exception("mount %s: something unexpected happened", self.entry.name)
            self._is_down(error)

    # -- up and down --------------------------------------------------------------------------------------

    async def _is_up(self, agents: list[Agent[..., Any]], *, same_connection: bool) -> None:
        found = {agent.card.key: agent for agent in agents}
        before, was_up = self._found, self.state == "up"
        same = before.keys() == found.keys() and all(before[key].card == found[key].card for key in found)
        self.state, self.reason, self.tries = "up", "", 0
        if not same:
            await self._replace(found)
        if not same_connection:
            await (let_go(found) if same else self._let_go(before))
        if not was_up:
            self.since = now()
        self._log_agents(was_up=was_up, same=same)
        self._tell_same_names()
        for said in _left_out({name: why for name, why in self._away.items() if name not in self._away_told}):
            log.info("mount %s: %s", self.entry.name, said)
        self._away_told = set(self._away)
        self._tell()

    def _log_agents(self, *, was_up: bool, same: bool) -> None:
        names = ", ".join(agent.card.key for agent in self.agents) or "none"
        if not was_up:
            log.info("mount %s is up; agents: %s", self.entry.name, names)
        elif not same:
            log.info("mount %s has other agents than before: %s", self.entry.name, names)
        for problem in self.left_out if not same else ():
            log.warning("mount %s: %s", self.entry.name, problem)

    async def _replace(self, found: dict[str, Agent[..., Any]]) -> None:
        """Puts these agents in the place of the earlier ones, and keeps their cards in the store."""
        self._found = found
        for agent in found.values():
            if agent.watch is not None:
                agent.watch(self._lost)
        self._offer({key: self._kept(key) or self._dressed(agent) for key, agent in found.items()})
        cards = msgspec.json.encode([agent.card for agent in found.values()])
        with contextlib.suppress(StoreError):  # they are wanted only after a restart
            await self._engine.documents.write([Put(_SPACE, self.entry.remembered_as, cards)])

    def _tell_same_names(self) -> None:
        """Warns about agents of the mount that share a name with another agent here: a caller that names no version
        gets the newest of them, which may be another agent than before."""
        own = {id(agent) for agent in self.agents}
        others = {agent.card.name: agent.card.key for agent in self._engine.agents.own() if id(agent) not in own}
        same = {agent.card.key: others[name] for agent in self.agents if (name := agent.card.name) in others}
        for key, other in same.items():
            newest = self._engine.agents.find(name := key.partition("@")[0])
            if key not in self._names_told and newest is not None:
                log.warning(
                    "mount %s: %s has the name of %s, which is here; whoever asks for %s gets %s: give the mount a "
                    "`prefix`, or `as` where it has one agent", self.entry.name, key, other, name, newest.card.key,
                )  # fmt: skip
        self._names_told = set(same)

    def _may_come(self, away: dict[str, str], card: AgentCard) -> bool:
        """Returns whether an agent of the mount may be registered, and notes in `away` why not. An agent that came from
        here would come again and again."""
        why = self._engine.agents.turned_away(card, self._engine.settings.max_hops)
        if why is not None:
            away[f"{self.entry.prefix}{card.name}"] = why
        return why is None

    def _is_down(self, error: Exception) -> None:
        reason = redact_text(getattr(error, "message", "") or str(error) or type(error).__name__)
        news = self.state != "down" or reason != self.reason
        if self.state != "down":
            self.since = now()
        self.state, self.reason, self.tries = "down", reason, self.tries + 1
        self._target = None  # something else may be spoken there when it is back
        log.log(
            logging.WARNING if news else logging.DEBUG, "mount %s is down: %s; it is tried again", self.entry.name,
            reason, extra={"fields": {"mount": self.entry.name, "tries": self.tries}},
        )  # fmt: skip
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # -- agents -------------------------------------------------------------------------------------------

    def _offer(self, agents: dict[str, Agent[..., Any]]) -> None:
        """Registers these agents instead of the earlier ones. An agent that cannot be registered is left out, and the
        others are not."""
        before, self.left_out = self._offered, []
        gone = [agent for agent in before.values() if not any(agent is one for one in agents.values())]
        come = {key: agent for key, agent in agents.items() if before.get(key) is not agent}
        stay = {key: agent for key, agent in agents.items() if key not in come}
        try:
            self._engine.teams.exchange(gone, come.values())
        except DefinitionError:
            self._engine.teams.exchange(gone, [])
            for key, agent in list(come.items()):
                try:
                    self._engine.teams.exchange([], [agent])
                except DefinitionError as error:
                    self.left_out.append(left_out(agent, error))
                    del come[key]
        self._remembered -= come.keys() | (before.keys() - agents.keys())
        self._offered = {key: agent for key, agent in agents.items() if key in stay or key in come}

    def _kept(self, key: str) -> Agent[..., Any] | None:
        """Returns the agent that is registered under a key already, if nothing about it would change."""
        offered = self._offered.get(key)
        if offered is None or key in self._remembered or offered.card != self.entry.renamed(self._found[key].card):
            return None
        return offered

    def _dressed(self, real: Agent[..., Any]) -> Agent[..., Any]:
        """Returns an agent in the form that is registered here: under its local name, with a handler that calls
        whatever is behind it at the time."""
        made = copy.copy(real)
        made.card = self.entry.renamed(real.card)
        made.digest = json_values.digest(msgspec.to_builtins(made.card))
        made.source = source_of_mount(self.entry.target, real.card.name)
        made.fn = self._handler(real.card.key)
        made.on_cancel = self._teller(real.card.key)
        made.let_go = made.watch = made.try_out = made.reach = None
        made.reads_history = False  # the history is at the other end
        return made

    def _stand_in(self, card: AgentCard) -> Agent[..., Any]:
        """An agent of which only the card is known."""
        handler, teller = self._handler(card.key), self._teller(card.key)
        made: Agent[..., Any] = Agent(
            self.entry.renamed(card),
            handler,
            shape="async",
            ctx_param="ctx",
            retries=3,
            on_cancel=teller,
            source=source_of_mount(self.entry.target, card.name),
        )
        made.check_output = Validator(ANY_OBJECT, what="output")
        made.check_state = None
        made.reads_history = False
        return made

    def _handler(self, key: str) -> Callable[..., Any]:
        async def handler(ctx: Any, input: dict[str, Any]) -> Any:  # noqa: A002 - bound by this name
            real = await self._behind(key, MountedRun(ctx).begun)
            if key in self._unseen:
                real.check_input.check(input, InvalidInput)  # it could not be when the run came
            self._running += 1
            try:
                return await real.fn(ctx=ctx, input=input)
            except InterlinguaError as error:
                if isinstance(error, Unavailable):
                    error.transient = True  # also a command that is not there: it is looked for until it is
                if error.transient and self.state == "up":
                    self.look()
                raise
            finally:
                self._running -= 1

        return handler

    def _teller(self, key: str) -> Callable[[LeftRun], Any]:
        async def on_cancel(left: LeftRun) -> None:
            real = await self._behind(key, True)
            if real.on_cancel is not None:
                await real.on_cancel(left)

        return on_cancel

    def _real(self, key: str) -> Agent[..., Any] | None:
        """Returns the agent that is behind a key now. If only a name was known, it is the agent of that name; for a
        mount with `as`, the only agent."""
        if key in self._unseen and key not in self._found:
            name = key.partition("@")[0]
            named = [one for one in self._found.values() if self.entry.as_ is not None or one.card.name == name]
            return named[0] if len(named) == 1 else None
        return self._found.get(key)

    async def _behind(self, key: str, begun: bool) -> Agent[..., Any]:
        """Returns the agent behind a mounted one. A run that had begun waits for it; other runs are refused as
        unavailable for now."""
        real = self._real(key)
        if (self._closed or self.state == "up") and real is not None:
            return real  # closed: it is mounted no more, and a run that had begun can still be ended well
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.patience):
                while not self._closed and (self.state == "starting" or (begun and self.state == "down")):
                    await self._changed.wait()
        real = self._real(key)
        if self.state == "up" and not self._closed:
            if real is None:
                raise AgentNotFound(f"the mount {self.entry.name} no longer has an agent {key}")
            return real
        raise self._unavailable()

    def _unavailable(self) -> Unavailable:
        if self._closed:
            return Unavailable(f"{self.entry.name} is no longer mounted", details={"mount": self.entry.name})
        wait, when = self._next_try_words()
        return Unavailable(
            f"the mount {self.entry.name} is down: {self.reason or 'it has not answered yet'}; it {when}",
            details={"mount": self.entry.name, "next_try_in": wait},
        )

    def may_have(self, name: str) -> Unavailable | None:
        """Returns an error if an unknown agent may belong to this mount, because the mount is down and its agents were
        never seen. The caller may not be allowed to see the mount, so the error says no more than the caller asked
        for."""
        prefix = self.entry.prefix
        if not prefix or not name.startswith(prefix) or self.state == "up" or self._offered:
            return None
        wait, when = self._next_try_words()
        return Unavailable(f"the mount of {prefix}* is down; it {when}", details={"next_try_in": wait})

    def _next_try_words(self) -> tuple[float, str]:
        wait = self._next_in()
        return wait or 0, "is being tried now" if wait is None else f"is tried again in {math.ceil(wait) or 1} s"

    async def _let_go(self, agents: dict[str, Agent[..., Any]]) -> None:
        """Ends the connections behind agents, unless a run may still need them: then they end when they were idle for
        long."""
        if not self._running:
            await let_go(agents)


def _left_out(away: dict[str, str]) -> list[str]:
    """Agents that are not mounted: one line for each reason."""
    reasons = dict.fromkeys(away.values())
    return [f"left out, {why}: {', '.join(name for name in away if away[name] == why)}" for why in reasons]


class Mounts:
    """Holds all mounts of a server."""

    def __init__(self, engine: Engine, settings: Mounting | None = None) -> None:
        self._engine = engine
        self._settings = settings or Mounting()
        self._mounts: dict[str, Supervised] = {}
        engine.agents.add_unavailable_hint(self._away)

    def _away(self, name: str) -> Unavailable | None:
        return next((why for mount in self if (why := mount.may_have(name)) is not None), None)

    def __iter__(self) -> Any:
        return iter(list(self._mounts.values()))

    def __len__(self) -> int:
        return len(self._mounts)

    def views(self) -> list[MountView]:
        return [mount.view() for mount in self]

    async def change(self, entries: Iterable[MountEntry], *, wait: float | None = None) -> tuple[list[str], list[str]]:
        """Keeps these mounts, and no others. Returns the new and the removed ones, and waits (at most) until each new
        one was tried once."""
        wanted = {entry.identity: entry for entry in entries}
        gone = [identity for identity in self._mounts if identity not in wanted]
        removed = [self._mounts.pop(identity) for identity in gone]
        new = {
            identity: Supervised(self._engine, entry, self._settings)
            for identity, entry in wanted.items()
            if identity not in self._mounts
        }
        for identity, mount in new.items():
            self._mounts[identity] = mount
            await mount.remember(
                next((old for old in removed if old.entry.remembered_as == mount.entry.remembered_as), None)
            )
        for mount in removed:
            await mount.close(remove=True)
        for mount in new.values():
            mount.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.wait if wait is None else wait):
                await asyncio.gather(*(mount.tried.wait() for mount in new.values()))
        return [mount.entry.name for mount in new.values()], [mount.entry.name for mount in removed]

    def look(self) -> None:
        """Looks at all mounts now."""
        for mount in self:
            mount.look()

    async def close(self) -> None:
        for mount in self:
            await mount.close()

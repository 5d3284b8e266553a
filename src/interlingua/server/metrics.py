"""Renders the state of the engine as Prometheus text."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

from ..engine.engine import Engine
from ..engine.ids import now
from ..engine.ports import BOUNDS, OTHER, Busiest, Histogram, Numbers, label
from ..model.errors import InterlinguaError
from ..model.run import OWNER, Caller
from ..security import scopes
from .mounts.entry import MountView

log = logging.getLogger("interlingua.http")

PATIENCE = 2.0  # seconds in which the store must answer; collectors of metrics mostly wait for ten


async def render(engine: Engine, mounts: Iterable[MountView] = (), caller: Caller | None = OWNER) -> str:
    """Returns the metrics that a caller may see: names that it may not see are among `other`. None: an unknown caller,
    who gets totals."""
    page = _Page(engine, caller)
    _runs(page)
    _process(page)
    _bus(page)
    _mounts(page, mounts)
    await _store(page)
    return "\n".join(page.lines) + "\n"


class _Page:
    """The lines of the metrics, and the numbers by agent and by caller, with the names that the reader may see."""

    def __init__(self, engine: Engine, caller: Caller | None) -> None:
        self.engine = engine
        self.caller = caller
        self.lines: list[str] = []
        runs = engine.metrics.runs
        self.agents, self.callers = (
            [(f'{kind}="{_escape(name)}"', numbers) for name, numbers in _shown(busiest, may)]
            for kind, busiest, may in (
                ("agent", runs.agents, lambda name: _may_see_agent(caller, name)),
                ("caller", runs.callers, lambda name: _may_see_caller(caller, name)),
            )
        )

    def metric(self, name: str, kind: str, help_: str, *samples: tuple[str, float]) -> None:
        self.lines.append(f"# HELP interlingua_{name} {help_}")
        self.lines.append(f"# TYPE interlingua_{name} {kind}")
        self.lines.extend(f"interlingua_{name}{labels} {value:g}" for labels, value in samples)

    def seconds(self, name: str, help_: str, histogram: Callable[[Numbers], Histogram], *, first: str = "") -> None:
        """Adds two histograms: by agent, under `first` or the name, and by caller."""
        for title, by in ((first or name, self.agents), (f"caller_{name}", self.callers)):
            self.lines.append(f"# HELP interlingua_{title} {help_}")
            self.lines.append(f"# TYPE interlingua_{title} histogram")
            for labels, numbers in by:
                found = histogram(numbers)
                if found.count:
                    self.lines.extend(_histogram(f"interlingua_{title}", labels, found))


def _runs(page: _Page) -> None:
    numbers = page.engine.metrics
    finished = "Runs that ended in this process."
    page.metric("runs_finished_total", "counter", finished, *_finished(page.agents))
    page.metric("caller_runs_finished_total", "counter", f"{finished[:-1]}, by who asked.", *_finished(page.callers))
    page.seconds(
        "queue_seconds",
        "From when a run could start to its start.",
        lambda numbers: numbers.queued,
        first="run_queue_seconds",
    )
    page.seconds("run_seconds", "How long runs ran that ended here, waiting left out.", lambda numbers: numbers.ran)
    page.metric("runs_running", "gauge", "Agents that run in this process now.", ("", numbers.running))
    taken_over = numbers.runs.taken_over
    page.metric("runs_taken_over_total", "counter", "Runs of dead processes that were taken up.", ("", taken_over))
    page.seconds(
        "takeover_seconds", "Of runs whose process died: from their last event until they were entered here.",
        lambda numbers: numbers.stood_still,
    )  # fmt: skip


def _process(page: _Page) -> None:
    numbers, callbacks, others = page.engine.metrics, page.engine.callbacks, page.engine.cluster.membership
    for name, kind, help_, value in (
        ("replicas", "gauge", "Other replicas on this store.", len(others.others())),
        ("passed_on_total", "counter", "Requests that were passed on to other replicas.", others.passed_on),
        ("takeovers_total", "counter", "What dead replicas had and was taken over.", others.taken_over),
        ("agents_abandoned_total", "counter", "Agents that would not stop.", numbers.abandoned),
        ("threads_running", "gauge", "Agents and steps that are plain functions.", numbers.threads),
        ("store_backlog", "gauge", "Writes that wait for the disk.", numbers.backlog),
        ("callbacks_sent_total", "counter", "Callbacks that were taken.", callbacks.sent),
        ("callbacks_retried_total", "counter", "Callbacks that will be tried again.", callbacks.retried),
        ("callbacks_failed_total", "counter", "Callbacks that were given up.", callbacks.failed),
    ):
        page.metric(name, kind, help_, ("", value))


def _bus(page: _Page) -> None:
    bus = page.engine.metrics.bus
    if bus is not None:
        page.metric("bus_connected", "gauge", "Whether the bus can be reached.", ("", bus.connected))
        page.metric("bus_connects_total", "counter", "Connections to the bus that were made.", ("", bus.connects))
        page.metric("bus_sent_total", "counter", "Messages that this process sent.", ("", bus.sent))
        page.metric("bus_received_total", "counter", "Messages with events of runs elsewhere.", ("", bus.received))
        page.metric(
            "bus_dropped_total", "counter", "Messages that were given up, on the way out or in; the store has all.",
            ('{way="out"}', bus.dropped), ('{way="in"}', bus.overflowed),
        )  # fmt: skip
        page.seconds(
            "bus_event_seconds", "Events of runs elsewhere: from commit to arrival.", lambda numbers: numbers.delivery
        )
        looked = "Times that a reader found in the store what the bus should have told: after a gap, or by looking."
        page.metric("bus_reads_from_store_total", "counter", looked, *_from_store(page.agents))
        page.metric("caller_bus_reads_from_store_total", "counter", looked, *_from_store(page.callers))
        page.metric("bus_lag_seconds", "gauge", "From sending to receipt, smoothed.", ("", bus.lag))
        page.metric("bus_work_lag_seconds", "gauge", "From offering a run to pulling it, smoothed.", ("", bus.work_lag))
        present = page.engine.metrics.workers_present
        page.metric("workers_present", "gauge", "Processes that are there, with this one.", ("", present))


def _mounts(page: _Page, mounts: Iterable[MountView]) -> None:
    sent = page.engine.reminders.sent
    page.metric("question_reminders_total", "counter", "Reminders of questions that this process sent.", ("", sent))
    states = [(mount.mount, float(mount.state == "up")) for mount in mounts]
    if states and not _sees_all(page.caller):
        states = [(OTHER, min(state for _, state in states))]
    if states:
        up = [(f'{{mount="{_escape(name)}"}}', state) for name, state in states]
        page.metric("mount_up", "gauge", "Whether a mount can be reached.", *up)


async def _store(page: _Page) -> None:
    engine = page.engine
    try:
        async with asyncio.timeout(PATIENCE):
            kept, asked = await engine.callbacks.counts(), await engine.questions.counts()
            blocked = await engine.runs.blocked_report.counts()
    except (InterlinguaError, TimeoutError) as error:
        # The numbers of this process itself matter most then.
        log.warning("the store does not answer: %s", str(error) or f"no answer within {PATIENCE:g} s")
        page.metric("store_up", "gauge", "Whether the store answers.", ("", 0))
        return
    asked = _asked(asked, page.caller)
    page.metric("store_up", "gauge", "Whether the store answers.", ("", 1))
    page.metric("callbacks_pending", "gauge", "Callbacks in the store, yet to be taken.", ("", kept.get("due", 0)))
    page.metric("callbacks_undelivered", "gauge", "Callbacks in the store, given up.", ("", kept.get("failed", 0)))
    page.metric(
        "runs_blocked", "gauge", "Runs in the store that nothing goes on with, by reason.",
        *((f'{{reason="{reason}"}}', count) for reason, count in blocked.items()),
    )  # fmt: skip
    page.metric(
        "questions_open", "gauge", "Questions in the store that wait for an answer, by the agent that asks.",
        *((f'{{agent="{_escape(agent)}"}}', count) for agent, count, _ in asked),
    )  # fmt: skip
    page.metric(
        "questions_oldest_age_seconds", "gauge", "How long the oldest of them has waited, by the agent that asks.",
        *((f'{{agent="{_escape(agent)}"}}', round(max(0, now() - oldest) / 1e6)) for agent, _, oldest in asked),
    )  # fmt: skip


def _sees_all(caller: Caller | None) -> bool:
    return caller is not None and (scopes.EVERYTHING in caller.scopes or scopes.SEE_ALL in caller.scopes)


def _may_see_agent(caller: Caller | None, name: str) -> bool:
    return caller is not None and bool(scopes.may(caller, "read", name))


def _may_see_caller(caller: Caller | None, name: str) -> bool:
    return caller is not None and (_sees_all(caller) or name == label(caller))


def _shown(busiest: Busiest, may: Callable[[str], bool]) -> list[tuple[str, Numbers]]:
    """Returns the numbers by name, with the names that the caller may not see merged into `other`."""
    named = [(name, numbers) for name, numbers in busiest.all() if name != OTHER and may(name)]
    rest = [numbers for name, numbers in busiest.all() if name == OTHER or not may(name)]
    if not rest:
        return named
    together = Numbers()
    for numbers in rest:
        together.merge(numbers)
    return [*named, (OTHER, together)]


def _asked(asked: list[tuple[str, int, int]], caller: Caller | None) -> list[tuple[str, int, int]]:
    """Counts the open questions by agent, with the time at which the oldest was asked."""
    named = [one for one in asked if _may_see_agent(caller, one[0])]
    rest = [one for one in asked if not _may_see_agent(caller, one[0])]
    if not rest:
        return named
    return [*named, (OTHER, sum(count for _, count, _ in rest), min(oldest for _, _, oldest in rest))]


def _finished(by: list[tuple[str, Numbers]]) -> list[tuple[str, float]]:
    return [
        (f'{{{labels},status="{status}"}}', float(count))
        for labels, numbers in by
        for status, count in sorted(numbers.finished.items())
    ]


def _from_store(by: list[tuple[str, Numbers]]) -> list[tuple[str, float]]:
    return [
        (f'{{{labels},why="{why}"}}', float(count))
        for labels, numbers in by
        for why, count in sorted(numbers.from_store.items())
    ]


def _histogram(name: str, labels: str, found: Histogram) -> Iterator[str]:
    up_to = 0
    before = f"{labels}," if labels else ""
    for bound, count in zip((*map("{:g}".format, BOUNDS), "+Inf"), found.counts, strict=True):
        up_to += count
        yield f'{name}_bucket{{{before}le="{bound}"}} {up_to}'
    around = f"{{{labels}}}" if labels else ""
    yield f"{name}_sum{around} {found.total:.6f}"
    yield f"{name}_count{around} {found.count}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

"""What the engine is doing, as Prometheus text."""

from __future__ import annotations

from collections.abc import Iterable

from ..bus.base import RemoteBus
from ..engine.engine import Engine
from ..engine.ids import now
from .mount_entry import MountView


async def render(engine: Engine, mounts: Iterable[MountView] = ()) -> str:
    worker, callbacks = engine.worker, engine.callbacks
    lines: list[str] = []

    def metric(name: str, kind: str, help_: str, samples: list[tuple[str, float]]) -> None:
        lines.append(f"# HELP interlingua_{name} {help_}")
        lines.append(f"# TYPE interlingua_{name} {kind}")
        lines.extend(f"interlingua_{name}{labels} {value:g}" for labels, value in samples)

    finished = [
        (f'{{agent="{_escape(agent)}",status="{status}"}}', float(count))
        for (agent, status), count in sorted(worker.finished_runs.items())
    ]
    metric("runs_finished_total", "counter", "Runs that ended in this process.", finished)
    metric("runs_running", "gauge", "Agents that run in this process now.", [("", worker.running)])
    metric("runs_taken_over_total", "counter", "Runs of dead processes that were taken up.", [("", worker.taken_over)])
    others = engine.replicas
    metric("replicas", "gauge", "Other replicas on this store.", [("", len(others.others()))])
    metric("passed_on_total", "counter", "Requests that were passed on to other replicas.", [("", others.passed_on)])
    metric("takeovers_total", "counter", "What dead replicas had and was taken over.", [("", others.taken_over)])
    metric("agents_abandoned_total", "counter", "Agents that would not stop.", [("", worker.abandoned)])
    metric("threads_running", "gauge", "Agents and steps that are plain functions.", [("", worker.threads)])
    metric("store_backlog", "gauge", "Writes that wait for the disk.", [("", engine.store.backlog())])
    metric("callbacks_sent_total", "counter", "Callbacks that were taken.", [("", callbacks.sent)])
    metric("callbacks_retried_total", "counter", "Callbacks that will be tried again.", [("", callbacks.retried)])
    metric("callbacks_failed_total", "counter", "Callbacks that were given up.", [("", callbacks.failed)])
    if isinstance(engine.bus, RemoteBus):
        bus = engine.bus.health
        metric("bus_connected", "gauge", "Whether the bus can be reached.", [("", bus.connected)])
        metric("bus_connects_total", "counter", "Connections to the bus that were made.", [("", bus.connects)])
        metric("bus_sent_total", "counter", "Messages that this process sent.", [("", bus.sent)])
        metric("bus_received_total", "counter", "Messages with events of runs elsewhere.", [("", bus.received)])
        metric(
            "bus_dropped_total", "counter", "Messages that were given up, on the way out or in; the store has all.",
            [('{way="out"}', bus.dropped), ('{way="in"}', bus.overflowed)],
        )  # fmt: skip
        metric("bus_lag_seconds", "gauge", "From sending to receipt, smoothed.", [("", bus.lag)])
        metric("bus_work_lag_seconds", "gauge", "From offering a run to pulling it, smoothed.", [("", bus.work_lag)])
        workers = len(engine.bus.present()) + 1
        metric("workers_present", "gauge", "Processes that are there, with this one.", [("", workers)])
    up = [(f'{{mount="{_escape(mount.mount)}"}}', float(mount.state == "up")) for mount in mounts]
    if up:
        metric("mount_up", "gauge", "Whether a mount can be reached.", up)
    kept = await engine.store.count_callbacks()
    metric("callbacks_pending", "gauge", "Callbacks in the store, yet to be taken.", [("", kept.get("due", 0))])
    metric("callbacks_undelivered", "gauge", "Callbacks in the store, given up.", [("", kept.get("failed", 0))])
    asked = await engine.store.count_questions()
    metric(
        "questions_open", "gauge", "Questions in the store that wait for an answer, by the agent that asks.",
        [(f'{{agent="{_escape(agent)}"}}', count) for agent, count, _ in asked],
    )  # fmt: skip
    metric(
        "questions_oldest_age_seconds", "gauge", "How long the oldest of them has waited, by the agent that asks.",
        [(f'{{agent="{_escape(agent)}"}}', round(max(0, now() - oldest) / 1e6)) for agent, _, oldest in asked],
    )  # fmt: skip
    sent = engine.reminders.sent
    metric("question_reminders_total", "counter", "Reminders of questions that this process sent.", [("", sent)])
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

"""The assembly of an engine: builds its objects, starts them one after the other, and stops them in reverse order.

Inside the engine, objects find their neighbours here; doors, mounts and commands see the facade alone.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..bus.port import Bus, ClusterBus
from ..model.run import RunRequest
from ..runtime.closing import Step, close_all
from ..store.changes import PutCallback, PutQuestion
from ..store.ports import Store
from .agents import mount_path
from .agents.catalog import AgentCatalog
from .cluster.cluster import Cluster
from .cluster.link import ClusterLink
from .cluster.log_sources import RemoteLogs, Sources
from .cluster.membership import Membership
from .cluster.no_cluster import NoCluster
from .cluster.remote_agents import RemoteAgents, is_served
from .handler.workspace import Workspaces
from .log.log_source import LogSources, next_hint
from .log.run_log import RunLog
from .observe.engine_metrics import EngineMetrics
from .observe.loop_watchdog import LoopWatchdog
from .observe.run_metrics import RunMetrics
from .runs.admission import Admission
from .runs.blocked_report import BlockedReport
from .runs.cluster_port import ClusterPort
from .runs.queries import NoLocalRuns
from .runs.service import RunService
from .runs.worker import Worker
from .services import store_owner
from .services.callbacks import Callbacks
from .services.files import FileService
from .services.instances import InstanceService
from .services.links import LinkService
from .services.questions import QuestionService
from .services.reminders import Reminders
from .services.retention import Retention
from .services.team_tasks import TeamService
from .services.threads import ThreadService
from .settings import Settings
from .teams.team_gate import TeamGate


class Core:
    """All objects of one engine."""

    worker: Worker  # from the start on

    def __init__(
        self, facade: Any, store: Store, bus: Bus, settings: Settings, project: str, root: Path | None
    ) -> None:
        self.facade = facade
        self.store = store
        self.bus = bus
        self.settings = settings
        self.agents = AgentCatalog(store, project, root)
        self.gate = TeamGate(store, self.agents, partial(next_hint, bus, store.clock, look_every=settings.sweep_every))
        self.threads = ThreadService(store, self.agents)
        self.questions = QuestionService(store, settings, self._answered)
        self.instances = InstanceService(store, self.agents)
        self.callbacks = Callbacks(store)
        self.reminders = Reminders(store, self.callbacks)
        self.membership = Membership(store, settings.sweep_every)
        self.remote_agents = RemoteAgents(store, self.agents, executes=settings.max_running > 0)
        self.blocked_report = BlockedReport(store, self.agents, partial(is_served, store))
        self.admission = Admission(
            store, settings, self.agents, begin_task=self._begin_task, check_callback=self.callbacks.check,
            check_available=self.remote_agents.check,
        )  # fmt: skip
        alone = NoCluster("", bus)
        self.runs = RunService(
            store, bus, settings, self.questions, self.blocked_report, self.admission,
            NoLocalRuns(alone, self._sources(alone, RunMetrics(), lambda run: None)),
        )  # fmt: skip
        self.callbacks.runs = self.runs
        self.teams = TeamService(store, self.gate, self.runs)
        self.cluster = Cluster(store, self.membership, self.remote_agents)
        self.links = LinkService(store.documents)
        self.metrics = EngineMetrics(store, bus)
        self.workspaces = Workspaces()
        self.files = FileService()
        self.store_listeners: list[Callable[[], None]] = [self.callbacks.hint, self.remote_agents.hint]
        """Called when others wrote to the store, or may have."""
        self._opened: list[Step] = []  # closes the objects that were started

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts one object after the other. Where one cannot be started, those before it are stopped."""
        if self.settings.tune_interpreter:
            _tune_interpreter()
        try:
            await self._start()
        except BaseException:
            with contextlib.suppress(Exception):  # the error of the start is raised
                await self._close()
            raise
        self.admission.is_open = True

    async def _start(self) -> None:
        opened = self._opened
        await self.store.open()
        opened.append(self.store.close)
        self.agents.project = await store_owner.join(self.store, self.agents)
        await self.bus.open()
        opened.append(self.bus.close)
        opened.append(self._close_tool_servers)
        self.agents.server_id = await mount_path.server_id(self.store)
        worker = self.worker = Worker(self, self.store, self.bus, self.agents, self.settings, self._connect)
        worker.foreign = self.store_listeners
        self.gate.worker = self.cluster.worker = self.metrics.worker = self.remote_agents.worker = worker
        self.membership.worker = worker.id
        self._listen_to(worker)
        self.runs.attach(worker)
        self.store.on_change = worker.store_changed
        self.store.claims.on_lost = worker.on_lease_lost
        await self.agents.publish_cards()
        self.agents.listeners.append(self._agents_changed)
        opened.append(lambda: self.agents.listeners.remove(self._agents_changed))
        await self.admission.count_waiting()
        opened.append(worker.stop)
        await worker.start()
        self.callbacks.start()
        opened.append(self.callbacks.stop)
        self.reminders.start()
        opened.append(self.reminders.stop)
        self.watchdog = LoopWatchdog(self.settings.stall_warning)
        opened.append(self.watchdog.close)
        opened.append(self.remote_agents.stop)

    async def stop(self) -> None:
        """Finishes what can be finished, returns the rest, and stops everything, whatever goes wrong on the way. Raises
        the first error."""
        self.admission.is_open = False
        await self._close()

    async def _close(self) -> None:
        steps, self._opened = self._opened[::-1], []
        await close_all(steps)

    async def _close_tool_servers(self) -> None:
        if self.gate.tool_servers is not None:
            await self.gate.tool_servers.close()

    async def abandon(self) -> None:
        """Returns all runs at once, and writes nothing more of them: for a process that is about to end."""
        self.admission.is_open = False
        await self.worker.abandon()

    # -- the worker ---------------------------------------------------------------------------------------

    def _connect(self, worker: Worker) -> tuple[ClusterPort, LogSources]:
        if isinstance(self.bus, ClusterBus):
            link = ClusterLink(worker, self.bus)
            return link, self._sources(link, worker.meters, worker.log_of)
        alone = NoCluster(worker.id, self.bus)
        return alone, self._sources(alone, worker.meters, worker.log_of)

    def _sources(self, cluster: RemoteLogs, meters: RunMetrics, live: Callable[[str], RunLog | None]) -> Sources:
        return Sources(self.store, self.bus, cluster, meters, self.blocked_report, live, self.settings.sweep_every)

    def _listen_to(self, worker: Worker) -> None:
        def asked(change: PutQuestion, committed: bool) -> None:
            if change.remind:
                self.reminders.hint()

        worker.commits.listen(PutCallback, lambda change, committed: self.callbacks.hint())
        worker.commits.listen(PutQuestion, asked)
        worker.on_workers_died = self.remote_agents.hint
        retention = Retention(self.store, self.settings, worker.forget)
        worker.sweep.duties += [retention.expire, self.blocked_report.tell_readers]

    # -- news between objects -----------------------------------------------------------------------------

    def _begin_task(self, request: RunRequest, moment: int) -> RunRequest:
        return self.gate.begin_task(request, moment)

    def _answered(self, run: str, owner: str | None) -> None:
        """Notifies the owner of a run that an answer is there, and everybody that the questions changed."""
        self.worker.notify_run(run, owner=owner)
        self.worker.cluster.questions_changed()

    def _agents_changed(self) -> None:
        self.worker.spawn(self.agents.publish_cards())
        self.worker.limits.refresh()
        self.worker.spawn(self.worker.lease.serve())
        self.remote_agents.hint()
        self.worker.claims.blocked.hint()
        self.worker.cluster.agents_changed()


def _tune_interpreter() -> None:
    sys.setswitchinterval(min(sys.getswitchinterval(), 0.0001))
    if gc.get_threshold()[0] == 700:  # nobody else has tuned it
        gc.set_threshold(20_000, 20, 20)

"""Runs: starting them, waiting for them, and acting on them. `submit` is the only way in which a run begins."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ...bus.port import Bus
from ...model import json_values
from ...model.content import Message, Part, parts_from
from ...model.errors import ChildFailed, Conflict, ErrorInfo, InvalidRequest, RunNotFound, TooLarge
from ...model.events import Event
from ...model.run import OWNER, Caller, Run, RunRequest
from ...model.run_identity import Origin
from ...model.status import Status
from ...store.changes import Submitted
from ...store.ports import Store
from ...store.rows import MoveTo, RunRow
from ..ids import new_id
from ..log.run_log import TransactionParticipant, let_participate
from ..observe import run_logging
from ..settings import Settings
from ..teams.conversation import MailKind
from .admission import Admission, NewRun
from .blocked_report import BlockedReport
from .queries import LocalRuns, OpenQuestions, RunQueries
from .remote_wait import wait_for_remote_run
from .retry import check_retry
from .run_handle import RunHandle

if TYPE_CHECKING:
    from .worker import Worker

log = logging.getLogger("interlingua.runs")

_MOMENT = 0.05  # seconds in which most short runs end


class AnswerPort(OpenQuestions, Protocol):
    """Takes answers to questions."""

    async def answer(self, question: str, value: Any, *, by: Caller = OWNER, door: str = "") -> None: ...


class RunService(RunQueries):
    """Starts runs and acts on them: admit the request, write the run, enter it."""

    def __init__(
        self,
        store: Store,
        bus: Bus,
        settings: Settings,
        questions: AnswerPort,
        blocked: BlockedReport,
        admission: Admission,
        local: LocalRuns,
    ) -> None:
        super().__init__(store, bus, settings, questions, blocked, local)
        self.questions = questions
        self.admission = admission
        self._worker: Worker | None = None

    def attach(self, worker: Worker) -> None:
        """Takes the worker that executes runs in this process, for the time until the engine stops."""
        self.worker = self._worker = self.admission.slots = worker

    @property
    def _here(self) -> Worker:
        assert self._worker is not None, "the engine has not been started"
        return self._worker

    # -- starting -----------------------------------------------------------------------------------------

    async def submit(
        self,
        request: RunRequest,
        *,
        parent: RunRow | None = None,
        run: str | None = None,
        watch: bool = False,
        participant: TransactionParticipant | None = None,
    ) -> RunHandle:
        """Accepts a run. When this has been awaited, the run is on disk and will end. Where it raises, nothing was
        written and no agent was called.

        `run` is the id of the run, where the caller has chosen one: submitting the same child of `parent` again changes
        nothing. `watch`: the caller reads the run or waits for it next, which costs less where that is known before the
        run begins. `participant` takes part in the transactions that write the run.
        """
        if parent is not None and run is not None and (known := await self._known_child(request, run)) is not None:
            return known
        new = await self.admission.admit(request, parent=parent, run=run or new_id())
        return await self._start(new, watch=watch, participant=participant, sealed=parent is not None)

    async def _start(
        self, new: NewRun, *, watch: bool = False, participant: TransactionParticipant | None = None, sealed: bool
    ) -> RunHandle:
        """Writes an admitted run, and enters it here or offers it to the processes that have its code."""
        remote = None
        if watch and new.agent is None:
            remote = self._here.cluster.follow_new(new.row, new.created, new.first)
        try:
            done = await self._write(new, participant)
        except BaseException:
            if remote is not None:
                remote.release()
            raise
        if remote is not None:
            remote.submitted = done.row, new.created
            if done.existing:
                remote.release()
        if done.existing:
            return RunHandle(self, await self.get(done.row.id, sealed=sealed), sealed=sealed)
        worker = self._here
        if done.cancel is not None:  # a run that gives way to this one
            worker.notify_run(done.cancel)
            if worker.execution(done.cancel) is None:
                await worker.claim_and_enter(done.cancel)
        if done.row.worker != worker.id:
            worker.offer(done.row)
        return RunHandle(self, self.view(done.row, new.created), sealed=sealed)

    async def _known_child(self, request: RunRequest, run: str) -> RunHandle | None:
        """Returns the child that was submitted before; None where it is new. Raises where the child was deleted."""
        known = "run" if self._here.log_of(run) is not None else await self.store.runs.known(run)
        if known == "tombstone":
            gone = ErrorInfo(RunNotFound.code, f"run {run} was deleted")
            raise ChildFailed(f"agent {request.agent}: {gone.message}", error=gone, run=run)
        return RunHandle(self, await self.get(run, sealed=True), sealed=True) if known is not None else None

    async def _write(self, new: NewRun, participant: TransactionParticipant | None) -> Submitted:
        """Writes a run, and enters it where it starts here. Documents that a participant writes with its first event
        are in the same transaction."""
        worker, row, first = self._here, new.row, new.first
        event = Event(row.id, first.seq, first.time, first.hash, new.created, first.seq, len(first.body or b""))

        def committed(done: Submitted) -> None:
            # In the writer's completion, and not after the await below: a caller that goes away meanwhile must not
            # leave the run half entered.
            if not done.existing:
                run_logging.created(done.row)
            mine = not done.existing and done.row.worker == worker.id
            if new.agent is not None and mine and not worker.is_ending:  # else it is returned with the others
                worker.enter_submitted(done, event, new.agent, participant)
            elif participant is not None:
                participant.left(None)

        def sealing() -> None:
            nonlocal participant
            if participant is not None and not let_participate(participant, [event]):
                participant = None

        writing = self.store.runs.submit(new.submission, committed, None if participant is None else sealing)
        writing.add_done_callback(worker.expect(row, reserve=new.agent is not None))
        return await asyncio.shield(writing)

    async def handle(self, run: str, *, sealed: bool = False) -> RunHandle:
        """Returns the handle of a run that was submitted before."""
        return RunHandle(self, await self.get(run, sealed=sealed), sealed=sealed)

    # -- waiting ------------------------------------------------------------------------------------------

    async def wait(self, run: str, *, timeout: float | None = None, settled: bool = False, sealed: bool = False) -> Run:
        """Waits until a run has ended (`settled`: or waits for an answer). Raises TimeoutError.

        Giving up waiting does nothing to the run.
        """
        log = self.worker.log_of(run)
        if log is not None and log.finished is not None:
            return await self.get(run, sealed=sealed)
        async with asyncio.timeout(timeout):
            while True:
                log, row = self.worker.log_of(run), None
                if log is None and (remote := await self.worker.cluster.remote_log(run)) is not None:
                    ended = await wait_for_remote_run(self, run, remote, settled=settled, sealed=sealed)
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
                        return await (self.get(run, sealed=sealed) if row is None else self.full_view(row))
                    if settled and status is Status.WAITING:
                        view = await self.get(run, sealed=sealed)
                        if view.status is Status.WAITING or view.status.final:
                            return view
                    await changed
                finally:
                    changed.cancel()  # a future that nobody awaits is not kept

    async def wait_briefly(self, run: Run) -> Run:
        """Returns the run when it has ended, where it executes here and ends soon; else as it was. Costs less than a
        task that waits beside others."""
        log, clock = self.worker.log_of(run.id), self.store.clock
        until = clock.monotonic() + _MOMENT
        while log is not None and log.lost is None and log.finished is None:
            left = until - clock.monotonic()
            if left <= 0 or log.status is Status.WAITING:
                return run
            changed = log.changed()
            try:
                await asyncio.wait((changed,), timeout=left)
            finally:
                changed.cancel()
        return await self.get(run.id) if log is not None and log.finished is not None else run

    # -- acting -------------------------------------------------------------------------------------------

    async def cancel(
        self, run: str, *, reason: str = "", by: Caller = OWNER, rollback: bool = False, sealed: bool = False
    ) -> None:
        """Asks a run to stop; `rollback` deletes it afterwards. Returns when that is on disk, not when it stopped."""
        if not sealed:
            await self.check_open(run)
        body = json_values.encode({"by": by.id, "reason": reason, "rollback": rollback})
        _, owner = await self.store.runs.deliver(run, "cancel", body, self.store.clock.now())
        if owner is None and self.worker.execution(run) is None:
            await self._here.claim_and_enter(run)
        else:
            self._here.notify_run(run, owner=owner)

    async def send(
        self, run: str, message: Message | str | Part | list[Part], *, sealed: bool = False, kind: MailKind = "message"
    ) -> None:
        """Puts a message into a run's mailbox. Returns when it is on disk."""
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
        await self.deliver(run, kind, body)

    async def deliver(self, run: str, kind: str, body: bytes) -> None:
        """Puts an item into a run's inbox, and notifies its owner."""
        _, owner = await self.store.runs.deliver(run, kind, body, self.store.clock.now())
        self._here.notify_run(run, owner=owner)

    async def move(self, run: str, origin: Origin | str, *, version: str | None = None, by: Caller = OWNER) -> None:
        """Gives an unfinished run to the code of another origin, on purpose. `version`: of the agent there, where it is
        another. Refused while a worker has the run."""
        row = await self.row(run, sealed=True)
        to = MoveTo(str(origin), row.version if version is None else version, by.id, self.store.clock.now())
        self._here.announce(await self.store.claims.move(run, to))

    async def retry(self, run: str, *, by: Caller = OWNER) -> RunHandle:
        """Lets a blocked run go on at once, or continues a failed one from its last good record, as a new run.

        Returns the run that goes on: the run itself, or its one continuation."""
        row = await self.row(run, sealed=True)
        if not row.status.final:
            if not await self.store.claims.unblock(run, self.store.clock.now()):
                why = await self.blocked_report.reason(row)
                raise Conflict(f"run {run} {f'cannot go on: {why.message}' if why else 'is not blocked'}")
            self._here.offer(row)
            log.info("run %s of %s goes on again, as %s wants", row.id, row.agent, by.id)
            return await self.handle(run, sealed=True)
        check_retry(row)
        new = await self.admission.admit_continuation(row, await self._here.all_events(run))
        goes_on = await self._start(new, sealed=True)
        if goes_on.id == new.row.id:
            log.info("run %s of %s continues run %s, as %s wants", goes_on.id, row.agent, run, by.id)
        return goes_on

    async def delete(self, run: str, *, rollback: bool = False, sealed: bool = False) -> None:
        """Forgets a run that has ended, and its children. A tombstone with its last hash remains.

        `rollback`: also its effect on its thread, where nobody has built on that yet.
        """
        if not sealed:
            await self.check_open(run)
        for gone in await self.store.runs.delete(run, self.store.clock.now(), rollback=rollback):
            self._here.forget(gone)

    async def erase(self, run: str, seq: int, *, sealed: bool = False) -> None:
        """Forgets the body of one event of a finished run. Its hash stays, so the chain still verifies."""
        if not (await self.get(run, sealed=sealed)).status.final:
            raise Conflict(f"run {run} has not ended; only then can an event be erased")
        await self.store.runs.erase(run, seq)
        self._here.forget(run)

"""Tasks of teams, seen from outside: what they are called, who takes part in them, what was said, and telling somebody.

A task has the name of its entry agent's part (T1), and what is handed over within it is numbered below that (T1.1). The
conversation of a task is what was `Said`, on the log of the team's run.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from ...model.content import Message, TextPart
from ...model.errors import AlreadyFinished, Denied, NotFound, TaskNotFound
from ...model.events import DelegationRefused, Event, Said, body_encoder
from ...model.team.manifest import ORCHESTRATOR, USER, instance_id
from ...model.team.task_ids import is_task, parent_of
from ...store.ports import Store
from ...store.rows import DelegationRow
from ..ids import new_id, now
from ..teams.conversation import MailKind, nobody

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ..runs.worker import Worker


_LOOKS = 10  # at whether a run has begun: it was counted a moment ago


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task of a team, or a part of one that was handed over."""

    label: str
    run: str
    root: str  # the team's run
    agent: str  # the instance that has it
    parent: str | None = None
    review: bool = False  # it judges a result of the task that it is part of


class Tasks:
    """The part of the engine's API that is about tasks of teams."""

    store: Store
    worker: Worker

    if TYPE_CHECKING:

        def events(
            self, run: str, *, after: int = 0, follow: bool = True, sealed: bool = False
        ) -> AsyncIterator[Event]: ...
        async def send(
            self, run: str, message: Message, *, sealed: bool = False, kind: MailKind = "message"
        ) -> None: ...
        def next_hint(self, run: str) -> asyncio.Future[None]: ...

    async def task(self, label: str) -> Task:
        """A task, or a part of one, by what it is called."""
        found = next((one for one in await self.tasks(label) if one.label == label), None)
        if found is None:
            raise TaskNotFound(f"there is no task {label[:80]}")
        return found

    async def tasks(self, label: str) -> list[Task]:
        """A task and all its parts, in the order in which they began. Empty where there is none."""
        if not is_task(label):
            return []
        whole = label.partition(".")[0]
        first = await self.store.delegations.labelled(whole)
        root = next((row.path.strip("/").rpartition("/")[2] for row in first if row.label == whole), "")
        return [_task(row, root) for row in first if row.label == label or row.label.startswith(f"{label}.")]

    async def label_of(self, root: str) -> str:
        """What the task is called that began with this run of a team; empty where it has not begun."""
        async for event in self.events(root):
            if isinstance(event.body, Said) and event.body.form == "delegation" and event.body.sender == ORCHESTRATOR:
                return event.body.task
        return ""

    async def conversation(self, root: str, *, after: int = 0) -> list[tuple[Event, Said]]:
        """What was said so far in a task, as the log of the team's run has it. In the order of time: sort by `time`."""
        found = [event async for event in self.events(root, after=after, follow=False)]
        return [(event, event.body) for event in found if isinstance(event.body, Said)]

    async def participant(self, label: str, id_: str) -> DelegationRow:
        """The run of an instance that takes part in a task, now or before. Waits for one that is just beginning."""
        for _ in range(_LOOKS):
            rows = await self.store.delegations.labelled(label)
            named = [row for row in rows if instance_id(row.agent, row.instance) == id_]
            if not named:
                break
            begins = self.next_hint(named[-1].run)
            try:
                runs = [(row, await self.store.runs.get(row.run)) for row in reversed(named)]
                begun = [(row, run) for row, run in runs if run is not None]
                if begun:
                    return next((row for row, run in begun if not run.status.final), begun[0][0])
                await begins
            finally:
                begins.cancel()
        raise nobody(label, id_, (instance_id(row.agent, row.instance) for row in rows))

    async def tell(self, label: str, recipient: str, message: Message | str, *, sender: str = USER) -> None:
        """A message of the user, or of an agent that is not one of ours, to somebody who takes part in a task.

        Returns when it is on disk. Whether `sender` is who they say they are has been checked.
        """
        task = await self.task(label)
        if not isinstance(message, Message):
            message = Message("user", [TextPart(message)])
        if recipient in (USER, ORCHESTRATOR):
            raise Denied(f"{recipient} is no agent; messages go to those who take part in {label}")
        row = await self.participant(task.label.partition(".")[0], recipient)
        message = msgspec.structs.replace(message, role="user" if sender == USER else "agent", sender=sender)
        try:
            await self.send(row.run, message, sealed=True, kind="told")
        except AlreadyFinished:
            raise AlreadyFinished(f"{recipient} has ended its part in {row.label}") from None

    async def refused(self, root: str, agent: str, reason: str) -> None:
        """Somebody outside tried to have an agent of a task work, and may not: that is on record there."""
        body = body_encoder.encode(DelegationRefused(agent, reason, key=f"outside:{new_id()}"))
        with contextlib.suppress(AlreadyFinished, NotFound):
            _, owner = await self.store.runs.deliver(root, "relay", body, now())
            self.worker.notify_run(root, owner=owner)


def _task(row: DelegationRow, root: str) -> Task:
    agent = instance_id(row.agent, row.instance) if row.instance > 0 else row.agent
    return Task(row.label, row.run, root, agent, parent_of(row.label), bool(row.review))

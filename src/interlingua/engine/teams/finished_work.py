"""The finished work of a run, out of its log: its output, what it showed, and what was said about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from ...model.content import Part, TextPart
from ...model.events import ArtifactAdded, ChildCalled, Emission, Event, MessageSent, RunFinished, Said
from ...model.status import Status
from ...model.team.oversight import Exchange, Result, join_chunks, read_verdict
from ..log.replay import STATE, Replay
from ..log.run_log import RunLog


class RunLogs(Protocol):
    """The logs of runs that are in this process, or in its store."""

    def log_of(self, run: str) -> RunLog | None: ...
    async def all_events(self, run: str) -> list[Event]: ...


class Work:
    """The results of a run, out of its log."""

    began = ended = 0  # microseconds since 1970

    def __init__(self, replay: Replay, finished: RunFinished, held: list[Said]) -> None:
        self.shown: list[Emission] = replay.emissions.standing
        self.held = held  # what was said about results, with its time
        self.children = [called for called, _, _ in replay.children.values()]
        self.result = Result(
            finished.output,
            join_chunks([body.artifact for body in self.shown if isinstance(body, ArtifactAdded)]),
            [body.message for body in self.shown if isinstance(body, MessageSent)],
            replay.records[STATE][1].value if STATE in replay.records else None,
        )
        assert replay.created is not None
        self.created = replay.created
        self.error = finished.error
        self.usage = finished.usage
        self.approved: set[str] = set()  # hashes that its overseer approved when it proposed them itself
        self.exchanges: list[Exchange] = []  # what came of its other proposals
        for called, ended, _ in replay.children.values():
            if called.proposal is None or ended is None or ended.status is not Status.SUCCEEDED:
                continue
            verdict = read_verdict(ended.output)
            if verdict.approves(called.proposal):
                self.approved.add(called.proposal)
            else:
                self.exchanges.append(verdict.about(called.proposal))

    @classmethod
    async def of(cls, logs: RunLogs, run: str) -> Work:
        log = logs.log_of(run)  # it has just ended, most likely here
        near = log.since(0) if log is not None and log.finished is not None else None
        events = near or await logs.all_events(run)
        finished = events[-1].body
        assert isinstance(finished, RunFinished)
        work = cls(Replay.of(events), finished, _held(events))
        work.began, work.ended = events[0].time, events[-1].time
        return work

    def files(self, *, in_messages: bool) -> list[Part]:
        """The parts of its artifacts; and what is more than text in its messages, where some mounts have all files."""
        parts = [part for artifact in self.result.artifacts for part in artifact.parts]
        for message in self.result.messages if in_messages else ():
            parts += [part for part in message.parts if not isinstance(part, TextPart) and part not in parts]
        return parts

    async def below(self, logs: RunLogs) -> list[Said]:
        """Messages about the results of tasks that it handed over."""
        mine = [said for said in self.held if said.key.endswith((":result", ":told"))]
        return [*mine, *await _messages_below(logs, self.children)]

    async def reviews(self, logs: RunLogs) -> list[Said]:
        """Messages of its overseer while that judged what was proposed by hand."""
        messages: list[Said] = []
        for called in self.children:
            if called.proposal is not None:
                messages += _held(await logs.all_events(called.run), f"{called.run}:")
        return messages


def _held(events: list[Event], prefix: str = "") -> list[Said]:
    return [
        msgspec.structs.replace(event.body, time=event.body.time or event.time, key=prefix + event.body.key)
        for event in events
        if isinstance(event.body, Said) and event.body.held
    ]


async def _messages_below(logs: RunLogs, children: Iterable[ChildCalled]) -> list[Said]:
    """Messages of the agents to which a run delegated, and of those to which they delegated in turn."""
    messages: list[Said] = []
    for called in children:
        if called.notice is not None and called.proposal is None:
            events = await logs.all_events(called.run)
            messages += _held(events, f"{called.run}:")
            messages += await _messages_below(logs, [e.body for e in events if isinstance(e.body, ChildCalled)])
    return messages

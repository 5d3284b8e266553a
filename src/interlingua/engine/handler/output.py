"""Shows what a handler emits: output, messages, artifacts, thoughts, plans, tool calls and warnings.

A handler that is replayed emits the same again: that is compared with the history, and written only where it differs.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from ...model import json_values
from ...model.content import Artifact, Message
from ...model.delta import DeltaError, Joiner
from ...model.errors import InterlinguaError, Invalid, InvalidOutput
from ...model.events import ArtifactAdded, Emission, MessageSent, OutputDelta, RunRestarted
from ..log.split_text import Pieces
from ..log.step_attempts import Attempt, Attempts
from .run_data import RunData
from .waits import Waits


class Output:
    __slots__ = ("_attempts", "_data", "_emissions", "_pieces", "_waits", "for_review", "usage")

    def __init__(self, data: RunData, waits: Waits) -> None:
        self._data = data
        self._waits = waits
        self._emissions = data.replay.emissions
        self._attempts: Attempts | None = None  # from the first step that may be tried again on
        self._pieces: Pieces | None = None  # from the first half of a character on
        self.for_review: list[Emission] | None = None  # artifacts and messages so far, where they will be proposed
        self.usage: dict[str, Any] | None = None

    # -- emitting -----------------------------------------------------------------------------------------

    def emit(self, body: Emission) -> None:
        waits = self._waits
        waits.check_open()
        if waits.blocked:
            waits.stir()
        body.branch = waits.branches.emitting()
        if self._pieces is not None:
            body = self._pieces.take(body)
        self._emit_whole(body)

    def _emit_whole(self, body: Emission) -> None:
        if self.for_review is not None:
            self.keep_for_review(body)
        emissions = self._emissions
        if emissions.idle:
            self.put(body)
            return
        taken, again, keep = emissions.match(body)
        self._write_again(again, keep)
        if not taken:
            self.put(body)

    def put(self, body: Emission, *, again: bool = False) -> None:
        """Add to the log. `again`: it was voided together with something else."""
        if self._attempts is not None and not again:
            self._attempts.note(body)
        if type(body) is OutputDelta:
            try:
                self._emissions.output.add(body.delta)
            except DeltaError as error:
                raise InvalidOutput(f"the output cannot be extended by what was yielded: {error}") from error
        elif type(body) is MessageSent:
            self._emissions.sent.append(body.message)
        self._data.log.append(body)

    def put_last(self, body: Emission) -> None:
        """Write what comes after the run was told to end."""
        self.put(body if self._pieces is None else self._pieces.take(body))

    def end_pieces(self, step: str | None = None) -> None:
        """Emit the halves of characters that stayed alone: of one step, or all."""
        if self._pieces is not None:
            for body in self._pieces.end(step):
                self._emit_whole(body)

    def put_pieces(self) -> None:
        """Write the halves that stayed alone, where the run ends."""
        if self._pieces is not None:
            with contextlib.suppress(InterlinguaError):
                for half in self._pieces.end():
                    self.put(half)

    def keep_for_review(self, body: Emission) -> None:
        """Remember what will be judged, in the order in which it was shown."""
        if self.for_review is not None and isinstance(body, ArtifactAdded | MessageSent):
            self.for_review.append(body)

    def add_usage(self, counts: dict[str, Any]) -> None:
        json_values.check(counts, Invalid, what="usage")
        usage = self.usage = self.usage or {}
        for name, count in counts.items():
            old = usage.get(name)
            both = isinstance(old, int | float) and isinstance(count, int | float)
            usage[name] = old + count if both else count

    # -- history ------------------------------------------------------------------------------------------

    def passed(self, seq: int) -> None:
        """The branch has the record at `seq` again: what it emitted before that must have been repeated."""
        self._write_again(*self._emissions.passed(seq, self._waits.branches.emitting()))

    def step_ended(self, place: str) -> None:
        """A step has its result, or begins anew: what attempts before it have shown, and it has not, is void."""
        self._write_again(*self._emissions.step_ended(place))

    def step_passed(self, place: str) -> None:
        """The handler has the result of a step again: what the step emitted stands."""
        standing, void = self._emissions.of_step(place)
        for body in standing:
            self.keep_for_review(body)
        for body in void:
            self.emit(body)

    def finish(self) -> None:
        """The handler is done: what it did not emit again no longer stands."""
        self._write_again(*self._emissions.finish())

    def _write_again(self, bodies: list[Emission], keep: int | None) -> None:
        """Void what was emitted after an event, and write what of it stands."""
        if keep is not None:
            self._data.log.append(RunRestarted(keep, "the agent took another path than before"))
            emissions = self._emissions
            if self._attempts is not None:
                self._attempts.restarted(keep, emissions.output.value, len(emissions.sent))
        for body in bodies:
            self.put(body)

    # -- attempts of steps --------------------------------------------------------------------------------

    async def begin_attempt(self, place: str) -> Attempt:
        """Remember how the run stands before a step that may be tried again."""
        log, emissions = self._data.log, self._emissions
        self.step_ended(place)  # an attempt that a crash cut short
        while not log.settled:
            await log.flush()
        self._waits.check_open()
        attempt = Attempt(place, log.committed_seq, emissions.output.value, len(emissions.sent))
        self._attempts = self._attempts or Attempts()
        self._attempts.begin(attempt)
        return attempt

    def take_back(self, attempt: Attempt) -> None:
        """Void what an attempt has shown. What others have shown meanwhile stands."""
        if not attempt.own or self._attempts is None:
            return
        self._waits.check_open()
        if self.for_review is not None:
            void = {id(body) for body in attempt.own}
            self.for_review = [body for body in self.for_review if id(body) not in void]
        emissions = self._emissions
        emissions.taken_back(attempt.place)
        again = self._attempts.take_back(attempt)
        emissions.output = Joiner(attempt.output)
        del emissions.sent[attempt.sent :]
        self._data.log.append(RunRestarted(attempt.keep, "a step is tried again"))
        for body in again:
            self.put(body, again=True)

    def end_attempt(self, attempt: Attempt) -> None:
        if self._attempts is not None:
            self._attempts.end(attempt)

    # -- what the context offers --------------------------------------------------------------------------

    def delta_of(self, item: Any) -> dict[str, Any]:
        """Turn what a handler yields into a delta of the output."""
        agent = self._data.agent
        delta = agent.output.encode(item) if agent is not None and agent.output is not None else item
        if type(delta) is not dict:
            raise InvalidOutput(f"a yield extends the output, which is an object; {type(delta).__name__} cannot")
        if json_values.check(delta, InvalidOutput, what="output", halves=True):
            self._join_pieces()
        # The agent may change its own, and yield it again.
        return delta if type(item) is str else json_values.copy(delta)

    async def extend(self, item: Any) -> None:
        """Extend the output, as a yield does."""
        self._waits.check_open()
        step = self._waits.branches.step()
        self.emit(OutputDelta(self.delta_of(item), step.place if step is not None else None))
        await self._data.log.breathe()

    async def show_delta(self, delta: Any) -> None:
        """Extend the output by what a worker process of the agent yielded."""
        self.emit(OutputDelta(delta))
        await self._data.log.breathe()

    async def say(self, message: Message) -> None:
        json_values.check(msgspec.to_builtins(message), InvalidOutput, what="message", halves=True)
        if self._data.team is not None:
            message.parts = self._data.team.attached(message.parts)
        message.id = message.id or f"{self._data.row.id}/{self._waits.branches.number('message')}"
        await self.show(MessageSent(message))

    async def add_artifact(self, artifact: Artifact) -> None:
        if self._data.team is not None:
            artifact.parts = self._data.team.attached(artifact.parts)
        artifact.id = artifact.id or self._waits.branches.number("artifact")
        await self.show(ArtifactAdded(artifact))

    async def show(self, body: Emission) -> None:
        self._waits.check_open()
        try:
            plain = msgspec.to_builtins(body)
            if json_values.check(plain, InvalidOutput, what=type(body).__name__.lower(), halves=True):
                self._join_pieces()
            msgspec.convert(plain, type(body))  # what cannot be read back would stop the log
        except (TypeError, msgspec.MsgspecError) as error:
            raise InvalidOutput(f"{type(body).__name__.lower()}: {error}") from error
        step = self._waits.branches.step()
        if step is not None and body.step is None:
            body.step = step.place
        self.emit(body)
        await self._data.log.breathe()

    def _join_pieces(self) -> None:
        """Join pieces before they are written, from here on: something emitted holds half a character."""
        self._pieces = self._pieces or Pieces(self._data.row.id)

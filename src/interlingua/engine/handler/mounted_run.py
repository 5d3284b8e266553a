"""Runs of agents that stand for remote ones: what their handlers may do beyond the context.

They ask what no class was declared for, find what was shown before a crash, and know why the handler is left. `LeftRun`
is for telling the remote side when a run ends without its handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ...model import trace_context
from ...model.card import Schema
from ...model.content import Part
from ...model.errors import Denied, Invalid
from ...model.events import Emission, Recorded
from ...model.run import Answer, Option, RunRequest
from ...model.run import Question as AskedQuestion
from ...model.team import carried_scope
from ...model.team.carried_scope import CarriedScope
from ...runtime.clock import sleep
from ..agents.mount_path import MOUNTED_FROM as MOUNTED_FROM
from ..agents.mount_path import VIA
from ..agents.question_types import EXPIRED, Question, QuestionCodec
from ..agents.question_types import Gone as Gone
from ..log.record_keys import place_of
from ..log.record_keys import step_place as step_place
from ..observe import tracing
from .suspension import Leaving

if TYPE_CHECKING:
    from .context import Context

log_ = logging.getLogger("interlingua.engine")

LOOK_EVERY = 600.0
"""Seconds after which a run that was parked with a question looks whether the remote side still asks it: at first,
and later less often."""

_LOOK_WITHIN = 1.0
_LOOKS = 10  # in the time that a question has waited so far, once that is long


class MountedRun:
    """A run of a mounted agent, as its handler sees it beyond its context."""

    def __init__(self, ctx: Context[Any, Any]) -> None:
        self._ctx = ctx
        self._run = ctx._run
        self._run.waits.branches.engine_code = True

    @property
    def leaving(self) -> Leaving | None:
        """Why the handler is being left. After "cancel" and "timeout" it is not called again."""
        run = self._run
        return "cancel" if run.data.cancelling else run.waits.leaving

    @property
    def leaving_for_good(self) -> bool:
        """True when the remote run has to end with this one. A run that is only suspended is found again later."""
        return self.leaving in ("cancel", "timeout")

    @property
    def begun(self) -> bool:
        """True when the run had begun before its handler was entered: it was parked, or its process is gone."""
        return self._run.data.replay.started

    def shown(self, step: str) -> list[Emission]:
        """Emissions that a step which was cut short has shown before, and that still stand.

        Show it again first, as it is: that is not written twice. `step` is the key that the step was given.
        """
        return self._run.data.replay.emissions.emitted_by(step_place(step))

    async def shown_again(self, step: str) -> bool:
        """Show that again, as it is. Whether there was any."""
        bodies = self.shown(step)
        for body in bodies:
            await self.show(body)
        return bool(bodies)

    async def show(self, body: Emission) -> None:
        """Show something that the remote agent said. With `step=step_place(key)` it belongs to a step: once that is
        recorded, it is not shown again."""
        run = self._run
        if run.waits.leaving == "cancel" and not run.waits.over:
            run.output.put_last(body)  # the remote side may say its last words after it was told to stop
        else:
            await run.output.show(body)

    @property
    def engine(self) -> Any:
        return self._run.engine

    @property
    def agent(self) -> str:
        """The name that it has here."""
        return self._run.data.row.agent

    def found_at_server(self, run: str) -> None:
        """Tell the process that began this run what the server calls it."""
        agent = self._run.data.agent
        if agent is not None and agent.on_remote_run is not None:
            agent.on_remote_run(run)

    def onward(self) -> trace_context.Carrier:
        """The trace of this run, to be sent with the request that begins the remote one. It always has the number of
        mounts that the call has gone through, this one included, and in a team what may still be done. Raises
        TooManyHops where that is one mount too many, and Denied where a scope would not hold there."""
        trace = trace_context.read(tracing.current(self._run.data.request.trace))
        scope = self._scope(trace)
        more = {carried_scope.SCOPE: carried_scope.write(scope)} if scope is not None else {}
        return trace_context.next_hop(trace, self._run.data.host.settings.max_hops, more)

    def _scope(self, trace: trace_context.Carrier | None) -> CarriedScope | None:
        """The scope and the limits that go on to the remote side. Raises Denied where somebody narrowed the call, and
        the remote side is none that keeps to that: servers that tell the way of their agents do."""
        data, scope = self._run.data, carried_scope.read(trace)
        if data.authority is not None:
            scope = carried_scope.remaining_scope(data.authority, data.clock.now())
        elif scope is not None:
            scope = carried_scope.after(scope, (data.clock.now() - data.row.created_at) / 1e6)
        card = data.agent.card if data.agent is not None else None
        if scope is not None and scope.narrowed and card is not None and not card.metadata.get(VIA):
            raise Denied(
                f"{card.metadata.get(MOUNTED_FROM, card.name)} does not promise to keep to the scope of this call, and "
                "is not called; hand the task over without a scope, or to an agent of an Interlingua server"
            )
        return scope

    def asked(self) -> list[str]:
        """The keys of all questions that this run had asked when its handler was entered."""
        return [place.removeprefix("ask:") for place in self._run.data.replay.questions]

    def withdrawn(self) -> list[str]:
        """The keys of those that had been taken back by then."""
        past = self._run.data.replay.questions.items()
        return [
            place.removeprefix("ask:")
            for place, one in past
            if one.answer is None and not one.open and one.reason not in ("", EXPIRED)
        ]

    def answers(self) -> dict[str, tuple[str, Answer]]:
        """The answers that were given to the questions of this run, by their keys; with the ids of the questions."""
        past = self._run.data.replay.questions.items()
        return {
            place.removeprefix("ask:"): (question.question.id, question.answer)
            for place, question in past
            if question.answer is not None
        }

    def open(self) -> list[str]:
        """The keys of the questions that wait for an answer now."""
        return [question.key.removeprefix("ask:") for question in self._run.questions.open.values()]

    def recorded(self, step: str) -> bool:
        """Tells whether a step was done when the handler was entered, by the key that it was given."""
        return step_place(step) in self._run.data.replay.records

    def record(self, step: str, value: Any) -> None:
        """Record what a step would give, where that is known already and there is nothing to do for it. It is written
        with what comes before and after it, and not waited for: see `committed`."""
        data, place = self._run.data, step_place(step)
        self._run.waits.check_open()
        if place not in data.replay.records:
            record = Recorded(place, msgspec.to_builtins(value))
            data.log.append(record)
            data.replay.records[place] = (0, record)

    async def committed(self) -> None:
        """Wait until everything that this run has said and recorded is. Nothing may go to the remote side before."""
        self._run.waits.check_open()
        await self._run.data.log.flush()

    def withdraw(self, key: str, reason: str) -> None:
        """The remote side no longer asks this."""
        run = self._run
        for question in list(run.questions.open.values()):
            if question.key == f"ask:{key}" and not run.waits.over:
                run.questions.withdraw(question.id, reason)

    async def ask(
        self, type_: str, payload: Any, answer: Schema, *, key: str, prompt: str | None = None,
        options: list[Option] | None = None, deadline: float | None = None, attachments: Iterable[Part | str] = (),
    ) -> Any:  # fmt: skip
        """Ask what the remote side asks, and give back the answer as JSON. `answer` is the schema of the answer.

        The same type may come with another schema at any time: nothing is declared, and nothing is kept. Raises
        Gone where it was withdrawn before a crash.
        """
        question = RemoteQuestion(type_, payload, prompt, options or [])
        return await self._run.questions.ask(
            question, deadline, key, RemoteCodec(type_, answer), attachments=attachments, remote=True
        )

    async def ask_while(
        self, moved_on: Callable[[], Awaitable[None]], type_: str, payload: Any, answer: Schema, *, key: str,
        **more: Any,
    ) -> Any:  # fmt: skip
        """As `ask`, for as long as the remote side asks: `moved_on` returns when it does not any more. Then what is
        asked here is withdrawn, and Gone raised, unless somebody has answered here at that very moment. For that the
        run stays in memory, where not too many do; one that was parked is woken from time to time to look."""
        with self._run.parking.exempt(), contextlib.ExitStack() as looking:
            if key in self.asked():  # it was parked, and is not again before it has looked
                looking.enter_context(self._run.waits.busy())
                clock = self._run.data.clock
                clock.call_at(clock.monotonic() + _LOOK_WITHIN, looking.close)
            asking = asyncio.ensure_future(self.ask(type_, payload, answer, key=key, **more))
            beside = [asyncio.ensure_future(self._look(moved_on)), asyncio.ensure_future(self._wake(key))]
            try:
                await asyncio.wait({asking, *beside}, return_when=asyncio.FIRST_COMPLETED)
                if not asking.done():
                    await self._gone(key)
                return await asking
            finally:
                for task in (asking, *beside):
                    task.cancel()
                await asyncio.gather(asking, *beside, return_exceptions=True)

    async def _look(self, moved_on: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await moved_on()
            except Exception as error:  # people here are asked all the same
                log_.info("run %s cannot see whether its question is still asked: %s", self._ctx.run_id, error)
                await sleep(self._run.data.clock, LOOK_EVERY)
                continue
            return

    async def _gone(self, key: str) -> None:
        """Withdraw what nobody need answer any more, and raise Gone. Returns where an answer was first."""
        run, question = self._run, self._asks(key)
        if question is None:
            return
        why = f"it was answered {self.there}"
        with run.waits.busy():
            if await run.questions.close(question, "withdrawn", why):
                raise Gone(why)
            await run.pull_inbox()

    @property
    def there(self) -> str:
        """Returns the words for the place of the remote side, for messages."""
        agent = self._run.data.agent
        place = agent.card.metadata.get(MOUNTED_FROM) if agent is not None else None
        return f"at {place}" if place else "elsewhere"

    async def _wake(self, key: str) -> None:
        """Wake the run from time to time while it is parked with this question, to look. The longer it has waited, the
        less it matters when exactly one hears that it need not any more: so a month of waiting costs a few dozen
        looks."""
        clock = self._run.data.clock
        while True:
            question = self._asks(key)
            waited = 0.0 if question is None else (clock.now() - question.asked_at) / 1e6
            pause = max(LOOK_EVERY, waited / _LOOKS)
            with contextlib.suppress(TimeoutError):
                never = asyncio.get_running_loop().create_future()
                await self._run.waits.wait(never, clock.now() + int(pause * 1e6))

    def _asks(self, key: str) -> AskedQuestion | None:
        """The open question with this key."""
        return next((one for one in self._run.questions.open.values() if one.key == f"ask:{key}"), None)


# -- questions ------------------------------------------------------------------------------------------------

_PROMPTS = ("message", "prompt", "question", "text", "title")


class RemoteQuestion(Question[Any]):
    """The remote agent asks."""

    type_: str
    payload: Any
    prompt: str | None = None
    options: list[Option] = msgspec.field(default_factory=list)

    def __prompt__(self) -> str:
        if self.prompt is not None:
            return self.prompt
        if isinstance(self.payload, str):
            return self.payload
        for name in _PROMPTS:
            if isinstance(self.payload, dict) and isinstance(self.payload.get(name), str):
                return str(self.payload[name])
        return self.type_.replace("_", " ")

    def __options__(self) -> list[Option]:
        return self.options


class _FreeForm:
    """Stands in for a Codec where JSON stays JSON."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def encode(self, value: Any) -> Any:
        return value.payload if isinstance(value, RemoteQuestion) else value

    def decode(self, value: Any, kind: type[Invalid]) -> Any:
        return value


class RemoteCodec(QuestionCodec):
    """A question whose type and schemas are known only when it is asked."""

    def __init__(self, type_: str, answer: Schema) -> None:
        self.cls = RemoteQuestion
        self.type = type_
        self.payload = _FreeForm({})  # type: ignore[assignment]  # the remote side vouches for what it asks
        self.answer = _FreeForm(answer)  # type: ignore[assignment]


class LeftRun:
    """A run that ends while its handler is not in memory: it was parked, or its process died."""

    def __init__(
        self,
        run: str,
        thread: str | None,
        request: RunRequest,
        why: Literal["cancelled", "lost"],
        records: Mapping[str, tuple[int, Recorded]],
    ) -> None:
        self.id = run
        self.thread = thread
        self.request = request
        self.why = why
        self._records = records

    def recorded(self, step: str) -> Any:
        """The result of a step, by its key or (for its first use) its name; None if it was not recorded."""
        if step_place(step) in self._records:
            return self._records[step_place(step)][1].value
        for key, (_, record) in self._records.items():
            place = place_of(key)
            if place is not None and (place.kind, place.name) == ("step", step):
                return record.value
        return None


OnCancel = Callable[[LeftRun], Awaitable[None]]
"""Tells the remote side that a run is over.

Called when a run is cancelled, or fails after crashes, while its handler is not in memory. (A handler in memory gets
CancelledError and notifies the remote side itself.) The run ends when this returns, fails or takes too long. If the
process dies meanwhile, it is called again.
"""

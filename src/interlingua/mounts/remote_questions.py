"""The questions of a remote run, as questions of the local run. Any door may answer them.

Where the remote side asks by requests, or repeats its question after a broken connection, the same question finds the
one that is open here, or the answer that the remote side did not hear. A question that the remote side no longer asks
is withdrawn; a question that is left alone is never answered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ..engine.handler.mounted_run import MountedRun, step_place
from ..engine.ids import now
from ..model import json_values
from ..model.card import Schema
from ..model.content import Part
from ..model.events import Warned
from ..model.run import Option

NO_LONGER_ASKED = "the remote side no longer asks"


class Asked(msgspec.Struct, kw_only=True, eq=False):
    """A question of the remote side."""

    key: str
    """The same for the same question, and for no other that is open at the same time."""
    type: str
    payload: Any
    answer: Schema
    prompt: str | None = None
    options: list[Option] = []
    until: int | None = None  # when it expires at the remote side, in microseconds
    attachments: list[Part] = []
    named: bool = False
    """The key has the remote side's own id of the question, so the same key is always the same question. Without ids,
    a question whose answer was heard may be asked once more in the same words."""
    about: str | None = None
    """The tool call that needs the answer. Only for one tool call, a question in the same words as an open one is the
    same."""
    place: str = ""
    """The key that the question has in the log, set when it is asked."""


class TooLate(Exception):
    """The remote side does not take an answer. Raised by what passes answers on."""

    def __init__(self, *, answered: bool = True, **details: Any) -> None:
        """`answered`: it had another answer before; else it no longer asked."""
        super().__init__("the answer came too late")
        self.answered = answered
        self.details = details


class Settled(Exception):
    """Raised where no answer will come, because the run ends."""


class _Open(msgspec.Struct, eq=False):
    asked: Asked
    wait: asyncio.Task[Any]
    asker: asyncio.Task[Any] | None = None  # answers the request; where the request was repeated, the newest one


def key_of(type_: str, mark: Any) -> str:
    """Returns the key of a question by everything that tells it from others."""
    return f"{type_}-{json_values.digest(mark)[:16]}"


class RemoteQuestions:
    """The questions of one run."""

    def __init__(self, mounted: MountedRun, within: float | None = None) -> None:
        """`within` are the seconds after which a question expires here, where the remote side has no earlier limit."""
        self._mounted = mounted
        self._within = within
        self._open: dict[str, _Open] = {}  # by place
        self._withdrawn = set(mounted.withdrawn())  # places: the same again is a new question
        self._uses: dict[str, int] = {}  # by key: how often it was asked
        self._over = False
        self.undelivered: list[str] = []  # places of questions whose answer the remote side may not have heard
        self.asked_again = asyncio.Event()  # one of these was repeated
        self.silent = False  # the run is only parked: its questions stay open at the remote side too
        self.is_gone: Callable[[], bool] = lambda: False  # tells that the remote side, which asks, cannot be reached
        for place in mounted.asked():
            key, number = _parsed(place)
            self._uses[key] = max(self._uses.get(key, 0), number)
            if not self.passed_on(place):
                self.undelivered.append(place)

    @property
    def busy(self) -> bool:
        return bool(self._open)

    # -- for as long as the remote run waits --------------------------------------------------------------

    async def ask_while(self, asked: Asked, moved_on: Callable[[], Awaitable[None]]) -> Any:
        """Asks under the question's own key until `moved_on` returns, which means that the remote run does not wait any
        more. Raises QuestionExpired where nobody answered, and then Gone where the answer is not wanted any more."""
        asked.place = asked.key
        return await self._mounted.ask_while(
            moved_on, asked.type, asked.payload, asked.answer, key=asked.place, prompt=asked.prompt,
            options=asked.options, deadline=self._seconds(asked), attachments=asked.attachments,
        )  # fmt: skip

    async def deliver(self, asked: Asked, step: str, send: Callable[[], Awaitable[None]]) -> None:
        """Passes an answer on, within a step of this key. An answer that comes too late becomes a warning, unless this
        very answer may have arrived before. `send` may raise TooLate, and calls `passing_on` right before it sends."""
        if await self._mounted.shown_again(step):
            return
        before = self.passed_on(asked.place)
        try:
            await send()
        except TooLate as late:
            if not before:
                warning = self.too_late(asked.place, step=step, answered=late.answered, **late.details)
                await self._mounted.show(warning)

    # -- by a request, which waits for the answer ---------------------------------------------------------

    async def ask(self, asked: Asked) -> Any:
        """Asks, and returns the answer, which is noted as passed on. Raises QuestionExpired where nobody answered, and
        Settled where the run ends. Cancelling means that the remote side takes its question back."""
        place = asked.place = self._place_of(asked)
        open_ = self._open.get(place)
        if open_ is not None and open_.asked.payload != asked.payload:  # an answer to that is none to this
            open_.wait.cancel()
            self._mounted.withdraw(place, "the remote side asks something else now")
            open_ = None
        if open_ is None:
            wait = self._mounted.ask(
                asked.type, asked.payload, asked.answer, key=place, prompt=asked.prompt, options=asked.options,
                deadline=self._seconds(asked), attachments=asked.attachments,
            )  # fmt: skip
            open_ = self._open[place] = _Open(asked, asyncio.ensure_future(wait))
        me = open_.asker = asyncio.current_task()
        try:
            answer = await asyncio.shield(open_.wait)
            if open_.asker is me:
                await self.passing_on(place)
        except asyncio.CancelledError:
            if me is not None and me.cancelling():
                if open_.asker is me and not self._over:
                    self._left(place, open_)
                raise
            self._close(place, open_)
            if self.silent:
                await asyncio.Event().wait()  # until the connection ends
            raise Settled from None
        except BaseException:
            self._close(place, open_)
            raise
        if open_.asker is me:
            self._close(place, open_)
        return answer

    def _left(self, place: str, open_: _Open) -> None:
        """Notes that a request was taken back, or has ended with its connection."""
        if self.is_gone():
            self._note_undelivered(place)  # the remote side may come back, and ask again
            return
        self._close(place, open_)
        open_.wait.cancel()
        self.withdraw(place, NO_LONGER_ASKED)

    def _close(self, place: str, open_: _Open) -> None:
        if self._open.get(place) is open_:
            del self._open[place]

    def _note_undelivered(self, place: str) -> None:
        if place not in self.undelivered:
            self.undelivered.append(place)

    def _place_of(self, asked: Asked) -> str:
        key = asked.key
        if asked.named:
            number = 1
            while (place := f"{key}-{number}") in self._withdrawn:
                number += 1
            return place
        for place in self.undelivered:
            if _parsed(place)[0] == key:
                self.undelivered.remove(place)
                self.asked_again.set()
                if place not in self._withdrawn:
                    return place
                break
        for place, open_ in self._open.items():
            same = (open_.asked.key, open_.asked.about, open_.asked.payload) == (key, asked.about, asked.payload)
            if same and asked.about is not None and not open_.wait.done():
                return place
        self._uses[key] = self._uses.get(key, 0) + 1
        return f"{key}-{self._uses[key]}"

    def _seconds(self, asked: Asked) -> float | None:
        """Returns the time until the question expires here."""
        if asked.until is None:
            return self._within
        left = max(0.0, (asked.until - now()) / 1e6)
        return left if self._within is None else min(self._within, left)

    # -- questions that are over --------------------------------------------------------------------------

    def withdraw(self, place: str, reason: str) -> None:
        """Withdraws a question, if it is open. When the remote side asks it again, it is asked anew."""
        if place in self._mounted.open():
            self._mounted.withdraw(place, reason)
            self._withdrawn.add(place)

    def refused(self, place: str) -> None:
        """Notes that the remote side does not take the answer. When it asks again, the question is asked anew."""
        self._withdrawn.add(place)

    def withdraw_all(self, reason: str) -> None:
        """Withdraws all questions, because the remote side is gone and cannot take an answer. When it returns, it may
        repeat them."""
        for place in list(self._open):
            self._open.pop(place).wait.cancel()
            self._note_undelivered(place)
        for place in self._mounted.open():
            self.withdraw(place, reason)

    # -- answers ------------------------------------------------------------------------------------------

    async def passing_on(self, place: str) -> None:
        """Notes that the answer goes to the remote side now. Returns when that is on record."""
        if not self.passed_on(place):
            self._mounted.record(_heard(place), None)
            await self._mounted.committed()

    def passed_on(self, place: str) -> bool:
        """Tells if the answer may have reached the remote side, before a crash or a moment ago. The remote side may
        have moved on since with just this answer."""
        return self._mounted.recorded(_heard(place))

    def too_late(self, place: str, *, step: str, answered: bool = True, **details: Any) -> Warned:
        """Returns a warning, to be shown in a step, about an answer that was given here and is not the one that counts:
        the remote side had another before, or (not `answered`) no longer asked. There is no other warning about it."""
        self._mounted.record(_heard(place), None)
        question, answer = self._mounted.answers()[place]
        by = f" (by {answer.by})" if answer.by else ""
        why = "had been answered {} before" if answered else "was no longer asked {}"
        message = f"the answer given here{by} came too late: the question {why.format(self._mounted.there)}"
        return Warned(message, {"question": question, **details}, step_place(step))

    def unused(self, step: str) -> list[Warned]:
        """Returns the same, of all answers that were given here and never went to the remote side, which has gone on
        without them."""
        unused = [place for place in self._mounted.answers() if not self.passed_on(place)]
        return [self.too_late(place, step=step, answered=False) for place in unused]

    async def settle(self) -> None:
        """Ends all waiting at the end of the run: no answer will come."""
        self._over = True
        waits = [open_.wait for open_ in self._open.values()]
        for wait in waits:
            wait.cancel()
        if waits:  # else no turn of the loop is lost
            await asyncio.gather(*waits, return_exceptions=True)


def _heard(place: str) -> str:
    """Returns the step that records that an answer was passed on."""
    return f"heard-{place}"


def _parsed(place: str) -> tuple[str, int]:
    """Returns the key in a place, and how often it was asked."""
    key, _, number = place.rpartition("-")
    with contextlib.suppress(ValueError):
        return key, int(number)
    return place, 0

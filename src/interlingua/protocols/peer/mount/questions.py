"""Questions of a remote task, as questions of the local run.

Any door may answer. The remote shows one question at a time; one that was answered elsewhere is withdrawn here, and one
that is repeated after a broken connection gets the answer that the remote did not hear. A withdrawn question that the
remote repeats is asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from ....engine.handler.mounted_run import Gone, MountedRun
from ....engine.ids import now
from ....model.errors import QuestionExpired
from ....model.events import Warned
from ....model.run import Option
from ....model.schemas import usable
from ..translate import parts

STEP = "task"
"""The step of all output; it is never recorded, so that it can always be shown again."""

_TEXT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
_NAMED, _UNNAMED = "question-", "input-"

Answer = Callable[[str, list[dict[str, Any]]], None]  # the key of a question, and the parts to send


def named_by(key: str) -> str | None:
    """Returns the remote's name of a question, where it has one."""
    return key.removeprefix(_NAMED) if key.startswith(_NAMED) else None


class _Open:
    def __init__(self, key: str, task: asyncio.Task[None]) -> None:
        self.key = key
        self.task = task
        self.answer: list[dict[str, Any]] | None = None


class Asking:
    """The questions of one run."""

    def __init__(self, mounted: MountedRun, answered: Answer, failed: Callable[[BaseException], None]) -> None:
        self._mounted = mounted
        self._answered = answered
        self._failed = failed
        self._open: _Open | None = None
        self._unnamed = max(0, sum(key.startswith(_UNNAMED) for key in mounted.asked()) - 1)
        self._first = True
        self.late: list[Warned] = []  # answers that were given while no handler was here, and came too late
        self._tries: dict[str, int] = {}
        self._withdrawn: set[str] = set()  # places whose question can no longer be answered

    def asked(self, question: Any, said: str) -> None:
        """Takes the question of a task that waits for input. `said` is the last message, where no question is given."""
        question = question if isinstance(question, dict) else {}
        id_ = question.get("id")
        if not isinstance(id_, str):
            if self._open is None:
                self._unnamed += 1
            id_ = f"{_UNNAMED}{self._unnamed}"
        else:
            id_ = f"{_NAMED}{id_}"
        if self._open is not None and self._open.key == id_:
            if self._open.answer is not None:
                self._answered(id_, self._open.answer)
            return
        self._withdraw()
        self._forget_others(id_)
        self._ask(id_, question, said)

    def _ask(self, id_: str, question: dict[str, Any], said: str) -> None:
        task = asyncio.ensure_future(self._wait(id_, question, said))
        self._open = _Open(id_, task)

    def moved_on(self) -> None:
        """Notes that the task waits for nothing now."""
        self._withdraw()
        self._forget_others(None)

    def _forget_others(self, but: str | None) -> None:
        """Withdraws other questions, which may be open after a resume although they were answered at the remote
        meanwhile."""
        if self._first:
            self._first = False
            for key in self._mounted.asked():
                if but is None or not key.startswith(but):
                    self._take_back(key)
            self.late = self._mounted.unused(STEP, but=but)

    def refused(self, key: str, why: str) -> None:
        """Asks again, because the remote did not take the answer."""
        open_ = self._open
        if open_ is None or open_.key != key or open_.answer is None or self._last is None:
            return
        self._tries[key] = self._tries.get(key, 0) + 1
        question, said = self._last
        self._ask(key, {**question, "prompt": None}, f"{why} {said}".strip())

    def too_late(self, key: str) -> Warned:
        """Returns a warning that the remote had another answer before."""
        return self._mounted.too_late(self._place(key), step=STEP)

    def _place(self, key: str) -> str:
        tries = self._tries.get(key, 0)
        return f"{key}.{tries}" if tries else key

    def again(self, key: str) -> int:
        """Returns how often an answer to a question was refused, or the question withdrawn too early."""
        return self._tries.get(key, 0)

    _last: tuple[dict[str, Any], str] | None = None

    async def _wait(self, id_: str, question: dict[str, Any], said: str) -> None:
        self._last = (question, said)
        free = "answer_schema" not in question
        schema = _TEXT if free else usable(question["answer_schema"])
        type_ = question.get("type")
        prompt = question.get("prompt")
        options: list[Option] = []
        with contextlib.suppress(msgspec.ValidationError):
            options = msgspec.convert(question.get("options") or [], list[Option])
        while (place := self._place(id_)) in self._withdrawn:
            self._tries[id_] = self._tries.get(id_, 0) + 1
        until = question.get("deadline")
        deadline = max(0.0, (until - now()) / 1e6) if type(until) is int else None
        try:
            answer = await self._mounted.ask(
                type_ if isinstance(type_, str) and type_ else "input_required",
                question.get("payload", {"message": said}), schema, key=place,
                prompt=prompt if isinstance(prompt, str) else said or None, options=options,
                deadline=deadline,
            )  # fmt: skip
            await self._mounted.passing_on(place)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            return  # the run is being left
        except Gone:  # it was withdrawn before a crash, and the remote still asks it
            self._withdrawn.add(place)
            await self._wait(id_, question, said)
            return
        except Exception as error:
            if isinstance(error, QuestionExpired) and deadline is not None:
                return  # it expires there too, and the remote reports that
            self._failed(error)
            return
        given = [parts.text(answer["text"])] if free else [parts.data({"answer": answer})]
        open_ = self._open
        if open_ is not None and open_.key == id_:
            open_.answer = given
            self._answered(id_, given)

    def _withdraw(self) -> None:
        open_, self._open = self._open, None
        if open_ is not None and not open_.task.done():
            open_.task.cancel()
            self._take_back(self._place(open_.key))

    def _take_back(self, place: str) -> None:
        if place in self._mounted.open():
            self._mounted.withdraw(place, "it was answered elsewhere")
            self._withdrawn.add(place)

    async def leave(self) -> None:
        """Leaves the questions open, when the run is over or parked."""
        open_, self._open = self._open, None
        if open_ is not None:
            open_.task.cancel()
            await asyncio.gather(open_.task, return_exceptions=True)

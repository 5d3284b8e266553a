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

from ....model.errors import QuestionExpired
from ....model.run import Option
from ....model.schemas import usable
from ....mounts.remote_questions import Asked, RemoteQuestions, Settled
from ..translate import parts

_TEXT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
_NAMED, _UNNAMED = "question-", "input-"
_ELSEWHERE = "it was answered elsewhere"

Send = Callable[[Asked, list[dict[str, Any]]], None]  # sends the parts of an answer


def named_by(key: str) -> str | None:
    """Returns the remote's name of a question, where it has one."""
    return key.removeprefix(_NAMED) if key.startswith(_NAMED) else None


class _Current(msgspec.Struct, eq=False):
    """The question that the task shows."""

    asked: Asked
    question: dict[str, Any]
    said: str
    task: asyncio.Task[None]
    answer: list[dict[str, Any]] | None = None


class TaskQuestions:
    """The questions of one task."""

    def __init__(
        self, questions: RemoteQuestions, before: list[str], send: Send, failed: Callable[[BaseException], None]
    ) -> None:
        """`before` are the places of questions that were asked before the run was resumed. The task shows at most the
        newest of them."""
        self._questions = questions
        self._before = before
        self._send = send
        self._failed = failed
        self._current: _Current | None = None
        self._unnamed = max(0, sum(place.startswith(_UNNAMED) for place in before) - 1)

    def asked(self, question: Any, said: str) -> None:
        """Takes the question of a task that waits for input. `said` is the last message, where no question is given."""
        question = question if isinstance(question, dict) else {}
        id_, current = question.get("id"), self._current
        if isinstance(id_, str):
            key = f"{_NAMED}{id_}"
        else:
            self._unnamed += current is None
            key = f"{_UNNAMED}{self._unnamed}"
        if current is not None and current.asked.key == key:
            if current.answer is not None:
                self._send(current.asked, current.answer)
            return
        self._withdraw(but=key)
        self._ask(key, question, said)

    def moved_on(self) -> None:
        """Notes that the task waits for nothing now."""
        self._withdraw(but=None)

    def refused(self, asked: Asked, why: str) -> None:
        """Asks again, because the remote did not take the answer."""
        current = self._current
        if current is not None and current.asked is asked and current.answer is not None:
            self._questions.refused(asked.place)
            self._ask(asked.key, {**current.question, "prompt": None}, f"{why} {current.said}".strip())

    def _ask(self, key: str, question: dict[str, Any], said: str) -> None:
        asked = _asked(key, question, said)
        self._current = _Current(asked, question, said, asyncio.ensure_future(self._wait(asked)))

    async def _wait(self, asked: Asked) -> None:
        try:
            answer = await self._questions.ask(asked)
        except (asyncio.CancelledError, Settled):
            return  # it is withdrawn, or the run is being left
        except Exception as error:
            if not (isinstance(error, QuestionExpired) and asked.until is not None):
                self._failed(error)
            return  # it expires there too, and the remote reports that
        current = self._current
        if current is not None and current.asked is asked:
            free = asked.answer is _TEXT
            current.answer = [parts.text(answer["text"])] if free else [parts.data({"answer": answer})]
            self._send(asked, current.answer)

    def _withdraw(self, *, but: str | None) -> None:
        """Withdraws the question that the task no longer shows, and those that are open from before although they were
        answered at the remote meanwhile."""
        current, self._current = self._current, None
        if current is not None and not current.task.done():
            if current.asked.place:
                self._questions.withdraw(current.asked.place, _ELSEWHERE)
            current.task.cancel()
        before, self._before = self._before, []
        for place in before:
            if but is None or not place.startswith(f"{but}-"):
                self._questions.withdraw(place, _ELSEWHERE)

    async def leave(self) -> None:
        """Leaves the questions open, when the run is over or parked."""
        current, self._current = self._current, None
        if current is not None:
            current.task.cancel()
            await asyncio.gather(current.task, return_exceptions=True)


def _asked(key: str, question: dict[str, Any], said: str) -> Asked:
    type_, prompt, until = question.get("type"), question.get("prompt"), question.get("deadline")
    options: list[Option] = []
    with contextlib.suppress(msgspec.ValidationError):
        options = msgspec.convert(question.get("options") or [], list[Option])
    return Asked(
        key=key, named=True, type=type_ if isinstance(type_, str) and type_ else "input_required",
        payload=question.get("payload", {"message": said}),
        answer=usable(question["answer_schema"]) if "answer_schema" in question else _TEXT,
        prompt=prompt if isinstance(prompt, str) else said or None, options=options,
        until=until if type(until) is int else None,
    )  # fmt: skip

"""Which news of a task counts after it was met again. Pure.

Two ways tell it then: letters, in their order but some of them old, and the answer to whoever asks how the task stands,
which overtakes them and may itself be overtaken by a letter that is newer. So what is not sure to be the newest has no
effect, and it is asked for once more how the task stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..translate import task_states


class Standing:
    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._met_again = False
        self._awaiting = False  # an answer
        self._unsure = False  # it has to be asked for again, when the answer is there
        self._newer = False  # a letter came since it was asked for

    def asked(self, *, again: bool) -> None:
        """The task was begun, or asked for over another connection."""
        self._met_again = self._met_again or again
        self._awaiting, self._unsure, self._newer = self._met_again, False, False

    def confirmed(self) -> None:
        """The node has heard what we asked; its answer, if any, comes right behind."""
        self._awaiting = False
        if self._unsure:
            self._ask_again()

    def counts(self, frame: dict[str, Any]) -> bool:
        """Whether a state is the newest, for all we know."""
        if not self._met_again or frame.get("status") in task_states.TERMINAL:
            return True
        if "server_seq" not in frame:  # an answer
            self._awaiting = False
            if self._newer:
                self._ask_again()
                return False
            if self._unsure:
                self._ask_again()
            return True
        if frame.get("_was_queued") is True:  # it may be old
            if self._awaiting:
                self._unsure = True
            else:
                self._ask_again()
            return False
        self._newer = True
        return True

    def _ask_again(self) -> None:
        self._awaiting, self._unsure, self._newer = True, False, False
        self._ask()

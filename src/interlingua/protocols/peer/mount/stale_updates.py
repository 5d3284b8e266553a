"""Decides which updates of a task count after a reconnect. Pure.

Updates come in two ways then: letters, in their order but some of them old, and the answer to a status request, which
overtakes them and may itself be overtaken by a newer letter. So an update that may not be the newest has no effect, and
the status is requested once more.
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
        """Notes that the task was begun, or its status requested over another connection."""
        self._met_again = self._met_again or again
        self._awaiting, self._unsure, self._newer = self._met_again, False, False

    def confirmed(self) -> None:
        """Notes that the node has heard the request; its answer, if any, comes right after."""
        self._awaiting = False
        if self._unsure:
            self._ask_again()

    def counts(self, frame: dict[str, Any]) -> bool:
        """Tells if a state is the newest, as far as this side can know."""
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

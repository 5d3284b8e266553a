"""The limit on the runs of one agent that execute at once in this process."""

from __future__ import annotations


class AgentLimit:
    """The slots of one agent, or of all its versions together."""

    __slots__ = ("has_line", "limit", "taken")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0  # slots of runs that execute, or are being claimed
        self.has_line = False  # it was full, and runs that came then may stand in line

    @property
    def room(self) -> int:
        return self.limit - self.taken

    def take(self) -> None:
        self.taken += 1
        if self.taken >= self.limit:
            self.has_line = True

    def free(self) -> None:
        self.taken -= 1

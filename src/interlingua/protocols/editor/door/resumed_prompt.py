"""The params of a prompt that another process began to answer, and this process answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .sessions import Session, Turn


class Again:
    """The params of a prompt that another process began to answer."""

    def __init__(self, session: Session, turn: Turn) -> None:
        self.session = session
        self.turn = turn

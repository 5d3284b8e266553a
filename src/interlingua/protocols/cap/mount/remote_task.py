"""A task that is worked on elsewhere, at a server or by a process: what both can do."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from ....model import json_values
from ....model.errors import InterlinguaError, InvalidRequest
from ....model.trace_context import Carrier
from ....transports import json_text
from .. import wire

log = logging.getLogger("interlingua.cap.agent")

Update = tuple[str, dict[str, Any]]

PIECES = ("delta", "activity")
ANSWERS = ("status", "message", "error_response")
"""An unreadable message of these kinds may be the awaited answer."""


class RemoteTask(Protocol):
    """The connection to one task that is worked on elsewhere."""

    name: str  # for messages, without secrets
    again: bool  # whether the task can be found again from another process
    noise: tuple[int, str]  # lines that were no messages: how many, and the first
    cursor: str | None  # the last update that was given
    begun: asyncio.Event  # the task is there: messages to it arrive

    async def begin(self, notice: wire.DelegationNotice, trace: Carrier) -> None:
        """Begins the task, or takes it up: where it can be found again, together with the first read of it."""

    async def next(self) -> Update: ...
    async def send(self, message: wire.AnyMessage) -> None:
        """Sends a message. Raises TooLate for an answer that nobody waits for any more."""
        ...

    async def cancel(self, back: wire.ErrorResponse) -> None: ...
    async def moved_on(self, question: Any) -> None:
        """Waits until the last question that was returned needs no answer any more."""
        ...

    def settled(self, question: str) -> None:
        """Notes that the task itself reported a question as settled."""
        ...

    async def close(self) -> None: ...


def decoded(given: bytes | str, *, pieces: bool) -> Any:
    """Returns a decoded message of the other side. Only values that our log can hold pass. `pieces` means pieces of a
    stream, whose halves of characters are joined where they are shown."""
    try:
        told = json_text.decode_pieces(given, lambda _: pieces)
        json_values.check(told, InvalidRequest, what="what it says", halves=pieces)
    except json_text.Unreadable as error:
        raise InvalidRequest(str(error)) from None
    except InterlinguaError as error:  # nested too deep
        raise InvalidRequest(error.message) from None
    return told

"""Records the observations of a message that was sent, of one that was received, and of a requested connection."""

from __future__ import annotations

from typing import Any

import msgspec

from interlingua.transports.raw_client import Answer

from ..base import applies
from .feed import Event
from .wires import Frame, Host, SocketWire


class Sent(msgspec.Struct):
    """A message that the node was asked to send: the answer of the node, and the frame that came to the checker's
    peer."""

    body: dict[str, Any]
    answer: Answer
    frame: Frame | None = None
    why: str = ""  # the reason why nothing came

    @property
    def arrived(self) -> Frame:
        """The frame that arrived. The check does not apply without one: nothing can arrive without a peer of the
        checker."""
        applies(self.frame is not None, self.why)
        assert self.frame is not None
        return self.frame


class Heard(msgspec.Struct):
    """The traces of a message that the checker's peer sent to the node."""

    frame: Frame
    event: Event | None = None
    entry: dict[str, Any] | None = None  # entry of /message:recv
    answer: Frame | None = None  # answer of an agent behind the node


class Connecting(msgspec.Struct):
    """The result of asking the node to connect to the checker's peer."""

    host: Host
    answer: Answer
    wire: SocketWire | None = None
    why: str = ""

"""The interface between the guided tour (`interlingua demo`) and the protocols.

The tour tells the story, and prints. A protocol's `demo.py` knows the requests that its part of the story needs, and
what of their answers is worth showing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any
from typing import Protocol as Interface

import msgspec

__all__ = ["Demo", "Lines", "Tour"]


class Lines(Interface):
    """The pipes of a program: messages as lines of JSON."""

    async def send(self, message: Any) -> None: ...

    async def receive(self) -> Any:
        """Returns the next message. Raises CommandError if the program has ended."""
        ...


class Tour(Interface):
    """The door of a protocol on the server of the tour. Every request is shown as the line that does the same in a
    shell; paths are below the prefix of the door."""

    async def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, *,
        refused: bool = False, quiet: bool = False,
    ) -> Any:  # fmt: skip
        """Sends a request, and returns its answer as JSON. `refused`: expects an error with HTTP status 400; `quiet`:
        does not show the request."""
        ...

    def events(self, path: str, headers: dict[str, str] | None = None) -> AsyncIterator[tuple[str | None, Any]]:
        """Yields the id and the data of each event of a stream, as they come."""
        ...

    def stdio(self) -> AbstractAsyncContextManager[Lines]:
        """Starts the agent of the first part as a program that speaks this protocol over its pipes."""
        ...

    def show(self, line: str) -> None: ...

    def show_json(self, value: Any) -> None: ...


class Demo(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a protocol in the tour. Only the first scene is for all; a later one goes to the protocol that is
    preferred among those that have it."""

    title: str
    about: str
    hello: Callable[[Tour], Awaitable[None]]
    """Calls the agent `echo`, and shows the answer."""
    call: Callable[[Tour, str, Any, bool], Awaitable[Any]] | None = None
    """(tour, agent, input, quiet) → the output"""
    ask: Callable[[Tour, str, Any], Awaitable[str]] | None = None
    """(tour, agent, input) → the run, which has asked a question that this client cannot be asked"""
    result: Callable[[Tour, str, Any, str], Awaitable[Any]] | None = None
    """(tour, agent, input, run) → the output of that run, when the client asks again"""
    answer: Callable[[Tour, str, Any], Awaitable[None]] | None = None
    """(tour, run, answer): answers the question of a run"""
    begin: Callable[[Tour, str, Any], Awaitable[str]] | None = None
    """(tour, agent, input) → the run, which goes on by itself"""
    read: Callable[[Tour, str, str], AsyncIterator[tuple[str, str]]] | None = None
    """(tour, run, after) → the text of the run, in pieces, each with the place after which a reader can go on"""
    delegate: Callable[[Tour, str, str], Awaitable[str]] | None = None
    """(tour, agent, task) → the run of a team"""

"""The interface of a protocol.

Every protocol has a folder with the same file names, and registers a `Protocol` under the entry point
`interlingua.protocols`; the built-in ones do it the same way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from typing import Protocol as Protocol_

import msgspec

if TYPE_CHECKING:
    from starlette.routing import BaseRoute
    from starlette.types import Scope

    from ..engine.engine import Engine
    from ..engine.ports import Replica
    from ..model.run import Caller
    from ..transports.channel import Channel
    from ..transports.jsonrpc.connection import Trace

__all__ = ["Bound", "Door", "Opening", "Protocol"]


class Bound(Protocol_):
    """Finds the process that holds a session or connection, where several processes serve one store."""

    def elsewhere(self, scope: Scope) -> str | None:
        """Returns the name of what a request asks for and this process does not have; None where this process can
        answer. Looks at the head of the request alone, and reads no body."""
        ...

    async def locate(self, named: str, caller: Caller | None) -> Replica | None:
        """Returns the replica that has it. None: it is here now, or no replica has it, and this process answers.
        `caller` is None where the caller is not known."""
        ...


class Opening(msgspec.Struct):
    """The facts that a door gets when the engine is up."""

    address: str  # of the shared app
    listeners: bool  # whether it may open ports of its own
    serve: Callable[..., Awaitable[str]]  # (ASGI app, host, ports to try, …) → the address where that is answered


class Door(msgspec.Struct):
    """The part of a protocol in the HTTP app: routes under its prefix, and a command line that a new user can paste."""

    routes: list[Any]  # starlette routes
    hint: Callable[[str, str], str]  # (base address, agent name) → a command line
    close: Callable[[], Awaitable[None]] | None = None  # when the server stops: ends what would stay open for ever
    start: Callable[[Opening], Awaitable[list[str]]] | None = None  # begins its own work; gives lines for the owner
    stop: Callable[[], Awaitable[None]] | None = None  # ends that work, when no more requests can come
    bound: Any = None  # finds the process that holds a session: `Bound`


class Protocol(msgspec.Struct):
    name: str
    title: str
    prefix: str = ""  # of its HTTP door
    door: Callable[..., Door] | None = None  # (engine, authenticator, the owner's settings for it…)
    stdio: Callable[[Engine, Channel, Trace | None], Awaitable[None]] | None = None  # serves one peer over pipes
    loaders: dict[str, Callable[[Any], Awaitable[list[Any]]]] = {}  # kinds of target that it can mount


if TYPE_CHECKING:
    Routes = list[BaseRoute]

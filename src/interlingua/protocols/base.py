"""The interface of a protocol: the values that describe it, and the values that its door gives to the server.

Every protocol has a folder with the same file names, and registers a `Protocol` under the entry point
`interlingua.protocols`; the built-in ones do it the same way. The description holds strings, so that listing the
installed protocols imports no door and no mount.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal
from typing import Protocol as Interface

import msgspec

if TYPE_CHECKING:
    from starlette.types import Scope

    from ..engine.ports import Replica
    from ..model.card import AgentCard
    from ..model.run import Caller, Run

__all__ = [
    "OTHER_SERVERS", "TEAMS_AND_PROTOCOLS", "Affinity", "Command", "Door", "Opening", "PortClaim", "Protocol",
    "TargetKind", "addresses", "command",
]  # fmt: skip

OTHER_SERVERS, TEAMS_AND_PROTOCOLS = "Other servers", "Teams, protocols"
"""Panels of the command line."""

Use = Literal["key", "headers", "env", "directory"]
Part = Literal[
    "door", "stdio", "mount", "door_settings", "mount_settings", "check", "ports", "probes", "parity", "demo"
]


class TargetKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of target that a protocol mounts: the text before the colon, and what may be set for such a mount."""

    scheme: str
    form: Literal["address", "command", "folder"]
    example: str
    """A whole target, for help and docs."""
    uses: frozenset[Use] = frozenset()
    """The settings of a mount that mean something here; others are refused."""
    secret_path: bool = False
    """The path of the address is a secret: whoever has it may connect."""


def addresses(
    *schemes: str, example: str, uses: tuple[Use, ...] = ("key", "headers"), secret_path: bool = False
) -> tuple[TargetKind, ...]:
    """Returns kinds of target that are addresses. `example`: the rest of the address, from its host on."""
    return tuple(
        TargetKind(
            scheme=scheme, form="address", example=f"{scheme}://{example}", uses=frozenset(uses),
            secret_path=secret_path,
        )
        for scheme in schemes
    )  # fmt: skip


def command(scheme: str, example: str) -> TargetKind:
    """Returns a kind of target that is a command, started here. `example`: the command."""
    return TargetKind(
        scheme=scheme, form="command", example=f"{scheme}:{example}", uses=frozenset(("env", "directory"))
    )


class Command(msgspec.Struct, frozen=True):
    """A command of the command line. Its help is the docstring of its function."""

    name: str
    target: str
    """`module:function`. The function adds the command to the command line: `(typer.Typer, Command) -> None`."""
    panel: str
    """The heading under which help lists it."""


class Affinity(Interface):
    """Finds the process that holds a session or connection, where several processes serve one store."""

    def elsewhere(self, scope: Scope) -> str | None:
        """Returns the name of what a request asks for and this process does not have; None where this process can
        answer. Looks at the head of the request alone, and reads no body."""
        ...

    async def locate(self, named: str, caller: Caller | None) -> Replica | None:
        """Returns the replica that has it. None: it is here now, or no replica has it, and this process answers.
        `caller` is None where the caller is not known."""
        ...


class PortClaim(msgspec.Struct, frozen=True):
    """A port that a door opens for itself, beside the shared one."""

    setting: str
    """The name of the setting in the section of the door."""
    host: str
    port: int | None
    """None or 0: any free one."""


class Opening(msgspec.Struct):
    """The facts that a door gets when the engine is up."""

    base_url: str | None
    """The address of the door, with its prefix; None where the app is embedded in another, and its address unknown."""
    serve: Callable[..., Awaitable[str]] | None
    """(ASGI app, host, ports to try, …) → the address where that is answered. None: the door may open no ports."""


class Door(msgspec.Struct, kw_only=True):
    """The part of a protocol in the HTTP app."""

    routes: list[Any]
    """Routes of starlette, below the prefix."""
    root_routes: list[Any] = []
    """Routes at the root of the app, such as /.well-known/…; a path that two doors claim is refused."""
    hint: Callable[[str, AgentCard], str]
    """(address of the door, with its prefix; agent) → a command line to paste."""
    lifespan: Callable[[Opening], AbstractAsyncContextManager[list[str]]] | None = None
    """The door's own work, from the start of the engine until no more requests can come. Yields notes for the owner."""
    close_streams: Callable[[], Awaitable[None]] | None = None
    """Ends the answers that would stay open for ever, before the HTTP server stops."""
    affinity: Affinity | None = None
    callback_body: Callable[[Run], Any] | None = None
    """Makes the body of a callback that a request through this door asked for."""
    refuses: Callable[[AgentCard], list[str]] | None = None
    """Returns the reasons why the door cannot show an agent."""


class Protocol(msgspec.Struct, frozen=True, kw_only=True):
    """A protocol. Parts that are objects are named as `module:attribute`, and imported when first needed."""

    name: str
    title: str
    about: str
    """A few words beside the title: the name alone is often that of several protocols."""
    prefix: str = ""
    """The path of its door in the HTTP app."""
    targets: tuple[TargetKind, ...] = ()
    rank: int = 100
    """The order of preference for an address that speaks several protocols: the lowest wins. Lists follow it too."""
    door: str = ""
    """(Engine, Authenticator, settings or None) → Door"""
    stdio: str = ""
    """(Engine, Channel, Trace or None) → Awaitable[None]: serves one client over pipes."""
    mount: str = ""
    """(Target) → Awaitable[list[Agent]]"""
    door_settings: str = ""
    """A struct type: the settings of the door."""
    mount_settings: str = ""
    """A struct type: the settings of one mount."""
    check: str = ""
    """(settings, cards of the agents) → Iterable[Problem]: finds mistakes of the settings, and opens nothing."""
    ports: str = ""
    """(settings) → Iterable[PortClaim]: the ports that the door opens, found without opening one."""
    probes: str = ""
    """Recognises the protocol at an address or on pipes: `detection.probe.Probes`."""
    parity: str = ""
    """A module with the tables DOOR and MOUNT."""
    demo: str = ""
    """Its part of the tour: `cli.demo.tour.Part`."""
    commands: tuple[Command, ...] = ()

    def load(self, part: Part) -> Any:
        """Returns a part, or None where the protocol has none."""
        target: str = getattr(self, part)
        return resolve_name(target) if target else None

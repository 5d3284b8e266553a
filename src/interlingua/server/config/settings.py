"""Declares the settings of the server, and collects those of the engine, the bus and the doors: every key of
`interlingua.toml`.

Imports nothing that takes long: every command asks it for the store.
"""

from __future__ import annotations

from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ...bus.port import BusSettings
from ...engine.settings import Settings
from ...setting_types import MIB, Count, CountOrNone, Interval, Port, Seconds
from .fields import Entries, Setting, described


class ProjectSettings(msgspec.Struct, kw_only=True, frozen=True):
    project: Annotated[
        str | None,
        Meta(
            description="The name of the project that the runs belong to. Processes that share a store use the same "
            "name. By default `project` in `[tool.interlingua]` of `pyproject.toml`, else the name of the package "
            "there; else a random name, which is good for a store in the project's folder alone.",
            extra={"metavar": "NAME"},
        ),
    ] = None


class ServerSettings(msgspec.Struct, kw_only=True, frozen=True):
    host: Annotated[
        str,
        Meta(
            description="The address to listen on. Any address but loopback needs keys (`interlingua keys`) or "
            "issuers.",
            extra={"basic": "The address; by default 127.0.0.1."},
        ),
    ] = "127.0.0.1"
    port: Annotated[
        Port, Meta(description="The port; 0 takes any free one.", extra={"basic": "The port; by default 8000."})
    ] = 8000
    only_doors: Annotated[
        list[str],
        Meta(
            description="Serve only these doors; by default, all of them.",
            extra={"key": "doors", "flag": "--door", "metavar": "NAME", "basic": "Serve only this door."},
        ),
    ] = []
    advertise: Annotated[
        str | None,
        Meta(
            description="The address (`http://HOST:PORT`) at which other processes on the same store reach this one; "
            "by default, the address it listens on.",
            extra={"metavar": "URL"},
        ),
    ] = None
    own_ports: Annotated[bool, Meta(description="Let doors open ports of their own, beside the shared one.")] = True
    elsewhere: Annotated[
        bool,
        Meta(description="Offer the agents of other processes on the same store too (`interlingua worker`)."),
    ] = True
    allowed_hosts: Annotated[
        list[str],
        Meta(
            description="Host headers to accept beside the usual ones.",
            extra={"flag": "--allow-host", "metavar": "HOST", "basic": "Accept this Host header too."},
        ),
    ] = []
    allowed_origins: Annotated[
        list[str],
        Meta(
            description="Browser origins whose pages may send requests and read the responses.",
            extra={"flag": "--allow-origin", "metavar": "ORIGIN", "basic": "Let pages of this origin call."},
        ),
    ] = []
    log: Annotated[
        Literal["json", "text", "off"],
        Meta(
            description="How to log runs, requests and problems on stderr: as JSON lines, as text, or not at all.",
            extra={"basic": "The log on stderr; by default text."},
        ),
    ] = "text"
    trace: Annotated[
        Path | None,
        Meta(
            description="Write every message of every door to FILE, as JSON lines without secrets.",
            extra={"metavar": "FILE"},
        ),
    ] = None
    metrics: Annotated[
        str | None,
        Meta(
            description="Serve `/metrics`, `/healthz` and `/readyz` at this address too, without a key. A port alone "
            "is on loopback. Made for workers, which have no doors. If the store has keys, names of agents, callers "
            "and mounts are shown only to callers with a key.",
            extra={"metavar": "[HOST:]PORT"},
        ),
    ] = None
    reload: Annotated[
        bool,
        Meta(
            description="Watch the files of config, agents and teams, and reload those that change. For development.",
            extra={"flag": "--reload/--no-reload"},
        ),
    ] = False
    shutdown_grace: Annotated[
        CountOrNone,
        Meta(description="Seconds for open connections to end when the server stops. Streams would never end."),
    ] = 3
    max_message_bytes: Annotated[Count, Meta(description="Bytes of one WebSocket message.")] = 32 * MIB


class StoreSettings(msgspec.Struct, kw_only=True, frozen=True):
    path: Annotated[
        Path | None,
        Meta(
            description="The store: a file, or a PostgreSQL database (`postgresql://…`). By default "
            "`.interlingua/store.db` in the folder of the project.",
            extra={
                "flag": "--store",
                "env": "INTERLINGUA_STORE",
                "metavar": "PATH",
                "basic": "The store, if not the project's own.",
            },
        ),
    ] = None


class AuthSettings(msgspec.Struct, kw_only=True, frozen=True):
    audience: Annotated[
        list[str],
        Meta(
            description="The name of this server in tokens, for issuers without an audience of their own.",
            extra={"flag": "--audience", "metavar": "NAME", "basic": "This server's name in tokens."},
        ),
    ] = []
    jwks_url: Annotated[
        list[str],
        Meta(
            description="The addresses of the issuers' keys, in the order of the issuers without one; by default, the "
            "issuers are asked.",
            extra={"flag": "--jwks-url", "metavar": "URL"},
        ),
    ] = []
    scopes: Annotated[
        list[str],
        Meta(
            description="The scopes of callers whose tokens name none of ours (see `interlingua keys add`).",
            extra={"flag": "--issuer-scope", "metavar": "SCOPE"},
        ),
    ] = []


class CallbackSettings(msgspec.Struct, kw_only=True, frozen=True):
    secret: Annotated[
        str | None,
        Meta(
            description="Sign callbacks with this secret.",
            extra={"flag": "--callback-secret", "env": "INTERLINGUA_CALLBACK_SECRET", "secret": True},
        ),
    ] = None
    hours: Annotated[
        float,
        Meta(ge=0, description="Hours for which a failed callback is retried.", extra={"flag": "--callback-hours"}),
    ] = 24.0
    allow_private: Annotated[
        bool,
        Meta(
            description="Allow callbacks to private addresses.",
            extra={"flag": "--callback-private/--no-callback-private"},
        ),
    ] = False


class Mounting(msgspec.Struct, kw_only=True, frozen=True):
    wait: Annotated[Seconds, Meta(description="Seconds for which a start waits for slow mounts.")] = 10.0
    retry_first: Annotated[Interval, Meta(description="Seconds until a mount that is down is tried again.")] = 1.0
    retry_last: Annotated[Interval, Meta(description="The longest of these waits; they double.")] = 60.0
    refresh: Annotated[
        Seconds,
        Meta(
            description="Seconds after which a mount that is up is asked for its agents again; 0 turns it off. An "
            "agent of the Agent Client Protocol is only checked for an answer. A command is only checked after it has "
            "ended, or after one of its runs has failed."
        ),
    ] = 30.0
    patience: Annotated[
        Seconds,
        Meta(description="Seconds for which a run that had begun waits for a mount that is down, after a restart."),
    ] = 60.0


# -- entries of lists -----------------------------------------------------------------------------------------

Only = Annotated[list[str], Meta(description="The names of the agents to serve; by default, all of them.")]


class AgentsEntry(msgspec.Struct, kw_only=True, frozen=True):
    file: Annotated[Path | None, Meta(description="The file.", extra={"metavar": "FILE"})] = None
    only: Only = []


class MountsEntry(msgspec.Struct, kw_only=True, frozen=True):
    target: Annotated[
        str | None,
        Meta(
            description="The place: an address, a link, or a command as `PROTOCOL:COMMAND`. `#AGENT` picks one of "
            "several agents."
        ),
    ] = None
    as_: Annotated[
        str | None, Meta(description="The name of the agent here, if the mount has just one.", extra={"key": "as"})
    ] = None
    prefix: Annotated[str, Meta(description="The prefix of the names of its agents here.")] = ""
    only: Only = []
    key: Annotated[
        str | None, Meta(description="An API key or a bearer token, for an address.", extra={"secret": True})
    ] = None
    headers: Annotated[
        dict[str, str], Meta(description="Headers of every request, for an address.", extra={"secret": True})
    ] = {}
    env: Annotated[
        dict[str, str], Meta(description="Variables of the process, for a command.", extra={"secret": True})
    ] = {}
    directory: Annotated[
        Path | None,
        Meta(description="The folder in which a command runs; by default, the folder of the config file."),
    ] = None
    settings: Annotated[
        dict[str, Any],
        Meta(
            description="Settings of the protocol's mount, by the names of their variables: `INTERLINGUA_MCP_PATIENCE` "
            "is `patience`.",
            extra={"secret": True},
        ),
    ] = {}


class TeamsEntry(msgspec.Struct, kw_only=True, frozen=True):
    dir: Annotated[Path | None, Meta(description="The folder, or the file of the team.", extra={"metavar": "DIR"})] = (
        None
    )
    model: Annotated[str | None, Meta(description="The model of members without one, as provider:name.")] = None


class IssuersEntry(msgspec.Struct, kw_only=True, frozen=True):
    issuer: Annotated[str | None, Meta(description="The address of the issuer, as its tokens have it.")] = None
    audience: Annotated[list[str], Meta(description="The name of this server in its tokens.")] = []
    jwks_url: Annotated[str | None, Meta(description="The address of its keys; by default, the issuer is asked.")] = (
        None
    )
    scopes: Annotated[list[str], Meta(description="The scopes of callers whose tokens name none of ours.")] = []
    algorithms: Annotated[list[str], Meta(description="The only algorithms that may sign its tokens.")] = []


ENTRIES: tuple[Entries, ...] = (
    Entries("agents", "file", "TARGET", "Files with agents.", tuple(described(AgentsEntry, ""))),
    Entries(
        "mounts", "target", "--mount", "Agents of other servers: an address, or a command that is started here.",
        tuple(described(MountsEntry, "")), "TARGET", "Serve the agents of this server too.",
    ),
    Entries("teams", "dir", "--team", "Folders of manifests, each a team.", tuple(described(TeamsEntry, "")), "DIR"),
    Entries(
        "auth.issuers", "issuer", "--issuer", "Issuers whose tokens (JWT) are accepted.",
        tuple(described(IssuersEntry, "")), "URL", "Accept the tokens of this issuer.",
    ),
)  # fmt: skip


# -- sections -------------------------------------------------------------------------------------------------


class Section(msgspec.Struct, frozen=True):
    """A table of the file, and the struct of its settings."""

    name: str
    help: str
    type: type[msgspec.Struct]
    settings: tuple[Setting, ...]


def _section(name: str, type_: type[msgspec.Struct], text: str) -> Section:
    return Section(name, text, type_, tuple(described(type_, name)))


OWN: dict[str, Section] = {
    section.name: section
    for section in (
        _section("", ProjectSettings, "At the top of the file."),
        _section("server", ServerSettings, "The address of the server, and its logs."),
        _section("store", StoreSettings, "The store, and how long it keeps things."),
        _section(
            "bus", BusSettings,
            "The bus tells several servers on one store about each other's changes. One server needs none.",
        ),
        _section(
            "auth", AuthSettings, "Callers beside those with a key of the store (`interlingua keys`)."
        ),
        _section("callbacks", CallbackSettings, "Requests to addresses that callers name."),
        _section("limits", Settings, "Limits and intervals of the engine."),
        _section("mounting", Mounting, "Mounts that are down are tried again, with growing waits."),
    )
}  # fmt: skip


def sections() -> dict[str, Section]:
    """Returns all sections: those of the server, and one for each installed door."""
    from ...protocols.installed import protocols

    return _with_doors(tuple((p.name, p.title, p.prefix, p.door_settings) for p in protocols() if p.door))


@cache
def _with_doors(doors: tuple[tuple[str, str, str, str], ...]) -> dict[str, Section]:
    from pkgutil import resolve_name

    from ...doors.settings import DoorSettings

    return OWN | {
        f"doors.{name}": _section(
            f"doors.{name}", resolve_name(settings) if settings else DoorSettings,
            f"The door of the protocol {title}, under `{prefix}`.",
        )
        for name, title, prefix, settings in doors
    }  # fmt: skip


def all_settings() -> tuple[Setting, ...]:
    return tuple(chain.from_iterable(section.settings for section in sections().values()))


def setting(path: str) -> Setting:
    """Returns a setting of the server, by its path."""
    return next(one for section in OWN.values() for one in section.settings if one.path == path)

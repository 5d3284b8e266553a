"""Turns the table of settings into the objects that the server, the engine, the doors and the mounts are made with."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar, get_args
from urllib.parse import urlsplit

import msgspec

from ...bus.nats import address
from ...bus.port import BusSettings
from ...engine.settings import Settings
from ...model.errors import InterlinguaError, InvalidRequest
from ...mounts.settings import Access
from ...protocols.base import Use
from ...protocols.cap.door.http import CapSettings
from ...protocols.connect.door.api import ConnectSettings
from ...protocols.editor.door.connection import EditorSettings
from ...protocols.editor.door.http_streams import WebSettings as EditorWeb
from ...protocols.mcp.door.connection import McpSettings
from ...protocols.mcp.door.http_streams import WebSettings as McpWeb
from ...protocols.peer.commands_node import Flags, from_config, mistakes, settings_of
from ...protocols.peer.config import NodeSettings
from ...protocols.targets import TargetError, kinds, parse, spelled
from ...security.issuers import ALGORITHMS, Issuer
from ...transports.http.body import HttpLimits
from ...transports.jsonrpc.core import Limits
from .. import health
from ..app import ServeSettings
from ..auth.issuers import issuer
from ..mounts.entry import MountEntry, Mounting
from ..worker_process import WorkSettings
from .load import Config, Entry, Problem, WrongConfig

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T", bound=msgspec.Struct)

DOORS = ("connect", "mcp", "editor", "cap", "peer")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FLAG_FIRST = re.compile(r"^(--[a-z-]+|/availability/\w+|/skills|/limitations):?\s*")
_INDEX_FIRST = re.compile(r"^/(\d+)")
_FLAG = re.compile(r"(?<!\S)--([a-z][a-z-]*)")
_PREFIX = re.compile(r"[A-Za-z0-9._-]*")


async def serve_settings(config: Config) -> ServeSettings:
    """Returns the settings of the server; mistakes become problems of the config. Fetches the keys of issuers."""
    host = config["server.host"]
    ports = {}
    for name in DOORS:
        port, at = ("door_port", "door_host") if name == "peer" else ("port", "host")
        if config[f"doors.{name}.{port}"] is not None and config[f"doors.{name}.enabled"]:
            ports[name] = (config[f"doors.{name}.{at}"], config[f"doors.{name}.{port}"])
    advertise = None
    with _told(config, "server.advertise"):
        advertise = advertised(config["server.advertise"])
    return ServeSettings(
        host=host,
        port=config["server.port"],
        advertise=advertise,
        elsewhere=config["server.elsewhere"],
        allowed_hosts=config["server.allowed_hosts"],
        allowed_origins=config["server.allowed_origins"],
        issuers=await issuers(config),
        callback_secret=config["callbacks.secret"],
        allow_private_callbacks=config["callbacks.allow_private"],
        callback_retry=config["callbacks.hours"] * 3600,
        trace=config["server.trace"],
        shutdown_grace=config["server.shutdown_grace"],
        max_message_bytes=config["server.max_message_bytes"],
        listeners=config["doors.peer.ports"],
        options=options(config),
        without=[name for name in DOORS if not config[f"doors.{name}.enabled"]],
        own_ports=ports,
        **msgspec.structs.asdict(work_settings(config)),
    )


def work_settings(config: Config) -> WorkSettings:
    """Returns the settings of a process that runs agents, with doors or without; mistakes become problems."""
    metrics, bus = None, BusSettings()
    with _told(config, "server.metrics"):
        if config["server.metrics"] is not None:
            health.place(config["server.metrics"])
        metrics = config["server.metrics"]
    with _told(config, "bus.url"):
        wanted = _of(BusSettings, config, "bus")
        if wanted.url is not None:
            address.parse(wanted)
        bus = wanted
    return WorkSettings(
        metrics=metrics, mounting=_of(Mounting, config, "mounting"), bus=bus, engine=engine_settings(config)
    )


@contextlib.contextmanager
def _told(config: Config, path: str, where: str | None = None) -> Iterator[None]:
    """Collects the mistakes of a setting as problems of the config, so that all mistakes are reported together."""
    try:
        yield
    except WrongConfig as error:
        config.problems += error.problems
    except InterlinguaError as error:
        config.wrong(place(config, path) if where is None else where, path, error.message)


def advertised(text: str | None) -> str | None:
    """The address at which other replicas reach this one."""
    if text is None:
        return None
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise InvalidRequest(f"is an address such as http://10.0.0.5:8000, not {text!r}")
    return text.rstrip("/")


def engine_settings(config: Config) -> Settings:
    kept = {name: config[f"store.{name}"] for name in ("ttl_runs", "ttl_threads")}
    return _of(Settings, config, "limits", remind_after=tuple(config["limits.remind_after"]), **kept)


def options(config: Config) -> dict[str, Any]:
    """Returns the settings of the doors, by protocol; mistakes in those of the node become problems."""
    found: dict[str, Any] = {
        "connect": _of(ConnectSettings, config, "doors.connect", limits=_of(HttpLimits, config, "doors.connect")),
        "mcp": (
            _of(McpWeb, config, "doors.mcp", http=_of(HttpLimits, config, "doors.mcp")),
            _of(McpSettings, config, "doors.mcp", limits=_of(Limits, config, "doors.mcp")),
        ),
        "editor": (
            _of(EditorWeb, config, "doors.editor", http=_of(HttpLimits, config, "doors.editor")),
            EditorSettings(limits=_of(Limits, config, "doors.editor")),
        ),
        "cap": _of(CapSettings, config, "doors.cap", limits=_of(HttpLimits, config, "doors.cap")),
    }
    with _told(config, "doors.peer"):
        found["peer"] = node(config)
    return found


def _of(cls: type[T], config: Config, section: str, **more: Any) -> T:
    """A struct whose fields are settings of the same name, or come from `more`; others have their default."""
    paths = {name: f"{section}.{name}" for name in cls.__struct_fields__ if name not in more}
    given = {name: config[path] for name, path in paths.items() if path in config.values}
    # Frozen structs have tuples where files have lists.
    return cls(**{name: tuple(one) if isinstance(one, list) else one for name, one in given.items()}, **more)


NODE_LIMITS = (
    "max_peers", "max_queued", "max_unread", "max_streams", "keep_events", "keep_messages", "in_flight", "card_wait",
    "cancel_grace", "reconnect_first", "reconnect_last",
)  # fmt: skip
"""Settings of a node that are no flags of `interlingua peer`."""


def node(config: Config) -> NodeSettings:
    """Returns the settings of the node. Raises WrongConfig, which lists all that is wrong with them."""
    file: Path | None = config["doors.peer.config"]
    try:
        flags = from_config(file) if file is not None else Flags()
    except InvalidRequest as error:
        raise WrongConfig([_wrong_node(config, "config", error)]) from None
    given = {
        name: str(value) if name == "identity" and value is not None else value
        for name in Flags.__struct_fields__
        if (path := f"doors.peer.{name}") in config.values
        for value in [config[path]]
        if config.given(path) or file is None
    }
    flags = msgspec.structs.replace(flags, **given)
    if wrong := [_wrong_node(config, name, error) for name, error in mistakes(flags)]:
        raise WrongConfig(wrong)
    found = settings_of(flags)
    limits = {name: config[f"doors.peer.{name}"] for name in NODE_LIMITS}
    return msgspec.structs.replace(found, **limits)


def _wrong_node(config: Config, name: str, error: InvalidRequest) -> Problem:
    """Turns the mistake of a flag into the problem of a setting: the key of the setting replaces the flag, or its name
    on a card."""
    text = _FLAG_FIRST.sub("", error.message)
    text = _FLAG.sub(lambda found: found[1].replace("-", "_"), _INDEX_FIRST.sub(r"[\1]", text))
    path = f"doors.peer.{name}"
    return Problem(place(config, path), path, text)


def place(config: Config, path: str) -> str:
    """Returns the place where a setting is written. A setting of the node that is not in the config may be in the
    node's own file."""
    if not config.given(path) and path.startswith("doors.peer."):
        path = "doors.peer.config"
    return config.values[path].origin if config.given(path) else ""


# -- who may come in ------------------------------------------------------------------------------------------


async def issuers(config: Config) -> list[Issuer]:
    """Returns the issuers whose tokens count here; mistakes become problems."""
    entries, keys = config.entries["auth.issuers"], list(config["auth.jwks_url"])
    audience, scopes = config["auth.audience"], config["auth.scopes"]
    if len(keys) > sum(entry["jwks_url"] is None for entry in entries):
        path = "auth.jwks_url"
        config.wrong(place(config, path), path, "there are more of them than issuers without one")
    if audience and not entries:
        path = "auth.audience"
        config.wrong(place(config, path), path, "needs an issuer (--issuer): somebody makes the tokens")
    found = []
    for entry in entries:
        names = entry["audience"] or audience
        url = entry["jwks_url"] or (keys.pop(0) if keys else None)
        if not names:
            config.wrong(entry.origin, entry.path, "needs an audience (--audience): a token is for somebody")
            continue
        with _told(config, entry.path, entry.origin):
            one = await issuer(entry["issuer"], names, url, entry["scopes"] or scopes)
            if entry["algorithms"]:
                one = msgspec.structs.replace(one, algorithms=tuple(entry["algorithms"]))
            found.append(one)
    return found


# -- what is served -------------------------------------------------------------------------------------------


def mounts(config: Config) -> list[MountEntry]:
    """The mounts that are wanted; what is wrong with one becomes a problem of the config."""
    return [one for _, one in written_mounts(config)]


def written_mounts(config: Config) -> list[tuple[Entry, MountEntry]]:
    """The same, each with how it is written."""
    found = []
    for entry in config.entries["mounts"]:
        try:
            found.append((entry, mount(entry)))
        except InvalidRequest as error:
            hint = getattr(error, "hint", "")
            config.wrong(entry.origin, entry.path, f"{error.message}; {hint}" if hint else error.message)
    seen: dict[str, list[str]] = {}
    for at, (entry, one) in enumerate(found):
        others = seen.setdefault(one.name, [])
        if one.remembered_as in others:
            config.wrong("", "mounts", f"{one.name} is there twice; give one of them a prefix")
        elif others:  # the part that differs is not shown: links of one node
            found[at] = entry, msgspec.structs.replace(one, shown=f"{one.shown} ({len(others) + 1})")
        others.append(one.remembered_as)
    return found


def mount(entry: Entry) -> MountEntry:
    target = parse(entry["target"])
    if not target.is_mount:
        where = "teams" if target.kind == "team" else "agents"
        raise TargetError(f"{entry['target']!r} is no mount: it belongs under [[{where}]]")
    command, uses = target.form == "command", kinds()[target.kind].uses
    for name in get_args(Use):
        if entry[name] and name not in uses:
            what = f"{target.kind}:COMMAND" if command else f"{target.kind}://…"
            raise InvalidRequest(f"{what} has no use for {name}")
    if entry["as"] is not None and not _NAME.fullmatch(entry["as"]):
        raise InvalidRequest(f"as is a name: letters, digits, dots, dashes and underscores, not {entry['as']!r}")
    if not _PREFIX.fullmatch(entry["prefix"]):
        raise InvalidRequest(f"prefix is of letters, digits, dots, dashes and underscores, not {entry['prefix']!r}")
    if entry["as"] is not None and entry["prefix"]:
        raise InvalidRequest("as and prefix exclude each other")
    folder = entry["directory"] or (entry.folder if command and entry.folder.parts else None)
    access = Access(
        key=entry["key"],
        headers={name.lower(): value for name, value in entry["headers"].items()},
        env=entry["env"],
        directory=str(folder) if folder is not None else None,
        settings=entry["settings"],
    )
    return MountEntry(
        target=msgspec.structs.replace(target, access=access),
        shown=spelled(entry.values["target"].written or entry["target"], target),
        as_=entry["as"],
        prefix=entry["prefix"],
        only=tuple(entry["only"]),
    )


def check_issuers(config: Config) -> None:
    """Checks the issuers as far as that needs no request to them."""
    for entry in config.entries["auth.issuers"]:
        if unknown := [name for name in entry["algorithms"] if name not in ALGORITHMS]:
            known = ", ".join(ALGORITHMS)
            config.wrong(entry.origin, entry.path, f"algorithms may be {known}, not {', '.join(unknown)}")

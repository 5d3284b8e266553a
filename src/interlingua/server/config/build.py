"""Turns the table of settings into the objects that the server, the engine, the doors and the mounts are made with."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator
from typing import get_args
from urllib.parse import urlsplit

import msgspec

from ...bus.nats import address
from ...bus.port import BusSettings
from ...doors.settings import DoorSettings
from ...doors.settings import Problem as DoorProblem
from ...engine.settings import Settings
from ...model.card import AgentCard
from ...model.errors import InterlinguaError, InvalidRequest
from ...mounts.settings import Access
from ...protocols.base import Protocol, Use
from ...protocols.installed import protocols
from ...protocols.targets import TargetError, kinds, parse, spelled
from ...security.issuers import ALGORITHMS, Issuer
from .. import health
from ..app import ServeSettings
from ..auth.issuers import issuer
from ..mounts.entry import MountEntry
from ..worker_process import WorkSettings
from .load import Config, Entry

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PREFIX = re.compile(r"[A-Za-z0-9._-]*")


async def serve_settings(config: Config) -> ServeSettings:
    """Returns the settings of the server; mistakes become problems of the config. Fetches the keys of issuers."""
    server = msgspec.structs.asdict(config.built("server"))
    own_ports = server.pop("own_ports")
    server["advertise"] = None
    with _collected(config, "server.advertise"):
        server["advertise"] = advertised(config["server.advertise"])
    worker = msgspec.structs.asdict(work_settings(config))
    return ServeSettings(
        **{**server, **worker}, issuers=tuple(await issuers(config)), callbacks=config.built("callbacks"),
        doors=doors(config), listeners=own_ports,
    )  # fmt: skip


def work_settings(config: Config) -> WorkSettings:
    """Returns the settings of a process that runs agents, with doors or without; mistakes become problems."""
    metrics, bus = None, BusSettings()
    with _collected(config, "server.metrics"):
        if config["server.metrics"] is not None:
            health.place(config["server.metrics"])
        metrics = config["server.metrics"]
    with _collected(config, "bus.url"):
        wanted = config.built("bus")
        if wanted.url is not None:
            address.parse(wanted)
        bus = wanted
    return WorkSettings(metrics=metrics, mounting=config.built("mounting"), bus=bus, engine=engine_settings(config))


@contextlib.contextmanager
def _collected(config: Config, path: str, where: str | None = None) -> Iterator[None]:
    """Collects the mistakes of a setting as problems of the config, so that all mistakes are reported together."""
    try:
        yield
    except InterlinguaError as error:
        config.wrong(config.place(path) if where is None else where, path, error.message)


def advertised(text: str | None) -> str | None:
    """Returns the address at which other replicas reach this one."""
    if text is None:
        return None
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise InvalidRequest(f"must be an address such as http://10.0.0.5:8000, not {text!r}")
    return text.rstrip("/")


def engine_settings(config: Config) -> Settings:
    settings: Settings = config.built("limits")
    return settings


# -- doors ----------------------------------------------------------------------------------------------------


def doors(config: Config) -> dict[str, DoorSettings]:
    """Returns the settings of the doors, by protocol; mistakes become problems."""
    chosen = _chosen(config)
    found = {}
    for protocol in with_doors():
        settings = door(config, protocol)
        if settings is not None:
            for problem in problems(protocol, settings):
                path = f"doors.{protocol.name}.{problem.setting}"
                config.wrong(config.place(path), path, problem.message)
            closed = bool(chosen) and protocol.name not in chosen
            found[protocol.name] = msgspec.structs.replace(settings, enabled=False) if closed else settings
    return found


def with_doors() -> list[Protocol]:
    """Returns the protocols that have a door."""
    return [protocol for protocol in protocols() if protocol.door]


def door(config: Config, protocol: Protocol) -> DoorSettings | None:
    """Returns the settings of a door. None: its file of defaults cannot be read, which becomes a problem."""
    path = f"doors.{protocol.name}"
    try:
        settings: DoorSettings = config.built(path)
    except InvalidRequest as error:
        config.wrong(config.place(f"{path}.config"), f"{path}.config", error.message.removeprefix("--config: "))
        return None
    return settings


def problems(
    protocol: Protocol, settings: DoorSettings, cards: Iterable[AgentCard] | None = None
) -> Iterable[DoorProblem]:
    """Yields what the protocol finds wrong with the settings of its door. `cards`: the agents, if they are known."""
    check = protocol.load("check")
    return check(settings, cards) if check is not None else ()


def _chosen(config: Config) -> list[str]:
    """Returns the doors that `server.doors` names; mistakes become problems."""
    path, known = "server.doors", [protocol.name for protocol in with_doors()]
    chosen: list[str] = config[path]
    for name in chosen:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            config.wrong(config.place(path), path, f"there is no door {name!r}; {hint}")
        elif not config[f"doors.{name}.enabled"]:
            config.wrong(config.place(path), path, f"names {name}, and doors.{name}.enabled is false")
    return chosen


# -- who may come in ------------------------------------------------------------------------------------------


async def issuers(config: Config) -> list[Issuer]:
    """Returns the issuers whose tokens count here; mistakes become problems."""
    entries, keys = config.entries["auth.issuers"], list(config["auth.jwks_url"])
    audience, scopes = config["auth.audience"], config["auth.scopes"]
    if len(keys) > sum(entry["jwks_url"] is None for entry in entries):
        path = "auth.jwks_url"
        config.wrong(config.place(path), path, "has more addresses than there are issuers without one")
    if audience and not entries:
        path = "auth.audience"
        config.wrong(config.place(path), path, "needs an issuer (--issuer) that makes the tokens")
    found = []
    for entry in entries:
        names = entry["audience"] or audience
        url = entry["jwks_url"] or (keys.pop(0) if keys else None)
        if not names:
            config.wrong(entry.origin, entry.path, "needs an audience (--audience), which tokens must name")
            continue
        with _collected(config, entry.path, entry.origin):
            one = await issuer(entry["issuer"], names, url, entry["scopes"] or scopes)
            if entry["algorithms"]:
                one = msgspec.structs.replace(one, algorithms=tuple(entry["algorithms"]))
            found.append(one)
    return found


# -- what is served -------------------------------------------------------------------------------------------


def mounts(config: Config) -> list[MountEntry]:
    """Returns the mounts; mistakes become problems of the config."""
    return [one for _, one in written_mounts(config)]


def written_mounts(config: Config) -> list[tuple[Entry, MountEntry]]:
    """Returns the mounts, each with its entry in the config."""
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
            config.wrong("", "mounts", f"{one.name} is configured twice; give one of them a prefix")
        elif others:  # the part that differs is not shown: links of one node
            found[at] = entry, msgspec.structs.replace(one, shown=f"{one.shown} ({len(others) + 1})")
        others.append(one.remembered_as)
    return found


def mount(entry: Entry) -> MountEntry:
    target = parse(entry["target"])
    if not target.is_mount:
        where = "teams" if target.kind == "team" else "agents"
        raise TargetError(f"{entry['target']!r} is not a mount: it belongs under [[{where}]]")
    command, uses = target.form == "command", kinds()[target.kind].uses
    for name in get_args(Use):
        if entry[name] and name not in uses:
            what = f"{target.kind}:COMMAND" if command else f"{target.kind}://…"
            raise InvalidRequest(f"{what} has no use for {name}")
    if entry["as"] is not None and not _NAME.fullmatch(entry["as"]):
        raise InvalidRequest(f"as must be a name of letters, digits, dots, dashes and underscores, not {entry['as']!r}")
    if not _PREFIX.fullmatch(entry["prefix"]):
        raise InvalidRequest(
            f"prefix must be of letters, digits, dots, dashes and underscores, not {entry['prefix']!r}"
        )
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
            config.wrong(entry.origin, entry.path, f"algorithms must be among {known}, not {', '.join(unknown)}")

"""Checks the doors of a config without opening one: their settings, their ports, the access to them, and the store
behind them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from ...doors.settings import DoorSettings
from ...engine.agents import mount_path
from ...engine.engine import Engine
from ...model.errors import InterlinguaError
from ...model.run_identity import split_queue
from ...security.auth import Authenticator, check_bind
from ...security.origins import HostPolicy
from .. import health
from ..app import EVERYWHERE
from ..auth.stored_keys import StoredKeys
from ..http_app import HttpApp
from ..project import Project, UnnamedProject
from ..stores import CannotOpen, Store, is_postgres, never_opened, open_store
from . import build
from .load import Config
from .settings import sections

_ALSO = {"localhost": "127.0.0.1"}


async def check_doors(config: Config, project: Project) -> tuple[Engine, dict[str, DoorSettings], list[str]]:
    """Checks all that a start would refuse: settings of doors, no store, a public address without keys. Returns an
    engine without agents that applies the rules of the doors to agents, the settings of the doors, and the agents of
    other processes."""
    settings = await build.serve_settings(config)
    _check_ports(config, settings.doors)
    store, server, keyed, elsewhere = await _check_store(config, project)
    auth = Authenticator(StoredKeys(store.keys), None, open_to_all=not keyed and not config.entries["auth.issuers"])
    hosts = HostPolicy.for_bind(settings.host, settings.allowed_hosts, settings.allowed_origins)
    try:
        engine = Engine(store, bus=settings.bus, settings=settings.engine)
        HttpApp(engine, auth, hosts, _without_mistakes(config, settings.doors))
    except InterlinguaError as error:
        config.wrong("", "", error.message)
        engine = Engine(store)
    engine.agents.server_id = server
    bound = {"server.host": settings.host}
    bound |= {
        _path(name, "own_host"): door.own_host
        for name, door in settings.doors.items()
        if door.enabled and door.own_port is not None and door.own_host is not None
    }
    for path, host in bound.items():
        try:
            check_bind(host, auth)
        except InterlinguaError as error:
            config.wrong(config.place(path), path, error.message)
    return engine, settings.doors, elsewhere


def _without_mistakes(config: Config, doors: dict[str, DoorSettings]) -> dict[str, DoorSettings]:
    """Returns the settings with those doors closed of which a mistake is reported already."""
    wrong = {problem.path.split(".")[1] for problem in config.problems if problem.path.startswith("doors.")}
    return {
        name: msgspec.structs.replace(door, enabled=door.enabled and name not in wrong) for name, door in doors.items()
    }


def _path(door: str, field: str) -> str:
    """Returns the path of a door's setting, by the field of its struct."""
    return next(one.path for one in sections()[f"doors.{door}"].settings if one.field == field)


async def _check_store(config: Config, project: Project) -> tuple[Store, str, bool, list[str]]:
    """The store, closed; its id among servers; whether it has keys, as one that cannot be opened may have; and the
    agents of its workers."""
    path = config["store.path"] or project.store
    store: Store = never_opened(path)
    try:
        project = project.renamed(config["project"])
        if not project.owns(path) and not project.named:
            raise UnnamedProject(project, path)
        store = open_store(path)
        if not is_postgres(path) and not path.exists():  # it is made by a start
            above = project.root if project.owns(path) else path.parent
            if not above.is_dir():
                raise CannotOpen(path, f"there is no folder {above}")
            return store, "", False, []
        await store.open()
        try:
            others = [split_queue(queue)[1] for worker in await store.claims.workers() for queue in worker.queues]
            return store, await mount_path.known_id(store), await StoredKeys(store.keys).any(), others
        finally:
            await store.close()
    except InterlinguaError as error:
        # Only the owner checks a config, and may read the database's own words.
        hint = getattr(error, "hint", "") if isinstance(error, UnnamedProject) else ""
        config.wrong(config.place("store.path"), "store.path", f"{error}; {hint}" if hint else str(error))
        return store, "", True, []


class _Port(msgspec.Struct):
    path: str  # the path of the setting that wants the port
    host: str
    port: int | None

    def clashes(self, other: _Port) -> bool:
        same = _ALSO.get(self.host, self.host) == _ALSO.get(other.host, other.host)
        return self.port == other.port and (same or self.host in EVERYWHERE or other.host in EVERYWHERE)


def _check_ports(config: Config, doors: dict[str, DoorSettings]) -> None:
    """Notes a mistake if two doors want the same port. Doors without a port, or with any free one, cannot clash."""
    ports = [one for one in _ports(config, doors) if one.port]
    for port in dict.fromkeys(one.port for one in ports):
        found = [one for one in ports if one.port == port]
        found = [one for one in found if any(one is not other and one.clashes(other) for other in found)]
        if found:
            names = [one.path for one in found]
            last = next((name for name in reversed(names) if config.place(name)), names[-1])
            config.wrong(
                config.place(last), last,
                f"port {port} is used {len(names)} times: by {', '.join(names[:-1])} and {names[-1]}",
            )  # fmt: skip


def _ports(config: Config, doors: dict[str, DoorSettings]) -> Iterator[_Port]:
    host = config["server.host"]
    yield _Port("server.port", host, config["server.port"])
    for protocol in build.with_doors():
        door = doors.get(protocol.name)
        if door is None or not door.enabled:
            continue
        ports = protocol.load("ports")
        for claim in ports(door) if ports is not None else ():
            yield _Port(f"doors.{protocol.name}.{claim.setting}", claim.host, claim.port)
        yield _Port(_path(protocol.name, "own_port"), door.own_host or host, door.own_port)
    if config["server.metrics"] is not None:
        with contextlib.suppress(InterlinguaError):
            yield _Port("server.metrics", *health.place(config["server.metrics"]))

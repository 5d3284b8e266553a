"""Looks at everything that a config says, without serving: agents are loaded, teams checked, mounts tried.

Nothing is left running, and nothing is written but what loading an agent writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ..engine import ways
from ..engine.agents import Agent
from ..engine.engine import Engine
from ..model.errors import DefinitionError, InterlinguaError, Invalid
from ..protocols.peer.skills import answers
from ..security.auth import Authenticator, check_bind
from ..security.origins import HostPolicy
from ..security.redaction import redact_text
from ..store.base import Store
from ..store.opening import CannotOpen, is_postgres, open_store
from ..store.sqlite import SQLiteStore
from . import config_meaning, probes, sources
from .config import Config, Entry, Problem, WrongConfig
from .config_table import ENTRIES, SETTINGS
from .http import HttpApp
from .keys import StoredKeys
from .mount_entry import MountEntry, left_out, try_once
from .paths import VARIABLE, own_file
from .serve import EVERYWHERE, ServeSettings

_OTHERS = ("INTERLINGUA_DEBUG", "INTERLINGUA_KEY", "INTERLINGUA_CONNECT_KEY", "INTERLINGUA_CAP_KEY", VARIABLE)
_OF_MOUNTS = ("INTERLINGUA_MCP_", "INTERLINGUA_EDITOR_", "INTERLINGUA_PEER_")
_ALSO = {"localhost": "127.0.0.1"}


class Tried(msgspec.Struct, omit_defaults=True):
    """A mount, tried once."""

    mount: str
    up: bool
    agents: list[str] = []
    reason: str = ""
    wrong: bool = False  # it is not down: it cannot be as it is written


class Checked(msgspec.Struct):
    problems: list[Problem]
    agents: dict[str, list[str]]  # by the file or folder that they are from
    mounts: list[Tried]

    @property
    def errors(self) -> list[Problem]:
        return [one for one in self.problems if one.severity == "error"]


async def check(config: Config, *, environ: Mapping[str, str] | None = None) -> Checked:
    entries = config_meaning.written_mounts(config)
    config_meaning.check_issuers(config)
    before = len(config.problems)
    loaded = await sources.load_all(config)
    whole = len(config.problems) == before
    if not any(config.entries[name] for name in ("agents", "mounts", "teams")) and not config.problems:
        config.wrong(str(config.file or ""), "", "there is nothing to serve: no agents, no mounts and no teams")
    _check_ports(config)
    engine, elsewhere = await _check_doors(config)
    for source in loaded:
        try:
            engine.exchange([], source.agents)
        except DefinitionError as error:
            config.wrong(source.origin.place, "", sources.said(source.origin, error))
    looks = await asyncio.gather(*(_try(entry) for _, entry in entries))
    tried = [_offered(config, engine, *pair, look) for pair, look in zip(entries, looks, strict=True)]
    if whole and all(one.up for one in tried):  # else the one that is missing may be there
        _check_default_agent(config, engine, elsewhere)
    config.problems += _variables(os.environ if environ is None else environ)
    for one in tried:
        if not one.up and not one.wrong:
            config.problems.append(Problem("", one.mount, f"is down: {one.reason}", "warning"))
    agents = {str(source.origin.path): [agent.card.key for agent in source.agents] for source in loaded}
    return Checked(config.problems, agents, tried)


class _Port(msgspec.Struct):
    path: str  # of the setting that wants it
    host: str
    port: int | None

    def clashes(self, other: _Port) -> bool:
        same = _ALSO.get(self.host, self.host) == _ALSO.get(other.host, other.host)
        return self.port == other.port and (same or self.host in EVERYWHERE or other.host in EVERYWHERE)


def _check_ports(config: Config) -> None:
    """No two may want the same one. Where any free one will do, or none is wanted, all is well."""
    ports = [one for one in _ports(config) if one.port]
    for port in dict.fromkeys(one.port for one in ports):
        found = [one for one in ports if one.port == port]
        found = [one for one in found if any(one is not other and one.clashes(other) for other in found)]
        if found:
            names = [one.path for one in found]
            last = next((name for name in reversed(names) if config_meaning.place(config, name)), names[-1])
            config.wrong(
                config_meaning.place(config, last), last,
                f"port {port} is wanted {len(names)} times: by {', '.join(names[:-1])} and {names[-1]}",
            )  # fmt: skip


def _ports(config: Config) -> Iterator[_Port]:
    host = config["server.host"]
    yield _Port("server.port", host, config["server.port"])
    if config["doors.peer.enabled"] and config["doors.peer.ports"]:
        with contextlib.suppress(InterlinguaError):  # what is wrong with it is said elsewhere
            node = config_meaning.node(config)
            yield _Port("doors.peer.port", node.host, node.port)
            yield _Port("doors.peer.http_port", node.http_host, node.http_port)
            yield _Port("doors.peer.tcp_port", node.host, node.tcp_port)
    for name in config_meaning.DOORS:
        port, at = _own(name)
        if config[f"doors.{name}.enabled"]:
            yield _Port(f"doors.{name}.{port}", config[f"doors.{name}.{at}"] or host, config[f"doors.{name}.{port}"])
    if config["server.metrics"] is not None:
        with contextlib.suppress(InterlinguaError):
            yield _Port("server.metrics", *probes.place(config["server.metrics"]))


def _check_default_agent(config: Config, engine: Engine, elsewhere: list[str]) -> None:
    with contextlib.suppress(InterlinguaError):  # what else is wrong with the node is said already
        wanted = config_meaning.node(config).default_agent
        if wanted is None or not config["doors.peer.enabled"]:
            return
        there = [agent.card for agent in engine.agents]
        far = [name for key in elsewhere for name in (key, key.partition("@")[0])] if config["server.elsewhere"] else []
        if wanted not in far and not any(answers(card, wanted) for card in there):
            path, names = "doors.peer.default_agent", ", ".join(card.name for card in there) or "none"
            config.wrong(config_meaning.place(config, path), path, f"there is no agent {wanted!r}; there are {names}")


async def _check_doors(config: Config) -> tuple[Engine, list[str]]:
    """All that a start would refuse: settings of doors, no store, a public address without keys. Gives an engine in
    which no agent is yet, and which holds them to the rules of the doors; and the agents of other processes."""
    try:
        settings = await config_meaning.serve_settings(config)
    except InterlinguaError as error:
        config.problems += error.problems if isinstance(error, WrongConfig) else [Problem("", "", error.message)]
        settings = ServeSettings(host=config["server.host"])  # what else is wrong is seen without them
    store, server, keyed, elsewhere = await _check_store(config)
    auth = Authenticator(StoredKeys(store), None, open_to_all=not keyed and not config.entries["auth.issuers"])
    hosts = HostPolicy.for_bind(settings.host, settings.allowed_hosts, settings.allowed_origins)
    try:
        engine = Engine(store, bus=settings.bus, settings=settings.engine)
        HttpApp(engine, auth, hosts, settings.options, [*settings.without, "peer"])  # a node would make its identity
    except InterlinguaError as error:
        config.wrong("", "", error.message)
        engine = Engine(store)
    engine.server = server
    bound = {"server.host": settings.host}
    bound |= {f"doors.{name}.{_own(name)[1]}": at for name, (at, _) in settings.own_ports.items() if at is not None}
    for path, host in bound.items():
        try:
            check_bind(host, auth)
        except InterlinguaError as error:
            config.wrong(config_meaning.place(config, path), path, error.message)
    return engine, elsewhere


def _own(door: str) -> tuple[str, str]:
    """What the settings of a door's own port and its address are called."""
    return ("door_port", "door_host") if door == "peer" else ("port", "host")


async def _check_store(config: Config) -> tuple[Store, str, bool, list[str]]:
    """The store, closed; its id among servers; whether it has keys, as one that cannot be opened may have; and the
    agents of its workers."""
    path = config["store.path"] or own_file()
    store: Store = SQLiteStore(path)
    try:
        store = open_store(path)
        if not is_postgres(path) and not path.exists():  # it is made by a start
            above = next(one for one in path.absolute().parents if one.exists())
            if not above.is_dir():
                raise CannotOpen(path, f"{above} is no folder")
            return store, "", False, []
        await store.open()
        try:
            others = [key for worker in await store.workers() for key in worker.agents]
            return store, await ways.known_id(store), await StoredKeys(store).any(), others
        finally:
            await store.close()
    except InterlinguaError as error:
        # Whoever checks it is its owner, who may read the database's own words.
        config.wrong(config_meaning.place(config, "store.path"), "store.path", str(error))
        return store, "", True, []


async def _try(entry: MountEntry) -> list[Agent[..., Any]] | Exception:
    try:
        return await try_once(entry)
    except (InterlinguaError, OSError) as error:
        return error


def _offered(
    config: Config, engine: Engine, written: Entry, entry: MountEntry, look: list[Agent[..., Any]] | Exception
) -> Tried:
    """What a look at a mount has shown, with those of its agents that can be here."""
    if isinstance(look, Exception):
        reason = redact_text(getattr(look, "message", None) or str(look) or type(look).__name__)
        if not isinstance(look, Invalid):  # it is away, or answers with nonsense
            return Tried(entry.name, False, reason=reason)
        hint = getattr(look, "hint", "")
        key = look.path.removeprefix("/").partition("/")[0] or "target"
        _wrong_mount(config, written, key, f"{reason}; {hint}" if hint else reason)
        return Tried(entry.name, False, reason=reason, wrong=True)
    told = Tried(entry.name, True, [])
    for agent in look:
        if ways.turned_away(agent.card, engine.server, engine.settings.max_hops) is not None:
            continue  # a server that mounts this one has it from here
        try:
            engine.exchange([], [agent])
            told.agents.append(agent.card.key)
        except DefinitionError as error:
            _wrong_mount(config, written, "as" if entry.as_ is not None else "prefix", left_out(agent, error))
    return told


def _wrong_mount(config: Config, written: Entry, key: str, message: str) -> None:
    """`key`: the member of the entry that is wrong. Where it is not written there, the entry as a whole is."""
    one = written.values.get(key)
    if one is None or one.origin == "default":
        config.wrong(written.origin, written.path, redact_text(message))
    else:
        config.wrong(one.origin, f"{written.path}.{key}", redact_text(message))


def _variables(environ: Mapping[str, str]) -> list[Problem]:
    """Variables that look like ours and are none: where another one may have been meant."""
    known = [*(one.variable for one in SETTINGS), *(one.variable for one in ENTRIES), *_OTHERS]
    found = []
    for name in environ:
        if name.startswith("INTERLINGUA_") and name not in known and not name.startswith(_OF_MOUNTS):
            close = difflib.get_close_matches(name, known, 1, 0.8)
            if close:
                message = f"there is no such variable; did you mean {close[0]}?"
                found.append(Problem(name, "", message, "warning"))
    return found

"""Checks everything in a config without serving: agents are loaded, teams checked, mounts tried. `check_doors` checks
the requirements of doors.

Leaves nothing running, and writes nothing but what loading an agent writes.
"""

from __future__ import annotations

import asyncio
import difflib
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from ...doors.settings import DoorSettings
from ...engine.agents.agent import Agent
from ...engine.engine import Engine
from ...model.card import AgentCard
from ...model.errors import DefinitionError, InterlinguaError, Invalid
from ...mounts.settings import variable
from ...protocols.installed import protocols
from ...security.redaction import redact_text
from ..loading import sources
from ..mounts.entry import MountEntry, left_out, try_once
from ..paths import VARIABLE
from ..project import Project
from . import build
from .check_doors import check_doors
from .fields import PREFIX
from .load import Config, Entry, Problem
from .settings import ENTRIES, all_settings

_OTHERS = ("INTERLINGUA_DEBUG", "INTERLINGUA_KEY", VARIABLE)


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


async def check(config: Config, project: Project, *, environ: Mapping[str, str] | None = None) -> Checked:
    entries = build.written_mounts(config)
    build.check_issuers(config)
    before = len(config.problems)
    loaded = await sources.load_all(config)
    whole = len(config.problems) == before
    if not any(config.entries[name] for name in ("agents", "mounts", "teams")) and not config.problems:
        config.wrong(str(config.file or ""), "", "there is nothing to serve: no agents, no mounts and no teams")
    engine, doors, elsewhere = await check_doors(config, project)
    for source in loaded:
        try:
            engine.teams.exchange([], source.agents)
        except DefinitionError as error:
            config.wrong(source.origin.place, "", sources.said(source.origin, error))
    looks = await asyncio.gather(*(_try(entry) for _, entry in entries))
    tried = [_offered(config, engine, *pair, look) for pair, look in zip(entries, looks, strict=True)]
    if whole and all(one.up for one in tried):  # else the one that is missing may be there
        _check_agents(config, doors, engine, elsewhere)
    config.problems += _variables(os.environ if environ is None else environ)
    for one in tried:
        if not one.up and not one.wrong:
            config.problems.append(Problem("", one.mount, f"is down: {one.reason}", "warning"))
    agents = {str(source.origin.path): [agent.card.key for agent in source.agents] for source in loaded}
    return Checked(config.problems, agents, tried)


def _check_agents(config: Config, doors: dict[str, DoorSettings], engine: Engine, elsewhere: list[str]) -> None:
    """Reports what the doors find wrong once the agents are known. `elsewhere`: the agents of other processes, as
    name@version."""
    cards = [agent.card for agent in engine.agents]
    if config["server.elsewhere"]:
        cards += [AgentCard(*key.partition("@")[::2], "") for key in elsewhere]
    reported = {(problem.path, problem.message) for problem in config.problems}
    for protocol in build.with_doors():
        settings = doors.get(protocol.name)
        for problem in build.problems(protocol, settings, cards) if settings is not None and settings.enabled else ():
            path = f"doors.{protocol.name}.{problem.setting}"
            if (path, problem.message) not in reported:
                config.wrong(config.place(path), path, problem.message)


async def _try(entry: MountEntry) -> list[Agent[..., Any]] | Exception:
    try:
        return await try_once(entry)
    except (InterlinguaError, OSError) as error:
        return error


def _offered(
    config: Config, engine: Engine, written: Entry, entry: MountEntry, look: list[Agent[..., Any]] | Exception
) -> Tried:
    """Reports what a look at a mount found, with those of its agents that can be mounted here."""
    if isinstance(look, Exception):
        reason = redact_text(getattr(look, "message", None) or str(look) or type(look).__name__)
        if not isinstance(look, Invalid):  # it is away, or answers with nonsense
            return Tried(entry.name, False, reason=reason)
        hint = getattr(look, "hint", "")
        key = look.path.removeprefix("/").partition("/")[0] or "target"
        _wrong_mount(config, written, key, f"{reason}; {hint}" if hint else reason)
        return Tried(entry.name, False, reason=reason, wrong=True)
    tried = Tried(entry.name, True, [])
    for agent in look:
        if engine.agents.turned_away(agent.card, engine.settings.max_hops) is not None:
            continue  # a server that mounts this one has it from here
        try:
            engine.teams.exchange([], [agent])
            tried.agents.append(agent.card.key)
        except DefinitionError as error:
            _wrong_mount(config, written, "as" if entry.as_ is not None else "prefix", left_out(agent, error))
    return tried


def _wrong_mount(config: Config, written: Entry, key: str, message: str) -> None:
    """Notes a mistake of a mount. `key`: the wrong member of the entry. If it is not written there, the entry as a
    whole is wrong."""
    one = written.values.get(key)
    if one is None or one.origin == "default":
        config.wrong(written.origin, written.path, redact_text(message))
    else:
        config.wrong(one.origin, f"{written.path}.{key}", redact_text(message))


def _variables(environ: Mapping[str, str]) -> list[Problem]:
    """Warns of unknown variables with a name close to one of this program's: the known one may have been meant."""
    known = [*(one.variable for one in all_settings()), *(one.variable for one in ENTRIES), *_OTHERS]
    of_mounts = tuple(variable(protocol.name, "") for protocol in protocols() if protocol.mount)
    found = []
    for name in environ:
        if name.startswith(PREFIX) and name not in known and not name.startswith(of_mounts):
            close = difflib.get_close_matches(name, known, 1, 0.8)
            if close:
                message = f"unknown variable; did you mean {close[0]}?"
                found.append(Problem(name, "", message, "warning"))
    return found

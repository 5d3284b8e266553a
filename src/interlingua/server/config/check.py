"""Checks everything in a config without serving: agents are loaded, teams checked, mounts tried. `check_doors` checks
the requirements of doors.

Leaves nothing running, and writes nothing but what loading an agent writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from ...engine.agents.agent import Agent
from ...engine.engine import Engine
from ...model.errors import DefinitionError, InterlinguaError, Invalid
from ...protocols.peer.translate.skills import answers
from ...security.redaction import redact_text
from .. import load_agents
from ..mounts.entry import MountEntry, left_out, try_once
from ..paths import VARIABLE
from ..project import Project
from . import build
from .check_doors import check_doors
from .load import Config, Entry, Problem
from .settings import ENTRIES, SETTINGS

_OTHERS = ("INTERLINGUA_DEBUG", "INTERLINGUA_KEY", "INTERLINGUA_CONNECT_KEY", "INTERLINGUA_CAP_KEY", VARIABLE)
_OF_MOUNTS = ("INTERLINGUA_MCP_", "INTERLINGUA_EDITOR_", "INTERLINGUA_PEER_")


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
    loaded = await load_agents.load_all(config)
    whole = len(config.problems) == before
    if not any(config.entries[name] for name in ("agents", "mounts", "teams")) and not config.problems:
        config.wrong(str(config.file or ""), "", "there is nothing to serve: no agents, no mounts and no teams")
    engine, elsewhere = await check_doors(config, project)
    for source in loaded:
        try:
            engine.teams.exchange([], source.agents)
        except DefinitionError as error:
            config.wrong(source.origin.place, "", load_agents.said(source.origin, error))
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


def _check_default_agent(config: Config, engine: Engine, elsewhere: list[str]) -> None:
    with contextlib.suppress(InterlinguaError):  # other mistakes of the node are reported already
        wanted = build.node(config).default_agent
        if wanted is None or not config["doors.peer.enabled"]:
            return
        there = [agent.card for agent in engine.agents]
        far = [name for key in elsewhere for name in (key, key.partition("@")[0])] if config["server.elsewhere"] else []
        if wanted not in far and not any(answers(card, wanted) for card in there):
            path, names = "doors.peer.default_agent", ", ".join(card.name for card in there) or "none"
            config.wrong(build.place(config, path), path, f"there is no agent {wanted!r}; there are {names}")


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
    told = Tried(entry.name, True, [])
    for agent in look:
        if engine.agents.turned_away(agent.card, engine.settings.max_hops) is not None:
            continue  # a server that mounts this one has it from here
        try:
            engine.teams.exchange([], [agent])
            told.agents.append(agent.card.key)
        except DefinitionError as error:
            _wrong_mount(config, written, "as" if entry.as_ is not None else "prefix", left_out(agent, error))
    return told


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
    known = [*(one.variable for one in SETTINGS), *(one.variable for one in ENTRIES), *_OTHERS]
    found = []
    for name in environ:
        if name.startswith("INTERLINGUA_") and name not in known and not name.startswith(_OF_MOUNTS):
            close = difflib.get_close_matches(name, known, 1, 0.8)
            if close:
                message = f"there is no such variable; did you mean {close[0]}?"
                found.append(Problem(name, "", message, "warning"))
    return found

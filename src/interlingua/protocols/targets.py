"""Parses targets, the names of agents on a command line.

Files and teams are known here; each protocol names its own kinds of target, and what loads them.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..model.errors import InvalidRequest
from ..model.run_identity import mount_source
from ..mounts.settings import ORDINARY, Access
from ..security.redaction import redact_text
from .base import Protocol, TargetKind, addresses
from .installed import protocols

if TYPE_CHECKING:
    from ..engine.agents.agent import Agent

# Kinds of target that belong to no protocol. Addresses are written SCHEME://…, the others SCHEME:…
_OWN = (
    *addresses("http", "https", example="HOST"),
    TargetKind(scheme="team", form="folder", example="team:DIR"),
)

GRAMMAR = "FILE[:AGENT], for instance agents.py or agents.py:echo"

_AGENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(@[0-9A-Za-z][0-9A-Za-z.+-]*)?")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")
_VARIABLE = re.compile(r"\$\{\w+\}")


class TargetError(InvalidRequest):
    """A target that cannot be used. `hint` says how to correct it."""

    code = "invalid_target"

    def __init__(self, message: str, *, hint: str = "", details: Any = None) -> None:
        super().__init__(message, details=details)
        self.hint = hint


class Target(msgspec.Struct, frozen=True):
    kind: str  # "file", "team", or the text before the colon
    rest: str  # the path, the command, or the whole address
    agent: str | None = None  # which one of several
    access: Access = ORDINARY  # the owner's settings for this one mount

    @property
    def form(self) -> Literal["file", "folder", "command", "address"]:
        return "file" if self.kind == "file" else kinds()[self.kind].form

    @property
    def is_address(self) -> bool:
        """Tells if the target is the address of a server, which keeps its runs; not code or a command of this
        machine."""
        return self.form == "address"

    @property
    def is_mount(self) -> bool:
        """Tells if the agents are elsewhere: at an address, or in a command."""
        return self.form in ("address", "command")


@cache
def kinds() -> dict[str, TargetKind]:
    """Returns the kinds of targets beside files, by their schemes."""
    return {kind.scheme: kind for kind in (*_OWN, *(kind for protocol in protocols() for kind in protocol.targets))}


def protocol_of(scheme: str) -> Protocol | None:
    """Returns the protocol of a kind of target."""
    return next((one for one in protocols() for kind in one.targets if kind.scheme == scheme), None)


def schemes(*forms: str) -> list[str]:
    """Returns the schemes of targets of these forms."""
    return [kind.scheme for kind in kinds().values() if kind.form in forms]


def parse(text: str) -> Target:
    """Reads a target. Raises TargetError where the text is no target."""
    if not text.strip():
        raise TargetError("the target is empty", hint=f"write {GRAMMAR}")
    if Path(text).exists():  # a file wins over every other reading, however odd its name
        return Target("file", text)
    scheme = _SCHEME.match(text)
    if scheme is not None:
        known = schemes("address")
        if scheme[1] not in known:
            raise TargetError(
                f"{scheme[1]}:// is no kind of target (target {spelled(text, None)!r})",
                hint=_did_you_mean(scheme[1], known) or f"addresses begin with {', '.join(known)}",
            )
        return Target(scheme[1], *_split_agent(text))
    kind, colon, rest = text.partition(":")
    if colon and kind in schemes("command", "folder"):
        if not rest.strip():
            raise TargetError(f"nothing follows {kind}: in the target {text!r}")
        return Target(kind, *_split_agent(rest))
    path, agent = _split_agent(text)
    if agent is None:
        before, colon, after = text.rpartition(":")
        if colon:
            path, agent = before, after
            if not after:
                raise TargetError(f"no agent follows the colon in {text!r}", hint=f"write {GRAMMAR}")
    return Target("file", path, agent)


def _split_agent(text: str) -> tuple[str, str | None]:
    before, mark, after = text.rpartition("#")
    return (before, after) if mark and before and _AGENT.fullmatch(after) else (text, None)


def source_of_mount(target: Target, agent: str) -> str:
    """Returns the source of a mounted agent: its target, with the name that the agent has there."""
    return mount_source(_shown(target).rstrip("/"), agent)


def choose(agents: list[Agent[..., Any]], target: Target) -> Agent[..., Any]:
    """Returns the agent that a target names, or the only one."""
    names = [agent.card.name for agent in agents]
    where, mark = _shown(target), ":" if target.kind == "file" else "#"
    if target.agent is None:
        if len(agents) == 1:
            return agents[0]
        raise TargetError(
            f"{where} has {len(agents)} agents: {', '.join(_unique(names, agents))}",
            hint=f"say which one, for instance {where}{mark}{names[0]}",
        )
    name = target.agent
    matching = [a for a in agents if name in (a.card.name, a.card.key, a.__name__)]
    exact = [a for a in matching if name in (a.card.name, a.card.key)]
    matching = exact or matching
    if len(matching) == 1:
        return matching[0]
    if matching:
        keys = [agent.card.key for agent in matching]
        raise TargetError(
            f"{where} has several agents {name}: {', '.join(keys)}", hint=f"say which one: {where}{mark}{keys[0]}"
        )
    raise TargetError(
        f"there is no agent {name!r} in {where}; there {'is' if len(names) == 1 else 'are'}: {', '.join(names)}",
        hint=_did_you_mean(name, names + [agent.__name__ for agent in agents]),
    )


def spelled(text: str, target: Target | None) -> str:
    """Returns a target as it is written, without the secrets in it; names of variables stay. `target` is the parsed
    text; None means that it is unknown, and perhaps a link with a mistake in it."""
    rest, agent = _split_agent(text)
    shown = _without_secrets(rest, secret_path=target is None or _has_secret_path(target))
    return f"{shown}#{agent}" if agent is not None else shown


def _shown(target: Target) -> str:
    """Returns the part of a target before its agent, without secrets."""
    text = f"{target.kind}:{target.rest}" if target.form in ("command", "folder") else target.rest
    return _without_secrets(text, secret_path=_has_secret_path(target))


def _has_secret_path(target: Target) -> bool:
    return target.kind != "file" and kinds()[target.kind].secret_path


def _without_secrets(rest: str, *, secret_path: bool) -> str:
    """Removes the token of a link, or a password."""
    if secret_path:
        before, slash, token = rest.partition("?")[0].rstrip("/").rpartition("/")
        return f"{redact_text(before)}{slash}{token if _VARIABLE.fullmatch(token) else '…'}"
    return redact_text(rest)


def _unique(names: list[str], agents: list[Agent[..., Any]]) -> list[str]:
    return [a.card.key if names.count(n) > 1 else n for n, a in zip(names, agents, strict=True)]


def _did_you_mean(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]}?" if close else ""

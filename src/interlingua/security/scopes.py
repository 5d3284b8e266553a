"""Decides by scopes what a caller may do, and why.

    *                                   everything
    agents:NAME                         only this agent, in any version
    agents:NAME@VERSION                 only this version of it
    agents:PREFIX*                      only agents whose names begin so
    do:run  do:read  do:answer          only these actions
    do:cancel  do:delete  do:config  do:admin
    see:all                             also the runs and threads of other callers
    as:AGENT                            speak as this agent of a team, by its id

Without an `agents:` scope all agents are meant, without a `do:` scope all actions but `admin`, and without `see:all`
a caller sees only what is theirs. To speak as somebody else must be given expressly: not even * includes it. Several
scopes of one family add up.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from ..model.errors import Denied, InvalidRequest
from ..model.run import Caller

Action = Literal["run", "read", "answer", "cancel", "delete", "config", "admin"]
ACTIONS: tuple[str, ...] = get_args(Action)
EVERYTHING = "*"
SEE_ALL = "see:all"

_FAMILIES = ("agents:", "do:", "see:", "as:")
_AGENTS = re.compile(r"agents:(\*|[A-Za-z0-9][A-Za-z0-9._-]*(\*|@[0-9A-Za-z][0-9A-Za-z.+-]*)?)")
_AS = re.compile(r"as:[A-Za-z0-9_-]+")
_FIXED = (EVERYTHING, *(f"do:{action}" for action in ACTIONS), SEE_ALL)


class Decision(msgspec.Struct, frozen=True):
    """Yes or no, and why. Usable as a condition."""

    allowed: bool
    reason: str
    scopes: tuple[str, ...] = ()  # the scopes that granted it; none if nothing limits it
    missing: tuple[str, ...] = ()  # any one of these would have been needed

    def __bool__(self) -> bool:
        return self.allowed


def ours(scope: str) -> bool:
    """Returns whether a scope is meant for this server, be it valid or not."""
    return scope == EVERYTHING or scope.startswith(_FAMILIES)


def valid(scope: str) -> bool:
    return scope in _FIXED or _AGENTS.fullmatch(scope) is not None or _AS.fullmatch(scope) is not None


def validate(scopes: Iterable[str]) -> tuple[str, ...]:
    """The scopes, each once, in their order. A scope that means nothing is an error: ignoring one would allow more."""
    if isinstance(scopes, str):
        raise InvalidRequest(f"scopes are a list of texts, got the text {scopes!r}")
    checked: dict[str, None] = {}
    for index, scope in enumerate(scopes):
        if not valid(scope):
            raise InvalidRequest(_what_is_wrong(scope), path=f"/{index}")
        checked[scope] = None
    return tuple(checked)


_ALL = Decision(True, f"scope {EVERYTHING} allows everything", (EVERYTHING,))


def may(caller: Caller, action: Action, agent: str | None = None) -> Decision:
    """Decides whether a caller may do this, to an agent given as NAME or NAME@VERSION, or to no agent in particular."""
    if EVERYTHING in caller.scopes:
        return _ALL
    done = _may_do(caller, action)
    if not done or agent is None:
        return done
    reached = _may_reach(caller, agent)
    if not reached:
        return reached
    return Decision(True, f"{done.reason}; {reached.reason}", done.scopes + reached.scopes)


def require(caller: Caller, action: Action, agent: str | None = None) -> None:
    decision = may(caller, action, agent)
    if not decision:
        raise Denied(decision.reason, details={"action": action, "agent": agent, "missing": list(decision.missing)})


def sees(caller: Caller, owner_id: str) -> bool:
    """Returns whether a caller may know of a run or thread whose caller has that id."""
    return caller.id == owner_id or EVERYTHING in caller.scopes or SEE_ALL in caller.scopes


def may_speak_as(caller: Caller, participant: str) -> Decision:
    """Decides whether a caller may speak under the name of this agent. An instance counts as its agent."""
    scope = f"as:{participant.partition('#')[0]}"
    if scope in caller.scopes:
        return Decision(True, f"scope {scope} allows it", (scope,))
    why = f"{_who(caller)} may not speak as {participant}; that needs the scope {scope}"
    if EVERYTHING in caller.scopes:
        why += f", which {EVERYTHING} does not include"
    return Decision(False, why, missing=(scope,))


def _may_do(caller: Caller, action: Action) -> Decision:
    scope_needed = f"do:{action}"
    actions = [scope for scope in caller.scopes if scope.startswith("do:")]
    if scope_needed in actions:
        return Decision(True, f"scope {scope_needed} allows it", (scope_needed,))
    if actions:
        why = f"may only {_list(scope.removeprefix('do:') for scope in actions)}"
    elif action == "admin":
        why = "has no scope that allows administration"
    else:
        return Decision(True, f"no do: scope limits the actions, and {action} is none that must be given expressly")
    return Decision(False, f"{_who(caller)} {why}; {action} needs the scope {scope_needed}", missing=(scope_needed,))


def _may_reach(caller: Caller, agent: str) -> Decision:
    reaches = [scope for scope in caller.scopes if scope.startswith("agents:")]
    if not reaches:
        return Decision(True, "no agents: scope limits the agents")
    name, _, version = agent.partition("@")
    for scope in reaches:
        pattern = scope.removeprefix("agents:")
        if pattern in (name, agent) or (pattern.endswith("*") and name.startswith(pattern[:-1])):
            return Decision(True, f"scope {scope} names the agent", (scope,))
    missing = (f"agents:{name}",) + ((f"agents:{agent}",) if version else ())
    only = _list(scope.removeprefix("agents:") for scope in reaches)
    why = f"{_who(caller)} may only use the agents {only}; {agent} needs the scope {' or '.join(missing)}"
    return Decision(False, why, missing=missing)


def _who(caller: Caller) -> str:
    return f"caller {caller.name or caller.id}"


def _list(items: Iterable[str]) -> str:
    return ", ".join(items)


def _what_is_wrong(scope: str) -> str:
    text = f"scope {scope[:200]!r} means nothing"
    if scope.startswith("agents:"):
        return f"{text}; expected agents:NAME, agents:NAME@VERSION or agents:PREFIX*"
    if scope.startswith("as:"):
        return f"{text}; expected as:AGENT with the id of an agent, which has letters, digits, dashes and underscores"
    close = difflib.get_close_matches(scope.lower(), _FIXED, n=1)
    if not close and scope in ACTIONS:
        close = [f"do:{scope}"]
    guess = f"did you mean {close[0]}? " if close else ""
    there = f"{_list(_FIXED)}, agents:NAME, agents:NAME@VERSION, agents:PREFIX* and as:AGENT"
    return f"{text}; {guess}There are {there}"

"""Teams: who may delegate to whom, who oversees whom, and which tools each agent may use. Pure.

A manifest describes one agent, and is read here member by member, so that everything that is wrong with it is told at
once; members that are not known are kept. `check` then looks at the team as a whole. What an agent may do at a certain
moment follows from the manifest and is decided in `authority`; files are read elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from .. import json_values
from ..errors import Invalid, InvalidRequest
from ..pointers import split_message
from .authority import DEFAULT_LIMITS, DEFAULT_POLICY, Limits, Policy, Seconds

USER = "user"
ORCHESTRATOR = "orchestrator"
OURS = "interlingua"  # the member of a manifest that holds what the standard has no place for

_ID = re.compile(r"[A-Za-z0-9_-]+")
_INSTANCE = re.compile(r"(?P<agent>[A-Za-z0-9_-]+)(?:#(?P<number>[1-9][0-9]{0,8}))?")

# -- ids ------------------------------------------------------------------------------------------------------

# Names have dots, spaces and letters of all languages; ids have not. Such a character is written as -_HEX_, and so is
# the dash of a name that happens to look like that: every name has one id, and every id at most one name.
_ESCAPED = re.compile(r"-_(?P<hex>[0-9a-f]+)_")
_TO_ESCAPE = re.compile(r"[^A-Za-z0-9_-]|-(?=_[0-9a-f])")


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def cap_id(name: str) -> str:
    """The id of an agent of this name. Most names are ids already."""
    if not name:
        raise InvalidRequest("an agent without a name has no id", path="/id")
    return _TO_ESCAPE.sub(lambda match: f"-_{ord(match[0]):x}_", name)


def agent_name(id_: str) -> str:
    """The name of the agent with this id. Raises InvalidRequest for what is the id of no name."""
    name = _ESCAPED.sub(_unescaped, id_)
    if not is_id(id_) or cap_id(name) != id_:
        raise InvalidRequest(f"{id_[:80]!r} is not the id of an agent", path="/id")
    return name


def _unescaped(match: re.Match[str]) -> str:
    number = int(match["hex"], 16) if len(match["hex"]) <= 6 else -1
    return chr(number) if 0 <= number < 0x110000 else match[0]


def instance_id(agent: str, number: int) -> str:
    """The id of the nth instance of an agent. The first is called like the agent itself."""
    if number < 1 or not is_id(agent):
        raise InvalidRequest(f"{agent[:80]!r} has no instance {number}", path="/id")
    return agent if number == 1 else f"{agent}#{number}"


def instance_of(id_: str) -> tuple[str, int]:
    """Agent and number of an instance. Each instance has one spelling: there is no `analyst#1`."""
    match = _INSTANCE.fullmatch(id_)
    if match is None or match["number"] == "1":
        raise InvalidRequest(f"{id_[:80]!r} is not the id of an agent or of an instance of one", path="/id")
    return match["agent"], int(match["number"] or 1)


# -- what a team is made of -----------------------------------------------------------------------------------


class Problem(msgspec.Struct, frozen=True):
    file: str
    path: str  # a JSON pointer to what is wrong
    message: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return f"{self.severity}: {': '.join(part for part in (self.file, self.path, self.message) if part)}"


class Rule(msgspec.Struct, frozen=True):
    when_to_delegate: str
    extra: dict[str, Any] = {}


class Binding(msgspec.Struct, frozen=True):
    """The tools of a server that an agent may call, and the scopes that it has there."""

    server_id: str
    scopes: tuple[str, ...]
    allowed_tools: tuple[str, ...]
    description: str | None = None
    extra: dict[str, Any] = {}


class Options(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What we add to a manifest: who thinks (a model, a Python function or a mounted agent), limits, and its card."""

    model: str | None = None
    handler: str | None = None  # FILE:FUNCTION
    target: str | None = None  # of a mount
    limits: Limits = Limits()
    description: str | None = None
    version: str | None = None
    entry: bool = False


class Manifest(msgspec.Struct, frozen=True):
    id: str
    system_prompt: str
    allowed_agents: tuple[str, ...] = ()
    delegate_rules: dict[str, Rule] = {}
    overseer: str | None = None
    mcp_bindings: tuple[Binding, ...] = ()
    options: Options = Options()
    other_rules: dict[str, Any] = {}  # of delegate_rules: under keys that are no ids, where anything may stand
    extra: dict[str, Any] = {}
    file: str = ""

    def binding(self, server: str) -> Binding | None:
        return next((binding for binding in self.mcp_bindings if binding.server_id == server), None)

    def to_json(self) -> dict[str, Any]:
        """The manifest as a JSON object, with everything that it was read with."""
        rules = {id_: {"when_to_delegate": r.when_to_delegate, **r.extra} for id_, r in self.delegate_rules.items()}
        told: dict[str, Any] = {
            "id": self.id,
            "system_prompt": self.system_prompt,
            "allowed_agents": list(self.allowed_agents),
            "delegate_rules": {**rules, **self.other_rules},
            "overseer": self.overseer,
            "mcp_bindings": [_binding_json(binding) for binding in self.mcp_bindings],
            **self.extra,
        }
        ours = msgspec.to_builtins(self.options)
        return {**told, OURS: ours} if ours else told


class Server(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A tool server: a command to start, or an address. `needs` says which scopes a tool asks for."""

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    timeout: Seconds | None = None
    needs: dict[str, tuple[str, ...]] = {}
    description: str | None = None


class Team(msgspec.Struct):
    name: str
    manifests: dict[str, Manifest] = {}
    servers: dict[str, Server] = {}
    entry: str | None = None  # as it was named; see `entry_of`
    limits: Limits = Limits()
    policy: Policy = DEFAULT_POLICY
    model: str | None = None  # of agents that name none
    description: str = ""
    file: str = ""  # where all but the manifests stands
    duplicates: list[Manifest] = []  # whose id was taken
    unread: set[str] = set()  # ids of manifests that are there, but wrong
    extra: dict[str, Any] = {}

    def add(self, manifest: Manifest) -> None:
        if manifest.id in self.manifests:
            self.duplicates.append(manifest)
        else:
            self.manifests[manifest.id] = manifest

    def find(self, id_: str) -> Manifest | None:
        """The manifest of an agent, or of the agent that an instance is one of."""
        return self.manifests.get(id_.partition("#")[0])

    def limits_of(self, manifest: Manifest) -> Limits:
        return self.limits.over(DEFAULT_LIMITS).tightest(manifest.options.limits)


def entry_of(team: Team) -> Manifest | None:
    """The agent that the orchestrator starts: the one that is named, or the one to which nobody delegates."""
    found = _entries(team)
    return team.manifests.get(found[0]) if len(found) == 1 else None


def _entries(team: Team) -> list[str]:
    if team.entry is not None:
        return [team.entry]
    named = [manifest.id for manifest in team.manifests.values() if manifest.options.entry]
    if named:
        return named
    targets = {t for m in team.manifests.values() for t in m.allowed_agents if t != m.id}
    first = [id_ for id_ in team.manifests if id_ not in targets]
    if len(first) < 2:
        return first
    # An overseer to whom nobody delegates is reached by way of what it reviews.
    overseers = {manifest.overseer for manifest in team.manifests.values()}
    others = [id_ for id_ in first if id_ not in overseers]
    return others if len(others) == 1 else first


# -- reading a manifest ---------------------------------------------------------------------------------------


def read_manifest(value: Any, file: str = "") -> Manifest:
    """A manifest out of JSON. Raises Invalid, which tells of everything that is wrong and has the path of the first."""
    if problems := manifest_problems(value, file):
        raise Invalid("; ".join(f"{p.path} {p.message}".strip() for p in problems), path=problems[0].path)
    rules, known = value["delegate_rules"], {"when_to_delegate"}
    return Manifest(
        id=value["id"],
        system_prompt=value["system_prompt"],
        allowed_agents=tuple(value["allowed_agents"]),
        delegate_rules={i: Rule(r["when_to_delegate"], _without(r, known)) for i, r in rules.items() if is_id(i)},
        overseer=value.get("overseer"),
        mcp_bindings=tuple(_binding(one) for one in value["mcp_bindings"]),
        options=msgspec.convert(value.get(OURS, {}), Options),
        other_rules={key: rule for key, rule in rules.items() if not is_id(key)},
        extra=_without(value, {"id", "system_prompt", "allowed_agents", "delegate_rules", "overseer", "mcp_bindings",
                               OURS}),
        file=file,
    )  # fmt: skip


def manifest_problems(value: Any, file: str = "") -> list[Problem]:
    """Everything that is wrong with the shape of a manifest."""
    try:
        json_values.check(value, Invalid, what="manifest")
    except Invalid as error:
        return [Problem(file, error.path, error.message)]
    shape = _Shape(file)
    if shape.is_a(value, dict, ""):
        for name in ("id", "system_prompt"):
            shape.member(value, name, str, "")
        shape.texts(value, "allowed_agents", "")
        for key, rule in (shape.member(value, "delegate_rules", dict, "") or {}).items():
            at = f"/delegate_rules/{_step(key)}"
            if is_id(key) and shape.is_a(rule, dict, at):
                shape.member(rule, "when_to_delegate", str, at)
        if value.get("overseer") is not None:
            shape.is_a(value["overseer"], str, "/overseer")
        for index, binding in enumerate(shape.member(value, "mcp_bindings", list, "") or []):
            at = f"/mcp_bindings/{index}"
            if shape.is_a(binding, dict, at):
                shape.member(binding, "server_id", str, at)
                shape.texts(binding, "scopes", at)
                shape.texts(binding, "allowed_tools", at)
                if "description" in binding:
                    shape.is_a(binding["description"], str, f"{at}/description")
        if OURS in value:
            shape.problems.extend(fits(value[OURS], Options, f"/{OURS}", file))
    return shape.problems


def fits(value: Any, kind: Any, path: str, file: str = "") -> list[Problem]:
    """What keeps a JSON value from being of a type of ours: nothing, or the first thing that is wrong."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, inside = split_message(str(error))
        return [Problem(file, path + inside, message.replace("`", ""))]
    return []


class _Shape:
    """Looks at members one by one, and remembers what was wrong."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []

    def is_a(self, value: Any, kind: type, path: str) -> bool:
        if type(value) is kind:
            return True
        self.problems.append(Problem(self.file, path, f"is {_KINDS[kind]}, got {_kind(value)}"))
        return False

    def member(self, holder: dict[str, Any], name: str, kind: type, path: str) -> Any:
        """A member that must be there, or None where it is not, or is of another kind."""
        if name not in holder:
            self.problems.append(Problem(self.file, f"{path}/{name}", f"is missing: it is {_KINDS[kind]}"))
            return None
        return holder[name] if self.is_a(holder[name], kind, f"{path}/{name}") else None

    def texts(self, holder: dict[str, Any], name: str, path: str) -> None:
        for index, one in enumerate(self.member(holder, name, list, path) or []):
            self.is_a(one, str, f"{path}/{name}/{index}")


_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "nothing"}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "a number")


def _step(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _without(holder: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in holder.items() if name not in names}


def _binding(value: dict[str, Any]) -> Binding:
    extra = _without(value, {"server_id", "scopes", "allowed_tools", "description"})
    scopes, tools = tuple(value["scopes"]), tuple(value["allowed_tools"])
    return Binding(value["server_id"], scopes, tools, value.get("description"), extra)


def _binding_json(binding: Binding) -> dict[str, Any]:
    told: dict[str, Any] = {"server_id": binding.server_id}
    if binding.description is not None:
        told["description"] = binding.description
    return {**told, "scopes": list(binding.scopes), "allowed_tools": list(binding.allowed_tools), **binding.extra}


# -- the team as a whole --------------------------------------------------------------------------------------


def check(team: Team) -> list[Problem]:
    """Everything that is wrong with a team, file by file."""
    found = [
        Problem(m.file, "/id", f"{m.id} is the id of another agent ({_where(team, m.id)})") for m in team.duplicates
    ]
    for manifest in team.manifests.values():
        found.extend(Problem(manifest.file, *problem) for problem in _member_problems(team, manifest))
    found.extend(_oversight_cycles(team))
    found.extend(_team_problems(team))
    return found


_Found = tuple[str, str, Literal["error", "warning"]]


def _member_problems(team: Team, manifest: Manifest) -> Iterable[_Found]:
    yield from _id_problems(manifest)
    yield from _delegation_problems(team, manifest)
    if manifest.overseer == manifest.id:
        yield "/overseer", f"{manifest.id} cannot oversee itself", "error"
    elif manifest.overseer is not None and manifest.overseer != USER:
        yield from _unknown(team, manifest.overseer, "/overseer")
    yield from _binding_problems(team, manifest)
    options = manifest.options
    if sum(one is not None for one in (options.model, options.handler, options.target)) > 1:
        yield f"/{OURS}", "one of model, handler and target does the thinking, not several", "error"


def _id_problems(manifest: Manifest) -> Iterable[_Found]:
    if manifest.id in (USER, ORCHESTRATOR):
        yield "/id", f"{manifest.id} is the id of a participant that is no agent", "error"
    elif not is_id(manifest.id):
        hint = f"; write {cap_id(manifest.id)}" if manifest.id else ""
        yield "/id", f"{manifest.id[:80]!r} is no id: letters, digits, dashes and underscores{hint}", "error"
    else:
        try:
            agent_name(manifest.id)
        except InvalidRequest:
            yield "/id", f"{manifest.id} is written as the id of another name: leave out -_ before a digit", "error"
    if not manifest.system_prompt.strip():
        yield "/system_prompt", "is empty", "warning"


def _delegation_problems(team: Team, manifest: Manifest) -> Iterable[_Found]:
    for index, target in enumerate(manifest.allowed_agents):
        at = f"/allowed_agents/{index}"
        if target in manifest.allowed_agents[:index]:
            yield at, f"{target} is in the list twice", "warning"
            continue
        if target == manifest.id:
            yield at, f"{target} may delegate to itself: only depth and runs limit that", "warning"
        yield from _unknown(team, target, at)
        rule = manifest.delegate_rules.get(target)
        if rule is None:
            yield at, f"{target} has no rule in delegate_rules that says when to delegate to it", "error"
        elif not rule.when_to_delegate.strip():
            yield f"/delegate_rules/{target}/when_to_delegate", "is empty: it says when to delegate", "warning"
    for key in (*manifest.delegate_rules, *manifest.other_rules):
        if key not in manifest.allowed_agents:
            yield f"/delegate_rules/{_step(key)}", f"{key[:80]} is not in allowed_agents", "error"


def _binding_problems(team: Team, manifest: Manifest) -> Iterable[_Found]:
    for index, binding in enumerate(manifest.mcp_bindings):
        at = f"/mcp_bindings/{index}"
        if any(other.server_id == binding.server_id for other in manifest.mcp_bindings[:index]):
            # Together they would grant the tools of one with the scopes of the other.
            yield f"{at}/server_id", f"{binding.server_id} has a binding already: make it one", "error"
        server = team.servers.get(binding.server_id)
        if server is None:
            known = ", ".join(team.servers) or "none"
            yield f"{at}/server_id", f"the server {binding.server_id} is not configured (there are: {known})", "error"
            continue
        for place, tool in enumerate(binding.allowed_tools):
            if missing := set(server.needs.get(tool, ())) - set(binding.scopes):
                why = f"{tool} can never be called: it needs the scope {', '.join(sorted(missing))}"
                yield f"{at}/allowed_tools/{place}", why, "warning"


def _unknown(team: Team, id_: str, at: str) -> Iterable[_Found]:
    if id_ in team.manifests or id_ in team.unread:
        return
    if id_ in (USER, ORCHESTRATOR):
        does = "oversees nothing" if at == "/overseer" else "is no agent: it gets messages, and no tasks"
        yield at, f"{id_} {does}", "error"
    elif team.find(id_) is not None:
        yield at, f"{id_} is an instance, which counts as its agent: write {id_.partition('#')[0]}", "error"
    else:
        yield at, f"there is no agent {id_[:80]} in the team (there are: {', '.join(team.manifests)})", "error"


def _oversight_cycles(team: Team) -> Iterable[Problem]:
    seen: set[str] = set()
    for start in team.manifests:
        way: list[str] = []
        at: str | None = start
        while at is not None and at in team.manifests and at not in seen:
            seen.add(at)
            way.append(at)
            at = team.manifests[at].overseer
        if at in way and at != way[-1]:  # one that oversees itself is told of elsewhere
            circle = way[way.index(at) :]
            told = " → ".join([*circle, at])
            file = team.manifests[at].file
            yield Problem(file, "/overseer", f"oversight goes round in a circle, and nothing is ever approved: {told}")


def _team_problems(team: Team) -> Iterable[Problem]:
    if not team.manifests:
        if not team.unread:
            yield Problem(team.file, "", "the team has no agents")
        return
    for name in ("depth", "runs"):
        if getattr(team.limits, name) == 0:
            yield Problem(team.file, f"/limits/{name}", "is 0: not even the entry agent could be started")
    for id_, server in team.servers.items():
        if (server.command is None) == (server.url is None):
            yield Problem(team.file, f"/servers/{_step(id_)}", "has either a command or a url")
        if not any(manifest.binding(id_) for manifest in team.manifests.values()) and not team.unread:
            yield Problem(team.file, f"/servers/{_step(id_)}", "no agent has a binding for it", "warning")
    entry = entry_of(team)
    if entry is None:
        if problem := _entry_problem(team):
            yield problem
        return
    reached, todo = {entry.id}, [entry.id]
    while todo:
        manifest = team.manifests[todo.pop()]
        for next_ in (*manifest.allowed_agents, manifest.overseer):
            if next_ is not None and next_ not in reached and next_ in team.manifests:
                reached.add(next_)
                todo.append(next_)
    for manifest in team.manifests.values():
        if manifest.id not in reached and not team.unread:
            why = f"no way leads from {entry.id} to {manifest.id}: nobody delegates to it, and it oversees nobody"
            yield Problem(manifest.file, "/id", why, "warning")


def _entry_problem(team: Team) -> Problem | None:
    if team.entry is not None:
        known = ", ".join(team.manifests)
        why = f"there is no agent {team.entry[:80]} in the team (there are: {known})"
        return None if team.entry in team.unread else Problem(team.file, "/entry", why)
    if team.unread:
        return None
    found = _entries(team)
    if not found:
        return Problem(team.file, "/entry", "is missing: every agent is delegated to by another; name the first one")
    return Problem(team.file, "/entry", f"is missing: {' and '.join(found)} could all be the first one; name it")


def _where(team: Team, id_: str) -> str:
    return team.manifests[id_].file or "before this one"

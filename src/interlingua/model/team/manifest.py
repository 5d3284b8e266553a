"""Teams: the delegates, overseer and tools of each agent. Pure.

A manifest describes one agent. It is read member by member, so that all problems are reported at once; unknown members
are kept. `check` then examines the team as a whole. `authority` decides from the manifest what an agent may do at a
given moment. The readers of the files are elsewhere.
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
OURS = "interlingua"  # the member of a manifest for everything beyond the standard

_ID = re.compile(r"[A-Za-z0-9_-]+")
_INSTANCE = re.compile(r"(?P<agent>[A-Za-z0-9_-]+)(?:#(?P<number>[1-9][0-9]{0,8}))?")

# -- ids ------------------------------------------------------------------------------------------------------

# Names may have dots, spaces and letters of all languages; ids may not. Such a character is written as -_HEX_, and so
# is a dash in a name that looks like an escape: every name has one id, and every id at most one name.
_ESCAPED = re.compile(r"-_(?P<hex>[0-9a-f]+)_")
_TO_ESCAPE = re.compile(r"[^A-Za-z0-9_-]|-(?=_[0-9a-f])")


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def cap_id(name: str) -> str:
    """The id of an agent of this name. Most names are their own ids."""
    if not name:
        raise InvalidRequest("an agent without a name has no id", path="/id")
    return _TO_ESCAPE.sub(lambda match: f"-_{ord(match[0]):x}_", name)


def agent_name(id_: str) -> str:
    """The name of the agent with this id. Raises InvalidRequest if no name has this id."""
    name = _ESCAPED.sub(_unescaped, id_)
    if not is_id(id_) or cap_id(name) != id_:
        raise InvalidRequest(f"{id_[:80]!r} is not the id of an agent", path="/id")
    return name


def _unescaped(match: re.Match[str]) -> str:
    number = int(match["hex"], 16) if len(match["hex"]) <= 6 else -1
    return chr(number) if 0 <= number < 0x110000 else match[0]


def instance_id(agent: str, number: int) -> str:
    """The id of the nth instance of an agent. The first has the id of the agent."""
    if number < 1 or not is_id(agent):
        raise InvalidRequest(f"{agent[:80]!r} has no instance {number}", path="/id")
    return agent if number == 1 else f"{agent}#{number}"


def instance_of(id_: str) -> tuple[str, int]:
    """Splits the id of an instance into agent and number. Each instance has one spelling: `analyst#1` is invalid."""
    match = _INSTANCE.fullmatch(id_)
    if match is None or match["number"] == "1":
        raise InvalidRequest(f"{id_[:80]!r} is not the id of an agent or of an instance of one", path="/id")
    return match["agent"], int(match["number"] or 1)


# -- parts of a team ------------------------------------------------------------------------------------------


class Problem(msgspec.Struct, frozen=True):
    file: str
    path: str  # a JSON pointer to the mistake
    message: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return f"{self.severity}: {': '.join(part for part in (self.file, self.path, self.message) if part)}"


class Rule(msgspec.Struct, frozen=True):
    when_to_delegate: str
    extra: dict[str, Any] = {}


class Binding(msgspec.Struct, frozen=True):
    """The tools of a server that an agent may call, and its scopes there."""

    server_id: str
    scopes: tuple[str, ...]
    allowed_tools: tuple[str, ...]
    description: str | None = None
    extra: dict[str, Any] = {}


class Options(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Our extension of a manifest: the implementation (a model, a Python function or a mount), limits and card."""

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
    other_rules: dict[str, Any] = {}  # the members of delegate_rules whose keys are not ids, with any values
    extra: dict[str, Any] = {}
    file: str = ""

    def binding(self, server: str) -> Binding | None:
        return next((binding for binding in self.mcp_bindings if binding.server_id == server), None)

    def to_json(self) -> dict[str, Any]:
        """The manifest as a JSON object, with all members that it was read with."""
        rules = {id_: {"when_to_delegate": r.when_to_delegate, **r.extra} for id_, r in self.delegate_rules.items()}
        manifest: dict[str, Any] = {
            "id": self.id,
            "system_prompt": self.system_prompt,
            "allowed_agents": list(self.allowed_agents),
            "delegate_rules": {**rules, **self.other_rules},
            "overseer": self.overseer,
            "mcp_bindings": [_binding_json(binding) for binding in self.mcp_bindings],
            **self.extra,
        }
        ours = msgspec.to_builtins(self.options)
        return {**manifest, OURS: ours} if ours else manifest


class Server(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A tool server: a command to start, or an address. `needs` lists the scopes that each tool requires."""

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
    entry: str | None = None  # as configured; see `entry_of`
    limits: Limits = Limits()
    policy: Policy = DEFAULT_POLICY
    model: str | None = None  # of agents without their own
    description: str = ""
    file: str = ""  # the team file
    duplicates: list[Manifest] = []  # manifests whose id was taken
    invalid_ids: set[str] = set()  # ids of manifests that exist but are invalid
    extra: dict[str, Any] = {}

    def add(self, manifest: Manifest) -> None:
        if manifest.id in self.manifests:
            self.duplicates.append(manifest)
        else:
            self.manifests[manifest.id] = manifest

    def find(self, id_: str) -> Manifest | None:
        """The manifest of an agent, or of the agent of an instance."""
        return self.manifests.get(id_.partition("#")[0])

    def limits_of(self, manifest: Manifest) -> Limits:
        return self.limits.filled_from(DEFAULT_LIMITS).tightest(manifest.options.limits)


def entry_of(team: Team) -> Manifest | None:
    """The agent that the orchestrator starts: the configured one, or the only one that is no delegate."""
    candidates = _entry_candidates(team)
    return team.manifests.get(candidates[0]) if len(candidates) == 1 else None


def _entry_candidates(team: Team) -> list[str]:
    if team.entry is not None:
        return [team.entry]
    marked = [manifest.id for manifest in team.manifests.values() if manifest.options.entry]
    if marked:
        return marked
    targets = {t for m in team.manifests.values() for t in m.allowed_agents if t != m.id}
    undelegated = [id_ for id_ in team.manifests if id_ not in targets]
    if len(undelegated) < 2:
        return undelegated
    # An overseer that is no delegate is reached through the agents that it reviews.
    overseers = {manifest.overseer for manifest in team.manifests.values()}
    others = [id_ for id_ in undelegated if id_ not in overseers]
    return others if len(others) == 1 else undelegated


# -- reading a manifest ---------------------------------------------------------------------------------------


def read_manifest(value: Any, file: str = "") -> Manifest:
    """Reads a manifest from JSON. Raises Invalid with all problems and the path of the first."""
    if problems := manifest_problems(value, file):
        raise Invalid("; ".join(f"{p.path} {p.message}".strip() for p in problems), path=problems[0].path)
    rules, known = value["delegate_rules"], {"when_to_delegate"}
    return Manifest(
        id=value["id"],
        system_prompt=value["system_prompt"],
        allowed_agents=tuple(value["allowed_agents"]),
        delegate_rules={i: Rule(r["when_to_delegate"], _without(r, known)) for i, r in rules.items() if is_id(i)},
        overseer=value.get("overseer"),
        mcp_bindings=tuple(_binding(binding) for binding in value["mcp_bindings"]),
        options=msgspec.convert(value.get(OURS, {}), Options),
        other_rules={key: rule for key, rule in rules.items() if not is_id(key)},
        extra=_without(value, {"id", "system_prompt", "allowed_agents", "delegate_rules", "overseer", "mcp_bindings",
                               OURS}),
        file=file,
    )  # fmt: skip


def manifest_problems(value: Any, file: str = "") -> list[Problem]:
    """Lists the mistakes in the structure of a manifest."""
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
            shape.problems.extend(type_problems(value[OURS], Options, f"/{OURS}", file))
    return shape.problems


def type_problems(value: Any, kind: Any, path: str, file: str = "") -> list[Problem]:
    """Lists the first problem that keeps a JSON value from fitting a type; empty if it fits."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, inside = split_message(str(error))
        return [Problem(file, path + inside, message.replace("`", ""))]
    return []


class _Shape:
    """Checks members one by one, and collects the problems."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []

    def is_a(self, value: Any, kind: type, path: str) -> bool:
        if type(value) is kind:
            return True
        self.problems.append(Problem(self.file, path, f"is {_KINDS[kind]}, got {_kind(value)}"))
        return False

    def member(self, holder: dict[str, Any], name: str, kind: type, path: str) -> Any:
        """Returns a required member; None if it is missing or of another type."""
        if name not in holder:
            self.problems.append(Problem(self.file, f"{path}/{name}", f"is missing: it is {_KINDS[kind]}"))
            return None
        return holder[name] if self.is_a(holder[name], kind, f"{path}/{name}") else None

    def texts(self, holder: dict[str, Any], name: str, path: str) -> None:
        for index, text in enumerate(self.member(holder, name, list, path) or []):
            self.is_a(text, str, f"{path}/{name}/{index}")


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
    value: dict[str, Any] = {"server_id": binding.server_id}
    if binding.description is not None:
        value["description"] = binding.description
    return {**value, "scopes": list(binding.scopes), "allowed_tools": list(binding.allowed_tools), **binding.extra}


# -- the team as a whole --------------------------------------------------------------------------------------


def check(team: Team) -> list[Problem]:
    """Lists all problems of a team, file by file."""
    problems = [
        Problem(m.file, "/id", f"{m.id} is the id of another agent ({_where(team, m.id)})") for m in team.duplicates
    ]
    for manifest in team.manifests.values():
        problems.extend(Problem(manifest.file, *problem) for problem in _member_problems(team, manifest))
    problems.extend(_oversight_cycles(team))
    problems.extend(_team_problems(team))
    return problems


_MemberProblem = tuple[str, str, Literal["error", "warning"]]


def _member_problems(team: Team, manifest: Manifest) -> Iterable[_MemberProblem]:
    yield from _id_problems(manifest)
    yield from _delegation_problems(team, manifest)
    if manifest.overseer == manifest.id:
        yield "/overseer", f"{manifest.id} cannot oversee itself", "error"
    elif manifest.overseer is not None and manifest.overseer != USER:
        yield from _unknown(team, manifest.overseer, "/overseer")
    yield from _binding_problems(team, manifest)
    options = manifest.options
    if sum(implementation is not None for implementation in (options.model, options.handler, options.target)) > 1:
        yield f"/{OURS}", "one of model, handler and target does the thinking, not several", "error"


def _id_problems(manifest: Manifest) -> Iterable[_MemberProblem]:
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


def _delegation_problems(team: Team, manifest: Manifest) -> Iterable[_MemberProblem]:
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


def _binding_problems(team: Team, manifest: Manifest) -> Iterable[_MemberProblem]:
    for index, binding in enumerate(manifest.mcp_bindings):
        at = f"/mcp_bindings/{index}"
        if any(other.server_id == binding.server_id for other in manifest.mcp_bindings[:index]):
            # Two bindings together would grant the tools of one with the scopes of the other.
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


def _unknown(team: Team, id_: str, at: str) -> Iterable[_MemberProblem]:
    if id_ in team.manifests or id_ in team.invalid_ids:
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
        path: list[str] = []
        at: str | None = start
        while at is not None and at in team.manifests and at not in seen:
            seen.add(at)
            path.append(at)
            at = team.manifests[at].overseer
        if at in path and at != path[-1]:  # _member_problems reports an agent that oversees itself
            cycle = path[path.index(at) :]
            chain = " → ".join([*cycle, at])
            file = team.manifests[at].file
            yield Problem(file, "/overseer", f"oversight goes round in a circle, and nothing is ever approved: {chain}")


def _team_problems(team: Team) -> Iterable[Problem]:
    if not team.manifests:
        if not team.invalid_ids:
            yield Problem(team.file, "", "the team has no agents")
        return
    for name in ("depth", "runs"):
        if getattr(team.limits, name) == 0:
            yield Problem(team.file, f"/limits/{name}", "is 0: not even the entry agent could be started")
    for id_, server in team.servers.items():
        if (server.command is None) == (server.url is None):
            yield Problem(team.file, f"/servers/{_step(id_)}", "has either a command or a url")
        if not any(manifest.binding(id_) for manifest in team.manifests.values()) and not team.invalid_ids:
            yield Problem(team.file, f"/servers/{_step(id_)}", "no agent has a binding for it", "warning")
    entry = entry_of(team)
    if entry is None:
        if problem := _entry_problem(team):
            yield problem
        return
    reached, open_ids = {entry.id}, [entry.id]
    while open_ids:
        manifest = team.manifests[open_ids.pop()]
        for next_ in (*manifest.allowed_agents, manifest.overseer):
            if next_ is not None and next_ not in reached and next_ in team.manifests:
                reached.add(next_)
                open_ids.append(next_)
    for manifest in team.manifests.values():
        if manifest.id not in reached and not team.invalid_ids:
            why = f"no way leads from {entry.id} to {manifest.id}: nobody delegates to it, and it oversees nobody"
            yield Problem(manifest.file, "/id", why, "warning")


def _entry_problem(team: Team) -> Problem | None:
    if team.entry is not None:
        known = ", ".join(team.manifests)
        why = f"there is no agent {team.entry[:80]} in the team (there are: {known})"
        return None if team.entry in team.invalid_ids else Problem(team.file, "/entry", why)
    if team.invalid_ids:
        return None
    candidates = _entry_candidates(team)
    if not candidates:
        return Problem(team.file, "/entry", "is missing: every agent is delegated to by another; name the first one")
    return Problem(team.file, "/entry", f"is missing: {' and '.join(candidates)} could all be the first one; name it")


def _where(team: Team, id_: str) -> str:
    return team.manifests[id_].file or "before this one"

"""Makes the report of `interlingua team check`: mistakes with their remedies, and the permissions of each agent.

Everything here is made from what stands in the files. Only `probe` starts something: the tool servers, to see whether
they have the tools that agents are allowed to call.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from ....model.error_numbers import ErrorNumber
from ....model.errors import InterlinguaError
from ....model.pointers import escape
from ....model.team.authority import DEFAULT_LIMITS, Limits, Policy, Step
from ....model.team.manifest import OURS, USER, Manifest, Problem, Server, Team, entry_of
from ....teams.load import HANDLERS
from ....terminal.console import clean


class Advised(msgspec.Struct, frozen=True):
    """A problem, with the file as it is found from here, and what to do about it."""

    file: str
    path: str
    message: str
    severity: str
    advice: str = ""

    def lines(self) -> list[str]:
        place = ": ".join(part for part in (self.file, self.path) if part)
        told = [f"{self.severity}: {place}: {self.message}"]
        return [*told, f"    {self.advice}"] if self.advice else told


def advised(team: Team, folder: Path, problem: Problem) -> Advised:
    file = str(folder / problem.file) if problem.file else str(folder)
    return Advised(file, problem.path, problem.message, problem.severity, _advice(team, problem))


# -- what to do -----------------------------------------------------------------------------------------------


def _advice(team: Team, problem: Problem) -> str:
    """Returns the remedy for a problem, by its place and by what the team has there. The message itself only names the
    problem."""
    config = team.file or "team.toml"
    if problem.file == team.file and (told := _advice_for_team(team, problem, config)):
        return told
    if any(one.file == problem.file for one in team.duplicates) and problem.path == "/id":
        return "give one of the two another id, or take one file away"
    manifest = next((one for one in team.manifests.values() if one.file == problem.file), None)
    return _advice_for_agent(team, manifest, problem, config) if manifest is not None else ""


def _advice_for_team(team: Team, problem: Problem, config: str) -> str:
    if problem.path == "/entry":
        named = next(iter(_close(team.entry or "", team.manifests)), None) or next(iter(team.manifests), "ID")
        return f'write entry = "{named}" into {config}, or "entry": true into {OURS} of one manifest'
    if problem.path.startswith("/servers/") and problem.severity == "warning":
        return "bind it in mcp_bindings of the agent that needs it, or take it away"
    if not team.manifests and not problem.path:
        return "put a manifest into the folder: id, system_prompt, allowed_agents, delegate_rules and mcp_bindings"
    return ""


def _advice_for_agent(team: Team, manifest: Manifest, problem: Problem, config: str) -> str:
    warned = problem.severity == "warning"
    match problem.path.split("/")[1:]:
        case ["allowed_agents", index]:
            target = manifest.allowed_agents[int(index)]
            if target not in team.manifests:
                return f"add a manifest with the id {target}, or take it out of allowed_agents" + _meant(target, team)
            if target not in manifest.delegate_rules:
                return f"write delegate_rules.{target}.when_to_delegate, or take {target} out of allowed_agents"
        case ["delegate_rules", key] if key not in manifest.allowed_agents:
            return f"add {key} to allowed_agents, or take its rule away" + _meant(key, team)
        case []:
            return f"give a model (--model PROVIDER:NAME, or model in {config}), or an agent of that name in {HANDLERS}"
        case [ours, "handler"] if ours == OURS:
            return "write FILE:FUNCTION, with the file as it is seen from the team's folder"
        case ["overseer"] if manifest.overseer in (None, manifest.id) or manifest.overseer in team.manifests:
            return "name somebody who is not overseen by it in turn: another agent, user for yourself, or null"
        case ["overseer"]:
            return "name an agent of the team, user for yourself, or null for nobody" + _meant(
                manifest.overseer or "", team
            )
        case ["mcp_bindings", index, "server_id"]:
            server = manifest.mcp_bindings[int(index)].server_id
            if server not in team.servers:
                close = _close(server, team.servers)
                return f"add [servers.{server}] with a command or a url to {config}" + (
                    f"; or did you mean {close[0]}?" if close else ""
                )
        case ["mcp_bindings", _, "allowed_tools", _] if warned:
            return "add that scope to the binding, or take the tool out of allowed_tools"
        case ["mcp_bindings", _, "allowed_tools", _]:
            return "correct its name, or take it out of allowed_tools"
        case ["id"] if warned:
            return "let another agent delegate to it or be overseen by it, or take its manifest away"
    return ""


def _close(wanted: str, known: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(wanted, list(known), 1)


def _meant(wanted: str, team: Team) -> str:
    close = _close(wanted, team.manifests)
    return f"; or did you mean {close[0]}?" if close else ""


# -- who thinks -----------------------------------------------------------------------------------------------


class Thinks(msgspec.Struct, frozen=True, omit_defaults=True):
    """The implementation of an agent: a Python function, a mounted agent or a model. If none is set, it is not chosen
    yet."""

    handler: str | None = None
    target: str | None = None
    model: str | None = None

    def __str__(self) -> str:
        if self.handler is not None:
            return f"the Python function {self.handler}"
        if self.target is not None:
            return f"the mounted agent {self.target}"
        return f"the model {self.model}" if self.model is not None else "nobody yet: name a model with --model"


def thinkers(team: Team, folder: Path, model: str | None = None) -> dict[str, Thinks]:
    """Returns the implementation of each member, chosen as `app.teams` chooses it. `model` is the one that the command
    line gives to all members that name none."""
    beside = dict(_beside(folder))
    found: dict[str, Thinks] = {}
    for manifest in team.manifests.values():
        options = manifest.options
        if options.handler is not None or options.target is not None:
            found[manifest.id] = Thinks(options.handler, options.target)
        elif options.model is None and model is None and manifest.id in beside:
            found[manifest.id] = Thinks(handler=beside[manifest.id])
        else:
            found[manifest.id] = Thinks(model=options.model or model or team.model)
    return found


def unthought(team: Team, folder: Path, model: str | None = None) -> list[Problem]:
    """Lists the members without an implementation: with them the team cannot be loaded."""
    found: list[Problem] = []
    for id_, one in thinkers(team, folder, model).items():
        file = team.manifests[id_].file
        if one == Thinks():
            found.append(Problem(file, "", f"nobody thinks for {id_}: it has no handler, no target and no model"))
        elif one.handler is not None and (why := _no_handler(one.handler, folder)):
            found.append(Problem(file, f"/{OURS}/handler", why))
    return found


def _no_handler(handler: str, folder: Path) -> str:
    """The complaint that the file of a handler (FILE:FUNCTION) is not there; empty where it is. It is not run."""
    file, _, name = handler.rpartition(":")
    path = folder / (file or name)
    return "" if path.is_file() else f"there is no file {path}, which {handler} names"


def _beside(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields the agents in the Python file beside the manifests. Reads the file without running it: a check should have
    no effects."""
    try:
        tree = ast.parse((folder / HANDLERS).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                if (agent := _agent_name(decorator, node.name)) is not None:
                    yield agent, f"{HANDLERS}:{node.name}"


def _agent_name(decorator: ast.expr, function: str) -> str | None:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) != "agent":
        return None
    for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return function


# -- the team in words ----------------------------------------------------------------------------------------


def describe(team: Team, folder: Path, model: str | None = None) -> dict[str, Any]:
    """The team for programs: what `--json` prints, and what the lines for people are made of."""
    entry, thinking = entry_of(team), thinkers(team, folder, model)
    return {
        "name": team.name,
        "description": team.description,
        "entry": entry.id if entry is not None else None,
        "agents": [_agent(team, team.manifests[id_], thinking[id_]) for id_ in _in_order(team, entry)],
        "servers": {id_: _server(server) for id_, server in team.servers.items()},
        "limits": msgspec.to_builtins(team.limits.filled_from(DEFAULT_LIMITS)),
        "policy": {str(code): [_step(step) for step in steps] for code, steps in _table(team.policy)},
    }


def _in_order(team: Team, entry: Manifest | None) -> list[str]:
    """Agents as work comes to them: the entry agent first, and whomever it delegates to before those further down."""
    order = [entry.id] if entry is not None else []
    for id_ in order:  # it grows on the way
        manifest = team.manifests[id_]
        after = (*manifest.allowed_agents, manifest.overseer)
        order += [one for one in dict.fromkeys(after) if one in team.manifests and one not in order]
    return [*order, *(id_ for id_ in team.manifests if id_ not in order)]


def _agent(team: Team, manifest: Manifest, thinks: Thinks) -> dict[str, Any]:
    rules = manifest.delegate_rules
    delegates = dict.fromkeys(manifest.allowed_agents)
    return {
        "id": manifest.id,
        "file": manifest.file,
        "thinks": msgspec.to_builtins(thinks),
        "delegates": [{"to": to, "when": rules[to].when_to_delegate if to in rules else None} for to in delegates],
        "overseer": manifest.overseer,
        "oversees": [other.id for other in team.manifests.values() if other.overseer == manifest.id],
        "tools": [
            {"server": b.server_id, "tools": list(b.allowed_tools), "scopes": list(b.scopes)}
            for b in manifest.mcp_bindings
        ],
        "limits": msgspec.to_builtins(manifest.options.limits),
    }


def _server(server: Server) -> dict[str, Any]:
    """Returns how a tool server is reached. Leaves out its environment and headers, which may be secret."""
    how = {"command": " ".join([server.command, *server.args])} if server.command is not None else {"url": server.url}
    return {**how, "needs": {tool: list(scopes) for tool, scopes in server.needs.items()}}


def _table(policy: Policy) -> Iterator[tuple[int | str, tuple[Step, ...]]]:
    yield from sorted(policy.steps.items())
    yield "default", policy.default


def _step(step: Step) -> str:
    match step.do:
        case "retry":
            often = f"{step.times} times" if step.times > 1 else "once"
            return f"retry {often}, after {step.seconds:g} s" + (
                f" and {step.factor:g} times as long each time" if step.times > 1 and step.factor != 1 else ""
            )
        case "escalate":
            return f"escalate to the {step.to}"
        case "reassign" if step.to is not None:
            return f"reassign to {step.to}"
    return step.do


def explained(described: dict[str, Any]) -> list[str]:
    """The team for people, line by line."""
    lines = [described["description"], ""] if described["description"] else []
    lines.append(f"A task begins with {described['entry']}.")
    for agent in described["agents"]:
        lines += ["", agent["id"], *(f"  {name:<10} {text}" for name, text in _facts(agent, described["servers"]))]
    lines += ["", f"Limits of a task: {_limits(described['limits'])}.", "When work fails:"]
    for code, steps in described["policy"].items():
        then = [*steps, *(["fail"] if not steps or steps[-1] != "fail" else [])]
        lines.append(f"  {_code(code):<16} {', then '.join(then)}")
    return [clean(line) for line in lines]


def _facts(agent: dict[str, Any], servers: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "thinks", str(msgspec.convert(agent["thinks"], Thinks))
    for index, one in enumerate(agent["delegates"]):
        yield "" if index else "delegates", f"to {one['to']}: {' '.join((one['when'] or '').split())}"
    if not agent["delegates"]:
        yield "delegates", "to nobody"
    if agent["overseer"] is not None:
        by_agent = f"by {agent['overseer']}, which approves its results before anybody else sees them"
        yield "overseen", "by you, before anybody sees its results" if agent["overseer"] == USER else by_agent
    if agent["oversees"]:
        yield "oversees", ", ".join(agent["oversees"])
    for index, one in enumerate(agent["tools"]):
        scopes = f" (scopes: {', '.join(one['scopes'])})" if one["scopes"] else " (no scopes)"
        yield "" if index else "tools", f"{one['server']}: {', '.join(one['tools']) or 'none'}{scopes}"
        needs = servers.get(one["server"], {}).get("needs", {})
        for tool in one["tools"]:
            if missing := [scope for scope in needs.get(tool, ()) if scope not in one["scopes"]]:
                yield "", f"  {tool} needs {', '.join(missing)}, and is refused"
    if not agent["tools"]:
        yield "tools", "none"
    if agent["limits"]:
        yield "limits", _limits(agent["limits"])


_LIMITS = {
    "depth": "{} levels of delegation",
    "runs": "{} runs",
    "seconds": "{} seconds",
    "rounds": "{} inquiries in a review",
    "rejections": "{} rejections",
    "review_seconds": "{} seconds for a verdict",
}


def _limits(given: dict[str, Any]) -> str:
    assert set(_LIMITS) == set(Limits.__struct_fields__)
    return ", ".join(text.format(f"{given[name]:g}") for name, text in _LIMITS.items() if name in given)


def _code(code: str) -> str:
    if not code.isdigit():
        return "any other"
    names = {int(one): one.name.lower() for one in ErrorNumber}
    return f"{code} {names.get(int(code), '')}".strip()


# -- the tool servers -----------------------------------------------------------------------------------------


async def probe(team: Team, servers: Any) -> tuple[dict[str, list[str]], list[Problem]]:
    """Asks every tool server for its tools. Returns the tools of each, and the problems: servers that fail, and allowed
    tools that are missing."""
    offered: dict[str, list[str]] = {}
    found: list[Problem] = []
    for id_, server in team.servers.items():
        try:
            offered[id_] = [tool.name for tool in await servers.list(id_, server)]
        except InterlinguaError as error:
            found.append(Problem(team.file, f"/servers/{escape(id_)}", error.message))
    for manifest in team.manifests.values():
        for index, binding in enumerate(manifest.mcp_bindings):
            tools = offered.get(binding.server_id)
            for place, tool in enumerate(binding.allowed_tools):
                if tools is not None and tool not in tools:
                    at = f"/mcp_bindings/{index}/allowed_tools/{place}"
                    known = ", ".join(tools) or "none"
                    why = f"{binding.server_id} has no tool {tool} (it has: {known})"
                    found.append(Problem(manifest.file, at, why))
    return offered, found

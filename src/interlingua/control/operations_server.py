"""The operations on the server itself: agents, mounts, teams, workers, audit exports, health, and who is asking."""

from __future__ import annotations

from starlette.responses import Response

from .._version import __version__
from ..engine.agents.remote_agent import RemoteAgent
from ..model.errors import AgentNotFound, Denied, NotFound
from ..model.run_identity import split_queue
from ..model.team.manifest import Team, entry_of
from ..security import scopes
from ..teams.graph import edges_of, nodes_of
from . import access, operations_questions, wire
from .api import ControlApi
from .operation import Call, Operation
from .views import moment


async def agents(api: ControlApi, call: Call) -> wire.Agents:
    reached = [agent for agent in api.engine.agents if scopes.may(call.caller, "read", agent.card.key)]
    return wire.Agents(agents=[_agent(api, agent) for agent in reached])


async def agent(api: ControlApi, call: Call) -> wire.Agent:
    name, _, version = call.path("agent").partition("@")
    found = api.engine.agents.find(name, version or None)
    if found is None or not scopes.may(call.caller, "read", found.card.key):
        raise AgentNotFound(f"there is no agent {call.path('agent')[:80]}")
    return _agent(api, found)


def _agent(api: ControlApi, found: object) -> wire.Agent:
    card = found.card  # type: ignore[attr-defined]
    stored = api.engine.agents.stored(found)  # type: ignore[arg-type]
    available = not isinstance(found, RemoteAgent) or found.available
    return wire.Agent(
        card=card, available=available, reason="" if available else "no process that has it is there",
        origin=stored.origin, mount_path=api.engine.agents.mount_path(card),
    )  # fmt: skip


async def mounts(api: ControlApi, call: Call) -> wire.Mounts:
    return wire.Mounts(mounts=[
        wire.Mount(
            mount=view.mount, state=view.state, since=moment(view.since), agents=view.agents, reason=view.reason,
            tries=view.tries, next_try_in=view.next_try_in,
        )
        for view in api.mounts()
    ])  # fmt: skip


async def teams(api: ControlApi, call: Call) -> wire.Teams:
    reached = [team for team in api.engine.teams.all() if scopes.may(call.caller, "read", team.name)]
    return wire.Teams(teams=[_team(team) for team in reached])


async def team(api: ControlApi, call: Call) -> wire.Team:
    found = api.engine.teams.find(call.path("team"))
    if found is None or not scopes.may(call.caller, "read", found.name):
        raise NotFound(f"there is no team {call.path('team')[:80]}")
    return _team(found)


def _team(team: Team) -> wire.Team:
    entry = entry_of(team)
    edges = [
        wire.Edge(kind=edge.kind, source=edge.source, target=edge.target, label=edge.note) for edge in edges_of(team)
    ]
    return wire.Team(
        name=team.name, entry=entry.id if entry is not None else "", agents=list(team.manifests), nodes=nodes_of(team),
        edges=edges,
    )  # fmt: skip


async def workers(api: ControlApi, call: Call) -> wire.Workers:
    rows = sorted(await api.engine.cluster.workers(), key=lambda row: row.started_at)
    return wire.Workers(workers=[
        wire.Worker(
            id=row.id, host=row.host, pid=row.pid, started_at=moment(row.started_at), queues=sorted(row.queues),
            agents=sorted({split_queue(queue)[1] for queue in row.queues}),
        )
        for row in rows
    ])  # fmt: skip


async def audit(api: ControlApi, call: Call) -> Response:
    """Streams the signed export of a run and all that came of it, sealed runs and secret inputs included."""
    run = await access.find_run(api.engine, call.path("run"), call.caller, "admin")
    if not access.is_owner(call.caller):
        raise Denied("an audit export has sealed runs and secret inputs; it needs the scope *")
    return api.download(api.export(run.root or run.id), f"{run.root or run.id}.jsonl")


async def health(api: ControlApi, call: Call) -> wire.Health:
    blocked = {reason: count for reason, count in (await api.engine.runs.blocked_report.counts()).items() if count}
    return wire.Health(
        status="ready" if api.engine.running else "stopping", version=__version__, server=api.engine.server_id,
        blocked=blocked, open_questions=await operations_questions.counts(api),
    )  # fmt: skip


async def me(api: ControlApi, call: Call) -> wire.Caller:
    return wire.Caller(id=call.caller.id, name=call.caller.name, scopes=list(call.caller.scopes))


OPERATIONS = [
    Operation(method="GET", path="/agents", handler=agents, answer=wire.Agents, summary="List agents", action="read"),
    Operation(method="GET", path="/agents/{agent}", handler=agent, answer=wire.Agent, action="read",
              summary="Get an agent by NAME or NAME@VERSION"),
    Operation(method="GET", path="/mounts", handler=mounts, answer=wire.Mounts, action="admin",
              summary="List mounts and their states"),
    Operation(method="GET", path="/teams", handler=teams, answer=wire.Teams, summary="List teams", action="read"),
    Operation(method="GET", path="/teams/{team}", handler=team, answer=wire.Team, action="read",
              summary="Get a team with its graph"),
    Operation(method="GET", path="/workers", handler=workers, answer=wire.Workers, action="admin",
              summary="List the processes that execute runs"),
    Operation(method="GET", path="/runs/{run}/audit", handler=audit, summary="Export a signed audit trail",
              media="application/jsonl"),
    Operation(method="GET", path="/health", handler=health, answer=wire.Health, action="admin",
              summary="Get the state of the server"),
    Operation(method="GET", path="/me", handler=me, answer=wire.Caller, summary="Get the caller and its scopes"),
]  # fmt: skip

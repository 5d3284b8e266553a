"""The authority of a team member, its narrowing by delegation, and the policy for failed work. Pure.

The manifest alone decides which tools and delegates an agent has: an analyst may hold tools that its manager lacks,
which is a reason to delegate. Every delegation narrows the limits (depth, deadline, runs). It may also narrow the rest
by a `Scope`, which binds the child and all agents below it; no manifest further down restores anything. This module
only decides: it counts nothing, reads no clock and starts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec

from ..errors import Denied, OverBudget, RunTimedOut

if TYPE_CHECKING:
    from .manifest import Manifest

OVER_BUDGET = OverBudget.code  # the code of a refusal: depth or runs are used up

Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
ByServer = dict[str, tuple[str, ...]]  # server id → tools, or scopes

_N = TypeVar("_N", int, float)


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Bounds on a task. None means that these limits do not restrict it."""

    depth: Count | None = None  # levels of delegation below
    runs: Count | None = None  # started below, on all levels together
    seconds: Seconds | None = None  # until all work below must have ended
    rounds: Count | None = None  # inquiries of one review
    rejections: Count | None = None  # number of rejections that fail the work
    review_seconds: Seconds | None = None  # for one verdict

    def tightest(self, other: Limits) -> Limits:
        """Combines two sets of limits: the smaller value of each."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in self.__struct_fields__}
        return Limits(**{name: _least(*pair) for name, pair in pairs.items()})

    def filled_from(self, other: Limits) -> Limits:
        """Fills limits that are None from `other`."""
        own = {name: getattr(self, name) for name in self.__struct_fields__}
        return msgspec.structs.replace(other, **{name: value for name, value in own.items() if value is not None})


DEFAULT_LIMITS = Limits(depth=8, runs=100, rounds=10, rejections=3)


class Ceiling(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An upper bound for all agents below. None is no bound; a server that is not named is closed."""

    delegates: tuple[str, ...] | None = None
    tools: ByServer | None = None
    scopes: ByServer | None = None


class Scope(Ceiling, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The restrictions that one delegation adds."""

    limits: Limits = Limits()


class Authority(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rights of one instance of an agent within one task."""

    team: str
    agent: str
    delegates: tuple[str, ...]
    tools: ByServer
    scopes: ByServer
    depth: int  # remaining levels of delegation
    budget: int  # remaining runs below
    path: tuple[str, ...]  # ids of instances, from the first to this one
    deadline: int | None = None  # microseconds since 1970, UTC
    instance: int = 1
    ceiling: Ceiling = Ceiling()
    task: str = ""  # the id of the task or of the delegated subtask
    root: str = ""  # the team's run that began the task
    delegator: str = ""  # the instance that delegated the task
    narrowed: bool = False  # a scope was added by a delegation above

    @property
    def me(self) -> str:
        return self.path[-1]


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """A decision of a gate, with its reason for the log and the error code of a refusal."""

    allowed: bool
    reason: str
    code: str | None = None  # of the refusal


def begin(team: str, entry: str, limits: Limits, *, now: int, name: str = "orchestrator") -> Authority:
    """Creates the first authority of a task: it may start the entry agent and call no tool."""
    limits_ = limits.filled_from(DEFAULT_LIMITS)
    return Authority(
        team, name, (entry,), {}, {}, limits_.depth or 0, limits_.runs or 0, (name,),
        _deadline(None, limits_.seconds, now),
    )  # fmt: skip


def shrink(
    parent: Authority,
    manifest: Manifest,
    limits: Limits,
    *,
    now: int,
    scope: Scope | None = None,
    instance: int = 1,
    started: int = 0,
    task: str = "",
) -> Authority:
    """The authority of a child: its manifest under the parent's ceiling and `scope`, within the tightest limits.

    `limits` are the child's own; `started` is the number of runs started under the parent before. `may_delegate`
    decides if the parent may delegate to this child at all.
    """
    restrictions = scope or Scope()
    ceiling = intersect(parent.ceiling, restrictions)
    own = limits.tightest(restrictions.limits)
    left = Limits(depth=max(parent.depth - 1, 0), runs=max(parent.budget - started - 1, 0)).tightest(own)
    name = manifest.id if instance == 1 else f"{manifest.id}#{instance}"
    return Authority(
        team=parent.team,
        agent=manifest.id,
        instance=instance,
        delegates=_intersect(tuple(manifest.allowed_agents), ceiling.delegates) or (),
        tools=_intersect_by_server({b.server_id: tuple(b.allowed_tools) for b in manifest.mcp_bindings}, ceiling.tools)
        or {},
        scopes=_intersect_by_server({b.server_id: tuple(b.scopes) for b in manifest.mcp_bindings}, ceiling.scopes)
        or {},
        depth=left.depth or 0,
        budget=left.runs or 0,
        deadline=_deadline(parent.deadline, own.seconds, now),
        path=(*parent.path, name),
        ceiling=ceiling,
        task=task or parent.task,
        root=parent.root,
        delegator=parent.me,
        narrowed=parent.narrowed or restrictions != Scope(),
    )


def restrict(authority: Authority, ceiling: Ceiling, seconds: float | None, now: int) -> Authority:
    """Adds a ceiling and a limit of seconds to an authority."""
    return msgspec.structs.replace(
        authority, ceiling=intersect(authority.ceiling, ceiling), deadline=_deadline(authority.deadline, seconds, now)
    )


def intersect(left: Ceiling, right: Ceiling) -> Ceiling:
    """Intersects two ceilings."""
    return Ceiling(
        _intersect(left.delegates, right.delegates),
        _intersect_by_server(left.tools, right.tools),
        _intersect_by_server(left.scopes, right.scopes),
    )


def may_delegate(authority: Authority, target: str, *, started: int = 0, now: int | None = None) -> Decision:
    """Decides if a run of `target` (an agent, or an instance, which counts as its agent) may start.

    `started` is the number of runs started under this authority so far.
    """
    agent = target.partition("#")[0]
    me = authority.path[-1]
    if agent not in authority.delegates:
        if authority.ceiling.delegates is not None and agent not in authority.ceiling.delegates:
            return _refuse(f"{me} may not delegate to {agent}: the delegation that it works under leaves it out")
        known = ", ".join(authority.delegates) or "nobody"
        return _refuse(f"{me} may not delegate to {agent}: its allowed_agents are {known}")
    if authority.depth < 1:
        return _refuse(f"{me} may not delegate to {agent}: no level of delegation is left", OVER_BUDGET)
    if authority.budget - started < 1:
        return _refuse(f"{me} may not delegate to {agent}: none of its {authority.budget} runs is left", OVER_BUDGET)
    if _is_late(authority, now):
        return _refuse(f"{me} may not delegate to {agent}: its time is over", RunTimedOut.code)
    return Decision(True, f"{me} has {agent} in its allowed_agents")


def may_call(
    authority: Authority, server: str, tool: str, scopes: Iterable[str] = (), *, now: int | None = None
) -> Decision:
    """Decides if a tool that needs these scopes may be called."""
    me, what = authority.path[-1], f"{tool} of {server}"
    if server not in authority.tools:
        return _refuse(f"{me} may not call {what}: it has no binding for that server")
    if tool not in authority.tools[server]:
        return _refuse(f"{me} may not call {what}: its tools there are {', '.join(authority.tools[server]) or 'none'}")
    granted = authority.scopes.get(server, ())
    if missing := [scope for scope in scopes if scope not in granted]:
        return _refuse(f"{me} may not call {what}: that needs the scope {', '.join(missing)}, which it was not given")
    if _is_late(authority, now):
        return _refuse(f"{me} may not call {what}: its time is over", RunTimedOut.code)
    return Decision(True, f"{me} has a binding for {what}")


def _refuse(reason: str, code: str = Denied.code) -> Decision:
    return Decision(False, reason, code)


def _is_late(authority: Authority, now: int | None) -> bool:
    return now is not None and authority.deadline is not None and now >= authority.deadline


def _deadline(before: int | None, seconds: float | None, now: int) -> int | None:
    return _least(before, None if seconds is None else now + round(seconds * 1_000_000))


def _least(a: _N | None, b: _N | None) -> _N | None:
    return b if a is None else a if b is None else min(a, b)


def _intersect(a: tuple[str, ...] | None, b: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Intersects two lists of names, where None contains every name."""
    return b if a is None else a if b is None else tuple(name for name in a if name in b)


def _intersect_by_server(
    a: Mapping[str, tuple[str, ...]] | None, b: Mapping[str, tuple[str, ...]] | None
) -> ByServer | None:
    if a is None or b is None:
        known = b if a is None else a
        return None if known is None else dict(known)
    return {server: tuple(name for name in a[server] if name in b[server]) for server in a if server in b}


# -- when work fails ------------------------------------------------------------------------------------------


class Step(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One reaction to an error."""

    do: Literal["retry", "reassign", "escalate", "fail"]
    times: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    seconds: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 1.0  # before the first retry
    factor: Annotated[float, msgspec.Meta(ge=1, le=100)] = 2.0  # of growth of the wait from retry to retry
    to: str | None = None  # escalate: overseer, user or orchestrator; reassign: an agent, else the next allowed one


class Action(msgspec.Struct, frozen=True, omit_defaults=True):
    """The next action of a policy."""

    do: Literal["retry", "reassign", "escalate", "fail"]
    delay: float = 0.0  # seconds before the action
    to: str | None = None


MAX_DELAY = 3600.0
_FAIL = Step("fail")
_RETRY = Step("retry", times=3)
_ESCALATE = Step("escalate", to="orchestrator")


class Policy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The steps for each error number, tried in order until one helps. The last resort is always to fail."""

    steps: dict[int, tuple[Step, ...]] = {}
    default: tuple[Step, ...] = (_FAIL,)

    def action(self, code: int, taken: int) -> Action:
        """The next action for an error after `taken` actions that did not help."""
        for step in self.steps.get(code, self.default):
            if taken < step.times:
                if step.do == "retry":
                    return Action("retry", min(step.seconds * step.factor**taken, MAX_DELAY))
                return Action(step.do, to=step.to)
            taken -= step.times
        return Action("fail")


# The numbers are HTTP status codes. A wrong or forbidden request stays wrong, so it fails; an unavailable service may
# come back, so it is retried. A timeout is not retried without being asked. Only the author of the team knows which
# other agent could do the work.
DEFAULT_POLICY = Policy(
    {
        502: (_ESCALATE,),
        503: (_RETRY, _ESCALATE),
        504: (_ESCALATE,),
    }
)

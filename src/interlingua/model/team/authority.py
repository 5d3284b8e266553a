"""What a member of a team may do, how that shrinks on the way down, and what is tried when work fails. Pure.

Which tools and which delegates an agent has is its manifest's word alone: an analyst may hold tools that its manager
lacks, that is why one delegates. What shrinks with every delegation are the limits (depth, deadline, runs), and
whatever a delegation narrows on purpose: a `Scope` holds for the child and for everybody below it, and no manifest
further down wins anything back. Nothing here counts, looks at a clock or starts anything: the engine asks, and is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec

from ..errors import Denied, OverBudget, RunTimedOut

if TYPE_CHECKING:
    from .manifest import Manifest

OVER_BUDGET = OverBudget.code  # the code of a refusal because depth or runs are used up

Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
ByServer = dict[str, tuple[str, ...]]  # server id → tools, or scopes

_N = TypeVar("_N", int, float)


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How far work may go. What is None is not limited by whoever gave these limits."""

    depth: Count | None = None  # levels of delegation below
    runs: Count | None = None  # started below, all levels together
    seconds: Seconds | None = None  # until everything below must have ended
    rounds: Count | None = None  # inquiries of one review
    rejections: Count | None = None  # after which the work has failed
    review_seconds: Seconds | None = None  # for one verdict

    def tightest(self, other: Limits) -> Limits:
        """Of each limit the smaller one."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in self.__struct_fields__}
        return Limits(**{name: _least(*pair) for name, pair in pairs.items()})

    def over(self, other: Limits) -> Limits:
        """These limits; where one is not given, the other's."""
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        return msgspec.structs.replace(other, **{name: value for name, value in given.items() if value is not None})


DEFAULT_LIMITS = Limits(depth=8, runs=100, rounds=10, rejections=3)


class Ceiling(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What nobody below may go beyond. None is no ceiling; a server that is not named is not open at all."""

    delegates: tuple[str, ...] | None = None
    tools: ByServer | None = None
    scopes: ByServer | None = None


class Scope(Ceiling, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a delegation narrows on purpose."""

    limits: Limits = Limits()


class Authority(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one instance of an agent may do within one task."""

    team: str
    agent: str
    delegates: tuple[str, ...]
    tools: ByServer
    scopes: ByServer
    depth: int  # levels of delegation that are left
    budget: int  # runs that may still be started below
    path: tuple[str, ...]  # ids of instances, from the first to this one
    deadline: int | None = None  # microseconds since 1970, UTC
    instance: int = 1
    ceiling: Ceiling = Ceiling()
    task: str = ""  # the id of the task, or of the part of it that was handed over
    root: str = ""  # the team's run, with which the task began
    delegator: str = ""  # who handed it over
    narrowed: bool = False  # a scope was given on the way down to here

    @property
    def me(self) -> str:
        return self.path[-1]


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether something may be done, and why: the reason is for the log, the code for whoever must react."""

    allowed: bool
    reason: str
    code: str | None = None  # of the error that a refusal is


def begin(team: str, entry: str, limits: Limits, *, now: int, name: str = "orchestrator") -> Authority:
    """The authority from which all others of a task are shrunk: it may start the entry agent, and call no tool."""
    all_ = limits.over(DEFAULT_LIMITS)
    return Authority(
        team, name, (entry,), {}, {}, all_.depth or 0, all_.runs or 0, (name,), _deadline(None, all_.seconds, now),
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
    """What a child may: its manifest under the parent's ceiling and `scope`, within the tightest of all limits.

    `limits` are the child's own, `started` is how many runs were started under the parent before. Whether the
    parent may have this child at all is the question of `may_delegate`.
    """
    given = scope or Scope()
    ceiling = meet(parent.ceiling, given)
    own = limits.tightest(given.limits)
    left = Limits(depth=max(parent.depth - 1, 0), runs=max(parent.budget - started - 1, 0)).tightest(own)
    name = manifest.id if instance == 1 else f"{manifest.id}#{instance}"
    return Authority(
        team=parent.team,
        agent=manifest.id,
        instance=instance,
        delegates=_meet(tuple(manifest.allowed_agents), ceiling.delegates) or (),
        tools=_meet_each({b.server_id: tuple(b.allowed_tools) for b in manifest.mcp_bindings}, ceiling.tools) or {},
        scopes=_meet_each({b.server_id: tuple(b.scopes) for b in manifest.mcp_bindings}, ceiling.scopes) or {},
        depth=left.depth or 0,
        budget=left.runs or 0,
        deadline=_deadline(parent.deadline, own.seconds, now),
        path=(*parent.path, name),
        ceiling=ceiling,
        task=task or parent.task,
        root=parent.root,
        delegator=parent.me,
        narrowed=parent.narrowed or given != Scope(),
    )


def narrowed(authority: Authority, ceiling: Ceiling, seconds: float | None, now: int) -> Authority:
    """An authority under one more ceiling, with so many seconds left at most."""
    return msgspec.structs.replace(
        authority, ceiling=meet(authority.ceiling, ceiling), deadline=_deadline(authority.deadline, seconds, now)
    )


def meet(one: Ceiling, other: Ceiling) -> Ceiling:
    """A ceiling that goes beyond neither of two."""
    return Ceiling(
        _meet(one.delegates, other.delegates), _meet_each(one.tools, other.tools), _meet_each(one.scopes, other.scopes)
    )


def may_delegate(authority: Authority, target: str, *, started: int = 0, now: int | None = None) -> Decision:
    """Whether a run of `target` (an agent, or an instance, which counts as its agent) may be started.

    `started` is how many runs were started under this authority so far, by whomever.
    """
    agent = target.partition("#")[0]
    me = authority.path[-1]
    if agent not in authority.delegates:
        if authority.ceiling.delegates is not None and agent not in authority.ceiling.delegates:
            return _no(f"{me} may not delegate to {agent}: the delegation that it works under leaves it out")
        known = ", ".join(authority.delegates) or "nobody"
        return _no(f"{me} may not delegate to {agent}: its allowed_agents are {known}")
    if authority.depth < 1:
        return _no(f"{me} may not delegate to {agent}: no level of delegation is left", OVER_BUDGET)
    if authority.budget - started < 1:
        return _no(f"{me} may not delegate to {agent}: none of its {authority.budget} runs is left", OVER_BUDGET)
    if _late(authority, now):
        return _no(f"{me} may not delegate to {agent}: its time is over", RunTimedOut.code)
    return Decision(True, f"{me} has {agent} in its allowed_agents")


def may_call(
    authority: Authority, server: str, tool: str, scopes: Iterable[str] = (), *, now: int | None = None
) -> Decision:
    """Whether a tool may be called that needs these scopes."""
    me, what = authority.path[-1], f"{tool} of {server}"
    if server not in authority.tools:
        return _no(f"{me} may not call {what}: it has no binding for that server")
    if tool not in authority.tools[server]:
        return _no(f"{me} may not call {what}: its tools there are {', '.join(authority.tools[server]) or 'none'}")
    granted = authority.scopes.get(server, ())
    if missing := [scope for scope in scopes if scope not in granted]:
        return _no(f"{me} may not call {what}: that needs the scope {', '.join(missing)}, which it was not given")
    if _late(authority, now):
        return _no(f"{me} may not call {what}: its time is over", RunTimedOut.code)
    return Decision(True, f"{me} has a binding for {what}")


def _no(reason: str, code: str = Denied.code) -> Decision:
    return Decision(False, reason, code)


def _late(authority: Authority, now: int | None) -> bool:
    return now is not None and authority.deadline is not None and now >= authority.deadline


def _deadline(before: int | None, seconds: float | None, now: int) -> int | None:
    return _least(before, None if seconds is None else now + round(seconds * 1_000_000))


def _least(a: _N | None, b: _N | None) -> _N | None:
    return b if a is None else a if b is None else min(a, b)


def _meet(a: tuple[str, ...] | None, b: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """What both have, where None has everything."""
    return b if a is None else a if b is None else tuple(one for one in a if one in b)


def _meet_each(a: Mapping[str, tuple[str, ...]] | None, b: Mapping[str, tuple[str, ...]] | None) -> ByServer | None:
    if a is None or b is None:
        found = b if a is None else a
        return None if found is None else dict(found)
    return {server: tuple(one for one in a[server] if one in b[server]) for server in a if server in b}


# -- when work fails ------------------------------------------------------------------------------------------


class Step(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One way to react to an error."""

    do: Literal["retry", "reassign", "escalate", "fail"]
    times: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    seconds: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 1.0  # before the first retry
    factor: Annotated[float, msgspec.Meta(ge=1, le=100)] = 2.0  # by which the wait grows from retry to retry
    to: str | None = None  # escalate: overseer, user or orchestrator; reassign: an agent, else the next one allowed


class Action(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to do now."""

    do: Literal["retry", "reassign", "escalate", "fail"]
    delay: float = 0.0  # seconds before it is done
    to: str | None = None


LONGEST_WAIT = 3600.0
_FAIL = Step("fail")
_RETRY = Step("retry", times=3)
_ESCALATE = Step("escalate", to="orchestrator")


class Policy(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which steps follow which error code, one after the other until one helps. The last resort is always to fail."""

    steps: dict[int, tuple[Step, ...]] = {}
    default: tuple[Step, ...] = (_FAIL,)

    def action(self, code: int, taken: int) -> Action:
        """What to do about an error for which `taken` actions were taken already, none of which helped."""
        for step in self.steps.get(code, self.default):
            if taken < step.times:
                if step.do == "retry":
                    return Action("retry", min(step.seconds * step.factor**taken, LONGEST_WAIT))
                return Action(step.do, to=step.to)
            taken -= step.times
        return Action("fail")


# The numbers are HTTP's. What the sender got wrong, or may not do, is as wrong the next time; what is down may come
# back. What took too long once is not begun again unasked, and who could do the work instead, nobody knows but the one
# who wrote the team.
DEFAULT_POLICY = Policy(
    {
        502: (_ESCALATE,),
        503: (_RETRY, _ESCALATE),
        504: (_ESCALATE,),
    }
)

"""What an agent may do is decided by its manifest; limits and what was narrowed only ever shrink on the way down."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.model.team.authority import (
    DEFAULT_POLICY,
    MAX_DELAY,
    OVER_BUDGET,
    Action,
    Authority,
    Limits,
    Policy,
    Scope,
    Step,
    begin,
    may_call,
    may_delegate,
    shrink,
)
from interlingua.model.team.manifest import Binding, Manifest, read_manifest
from tests.kit.manifests import ANALYST, PM, QA

NOW = 1_750_000_000_000_000
SECOND = 1_000_000
MANAGER, ANALYSIS, REVIEW = (read_manifest(one) for one in (PM, ANALYST, QA))


def manager(limits: Limits | None = None, scope: Scope | None = None) -> Authority:
    first = begin("sales", "pm-1", limits or Limits(), now=NOW)
    return shrink(first, MANAGER, limits or Limits(), now=NOW, scope=scope)


def analyst(parent: Authority, **given: Any) -> Authority:
    return shrink(parent, ANALYSIS, given.pop("limits", Limits()), now=NOW, **given)


# --- delegation ---------------------------------------------------------------------------------------------


def test_the_orchestrator_may_start_the_entry_agent_and_nothing_else() -> None:
    first = begin("sales", "pm-1", Limits(), now=NOW)
    assert may_delegate(first, "pm-1").allowed
    assert not may_delegate(first, "analyst-1").allowed
    assert not may_call(first, "DocsServer", "read_file").allowed


def test_an_agent_may_delegate_to_its_allowed_agents_and_to_nobody_else() -> None:
    authority = manager()
    assert may_delegate(authority, "analyst-1").allowed
    for stranger in ("qa-1", "pm-1", "user", "analyst-10", "ANALYST-1", ""):
        decision = may_delegate(authority, stranger)
        assert (decision.allowed, decision.code) == (False, "denied")
    assert may_delegate(authority, "qa-1").reason == ("pm-1 may not delegate to qa-1: its allowed_agents are analyst-1")


def test_an_instance_counts_as_its_agent_on_both_sides() -> None:
    second = analyst(manager(), instance=2)
    assert second.path == ("orchestrator", "pm-1", "analyst-1#2")
    assert may_delegate(manager(), "analyst-1#3").allowed
    assert may_delegate(second, "qa-1").reason.startswith("analyst-1#2 has qa-1")


def test_an_agent_that_may_delegate_to_nobody_is_told_so() -> None:
    authority = shrink(analyst(manager()), REVIEW, Limits(), now=NOW)
    assert "its allowed_agents are nobody" in may_delegate(authority, "pm-1").reason


def test_delegation_ends_at_the_last_level() -> None:
    authority = manager(Limits(depth=2))
    assert may_delegate(authority, "analyst-1").allowed
    decision = may_delegate(analyst(authority), "qa-1")
    assert (decision.allowed, decision.code) == (False, OVER_BUDGET)
    assert "no level of delegation is left" in decision.reason


def test_runs_are_counted_over_everything_below() -> None:
    authority = manager(Limits(runs=3))  # of which it is one itself
    assert [may_delegate(authority, "analyst-1", started=count).allowed for count in range(4)] == [
        True, True, False, False,
    ]  # fmt: skip
    assert may_delegate(authority, "analyst-1", started=2).code == OVER_BUDGET
    assert [analyst(authority, started=count).budget for count in range(4)] == [1, 0, 0, 0]


def test_nothing_is_delegated_or_called_after_the_deadline() -> None:
    authority = manager(Limits(seconds=10))
    assert authority.deadline == NOW + 10 * SECOND
    for now, allowed in ((NOW, True), (NOW + 10 * SECOND - 1, True), (NOW + 10 * SECOND, False)):
        assert may_delegate(authority, "analyst-1", now=now).allowed is allowed
        assert may_call(authority, "DocsServer", "read_file", now=now).allowed is allowed
    assert may_delegate(authority, "analyst-1", now=NOW + 11 * SECOND).code == "timed_out"


def test_a_child_has_the_earlier_deadline_of_its_own_and_its_parent_s() -> None:
    parent = manager(Limits(seconds=10))
    assert analyst(parent, limits=Limits(seconds=60)).deadline == parent.deadline
    assert analyst(parent, limits=Limits(seconds=4)).deadline == NOW + 4 * SECOND
    assert analyst(parent, scope=Scope(limits=Limits(seconds=3))).deadline == NOW + 3 * SECOND


# --- tools --------------------------------------------------------------------------------------------------

BINDINGS = [
    (MANAGER, "DocsServer", {"list_documents", "read_file", "create_summary"}, {"read:docs", "write:summary"}),
    (MANAGER, "DataServer", {"query_data"}, {"read:data"}),
    (ANALYSIS, "DataServer", {"query_data", "process_data"}, {"read:data", "write:analysis"}),
    (REVIEW, "SummaryServer", {"create_summary"}, {"write:summary"}),
]
TOOLS = {"list_documents", "read_file", "create_summary", "query_data", "process_data", "drop_table"}
SCOPES = {"read:docs", "write:summary", "read:data", "write:analysis", "admin"}


@pytest.mark.parametrize(
    ("manifest", "server", "tools", "scopes"),
    BINDINGS,
    ids=[f"{manifest.id}-{server}" for manifest, server, _, _ in BINDINGS],
)
def test_an_agent_may_call_the_tools_of_its_bindings_with_their_scopes_and_no_others(
    manifest: Manifest, server: str, tools: set[str], scopes: set[str]
) -> None:
    authority = shrink(begin("sales", manifest.id, Limits(), now=NOW), manifest, Limits(), now=NOW)
    assert {tool for tool in TOOLS if may_call(authority, server, tool).allowed} == tools
    one = min(tools)
    assert {scope for scope in SCOPES if may_call(authority, server, one, [scope]).allowed} == scopes
    assert may_call(authority, server, one, scopes).allowed
    assert not may_call(authority, server, one, scopes | {"admin"}).allowed


def test_a_refused_call_says_why() -> None:
    authority = manager()
    assert may_call(authority, "SummaryServer", "create_summary").reason == (
        "pm-1 may not call create_summary of SummaryServer: it has no binding for that server"
    )
    assert may_call(authority, "DataServer", "process_data").reason.endswith("its tools there are query_data")
    assert may_call(authority, "DataServer", "query_data", ["read:data", "write:analysis"]).reason.endswith(
        "that needs the scope write:analysis, which it was not given"
    )


def test_a_child_may_hold_tools_that_its_parent_lacks() -> None:
    assert not may_call(manager(), "DataServer", "process_data").allowed
    assert may_call(analyst(manager()), "DataServer", "process_data", ["write:analysis"]).allowed


# --- what a delegation narrows ------------------------------------------------------------------------------


def test_a_delegation_can_narrow_what_the_child_may() -> None:
    scope = Scope(delegates=(), tools={"DataServer": ("query_data",)}, scopes={"DataServer": ("read:data",)})
    child = analyst(manager(), scope=scope)
    assert may_call(child, "DataServer", "query_data", ["read:data"]).allowed
    assert not may_call(child, "DataServer", "process_data").allowed
    assert not may_call(child, "DataServer", "query_data", ["write:analysis"]).allowed
    assert may_delegate(child, "qa-1").reason.endswith("the delegation that it works under leaves it out")


def test_what_was_narrowed_stays_so_for_everybody_below() -> None:
    parent = manager(scope=Scope(tools={"DocsServer": ("read_file",)}))
    child = analyst(parent)
    assert not may_call(child, "DataServer", "query_data").allowed
    again = analyst(parent, scope=Scope(tools={"DataServer": ("query_data",)}))
    assert not may_call(again, "DataServer", "query_data").allowed


def test_narrowing_gives_nothing_that_the_manifest_does_not() -> None:
    scope = Scope(delegates=("pm-1", "qa-1"), tools={"DocsServer": ("read_file",), "DataServer": ("drop_table",)})
    child = analyst(manager(), scope=scope)
    assert child.delegates == ("qa-1",)
    assert child.tools == {"DataServer": ()}


def test_an_authority_travels_as_json() -> None:
    child = analyst(manager(Limits(seconds=5)), scope=Scope(tools={"DataServer": ("query_data",)}), instance=4)
    assert msgspec.json.decode(msgspec.json.encode(child), type=Authority) == child


# --- the law: nothing grows ---------------------------------------------------------------------------------

IDS = st.sampled_from(["a", "b", "c", "d"])
SOME_IDS = st.lists(IDS, unique=True).map(tuple)
BY_SERVER = st.dictionaries(st.sampled_from(["S", "T"]), st.lists(st.sampled_from("xyz"), unique=True).map(tuple))
LIMITS = st.builds(
    Limits,
    depth=st.none() | st.integers(0, 6),
    runs=st.none() | st.integers(0, 20),
    seconds=st.none() | st.floats(0.001, 1000),
)
SCOPE = st.none() | st.builds(
    Scope, delegates=st.none() | SOME_IDS, tools=st.none() | BY_SERVER, scopes=st.none() | BY_SERVER, limits=LIMITS
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    tools, scopes = draw(BY_SERVER), draw(BY_SERVER)
    bindings = tuple(Binding(server, scopes.get(server, ()), found) for server, found in tools.items())
    return Manifest(draw(IDS), "prompt", draw(SOME_IDS), mcp_bindings=bindings)


HOPS = st.lists(st.tuples(manifests(), LIMITS, SCOPE, st.integers(0, 5), st.integers(0, 10**9)), min_size=1, max_size=5)


def within(small: dict[str, tuple[str, ...]], large: dict[str, tuple[str, ...]] | None) -> bool:
    return large is None or all(set(found) <= set(large.get(server, ())) for server, found in small.items())


@given(LIMITS, HOPS)
def test_authority_only_shrinks_on_the_way_down(limits: Limits, hops: Any) -> None:
    parent, now = begin("team", "a", limits, now=NOW), NOW
    scopes: list[Scope] = []
    for manifest, own, scope, started, later in hops:
        now += later
        child = shrink(parent, manifest, own, now=now, scope=scope, started=started)
        scopes.extend([scope] if scope is not None else [])
        assert child.depth <= max(parent.depth - 1, 0)
        assert child.budget <= max(parent.budget - started - 1, 0)
        assert parent.deadline is None or (child.deadline is not None and child.deadline <= parent.deadline)
        assert own.depth is None or child.depth <= own.depth
        assert own.runs is None or child.budget <= own.runs
        assert child.path == (*parent.path, manifest.id)
        assert set(child.delegates) <= set(manifest.allowed_agents)
        assert within(child.tools, {b.server_id: b.allowed_tools for b in manifest.mcp_bindings})
        assert within(child.scopes, {b.server_id: b.scopes for b in manifest.mcp_bindings})
        for narrowed in scopes:  # of this delegation, and of all above
            assert narrowed.delegates is None or set(child.delegates) <= set(narrowed.delegates)
            assert within(child.tools, narrowed.tools)
            assert within(child.scopes, narrowed.scopes)
        parent = child


@given(manifests(), LIMITS, SCOPE, st.integers(0, 5))
def test_a_scope_never_allows_what_would_be_refused_without_it(
    manifest: Manifest, limits: Limits, scope: Scope | None, started: int
) -> None:
    first = begin("team", "a", limits, now=NOW)
    free, narrowed = (shrink(first, manifest, limits, now=NOW, scope=one) for one in (None, scope))
    for target in "abcd":
        if may_delegate(narrowed, target, started=started, now=NOW + 1).allowed:
            assert may_delegate(free, target, started=started, now=NOW + 1).allowed
    for server in "ST":
        for tool in "xyz":
            for needed in ((), ("x",), ("y", "z")):
                if may_call(narrowed, server, tool, needed, now=NOW + 1).allowed:
                    assert may_call(free, server, tool, needed, now=NOW + 1).allowed


@given(LIMITS, LIMITS)
def test_the_tightest_of_two_limits_is_the_same_in_any_order_and_never_looser(a: Limits, b: Limits) -> None:
    both = a.tightest(b)
    assert both == b.tightest(a)
    assert both.tightest(a) == both
    assert Limits().tightest(a) == a


def test_given_limits_win_over_defaults() -> None:
    assert Limits(depth=20).filled_from(Limits(depth=8, runs=5)) == Limits(depth=20, runs=5)


# --- when work fails ----------------------------------------------------------------------------------------


def test_steps_of_a_policy_follow_each_other_and_the_last_resort_is_to_fail() -> None:
    policy = Policy(
        {503: (Step("retry", times=3, seconds=0.5, factor=3), Step("reassign"), Step("escalate", to="user"))}
    )
    assert [policy.action(503, taken) for taken in range(7)] == [
        Action("retry", 0.5), Action("retry", 1.5), Action("retry", 4.5), Action("reassign"),
        Action("escalate", to="user"), Action("fail"), Action("fail"),
    ]  # fmt: skip


def test_a_second_row_of_retries_begins_with_its_own_wait() -> None:
    policy = Policy({504: (Step("retry"), Step("reassign"), Step("retry", times=2, seconds=7))})
    assert [policy.action(504, taken).delay for taken in range(4)] == [1.0, 0.0, 7.0, 14.0]


def test_a_code_that_a_policy_does_not_name_gets_its_default() -> None:
    assert Policy().action(504, 0) == Action("fail")
    assert Policy(default=(Step("escalate", to="overseer"),)).action(599, 0) == Action("escalate", to="overseer")


def test_a_wait_has_an_end() -> None:
    policy = Policy({503: (Step("retry", times=100, seconds=60, factor=100),)})
    assert policy.action(503, 99).delay == MAX_DELAY


@pytest.mark.parametrize(
    ("code", "actions"),
    [
        (400, ["fail"]),
        (403, ["fail"]),
        (422, ["fail"]),
        (429, ["fail"]),
        (500, ["fail"]),
        (502, ["escalate", "fail"]),
        (503, ["retry", "retry", "retry", "escalate", "fail"]),
        (504, ["escalate", "fail"]),
    ],
)
def test_the_default_policy_repeats_only_what_may_help(code: int, actions: list[str]) -> None:
    assert [DEFAULT_POLICY.action(code, taken).do for taken in range(len(actions))] == actions

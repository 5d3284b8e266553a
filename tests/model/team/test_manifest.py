"""Manifests are read with the path of whatever is wrong, and a team is checked as a whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from interlingua.model.errors import Invalid, InvalidRequest
from interlingua.model.team.authority import DEFAULT_LIMITS, Limits
from interlingua.model.team.manifest import (
    Manifest,
    Problem,
    Server,
    Team,
    agent_name,
    cap_id,
    check,
    entry_of,
    instance_id,
    instance_of,
    is_id,
    manifest_problems,
    read_manifest,
)
from tests.kit.manifests import ANALYST, PM, QA, SERVERS, agent, changed, team_of


def small(*manifests: dict[str, Any], **members: Any) -> list[tuple[str, str, str]]:
    """What is wrong with a team that uses no servers: severity, file and path, without the words."""
    return [(p.severity, p.file, p.path) for p in check(team_of(*manifests, servers={}, **members))]


# --- one manifest -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [PM, ANALYST, QA], ids=lambda value: value["id"])
def test_a_manifest_of_the_example_is_valid_and_is_written_as_it_was_read(value: dict[str, Any]) -> None:
    assert manifest_problems(value) == []
    assert read_manifest(value).to_json() == value


def test_the_example_says_who_may_delegate_to_whom_and_who_is_overseen() -> None:
    pm, analyst, qa = (read_manifest(one) for one in (PM, ANALYST, QA))
    assert (pm.allowed_agents, pm.overseer) == (("analyst-1",), None)
    assert (analyst.allowed_agents, analyst.overseer) == (("qa-1",), "qa-1")
    assert (qa.allowed_agents, qa.delegate_rules, qa.overseer) == ((), {}, None)
    assert pm.delegate_rules["analyst-1"].when_to_delegate == PM["delegate_rules"]["analyst-1"]["when_to_delegate"]


def test_a_binding_holds_server_tools_scopes_and_description() -> None:
    binding = read_manifest(PM).binding("DataServer")
    assert binding is not None
    assert (binding.scopes, binding.allowed_tools) == (("read:data",), ("query_data",))
    assert binding.description == "Raw sales."
    assert read_manifest(PM).binding("SummaryServer") is None


@pytest.mark.parametrize("value", [None, [], "text", 5, True])
def test_a_manifest_that_is_no_object_is_refused(value: Any) -> None:
    with pytest.raises(Invalid, match="is an object, got"):
        read_manifest(value)


@pytest.mark.parametrize("name", ["id", "system_prompt", "allowed_agents", "delegate_rules", "mcp_bindings"])
def test_a_manifest_without_a_required_member_is_refused(name: str) -> None:
    assert [(p.path, p.message.split(":")[0]) for p in manifest_problems(changed(f"/{name}"))] == [
        (f"/{name}", "is missing")
    ]


@pytest.mark.parametrize("name", ["server_id", "scopes", "allowed_tools"])
def test_a_binding_without_a_required_member_is_refused(name: str) -> None:
    path = f"/mcp_bindings/1/{name}"
    assert [(p.path, p.message.split(":")[0]) for p in manifest_problems(changed(path))] == [(path, "is missing")]


def test_a_rule_without_its_condition_is_refused() -> None:
    path = "/delegate_rules/analyst-1/when_to_delegate"
    assert [p.path for p in manifest_problems(changed(path))] == [path]


WRONG: dict[str, list[Any]] = {
    "/id": [5, None, ["pm-1"]],
    "/system_prompt": [None, {}],
    "/allowed_agents": ["analyst-1", None, {"analyst-1": True}],
    "/allowed_agents/0": [5, None, {"id": "analyst-1"}],
    "/delegate_rules": [[], None, "always"],
    "/delegate_rules/analyst-1": ["always", None, []],
    "/delegate_rules/analyst-1/when_to_delegate": [["always"], None, True],
    "/overseer": [5, ["qa-1"], False, {}],
    "/mcp_bindings": [{}, None, "DocsServer"],
    "/mcp_bindings/0": ["DocsServer", None, []],
    "/mcp_bindings/0/server_id": [None, 5],
    "/mcp_bindings/0/description": [None, 5],
    "/mcp_bindings/0/scopes": ["read:docs", None, {}],
    "/mcp_bindings/0/scopes/1": [5, None],
    "/mcp_bindings/0/allowed_tools": [{"read_file": True}, None, "read_file"],
    "/mcp_bindings/0/allowed_tools/2": [None, 5],
}


@pytest.mark.parametrize("path", WRONG)
def test_a_member_of_the_wrong_kind_is_refused_with_its_path(path: str) -> None:
    for wrong in WRONG[path]:
        assert [p.path for p in manifest_problems(changed(path, wrong))] == [path]
        with pytest.raises(Invalid) as caught:
            read_manifest(changed(path, wrong))
        assert caught.value.path == path


def test_everything_that_is_wrong_with_a_manifest_is_told_at_once() -> None:
    found = manifest_problems({"id": 5, "allowed_agents": [1, "a", 2], "mcp_bindings": [{}]}, "x.json")
    assert [p.path for p in found] == [
        "/id", "/system_prompt", "/allowed_agents/0", "/allowed_agents/2", "/delegate_rules",
        "/mcp_bindings/0/server_id", "/mcp_bindings/0/scopes", "/mcp_bindings/0/allowed_tools",
    ]  # fmt: skip
    assert {p.file for p in found} == {"x.json"}


def test_overseer_may_be_left_out_which_is_the_same_as_null() -> None:
    left_out = read_manifest(changed("/overseer"))
    assert left_out == read_manifest(PM)
    assert left_out.overseer is None


def test_the_description_of_a_binding_may_be_left_out() -> None:
    binding = read_manifest(changed("/mcp_bindings/0/description")).mcp_bindings[0]
    assert binding.description is None


def test_members_that_are_not_known_are_kept_on_every_level() -> None:
    value = changed("/x-colour", "blue")
    value["delegate_rules"]["analyst-1"]["priority"] = 3
    value["mcp_bindings"][0]["region"] = {"eu": True}
    assert read_manifest(value).to_json() == value


def test_what_stands_under_a_key_that_is_no_id_is_kept_and_is_no_rule() -> None:
    value = changed("/delegate_rules/all others", 5)
    manifest = read_manifest(value)
    assert set(manifest.delegate_rules) == {"analyst-1"}
    assert manifest.to_json() == value


def test_a_value_that_is_not_json_is_refused_with_its_path() -> None:
    assert [p.path for p in manifest_problems(changed("/note", {"a": [float("nan")]}))] == ["/note/a/0"]


def test_our_own_members_stand_under_one_key_and_are_written_back() -> None:
    ours = {"model": "openai:gpt-5", "limits": {"depth": 2, "seconds": 1.5}, "version": "1.2.0", "entry": True}
    manifest = read_manifest({**PM, "interlingua": ours})
    assert manifest.options.model == "openai:gpt-5"
    assert manifest.options.limits == Limits(depth=2, seconds=1.5)
    assert manifest.to_json()["interlingua"] == ours


@pytest.mark.parametrize(
    ("ours", "path"),
    [
        (5, "/interlingua"),
        ({"modle": "x"}, "/interlingua"),
        ({"entry": "yes"}, "/interlingua/entry"),
        ({"limits": {"depth": -1}}, "/interlingua/limits/depth"),
        ({"limits": {"seconds": 0}}, "/interlingua/limits/seconds"),
    ],
)
def test_our_own_members_are_checked_with_their_path(ours: Any, path: str) -> None:
    assert [p.path for p in manifest_problems({**PM, "interlingua": ours})] == [path]


# --- the team as a whole ------------------------------------------------------------------------------------


def test_the_team_of_the_example_has_no_problems_and_begins_with_its_manager() -> None:
    team = team_of(PM, ANALYST, QA)
    assert check(team) == []
    entry = entry_of(team)
    assert entry is not None
    assert entry.id == "pm-1"


def test_one_agent_can_be_both_a_delegate_and_the_overseer_of_another() -> None:
    assert small(agent("a", "b", overseer="b"), agent("b")) == []


def test_a_team_without_agents_is_told_of() -> None:
    assert check(Team("none", file="team.toml")) == [Problem("team.toml", "", "the team has no agents")]


def test_an_unknown_agent_is_found_among_delegates_and_as_overseer() -> None:
    found = check(team_of(agent("a", "b", "x"), agent("b", overseer="y"), servers={}))
    assert [(p.file, p.path) for p in found] == [("a.json", "/allowed_agents/1"), ("b.json", "/overseer")]
    assert found[0].message == "there is no agent x in the team (there are: a, b)"


def test_an_allowed_agent_without_a_rule_is_found() -> None:
    assert small({**agent("a", "b"), "delegate_rules": {}}, agent("b")) == [("error", "a.json", "/allowed_agents/0")]


def test_a_rule_for_an_agent_that_is_not_allowed_is_found() -> None:
    stray = {"c": {"when_to_delegate": "Never."}, "no id": 5, "a/b": None}
    first = agent("a", "b")
    first["delegate_rules"] |= stray
    assert small(first, agent("b", "c"), agent("c")) == [
        ("error", "a.json", "/delegate_rules/c"),
        ("error", "a.json", "/delegate_rules/no id"),
        ("error", "a.json", "/delegate_rules/a~1b"),
    ]


def test_an_agent_that_oversees_itself_is_found_once() -> None:
    found = check(team_of(agent("a", overseer="a"), servers={}))
    assert [str(p) for p in found] == ["error: a.json: /overseer: a cannot oversee itself"]


def test_a_circle_of_oversight_is_found_once_and_named() -> None:
    outside = agent("a", "b", "c", "d", overseer="b")
    team = team_of(outside, agent("b", overseer="c"), agent("c", overseer="d"), agent("d", overseer="b"), servers={})
    assert [(p.file, p.path) for p in check(team)] == [("b.json", "/overseer")]
    assert check(team)[0].message.endswith("b → c → d → b")


def test_two_agents_that_oversee_each_other_are_found() -> None:
    assert small(agent("a", "b", overseer="b"), agent("b", overseer="a")) == [("error", "a.json", "/overseer")]


def test_one_that_is_overseen_by_an_agent_that_oversees_itself_is_in_no_circle() -> None:
    assert small(agent("a", "b", overseer="b"), agent("b", overseer="b")) == [("error", "b.json", "/overseer")]


def test_a_chain_of_oversight_that_ends_is_fine() -> None:
    assert small(agent("a", "b", overseer="user"), agent("b", "c", overseer="a"), agent("c", overseer="b")) == []


def test_an_agent_that_may_delegate_to_itself_is_warned_of() -> None:
    assert small(agent("a", "a")) == [("warning", "a.json", "/allowed_agents/0")]


def test_two_agents_may_delegate_to_each_other() -> None:
    assert small(agent("a", "b"), agent("b", "c"), agent("c", "b")) == []


def test_an_id_that_two_manifests_have_is_found_in_the_second() -> None:
    team = team_of(agent("a"), servers={})
    team.add(read_manifest(agent("a"), "copy.json"))
    assert [str(p) for p in check(team)] == ["error: copy.json: /id: a is the id of another agent (a.json)"]


def test_a_server_that_is_not_configured_is_found() -> None:
    team = team_of(PM, ANALYST, QA, servers={name: SERVERS[name] for name in ("DocsServer", "SummaryServer")})
    assert [(p.severity, p.file, p.path) for p in check(team)] == [
        ("error", "pm-1.json", "/mcp_bindings/1/server_id"),
        ("error", "analyst-1.json", "/mcp_bindings/0/server_id"),
    ]


def test_a_second_binding_for_one_server_is_found() -> None:
    twice = {**QA, "mcp_bindings": QA["mcp_bindings"] * 2}
    servers = {"SummaryServer": SERVERS["SummaryServer"]}
    assert [p.path for p in check(team_of(twice, servers=servers))] == ["/mcp_bindings/1/server_id"]


def test_a_tool_whose_scopes_the_binding_lacks_is_warned_of() -> None:
    servers = {"SummaryServer": Server(url="http://h/mcp", needs={"create_summary": ("write:summary", "admin")})}
    found = check(team_of(QA, servers=servers))
    assert [(p.severity, p.path) for p in found] == [("warning", "/mcp_bindings/0/allowed_tools/0")]
    assert "needs the scope admin" in found[0].message


def test_a_server_that_nobody_uses_is_warned_of_and_one_without_an_address_is_wrong() -> None:
    servers = {"x": Server(), "y": Server(command="y", url="http://h"), "z": Server(command="z")}
    found = {(p.severity, p.path) for p in check(team_of(agent("a"), servers=servers))}
    assert found == {("error", "/servers/x"), ("error", "/servers/y")} | {("warning", f"/servers/{n}") for n in "xyz"}


def test_an_agent_that_no_way_leads_to_is_warned_of() -> None:
    team = (agent("a", "b"), agent("b", overseer="reviewer"), agent("reviewer"), agent("lost"))
    assert small(*team, entry="a") == [("warning", "lost.json", "/id")]


@pytest.mark.parametrize("id_", ["user", "orchestrator", "", "a b", "a#2", "a.b", "ä", "x-_2e"])
def test_an_id_that_cannot_be_one_is_found(id_: str) -> None:
    assert small(agent(id_)) == [("error", f"{id_}.json", "/id")]


@pytest.mark.parametrize("target", ["user", "orchestrator", "b#2"])
def test_only_agents_are_delegated_to(target: str) -> None:
    found = [p for p in small(agent("a", "b", target), agent("b")) if p[2].startswith("/allowed_agents")]
    assert ("error", "a.json", "/allowed_agents/1") in found


def test_the_user_may_oversee_and_the_orchestrator_may_not() -> None:
    assert small(agent("a", overseer="user")) == []
    assert small(agent("a", overseer="orchestrator")) == [("error", "a.json", "/overseer")]


def test_an_empty_prompt_or_condition_or_a_repeated_delegate_is_warned_of() -> None:
    first = agent("a", "b", "b", system_prompt=" ")
    first["delegate_rules"]["b"]["when_to_delegate"] = ""
    assert sorted(small(first, agent("b"))) == [
        ("warning", "a.json", "/allowed_agents/1"),
        ("warning", "a.json", "/delegate_rules/b/when_to_delegate"),
        ("warning", "a.json", "/system_prompt"),
    ]


def test_an_agent_thinks_in_one_way() -> None:
    both = agent("a", interlingua={"model": "openai:gpt-5", "handler": "agents.py:a"})
    assert small(both) == [("error", "a.json", "/interlingua")]


def test_limits_under_which_nothing_can_start_are_found() -> None:
    assert small(agent("a"), limits=Limits(depth=0)) == [("error", "team.toml", "/limits/depth")]
    assert small(agent("a"), limits=Limits(runs=0)) == [("error", "team.toml", "/limits/runs")]


def test_a_manifest_that_is_there_but_wrong_makes_no_further_problems() -> None:
    assert small(agent("a", "b", overseer="b"), invalid_ids={"b"}) == []


def test_limits_of_an_agent_are_the_tighter_ones_of_its_own_and_the_team_s() -> None:
    first = agent("a", interlingua={"limits": {"depth": 1, "runs": 1000}})
    team = team_of(first, servers={}, limits=Limits(runs=50))
    assert team.limits_of(team.manifests["a"]) == Limits(
        depth=1, runs=50, rounds=DEFAULT_LIMITS.rounds, rejections=DEFAULT_LIMITS.rejections
    )


# --- where a team begins ------------------------------------------------------------------------------------


def entry(*manifests: dict[str, Any], **members: Any) -> Manifest | None:
    return entry_of(team_of(*manifests, servers={}, **members))


def test_the_entry_agent_is_the_named_one() -> None:
    pair = (agent("a", "b"), agent("b"))
    assert entry(*pair, entry="b") == read_manifest(pair[1], "b.json")
    by_itself = agent("b", interlingua={"entry": True})
    found = entry(pair[0], by_itself)
    assert found is not None
    assert found.id == "b"


def test_the_entry_agent_is_else_the_one_that_nobody_delegates_to_though_it_may_oversee() -> None:
    found = entry(agent("worker", overseer="boss"), agent("boss", "boss", "worker"))
    assert found is not None
    assert found.id == "boss"


def test_a_pure_overseer_is_not_taken_for_the_entry_agent() -> None:
    found = entry(agent("worker", overseer="reviewer"), agent("reviewer"))
    assert found is not None
    assert found.id == "worker"


@pytest.mark.parametrize(
    ("manifests", "named", "words"),
    [
        ((agent("a"), agent("b")), None, "a and b could all be the first one"),
        ((agent("a", "b"), agent("b", "a")), None, "every agent is delegated to"),
        ((agent("a"),), "x", "there is no agent x in the team"),
        (
            (agent("a", "b", interlingua={"entry": True}), agent("b", interlingua={"entry": True})),
            None,
            "a and b could all",
        ),
    ],
    ids=["several", "none", "unknown", "two named"],
)
def test_a_team_without_a_clear_beginning_is_told_of(manifests: Any, named: str | None, words: str) -> None:
    team = team_of(*manifests, servers={}, entry=named)
    assert entry_of(team) is None
    (problem,) = check(team)
    assert (problem.severity, problem.file, problem.path) == ("error", "team.toml", "/entry")
    assert words in problem.message


# --- ids ----------------------------------------------------------------------------------------------------


@given(st.text(min_size=1))
@example("-_2e_")
@example("-_2d__2e_")
@example("-_2e.")
@example("--_2e")
@example("org.agntcy.mailcomposer")
def test_every_name_has_an_id_that_leads_back_to_it(name: str) -> None:
    assert is_id(cap_id(name))
    assert agent_name(cap_id(name)) == name


@given(st.text(alphabet="-_0123456789abcdefgAZ", min_size=1))
def test_an_id_is_the_id_of_the_name_that_it_leads_to_or_of_none(id_: str) -> None:
    try:
        name = agent_name(id_)
    except InvalidRequest:
        assert cap_id(id_) != id_
    else:
        assert cap_id(name) == id_


@pytest.mark.parametrize("name", ["pm-1", "analyst_x1", "A", "a--b", "_", "-_-", "-_x"])
def test_a_name_that_is_an_id_stays_as_it_is(name: str) -> None:
    assert cap_id(name) == agent_name(name) == name


def test_a_dotted_name_is_readable_as_an_id() -> None:
    assert cap_id("org.mail") == "org-_2e_mail"


@pytest.mark.parametrize("id_", ["", "a b", "a.b", "a#2", "a\n", "-_61_", "-_02e_", "-_110000_", "-_ffffffffffff_"])
def test_what_no_name_is_written_as_is_no_id(id_: str) -> None:
    with pytest.raises(InvalidRequest):
        agent_name(id_)


def test_no_name_has_no_id() -> None:
    with pytest.raises(InvalidRequest):
        cap_id("")


@given(st.from_regex(r"[A-Za-z0-9_-]+", fullmatch=True), st.integers(1, 10**9 - 1))
def test_an_instance_has_an_id_that_leads_back_to_its_agent(agent_: str, number: int) -> None:
    assert instance_of(instance_id(agent_, number)) == (agent_, number)


def test_the_first_instance_is_called_like_its_agent_and_the_second_has_a_number() -> None:
    assert [instance_id("analyst-1", number) for number in (1, 2)] == ["analyst-1", "analyst-1#2"]


@pytest.mark.parametrize("id_", ["", "#2", "a#", "a#0", "a#1", "a#02", "a#-1", "a#2#3", "a#x", "a b", "a#2\n", "a#²"])
def test_an_instance_has_one_spelling(id_: str) -> None:
    with pytest.raises(InvalidRequest):
        instance_of(id_)


@pytest.mark.parametrize(("agent_", "number"), [("a", 0), ("a", -1), ("", 1), ("a b", 2)])
def test_an_instance_that_cannot_be_has_no_id(agent_: str, number: int) -> None:
    with pytest.raises(InvalidRequest):
        instance_id(agent_, number)


def test_an_instance_is_found_as_its_agent() -> None:
    team = team_of(PM, ANALYST, QA)
    assert team.find("analyst-1#7") is team.manifests["analyst-1"]
    assert team.find("nobody#2") is None

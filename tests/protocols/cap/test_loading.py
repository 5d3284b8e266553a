"""Teams are read out of folders and files in three formats, and whatever is wrong is told with file and path."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from interlingua.extras import MissingExtra
from interlingua.model.errors import DefinitionError
from interlingua.model.team.authority import DEFAULT_POLICY, Action, Limits
from interlingua.model.team.manifest import Server, Team, entry_of
from interlingua.teams.files import load, load_team
from tests.kit.manifests import ANALYST, PM, QA, agent

TEAM_TOML = """
name = "sales"
entry = "pm-1"
model = "openai:gpt-5"

[servers.DocsServer]
command = "docs-mcp"
args = ["--root", "docs"]
env = { LANG = "C" }
timeout = 20

[servers.DataServer]
url = "http://127.0.0.1:9000/mcp"
needs = { process_data = ["write:analysis"] }

[servers.SummaryServer]
command = "summary-mcp"

[limits]
depth = 4
runs = 30

[policy]
504 = [{ do = "retry", times = 2, seconds = 0.5 }, "reassign", "escalate user"]
unavailable = "fail"
default = ["escalate orchestrator"]
"""

QA_TOML = """
id = "qa-1"
system_prompt = "You verify that the work of others is complete and right."
allowed_agents = []
delegate_rules = {}

[[mcp_bindings]]
server_id = "SummaryServer"
description = "Summaries that people can read."
scopes = ["write:summary"]
allowed_tools = ["create_summary"]
"""


def written(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


def problems(path: Path) -> list[tuple[str, str]]:
    return [(problem.file, problem.path) for problem in load(path)[1]]


@pytest.fixture
def sales(tmp_path: Path) -> Path:
    return written(
        tmp_path / "sales",
        {"team.toml": TEAM_TOML, "pm.json": PM, "analyst.yaml": yaml.safe_dump(ANALYST), "agents/qa.toml": QA_TOML},
    )


def same_manifests(team: Team) -> bool:
    return {id_: m.to_json() for id_, m in team.manifests.items()} == {one["id"]: one for one in (PM, ANALYST, QA)}


# --- what is read -------------------------------------------------------------------------------------------


def test_a_folder_of_manifests_in_three_formats_is_a_team(sales: Path) -> None:
    team, found = load(sales)
    assert found == []
    assert same_manifests(team)
    assert {m.id: m.file for m in team.manifests.values()} == {
        "pm-1": "pm.json", "analyst-1": "analyst.yaml", "qa-1": "agents/qa.toml",
    }  # fmt: skip


def test_the_file_of_the_team_configures_servers_entry_limits_and_model(sales: Path) -> None:
    team = load_team(sales)
    assert (team.name, team.entry, team.model, team.file) == ("sales", "pm-1", "openai:gpt-5", "team.toml")
    assert team.limits == Limits(depth=4, runs=30)
    assert team.servers["DocsServer"] == Server(
        command="docs-mcp", args=("--root", "docs"), env={"LANG": "C"}, timeout=20
    )
    assert team.servers["DataServer"].needs == {"process_data": ("write:analysis",)}


def test_a_policy_names_codes_by_number_or_word_and_leaves_the_others_as_they_are(sales: Path) -> None:
    policy = load_team(sales).policy
    assert [policy.action(504, taken) for taken in range(5)] == [
        Action("retry", 0.5), Action("retry", 1.0), Action("reassign"), Action("escalate", to="user"), Action("fail"),
    ]  # fmt: skip
    assert policy.action(503, 0) == Action("fail")
    assert policy.action(418, 0) == Action("escalate", to="orchestrator")
    assert policy.steps[502] == DEFAULT_POLICY.steps[502]


@pytest.mark.parametrize("name", ["team.json", "team.yaml", "team.yml", "team.toml"])
def test_the_file_of_the_team_has_any_of_the_formats(tmp_path: Path, name: str) -> None:
    content = 'entry = "b"' if name == "team.toml" else json.dumps({"entry": "b"})
    written(tmp_path, {name: content, "a.json": agent("a", "b"), "b.json": agent("b", "a")})
    team = load_team(tmp_path)
    entry = entry_of(team)
    assert entry is not None
    assert entry.id == "b"
    assert same(load_team(tmp_path / name), team)


def same(one: Team, other: Team) -> bool:
    return (one.name, one.manifests, one.entry) == (other.name, other.manifests, other.entry)


def test_a_team_needs_no_file_of_its_own(tmp_path: Path) -> None:
    folder = written(tmp_path / "pair", {"a.json": agent("a", "b"), "b.json": agent("b")})
    team = load_team(folder)
    assert (team.name, list(team.manifests)) == ("pair", ["a", "b"])


def test_one_file_holds_a_manifest_several_or_a_whole_team(tmp_path: Path) -> None:
    pair = [agent("a", "b"), agent("b")]
    written(
        tmp_path,
        {"one.json": agent("a"), "list.json": pair, "whole.yaml": yaml.safe_dump({"entry": "a", "agents": pair})},
    )
    assert list(load_team(tmp_path / "one.json").manifests) == ["a"]
    assert list(load_team(tmp_path / "list.json").manifests) == ["a", "b"]
    whole = load_team(tmp_path / "whole.yaml")
    assert (whole.name, list(whole.manifests), whole.entry) == ("whole", ["a", "b"], "a")


def test_the_file_of_the_team_may_list_the_files_of_manifests(tmp_path: Path) -> None:
    config = {"agents": ["deep/down/a.json", agent("b")]}
    written(tmp_path, {"team.json": config, "deep/down/a.json": agent("a", "b"), "package.json": {"name": "other"}})
    assert list(load_team(tmp_path).manifests) == ["a", "b"]


def test_hidden_files_other_suffixes_and_other_folders_are_left_alone(tmp_path: Path) -> None:
    files = {"a.json": agent("a"), ".b.json": agent("b"), "notes.md": "# Notes", "data/c.json": {"rows": []}}
    assert list(load_team(written(tmp_path, files)).manifests) == ["a"]


# --- what is wrong ------------------------------------------------------------------------------------------


def test_problems_name_the_file_and_the_path_inside_it(sales: Path) -> None:
    bad = {**PM, "allowed_agents": ["analyst-1", "ghost", 5]}
    bad["mcp_bindings"] = [{"server_id": "DocsServer", "scopes": []}]
    written(sales, {"pm.json": bad, "agents/qa.toml": QA_TOML.replace('"qa-1"', "5")})
    assert problems(sales)[:3] == [
        ("pm.json", "/allowed_agents/2"),
        ("pm.json", "/mcp_bindings/0/allowed_tools"),
        ("agents/qa.toml", "/id"),
    ]


def test_the_team_is_checked_as_a_whole(sales: Path) -> None:
    written(
        sales,
        {
            "team.toml": TEAM_TOML.replace("SummaryServer", "Other"),
            "analyst.yaml": yaml.safe_dump({**ANALYST, "overseer": "x"}),
        },
    )
    assert sorted(problems(sales)) == [
        ("agents/qa.toml", "/mcp_bindings/0/server_id"),
        ("analyst.yaml", "/overseer"),
        ("team.toml", "/servers/Other"),
    ]


def test_a_manifest_that_is_wrong_is_not_missed_by_those_that_name_it(sales: Path) -> None:
    written(sales, {"analyst.yaml": yaml.safe_dump({**ANALYST, "system_prompt": 5})})
    assert problems(sales) == [("analyst.yaml", "/system_prompt")]


def test_an_id_that_two_files_have_is_found(sales: Path) -> None:
    written(sales, {"zcopy.json": QA})
    (problem,) = load(sales)[1]
    assert (problem.file, problem.path) == ("agents/qa.toml", "/id")
    assert "zcopy.json" in problem.message


def test_a_manifest_in_a_list_is_named_by_its_place(tmp_path: Path) -> None:
    written(tmp_path, {"all.json": [agent("a", "b"), {**agent("b"), "overseer": 5}, agent("c", "c")]})
    found = problems(tmp_path / "all.json")
    assert found[0] == ("all.json", "/1/overseer")
    assert ("all.json#/2", "/allowed_agents/0") in found


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.json", "{", "is no JSON"),
        ("x.json", '{"id": 1, "id": 2}', "has the key 'id' twice"),
        ("x.json", "[" * 100_000, "is no JSON"),
        ("x.toml", "id = ", "is no TOML"),
        ("x.yaml", "id: [", "is no YAML"),
        ("x.yaml", "id: a\nid: b", "has the key 'id' twice"),
        ("x.yaml", "a: &big [1]\nb: *big", "has an alias"),
        ("x.yaml", "a: !!python/object/apply:os.getcwd []", "is no YAML"),
        ("x.yaml", "", "is empty"),
        ("x.json", "null", "is empty"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_of(tmp_path: Path, name: str, content: str, words: str) -> None:
    written(tmp_path, {name: content})
    (problem,) = load(tmp_path)[1]
    assert (problem.file, problem.path, problem.severity) == (name, "", "error")
    assert words in problem.message


@pytest.mark.parametrize(
    ("text", "path"),
    [("id: a\nsince: 2025-01-01", "/since"), ("id: a\nmore: {yes: 1}", "/more"), ("id: a\nn: .nan", "/n")],
    ids=["date", "key that is no text", "no number"],
)
def test_yaml_that_is_not_json_is_refused_with_its_path(tmp_path: Path, text: str, path: str) -> None:
    assert problems(written(tmp_path, {"x.yaml": text})) == [("x.yaml", path)]


def test_a_file_that_is_not_utf_8_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"\xff\xfe{")
    assert [p.message for p in load(tmp_path)[1]] == ["is not UTF-8"]


def test_yaml_without_its_package_is_told_of_kindly(sales: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingExtra, match=re.escape("pip install 'interlingua[yaml]'")):
        load(sales)


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"entry": 5}, "/entry"),
        ({"entry": "ghost"}, "/entry"),
        ({"limits": {"depth": "deep"}}, "/limits/depth"),
        ({"limits": {"dept": 1}}, "/limits"),
        ({"limits": {"depth": 0}}, "/limits/depth"),
        ({"servers": []}, "/servers"),
        ({"servers": {"S": {"command": ["a"]}}}, "/servers/S/command"),
        ({"servers": {"S": {"cmd": "a"}}}, "/servers/S"),
        ({"servers": {"S": {"command": "a", "needs": {"t": "s"}}}}, "/servers/S/needs"),
        ({"policy": {"teapot": "fail"}}, "/policy/teapot"),
        ({"policy": {"504": "panic"}}, "/policy/504"),
        ({"policy": {"504": {"do": "panic"}}}, "/policy/504/do"),
        ({"policy": {"504": ["fail", {"do": "retry", "times": 0}]}}, "/policy/504/1/times"),
        ({"policy": {"timeout": "escalate"}}, "/policy/timeout"),
        ({"policy": {"timeout": "retry user"}}, "/policy/timeout"),
        ({"agents": "a.json"}, "/agents"),
        ({"agents": ["ghost.json"]}, "/agents/0"),
        ({"agents": [agent("a"), {"id": "b"}]}, "/agents/1/system_prompt"),
        ([], ""),
    ],
    ids=str,
)
def test_a_bad_file_of_the_team_is_told_of_with_its_path(tmp_path: Path, config: Any, path: str) -> None:
    written(tmp_path, {"team.json": config, "a.json": agent("a")})
    assert problems(tmp_path)[0] == ("team.json", path)
    with pytest.raises(DefinitionError, match=r"team\.json"):
        load_team(tmp_path)


def test_a_member_that_is_not_known_is_warned_of_and_kept(tmp_path: Path) -> None:
    team, found = load(written(tmp_path, {"team.json": {"sevrers": {}}, "a.json": agent("a")}))
    assert [(p.severity, p.path) for p in found] == [("warning", "/sevrers")]
    assert team.extra == {"sevrers": {}}
    assert load_team(tmp_path).extra == {"sevrers": {}}


def test_a_second_file_of_the_team_is_told_of(tmp_path: Path) -> None:
    written(tmp_path, {"team.json": {}, "team.yaml": "{}", "a.json": agent("a")})
    assert problems(tmp_path) == [("team.yaml", "")]


def test_a_place_where_nothing_is_and_an_empty_folder_are_told_of(tmp_path: Path) -> None:
    assert [str(p) for p in load(tmp_path / "gone")[1]] == ["error: gone: there is no such file or folder"]
    assert [p.message for p in load(tmp_path)[1]] == ["the team has no agents"]


def test_a_file_of_an_unknown_kind_is_told_of(tmp_path: Path) -> None:
    written(tmp_path, {"team.ini": "[team]"})
    assert [p.message for p in load(tmp_path / "team.ini")[1]] == ["is none of .json, .yaml, .yml, .toml"]


def test_a_team_with_errors_is_not_given_out_and_everything_wrong_is_said(sales: Path) -> None:
    written(sales, {"pm.json": {**PM, "id": 5}, "analyst.yaml": yaml.safe_dump({**ANALYST, "overseer": 7})})
    with pytest.raises(DefinitionError) as caught:
        load_team(sales)
    assert "pm.json: /id: is a text, got a number" in caught.value.message
    assert "analyst.yaml: /overseer: is a text, got a number" in caught.value.message

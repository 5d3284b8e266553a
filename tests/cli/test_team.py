"""`interlingua team check` and `team graph`: what is wrong is told with its place and a way out, a sound team is
explained, and either can be drawn."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.kit.commands import Result
from tests.kit.manifests import ANALYST, PM, QA

from ..protocols.cap.test_loading import TEAM_TOML, written

Cli = Callable[..., Result]
Change = Callable[[dict[str, Any]], object]

CREW = Path(__file__).with_name("crew")


@pytest.fixture
def sales(tmp_path: Path) -> Path:
    return written(tmp_path / "sales", {"team.toml": TEAM_TOML, "pm.json": PM, "analyst.json": ANALYST, "qa.json": QA})


def change(folder: Path, file: str, how: Change) -> None:
    value = json.loads((folder / file).read_text())
    how(value)
    (folder / file).write_text(json.dumps(value))


# -- a team that is sound -------------------------------------------------------------------------------------


def test_a_sound_team_is_explained(here: Cli, sales: Path) -> None:
    change(sales, "pm.json", lambda pm: pm.update(interlingua={"limits": {"runs": 5, "seconds": 60}}))
    done = here("team", "check", "sales")
    assert (done.code, done.err) == (0, "")
    head, *agents = done.out.split("\n\n")
    assert head.splitlines() == ["The team sales is sound: 3 agents, 3 tool servers.", "A task begins with pm-1."]
    pm, analyst, qa, rest = (part.splitlines() for part in agents)
    assert pm == [
        "pm-1",
        "  thinks     the model openai:gpt-5",
        "  delegates  to analyst-1: When planning is not enough and data must be analysed.",
        "  tools      DocsServer: list_documents, read_file, create_summary (scopes: read:docs, write:summary)",
        "             DataServer: query_data (scopes: read:data)",
        "  limits     5 runs, 60 seconds",
    ]
    assert "  overseen   by qa-1, which approves its results before anybody else sees them" in analyst
    assert "  oversees   analyst-1" in qa
    assert "  delegates  to nobody" in qa
    assert rest[0] == ("Limits of a task: 4 levels of delegation, 30 runs, 10 inquiries in a review, 3 rejections.")
    assert (
        "  504 timeout      retry 2 times, after 0.5 s and 2 times as long each time, then reassign, "
        "then escalate to the user, then fail"
    ) in rest
    assert "  503 unavailable  fail" in rest
    assert rest[-1] == "  any other        escalate to the orchestrator, then fail"


def test_a_team_in_one_file_is_explained_as_well(here: Cli, tmp_path: Path) -> None:
    agents = [{**QA, "mcp_bindings": [], "overseer": "user", "interlingua": {"model": "test:small"}}]
    written(tmp_path, {"one.json": {"agents": agents, "description": "One alone."}})
    done = here("team", "check", "one.json")
    assert done.code == 0
    assert "The team one is sound: 1 agent, 0 tool servers.\nOne alone.\n" in done.out
    assert "  overseen   by you, before anybody sees its results" in done.out
    assert "  tools      none" in done.out


def test_who_thinks_is_told_without_running_anybodys_code(here: Cli, sales: Path, tmp_path: Path) -> None:
    (sales / "team.toml").write_text(TEAM_TOML.replace('model = "openai:gpt-5"', ""))
    (sales / "handlers.py").write_text(
        f"import interlingua as il\nopen({str(tmp_path / 'ran')!r}, 'w')\n"
        "@il.agent(name='analyst-1')\nasync def analyse(text: str) -> str:\n    return text\n"
    )
    change(sales, "qa.json", lambda qa: qa.update(interlingua={"target": "editor:claude-agent-acp"}))

    def thinkers(*more: str) -> list[str]:
        lines = here("team", "check", "sales", *more).out.splitlines()
        return [line.removeprefix("  thinks     ") for line in lines if line.startswith("  thinks")]

    function, mounted = "the Python function handlers.py:analyse", "the mounted agent editor:claude-agent-acp"
    assert thinkers() == ["nobody yet: name a model with --model", function, mounted]
    assert thinkers("--model", "openai:gpt-5") == ["the model openai:gpt-5", "the model openai:gpt-5", mounted]
    change(sales, "pm.json", lambda pm: pm.update(interlingua={"handler": "plan.py:plan"}))
    assert thinkers()[0] == "the Python function plan.py:plan"
    assert not (tmp_path / "ran").exists()


def test_a_team_with_members_for_which_nobody_thinks_is_not_sound(here: Cli, sales: Path) -> None:
    (sales / "team.toml").write_text(TEAM_TOML.replace('model = "openai:gpt-5"', ""))
    (sales / "handlers.py").write_text(
        "import interlingua as il\n@il.agent(name='analyst-1')\nasync def analyse(text: str) -> str:\n    return text\n"
    )
    change(sales, "qa.json", lambda qa: qa.update(interlingua={"handler": "check.py:check"}))
    done = here("team", "check", "sales")
    assert done.code == 1
    assert "sound" not in done.out
    lines = done.out.splitlines()
    assert lines[0] == ("error: sales/pm.json: nobody thinks for pm-1: it has no handler, no target and no model")
    assert lines[1].startswith("    give a model (--model PROVIDER:NAME, or model in team.toml), or an agent")
    assert lines[2] == (
        "error: sales/qa.json: /interlingua/handler: there is no file sales/check.py, which check.py:check names"
    )
    assert "The team sales cannot be used: 2 errors." in lines
    assert "  thinks     the Python function handlers.py:analyse" in lines
    told = here("team", "check", "sales", "--json")
    assert (told.code, told.json["ok"], len(told.json["problems"])) == (1, False, 2)
    (sales / "check.py").write_text("")
    assert here("team", "check", "sales", "--model", "openai:gpt-5").code == 0


def test_a_sound_team_is_described_for_programs(here: Cli, sales: Path) -> None:
    told = here("team", "check", "sales", "--json").json
    assert (told["ok"], told["problems"]) == (True, [])
    team = told["team"]
    assert (team["name"], team["entry"]) == ("sales", "pm-1")
    assert [agent["id"] for agent in team["agents"]] == ["pm-1", "analyst-1", "qa-1"]
    analyst = team["agents"][1]
    assert analyst["delegates"] == [{"to": "qa-1", "when": "When the analysis is done and must be verified."}]
    assert (analyst["overseer"], analyst["oversees"]) == ("qa-1", [])
    assert analyst["thinks"] == {"model": "openai:gpt-5"}
    assert analyst["tools"] == [
        {"server": "DataServer", "tools": ["query_data", "process_data"], "scopes": ["read:data", "write:analysis"]}
    ]
    assert team["servers"]["DocsServer"]["command"] == "docs-mcp --root docs"
    assert team["limits"]["depth"] == 4
    assert team["policy"]["default"] == ["escalate to the orchestrator"]


def test_secrets_of_servers_are_not_told(here: Cli, sales: Path) -> None:
    (sales / "team.toml").write_text(TEAM_TOML.replace('LANG = "C"', 'TOKEN = "s3cret"'))
    for more in ([], ["--json"]):
        assert "s3cret" not in here("team", "check", "sales", *more).out


def test_text_of_a_manifest_cannot_drive_the_terminal(here: Cli, sales: Path) -> None:
    rule = {"qa-1": {"when_to_delegate": "a\x1b[31mb\x07"}}
    change(sales, "analyst.json", lambda analyst: analyst.update(delegate_rules=rule))
    assert "\x1b" not in here("team", "check", "sales").out


# -- a team in which something is wrong -----------------------------------------------------------------------


def without(name: str) -> Change:
    return lambda value: value.pop(name)


def setting(**members: Any) -> Change:
    return lambda value: value.update(members)


@pytest.mark.parametrize(
    ("file", "how", "place", "words"),
    [
        ("pm.json", without("system_prompt"), "/system_prompt", ["is missing: it is a text"]),
        (
            "pm.json", setting(allowed_agents=["analyst-2"], delegate_rules={"analyst-2": {"when_to_delegate": "x"}}),
            "/allowed_agents/0", ["add a manifest with the id analyst-2", "did you mean analyst-1?"],
        ),
        (
            "pm.json", setting(delegate_rules={}), "/allowed_agents/0",
            ["write delegate_rules.analyst-1.when_to_delegate, or take analyst-1 out of allowed_agents"],
        ),
        ("pm.json", setting(allowed_agents=[]), "/delegate_rules/analyst-1", ["add analyst-1 to allowed_agents, or"]),
        ("qa.json", setting(overseer="qa-1"), "/overseer", ["another agent, user for yourself, or null"]),
        ("qa.json", setting(overseer="analyst-1"), "/overseer", ["in a circle", "not overseen by it in turn"]),
        ("qa.json", setting(overseer="pm"), "/overseer", ["name an agent of the team", "did you mean pm-1?"]),
        ("qa.json", setting(id="pm-1"), "/id", ["give one of the two another id"]),
        (
            "qa.json", lambda qa: qa["mcp_bindings"][0].update(server_id="SummaryServers"),
            "/mcp_bindings/0/server_id", ["add [servers.SummaryServers] with a command or a url to team.toml",
                                          "did you mean SummaryServer?"],
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place_and_what_to_do(
    here: Cli, sales: Path, file: str, how: Change, place: str, words: list[str]
) -> None:
    change(sales, file, how)
    done = here("team", "check", "sales")
    assert done.code == 1
    lines = done.out.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("error: ") and f": {place}: " in line)
    told = "\n".join(lines[at : at + 2])
    for word in words:
        assert word in told
    assert lines[-1].startswith("The team sales cannot be used: ")
    assert "A task begins" not in done.out


def test_everything_that_is_wrong_is_told_at_once(here: Cli, sales: Path) -> None:
    change(sales, "pm.json", without("system_prompt"))
    change(sales, "qa.json", setting(overseer="qa-1"))
    (sales / "team.toml").write_text(TEAM_TOML.replace("depth = 4", 'depth = "four"') + "odd = 1\n")
    done = here("team", "check", "sales", "--json")
    assert done.code == 1
    told = done.json
    assert (told["ok"], told["team"]) == (False, None)
    errors = {(one["file"], one["path"]) for one in told["problems"] if one["severity"] == "error"}
    assert errors == {
        ("sales/pm.json", "/system_prompt"), ("sales/qa.json", "/overseer"), ("sales/team.toml", "/limits/depth"),
        ("sales/team.toml", "/policy/odd"),
    }  # fmt: skip


def test_an_entry_agent_that_is_not_there_is_told_with_one_that_is(here: Cli, sales: Path) -> None:
    (sales / "team.toml").write_text(TEAM_TOML.replace('entry = "pm-1"', 'entry = "pm-2"'))
    done = here("team", "check", "sales")
    assert done.code == 1
    assert "error: sales/team.toml: /entry: " in done.out
    assert 'write entry = "pm-1" into team.toml' in done.out


def test_warnings_are_told_and_leave_the_team_sound(here: Cli, sales: Path) -> None:
    written(sales, {"loner.json": {**QA, "id": "loner", "mcp_bindings": []}})
    toml = TEAM_TOML.replace('process_data = ["write:analysis"]', 'process_data = ["write:all"]')
    (sales / "team.toml").write_text(toml)
    done = here("team", "check", "sales")
    assert done.code == 0
    warnings = [line for line in done.out.splitlines() if line.startswith("warning: ")]
    assert [line.split(": ")[1:3] for line in warnings] == [
        ["sales/analyst.json", "/mcp_bindings/0/allowed_tools/1"], ["sales/loner.json", "/id"]
    ]  # fmt: skip
    assert "add that scope to the binding" in done.out
    assert "let another agent delegate to it" in done.out
    assert "is sound: 4 agents, 3 tool servers, 2 warnings." in done.out
    assert "process_data needs write:all, and is refused" in done.out


@pytest.mark.parametrize(
    ("place", "words"),
    [("nowhere", "there is no such file or folder"), ("empty", "the team has no agents"), ("odd.json", "is no JSON")],
)
def test_what_is_no_team_is_an_error(here: Cli, tmp_path: Path, place: str, words: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "odd.json").write_text("{")
    done = here("team", "check", place)
    assert done.code == 1
    assert f"error: {place}" in done.out
    assert words in done.out
    assert here("team", "graph", place).code == 2


# -- the tool servers -----------------------------------------------------------------------------------------


@pytest.fixture
def crew(tmp_path: Path) -> Path:
    return shutil.copytree(CREW, tmp_path / "crew")


def test_probing_starts_the_tool_servers_and_tells_their_tools(here: Cli, crew: Path) -> None:
    done = here("team", "check", "crew", "--probe")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("\nFigures is there, with 2 tools: total, drop\n")
    assert here("team", "check", "crew", "--probe", "--json").json["offered"] == {"Figures": ["total", "drop"]}


def test_an_allowed_tool_that_its_server_has_not_is_found_by_probing(here: Cli, crew: Path) -> None:
    agents = (crew / "agents.json").read_text()
    (crew / "agents.json").write_text(agents.replace('"allowed_tools": ["total"]', '"allowed_tools": ["total", "sum"]'))
    assert here("team", "check", "crew").code == 0
    done = here("team", "check", "crew", "--probe")
    assert done.code == 1
    told = "error: crew/agents.json#/1: /mcp_bindings/0/allowed_tools/1: Figures has no tool sum (it has: total, drop)"
    assert done.out.splitlines()[:2] == [told, "    correct its name, or take it out of allowed_tools"]


def test_a_server_that_cannot_be_started_is_found_by_probing(here: Cli, crew: Path) -> None:
    (crew / "figures.py").write_text("raise SystemExit('no figures today')")
    done = here("team", "check", "crew", "--probe")
    assert done.code == 1
    assert done.out.startswith("error: crew/team.toml: /servers/Figures: ")
    assert "no figures today" in done.out


# -- drawing --------------------------------------------------------------------------------------------------


def test_a_team_is_drawn_as_mermaid(here: Cli, sales: Path) -> None:
    done = here("team", "graph", "sales", "--format", "mermaid")
    assert (done.code, done.err) == (0, "")
    lines = [line.strip() for line in done.out.splitlines()]
    assert lines[0] == "flowchart TD"
    names = {text: line.partition("[")[0] for line in lines for text in ("pm-1", "analyst-1", "qa-1") if text in line}
    assert f"{names['pm-1']} --> {names['analyst-1']}" in lines
    assert f"{names['qa-1']} -. oversees .-> {names['analyst-1']}" in lines


def test_a_team_is_drawn_as_svg_without_being_asked(here: Cli, sales: Path) -> None:
    root = ET.fromstring(here("team", "graph", "sales").out)
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "pm-1 may delegate to analyst-1: When planning is not enough and data must be analysed." in titles
    assert "qa-1 oversees analyst-1" in titles


def test_a_drawing_is_written_to_a_file_in_the_format_of_its_name(here: Cli, sales: Path, tmp_path: Path) -> None:
    for name, begin in (("team.svg", "<svg"), ("team.mmd", "flowchart TD")):
        done = here("team", "graph", "sales", "-o", name)
        assert (done.code, done.out, done.err) == (0, "", f"wrote {name}\n")
        assert (tmp_path / name).read_text().startswith(begin)
    assert here("team", "graph", "sales", "-o", "nowhere/team.svg").code == 2


def test_a_team_with_errors_is_drawn_as_far_as_it_can_be_read(here: Cli, sales: Path) -> None:
    pm = deepcopy(PM)
    pm["delegate_rules"] = {}
    written(sales, {"pm.json": pm})
    done = here("team", "graph", "sales", "--format", "mermaid")
    assert done.code == 0
    assert "1 error in this team; see: interlingua team check sales" in done.err
    assert done.out.startswith("flowchart TD")


def test_the_example_team_is_written_once_and_is_sound(cli: Cli, tmp_path: Path) -> None:
    done = cli("team", "init", "crew")
    assert (done.code, done.out) == (0, "crew is written; try: interlingua team check crew\n"), done.err
    assert (tmp_path / "crew" / "handlers.py").is_file()
    assert "is sound" in cli("team", "check", "crew").out
    again = cli("team", "init", "crew")
    assert again.code == 2
    assert "there is a folder crew already" in again.err

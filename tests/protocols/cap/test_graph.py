"""The picture of a team shows everybody, who may delegate to whom, and who oversees whom."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.model.team.manifest import Manifest, Rule, Team
from interlingua.teams.graph import edges_of, layout, mermaid, nodes_of, svg
from tests.kit.manifests import ANALYST, PM, QA, agent, team_of

SVG = "{http://www.w3.org/2000/svg}"


def drawn(team: Team) -> ET.Element:
    return ET.fromstring(svg(team))


def lines(picture: ET.Element) -> list[tuple[str, str]]:
    """The lines that say what they mean, which those of the legend do not."""
    found = []
    for path in picture.iter(f"{SVG}path"):
        title = path.find(f"{SVG}title")
        if title is not None:
            found.append((path.attrib["class"].removeprefix("edge "), title.text or ""))
    return found


@pytest.fixture
def sales() -> Team:
    return team_of(PM, ANALYST, QA)


def test_mermaid_shows_the_team_of_the_example(sales: Team) -> None:
    assert mermaid(sales).splitlines() == [
        "flowchart TD",
        '    n0(["orchestrator"])',
        '    n1["pm-1"]',
        '    n2["analyst-1"]',
        '    n3["qa-1"]',
        "    n0 --> n1",
        "    n1 --> n2",
        "    n2 --> n3",
        "    n3 -. oversees .-> n2",
    ]


def test_a_mermaid_label_cannot_break_out() -> None:
    team = team_of(agent('"]; click x'), servers={})
    assert mermaid(team).splitlines()[2] == '    n1["#34;#93;#59; click x"]'


def test_svg_shows_the_team_of_the_example_with_its_rules(sales: Team) -> None:
    picture = drawn(sales)
    rule, other = (m["delegate_rules"] for m in (PM, ANALYST))
    assert lines(picture) == [
        ("delegates", "orchestrator may delegate to pm-1: the entry agent"),
        ("delegates", f"pm-1 may delegate to analyst-1: {rule['analyst-1']['when_to_delegate']}"),
        ("delegates", f"analyst-1 may delegate to qa-1: {other['qa-1']['when_to_delegate']}"),
        ("oversees", "qa-1 oversees analyst-1"),
    ]
    labels = [text.text for group in picture.iter(f"{SVG}g") for text in group.iter(f"{SVG}text")]
    assert labels == ["orchestrator", "pm-1", "analyst-1", "qa-1"]


def test_delegation_leads_downwards(sales: Team) -> None:
    boxes = layout(sales)
    heights = [boxes[id_].y for id_ in ("orchestrator", "pm-1", "analyst-1", "qa-1")]
    assert heights == sorted(set(heights))


def test_the_user_who_oversees_is_in_the_picture_and_is_drawn_as_no_agent() -> None:
    team = team_of(agent("a", overseer="user"), servers={})
    assert nodes_of(team) == ["orchestrator", "a", "user"]
    assert '(["user"])' in mermaid(team)
    kinds = {group.findtext(f"{SVG}title"): group.attrib["class"] for group in drawn(team).iter(f"{SVG}g")}
    assert kinds == {"orchestrator": "other", "a": "agent", "user": "other"}


def test_a_team_with_problems_can_be_drawn_too() -> None:
    team = team_of(agent("a", "ghost", "a", "b", overseer="b"), agent("b", "a", overseer="a"), servers={})
    picture = drawn(team)
    assert ("delegates", "a may delegate to ghost: When ghost is needed.") in lines(picture)
    assert ("delegates", "a may delegate to a: When a is needed.") in lines(picture)
    assert "orchestrator" not in nodes_of(team)  # nobody can tell where it begins


def test_an_empty_team_can_be_drawn() -> None:
    assert mermaid(Team("none")) == "flowchart TD\n"
    assert lines(drawn(Team("none"))) == []


def test_two_lines_between_the_same_boxes_are_apart(sales: Team) -> None:
    ways = [path.attrib["d"] for path in drawn(sales).iter(f"{SVG}path") if path.find(f"{SVG}title") is not None]
    across, back = (re.findall(r"[\d.]+", way) for way in ways[2:])
    assert across[0] != back[0]


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "a & b", "\x00\x1b[31m", "\ud800", "]]>", "\"'"])
def test_text_that_xml_would_choke_on_is_drawn_as_text(text: str) -> None:
    team = Team(text)
    team.add(Manifest(text or "x", "p", ("b",), {"b": Rule(text)}, text))
    team.add(Manifest("b", "p"))
    picture = drawn(team)
    assert picture.find(f".//{SVG}script") is None
    assert picture.findtext(f"{SVG}title", "").startswith("The team ")


def test_a_long_id_is_cut_in_the_box_and_whole_in_its_title() -> None:
    picture = drawn(team_of(agent("x" * 300), servers={}))
    (group,) = (one for one in picture.iter(f"{SVG}g") if one.attrib["class"] == "agent")
    assert group.findtext(f"{SVG}title") == "x" * 300
    assert len(group.findtext(f"{SVG}text") or "") == 40


IDS = [f"agent-{number}" for number in range(7)]


@st.composite
def teams(draw: st.DrawFn) -> Team:
    team = Team("any", entry=draw(st.none() | st.sampled_from(IDS)))
    for id_ in draw(st.lists(st.sampled_from(IDS), unique=True)):
        targets = tuple(draw(st.lists(st.sampled_from(IDS), unique=True, max_size=4)))
        overseer: Any = draw(st.none() | st.sampled_from([*IDS, "user"]))
        team.add(Manifest(id_, "prompt", targets, {target: Rule("When.") for target in targets}, overseer))
    return team


@given(teams())
def test_any_team_is_drawn_whole_with_no_two_boxes_touching(team: Team) -> None:
    boxes = layout(team)
    assert set(boxes) == set(nodes_of(team)) >= set(team.manifests)
    for a, b in combinations(boxes.values(), 2):
        assert a.y != b.y or abs(a.x - b.x) >= (a.width + b.width) / 2
    picture = drawn(team)
    assert len(lines(picture)) == len(edges_of(team))
    width, height = (float(picture.attrib[name]) for name in ("width", "height"))
    for box in boxes.values():
        assert 0 < box.x - box.width / 2 < box.x + box.width / 2 < width
        assert 0 < box.y < height
    assert mermaid(team).count("\n") == 1 + len(boxes) + len(edges_of(team))

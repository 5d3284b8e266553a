"""Skills come from agents and flags, and a query ranks them: id over name over description and tags."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlingua.model.card import AgentCard
from interlingua.model.card import Skill as CardSkill
from interlingua.model.errors import InvalidRequest
from interlingua.protocols.peer.translate.skills import Skill, declared, from_cards, read, score, search, support

CATALOGUE = [
    Skill("summarize", "summarize"),
    Skill("summarize-legal", "Summarize legal documents", "Shortens contracts", ["law"]),
    Skill(
        "translate_text", "Translate text", "Puts words of one language into another", ["german", "french"],
        ["Say good morning in Spanish"],
    ),
    Skill("weather", "Weather forecast", "Tells tomorrow's rain and sun for a city", ["meteorology"]),
    Skill("codeReview", "Code review", "Reads a change and finds mistakes", ["programming", "python"]),
    Skill("org.example.mailcomposer", "Mail composer", "Writes letters and sends them", ["email"]),
    Skill("ocr", "Text recognition", "Finds writing in images", ["image", "pdf"]),
    Skill("quarterly", "Quarterly reports", "Writes a summary of sales, with text and figures"),
    Skill("翻译", "文本翻译", "把文档翻译成其他语言"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "ranked"),
    [
        # the id itself, however it is spelled
        ("summarize", ["summarize", "summarize-legal", "quarterly"]),
        ("  SUMMARIZE ", ["summarize", "summarize-legal", "quarterly"]),
        ("summarize legal", ["summarize-legal", "summarize", "quarterly"]),
        ("translate-text", ["translate_text", "ocr", "quarterly"]),
        ("TranslateText", ["translate_text", "ocr", "quarterly"]),
        ("org.example.mailcomposer", ["org.example.mailcomposer"]),
        ("翻译", ["翻译"]),
        # words of the name: all of them, then some
        ("weather forecast", ["weather"]),
        ("forecast", ["weather"]),
        ("code", ["codeReview"]),
        ("text", ["translate_text", "ocr", "quarterly"]),
        ("legal documents", ["summarize-legal"]),
        ("translate legal documents", ["summarize-legal", "translate_text"]),
        ("what will the weather be in Paris?", ["weather"]),
        ("review my python code", ["codeReview"]),
        ("翻译文档", ["翻译"]),
        # other forms of the same word, beginnings, and slips of the pen
        ("summarise", ["summarize", "summarize-legal", "quarterly"]),
        ("translation", ["translate_text"]),
        ("reviewer", ["codeReview"]),
        ("compose a mail", ["org.example.mailcomposer"]),
        ("sumarize", ["summarize", "summarize-legal"]),
        ("quart", ["quarterly"]),
        # tags, descriptions and examples
        ("german", ["translate_text"]),
        ("pdf", ["ocr"]),
        ("contracts", ["summarize-legal"]),
        ("writing", ["ocr", "org.example.mailcomposer", "quarterly"]),
        ("spanish", ["translate_text"]),
        # nothing
        ("quantum chemistry", []),
        ("please help me", []),
        ("the", []),
        ("zz", []),
        ("!!!", []),
        ("", []),
        ("   ", []),
    ],
)
def test_the_ranking_of_a_query(query: str, ranked: list[str]) -> None:
    assert [skill["id"] for skill in search(CATALOGUE, query)] == ranked


def test_a_match_of_the_id_beats_one_of_the_name_and_that_one_of_description_and_tags() -> None:
    ladder = [
        score("fold paper", Skill("fold paper", "x")),
        score("fold paper", Skill("fold-paper", "x")),
        score("fold paper", Skill("x", "Fold paper")),
        score("fold paper", Skill("x", "Fold paper birds")),
        score("fold paper", Skill("x", "Fold cloth", "Also paper", ["paper"])),
        score("fold paper", Skill("x", "Fold cloth")),
        score("fold paper", Skill("x", "Origami", "", ["fold", "paper"])),
        score("fold paper", Skill("x", "Origami", "Fold paper")),
        score("fold paper", Skill("x", "Origami", "", [], ["Fold paper for me"])),
        score("fold paper", Skill("x", "Origami", "Fold things")),
        score("fold paper", Skill("x", "Bakery", "Makes bread")),
    ]
    assert ladder == sorted(set(ladder), reverse=True)
    assert ladder[0] == 1.0
    assert ladder[-1] == 0.0


def test_the_example_of_the_specification() -> None:
    (found,) = search([Skill("summarize", "summarize"), Skill("paint", "paint")], "summarize", 5)
    assert (found["id"], found["name"]) == ("summarize", "summarize")
    assert 0.95 <= found["match_score"] <= 1


def test_words_that_stand_in_every_text_find_only_what_is_named_so() -> None:
    named = [Skill("todo", "To do"), Skill("x", "Other", "what to do and how to do it")]
    assert [skill["id"] for skill in search(named, "to do")] == ["todo"]
    assert [skill["id"] for skill in search(named, "do")] == ["todo"]


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (2, 2), (5, 3), (0, 0), (-1, 0)])
def test_no_more_than_the_limit_is_found(limit: int, count: int) -> None:
    assert len(search(CATALOGUE, "summarize", limit)) == count


def test_equal_scores_keep_the_order_of_the_card() -> None:
    same = [Skill(f"s{n}", "Same words") for n in range(5)]
    assert [skill["id"] for skill in search(same, "words")] == [skill.id for skill in same]


@given(st.text(max_size=40), st.text(min_size=1, max_size=20), st.text(max_size=40), st.lists(st.text(max_size=10)))
def test_a_score_is_between_0_and_1_whatever_is_asked(query: str, id_: str, description: str, tags: list[str]) -> None:
    skill = Skill(id_, id_, description, tags)
    assert 0.0 <= score(query, skill) <= 1.0
    assert score(query, skill) == score(query, skill)
    assert all(0 < found["match_score"] <= 1 for found in search([skill], query))


# -- where skills come from -----------------------------------------------------------------------------------


def test_every_agent_is_a_skill_and_so_is_every_skill_on_its_card() -> None:
    card = AgentCard(
        "writer", "2.1.0", "Writes.", input_text="text",
        skills=[CardSkill("poem", "Poem", "Rhymes", ["verse"], ["A poem on rain"])],
    )  # fmt: skip
    agent, poem = from_cards([card])
    assert agent.view() == {
        "id": "writer", "name": "writer", "description": "Writes.", "version": "2.1.0", "tags": [], "examples": [],
        "input_modes": ["text", "data"], "output_modes": ["data"], "limitations": [],
        "input_schema": {"type": "object"}, "output_schema": {"type": "object"}, "input_text": "text",
    }  # fmt: skip
    assert (poem.id, poem.name, poem.tags, poem.examples) == ("poem", "Poem", ["verse"], ["A poem on rain"])
    assert (poem.version, poem.input_modes, poem.agent) == ("2.1.0", ["text", "data"], "writer")


def test_a_skill_remembers_its_agent_and_shows_it_to_nobody() -> None:
    (agent,) = from_cards([AgentCard("writer")])
    assert agent.agent == "writer"
    assert "agent" not in agent.view()


def test_an_id_names_one_skill() -> None:
    def with_skill(name: str, skill: str) -> AgentCard:
        return AgentCard(name, skills=[CardSkill(skill, skill)])

    cards = [with_skill("a", "draw"), with_skill("b", "draw"), with_skill("c", "a"), with_skill("d", "d")]
    found = from_cards(cards, declared("draw,paint"))
    assert [(skill.id, skill.agent) for skill in found] == [
        ("a", "a"), ("b", "b"), ("c", "c"), ("d", "d"), ("draw", "a"), ("b/draw", "b"), ("c/a", "c"), ("paint", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ("", []),
        ("summarize", ["summarize"]),
        (" summarize , translate,,summarize", ["summarize", "translate"]),
        ('["a", {"id": "b", "name": "Bee", "tags": ["x"]}]', ["a", "b"]),
        (["a", {"name": "only a name"}], ["a", "only a name"]),
    ],
)
def test_skills_are_advertised_by_ids_or_objects(value: Any, ids: list[str]) -> None:
    assert [skill.id for skill in declared(value)] == ids


@pytest.mark.parametrize("value", ["[1]", "[", '[{"tags": []}]', [{"id": "a", "tags": "x"}], [None], [""]])
def test_skills_that_make_no_sense_are_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="skills"):
        declared(value)


def test_the_skills_of_a_peer_are_read_as_far_as_they_make_sense() -> None:
    given_ = ["a", {"id": "b", "name": "Bee", "future": 1}, 5, {"id": 7}, {"id": "c", "tags": "x"}, None]
    assert [(skill.id, skill.name, skill.agent) for skill in read(given_)] == [("a", "a", None), ("b", "Bee", None)]
    assert read({"a": 1}) == []
    assert read([{"id": "a", "agent": "root"}])[0].agent is None


# -- the reference's way of asking ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("skill_id", "constraints", "level", "applied"),
    [
        ("writer", None, "supported", {}),
        ("writer", {"input_mode": "text"}, "supported", {"input_mode": "text"}),
        ("writer", {"input_mode": "audio"}, "unsupported", {"input_mode": "audio"}),
        ("writer", {"output_mode": "text"}, "unsupported", {"output_mode": "text"}),
        ("writer", {"file_size_bytes": 5}, "partial", {}),
        ("writer", {"input_mode": "audio", "file_size_bytes": 5}, "unsupported", {"input_mode": "audio"}),
        ("nobody", {}, "unsupported", {}),
    ],
)
def test_a_skill_is_supported_partly_or_not(
    skill_id: str, constraints: Any, level: str, applied: dict[str, Any]
) -> None:
    told = support(from_cards([AgentCard("writer", input_text="text")]), skill_id, constraints)
    assert (told["skill_id"], told["support_level"], told["constraints_applied"]) == (skill_id, level, applied)
    assert told["known_skills"] == ["writer"]
    assert (told["reason"] is None) is (level == "supported")


def test_an_agent_has_come_by_the_way_of_the_version_that_is_told() -> None:
    cards = [AgentCard("echo", version="1.0.0"), AgentCard("echo", version="2.0.0")]
    (told,) = from_cards(cards, way=lambda card: [card.version])
    assert (told.version, told.via) == ("1.0.0", ["1.0.0"])

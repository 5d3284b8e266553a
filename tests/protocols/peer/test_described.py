"""What the card of a node says about the agents it has, what is sent to them, and what their answers mean."""

from __future__ import annotations

from typing import Any

import pytest

from interlingua.model.card import AgentCard
from interlingua.model.content import DataPart, FilePart, Part
from interlingua.model.prompt_input import output_parts, prompt_input
from interlingua.protocols.peer.mount.agent_card import (
    Described,
    agents_of,
    along_of,
    beside_of,
    input_parts,
    output_of,
)
from interlingua.protocols.peer.translate import parts, skills
from interlingua.protocols.peer.wire import card as cards

from .reference import Reference

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TWO = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "body": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["title"],
}
ANY = {"type": "object"}


def agent(input_: dict[str, Any], output: dict[str, Any], *texts: str | None) -> AgentCard:
    return AgentCard("writer", "1.2.3", "Writes.", input_, output, input_text=texts[0], output_text=texts[1])


def described(card: AgentCard) -> Described:
    node = cards.build(cards.CardFacts(name="Node", skills=skills.from_cards([card])))
    (found,) = agents_of(node, "acp://host:7801/…")
    return found


CARDS = [
    agent(TEXT, TEXT, "text", "text"),
    agent(TWO, TWO, "body", "title"),
    agent(TWO, TWO, None, None),
    agent(ANY, ANY, None, None),
]


INPUTS: list[dict[str, Any]] = [{"title": "a", "body": "b", "n": 3}, {"title": '{"title": "x"}'}, {"title": ""}]
OUTPUTS: list[dict[str, Any]] = [
    {"text": ""}, {"text": "hi"}, {"title": "a", "n": 3}, {"title": "a"}, {"odd": [1, None]}, {},
]  # fmt: skip


@pytest.mark.parametrize(
    ("card", "input_"),
    [(CARDS[0], {"text": "hi"}), (CARDS[0], {"text": '{"text": "x"}'}), (CARDS[3], {"odd": {"deep": [None]}})]
    + [(card, input_) for card in CARDS[1:] for input_ in INPUTS],
)
def test_an_input_arrives_at_a_node_of_ours_as_it_was(card: AgentCard, input_: dict[str, Any]) -> None:
    sent = input_parts(described(card), input_, [])
    assert prompt_input(card, [parts.to_model(part) for part in parts.check_parts(sent)]) == input_


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("output", OUTPUTS)
def test_an_output_comes_back_from_a_node_of_ours_as_it_was(card: AgentCard, output: dict[str, Any]) -> None:
    came = [parts.from_model(part, lambda *_: "http://x/y") for part in output_parts(card, output)]
    assert output_of(described(card), came) == output


def test_the_card_here_is_the_card_there() -> None:
    card = agent(TWO, TEXT, "body", "text")
    here = described(card).card
    assert (here.name, here.version, here.description) == ("writer", "1.2.3", "Writes.")
    assert (here.input, here.output, here.input_text, here.output_text) == (TWO, TEXT, "body", "text")


def test_a_node_without_skills_is_an_agent_of_its_own_name() -> None:
    (found,) = agents_of(Reference("Some Agent!").card(), "x")
    assert (found.card.name, found.skill, found.structured) == ("Some-Agent", None, False)


@pytest.mark.parametrize(
    ("entries", "names"),
    [
        (["a", "b"], ["a", "b"]),
        ([{"id": "a"}, {"name": "b"}], ["a", "b"]),
        ([{"id": "a b"}, {"id": "a/b"}], ["a-b", "a-b"]),
        ([{"id": "a"}, 5, None, {}, {"id": 7}], ["a"]),
        ([5], ["Node"]),
        ("a,b", ["Node"]),
    ],
)
def test_odd_skills_lose_no_other(entries: Any, names: list[str]) -> None:
    found = agents_of({"name": "Node", "skills": entries}, "x")
    assert [one.card.name for one in found] == names


@pytest.mark.parametrize(
    "schema", [{"type": "nonsense"}, {"$ref": "http://elsewhere.example/schema"}, {"type": "array"}, {"properties": 5}]
)
def test_a_schema_that_cannot_be_used_loses_no_agent(schema: dict[str, Any]) -> None:
    entry = {"id": "a", "input_schema": schema, "output_schema": TEXT, "input_text": 5, "output_text": "text"}
    (found,) = agents_of({"name": "Node", "skills": [entry]}, "x")
    assert found.card.input["type"] == "object"
    assert found.card.input_text is None
    assert found.card.output == TEXT


def test_files_go_along_by_their_address_and_others_do_not() -> None:
    given: list[Part] = [
        FilePart(url="https://host.example/a.pdf", media_type="application/pdf", name="a.pdf"),
        FilePart(data=b"bytes"), FilePart(url="file:///etc/hosts"), DataPart({"n": 1}),
    ]  # fmt: skip
    file = {"type": "file", "url": "https://host.example/a.pdf", "media_type": "application/pdf", "filename": "a.pdf"}
    along, stays = along_of(given, None)
    assert (along, stays) == ([file, parts.data({"n": 1})], ["a file"])
    assert input_parts(described(CARDS[0]), {"text": "see"}, along) == [parts.data({"text": "see"}), *along]
    (plain,) = agents_of({"name": "Node"}, "x")
    assert input_parts(plain, {"text": "see"}, along) == [parts.text("see"), *along]


def test_files_without_an_address_go_along_where_somebody_publishes_them() -> None:
    given: list[Part] = [FilePart(data=b"bytes", name="b.bin"), FilePart(text="words"), FilePart(url="data:,hello")]
    published: list[tuple[bytes, str, str | None]] = []

    def publish(body: bytes, media_type: str, name: str | None) -> str:
        published.append((body, media_type, name))
        return f"http://here.example/{len(published)}"

    along, stays = along_of(given, publish)
    assert stays == []
    assert [part["url"] for part in along] == [f"http://here.example/{number}" for number in (1, 2, 3)]
    assert published == [
        (b"bytes", "application/octet-stream", "b.bin"), (b"words", "text/plain; charset=utf-8", None),
        (b"hello", "text/plain", None),
    ]  # fmt: skip


def test_what_is_no_text_of_an_unknown_agent_is_beside_its_output() -> None:
    (plain,) = agents_of({"name": "Node"}, "x")
    file = {"type": "file", "url": "https://host.example/a.pdf"}
    given = [parts.text("here"), parts.data({"price": 5}), file]
    assert (output_of(plain, given), beside_of(plain, given)) == ({"text": "here", "data": {"price": 5}}, given[1:])
    assert output_of(plain, [parts.data(1), parts.data(None)]) == {"text": "", "data": [1, None]}
    ours = described(CARDS[0])
    assert (output_of(ours, [parts.data({"text": "a"}), file]), beside_of(ours, [parts.data({"text": "a"}), file])) == (
        {"text": "a"}, [file],
    )  # fmt: skip

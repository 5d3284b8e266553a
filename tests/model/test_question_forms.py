"""A flat form for an answer of any shape: what is laid into its fields comes out of them again."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
import pytest

import interlingua as il
from interlingua.engine.agents.question_types import question_codec
from interlingua.model.errors import InvalidAnswer
from interlingua.model.question_forms import (
    choices,
    describe_schema,
    form,
    matching_choices,
    matching_form,
    parse_answer,
    question_text,
    usable_answer,
)
from interlingua.model.run import Option, Question
from interlingua.model.schemas import Validator


class Person(msgspec.Struct):
    name: str
    boss: Person | None = None
    skills: list[str] = []


class Team(msgspec.Struct):
    title: str
    people: list[Person]
    budget: float | None
    tags: dict[str, int] = {}


class Circle(msgspec.Struct, tag=True):
    radius: float


class Square(msgspec.Struct, tag=True):
    side: float


ADA = {"name": "Ada", "boss": {"name": "Grace", "boss": None, "skills": ["ships"]}}
TEAM = {"title": "one", "people": [ADA, {"name": "Zoë"}], "budget": 3.5, "tags": {"a": 1}}

CASES: list[tuple[Any, list[Any]]] = [
    (Person, [{"name": "Ada"}, ADA]),
    (Team, [TEAM, {"title": "", "people": [], "budget": None}]),
    (list[int], [[], [1, 2]]),
    (list[Team], [[TEAM, TEAM]]),
    (list[Literal["a", "b"]], [["a"], []]),
    (dict[str, Person], [{}, {"x": ADA}]),
    (dict, [{}, {"answer": {"answer": 1}}]),
    (str, ["", "two words", '"quoted"', "[1]", "null"]),
    (int, [0, -3]),
    (float, [0.5]),
    (Person | None, [None, ADA]),
    (Circle | Square, [{"type": "Circle", "radius": 1.0}, {"type": "Square", "side": 2.0}]),
    (int | str, [1, "1", "one"]),
    (Any, [None, 1, "x", [[]], {"a": [{}]}, "", True]),
    (None, [None]),
    (Literal[1, "one"], [1, "one"]),
]


def schema_of(answer: Any) -> dict[str, Any]:
    class Wanted(il.Question[answer]):  # type: ignore[valid-type]
        pass

    return question_codec(Wanted).answer.schema


def asked(schema: dict[str, Any], *options: Option) -> Question:
    return Question("q", "r", "wanted", {}, schema, 0, options=list(options))


@pytest.mark.parametrize(("answer", "values"), CASES, ids=[str(answer) for answer, _ in CASES])
def test_an_answer_of_any_shape_is_laid_into_flat_fields_and_comes_out_again(answer: Any, values: list[Any]) -> None:
    schema = schema_of(answer)
    wanted = form(schema)
    for value in values:
        Validator(schema, what="answer").check(value, InvalidAnswer)
        content = json.loads(json.dumps(wanted.content(value)))
        Validator(wanted.schema, what="form").check(content, InvalidAnswer)
        for field in content.values():
            texts = isinstance(field, list) and all(isinstance(one, str) for one in field)
            assert texts or isinstance(field, str | int | float), content
        assert wanted.answer(content) == value
        assert type(wanted.answer(content)) is type(value)


@pytest.mark.parametrize(("answer", "values"), CASES, ids=[str(answer) for answer, _ in CASES])
def test_every_field_is_one_that_a_flat_form_may_have(answer: Any, values: list[Any]) -> None:
    fields = form(schema_of(answer)).schema["properties"].values()
    assert {field["type"] for field in fields} <= {"string", "integer", "number", "boolean", "array"}


def test_a_flat_form_is_shown_as_it_is() -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "title": "Name"}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name"],
    }
    assert form(schema).schema == schema
    assert form(schema).exact


@pytest.mark.parametrize(
    "member",
    [
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"$ref": "#/$defs/Maybe"},
        {"type": "integer", "enum": [1, 2]},
        {"type": "string", "const": "yes"},
        {"type": "string", "format": "ipv4"},
    ],
)
@pytest.mark.parametrize("required", [["name", "more"], ["name"]])
def test_a_form_whose_fields_do_not_say_all_is_not_flat(member: dict[str, Any], required: list[str]) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "more": member},
        "required": required,
        "$defs": {"Maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
    }
    assert not form(schema).exact


@pytest.mark.parametrize("required", [["more"], []])
def test_null_comes_through_a_form_however_it_is_written_down(required: list[str]) -> None:
    maybe = {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}
    for member in (maybe, {"$ref": "#/$defs/Maybe"}):
        schema = {"type": "object", "properties": {"more": member}, "required": required, "$defs": {"Maybe": maybe}}
        wanted = form(schema)
        assert wanted.schema == {"type": "object", "properties": {"more": {"type": "integer"}}}
        for answer in ({"more": None}, {"more": 3}):
            assert wanted.answer(wanted.content(answer)) == answer


@pytest.mark.parametrize("member", [True, {"$ref": "#/$defs/Any"}, {"anyOf": [True, {"type": "null"}]}])
def test_a_member_that_may_be_anything_is_a_field_for_json(member: Any) -> None:
    schema = {"type": "object", "properties": {"more": member}, "required": ["more"], "$defs": {"Any": True}}
    assert form(schema).json_fields == {"more"}
    assert choices(asked(schema)) is None
    assert question_text(asked(schema))


def test_a_field_for_json_says_in_words_what_is_wanted() -> None:
    shown = form(schema_of(Team)).schema
    assert shown["required"] == ["title", "people"]
    assert shown["properties"]["title"] == {"type": "string"}
    people = shown["properties"]["people"]
    assert (people["type"], people["title"]) == ("string", "people (JSON)")
    assert people["description"].startswith('JSON of this shape: [{"name": text, "boss" (optional): {"name": text')
    assert shown["properties"]["tags"]["description"] == "JSON of this shape: {any name: whole number}"


def test_words_for_a_schema_without_end_come_to_one() -> None:
    wide = {f"m{number}": {"$ref": "#/$defs/Wide"} for number in range(200)}
    root = {"$ref": "#/$defs/Wide", "$defs": {"Wide": {"type": "object", "properties": wide}}}
    assert len(describe_schema(root, root)) < 20_000


@pytest.mark.parametrize("text", ["", "Ada", "[1", "NaN", "[" * 100_000])
def test_a_text_that_is_no_json_is_refused_with_the_name_of_its_field(text: str) -> None:
    with pytest.raises(InvalidAnswer, match="people has to be JSON"):
        form(schema_of(Team)).answer({"title": "one", "people": text, "budget": 1})


def test_a_field_for_json_that_need_not_be_filled_in_may_be_empty() -> None:
    wanted = form(schema_of(Team))
    found = wanted.answer({"title": "one", "people": "[]", "budget": 1, "tags": " "})
    assert found == {"title": "one", "people": [], "budget": 1}


def test_structure_in_place_of_its_text_is_taken_as_it_is() -> None:
    assert form(schema_of(list[int])).answer({"answer": [1, 2]}) == [1, 2]


def test_an_answer_without_its_only_field_is_refused() -> None:
    with pytest.raises(InvalidAnswer, match="answer is missing"):
        form(schema_of(list[int])).answer({})


def test_a_number_that_may_be_null_is_left_out_to_say_so() -> None:
    wanted = form(schema_of(Team))
    assert "budget" not in wanted.content({"title": "", "people": [], "budget": None})
    assert wanted.answer({"title": "", "people": "[]"})["budget"] is None


@pytest.mark.parametrize(
    ("schema", "answers"),
    [
        (schema_of(bool), {"yes": True, "no": False}),
        (schema_of(Literal["blue", "red"]), {"blue": "blue", "red": "red"}),
        ({"type": "string", "enum": ["red"]}, {"red": "red"}),
    ],
)
def test_a_yes_or_one_of_a_few_words_is_a_choice_without_an_object_around_it(
    schema: dict[str, Any], answers: dict[str, Any]
) -> None:
    offered = choices(asked(schema))
    assert offered is not None
    assert offered.answers == answers
    assert [option.id for option in offered.options] == list(answers)


def test_options_of_a_few_words_are_those_words() -> None:
    offered = choices(asked(schema_of(Literal["red", "blue"]), Option("red", "Red"), Option("blue", "Blue")))
    assert offered is not None
    assert offered.answers == {"red": "red", "blue": "blue"}


VERDICT = schema_of(il.Verdict)
YES_OR_NO = [Option("yes", "Yes", "allow_once"), Option("no", "No", "reject_once")]


def test_an_option_that_does_not_say_what_it_means_is_shown_as_what_its_answer_says() -> None:
    offered = choices(asked(VERDICT, Option("later", "Later"), Option("now", "Now", "allow_once")))
    assert offered is not None
    assert [(option.kind, offered.answers[option.id]) for option in offered.options] == [
        ("reject_once", {"approved": False}), ("allow_once", {"approved": True}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("whole", "taken"),
    [
        ({"approved": False, "reason": "no"}, {"approved": False, "reason": "no"}),
        ({"approved": True, "reason": "no"}, {"approved": False}),
        ({"reason": "no"}, {"approved": False}),
        ({"approved": False, "reason": 5}, {"approved": False}),
        ({"approved": 0}, {"approved": False}),
        (True, {"approved": False}),
        (None, {"approved": False}),
        ({"approved": {1, 2}}, {"approved": False}),
    ],
    ids=str,
)
def test_of_a_whole_answer_that_does_not_fit_or_says_something_else_only_the_choice_counts(
    whole: Any, taken: Any
) -> None:
    offered = choices(asked(VERDICT))
    assert offered is not None
    assert offered.full_answer("no", whole) == taken


def test_what_is_said_beside_a_choice_is_what_no_choice_says() -> None:
    for schema, names in ((VERDICT, ["reason"]), (schema_of(il.Choice), None), (schema_of(bool), [])):
        offered = choices(asked(schema))
        assert (None if offered is None else list(offered.other_members)) == names


def picks(member: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"pick": member, "why": {"type": "string"}}, "required": ["pick"]}


@pytest.mark.parametrize(
    ("member", "options", "narrowed"),
    [
        ({"type": "boolean"}, YES_OR_NO, {"type": "boolean"}),
        ({"type": "boolean"}, YES_OR_NO[:1], {"type": "boolean", "enum": [True]}),
        ({"enum": ["yes", "no"]}, YES_OR_NO, {"enum": ["yes", "no"]}),
        ({"type": "string"}, YES_OR_NO, {"type": "string", "enum": ["yes", "no"]}),
        (True, YES_OR_NO, {"enum": ["yes", "no"]}),
        (
            {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            YES_OR_NO,
            {"type": "boolean", "enum": [True, False]},
        ),
    ],
    ids=str,
)
def test_choices_with_the_schema_of_their_answers_take_what_begins_with_one(
    member: Any, options: list[Option], narrowed: Any
) -> None:
    offered = matching_choices(picks(member), options)
    assert offered is not None
    assert offered.schema == picks(narrowed)
    for id_, own in offered.answers.items():
        more = {**own, "why": "so"}
        assert offered.chosen(more) == offered.chosen(own) == id_
        Validator(offered.schema, what="answer").check(more, InvalidAnswer)


@pytest.mark.parametrize(
    "schema",
    [
        None,
        5,
        {},
        {"type": "nonsense"},
        {"type": "string"},
        schema_of(bool),
        picks({"type": "integer"}),
        picks({"enum": ["red", "blue"]}),
    ],
    ids=str,
)
def test_choices_that_are_not_of_their_schema_are_all_that_is_known(schema: Any) -> None:
    assert matching_choices(schema, YES_OR_NO) is None


@pytest.mark.parametrize("schema", [{"type": "string"}, {"enum": [1, 2]}, {"type": "array"}, {}])
def test_other_answers_are_no_choice(schema: dict[str, Any]) -> None:
    assert choices(asked(schema)) is None


@pytest.mark.parametrize(("text", "value"), [("hold", False), ("Ship it", True), ("SHIP", True), ("no", False)])
def test_a_choice_may_be_written_by_its_id_or_its_label(text: str, value: bool) -> None:
    options = [Option("ship", "Ship it", "allow_once"), Option("hold", "Hold it", "reject_once")]
    assert parse_answer(asked(VERDICT, *options), text) == {"approved": value}


@pytest.mark.parametrize(
    ("answer", "text", "value"),
    [
        (str, "two words", "two words"),
        (str, "5", "5"),
        (str, "[1]", "[1]"),
        (int, "5", 5),
        (bool, "yes", True),
        (bool, "No", False),
        (bool, "true", True),
        (Literal["red", "blue"], "red", "red"),
        (list[int], "[1, 2]", [1, 2]),
        (Person, '{"name": "Ada"}', {"name": "Ada"}),
        (Person, "Ada", {"name": "Ada"}),
        (int | str, "5", 5),
        (int | str, "five", "five"),
        (None, "null", None),
    ],
    ids=str,
)
def test_an_answer_in_words_is_what_its_schema_makes_of_them(answer: Any, text: str, value: Any) -> None:
    assert parse_answer(asked(schema_of(answer)), text) == value


def test_words_that_are_nested_without_end_are_words() -> None:
    text = "[" * 100_000
    assert parse_answer(asked({"type": "string"}), text) == text


@pytest.mark.parametrize(("answer", "wanted"), [(str, "as the next message"), (list[int], "JSON that fits")])
def test_a_question_in_words_says_how_to_answer(answer: Any, wanted: str) -> None:
    assert wanted in question_text(asked(schema_of(answer)))


def test_a_form_is_read_by_the_schema_that_it_is_of() -> None:
    schema = schema_of(Team)
    wanted = form(schema)
    assert matching_form(schema, wanted.schema) == (wanted, schema)


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        (None, form({}).schema),
        ([], form({}).schema),
        ({"type": "nonsense"}, form({}).schema),
        ({"$ref": "http://elsewhere.example/s.json"}, form({}).schema),
        (schema_of(Team), form({}).schema),
        (schema_of(Team), {"type": "object"}),
        (schema_of(Team), None),
    ],
)
def test_a_form_that_is_not_of_its_schema_is_all_that_is_known(schema: Any, shown: Any) -> None:
    assert matching_form(schema, shown) is None


def test_what_a_peer_says_of_an_answer_is_taken_also_where_it_is_no_object() -> None:
    assert usable_answer({"enum": ["a", 1]}) == {"enum": ["a", 1]}
    assert usable_answer({"type": "array", "title": None}) == {"type": "array"}
    assert usable_answer({"type": "nonsense"}) == {}

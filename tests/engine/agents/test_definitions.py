"""From a function to a card, and what is said when that cannot be."""

from __future__ import annotations

import enum
import textwrap
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

import interlingua as il
from interlingua.engine.agents.agent import Registry
from tests.kit.engines import engine, finish


@dataclass
class Address:
    street: str
    number: int = 1


class Person(msgspec.Struct):
    name: str
    address: Address
    tags: list[str] = []


class Options(TypedDict, total=False):
    loud: bool


class Order(pydantic.BaseModel):
    item: str
    count: int = pydantic.Field(gt=0)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def test_the_first_example_becomes_a_card() -> None:
    @il.agent
    async def echo(text: str):  # type: ignore[no-untyped-def]
        """Repeats what it hears, word by word."""
        for word in text.split():
            yield word + " "

    card = echo.card
    assert (card.name, card.version, card.description) == (
        "echo",
        "0.1.0",
        "Repeats what it hears, word by word.",
    )
    assert card.input == {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
        "additionalProperties": False,
    }
    assert card.output == {"type": "object", "properties": {"text": {"type": "string"}}}
    assert (card.input_text, card.output_text, card.streams) == ("text", "text", True)


def test_the_second_example_becomes_a_card() -> None:
    class Chat(msgspec.Struct):
        messages: list[str] = []

    class Style(msgspec.Struct):
        style: Literal["formal", "friendly"] = "formal"

    class Reply(msgspec.Struct):
        message: str

    class Verdict(msgspec.Struct):
        approved: bool
        reason: str | None = None

    class MailSendApproval(il.Question[Verdict]):
        subject: str
        body: str
        recipients: list[str]

    @il.agent(name="org.agntcy.mailcomposer", version="0.0.1", asks=[MailSendApproval])
    async def compose(message: str, ctx: il.Context[Chat, Style]) -> Reply:
        await ctx.ask(MailSendApproval(subject="", body="", recipients=[]))
        return Reply(message="Sent.")

    card = compose.card
    assert card.key == "org.agntcy.mailcomposer@0.0.1"
    assert set(card.input["properties"]) == {"message"}
    assert card.output["properties"] == {"message": {"type": "string"}}
    assert card.state is not None
    assert card.state["properties"]["messages"]["type"] == "array"
    assert card.config is not None
    assert card.config["properties"]["style"]["enum"] == ["formal", "friendly"]
    (asked,) = card.questions
    assert asked.type == "mail_send_approval"
    assert asked.payload["required"] == ["subject", "body", "recipients"]
    assert asked.answer["required"] == ["approved"]
    assert (card.input_text, card.output_text) == ("message", "message")


async def test_every_kind_of_type_comes_in_and_goes_out(store: Path) -> None:
    @il.agent
    async def mixed(
        person: Person, options: Options, order: Order, colour: Colour, many: list[Address], scale: float = 1.5
    ) -> Person:
        assert isinstance(person, Person)
        assert isinstance(person.address, Address)
        assert isinstance(order, Order)
        assert colour is Colour.BLUE
        assert isinstance(many[0], Address)
        return Person(f"{person.name} {order.item} {options['loud']} {scale}", many[0], ["x"])

    async with engine(store, mixed) as eng:
        given = {
            "person": {"name": "Ada", "address": {"street": "Main"}},
            "options": {"loud": True},
            "order": {"item": "tea", "count": 2},
            "colour": "blue",
            "many": [{"street": "Side", "number": 3}],
        }
        run = await finish(eng, "mixed", given)
        assert run.error is None
        assert run.output == {
            "name": "Ada tea True 1.5",
            "address": {"street": "Side", "number": 3},
            "tags": ["x"],
        }
        with pytest.raises(il.InterlinguaError, match="/order/count"):
            await finish(eng, "mixed", {**given, "order": {"item": "tea", "count": 0}})


@pytest.mark.parametrize(
    ("annotation", "value", "output"),
    [
        (str, "x", {"text": "x"}),
        (int, 3, {"value": 3}),
        (list[int], [1, 2], {"value": [1, 2]}),
        (None, None, {}),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (Address, Address("Main"), {"street": "Main", "number": 1}),
        (Order, Order(item="tea", count=1), {"item": "tea", "count": 1}),
        (Options, {"loud": True}, {"loud": True}),
        (Any, {"free": True}, {"free": True}),
    ],
    ids=["str", "int", "list", "None", "dict", "dataclass", "pydantic", "TypedDict", "Any"],
)
async def test_whatever_it_returns_the_output_is_an_object(
    store: Path, annotation: Any, value: Any, output: dict[str, Any]
) -> None:
    async def agent():  # type: ignore[no-untyped-def]
        return value

    agent.__annotations__["return"] = annotation
    made = il.agent(agent)
    assert made.card.output["type"] == "object"
    async with engine(store, made) as eng:
        run = await finish(eng, "agent")
        assert run.error is None
        assert run.output == output


async def test_a_generator_may_yield_objects_and_return_the_final_word(store: Path) -> None:
    class Report(TypedDict, total=False):
        lines: list[str]
        count: int

    @il.agent
    async def reporter() -> AsyncIterator[Report]:
        yield {"lines": ["a"], "count": 1}
        yield {"lines": [None, "b"], "count": 1}  # type: ignore[list-item]

    def corrected() -> Iterator[str]:
        yield "draft"
        return "final"

    corrected.__annotations__["return"] = "Iterator[str]"
    async with engine(store, reporter, il.agent(corrected)) as eng:
        assert (await finish(eng, "reporter")).output == {"lines": ["a", "b"], "count": 2}
        assert (await finish(eng, "corrected")).output == {"text": "final"}


def test_defaults_are_in_the_schema_and_not_required() -> None:
    @il.agent
    async def agent(a: str, b: int = 3, c: str | None = None, d: Annotated[int, msgspec.Meta(ge=1)] = 1) -> str:
        return a

    assert agent.card.input["required"] == ["a"]
    assert agent.card.input["properties"]["b"] == {"type": "integer", "default": 3}
    assert agent.card.input["properties"]["d"]["minimum"] == 1


async def test_extra_members_are_taken_where_the_function_takes_them(store: Path) -> None:
    @il.agent
    async def agent(**extra: Any) -> int:
        return len(extra)

    async with engine(store, agent) as eng:
        assert (await finish(eng, "agent", {"a": 1, "b": {"c": 2}})).output == {"value": 2}


def test_an_agent_can_still_be_called_as_the_function_it_is() -> None:
    @il.agent
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8


def wrong(source: str) -> str:
    """Define what is in `source`, and give back what the error says."""
    namespace: dict[str, Any] = {"il": il, "Any": Any, "dataclass": dataclass, "field": field}
    with pytest.raises(il.DefinitionError) as caught:
        exec(compile(textwrap.dedent(source), "agents.py", "exec"), namespace)
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            """
            class Weird: ...
            @il.agent
            async def a(x: Weird): ...
            """,
            ["agents.py:3", "parameter 'x'", "dataclass"],
        ),
        (
            """
            class Weird: ...
            @il.agent
            async def a() -> Weird: ...
            """,
            ["what it returns", "dataclass"],
        ),
        ("@il.agent\nasync def a(x: 'Nowhere'): ...", ["Nowhere", "define or import it"]),
        ("@il.agent\nasync def a(*xs: int): ...", ["'xs'", "make it a normal parameter"]),
        ("@il.agent\nasync def a(ctx: il.SyncContext): ...", ["an async def takes il.Context"]),
        ("@il.agent\ndef a(ctx: il.Context): ...", ["a plain def takes il.SyncContext"]),
        ("@il.agent(name='no spaces')\nasync def a(): ...", ["'no spaces'", "letters, digits"]),
        ("@il.agent(version='')\nasync def a(): ...", ["1.2.0"]),
        ("@il.agent(retries=-1)\nasync def a(): ...", ["retries"]),
        ("@il.agent(timeout=0)\nasync def a(): ...", ["timeout"]),
        ("@il.agent(asks=[str])\nasync def a(): ...", ["class X(il.Question[Answer])"]),
        (
            """
            class Q(il.Question): ...
            @il.agent(asks=[Q])
            async def a(): ...
            """,
            ["does not say what its answer is", "il.Question[Verdict]"],
        ),
        (
            """
            class Q(il.Question[il.Verdict]): ...
            @il.agent
            async def a(ctx): await ctx.ask(Q())
            """,
            ["uses question Q", "asks=[Q]"],
        ),
        ("@il.agent\nasync def a(ctx): await ctx.ask(il.Confirm('x'))", ["uses question Confirm", "asks=[Confirm]"]),
        (
            """
            @il.agent(errors=[ValueError])
            async def a(): ...
            """,
            ["il.AgentError"],
        ),
        (
            """
            class E(il.AgentError): ...
            @il.agent(errors=[E])
            async def a(): ...
            """,
            ["no code of its own"],
        ),
        (
            """
            @il.agent
            async def a(): ...
            @il.agent(name='a')
            async def b(): ...
            """,
            ["line 2 defines a@0.1.0 already", "another name= or version="],
        ),
        ("@il.agent\n@il.agent\nasync def a(): ...", ["decorate the function once"]),
        ("il.agent(3)", ["makes an agent of a function"]),
        ("@il.agent(input_text='nope')\nasync def a(text: str): ...", ["'nope'", "text"]),
        (
            """
            @dataclass
            class S:
                needed: int
            @il.agent
            async def a(ctx: il.Context[S, None]): ...
            """,
            ["starts out empty", "needs a default"],
        ),
        ("@il.agent\nasync def a(ctx: il.Context[int, None]): ...", ["its state must be an object"]),
        ("@il.agent(process=True)\nasync def a(): ...", ["plain functions"]),
        ("@il.agent(process=True)\ndef a(ctx: il.SyncContext): ...", ["no context"]),
        ("@il.agent\nasync def a(x: int = object()): ...", ["default", "not JSON"]),
    ],
)
def test_wrong_use_is_said_at_definition_with_what_to_change(source: str, says: list[str]) -> None:
    message = wrong(source)
    for part in says:
        assert part in message, message


def test_two_agents_with_one_name_and_version_cannot_be_served_together() -> None:
    def make() -> il.Agent[..., Any]:
        @il.agent(name="twin")
        async def agent() -> None: ...

        return agent

    registry = Registry()
    registry.add(make())
    with pytest.raises(il.DefinitionError, match=r"twin@0\.1\.0"):
        registry.add(make())


def test_without_a_version_the_newest_is_meant() -> None:
    registry = Registry()
    for version in ("0.9.0", "0.10.0", "0.2.0"):

        @il.agent(name="a", version=version)
        async def agent() -> None: ...

        registry.add(agent)
    found = registry.find("a")
    assert found is not None
    assert found.card.version == "0.10.0"
    assert registry.find("a", "0.9.0") is not None
    assert registry.find("a", "1.0.0") is None


def test_error_definitions_are_on_the_card() -> None:
    class RateLimited(il.AgentError):
        """Too many requests."""

        code = "rate_limited"
        transient = True

        class Details(msgspec.Struct):
            after: float

    @il.agent(errors=[RateLimited])
    async def agent() -> None: ...

    (definition,) = agent.card.errors
    assert (definition.code, definition.description, definition.transient) == (
        "rate_limited",
        "Too many requests.",
        True,
    )
    assert definition.details is not None
    assert definition.details["properties"] == {"after": {"type": "number"}}

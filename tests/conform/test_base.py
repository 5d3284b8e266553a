"""What runs the checks: verdicts, connections that are shared or not, and the catalogue that they are told from."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from interlingua.model.errors import InvalidRequest, Unavailable
from interlingua.model.schemas import Validator
from interlingua.transports.raw_client.pipes import last_words
from interlingua_conform import PROTOCOLS, base, suite
from interlingua_conform.base import (
    Broken,
    Gone,
    Requirement,
    Roles,
    Subject,
    Suite,
    applies,
    conform,
    expect,
    member,
    shown,
)
from interlingua_conform.sample import sample
from tests.requirements.manifest import load_all

IDS = ("x.good", "x.bad", "x.absent", "x.twice")


class Connection:
    opened = 0

    def __init__(self) -> None:
        type(self).opened += 1
        self.number = type(self).opened


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Suite[Connection]:
    entries = {name: Requirement(name, "1", "must", "A rule.") for name in IDS}
    monkeypatch.setattr(base, "catalogue", lambda: entries)
    Connection.opened = 0

    @contextlib.asynccontextmanager
    async def connect(subject: Subject) -> AsyncIterator[Connection]:
        if subject.address == "nowhere":
            raise Unavailable("nothing answers")
        yield Connection()

    return Suite("x", connect)


async def findings(made: Suite[Connection], address: str = "here", only: list[str] | None = None) -> dict[str, str]:
    return {f.id: f"{f.verdict} {f.why}".strip() async for f in conform(made, Subject(address=address), only)}


async def test_a_check_passes_fails_or_does_not_apply(made: Suite[Connection]) -> None:
    @made.check("x.good")
    async def good(connection: Connection) -> None:
        expect(True, "never said")

    @made.check("x.bad")
    async def bad(connection: Connection) -> None:
        expect(False, "it did the opposite")

    @made.check("x.absent")
    async def absent(connection: Connection) -> None:
        applies(False, "it has no such thing")

    assert await findings(made) == {
        "x.good": "pass",
        "x.bad": "fail it did the opposite",
        "x.absent": "not applicable it has no such thing",
    }
    assert await findings(made, only=["x.g"]) == {"x.good": "pass"}


async def test_a_requirement_with_two_checks_fails_with_either_and_needs_only_one_that_applies(
    made: Suite[Connection],
) -> None:
    @made.check("x.twice", "x.bad")
    async def first(connection: Connection) -> None:
        applies(False, "not here")

    @made.check("x.twice")
    async def second(connection: Connection) -> None:
        pass

    @made.check("x.bad")
    async def third(connection: Connection) -> None:
        raise Gone("it left")

    @made.check("x.bad")
    async def fourth(connection: Connection) -> None:
        pass

    assert await findings(made) == {"x.twice": "pass", "x.bad": "fail it left"}


async def test_checks_share_a_connection_until_one_fails_and_fresh_ones_have_their_own(
    made: Suite[Connection],
) -> None:
    seen = []

    @made.check("x.good")
    async def first(connection: Connection) -> None:
        seen.append(connection.number)

    @made.check("x.absent", fresh=True)
    async def own(connection: Connection) -> None:
        seen.append(connection.number)

    @made.check("x.bad")
    async def broken(connection: Connection) -> None:
        seen.append(connection.number)
        raise Broken("so it is")

    @made.check("x.twice")
    async def after(connection: Connection) -> None:
        seen.append(connection.number)

    await findings(made)
    assert seen == [1, 2, 1, 3]


@pytest.mark.parametrize("where", ["suite", "driver"])
async def test_a_lasting_connection_is_shared_over_failures(
    made: Suite[Connection], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "suite":
        made.lasting = True
    else:
        monkeypatch.setattr(Connection, "lasting", True, raising=False)
    seen = []

    @made.check("x.bad")
    async def broken(connection: Connection) -> None:
        seen.append(connection.number)
        raise Broken("so it is")

    @made.check("x.twice")
    async def after(connection: Connection) -> None:
        seen.append(connection.number)

    await findings(made)
    assert seen == [1, 1]


async def test_what_no_check_expected_is_a_failure_and_not_the_end_of_the_report(made: Suite[Connection]) -> None:
    @made.check("x.bad")
    async def surprised(connection: Connection) -> None:
        [].pop()

    @made.check("x.good")
    async def good(connection: Connection) -> None:
        pass

    assert await findings(made) == {
        "x.bad": f"fail {base.UNREADABLE}: IndexError: pop from empty list",
        "x.good": "pass",
    }


def test_what_cannot_be_printed_is_shown_all_the_same() -> None:
    assert shown({"half": "\ud83d", "large": 10**30}) == '{"half": "\\ud83d", "large": 1000000000000000000000000000000}'
    assert shown("\ud83d") == "\\ud83d"
    assert shown("x" * 300) == "x" * 199 + "…"


async def test_a_server_that_is_not_there_is_no_server_that_fails(made: Suite[Connection]) -> None:
    @made.check("x.good")
    async def good(connection: Connection) -> None:
        pass

    with pytest.raises(Unavailable, match="nothing answers"):
        await findings(made, "nowhere")


async def test_agents_that_are_named_must_be_there_where_the_server_tells_who_is(made: Suite[Connection]) -> None:
    @made.check("x.good")
    async def good(connection: Connection) -> None:
        pass

    async def names(connection: Connection) -> dict[str, str]:
        return there

    made.names = names
    there = {"1": "echo", "echo": "echo", "slow": "slow"}
    subject = Subject(address="here", roles=Roles(agent="1", slow="slow"))
    assert [finding.verdict async for finding in conform(made, subject)] == ["pass"]
    subject = Subject(address="here", roles=Roles(agent="echo", slow="swol"))
    with pytest.raises(InvalidRequest, match="no agent 'swol', which --slow names; it has echo, slow"):
        _ = [finding async for finding in conform(made, subject)]
    there = {}
    assert [finding.verdict async for finding in conform(made, subject)] == ["pass"]


async def test_a_server_whose_agents_cannot_be_listed_is_checked_all_the_same(made: Suite[Connection]) -> None:
    @made.check("x.good")
    async def good(connection: Connection) -> None:
        pass

    async def names(connection: Connection) -> dict[str, str]:
        raise Broken("the list is a number")

    made.names = names
    subject = Subject(address="here", roles=Roles(agent="echo"))
    assert [finding.verdict async for finding in conform(made, subject)] == ["pass"]
    with pytest.raises(Unavailable, match="nothing answers"):
        _ = [finding async for finding in conform(made, Subject(address="nowhere", roles=Roles(agent="echo")))]


def test_a_member_is_looked_up_by_its_path_and_says_what_is_wrong() -> None:
    answer = {"result": {"agents": [{"name": "echo", "ok": True}]}}
    assert member(answer, "result.agents.0.name", str) == "echo"
    for path, kind, said in [
        ("result.tools", list, "has no result.tools"),
        ("result.agents.1", dict, "has no result.agents.1"),
        ("result.agents", dict, "is an array, not an object"),
        ("result.agents.0.ok", int, "is a boolean, not an integer"),
    ]:
        with pytest.raises(Broken, match=said):
            member(answer, path, kind)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"text": {"type": "string", "minLength": 20}}, "required": ["text"]},
        {"type": "object", "properties": {"n": {"type": "integer", "minimum": 5}, "m": {"type": "string"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"],
         "$defs": {"A": {"type": "array", "items": {"enum": ["x"]}, "minItems": 2}}},
        {"anyOf": [{"type": "object", "properties": {"b": {"type": ["boolean", "null"]}}, "required": ["b"]}]},
        {},
    ],
)  # fmt: skip
def test_a_sample_fits_its_schema(schema: dict[str, object]) -> None:
    Validator(schema, what="it").check(sample(schema), ValueError)  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_can_be_seen_from_outside_is_what_is_looked_at(protocol: str) -> None:
    outside = {e.id for m in load_all() if m.protocol == protocol for e in m.requirements if e.outside}
    assert set(suite(protocol).ids) == outside
    assert outside


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        ("Traceback (most recent call last):\nKeyError: 'name'\n", "KeyError: 'name'"),
        (
            "  | ExceptionGroup: errors (1 sub-exception)\n  +-+---- 1 ----\n    | KeyError: 'x'\n    +----\n",
            "KeyError: 'x'",
        ),
        ("", ""),
    ],
)
def test_what_a_program_said_last_is_a_line_with_words(stderr: str, said: str) -> None:
    assert last_words(stderr) == said

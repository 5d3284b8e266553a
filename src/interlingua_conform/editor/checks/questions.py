"""Checks of what an agent asks its user: permissions, forms, and questions in words."""

from __future__ import annotations

from typing import Any

from ...answers import filled_in
from ...base import Gone, NotApplicable, applies, expect, member, shown
from ...remembering import once
from .. import shapes
from ..driver import Driver, check
from ..links import Message
from ..reading import answers, picked
from ..session import Ended
from ..talk import Client

_FLAT = ("string", "number", "integer", "boolean", "array")


async def permission(client: Client, answer: Any, error: bool = False) -> tuple[Ended, Message, str]:
    """A turn of the agent that asks, with an answer to its permission request: its end, the request, what was said.
    An answer may be made from the request."""
    session = await client.asking()
    with client.by_hand():
        turn = await session.begin()
        request = await turn.question()
        applies(request["method"] == "session/request_permission", "the agent that asks asks for no permission")
        given = answer(request) if callable(answer) else answer
        at = client.now
        if error:
            await client.settle(request, {"error": given})
        else:
            await client.respond(request, given)
        ended = await turn.end()
    return ended, request, session.text(at)


@check("editor.v1.permission")
async def a_permission_request_is_about_a_tool_call(driver: Driver) -> None:
    client = await driver.v1()
    before = client.now
    _, request, _ = await permission(client, lambda r: picked(r, "reject") or picked(r, ""))
    shapes.permission(request, 1)
    call = request["params"]["toolCall"]
    shown_before = [
        message
        for message in client.link.messages[before:]
        if isinstance(message.get("params"), dict)
        and isinstance(message["params"].get("update"), dict)
        and message["params"]["update"].get("toolCallId") == call["toolCallId"]
    ]
    expect(
        shown_before or isinstance(call.get("title"), str),
        f"a permission is asked for about a tool call that was not shown, and has no title: {shown(call)}",
    )


@once
async def _allowed(driver: Driver, client: Client) -> str:
    """Returns the text of the agent when it gets a permission, if that differs from its text when it is refused."""

    def chosen(kind: str) -> Any:
        def choose(request: Message) -> Message:
            found = picked(request, kind)
            applies(found, f"the permission request has no option of a kind that {kind}s")
            return found or {}

        return choose

    ended, _, yes = await permission(client, chosen("allow"))
    _, _, no = await permission(client, chosen("reject"))
    applies(ended.error is None, "the agent that asks fails when it may go on")
    applies(yes != no, "the agent that asks says the same whether it may go on or not")
    return yes


async def never_approved(driver: Driver, client: Client, wrong: list[tuple[str, Any, bool]]) -> None:
    yes = await _allowed(driver, client)
    for what, answer, error in wrong:
        try:
            _, _, said = await permission(client, answer, error)
        except Gone as error_:
            raise Gone(f"a permission request that was answered with {what}: {error_}") from error_
        expect(said != yes, f"a permission request that was answered with {what} counts as approved")


@check("editor.v1.permission-approval")
async def nothing_but_an_offered_option_is_an_approval(driver: Driver) -> None:
    client = await driver.v1()
    unknown = {"outcome": {"outcome": "selected", "optionId": "never offered"}}
    wrong: list[tuple[str, Any, bool]] = [
        ("an option that was never offered", unknown, False),
        ("cancelled", {"outcome": {"outcome": "cancelled"}}, False),
        ("an error", {"code": -32603, "message": "no user is here"}, True),
    ]
    await never_approved(driver, client, wrong)


# -- forms -----------------------------------------------------------------------------------------------------


async def answered_form(client: Client, answer: Any) -> tuple[Ended, Message]:
    session = await client.asking()
    with client.by_hand():
        turn = await session.begin()
        request = await turn.question()
        applies(request["method"] == "elicitation/create", "the agent that asks asks for a permission, not by a form")
        params = member(request, "params", dict, "elicitation/create")
        applies(params.get("mode", "form") == "form", "the agent that asks does not ask by a form")
        given = answer(params) if callable(answer) else answer
        await client.respond(request, given)
        return await turn.end(), request


def accepted(params: Message) -> Message:
    return {"action": "accept", "content": filled_in(params)}


def form(request: Message) -> None:
    """Raises Broken if a form has a mistake."""
    where = "elicitation/create"
    params = member(request, "params", dict, where)
    member(params, "message", str, where)
    schema = member(params, "requestedSchema", dict, where)
    expect(schema.get("type", "object") == "object", f"the schema of a form is no object: {shown(schema)}")
    for name, inner in member(schema, "properties", dict, f"the schema of {where}").items():
        kind = inner.get("type") if isinstance(inner, dict) else None
        expect(kind in _FLAT, f"the form has the field {name}, which is not flat: {shown(inner)}")


@once
async def _asks_by(driver: Driver, version: int) -> str:
    """The method by which the agent that asks does so; empty where it does not ask."""
    client = await (driver.v1() if version == 1 else driver.v2())
    session = await client.asking()
    with client.by_hand():
        turn = await session.begin()
        try:
            found = str((await turn.question())["method"])
        except NotApplicable:
            return ""
        await session.cancel()
    await turn.end()
    return found


async def asks_forms(driver: Driver, version: int) -> Client:
    """A client that has forms, where the agent that asks is not known to ask for permissions."""
    found = await _asks_by(driver, version)
    applies(found != "session/request_permission", "the agent that asks asks for a permission, not by a form")
    return await driver.forms(version)


@check("editor.v1.elicitation")
async def a_question_with_a_form_is_an_elicitation(driver: Driver) -> None:
    client = await asks_forms(driver, 1)
    ended, request = await answered_form(client, accepted)
    form(request)
    expect(ended.error is None, f"a turn whose form was filled in failed: {shown(ended.error)}")


@check("editor.v1.elicitation-declined")
async def a_form_that_is_declined_ends_the_turn(driver: Driver) -> None:
    client = await asks_forms(driver, 1)
    try:
        await answered_form(client, {"action": "decline"})
    except Gone as error:
        raise Gone(f"a form was declined, and the turn does not end: {error}") from error


@check("editor.v1.spoken")
async def without_forms_the_question_is_asked_in_words(driver: Driver) -> None:
    client = await driver.v1()
    session = await client.asking()
    with client.by_hand():
        turn = await session.begin()
        found = await client.link.until(
            lambda m: answers(turn.id)(m) or m.get("method") == "session/request_permission" or m in client.unasked,
            "a question, or the end of the turn", turn.first,
        )  # fmt: skip
        if found.get("method") == "session/request_permission":
            await session.cancel()
            await turn.end()
            raise NotApplicable("the agent that asks asks for a permission, which every client can give")
    expect(not client.unasked, f"a client that has no forms is sent one: {shown(client.unasked[:1])}")
    ended = await turn.end()
    applies(ended.error is None, f"the agent that should ask fails: {shown(ended.error)}")
    said = session.text(turn.first)
    expect(said, "the turn of the agent that asks ended without a request and without a word")
    await session.turn("an answer")  # to it; whether it fits is the agent's to say


@check("editor.v1.workspace-capabilities")
async def what_the_client_has_not_is_not_asked_for(driver: Driver) -> None:
    clients = [await driver.v1(), await driver.other()]
    for open_ in (clients[0].plain, clients[0].asking):
        try:
            await (await open_()).turn()
        except NotApplicable:
            continue
    for client in clients:
        expect(not client.unasked, f"the client has not said that it can, and is asked for {shown(client.unasked[:1])}")

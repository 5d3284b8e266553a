"""Checks of version 2: the lifecycle of a prompt, updates that replace, and the names that have changed."""

from __future__ import annotations

from ...base import Gone, NotApplicable, applies, expect, member, shown
from ...remembering import once
from .. import shapes
from ..driver import INFO, Driver, check
from ..links import Message
from ..reading import objects, picked, text, update_of
from ..session import Ended, Session
from ..talk import Client
from .questions import accepted, answered_form, asks_forms, form, never_approved, permission
from .sessions import NOT_ASKED_AGAIN, leave

_REMOVED = ("authenticate", "logout", "session/load", "session/set_mode")


@check("editor.v2.initialize")
async def initialize_has_info_and_objects_for_markers(driver: Driver) -> None:
    try:
        client = await driver.v2()
    except NotApplicable:
        expect(driver.misspoken is None, f"initialize is answered with version 2, and has no info: {driver.misspoken}")
        raise
    for name in ("name", "version"):
        member(client.told, f"info.{name}", str, "the answer to initialize")
    for old in ("agentInfo", "agentCapabilities"):
        expect(old not in client.told, f"the answer to initialize has {old}, which is of version 1")
    if client.told.get("capabilities") is not None:
        _markers(member(client.told, "capabilities", dict, "the answer to initialize"), "capabilities")


def _markers(value: Message, where: str) -> None:
    for name, inner in value.items():
        if name != "_meta" and inner is not None:
            expect(isinstance(inner, dict), f"{where}.{name} is {shown(inner)}, and should be an object")
            _markers(inner, f"{where}.{name}")


@check("editor.v2.one-version")
async def one_version_holds_for_a_connection(driver: Driver) -> None:
    client = await driver.v2()
    params = {"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": INFO}
    answer = await client.answer("initialize", params)
    told = answer.get("result")
    version = told.get("protocolVersion") if isinstance(told, dict) else None
    expect("error" in answer or version == 2, f"a second initialize changes the version to {shown(version)}")


@check("editor.v2.methods")
async def methods_that_were_removed_are_gone(driver: Driver) -> None:
    client = await driver.v2()
    for method in _REMOVED:
        error = await client.refused(method, {}, "which version 2 has removed")
        expect(error["code"] == -32601, f"{method}, which version 2 has removed, was answered with {shown(error)}")


@check("editor.v2.login")
async def logging_in_has_its_own_names(driver: Driver) -> None:
    client = await driver.v2()
    methods = objects(client.told.get("authMethods"))
    applies(methods, "the server has no logins")
    for method in methods:
        for name in ("methodId", "type", "name"):
            member(method, name, str, "an entry of authMethods")
    error = await client.refused("auth/login", {"methodId": "no such way"}, "in a way that was not told")
    expect(error["code"] != -32601, "the server has logins, and does not know auth/login")


# -- prompts ---------------------------------------------------------------------------------------------------


@once
async def _turn(driver: Driver) -> tuple[Session, Ended]:
    session = await (await driver.v2()).plain()
    return session, await session.turn()


@check("editor.v2.prompt-accepted")
async def a_prompt_is_answered_when_it_is_accepted(driver: Driver) -> None:
    session, ended = await _turn(driver)
    result = member(ended.answer, "result", dict, "the answer to session/prompt")
    users = session.updates("user_message", "user_message_chunk", start=ended.first, end=ended.last)
    expect(users, "the message of the user did not come as an update")
    for update in users:
        shapes.update(update, 2)
    if result.get("messageId") is not None:
        told = member(result, "messageId", str, "the answer to session/prompt")
        expect(
            users[0].get("messageId") == told,
            f"the prompt was accepted as message {shown(told)}, and is told as {shown(users[0])}",
        )
    slow = await _slow(driver)
    if slow is None:
        return
    turn = await slow.begin()
    await turn.begun()
    accepted = turn.over()
    await slow.cancel()
    await turn.end()
    expect(accepted, "a prompt is answered when its turn is over, and not when it is accepted")


async def _slow(driver: Driver) -> Session | None:
    try:
        return await (await driver.v2()).slow()
    except NotApplicable:
        return None


@check("editor.v2.states")
async def a_turn_is_running_and_then_idle(driver: Driver) -> None:
    session, ended = await _turn(driver)
    states = _told(session, ended)
    expect(states[:1] == ["running"], f"the states of a turn are {shown(states)}, and should begin with running")
    expect(ended.stop in shapes.STOPS, f"a turn is idle with the stopReason {shown(ended.stop)}")
    client = await driver.v2()
    try:
        asking = await client.asking()
    except NotApplicable:
        return
    with client.by_hand():
        turn = await asking.begin()
        request = await turn.question()
        await client.ping()
        waiting = _told(asking)
        await client.respond(request, picked(request, "reject") or {"action": "decline"})
        await turn.end()
    expect(
        "requires_action" in waiting,
        f"the states of a turn that waits for an answer are {shown(waiting)}, without requires_action",
    )


def _told(session: Session, ended: Ended | None = None) -> list[object]:
    start, end = (ended.first, ended.last + 1) if ended is not None else (0, None)
    return [update.get("state") for update in session.updates("state_update", start=start, end=end)]


@check("editor.v2.cancelled")
async def a_cancelled_turn_is_idle_with_cancelled(driver: Driver) -> None:
    session = await (await driver.v2()).slow()
    turn = await session.begin()
    await turn.begun()
    await session.cancel()
    ended = await turn.end()
    expect(ended.stop == "cancelled", f"a turn that was cancelled is idle with the stopReason {shown(ended.stop)}")


@check("editor.v2.failed")
async def a_failed_turn_tells_its_error(driver: Driver) -> None:
    session = await (await driver.v2()).failing()
    ended = await session.turn()
    expect(ended.error or ended.stop not in ("end_turn", "cancelled"), f"a turn that failed is idle with {ended.stop}")
    applies(
        ended.error, f"a turn that failed is idle with {shown(ended.stop)}: older drafts have no place for its error"
    )
    member(ended.error, "message", str, "the error of a turn that failed")


@check("editor.v2.updates", "editor.v2.message-ids")
async def updates_name_what_they_change(driver: Driver) -> None:
    client = await driver.v2()
    await _turn(driver)
    seen = 0
    for message in client.link.messages:
        if message.get("method") != "session/update":
            continue
        update = member(message, "params.update", dict, "session/update")
        seen += 1
        kind = update.get("sessionUpdate")
        expect(kind not in ("tool_call", "plan", "current_mode_update"), f"an update is {kind}, which is of version 1")
        shapes.update(update, 2)
    expect(seen, "no update came in a whole turn")


@check("editor.v2.open-types")
async def content_of_types_to_come_is_taken(driver: Driver) -> None:
    client = await driver.v2()
    session = await client.plain()
    bad = await client.answer("session/prompt", session.prompt(text("fine"), {"type": "text"}))
    expect("error" in bad, f"a text block without a text is taken: {shown(bad)}")
    expect(bad["error"]["code"] == -32602, f"a text block without a text is refused with {shown(bad['error'])}")
    ended = await session.turn(text(session.words), {"type": "_hologram", "depth": 3})
    refused = (ended.error or {}).get("code") == -32602
    applies(
        not refused, f"content of a type that it has not offered is refused, and rightly named: {shown(ended.error)}"
    )
    expect(ended.error is None, f"content of a type that nobody knows is answered with {shown(ended.error)}")


@check("editor.v2.options")
async def options_have_their_new_names(driver: Driver) -> None:
    client = await driver.v2()
    session = await client.session()
    expect(not session.told.get("modes"), f"a session has modes, which are of version 1: {shown(session.told)}")
    for update in session.updates("available_commands_update"):
        for command in objects(update.get("availableCommands")):
            if isinstance(command.get("input"), dict):
                member(command, "input.type", str, "a command")
    options = session.told.get("configOptions")
    applies(options, "a session has no options")
    for option in member(session.told, "configOptions", list, "the answer to session/new"):
        shapes.option(option, 2)
    first = objects(options)[0]
    told = await session.set_option(first, first.get("currentValue"))
    for option in member(told, "configOptions", list, "the answer to session/set_config_option"):
        shapes.option(option, 2)


# -- questions -------------------------------------------------------------------------------------------------


@check("editor.v2.permission")
async def a_permission_request_has_a_title(driver: Driver) -> None:
    client = await driver.v2()
    _, request, _ = await permission(client, lambda r: picked(r, "reject") or picked(r, ""))
    shapes.permission(request, 2)
    subject = request["params"].get("subject")
    applies(subject is not None, "a permission request has no subject, which it may leave out")
    if subject.get("type") == "tool_call":
        member(subject, "toolCall.toolCallId", str, "the subject of session/request_permission")


@check("editor.v2.unknown-outcome")
async def an_unknown_outcome_is_no_approval(driver: Driver) -> None:
    client = await driver.v2()
    outcomes = []
    for name in ("_later", "approved"):

        def unknown(request: Message, name: str = name) -> Message:
            chosen = picked(request, "allow") or {"outcome": {}}
            return {"outcome": {**chosen["outcome"], "outcome": name}}

        outcomes.append((f"the outcome {name}", unknown, False))
    await never_approved(driver, client, outcomes)


@check("editor.v2.questions")
async def forms_work_as_in_version_1(driver: Driver) -> None:
    client = await asks_forms(driver, 2)
    ended, request = await answered_form(client, accepted)
    form(request)
    expect(ended.error is None, f"a turn whose form was filled in failed: {shown(ended.error)}")


# -- opening again ---------------------------------------------------------------------------------------------


@check("editor.v2.resume")
async def resume_replays_only_where_it_is_asked_for(driver: Driver) -> None:
    client = await driver.v2()
    session, _ = await _turn(driver)
    said = ("user_message", "user_message_chunk", "agent_message", "agent_message_chunk")
    before = client.now
    await client.ask("session/resume", {"sessionId": session.id, "cwd": client.folder})
    await client.link.silent(lambda m: update_of(m, session.id).get("sessionUpdate") in said, before)
    replayed = session.updates(*said, start=before)
    expect(not replayed, f"session/resume replays although nobody asked for it: {shown(replayed)}")
    before = client.now
    answer = await client.answer(
        "session/resume", {"sessionId": session.id, "cwd": client.folder, "replayFrom": {"type": "start"}}
    )
    applies("result" in answer, f"the server does not replay: {shown(answer)}")
    await client.ping()
    expect(session.updates(*said, start=before), "session/resume with replayFrom start replays nothing")


@check("editor.v2.resume-running")
async def a_turn_that_runs_on_is_running_when_resumed(driver: Driver) -> None:
    await driver.v2()
    driver.needs(NOT_ASKED_AGAIN)
    gone = await driver.client(2)
    session = await gone.asking()
    with gone.by_hand():
        turn = await session.begin()
        await turn.question()
    await leave(gone)
    other = await driver.v2()
    with other.by_hand():
        before = other.now
        answer = await other.answer("session/resume", {"sessionId": session.id, "cwd": other.folder})
        applies("result" in answer, f"another client cannot resume the session: {shown(answer)}")
        both = Session(other, session.id, session.told)
        await _resumed(other, both, before)


async def _resumed(other: Client, session: Session, before: int) -> None:
    again = await session.asked(before)
    applies(again, NOT_ASKED_AGAIN)
    states = [update.get("state") for update in session.updates("state_update", start=before)]
    expect("running" in states, f"a session with a turn that runs was resumed, and its states are {shown(states)}")
    answered = other.now
    await other.respond(again or {}, picked(again or {}, "allow") or {"action": "decline"})
    try:
        await session.update("state_update", "the update that the turn is idle", answered, state="idle")
    except Gone as error:
        raise Gone(f"a question was asked again and answered, and the turn did not go on: {error}") from error

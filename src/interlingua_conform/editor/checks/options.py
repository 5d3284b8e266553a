"""Checks of what can be chosen in a session of version 1: options, modes, and what a session is called."""

from __future__ import annotations

from typing import Any

from ...base import applies, expect, member, shown
from .. import shapes
from ..driver import Driver, check
from ..links import Message
from ..reading import choices, objects
from ..session import Session


async def _options(driver: Driver) -> tuple[Session, list[Message]]:
    client = await driver.v1()
    session = await client.plain()
    told = session.told.get("configOptions")
    applies(told, "a session has no options")
    found = member(session.told, "configOptions", list, "the answer to session/new")
    for option in found:
        shapes.option(option, 1)
    return session, objects(found)


def _selects(options: list[Message]) -> list[Message]:
    return [option for option in options if option.get("type") == "select" and len(choices(option)) > 1]


def _other(option: Message) -> Any:
    """A value that is not the one of now."""
    return next(c.get("value") for c in choices(option) if c.get("value") != option.get("currentValue"))


@check("editor.v1.agents-are-options")
async def modes_and_options_can_be_chosen(driver: Driver) -> None:
    client = await driver.v1()
    session = await client.session()
    modes = session.told.get("modes")
    applies(modes, "a session has no modes")
    known = member(session.told, "modes.availableModes", list, "the answer to session/new")
    ids = [member(mode, "id", str, "a mode") for mode in known]
    for mode in known:
        member(mode, "name", str, "a mode")
    current = member(session.told, "modes.currentModeId", str, "the answer to session/new")
    expect(current in ids, f"the currentModeId is {shown(current)}, which is none of {shown(ids)}")
    for id_ in ids[:2]:
        await client.ask("session/set_mode", {"sessionId": session.id, "modeId": id_})
    await client.refused(
        "session/set_mode", {"sessionId": session.id, "modeId": "no such mode"}, "with a mode that there is not"
    )


@check("editor.v1.config-options")
async def an_option_is_set_and_flags_are_for_who_knows_them(driver: Driver) -> None:
    session, options = await _options(driver)
    flags = [option for option in options if option.get("type") == "boolean"]
    expect(not flags, f"a client that has not said that it knows flags is offered one: {shown(flags[:1])}")
    applies(_selects(options), "no option has more than one choice")
    option = _selects(options)[0]
    wanted = _other(option)
    told = await session.set_option(option, wanted)
    found = [o for o in objects(told.get("configOptions")) if o.get("id") == option["id"]]
    expect(
        found and found[0].get("currentValue") == wanted,
        f"the option {option['id']} was set to {shown(wanted)}, and is told as {shown(found)}",
    )
    params = {"sessionId": session.id, "configId": option["id"], "value": "no such value"}
    await session.client.refused("session/set_config_option", params, "with a value that there is not")


@check("editor.v1.options-whole")
async def all_options_are_told_when_one_changes(driver: Driver) -> None:
    session, options = await _options(driver)
    applies(_selects(options), "no option has more than one choice")
    before = session.client.now
    option = _selects(options)[-1]
    told = await session.set_option(option, option.get("currentValue"))
    wanted = {o["id"] for o in options}
    lists: list[Any] = [member(told, "configOptions", list, "the answer to session/set_config_option")]
    lists += [update.get("configOptions") for update in session.updates("config_option_update", start=before)]
    for found in lists:
        for one in found if isinstance(found, list) else [None]:
            shapes.option(one, 1)
        missing = wanted - {o["id"] for o in objects(found)}
        expect(not missing, f"when an option is set, not all are told: {', '.join(sorted(missing))} are missing")


@check("editor.v1.title-and-values")
async def the_first_prompt_names_the_session(driver: Driver) -> None:
    client = await driver.v1()
    session = await client.plain()
    await session.turn()
    await client.ping()
    named = [update for update in session.updates("session_info_update") if "title" in update]
    applies(named, "the server does not name its sessions")
    for update in named:
        shapes.update(update, 1)
    if client.able("sessionCapabilities.list"):
        listed = next((entry for entry in await client.listed() if entry["sessionId"] == session.id), {})
        applies(listed.get("title") is not None, "session/list tells no titles")
        expect(
            listed.get("title") == named[-1]["title"],
            f"the session is called {shown(named[-1]['title'])}, and listed as {shown(listed.get('title'))}",
        )

"""A question that shows in two places: whoever answers in one of them, the other is told by the means of its wire."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.question_forms import format_time
from interlingua.security.keys import make_key
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.server.auth.stored_keys import StoredKeys
from interlingua.store.open import open_store
from tests.kit.agents import asker
from tests.kit.engines import PATIENT, QUICK

from .places import PLACES, CommandLine, Place, both

PAIRS = [
    pytest.param(x, y, id=f"{x.name} told by {y.name}") for x in PLACES for y in PLACES if x is not y
]  # fmt: skip


@contextlib.asynccontextmanager
async def up(
    store: Path, *names: str, agent: Any = asker, settings: il.Settings = QUICK
) -> AsyncIterator[tuple[Server, dict[str, tuple[str, str]]]]:
    """A server with all doors, and a key for each name: what to send, and who that is."""
    kept = open_store(store)
    await kept.open()
    keys: dict[str, tuple[str, str]] = {}
    for name in names:
        secret, record = make_key(name, ["*"], time.time_ns() // 1000)
        await StoredKeys(kept.keys).put(record)
        keys[name] = (secret, f"key:{record.id}")
    await kept.close()
    async with asyncio.timeout(90), serving(store, [agent], ServeSettings(port=0, engine=settings)) as server:
        yield server, keys


def who(place: Place, keys: dict[str, tuple[str, str]]) -> str:
    return "owner" if isinstance(place, CommandLine) else keys[place.name][1]


@pytest.mark.parametrize(("shows", "answers"), PAIRS)
async def test_what_is_answered_in_one_place_is_taken_back_in_the_other(
    store: Path, shows: type[Place], answers: type[Place]
) -> None:
    async with up(store, shows.name, answers.name) as (server, keys):
        x, y = (kind(server, keys[kind.name][0], store) for kind in (shows, answers))
        async with both(x, y):
            (asked,) = await server.engine.questions.open()
            await y.answer()
            await x.told()
            record = await server.engine.questions.get(asked.id)
            assert record.answer is not None
            assert (record.state, record.answer.by, record.answer.door) == ("answered", who(y, keys), answers.door)
            done = await server.engine.runs.wait(x.begun.run, timeout=20)
            assert done.output == {"text": "True None"}
            if shows.refuses:
                assert f"by {who(y, keys)} through {answers.door}" in await x.attempt()


REFUSING = [one for one in PLACES if one.refuses]


@pytest.mark.parametrize(
    ("one", "other"),
    [pytest.param(x, y, id=f"{x.name} and {y.name}") for x in REFUSING for y in REFUSING if x is not y],
)
async def test_of_two_answers_at_once_one_wins_and_the_other_is_refused_with_who_was_first(
    store: Path, one: type[Place], other: type[Place]
) -> None:
    async with up(store, one.name, other.name) as (server, keys):
        x, y = (kind(server, keys[kind.name][0], store) for kind in (one, other))
        async with both(x, y):
            said = await asyncio.gather(x.attempt(), y.attempt())
            assert sorted(map(bool, said)) == [False, True], said
            winner = x if said[0] == "" else y
            assert f"by {who(winner, keys)} through {winner.door}" in "".join(said)


@pytest.mark.parametrize("kind", [one for one in PLACES if one.door != "editor"], ids=lambda one: one.name)
async def test_an_answer_that_does_not_fit_is_refused_with_what_is_wrong_and_the_question_stays(
    store: Path, kind: type[Place]
) -> None:
    async with up(store, kind.name, "other") as (server, keys):
        x: Place = kind(server, keys[kind.name][0], store)
        y: Place = PLACES[kind is PLACES[0]](server, keys["other"][0], store)
        async with both(x, y):
            (asked,) = await server.engine.questions.open()
            said = await x.wrong()
            assert "perhaps" in said or "/approved" in said, said
            assert (await server.engine.questions.get(asked.id)).state == "open"
            await x.answer()
            await y.told()
            assert (await server.engine.questions.get(asked.id)).state == "answered"


@pytest.mark.parametrize("kind", PLACES, ids=lambda one: one.name)
async def test_a_question_that_nobody_need_answer_any_more_is_taken_back_with_its_deadline_where_it_shows(
    store: Path, kind: type[Place]
) -> None:
    enough = asyncio.Event()

    @il.agent(name="asker", asks=[il.Confirm])
    async def impatient(ctx: il.Context[None, None], text: str) -> str:
        asking = asyncio.ensure_future(ctx.ask(il.Confirm(f"Do {text}?"), deadline=3600))
        await enough.wait()
        asking.cancel()
        return "did it"

    async with up(store, kind.name, "other", agent=impatient, settings=PATIENT) as (server, keys):
        x: Place = kind(server, keys[kind.name][0], store)
        y: Place = PLACES[kind is PLACES[0]](server, keys["other"][0], store)
        async with both(x, y):
            (asked,) = await server.engine.questions.open()
            assert asked.deadline is not None
            until = x.deadline()
            assert until == (asked.deadline if kind.name == "peer" else format_time(asked.deadline))
            enough.set()
            await x.gone()
            assert (await server.engine.questions.get(asked.id)).state == "withdrawn"
            assert (await server.engine.runs.wait(x.begun.run, timeout=20)).output == {"text": "did it"}

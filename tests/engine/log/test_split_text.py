"""Handlers that yield halves of characters: what is written and sent holds whole ones."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import interlingua as il
from interlingua.model.delta import ABSENT, Joiner
from interlingua.model.events import MessageSent, OutputDelta, Thought
from interlingua.model.whole_text import PairJoiner, has_halves, whole, whole_value
from tests.kit.engines import engine, finish, log

HIGH, LOW, LOST = "\ud83d", "\ude00", "\ufffd"
CASES = {
    "a pair in two pieces": ([f"a{HIGH}", f"{LOW}b"], "a\U0001f600b"),
    "a pair in pieces of its own": (["a", HIGH, LOW, "b"], "a\U0001f600b"),
    "a first half alone": ([f"a{HIGH}", "b"], f"a{LOST}b"),
    "a first half at the end": (["a", f"b{HIGH}"], f"ab{LOST}"),
    "a second half alone": (["a", f"{LOW}b"], f"a{LOST}b"),
    "halves in the wrong order": ([LOW, HIGH], LOST * 2),
    "a half in the middle": ([f"a{HIGH}b"], f"a{LOST}b"),
    "two first halves": ([HIGH, HIGH, LOW], f"{LOST}\U0001f600"),
}


def _agents(pieces: list[str], shape: str) -> Any:
    async def async_generator() -> AsyncIterator[str]:
        for piece in pieces:
            yield piece

    def generator() -> Iterator[str]:
        yield from pieces

    async def emitting(ctx: il.Context[None, None]) -> None:
        for piece in pieces:
            await ctx.emit(piece)

    async def step(ctx: il.Context[None, None]) -> None:
        async def inner() -> AsyncIterator[str]:
            for piece in pieces:
                yield piece

        kept = await ctx.step("inner", inner)
        assert not has_halves(kept)

    async def result() -> str:
        return "".join(pieces)

    made = {
        "async generator": async_generator,
        "generator": generator,
        "emit": emitting,
        "step": step,
        "result": result,
    }
    return il.agent(name="odd")(made[shape])  # type: ignore[call-overload]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("shape", ["async generator", "generator", "emit", "step", "result"])
async def test_what_a_handler_says_in_halves_is_written_in_whole_characters(store: Path, shape: str, case: str) -> None:
    pieces, said = CASES[case]
    async with engine(store, _agents(pieces, shape)) as eng:
        run = await finish(eng, "odd")
        assert (run.status, run.error, run.output) == (il.Status.SUCCEEDED, None, {"text": said})
        joined = Joiner()
        for event in await log(eng, run.id):
            if isinstance(event.body, OutputDelta):
                assert not has_halves(event.body.delta)
                joined.add(event.body.delta)
        assert joined.value in (ABSENT, {"text": said})
        assert await eng.runs.verify(run.id) is None


async def test_a_half_waits_while_other_things_are_shown(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    @il.agent
    async def odd(ctx: il.Context[None, None]) -> AsyncIterator[str]:
        yield f"a{HIGH}"
        await ctx.thought(f"one {HIGH}")
        await ctx.message(f"half {HIGH}")
        await ctx.thought(f"{LOW} two {HIGH}")
        yield f"{LOW}b"

    async with engine(store, odd) as eng:
        run = await finish(eng, "odd")
        assert run.output == {"text": "a\U0001f600b"}
        bodies = [event.body for event in await log(eng, run.id)]
        thoughts = "".join(body.text for body in bodies if isinstance(body, Thought))
        assert thoughts == f"one \U0001f600 two {LOST}"
        (said,) = [body for body in bodies if isinstance(body, MessageSent)]
        assert said.message.parts == [il.TextPart(f"half {LOST}")]
        assert "became U+FFFD" in caplog.text


async def test_a_run_that_fails_after_half_a_character_shows_what_it_said(store: Path) -> None:
    @il.agent
    async def odd() -> AsyncIterator[str]:
        yield f"a{HIGH}"
        raise il.AgentError(f"no {HIGH}")

    async with engine(store, odd) as eng:
        run = await finish(eng, "odd")
        assert run.error is not None
        assert (run.error.code, run.error.message) == ("agent_error", f"no {LOST}")
        joined = Joiner()
        for event in await log(eng, run.id):
            if isinstance(event.body, OutputDelta):
                joined.add(event.body.delta)
        assert joined.value == {"text": f"a{LOST}"}


async def test_a_child_hears_whole_characters(store: Path) -> None:
    @il.agent
    async def child(text: str) -> str:
        return text

    @il.agent
    async def parent(ctx: il.Context[None, None]) -> str:
        return str(await ctx.call("child", {"text": f"a{HIGH}"}))

    async with engine(store, child, parent) as eng:
        assert (await finish(eng, "parent")).output == {"text": str({"text": f"a{LOST}"})}


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**300])
async def test_a_whole_number_beyond_64_bits_is_kept_exactly(store: Path, number: int) -> None:
    @il.agent
    async def big(n: int) -> dict[str, Any]:
        return {"n": n, "next": n + 1}

    async with engine(store, big) as eng:
        run = await finish(eng, "big", {"n": number})
        assert (run.error, run.output) == (None, {"n": number, "next": number + 1})
        assert await eng.runs.verify(run.id) is None


_TEXT = st.text(st.sampled_from(f"ab{HIGH}{LOW}\U0001f600\u00e9"), max_size=12)
_VALUE = st.recursive(
    _TEXT | st.none() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(_TEXT, max_size=8))
def test_however_a_text_is_cut_the_same_whole_text_comes_out(pieces: list[str]) -> None:
    joiner, out = PairJoiner(), []
    for piece in pieces:
        out.append(joiner.add({"text": piece})["text"])
    rest = joiner.end()
    if rest is not ABSENT:
        out.append(rest["text"])
    assert not any(map(has_halves, out))
    assert "".join(out) == whole("".join(pieces))


@example([{HIGH: {"": HIGH}}, {HIGH: {"": "a"}}])
@given(st.lists(_VALUE.filter(lambda value: value is not None), max_size=4))
def test_deltas_of_any_shape_join_to_the_same_as_their_whole_text(deltas: list[Any]) -> None:
    plain, clean, joiner = Joiner(), Joiner(), PairJoiner()
    try:
        for delta in deltas:
            plain.add(delta)
    except ValueError:
        return  # they do not join at all
    if len(set(_keys(plain.value))) != len({whole(key) for key in _keys(plain.value)}):
        return  # two keys became one
    for delta in deltas:
        clean.add(joiner.add(delta))
    clean.add(joiner.end())
    assert not has_halves(clean.value)
    assert clean.value == whole_value(plain.value)


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        yield from itertools.chain.from_iterable(map(_keys, value.values()))
    elif isinstance(value, list):
        yield from itertools.chain.from_iterable(map(_keys, value))

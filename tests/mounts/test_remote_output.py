"""What is shown of a remote run over any number of connections, crashes and repetitions: all of it, nothing twice."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from interlingua.engine.handler.mounted_run import step_place
from interlingua.model.delta import ABSENT, Joiner
from interlingua.model.events import Emission, OutputDelta, Thought, Warned
from interlingua.mounts.remote_output import RemoteOutput


class Log:
    """Stands in for a run: keeps what is shown, and gives it back to one that is resumed."""

    def __init__(self, before: list[Emission] | None = None) -> None:
        self.bodies: list[Emission] = list(before or [])
        self._expected = list(self.bodies)

    def shown(self, step: str) -> list[Emission]:
        return [body for body in self.bodies if body.step == step_place(step)]

    async def show(self, body: Emission) -> None:
        if self._expected:
            assert self._expected.pop(0) == body  # what stands in the log is shown again as it is
        else:
            self.bodies.append(body)

    @property
    def text(self) -> str:
        joined = Joiner()
        for body in self.bodies:
            if isinstance(body, OutputDelta):
                joined.add(body.delta)
        return str(joined.value["text"]) if isinstance(joined.value, dict) else ""

    @property
    def thoughts(self) -> list[str]:
        return [body.text for body in self.bodies if isinstance(body, Thought)]


async def output_of(log: Log, step: str = "run") -> RemoteOutput:
    output = RemoteOutput(log)  # type: ignore[arg-type]
    await output.begin(step)
    return output


def text(words: str) -> dict[str, Any]:
    return {"text": words}


async def test_deltas_are_shown_as_they_come() -> None:
    log = Log()
    output = await output_of(log)
    for words in ("a", "b"):
        assert await output.delta(text(words)) is None
    assert [body.delta for body in log.bodies if isinstance(body, OutputDelta)] == [text("a"), text("b")]
    assert output.joined == text("ab")
    assert output.shown == text("ab")


async def test_a_delta_that_does_not_join_is_told_and_the_result_counts() -> None:
    log = Log()
    output = await output_of(log)
    await output.delta(text("a"))
    assert await output.delta({"text": 7}) is not None
    assert await output.delta(text("c")) is None
    assert output.joined is ABSENT
    assert log.text == "a"
    await output.finish(text("abc"))
    assert log.text == "abc"


async def test_after_a_gap_nothing_is_shown_until_the_whole_is_known() -> None:
    log = Log()
    output = await output_of(log)
    await output.delta(text("a"))
    output.gap()
    await output.delta(text("c"))
    assert log.text == "a"
    await output.value(text("abc"))
    await output.delta(text("d"))
    assert log.text == "abcd"


async def test_a_reader_that_has_seen_nothing_gets_the_result_alone() -> None:
    log = Log()
    output = await output_of(log)
    await output.finish(text("abc"))
    assert log.bodies == []


async def test_a_result_that_says_something_else_is_not_shown_as_deltas() -> None:
    log = Log()
    output = await output_of(log)
    await output.delta(text("ab"))
    await output.finish(text("xy"))
    assert log.text == "ab"


async def test_what_is_repeated_from_the_beginning_is_shown_once() -> None:
    log = Log()
    output = await output_of(log)
    for connection in range(3):
        if connection:
            output.reconnected(repeats=True)
        for words in ("hm", "hm"):
            await output.emit(Thought(words, "t"))
        for words in ("a", "b"):
            await output.delta(text(words))
    await output.emit(Thought("hm", "t"))
    assert log.thoughts == ["hm", "hm", "hm"]
    assert log.text == "ab"


async def test_a_repeated_thought_is_known_although_the_log_joined_its_halves() -> None:
    log = Log()
    output = await output_of(log)
    await output.emit(Thought("hm", "t"))
    log.bodies.append(Thought("a", "t", step_place("run")))  # of "a\ud83d" and "\ude00b": the log joins them
    log.bodies.append(Thought("\U0001f600b", "t", step_place("run")))
    output = await output_of(Log(log.bodies))
    assert [await output.emit(Thought(words, "t")) for words in ("hm", "a\ud83d", "\ude00b", "c")] == [
        False, False, False, True,
    ]  # fmt: skip


async def test_a_warning_of_every_connection_is_shown_once_and_of_every_refusal_each_time() -> None:
    log = Log()
    output = await output_of(log)
    for _ in range(2):
        await output.warn_once("the server is odd")
        await output.warn("refused")
    warnings = [body.message for body in log.bodies if isinstance(body, Warned)]
    assert warnings == ["the server is odd", "refused", "refused"]


async def test_a_stretch_goes_on_from_the_one_before_whether_that_was_read_now_or_comes_from_the_log() -> None:
    for from_log in (False, True):
        log = Log()
        output = await output_of(log, "follow-1")
        if not from_log:
            await output.delta(text("a"))
        output.step_recorded(text("a"), from_log=from_log)
        await output.begin("follow-2")
        await output.delta(text("b"))
        assert output.shown == text("ab")
        assert [body.delta for body in log.bodies if isinstance(body, OutputDelta)][-1] == text("b")


@given(
    st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=8),
    st.lists(st.sampled_from(["tell", "lose", "cut", "crash", "again"]), max_size=24),
)
def test_whatever_happens_the_whole_is_shown_once(words: list[str], fate: list[str]) -> None:
    """Deltas and thoughts pass by; some are lost, connections break, processes die, and some wires repeat all."""
    log = asyncio.run(lived_through(words, fate))
    whole = "".join(words)
    assert log.text in (whole, "")
    if fate[:1] == ["tell"]:
        assert log.text == whole
    if "lose" not in fate and "cut" not in fate and "crash" not in fate:
        assert log.thoughts == words[: len(log.thoughts)]
        assert log.text == (whole if log.thoughts else "")


async def lived_through(words: list[str], fate: list[str]) -> Log:
    log, place = Log(), 0
    output = await output_of(log)
    for what in fate:
        if what == "cut":
            output.reconnected(repeats=False)
        elif what == "again":
            place = 0
            output.reconnected(repeats=True)
        elif what == "crash":
            log = Log(log.bodies)
            output = await output_of(log)
            output.reconnected(repeats=False)
            output.gap()
        elif place < len(words):
            if what == "tell":
                await output.emit(Thought(words[place], "t"))
                await output.delta(text(words[place]))
            else:
                output.gap()
            place += 1
    await output.finish(text("".join(words)))
    return log

"""What is shown of a remote task, whatever gets lost on the way: in the end, all of it and nothing twice."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from interlingua.model.card import AgentCard
from interlingua.model.delta import Joiner
from interlingua.model.events import ArtifactAdded, Emission, OutputDelta, Thought
from interlingua.mounts.remote_output import RemoteOutput
from interlingua.protocols.peer.mount.agent_card import Described
from interlingua.protocols.peer.mount.updates_in import UpdatesIn

AGENT = Described(AgentCard("a", output_text="text"), structured=True)


class Log:
    """Stands in for a run: keeps what is shown, and gives it back to one that is entered again."""

    def __init__(self) -> None:
        self.bodies: list[Emission] = []
        self._told: list[Emission] = []

    def shown(self, step: str) -> list[Emission]:
        return list(self.bodies)

    def again(self) -> Log:
        after = Log()
        after.bodies = list(self.bodies)
        after._told = list(self.bodies)
        return after

    async def show(self, body: Emission) -> None:
        if self._told:
            assert self._told.pop(0) == body  # what stands in the log is said again as it is
        else:
            self.bodies.append(body)

    @property
    def text(self) -> str:
        joined = Joiner()
        for body in self.bodies:
            if isinstance(body, OutputDelta):
                joined.add(body.delta)
        return str(joined.value["text"]) if isinstance(joined.value, dict) else ""


async def updates_in(log: Log) -> UpdatesIn:
    output = RemoteOutput(log)  # type: ignore[arg-type]
    made = UpdatesIn(output, AGENT)
    shown = await output.begin("task")
    if shown:
        made.resumed(shown)
    return made


def chunk(text: str, *, append: bool = True, **more: Any) -> dict[str, Any]:
    told = {"artifact_id": "output", "parts": [{"type": "text", "content": text}], "append": append}
    return {**told, "last_chunk": False, "delta": {"text": text}, **more}


async def test_chunks_in_a_row_are_shown_as_they_come() -> None:
    log = Log()
    made = await updates_in(log)
    await made.chunk(chunk("a", append=False), 1)
    await made.chunk(chunk("b"), 2)
    assert [body.delta for body in log.bodies if isinstance(body, OutputDelta)] == [{"text": "a"}, {"text": "b"}]


async def test_after_one_is_missing_the_rest_is_shown_at_the_end() -> None:
    log = Log()
    made = await updates_in(log)
    await made.chunk(chunk("a", append=False), 1)
    await made.chunk(chunk("c"), 3)
    await made.chunk(chunk("d"), 4)
    assert log.text == "a"
    await made.finish({"text": "abcd"}, None)
    assert log.text == "abcd"


async def test_a_new_beginning_goes_on_from_what_was_shown() -> None:
    log = Log()
    made = await updates_in(log)
    await made.chunk(chunk("ab", append=False), 1)
    await made.chunk(chunk("a", append=False), 1)  # the remote began anew, and has not come as far
    assert log.text == "ab"
    await made.chunk(chunk("bc"), 2)
    assert log.text == "abc"


async def test_a_new_beginning_that_says_something_else_is_left_to_the_result() -> None:
    log = Log()
    made = await updates_in(log)
    await made.chunk(chunk("ab", append=False), 1)
    await made.chunk(chunk("x", append=False), 1)
    await made.finish({"text": "xyz"}, None)
    assert log.text == "ab"


async def test_chunks_of_others_than_ours_are_joined_by_their_text() -> None:
    log = Log()
    made = await updates_in(log)
    for text, append in (("a", False), ("b", True)):
        told = chunk(text, append=append)
        del told["delta"]
        await made.chunk(told, None)
    assert log.text == "ab"


async def test_an_artifact_that_was_not_shown_whole_is_shown_at_the_end() -> None:
    log = Log()
    made = await updates_in(log)
    part = [{"type": "text", "content": "x"}]
    whole = {"artifact_id": "list", "parts": part}
    await made.chunk({**whole, "append": False, "last_chunk": True}, 1)
    await made.finish({}, [whole, {"artifact_id": "other", "parts": part}, {"artifact_id": "output", "parts": part}])
    assert [body.artifact.id for body in log.bodies if isinstance(body, ArtifactAdded)] == ["list", "other"]


async def test_what_is_told_from_the_beginning_again_is_shown_once() -> None:
    log = Log()
    made = await updates_in(log)
    activity = [{"type": "data", "content": {"activity": {"kind": "thought", "text": "hm"}}}]
    for replays in (False, True, True):
        if replays:
            made.reconnected(repeats=True)
        await made.activity(activity)
        await made.activity(activity)
        await made.chunk(chunk("a", append=False), 1)
        await made.chunk(chunk("b"), 2)
    assert len([body for body in log.bodies if isinstance(body, Thought)]) == 2
    assert log.text == "ab"


@given(
    st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=8),
    st.lists(st.sampled_from(["take", "lose", "cut", "crash", "replay"]), max_size=24),
)
def test_whatever_is_lost_the_whole_is_shown_once(words: list[str], fate: list[str]) -> None:
    """Chunks pass by; some are lost, connections break, processes die, and some wires tell everything again."""
    shown = asyncio.run(lived_through(words, fate))
    whole = "".join(words)
    assert shown in (whole, "")
    if fate[:1] == ["take"]:
        assert shown == whole


async def lived_through(words: list[str], fate: list[str]) -> str:
    log = Log()
    made = await updates_in(log)
    place = 0
    for what in [*fate, "take"]:
        if what == "cut":
            made.reconnected(repeats=False)
        elif what in ("crash", "replay"):
            if what == "crash":
                log = log.again()
                made = await updates_in(log)
            else:
                place = 0
            made.reconnected(repeats=what == "replay")
        elif place < len(words):
            if what == "take":
                await made.chunk(chunk(words[place], append=place > 0), place + 1)
            place += 1
    await made.finish({"text": "".join(words)}, None)
    return log.text

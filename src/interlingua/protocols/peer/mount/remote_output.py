"""The output and activities of a remote task, as the local run shows them: each once, over any number of connections.

A chunk that a slow or broken connection could not carry is not sent again: from then on no more output is shown until
the output begins anew or has ended, and then the missing part is shown at once. A wire that repeats a task from its
beginning (HTTP) is compared with the shown output.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import msgspec

from ....engine.handler.mounted_run import MountedRun, step_place
from ....model.content import Artifact, Message
from ....model.delta import ABSENT, DeltaError, Joiner, diff
from ....model.errors import InvalidRequest
from ....model.events import ArtifactAdded, Emission, MessageSent, OutputDelta, Plan, Thought, ToolCall, Warned
from ..projection import RESULT
from ..translate import parts
from .agent_card import Described, output_of

STEP = "task"
"""The step of all output; it is never recorded, so that it can always be shown again."""

_PLACE = step_place(STEP)
_BESIDE = "beside"
_ACTIVITY = Thought | Plan | ToolCall | Warned


class Mirror:
    def __init__(self, mounted: MountedRun, agent: Described) -> None:
        self._mounted = mounted
        self._agent = agent
        self._there = Joiner()  # the output as the remote task has it
        self._sure = True  # nothing of that is missing
        self._here = Joiner()  # the output as it stands in our log
        self._level = True  # both are the same
        self._chunk: int | None = 0  # the number of the last one
        self._shown: Counter[bytes] = Counter()  # everything but the output
        self._again: Counter[bytes] = Counter()  # the part of it that will be repeated
        self._pieces: dict[str, list[Any]] = {}  # of artifacts: the parts that were shown
        self._messages: set[str] = set()

    async def begin_again(self) -> None:
        """Shows the output from before again, unchanged, when the run is resumed."""
        self._sure, self._chunk = False, None
        for body in self._mounted.shown(STEP):
            if isinstance(body, OutputDelta):
                self._here.add(body.delta)
                self._level = False
            else:
                self._count(body)
            await self._mounted.show(body)

    def met_again(self, *, replays: bool) -> None:
        """Notes a reconnect. `replays` means that the task is shown from its beginning; else it goes on from its
        present state."""
        self._again = Counter(self._shown) if replays else Counter()
        if replays:
            self._there, self._sure, self._chunk = Joiner(), True, 0
            self._level = self._here.value is ABSENT

    @property
    def has_shown(self) -> bool:
        return bool(self._shown) or self._here.value is not ABSENT

    # -- updates ------------------------------------------------------------------------------------------

    async def chunk(self, chunk: dict[str, Any], number: Any) -> None:
        """Takes a piece of the output, or of another artifact."""
        if number is not None and (self._chunk is None or number != self._chunk + 1):
            self._sure = False  # some are missing: the end, or a new beginning, will tell
        self._chunk = number if type(number) is int else self._chunk
        if chunk.get("artifact_id") not in (RESULT, None):
            await self._piece(chunk)
            return
        value = self._value(chunk)
        if value is None:
            return
        if chunk.get("append") is not True:
            self._there, self._sure, self._level = Joiner(value), True, False
            await self._catch_up()
        elif self._sure:
            await self._add(value)

    def _value(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        delta = chunk.get("delta")
        if isinstance(delta, dict):
            return delta
        given = _known(chunk.get("parts"))
        if chunk.get("append") is not True:
            return output_of(self._agent, given) if given else None
        text = parts.text_of(given)
        return {self._agent.card.output_text: text} if text and self._agent.card.output_text else None

    async def _add(self, delta: dict[str, Any]) -> None:
        try:
            self._there.add(delta)
        except DeltaError:
            self._sure = False
            return
        if self._level:
            self._here.add(delta)
            await self._mounted.show(OutputDelta(delta, _PLACE))
        else:
            await self._catch_up()

    async def _catch_up(self) -> None:
        """Shows the difference between the shown output and the remote one; where no delta can, the result will show
        it."""
        try:
            delta: Any = diff(self._here.value, self._there.value)
        except DeltaError:
            return
        self._level = True
        if delta is not ABSENT and delta:
            self._here.add(delta)
            await self._mounted.show(OutputDelta(delta, _PLACE))

    async def _piece(self, chunk: dict[str, Any]) -> None:
        given = [parts.to_model(part) for part in _known(chunk.get("parts"))]
        name, description, metadata = (chunk.get(key) for key in ("name", "description", "metadata"))
        await self._show(
            ArtifactAdded(
                Artifact(
                    str(chunk.get("artifact_id")),
                    given,
                    name if isinstance(name, str) else None,
                    description if isinstance(description, str) else None,
                    chunk.get("append") is True,
                    chunk.get("last_chunk") is not False,
                    metadata if isinstance(metadata, dict) else {},
                ),
                _PLACE,
            )
        )

    async def activity(self, given: Any) -> None:
        for part in given if isinstance(given, list) else []:
            content = part.get("content") if isinstance(part, dict) else None
            told = content.get("activity") if isinstance(content, dict) else None
            if isinstance(told, dict):
                with contextlib.suppress(msgspec.ValidationError):
                    await self._show(msgspec.convert({**told, "step": _PLACE}, _ACTIVITY))

    async def said(self, given: list[dict[str, Any]], id_: str | None) -> None:
        """Shows a message that is no part of the output."""
        if id_ is not None and id_ in self._messages:
            return  # it came twice
        message = Message("agent", [parts.to_model(part) for part in given], id_ or "")
        await self._show(MessageSent(message, _PLACE))

    async def _show(self, body: Emission) -> None:
        mark = msgspec.json.encode(body)
        if self._again[mark] > 0:
            self._again[mark] -= 1
            return
        self._count(body)
        await self._mounted.show(body)

    def _count(self, body: Emission) -> None:
        self._shown[msgspec.json.encode(body)] += 1
        if isinstance(body, ArtifactAdded):
            before = self._pieces.get(body.artifact.id, []) if body.artifact.append else []
            self._pieces[body.artifact.id] = [*before, *body.artifact.parts]
        elif isinstance(body, MessageSent) and body.message.id:
            self._messages.add(body.message.id)

    # -- the end ------------------------------------------------------------------------------------------

    async def finish(self, output: dict[str, Any], artifacts: Any, beside: list[dict[str, Any]] | None = None) -> None:
        """Shows the missing parts of the result. `beside` are files and data beside the output."""
        wholes = [*artifacts] if isinstance(artifacts, list) else []
        if beside:
            wholes.append({"artifact_id": _BESIDE, "parts": beside})
        for whole in wholes:
            if isinstance(whole, dict) and whole.get("artifact_id") not in (RESULT, None):
                given = [parts.to_model(part) for part in _known(whole.get("parts"))]
                if self._pieces.get(str(whole["artifact_id"])) != given:
                    self._again.clear()
                    await self._piece({**whole, "append": False, "last_chunk": True})
        if self._here.value is not ABSENT:  # a reader that has seen a part of the output sees it whole
            self._there = Joiner(output)
            await self._catch_up()

    async def late(self, answers: list[Warned]) -> None:
        for one in answers:
            await self._show(one)

    async def warn(self, message: str, details: Any = None) -> None:
        await self._show(Warned(message, details, _PLACE))


def _known(given: Any) -> list[dict[str, Any]]:
    try:
        return parts.known_parts(given)
    except InvalidRequest:
        return []

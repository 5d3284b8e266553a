"""Shows the updates of a remote task: pieces of its output and of other artifacts, activities and messages.

A chunk that a slow or broken connection could not carry is not sent again: from then on no more output is shown until
the output begins anew or has ended, and then the missing part is shown at once. A wire that repeats a task from its
beginning (HTTP) is compared with what was shown.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from ....model.content import Artifact, Message
from ....model.errors import InvalidRequest
from ....model.events import ArtifactAdded, Emission, MessageSent, Plan, Thought, ToolCall, Warned
from ....mounts.remote_output import RemoteOutput
from ..projection import RESULT
from ..translate import parts
from .agent_card import Described, output_of

_BESIDE = "beside"
_ACTIVITY = Thought | Plan | ToolCall | Warned


class UpdatesIn:
    def __init__(self, output: RemoteOutput, agent: Described) -> None:
        self._output = output
        self._agent = agent
        self._chunk: int | None = 0  # the number of the last one; None: it is not known
        self._pieces: dict[str, list[Any]] = {}  # of artifacts: the parts that were shown
        self._messages: set[str] = set()

    def resumed(self, shown: list[Emission]) -> None:
        """Takes what a run that is resumed has shown before."""
        self._chunk = None
        self._output.gap()
        for body in shown:
            self._note(body)

    def reconnected(self, *, repeats: bool) -> None:
        """Notes another connection. `repeats`: the task is shown from its beginning; else it goes on from its present
        state."""
        self._output.reconnected(repeats=repeats)
        if repeats:
            self._chunk = 0

    async def chunk(self, chunk: dict[str, Any], number: Any) -> None:
        """Takes a piece of the output, or of another artifact."""
        if number is not None and (self._chunk is None or number != self._chunk + 1):
            self._output.gap()
        self._chunk = number if type(number) is int else self._chunk
        if chunk.get("artifact_id") not in (RESULT, None):
            await self._show(_artifact(chunk))
            return
        value = self._value(chunk)
        if value is None:
            return
        if chunk.get("append") is True:
            await self._output.delta(value)
        else:
            await self._output.value(value)

    def _value(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        delta = chunk.get("delta")
        if isinstance(delta, dict):
            return delta
        given = _known(chunk.get("parts"))
        if chunk.get("append") is not True:
            return output_of(self._agent, given) if given else None
        text = parts.text_of(given)
        return {self._agent.card.output_text: text} if text and self._agent.card.output_text else None

    async def activity(self, given: Any) -> None:
        for part in given if isinstance(given, list) else []:
            content = part.get("content") if isinstance(part, dict) else None
            activity = content.get("activity") if isinstance(content, dict) else None
            if isinstance(activity, dict):
                with contextlib.suppress(msgspec.ValidationError):
                    await self._show(msgspec.convert(activity, _ACTIVITY))

    async def message(self, given: list[dict[str, Any]], id_: str | None) -> None:
        """Shows a message that is no part of the output."""
        if id_ is None or id_ not in self._messages:
            await self._show(MessageSent(Message("agent", [parts.to_model(part) for part in given], id_ or "")))

    async def finish(self, output: dict[str, Any], artifacts: Any, beside: list[dict[str, Any]] | None = None) -> None:
        """Shows the missing parts of the result. `beside` are files and data beside the output."""
        wholes = [*artifacts] if isinstance(artifacts, list) else []
        if beside:
            wholes.append({"artifact_id": _BESIDE, "parts": beside})
        for whole in wholes:
            if isinstance(whole, dict) and whole.get("artifact_id") not in (RESULT, None):
                artifact = _artifact({**whole, "append": False, "last_chunk": True})
                if self._pieces.get(artifact.artifact.id) != artifact.artifact.parts:
                    await self._show(artifact, new=True)
        await self._output.finish(output)

    async def _show(self, body: Emission, *, new: bool = False) -> None:
        if await self._output.emit(body, new=new):
            self._note(body)

    def _note(self, body: Emission) -> None:
        if isinstance(body, ArtifactAdded):
            before = self._pieces.get(body.artifact.id, []) if body.artifact.append else []
            self._pieces[body.artifact.id] = [*before, *body.artifact.parts]
        elif isinstance(body, MessageSent) and body.message.id:
            self._messages.add(body.message.id)


def _artifact(chunk: dict[str, Any]) -> ArtifactAdded:
    name, description, metadata = (chunk.get(key) for key in ("name", "description", "metadata"))
    return ArtifactAdded(
        Artifact(
            str(chunk.get("artifact_id")),
            [parts.to_model(part) for part in _known(chunk.get("parts"))],
            name if isinstance(name, str) else None,
            description if isinstance(description, str) else None,
            chunk.get("append") is True,
            chunk.get("last_chunk") is not False,
            metadata if isinstance(metadata, dict) else {},
        )
    )


def _known(given: Any) -> list[dict[str, Any]]:
    try:
        return parts.known_parts(given)
    except InvalidRequest:
        return []

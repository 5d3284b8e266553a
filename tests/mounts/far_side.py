"""A remote side in memory, with one agent. It outlives engines, and its script says what its run tells.

Two wires: one has cursors, as Connect and CAP; the other tells everything again over each connection, as agents over
MCP, and asks by requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from interlingua.engine.handler.context import Context
from interlingua.engine.handler.mounted_run import LeftRun
from interlingua.model.card import AgentCard
from interlingua.model.errors import QuestionExpired, RunError
from interlingua.model.events import Thought
from interlingua.mounts.agent_card import origin
from interlingua.mounts.errors import RemoteError
from interlingua.mounts.loader import RemoteAgent, RemoteServer, Traits
from interlingua.mounts.remote_questions import Asked, Settled, TooLate
from interlingua.mounts.remote_run import ASKED, ENDED, FAILED, Disconnected, RemoteRun, Stretch

Script = list[tuple[str, Any]]
"""What the run tells: ("delta", {…}), ("thought", text), ("ask", {…}), ("end", output), ("fail", code). And what
happens meanwhile: ("cut", number of times), ("wait", None) until the gate is open."""

WORDS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


class Handle(msgspec.Struct):
    key: str


class FarSide(RemoteServer):
    """The server, and its only run for each key."""

    traits = Traits()

    def __init__(self, script: Script, *, cursors: bool = True, resumable: bool = True) -> None:
        self.script = list(script)
        self.cursors = cursors
        self.resumable = resumable
        self.patience = 5.0
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()  # a run has come to its gate
        self.begun: list[str] = []  # the key of each run, once
        self.followed = 0  # how often a run was begun or found again
        self.answers: dict[int, Any] = {}  # by place in the script
        self.sent: list[Any] = []  # all answers that came, also those that were too late
        self.cancelled: list[str] = []
        self.left: list[str] = []
        self.elsewhere = asyncio.Event()  # somebody else has answered
        self.before: Callable[[str, FarRun], Awaitable[None]] | None = None  # called before something is sent here

    async def agents(self, wanted: str | None = None) -> list[RemoteAgent]:
        card = AgentCard(
            "far", "1.0.0", input=WORDS, output={"type": "object", "properties": {"text": {"type": "string"}}},
            input_text="text", output_text="text", streams=True, metadata=origin("far:side", "far"),
        )  # fmt: skip
        return [RemoteAgent(card=card, name="far")]

    def open_run(
        self, agent: RemoteAgent, ctx: Context[Any, Any], input_: dict[str, Any], existing: Any
    ) -> FarRun:  # fmt: skip
        return (FarRun if self.cursors else FarRequest)(self, ctx, input_)

    async def cancel_left(self, agent: RemoteAgent, left: LeftRun, existing: Any) -> None:
        handle = left.recorded("start")
        self.cancelled.append(handle["key"] if handle is not None else "")

    async def sending(self, what: str, run: FarRun) -> None:
        if self.before is not None:
            await self.before(what, run)


class FarRun(RemoteRun):
    has_cursors = True

    def __init__(self, far: FarSide, ctx: Context[Any, Any], input_: dict[str, Any]) -> None:
        super().__init__(ctx, input_, "the far side", patience=far.patience)
        self.far = far
        self.cancel_within = 0.5
        self.key = ""
        self.place = 0

    async def open(self) -> Handle:
        return Handle(self.ctx.run_id)

    def opened(self, handle: Handle, shown: list[Any]) -> None:
        self.key = handle.key

    def lost(self) -> str | None:
        return None if self.far.resumable else "the far side does not find its runs again"

    async def follow(self) -> Stretch:
        await self._begin()
        return await self._tell()

    async def _begin(self) -> None:
        await self.far.sending("begin", self)
        self.far.followed += 1
        if self.key not in self.far.begun:
            self.far.begun.append(self.key)

    async def _tell(self) -> Stretch:
        far = self.far
        while True:
            kind, value = far.script[self.place]
            match kind:
                case "cut":
                    if value > 0:
                        far.script[self.place] = ("cut", value - 1)
                        raise Disconnected("cannot be reached: the line is cut")
                case "wait":
                    far.waiting.set()
                    await far.gate.wait()
                case "delta":
                    await self.output.delta(value)
                case "thought":
                    await self.output.emit(Thought(value, "t"))
                case "ask":
                    if self.place not in far.answers and (stretch := await self._asks(value)) is not None:
                        return stretch
                case "end":
                    return Stretch(ENDED, value)
                case "fail":
                    return Stretch(FAILED, value)
            self.place += 1

    async def _asks(self, value: dict[str, Any]) -> Stretch | None:
        return Stretch(ASKED, value, cursor=str(self.place))

    def go_on_from(self, stretch: Stretch) -> None:
        if stretch.cursor is not None:
            self.place = int(stretch.cursor)

    async def act(self, stretch: Stretch, number: int) -> None:
        asked = self.question(stretch.data, f"question-{self.place}")
        await self.put_question(asked, number, moved_on=self.far.elsewhere.wait, send=self.answer)  # type: ignore[arg-type]
        if self.place not in self.far.answers:  # it was answered elsewhere
            self.far.answers[self.place] = {"text": "elsewhere"}

    def question(self, value: dict[str, Any], key: str) -> Asked:
        return Asked(key=key, type="words", payload=value, answer=WORDS, until=value.get("until"))

    async def answer(self, value: Any) -> None:
        await self.questions.passing_on(f"question-{self.place}")
        await self.far.sending("answer", self)
        self.far.sent.append(value)
        if self.far.elsewhere.is_set():
            raise TooLate(told="another was first")
        self.far.answers[self.place] = value

    def failure(self, data: Any) -> RunError:
        return RemoteError("it went wrong", code=data, transient=True)

    async def cancel(self) -> None:
        self.far.cancelled.append(self.key)

    async def leave(self) -> None:
        self.far.left.append(self.key)


class FarRequest(FarRun):
    """Everything is told again over each connection, and questions are requests."""

    has_cursors = False

    async def follow(self) -> Stretch:
        await self._begin()
        self.place = 0
        self.output.reconnected(repeats=True)
        return await self._tell()

    async def _asks(self, value: dict[str, Any]) -> Stretch | None:
        asked = self.question(value, f"question-{self.place}")
        asked.named = "id" in value
        try:
            answer = await self.questions.ask(asked)
        except QuestionExpired:
            answer = {"text": "nobody"}
        except Settled:
            return Stretch(ENDED, {})
        await self.far.sending("answer", self)
        self.far.sent.append(answer)
        self.far.answers[self.place] = answer
        return None

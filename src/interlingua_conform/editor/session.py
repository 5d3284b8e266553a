"""A session at the server under test, and the turns in it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from ..base import NotApplicable, expect, member, shown
from .links import Message, session_of
from .reading import answers, asks, choices, objects, text, update_of

if TYPE_CHECKING:
    from .talk import Client


class Ended(msgspec.Struct):
    """The end of a turn."""

    stop: str | None  # None where it failed
    error: Message | None
    answer: Message  # to the prompt
    first: int  # the place from which to look for its messages
    last: int


class Session:
    def __init__(self, client: Client, id_: str, told: Message) -> None:
        self.client = client
        self.id = id_
        self.told = told
        self.words = _words(client.subject.roles.input)

    async def play(self, role: str | None) -> None:
        """Chooses an agent: the option or the mode of that name. A server with one agent has neither: the role is then
        the text of the prompt."""
        if role is None:
            return
        for option in objects(self.told.get("configOptions")):
            for choice in choices(option):
                if role in (choice.get("value"), choice.get("name")):
                    await self.set_option(option, choice.get("value"))
                    return
        modes = self.told.get("modes")
        for mode in objects(modes.get("availableModes") if isinstance(modes, dict) else None):
            if role in (mode.get("id"), mode.get("name")):
                await self.client.ask("session/set_mode", {"sessionId": self.id, "modeId": mode.get("id")})
                return
        self.words = role

    async def set_option(self, option: Message, value: Any) -> Message:
        v2 = self.client.version == 2
        params = {"sessionId": self.id, "configId": option.get("configId" if v2 else "id"), "value": value}
        if isinstance(value, bool):
            params["type"] = "boolean"
        elif v2:
            params["type"] = "id"
        return await self.client.ask("session/set_config_option", params)

    def prompt(self, *blocks: str | Message) -> Message:
        """The params of a prompt; without blocks, what the role says."""
        told = [text(block) if isinstance(block, str) else block for block in blocks or (self.words,)]
        return {"sessionId": self.id, "prompt": told}

    async def begin(self, *blocks: str | Message) -> Turn:
        before = self.client.now
        return Turn(self, await self.client.send("session/prompt", self.prompt(*blocks)), before)

    async def turn(self, *blocks: str | Message) -> Ended:
        """A prompt to its end."""
        return await (await self.begin(*blocks)).end()

    async def asked(self, start: int) -> Message | None:
        """The question that the server asks in this session by a request, if it does so."""
        if not await self.client.soon(lambda m: asks(m, self.id), start):
            return None
        return next(message for message in self.client.link.messages[start:] if asks(message, self.id))

    async def cancel(self, settle: bool = True) -> None:
        """Cancels the current turn. The client answers the open questions then, or some agents wait for ever."""
        await self.client.notify("session/cancel", {"sessionId": self.id})
        for request in [request for request in self.client.open if session_of(request) == self.id and settle]:
            elicits = request.get("method") == "elicitation/create"
            told = {"action": "cancel"} if elicits else {"outcome": {"outcome": "cancelled"}}
            await self.client.respond(request, told)

    # -- what was said ---------------------------------------------------------------------------------------

    def updates(self, *kinds: str, start: int = 0, end: int | None = None) -> list[Message]:
        found = [update_of(message, self.id) for message in self.client.link.messages[start:end]]
        return [update for update in found if update and (not kinds or update.get("sessionUpdate") in kinds)]

    def text(self, start: int = 0, end: int | None = None, kind: str = "agent_message_chunk") -> str:
        """Returns the text of the updates of a kind; other content is left out."""
        said = []
        for update in self.updates(kind, start=start, end=end):
            content = update.get("content")
            if isinstance(content, dict) and isinstance(content.get("text"), str):
                said.append(content["text"])
        return "".join(said)

    async def update(self, kind: str, what: str, start: int = 0, **members: Any) -> Message:
        """The first update of a kind that has these members."""

        def fits(message: Message) -> bool:
            update = update_of(message, self.id)
            return update.get("sessionUpdate") == kind and all(update.get(n) == v for n, v in members.items())

        return update_of(await self.client.link.until(fits, what, start), self.id)


class Turn:
    """A prompt that was sent."""

    def __init__(self, session: Session, id_: Any, first: int) -> None:
        self.session = session
        self.client = session.client
        self.id = id_
        self.first = first

    async def begun(self) -> None:
        """Waits until the agent says or shows something."""
        news = ("agent_message_chunk", "agent_message", "agent_thought_chunk", "tool_call", "tool_call_update", "plan")
        ended = answers(self.id)

        def fits(message: Message) -> bool:
            update = update_of(message, self.session.id)
            if self.client.version == 1 and ended(message):
                return True
            return update.get("sessionUpdate") in news or update.get("state") == "idle"

        await self.client.link.until(fits, "anything that the agent does", self.first)

    async def question(self) -> Message:
        """Returns the request by which the server asks the user. If the turn ends without one, the check does not
        apply."""
        ended = answers(self.id)

        def fits(message: Message) -> bool:
            if asks(message, self.session.id):
                return True
            failed = ended(message) and (self.client.version == 1 or "error" in message)
            return failed or update_of(message, self.session.id).get("state") == "idle"

        found = await self.client.link.until(fits, "a question, or the end of the turn", self.first)
        if "method" not in found or "id" not in found:
            raise NotApplicable("the agent that should ask ends its turn without a request for an answer")
        return found

    async def end(self) -> Ended:
        """Waits until the turn is over: its answer, and in version 2 the update that says idle."""
        answer = await self.client.response(self.id, "session/prompt", self.first)
        if "error" in answer:
            return Ended(None, answer["error"], answer, self.first, self._at(answer))
        result = answer["result"]
        if self.client.version == 1:
            return Ended(member(result, "stopReason", str, "the answer to session/prompt"), None, answer, self.first,
                         self._at(answer))  # fmt: skip
        expect(isinstance(result, dict), f"the answer to session/prompt is no object: {shown(result)}")
        session = self.session
        idle = await session.update("state_update", "the update that the turn is idle", self.first, state="idle")
        stop, error = idle.get("stopReason"), idle.get("error")
        failed = error if isinstance(error, dict) else None
        last = next(n for n, m in enumerate(self.client.link.messages) if update_of(m, session.id) is idle)
        return Ended(stop if isinstance(stop, str) else None, failed, answer, self.first, last)

    def _at(self, message: Message) -> int:
        return next(n for n, m in enumerate(self.client.link.messages) if m is message)

    def over(self) -> bool:
        """Returns whether the prompt was answered already."""
        return any(answers(self.id)(message) for message in self.client.link.messages[self.first :])


def _words(given: Any) -> str:
    if given is None:
        return "hello there"
    return given if isinstance(given, str) else json.dumps(given)

"""A client of the server under test: it opens sessions, prompts, and remembers all that was said.

What it is asked in between is answered with no (a permission is refused, a form declined), so that nothing is done at
the server that nobody wanted; checks that are about questions take them into their own hands.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

import msgspec

from ..base import Broken, Gone, NotApplicable, Subject, expect, member, shown
from .links import Link, Message
from .reading import answers, asks, choices, is_response, note, objects, picked, text, update_of

PING = "_interlingua/ping"  # an extension that no server has: each answers that it does not know it
AUTH_REQUIRED = -32000


class Client:
    """One connection that has been initialized."""

    def __init__(self, link: Link, subject: Subject, version: int, folder: str) -> None:
        self.link = link
        self.subject = subject
        self.version = version
        self.folder = folder
        self.told: Message = {}  # what initialize was answered with
        self.unasked: list[Message] = []  # requests for what this client has not said that it can
        self._ids = itertools.count(1)
        self.forms = False  # whether it has said that it can show forms
        self._by_hand = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._pings = PING
        link.listener = self._came

    # -- saying and hearing ----------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """How many messages came up to now: where to look for what comes next."""
        return len(self.link.messages)

    def request(self, method: str, params: Any = None, id_: Any = None) -> Message:
        """A request with an id of its own, to be sent alone or in a batch."""
        made = next(self._ids) if id_ is None else id_
        return {"jsonrpc": "2.0", "id": made, "method": method, "params": {} if params is None else params}

    async def send(self, method: str, params: Any = None) -> Any:
        """Send a request, and give its id."""
        message = self.request(method, params)
        await self.link.put(message)
        return message["id"]

    async def notify(self, method: str, params: Any = None) -> None:
        await self.link.put(note(method, params))

    async def respond(self, request: Message, result: Any) -> None:
        await self.link.put({"jsonrpc": "2.0", "id": request.get("id"), "result": result})

    async def response(self, id_: Any, what: str, start: int = 0) -> Message:
        """The answer to a request, a result or an error."""
        found = await self.link.until(answers(id_), f"the answer to {what}", start)
        if ("result" in found) == ("error" in found):
            raise Broken(f"the answer to {what} has not exactly one of result and error: {shown(found)}")
        if "error" in found:
            member(found, "error.code", int)
            member(found, "error.message", str)
        return found

    async def answer(self, method: str, params: Any = None) -> Message:
        return await self.response(await self.send(method, params), method)

    async def ask(self, method: str, params: Any = None) -> Message:
        """Send a request that must succeed, and give its result."""
        answer = await self.answer(method, params)
        if "error" in answer:
            raise Broken(f"{method} was answered with an error: {shown(answer['error'])}")
        if answer["result"] is None:  # as examples of the specification have it
            return {}
        return member(answer, "result", dict, f"the answer to {method}")

    async def refused(self, method: str, params: Any, what: str) -> Message:
        """Send a request that must fail, and give the error."""
        answer = await self.answer(method, params)
        if "error" not in answer:
            raise Broken(f"{method} {what} was answered with a result: {shown(answer['result'])}")
        error: Message = answer["error"]
        return error

    async def ping(self) -> Message:
        """Whether it still answers: everything that was sent before has been read then."""
        if self._pings == PING:
            try:
                return await self.answer(PING)
            except Gone:
                if self.link.ended:
                    raise
                self._pings = "session/new"  # it does not answer what it does not know, which is told elsewhere
        return await self.answer(self._pings, self.opening())

    async def heard_after(self, *frames: bytes, wanted: bool = False) -> list[Message]:
        """Send something, and give what it was answered with: responses that come before those to two pings behind it,
        or in a moment after, where an answer is `wanted`."""
        before = self.now
        for frame in frames:
            await self.link.put_bytes(frame)
        pongs = [await self.ping(), await self.ping()]

        def other(message: Message) -> bool:
            return is_response(message) and not any(message is pong for pong in pongs)

        if wanted:
            await self.link.silent(other, before)
        return [message for message in self.link.messages[before:] if other(message)]

    # -- what the server asks --------------------------------------------------------------------------------

    def _came(self, message: Message) -> None:
        method = message.get("method")
        if not isinstance(method, str) or "id" not in message:
            return
        if method.startswith(("fs/", "terminal/", "elicitation/")) and not self._can(method):
            self.unasked.append(message)
        elif self._by_hand:
            return
        self._later(self._no(message))

    def _can(self, method: str) -> bool:
        return method.startswith("elicitation/") and self.forms

    async def _no(self, request: Message) -> None:
        method = request["method"]
        if method == "session/request_permission":
            answer: Message = {"result": picked(request, "reject") or {"outcome": {"outcome": "cancelled"}}}
        elif method == "elicitation/create" and self._can(method):
            answer = {"result": {"action": "decline"}}
        else:
            answer = {"error": {"code": -32601, "message": f"there is no {shown(method, 50)} here"}}
        await self.link.put({"jsonrpc": "2.0", "id": request["id"], **answer})

    def _later(self, doing: Any) -> None:
        async def quietly() -> None:
            with contextlib.suppress(Gone, Broken):
                await doing

        task = asyncio.get_running_loop().create_task(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @contextlib.contextmanager
    def by_hand(self) -> Iterator[None]:
        """Questions are for the check to answer."""
        self._by_hand = True
        try:
            yield
        finally:
            self._by_hand = False

    # -- opening ---------------------------------------------------------------------------------------------

    def able(self, path: str) -> bool:
        """Whether the server says that it can do something: true, or an object."""
        at: Any = self.told.get("capabilities" if self.version == 2 else "agentCapabilities")
        for step in path.split("."):
            at = at.get(step) if isinstance(at, dict) else None
        return at is True or isinstance(at, dict)

    def opening(self, **members: Any) -> Message:
        """What a session is opened with."""
        return {"cwd": self.folder, "mcpServers": [], **members}

    async def session(self, role: str | None = None, **members: Any) -> Session:
        """A new session, with the agent that plays a role."""
        answer = await self.answer("session/new", self.opening(**members))
        if "error" in answer:
            if answer["error"]["code"] == AUTH_REQUIRED:
                raise NotApplicable("the server wants a login before it opens a session")
            raise Broken(f"session/new was answered with an error: {shown(answer['error'])}")
        told = member(answer, "result", dict, "the answer to session/new")
        session = Session(self, member(told, "sessionId", str, "the answer to session/new"), told)
        await session.play(role)
        return session

    async def asking(self) -> Session:
        return await self._named(self.subject.roles.asking, "asks a question")

    async def slow(self) -> Session:
        return await self._named(self.subject.roles.slow, "runs for a while")

    async def failing(self) -> Session:
        return await self._named(self.subject.roles.failing, "fails")

    async def _named(self, role: str | None, what: str) -> Session:
        if role is None:
            raise NotApplicable(f"no agent is named that {what}")
        return await self.session(role)

    async def plain(self, **members: Any) -> Session:
        """A session with an agent that answers soon."""
        return await self.session(self.subject.roles.agent, **members)

    async def list(self, **members: Any) -> list[Message]:
        """The sessions of the folder that this client works in, over all pages."""
        found: list[Message] = []
        params: Message = {"cwd": self.folder, **members}
        for _ in range(100):
            told = await self.ask("session/list", params)
            for entry in member(told, "sessions", list, "the answer to session/list"):
                expect(isinstance(entry, dict), f"an entry of session/list is no object: {shown(entry)}")
                member(entry, "sessionId", str, "an entry of session/list")
                member(entry, "cwd", str, "an entry of session/list")
                found.append(entry)
            if told.get("nextCursor") is None:
                return found
            params = {**params, "cursor": member(told, "nextCursor", str, "the answer to session/list")}
        raise Broken("session/list has no last page: there are more than 100")


class Ended(msgspec.Struct):
    """How a turn ended."""

    stop: str | None  # None where it failed
    error: Message | None
    answer: Message  # to the prompt
    first: int  # where to look for what came of it
    last: int


class Session:
    def __init__(self, client: Client, id_: str, told: Message) -> None:
        self.client = client
        self.id = id_
        self.told = told
        self.words = _words(client.subject.roles.input)

    async def play(self, role: str | None) -> None:
        """Choose an agent: the option or the mode of that name. A server with one agent has neither, and is told by the
        role what to do: it is the prompt then."""
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

    async def asked(self, what: str, start: int, within: float) -> Message | None:
        """The question that the server asks in this session by a request, if it does so in time."""
        try:
            async with asyncio.timeout(within):
                return await self.client.link.until(lambda m: asks(m, self.id), what, start)
        except TimeoutError:
            return None
        except Gone:
            if self.client.link.ended:
                raise
            return None

    async def cancel(self) -> None:
        await self.client.notify("session/cancel", {"sessionId": self.id})

    # -- what was said ---------------------------------------------------------------------------------------

    def updates(self, *kinds: str, start: int = 0, end: int | None = None) -> list[Message]:
        found = [update_of(message, self.id) for message in self.client.link.messages[start:end]]
        return [update for update in found if update and (not kinds or update.get("sessionUpdate") in kinds)]

    def text(self, start: int = 0, end: int | None = None, kind: str = "agent_message_chunk") -> str:
        """What was said, as far as it is text."""
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
        """Until the agent does something: says or shows it."""
        news = ("agent_message_chunk", "agent_message", "agent_thought_chunk", "tool_call", "tool_call_update", "plan")
        ended = answers(self.id)

        def fits(message: Message) -> bool:
            update = update_of(message, self.session.id)
            if self.client.version == 1 and ended(message):
                return True
            return update.get("sessionUpdate") in news or update.get("state") == "idle"

        await self.client.link.until(fits, "anything that the agent does", self.first)

    async def question(self) -> Message:
        """What the server asks by a request. Where the turn ends without one, there is nothing to look at."""
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
        """Until the turn is over: its answer, and in version 2 the update that says idle."""
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
        """Whether it was answered already."""
        return any(answers(self.id)(message) for message in self.client.link.messages[self.first :])


def _words(given: Any) -> str:
    if given is None:
        return "hello there"
    return given if isinstance(given, str) else json.dumps(given)

"""Acts as a client of the server under test: it opens sessions, prompts, and remembers all messages.

It answers requests of the server with no (a permission is refused, a form declined), so that nothing unwanted happens
at the server; checks of questions answer for themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from interlingua.model.errors import InterlinguaError

from ..base import Broken, Gone, NotApplicable, Subject, expect, member, shown
from ..clients.jsonrpc import Caller, judged, result_of
from .links import Link, Message
from .reading import answers, is_response, note, picked
from .session import Session

PING = "_interlingua/ping"  # an extension that no server has: each answers that it does not know it
AUTH_REQUIRED = -32000
NOT_TAKEN_BACK = "the server does not honour $/cancel_request, which it need not"


class Client(Caller):
    """A connection that has been initialized."""

    def __init__(self, link: Link, subject: Subject, version: int, folder: str) -> None:
        super().__init__(link, subject)
        self.version = version
        self.folder = folder
        self.open: list[Message] = []  # requests of the server that are not answered yet
        self._ids = itertools.count(1)
        self.forms = False  # true if it declared that it can show forms
        self._by_hand = False
        self._mute = False
        self._pings: set[Any] = set()  # the ids of pings

    # -- saying and hearing ----------------------------------------------------------------------------------

    def request(self, method: str, params: Any = None, id_: Any = None) -> Message:
        """A request with an id of its own, to be sent alone or in a batch."""
        made = next(self._ids) if id_ is None else id_
        return {"jsonrpc": "2.0", "id": made, "method": method, "params": {} if params is None else params}

    async def send(self, method: str, params: Any = None) -> Any:
        """Sends a request, and returns its id."""
        message = self.request(method, params)
        await self.link.put(message)
        return message["id"]

    async def notify(self, method: str, params: Any = None) -> None:
        await self.link.put(note(method, params))

    async def respond(self, request: Message, result: Any) -> None:
        await self.settle(request, {"result": result})

    async def settle(self, request: Message, told: Message) -> None:
        """Answers a request of the server, with a result or an error."""
        self.open = [other for other in self.open if other is not request]
        await self.link.put({"jsonrpc": "2.0", "id": request.get("id"), **told})

    async def response(self, id_: Any, what: str, start: int = 0) -> Message:
        """The answer to a request, a result or an error."""
        return judged(await self.link.until(answers(id_), f"the answer to {what}", start), what)

    async def answer(self, method: str, params: Any = None) -> Message:
        return await self.response(await self.send(method, params), method)

    async def ask(self, method: str, params: Any = None) -> Message:
        """Sends a request that must succeed, and returns its result."""
        result = result_of(await self.answer(method, params), method)
        return {} if result is None else member(result, "", dict, f"the answer to {method}")  # as examples have it

    async def refused(self, method: str, params: Any, what: str) -> Message:
        """Sends a request that must fail, and returns the error."""
        answer = await self.answer(method, params)
        if "error" not in answer:
            raise Broken(f"{method} {what} was answered with a result: {shown(answer['result'])}")
        error: Message = answer["error"]
        return error

    async def ping(self) -> Message:
        """Sends a request and waits for its answer: the server has then read everything that was sent before."""
        if not self._mute:
            try:
                return await self._pinged(PING)
            except Gone:
                if self.link.ended:
                    raise
                self._mute = True  # it ignores unknown methods, which another check reports
        return await self._pinged("session/new")

    async def _pinged(self, method: str) -> Message:
        self._pings.add(id_ := await self.send(method, self.opening()))
        return await self.response(id_, method)

    async def heard_after(self, *frames: bytes, wanted: bool = False) -> list[Message]:
        """Sends something, and returns the responses to it: those that come before the answers to two pings behind it,
        or in a moment after, if an answer is `wanted`."""
        before = self.now
        for frame in frames:
            await self.link.put_bytes(frame)
        for _ in range(2):
            await self.ping()
        if wanted:
            await self.link.silent(self.odd, before)
        return [message for message in self.link.messages[before:] if self.odd(message)]

    async def soon(self, wanted: Callable[[Message], bool], start: int) -> bool:
        """Waits a while for a message that need not come. Returns whether it came."""
        try:
            async with asyncio.timeout(self.subject.patience / 2):
                await self.link.until(wanted, "it", start)
                return True
        except TimeoutError:
            return False
        except Gone:
            if self.link.ended:
                raise
            return False

    def odd(self, message: Message) -> bool:
        """Returns whether a message is a response, and to no ping."""
        return is_response(message) and not any(answers(id_)(message) for id_ in self._pings)

    # -- what the server asks --------------------------------------------------------------------------------

    def _came(self, message: Message) -> None:
        method = message.get("method")
        if not isinstance(method, str) or "id" not in message:
            return
        self.open.append(message)
        if method.startswith(("fs/", "terminal/", "elicitation/")) and not self._can(method):
            self.unasked.append(message)
        elif self._by_hand:
            return
        self._later(self._quietly(self._no(message)))

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
        await self.settle(request, answer)

    async def _quietly(self, doing: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(Gone, Broken, InterlinguaError):
            await doing

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
        """Returns whether the server declares a capability: as true, or as an object."""
        at: Any = self.told.get("capabilities" if self.version == 2 else "agentCapabilities")
        for step in path.split("."):
            at = at.get(step) if isinstance(at, dict) else None
        return at is True or isinstance(at, dict)

    def opening(self, **members: Any) -> Message:
        """Returns the params that open a session."""
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
        return await self._named(self.subject.roles.asking, "asks a question (--asks)")

    async def slow(self) -> Session:
        return await self._named(self.subject.roles.slow, "runs for a while (--slow)")

    async def failing(self) -> Session:
        return await self._named(self.subject.roles.failing, "fails (--fails)")

    async def _named(self, role: str | None, what: str) -> Session:
        if role is None:
            raise NotApplicable(f"no agent is named that {what}")
        return await self.session(role)

    async def plain(self, **members: Any) -> Session:
        """A session with an agent that answers soon."""
        return await self.session(self.subject.roles.agent, **members)

    async def listed(self) -> list[Message]:
        """The sessions of the folder that this client works in, over all pages."""
        found: list[Message] = []
        params: Message = {"cwd": self.folder}
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

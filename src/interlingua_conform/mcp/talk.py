"""Acts as a client of MCP: the handshake or the revision without one, requests and their answers, and runs of agents.

It takes answers leniently (an id that came back as a text, or a missing one), so that the check of that subject finds a
mistake of a server, and all other checks can go on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ..base import Gone, NotApplicable, Subject, member, shown
from ..clients import jsonrpc
from ..clients.jsonrpc import Caller, judged
from .links import VERSION, HttpLink, Link, Message

LATEST = "2025-11-25"
"""The newest revision with a handshake."""
REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", LATEST)
MODERN = "2026-07-28"
"""The revision without one."""
META_VERSION = "io.modelcontextprotocol/protocolVersion"
META_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
META_CLIENT = "io.modelcontextprotocol/clientInfo"

PROGRESS = "notifications/agents/run/progress"
EXTENSION = "interlingua/agents"

METHOD_NOT_FOUND, INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR = -32601, -32602, -32600, -32700

INFO = {"name": "interlingua-conform", "version": "1"}

Respond = Callable[[Message], Message]
"""Returns the result that answers an elicitation."""


class Refused(Gone):
    """A request was answered with an error of HTTP alone. Of 4xx, MCP says that a server may do so."""


def is_answer(message: Message) -> bool:
    return "method" not in message and ("result" in message or "error" in message)


def is_progress(message: Message) -> bool:
    """Returns whether a message is progress of an agent, or is meant to be."""
    params = message.get("params")
    return message.get("method") == PROGRESS or (
        isinstance(message.get("method"), str) and isinstance(params, dict) and "delta" in params
    )


def token_of(message: Message) -> Any:
    params = message.get("params")
    return params.get("progressToken") if isinstance(params, dict) else None


def same(one: Any, other: Any) -> bool:
    """Equal, and of one type: 1 is not "1", and not true."""
    return type(one) is type(other) and bool(one == other)


class Client(Caller):
    """A client that has made its handshake, or needs none; `told` is then the result of server/discover."""

    def __init__(self, link: Link, subject: Subject, able: Message | None = None, *, modern: bool = False) -> None:
        super().__init__(link, subject)
        self.able = able or {}  # its declared capabilities
        self.modern = modern
        self.version = MODERN if modern else ""
        self._next = 0
        self._open: set[str] = set()  # ids of requests that wait for an answer
        self._respond: Respond | None = None

    @property
    def usable(self) -> bool:
        return not self.link.ended and not self.link.stuck

    def capability(self, *path: str) -> Any:
        """Returns the capability that the server declares at a path; None if it declares none."""
        at: Any = self.told.get("capabilities")
        for step in path:
            at = at.get(step) if isinstance(at, dict) else None
        return at

    @property
    def extended(self) -> bool:
        """True if the server declares the extension for the promises of Interlingua beyond the document."""
        return self.capability("extensions", EXTENSION) is not None

    # -- asking -----------------------------------------------------------------------------------------------

    def request(self, method: str, params: Message | None = None, id_: Any = None) -> Message:
        if id_ is None:
            self._next += 1
            id_ = self._next
        if self.modern:
            params = self.stamped(params)
        return {"jsonrpc": "2.0", "id": id_, "method": method, **({} if params is None else {"params": params})}

    def stamped(self, params: Message | None, version: str = MODERN) -> Message:
        """Params that say what a handshake would have said."""
        meta = {META_VERSION: version, META_CAPABILITIES: self.able, META_CLIENT: INFO}
        given = params or {}
        return {**given, "_meta": {**meta, **given.get("_meta", {})}}

    def headers(self, message: Message, version: str = MODERN) -> dict[str, str]:
        """Returns the headers that a request without a session needs over HTTP."""
        params = message.get("params")
        name = params.get("name") if isinstance(params, dict) else None
        told = {VERSION: version, "mcp-method": str(message.get("method"))}
        return {**told, "mcp-name": name} if isinstance(name, str) and name.isascii() and name.isprintable() else told

    async def put(self, message: Message) -> Any:
        """Sends a request as it is, and returns its id."""
        self._open.add(str(message["id"]))
        await self.link.put(message, self.headers(message) if self.modern else None)
        return message["id"]

    async def send(self, method: str, params: Message | None = None, id_: Any = None) -> Any:
        return await self.put(self.request(method, params, id_))

    async def notify(self, method: str, params: Message | None = None) -> None:
        message: Message = {"jsonrpc": "2.0", "method": method}
        if params is not None or self.modern:
            message["params"] = self.stamped(params) if self.modern else params
        await self.link.put(message, self.headers(message) if self.modern else None)

    def answers(self, id_: Any) -> Callable[[Message], bool]:
        def fits(message: Message) -> bool:
            if message.get("id") is None and "result" in message and is_answer(message):
                return self._open == {str(id_)}  # it can be to nothing else
            return str(message.get("id")) == str(id_) and (is_answer(message) or "lost" in message)

        return fits

    def forget(self, id_: Any) -> None:
        """Stops waiting for the answer to a request."""
        self._open.discard(str(id_))

    async def response(self, id_: Any, what: str, start: int = 0) -> Message:
        """The answer to a request: a result or an error, and not both."""
        try:
            found = await self.link.until(self.answers(id_), f"the answer to {what}", start)
        except Gone:
            self.link.stuck = True
            raise
        finally:
            self.forget(id_)
        if "lost" in found:
            refused = 400 <= found.get("status", 0) < 500
            raise (Refused if refused else Gone)(f"{what}: {found['lost']}")
        return judged(found, what)

    async def answer(self, method: str, params: Message | None = None, id_: Any = None) -> Message:
        before = self.now
        return await self.response(await self.send(method, params, id_), method, before)

    async def ask(self, method: str, params: Message | None = None) -> Message:
        """Sends a request that must succeed, and returns its result."""
        return result_of(await self.answer(method, params), method)

    async def alive(self) -> None:
        """Sends a request, and waits until the server answers it, in whatever way."""
        await self.answer("server/discover" if self.modern else "ping")

    # -- opening ----------------------------------------------------------------------------------------------

    async def initialized(self, version: Any = LATEST) -> Message:
        """The answer to `initialize`."""
        params = {"protocolVersion": version, "capabilities": self.able, "clientInfo": INFO}
        return await self.answer("initialize", params)

    async def handshake(self, version: Any = LATEST) -> None:
        answer = await self.initialized(version)
        self.told = result_of(answer, "initialize")
        spoken = self.told.get("protocolVersion")
        self.version = spoken if isinstance(spoken, str) else str(spoken)
        if isinstance(self.link, HttpLink):
            self.link.headers[VERSION] = self.version
        await self.notify("notifications/initialized")
        if isinstance(self.link, HttpLink):
            await self.link.listen()

    async def discover(self) -> None:
        self.told = await self.ask("server/discover")

    # -- what the server asks ---------------------------------------------------------------------------------

    def _came(self, message: Message) -> None:
        if isinstance(message.get("method"), str) and "id" in message:
            self._later(self._reply(message))

    async def _reply(self, request: Message) -> None:
        method = request["method"]
        if method == "elicitation/create" and "elicitation" not in self.able:
            self.unasked.append(request)
        if method == "ping":
            told: Message = {"result": {}}
        elif method == "elicitation/create" and "elicitation" in self.able:
            told = {"result": self._respond(request) if self._respond is not None else {"action": "decline"}}
        else:
            told = {"error": {"code": METHOD_NOT_FOUND, "message": f"there is no {shown(method, 50)} here"}}
        with contextlib.suppress(Gone):
            await self.link.put({"jsonrpc": "2.0", "id": request["id"], **told})

    @contextlib.contextmanager
    def answering(self, respond: Respond) -> Iterator[None]:
        """Questions get these answers."""
        self._respond = respond
        try:
            yield
        finally:
            self._respond = None

    # -- runs -------------------------------------------------------------------------------------------------

    def run_params(self, name: str, input_: Any, token: Any = None, **meta: Any) -> Message:
        told = {**meta, **({} if token is None else {"progressToken": token})}
        return {"name": name, "input": input_, **({"_meta": told} if told else {})}

    async def begin(self, name: str, input_: Any, token: Any = None, *, id_: Any = None, **meta: Any) -> Run:
        return await self.begin_with(self.run_params(name, input_, token, **meta), id_=id_)

    async def begin_with(self, params: Message, *, method: str = "agents/run", id_: Any = None) -> Run:
        before = self.now
        message = self.request(method, params, id_)
        return Run(self, await self.put(message), message, before)

    async def run(self, name: str, input_: Any, token: Any = None, *, id_: Any = None) -> Seen:
        return await (await self.begin(name, input_, token, id_=id_)).end()


class Seen(msgspec.Struct):
    """A run, from its request to its answer."""

    request: Message
    answer: Message
    during: list[Message]  # all that came in between
    place: int  # place of the answer among all messages

    @property
    def token(self) -> Any:
        return self.request["params"].get("_meta", {}).get("progressToken")

    @property
    def input(self) -> Any:
        return self.request["params"].get("input")

    @property
    def progress(self) -> list[Message]:
        return [message for message in self.during if is_progress(message)]

    @property
    def deltas(self) -> list[Message]:
        """Returns the deltas that came under this run's token, as far as they are objects."""
        own = [m for m in self.progress if m.get("method") == PROGRESS and same(token_of(m), self.token)]
        found = [m.get("params", {}).get("delta") for m in own]
        return [delta for delta in found if isinstance(delta, dict)]

    def output(self) -> Message:
        """The output; where there is none, others have said so."""
        result = self.answer.get("result")
        output = result.get("output") if isinstance(result, dict) else None
        if not isinstance(output, dict):
            raise NotApplicable(f"the run has no output: {shown(self.answer)}")
        return output


class Run:
    """A request that runs an agent."""

    def __init__(self, client: Client, id_: Any, request: Message, first: int) -> None:
        self.client = client
        self.id = id_
        self.request = request
        self.first = first

    async def end(self) -> Seen:
        answer = await self.client.response(self.id, self.request["method"], self.first)
        messages = self.client.link.messages
        place = next(n for n, message in enumerate(messages) if message is answer)
        return Seen(self.request, answer, messages[self.first : place], place)

    async def begun(self) -> bool:
        """Waits until the run has sent something. Returns False if its answer came instead."""
        ended = self.client.answers(self.id)
        token = self.request["params"].get("_meta", {}).get("progressToken")

        def news(message: Message) -> bool:
            return ended(message) or (isinstance(message.get("method"), str) and same(token_of(message), token))

        return not ended(await self.client.link.until(news, "progress of the run, or its answer", self.first))

    async def asked(self) -> Message:
        """The question that comes by an elicitation."""
        ended = self.client.answers(self.id)

        def news(message: Message) -> bool:
            return ended(message) or message.get("method") == "elicitation/create"

        found = await self.client.link.until(news, "a question, or the answer", self.first)
        if found.get("method") != "elicitation/create":
            raise NotApplicable(f"the agent that should ask was answered without a question: {shown(found)}")
        return found


def result_of(answer: Message, what: str) -> Message:
    return member(jsonrpc.result_of(answer, what), "", dict, f"the answer to {what}")

"""Drives the connections that checks share, and opens each when the first check wants it.

A connection speaks one version, so there is one of each; a second one of version 1 is another client. Checks that break
what they use take a spare one. Over HTTP the messages go by WebSocket if the server has it, since it carries all of
them; checks of their own look at the specialities of Streamable HTTP.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from interlingua.model.errors import InvalidRequest, Unavailable
from interlingua.transports.raw_client import Http

from ..base import Broken, Gone, NotApplicable, Subject, Suite, member, shown
from .links import HttpLink, Link, Message, SocketLink, StdioLink
from .reading import choices, is_response, objects
from .talk import PING, Client

INFO = {"name": "interlingua-conform", "version": "1"}


class Driver:
    def __init__(self, subject: Subject, folder: str, stack: AsyncExitStack) -> None:
        self.subject = subject
        self.folder = os.path.realpath(folder)
        self._stack = stack
        self._clients: dict[str, Client] = {}
        self._spare: list[Client] = []
        self._http: Http | None = None
        self._upgrades: bool | None = None
        self._no_batches: bool | None = None
        self._lacks: set[str] = set()
        self._unspoken: dict[int, str] = {}  # versions, and how they were refused
        self.misspoken: Message | None = None  # an answer with version 2 that is none
        self.links: list[Link] = []  # all that were ever opened

    @property
    def stdio(self) -> bool:
        return bool(self.subject.command)

    # -- connections -----------------------------------------------------------------------------------------

    async def reach(self) -> None:
        """Opens the first connection: a server that is not there, or says nothing at all, cannot be judged."""
        try:
            await self.either()
        except Gone as error:
            raise Unavailable(f"the server does not answer initialize: {error}", transient=False) from error
        except (Broken, NotApplicable):
            pass  # the checks report that

    async def http(self) -> Http:
        """Requests to the server."""
        if not (self.subject.address or "").startswith("http"):
            raise NotApplicable("no http(s) address was given")
        if self._http is None:
            self._http = await self._stack.enter_async_context(Http(self.subject))
        return self._http

    async def socket(self, **more: Any) -> SocketLink:
        """A WebSocket at the address."""
        if self.stdio:
            raise NotApplicable("no address was given")
        if self._upgrades is False:
            raise NotApplicable("the server has no WebSocket at its address")
        try:
            link = await self._stack.enter_async_context(SocketLink.open(self.subject, **more))
        except Unavailable as error:
            if self._upgrades or more or not (self.subject.address or "").startswith("http"):
                raise
            self._upgrades = False
            raise NotApplicable(error.message) from error
        self._upgrades = True
        self.links.append(link)
        return link

    async def link(self) -> Link:
        """A new connection on which nothing was said yet."""
        if self.stdio:
            link: Link = await self._stack.enter_async_context(StdioLink.open(self.subject))
        else:
            try:
                return await self.socket()
            except NotApplicable:
                link = await self._stack.enter_async_context(HttpLink.open(await self.http()))
        self.links.append(link)
        return link

    async def web(self) -> HttpLink:
        """A new connection over Streamable HTTP."""
        return await self._stack.enter_async_context(HttpLink.open(await self.http()))

    async def client(self, version: int, link: Link | None = None, **able: Any) -> Client:
        """A new client that asks for a version, and has it. `able` are its capabilities."""
        if version in self._unspoken:
            raise NotApplicable(self._unspoken[version])
        try:
            return await self._agreed(version, link or await self.link(), able)
        except NotApplicable as error:
            self._unspoken[version] = str(error)
            raise

    async def _agreed(self, version: int, link: Link, able: Message) -> Client:
        client = Client(link, self.subject, version, self.folder)
        client.forms = "elicitation" in able
        client.told = await self.initialized(client, version, able)
        answered = member(client.told, "protocolVersion", int, "the answer to initialize")
        if answered != version:
            raise NotApplicable(f"the server speaks no version {version} of the protocol: it answers with {answered}")
        if version == 2 and "info" not in client.told:
            self.misspoken = client.told
            raise NotApplicable("the server answers with version 2 in the words of version 1: it has no info")
        return client

    async def initialized(self, client: Client, version: int, able: Message) -> Message:
        if version == 1:
            return await client.ask(
                "initialize", {"protocolVersion": 1, "clientCapabilities": able, "clientInfo": INFO}
            )  # fmt: skip
        answer = await client.answer("initialize", {"protocolVersion": version, "capabilities": able, "info": INFO})
        if "error" in answer:  # -32022 in newer drafts
            raise NotApplicable(f"the server refuses version {version} of the protocol: {shown(answer['error'])}")
        return member(answer, "result", dict, "the answer to initialize")

    async def _shared(self, name: str, version: int, **able: Any) -> Client:
        """The client of a name, unless its connection has ended."""
        found = self._clients.get(name)
        if found is None or found.link.ended:
            found = self._clients[name] = await self.client(version, **able)
        return found

    async def v1(self) -> Client:
        """The client of version 1. It says that it has a terminal for logins, and can do nothing else."""
        return await self._shared("v1", 1, auth={"terminal": True})

    async def v2(self) -> Client:
        return await self._shared("v2", 2)

    async def other(self) -> Client:
        """Returns another client of version 1, without any capability."""
        return await self._shared("other", 1)

    async def other_v2(self) -> Client:
        return await self._shared("other v2", 2)

    async def forms(self, version: int = 1) -> Client:
        """A client that can show forms."""
        return await self._shared(f"forms {version}", version, elicitation={"form": {}})

    async def either(self) -> Client:
        """A client of version 1, or of 2 where the server speaks no 1."""
        try:
            return await self.v1()
        except NotApplicable:
            return await self.v2()

    def keep(self, client: Client) -> None:
        """A client that is of no use any more, but for who ends or breaks one."""
        self._spare.append(client)

    async def spare(self) -> Client:
        """Returns a client whose connection a check may break, of the version in use. If none is left over, it takes
        one that checks share, and the next check that needs that one gets a new one."""
        version = (await self.either()).version
        self._spare += [client for client in self._clients.values() if client not in self._spare]
        for client in list(self._spare):
            if client.version == version or client.link.ended:
                self._spare.remove(client)
                self._clients = {name: other for name, other in self._clients.items() if other is not client}
            if client.version == version and not client.link.ended:
                return client
        return await self.client(version)

    # -- what several checks ask -----------------------------------------------------------------------------

    def needs(self, what: str) -> None:
        """Ends the check if the server is known to lack something that took a while to see."""
        if what in self._lacks:
            raise NotApplicable(what)

    def lacks(self, what: str) -> NotApplicable:
        """The server does not do something: to be raised, and remembered."""
        self._lacks.add(what)
        return NotApplicable(what)

    async def lines(self) -> Client:
        """A client whose messages go as they are, however wrong: not over Streamable HTTP, which has statuses."""
        client = await self.either()
        if client.link.kind == "http":
            raise NotApplicable("over Streamable HTTP what cannot be read has a status")
        return client

    async def batches(self) -> Client:
        """A client to whose connection the rules of batches apply. Version 2 has them; version 1 does not speak of
        them, so a server that speaks no other one may refuse batches."""
        try:
            client = await self.v2()
        except NotApplicable:
            return await self.v1_batches()
        if client.link.kind == "http":
            raise NotApplicable("over Streamable HTTP there are no batches")
        return client

    async def v1_batches(self) -> Client:
        """A client of version 1, where the server takes batches in that version too."""
        client = await self.v1()
        if client.link.kind == "http":
            raise NotApplicable("over Streamable HTTP there are no batches")
        if self._no_batches is None:
            try:
                self._no_batches = not isinstance(await batch(client, [client.request(PING)]), list)
            except Gone:
                self._no_batches = True
        if self._no_batches:
            raise NotApplicable("the server takes no batches in version 1 (see editor.batch.every-version)")
        return await self.v1()


async def batch(client: Client, entries: list[Any]) -> Any:
    """Sends a batch, and returns the frame that answers it: an array, or one object."""
    frames, before = len(client.link.frames), client.now
    await client.link.put(entries)
    ids = [entry["id"] for entry in entries if isinstance(entry, dict) and "id" in entry]

    def fits(message: Message) -> bool:
        return is_response(message) and (message.get("id") is None or message.get("id") in ids)

    await client.link.until(fits, "the answer to a batch", before)
    return next(frame for frame in client.link.frames[frames:] if _answers(frame, fits))


def _answers(frame: Any, fits: Any) -> bool:
    entries = frame if isinstance(frame, list) else [frame]
    return any(isinstance(entry, dict) and fits(entry) for entry in entries)


@contextlib.asynccontextmanager
async def opened(subject: Subject) -> AsyncIterator[Driver]:
    """A driver that has reached the server."""
    if not subject.command and not (subject.address or "").startswith(("http://", "https://", "ws://", "wss://")):
        raise InvalidRequest("an agent of this protocol is a command, or at an address that begins with http or ws")
    with tempfile.TemporaryDirectory(prefix="interlingua-conform-") as folder:
        async with AsyncExitStack() as stack:
            driver = Driver(subject, folder, stack)
            await driver.reach()
            yield driver
            for link in driver.links:
                if isinstance(link, StdioLink):
                    link.end_input()  # closes the input of all, and then waits for all


async def names(driver: Driver) -> dict[str, str]:
    """Returns the agents of a server that offers a choice. A single agent has no name here: a role sends it a prompt
    that says what to do."""
    client = await driver.either()
    told = member(await client.answer("session/new", client.opening()), "result", dict, "the answer to session/new")
    found: dict[str, str] = {}
    for option in objects(told.get("configOptions")):
        if option.get("configId", option.get("id")) == "agent":
            for choice in choices(option):
                found |= {str(choice.get(name)): str(choice.get("name")) for name in ("value", "name")}
    return found


suite: Suite[Driver] = Suite("editor", opened, names=names)
check = suite.check

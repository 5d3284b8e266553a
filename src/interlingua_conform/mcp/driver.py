"""Shares connections, runnable agents and observations among the checks of agents over MCP.

A scene (`once`) is played once however many checks look at it, and is remembered with its failure. Connections are
replaced when they break, so a failed check leaves nothing behind for the next one.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from interlingua.model.errors import InvalidRequest, Unavailable

from ..base import WANTED, Broken, Gone, NotApplicable, Role, Subject, Suite, applies, expect, member, shown
from ..remembering import once
from ..sample import made_for
from .links import Link, Message, Way, opened
from .talk import EXTENSION, MODERN, Client, Seen, is_progress, result_of

TOKEN = "abc123"  # noqa: S105 - the one of the document's example
_PAGES = 100


class Agent(msgspec.Struct):
    name: str
    item: Message  # as it is listed

    def text_only(self) -> bool:
        """Returns whether the agent takes one text and gives one, as the example of the document does."""
        return all(_one_text(self.item.get(name)) for name in ("inputSchema", "outputSchema"))


def _one_text(schema: Any) -> bool:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or set(properties) != {"text"}:
        return False
    text = properties["text"]
    return isinstance(text, dict) and text.get("type") == "string"


class Driver:
    lasting = True

    def __init__(self, subject: Subject, stack: AsyncExitStack) -> None:
        self.subject = subject
        self.way = Way("stdio")
        self.links: list[Link] = []  # all that were ever opened
        self._stack = stack
        self._clients: dict[str, Client] = {}

    # -- connections ------------------------------------------------------------------------------------------

    async def reach(self) -> None:
        """Finds out how the server is spoken to. A server that is not there, or says nothing at all, cannot be
        judged."""
        tried: list[str] = []
        for way in [Way("stdio")] if self.subject.command else [Way("http"), Way("sse")]:
            if await self._reached(way, tried):
                return
        modern = Way("stdio" if self.subject.command else "http", modern=True)
        if not await self._reached(modern, tried):
            raise Unavailable(f"no MCP server answers there: {'; '.join(tried)}", transient=False)

    async def _reached(self, way: Way, tried: list[str]) -> bool:
        self.way = way
        try:
            await self.client()
        except (Gone, Broken) as error:
            tried.append(str(error))
            return False
        return True

    @contextlib.asynccontextmanager
    async def unspoken(self) -> AsyncIterator[Link]:
        """A new connection on which nothing was said yet, for as long as it is needed."""
        async with opened(self.subject, self.way.kind) as link:
            self.links.append(link)
            yield link

    @contextlib.asynccontextmanager
    async def another(self, *, modern: bool | None = None, **able: Any) -> AsyncIterator[Client]:
        """A new client, for as long as it is needed. `able` are its capabilities."""
        async with self.unspoken() as link:
            client = Client(link, self.subject, able, modern=self.way.modern if modern is None else modern)
            try:
                await (client.discover() if client.modern else client.handshake())
                yield client
            finally:
                await client.close()

    async def _shared(self, name: str, **options: Any) -> Client:
        found = self._clients.get(name)
        if found is None or not found.usable:
            found = self._clients[name] = await self._stack.enter_async_context(self.another(**options))
        return found

    async def client(self) -> Client:
        """The client that declares nothing."""
        return await self._shared("plain")

    async def busy(self) -> Client:
        """Returns another client, whose runs may go on."""
        return await self._shared("busy")

    async def asked(self) -> Client:
        """The client that can be asked."""
        if self.way.modern:
            raise NotApplicable(f"the server has no handshake: in {MODERN} it asks nothing, and returns its questions")
        return await self._shared("asked", elicitation={})

    async def stateless(self) -> Client:
        """The client of the revision without a handshake. It can be asked."""
        await speaks_modern(self)
        return await self.modern()

    async def modern(self) -> Client:
        """The same, whether or not the server speaks that revision. Nothing was said before its first request."""
        found = self._clients.get("modern")
        if found is None or not found.usable:
            link = await self._stack.enter_async_context(self.unspoken())
            found = self._clients["modern"] = Client(link, self.subject, {"elicitation": {}}, modern=True)
            self._stack.push_async_callback(found.close)
        return found

    async def promises(self) -> Client:
        """The client, where the server promises what Interlingua promises beyond the document."""
        client = await self.client()
        applies(client.extended, f"the server does not declare the extension {EXTENSION}, whose promise this is")
        return client

    # -- agents -----------------------------------------------------------------------------------------------

    async def agent(self, role: Role = "agent") -> Agent:
        """The agent that has a role in the checks."""
        wanted = getattr(self.subject.roles, role)
        applies(wanted is not None or role == "agent", f"no agent is named for this ({WANTED[role]})")
        found = await self.agents()
        if wanted is None:
            applies(found, "the server lists no agents")
            return found[0]
        for agent in found:
            if agent.name == wanted:
                return agent
        raise NotApplicable(f"the server lists no agent {wanted}; it lists {', '.join(a.name for a in found[:10])}")

    async def agents(self) -> list[Agent]:
        """Returns the agents of the list that can be used, whatever else is wrong with it."""
        try:
            items = await listed(self)
        except (Broken, Gone) as error:
            raise NotApplicable(f"the agents cannot be listed: {error}") from None
        names = [item.get("name") if isinstance(item, dict) else None for item in items]
        return [Agent(name, item) for name, item in zip(names, items, strict=True) if isinstance(name, str) and name]

    def input(self, agent: Agent) -> Any:
        """Returns an input that an agent takes. A given input is for the agent that answers soon."""
        roles = self.subject.roles
        mine = roles.agent or (agent.name not in (roles.asking, roles.slow, roles.failing) and agent.name)
        if roles.input is not None and mine == agent.name:
            return roles.input
        return made_for(agent.item.get("inputSchema", {}), f"the input of {agent.name}")

    async def run(self, token: Any = None, role: Role = "agent", **members: Any) -> Seen:
        """A run to its end, on the connection of all. `members` are further params."""
        client = await self.client()
        agent = await self.agent(role)
        params = {**client.run_params(agent.name, self.input(agent), token), **members}
        seen = await (await client.begin_with(params)).end()
        await settled(client)
        return seen


# -- scenes that many checks look at --------------------------------------------------------------------------


@once
async def listed(d: Driver) -> list[Any]:
    """Returns all agents in the form of the list."""
    return await pages(await d.client())


async def pages(
    client: Client, method: str = "agents/list", name: str = "agents", *, whole: bool = False
) -> list[Any]:  # fmt: skip
    """Returns the current entries of all pages. `whole`: raises Broken if the pages do not end."""
    answer = await client.answer(method, {})
    if "error" in answer:
        answer = await client.answer(method)  # another check reports that this is needed
    told, where = result_of(answer, method), f"the result of {method}"
    found = member(told, name, list, where)
    for _ in range(_PAGES):
        if not isinstance(told.get("nextCursor"), str):
            break
        told = await client.ask(method, {"cursor": told["nextCursor"]})
        more = [item for item in member(told, name, list, where) if item not in found]
        expect(more or not whole, f"nextCursor of {method} leads to nothing new")
        if not more:
            break
        found = found + more
    return found


async def settled(client: Client) -> None:
    """Waits until late messages of a run have come, so that they do not count for the next run."""
    with contextlib.suppress(Broken, Gone):
        await client.alive()


@once
async def plain(d: Driver) -> Seen:
    """A run without a progress token. Its request has a text for an id."""
    client = await d.client()
    agent = await d.agent()
    seen = await client.run(agent.name, d.input(agent), id_="run without a token")
    await settled(client)
    return seen


@once
async def under(d: Driver, token: Any) -> Seen:
    """A run with a progress token."""
    return await d.run(token)


async def ended(d: Driver, token: Any = None) -> Seen:
    """A run that has an output: where there is none, the checks of runs have said so."""
    try:
        seen = await (plain(d) if token is None else under(d, token))
    except (Broken, Gone) as error:
        raise NotApplicable(f"there is no run to look at: {error}") from None
    seen.output()
    return seen


async def shown_progress(d: Driver, token: Any = TOKEN) -> Seen:
    """Returns a run that sent progress."""
    seen = await ended(d, token)
    applies(seen.progress, "the server sends no progress of its agent, as it may")
    return seen


@once
async def afterwards(d: Driver) -> list[Message]:
    """Returns the progress that comes after the answers of two runs, one without a token and one with."""
    await ended(d)
    seen = await ended(d, TOKEN)
    client = await d.client()
    start = seen.place + 1
    await client.alive()
    await client.link.silent(is_progress, start)
    return [message for message in client.link.messages[start:] if is_progress(message)]


@once
async def pair(d: Driver) -> tuple[Seen, Seen]:
    """Starts two runs at once, each with its own input and token, and returns both."""
    client = await d.client()
    agent = await d.agent()
    one = d.input(agent)
    begun = [
        await client.begin(agent.name, input_, token)
        for input_, token in ((one, "left hand"), (varied(one), "right hand"))
    ]
    try:
        left, right = [await run.end() for run in begun]
    except (Broken, Gone) as error:
        raise Broken(f"of two runs at once, one is not answered: {error}") from None
    await settled(client)
    return left, right


OTHER_WORDS = "good evening"


def varied(value: Any) -> Any:
    """The same input with another text, where it has one."""
    if isinstance(value, dict):
        for name, entry in value.items():
            if isinstance(entry, str) and entry.startswith("hello"):
                return {**value, name: OTHER_WORDS}
    return value


@once
async def modern_words(d: Driver) -> tuple[Message, Any, int]:
    """Returns the server's description of itself in the revision without a handshake, the id of a request sent before
    that, and the place at which to look for its answer. Both are sent at once: a server that ends at the first notices
    when it reads the second (acp-sdk 0.0.6)."""
    client = await d.modern()
    before = client.now
    first = await client.send("agents/list", {})
    try:
        await client.discover()
    except (Broken, Gone) as error:
        raise NotApplicable(f"the server does not speak {MODERN}: {error}") from None
    versions = member(client.told, "supportedVersions", list, "the result of server/discover")
    expect(MODERN in versions, f"server/discover is answered in {MODERN}, and names other revisions: {shown(versions)}")
    return client.told, first, before


async def speaks_modern(d: Driver) -> Message:
    return (await modern_words(d))[0]


@once
async def before_all(d: Driver) -> Message:
    """The answer to a request that has nothing before it."""
    _, id_, before = await modern_words(d)
    return await (await d.modern()).response(id_, "agents/list, with nothing before it,", before)


@contextlib.asynccontextmanager
async def connected(subject: Subject) -> AsyncIterator[Driver]:
    """A driver that has reached the server."""
    if not subject.command and not (subject.address or "").startswith(("http://", "https://")):
        raise InvalidRequest("an MCP server is a command, or at an address that begins with http")
    async with AsyncExitStack() as stack:
        driver = Driver(subject, stack)
        await driver.reach()
        yield driver


async def names(d: Driver) -> dict[str, str]:
    items = await pages(await d.client(), whole=True)
    found = {name: name for item in items if isinstance(item, dict) and isinstance(name := item.get("name"), str)}
    return found if len(found) == len(items) else {}


suite: Suite[Driver] = Suite("mcp", connected, names=names)
check = suite.check

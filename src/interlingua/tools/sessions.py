"""A session with one tool server: agrees on a revision, lists tools, calls them, and explains failures.

It uses the client of the `mcp` library, which is imported with this module. `servers` decides when a session begins and
ends; `connections` carries its messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import mcp_types as types
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage

from .._version import __version__
from ..model.errors import InterlinguaError, RunTimedOut, ToolFailed, Unavailable
from ..model.team.tools import ToolOutcome, ToolSpec
from . import results
from .connections import BROKE, LOST, NO_MESSAGE, REFUSED, TOO_LARGE, Link
from .servers import Forgotten

SCOPES = "interlingua/scopes"  # in the `_meta` of each call

_PAGES, _TOOLS = 1000, 10_000  # a list that is longer has no end
# Errors of the library (2.3) in place of a server's:
_FORGOTTEN = "Session terminated"  # of a 404
_CLOSED = "Connection closed"
_STREAM_ENDED = "SSE stream ended"
_STREAM_FAILED = "SSE stream failed"  # one of its events was too long
_NOT_OF_THIS_ERA = (types.METHOD_NOT_FOUND, types.UNSUPPORTED_PROTOCOL_VERSION, types.INVALID_REQUEST)

# The library writes the id of a session to its log, and a trace for everything odd that a server sends.
logging.getLogger("mcp.client").setLevel(logging.CRITICAL)

T = TypeVar("T")


@asynccontextmanager
async def connected(name: str, make: Callable[[], Link], max_result: int) -> AsyncIterator[Session]:
    """Opens a connection to a server, and agrees on a revision. Raises Unavailable."""
    session = Session(name, max_result)
    async with AsyncExitStack() as stack:
        # All servers but the very newest know the handshake, and notify when their tools change; so it is tried first.
        # A server that knows only the revision without it reports that, and is asked again in that way.
        for mode in ("legacy", "auto"):
            session.link, session.keeps_list = make(), mode == "legacy"
            client = Client(
                session.link,
                mode=mode,
                message_handler=session.heard,
                client_info=types.Implementation(name="interlingua", version=__version__),
            )
            try:
                session.client = await stack.enter_async_context(client)
                break
            except Exception as raised:
                error = _single(raised)
                if isinstance(error, InterlinguaError):
                    raise error from None
                if not isinstance(error, MCPError):
                    why = f"{name} cannot be used: it does not speak as an MCP server: {_first(error)}"
                    raise Unavailable(why) from error
                if mode == "auto" or error.code not in _NOT_OF_THIS_ERA:
                    raise await session.unusable(error) from error
        yield session


class Session:
    client: Client
    link: Link

    def __init__(self, name: str, max_result: int) -> None:
        self._name = name
        self._max_result = max_result
        self.keeps_list = True  # the server tells when its tools change
        self.let_go = False  # by us
        self.answered = False  # at least once
        self._tools: list[ToolSpec] | None = None
        self._changes = 0

    async def heard(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._tools = None
            self._changes += 1

    async def tools(self, limit: float) -> list[ToolSpec]:
        if self._tools is not None:
            return list(self._tools)
        before = self._changes
        listed = await self._asked("list its tools", limit, self._list())
        if self.keeps_list and before == self._changes:
            self._tools = listed
        return list(listed)

    async def _list(self) -> list[ToolSpec]:
        tools: list[ToolSpec] = []
        cursors: set[str] = set()
        cursor: str | None = None
        while True:
            try:
                page = await self.client.list_tools(cursor=cursor)
            except MCPError as error:
                if error.code == types.METHOD_NOT_FOUND:
                    return tools  # it has other things than tools
                raise
            tools.extend(results.spec(self._name, tool) for tool in page.tools)
            cursor = page.next_cursor
            if not cursor:
                return tools
            if cursor in cursors or len(cursors) >= _PAGES or len(tools) > _TOOLS:
                raise ToolFailed(f"{self._name} cannot list its tools: the list has no end")
            cursors.add(cursor)

    async def call(self, tool: str, arguments: dict[str, Any], scopes: tuple[str, ...], limit: float) -> ToolOutcome:
        # Not by the client's own `call_tool`: it holds results against the server's schema, and a pattern in there can
        # keep the whole process busy.
        meta: Any = {SCOPES: list(scopes)}
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=tool, arguments=arguments, _meta=meta))
        sending = self.client.session.send_request(request, types.CallToolResult)
        answer = await self._asked(tool, limit, sending)
        return results.outcome(self._name, tool, answer, self._max_result)

    async def _asked(self, what: str, limit: float, asking: Coroutine[Any, Any, T]) -> T:
        """Waits for an answer, and raises a plain error where there is none. A caller that stops waiting cancels the
        request."""
        try:
            async with asyncio.timeout(limit):
                answer = await asking
        except TimeoutError:
            raise RunTimedOut(f"{self._name} did not answer within {limit:g} s ({what})") from None
        except MCPError as error:
            raise await self._wrong(what, error) from error
        except InterlinguaError:
            raise
        except Exception as error:  # the library raises many kinds of errors for odd answers
            if self.let_go or self.link.lost.is_set():
                raise Unavailable(f"{self._name} is gone: {await self._gone()}") from error
            self.answered = True
            raise ToolFailed(f"{self._name} gave an answer that cannot be read ({what}): {_first(error)}") from error
        self.answered = True
        return answer

    async def _wrong(self, what: str, error: MCPError) -> Exception:
        text = error.message
        if error.code == types.INVALID_REQUEST and text == _FORGOTTEN:
            return Forgotten()
        if error.code == types.CONNECTION_CLOSED:  # servers use this number too, and mean other things
            if text == _CLOSED or self.let_go or self.link.lost.is_set():
                return Unavailable(f"{self._name} is gone: {await self._gone()}")
            if text.startswith(_STREAM_ENDED):
                return Unavailable(f"{self._name} cannot be reached: {BROKE}")
        if error.code == LOST or (error.code == types.PARSE_ERROR and BROKE in text):
            return Unavailable(f"{self._name} cannot be reached: {text}")
        if error.code == REFUSED:
            return _refused(self._name, error)
        self.answered = True
        if error.code in (TOO_LARGE, NO_MESSAGE, types.PARSE_ERROR) or text.startswith(_STREAM_FAILED):
            return ToolFailed(f"{self._name} gave an answer that cannot be taken ({what}): {text}")
        return ToolFailed(f"{self._name} refuses {what}: {text}", details={"code": error.code})

    async def _gone(self) -> str:
        return "it was let go" if self.let_go else await self.link.why()

    async def unusable(self, error: MCPError) -> InterlinguaError:
        """Returns why the session could not be started."""
        if error.code == REFUSED:
            return _refused(self._name, error)
        if error.code == types.CONNECTION_CLOSED and self.link.lost.is_set():
            return Unavailable(f"{self._name} did not start: {await self.link.why()}")
        at = f" at {self.link.where}" if self.link.where else ""
        return Unavailable(f"{self._name} cannot be reached{at}: {error.message}")


def _refused(name: str, error: MCPError) -> Unavailable:
    status = error.error.data
    transient = not isinstance(status, int) or status == 429 or status >= 500
    return Unavailable(f"{name} cannot be used: {error.message}", transient=transient)


def _single(error: Exception) -> Exception:
    """Returns the error inside the exception groups of the library's task groups."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _first(error: Exception) -> str:
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__

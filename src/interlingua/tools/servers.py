"""Keeps the tool servers of teams: starts or reaches each on demand, and closes it when it is idle.

One connection serves all calls to a server, however many there are at once. A server that dies fails the calls that
were under way, and the next call starts it anew; one that keeps dying is started less and less often. The permission
to call a tool is not checked here: the engine does that before.

    command = "python"                   of a server: the Python of this process, so that it finds the same packages
    env = { KEY = "${SALES_KEY}" }       in env, args and headers, ${NAME} is taken from our environment, and
    args = ["--lang=${SALES_LANG:-en}"]  ${NAME:-VALUE} has a default for a variable that is not set, or empty
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import re
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from .. import extras
from ..model.errors import InterlinguaError, RunTimedOut, ToolFailed, Unavailable
from ..model.team.manifest import Server
from ..model.team.tools import ToolOutcome, ToolSpec
from ..mounts.idle import Use
from ..security.redaction import redact_text, redact_url

if TYPE_CHECKING:
    from .connections import Link
    from .sessions import Session

log = logging.getLogger("interlingua.tools")

_VARIABLE = re.compile(r"\$\{(?P<name>[^}]*?)(?P<other>:-[^}]*)?\}")
_ENVELOPE = 8  # factor for the size of a result on the wire: escaped, and sent both as text and as JSON
_LONGEST_PAUSE = 30.0
_SHORTEST_SECRET = 4

T = TypeVar("T")


class ToolSettings(msgspec.Struct, kw_only=True, frozen=True):
    timeout: float = 30.0
    """Seconds for a server to start, and for a call, where the server has no timeout of its own."""
    idle_timeout: float = 300.0
    """Seconds without a call after which the connection to a server is closed."""
    pause: float = 0.2
    """Seconds before a server that has failed is started again; doubled with each failure in a row."""
    attempts: int = 3
    """Failures in a row after which calls fail at once until the pause is over."""
    max_result: int = 1_000_000
    """Bytes of a result."""
    end_patience: tuple[float, float] = (3.0, 2.0)
    """Seconds for a process to end after its stdin is closed, and after SIGTERM."""


class McpServers:
    """Tool servers through the `mcp` library. Belongs to one event loop."""

    def __init__(
        self,
        folder: str | Path | None = None,
        settings: ToolSettings | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`folder` is the team's folder: servers are started there, and their `cwd` is relative to it."""
        self._folder = Path(folder) if folder is not None else None
        self._settings = settings or ToolSettings()
        self._environ = os.environ if environ is None else environ
        self._hosts: dict[tuple[str, bytes], _Host] = {}
        self._closed = False

    async def list(self, server_id: str, server: Server) -> list[ToolSpec]:
        """Returns all tools of a server, as of the last time that it reported a change."""
        limit = server.timeout or self._settings.timeout
        return await self._host(server_id, server).used(None, lambda session: session.tools(limit))

    async def call(
        self,
        server_id: str,
        server: Server,
        tool: str,
        arguments: dict[str, Any],
        *,
        scopes: tuple[str, ...] = (),
        timeout: float | None = None,
    ) -> ToolOutcome:
        """Calls a tool once. `timeout` limits the start, where one is needed, and again the call; neither takes longer
        than the server's own limit."""
        limits = [seconds for seconds in (server.timeout, timeout) if seconds is not None]
        limit = min(limits, default=self._settings.timeout)
        host = self._host(server_id, server)
        return await host.used(timeout, lambda session: session.call(tool, arguments, scopes, limit))

    async def close(self) -> None:
        self._closed = True
        hosts, self._hosts = list(self._hosts.values()), {}
        await asyncio.gather(*(host.close() for host in hosts))

    def _host(self, server_id: str, server: Server) -> _Host:
        if self._closed:
            raise Unavailable(f"{server_id} is not started: we are shutting down")
        key = (server_id, msgspec.json.encode(server, order="deterministic"))
        if key not in self._hosts:
            self._hosts[key] = _Host(server_id, server, self._settings, self._folder, self._environ)
        return self._hosts[key]


class Forgotten(Exception):
    """The server has forgotten the session, and did nothing: the call can be repeated in a new session."""


def check_installed() -> None:
    extras.look_for("a tool server", "mcp", "teams", "mcp", "mcp_types")


async def _load() -> None:
    """Imports the modules that need the library, in a thread, because that takes a second."""
    if f"{__package__}.toolsessions" in sys.modules:
        return
    check_installed()
    await asyncio.to_thread(importlib.import_module, ".sessions", __package__)


def _address(name: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return url
    except ValueError:
        pass
    raise Unavailable(
        f"{name} cannot be reached: {redact_url(url)!r} is no address with http:// or https://", transient=False
    )


# -- one server -----------------------------------------------------------------------------------------------


class _Host:
    """One server, over all its connections."""

    def __init__(
        self,
        name: str,
        server: Server,
        settings: ToolSettings,
        folder: Path | None,
        environ: Mapping[str, str],
    ) -> None:
        self.name = name
        self.server = server
        self.settings = settings
        self._folder = folder
        self._environ = environ
        self._life: _Life | None = None
        self._lives: set[_Life] = set()  # that one, and those that have not come to their end yet
        self._use = Use(settings.idle_timeout, self._too_idle)
        self._failures = 0  # in a row
        self._last_failure: InterlinguaError | None = None
        self._not_before = 0.0
        self._clean = redact_text  # removes secrets from its texts; also those it was given, once they are known

    async def used(self, timeout: float | None, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        """Uses the server, which is started where necessary."""
        with self._use.counted():
            for last in (False, True):
                life = self._living()
                session = await life.opened(timeout)
                try:
                    return await self._with(life, work(session))
                except Forgotten:
                    if last:
                        raise Unavailable(f"{self.name} forgets every session at once") from None
        raise AssertionError

    async def _with(self, life: _Life, work: Coroutine[Any, Any, T]) -> T:
        life.calls += 1
        try:
            done = await work
        except (RunTimedOut, asyncio.CancelledError):
            raise  # that tells nothing about the connection
        except ToolFailed as error:
            self._failures = 0  # it answers
            # It goes into logs and to models, and may contain the server's keys.
            raise ToolFailed(self._clean(error.message), details=error.details) from None
        except Exception as error:
            self._retire(life)
            if isinstance(error, Unavailable):
                life.lost(error)  # here too: the life may be ended before it has looked why itself
            raise
        else:
            self._failures = 0
            return done
        finally:
            life.calls -= 1
            if life.retired and not life.calls:
                life.end()

    def _living(self) -> _Life:
        if self._life is not None and not self._life.over:
            return self._life
        now = asyncio.get_running_loop().time()
        wait = max(0.0, self._not_before - now)
        if wait and self._failures >= self.settings.attempts and self._last_failure is not None:
            error = self._last_failure
            why = f"{error.message} (that was attempt {self._failures}; the next is made in {wait:.1f} s)"
            raise Unavailable(why, transient=error.transient)
        # Two processes of one server may get in each other's way; two connections to an address do not.
        before = [life.task for life in self._lives if life.over] if self.server.url is None else []
        life = self._life = _Life(self, self._way(), wait, before)
        self._lives.add(life)
        life.task.add_done_callback(lambda _: self._lives.discard(life))
        return life

    def _way(self) -> Callable[[], Link]:
        """Returns how to open a connection, with all variables filled in. Raises Unavailable where one is missing."""
        found: list[str] = []
        server = self.server

        def fill(text: str, at: str) -> str:
            def value(match: re.Match[str]) -> str:
                if given := self._environ.get(match["name"]):
                    found.append(given)
                    return given
                if match["other"] is not None:
                    return match["other"].removeprefix(":-")
                if given is None:
                    why = f"its {at} needs {match['name']}, which is not in the environment"
                    raise Unavailable(f"{self.name} cannot be reached: {why}", transient=False)
                return given

            return _VARIABLE.sub(value, text)

        args = [fill(arg, "args") for arg in server.args]
        env = {name: fill(text, f"env {name}") for name, text in server.env.items()}
        headers = {name: fill(text, f"header {name}") for name, text in server.headers.items()}
        secrets = sorted((secret for secret in found if len(secret) >= _SHORTEST_SECRET), key=len, reverse=True)

        def clean(text: str) -> str:
            for secret in secrets:
                text = text.replace(secret, "***")
            return redact_text(text)

        self._clean = clean
        max_bytes = _ENVELOPE * self.settings.max_result
        if server.url is not None:
            url = _address(self.name, server.url)

            def address() -> Link:
                from .connections import AddressLink

                return AddressLink(url, headers, max_bytes=max_bytes)

            return address
        if server.command is None:
            raise Unavailable(f"{self.name} cannot be reached: it has neither a command nor a url", transient=False)
        cwd = (self._folder or Path.cwd()) / (server.cwd or "")
        if not cwd.is_dir():
            raise Unavailable(f"{self.name} cannot be started: there is no folder {cwd}", transient=False)
        command = [sys.executable if server.command == "python" else server.command, *args]

        def process() -> Link:
            from .connections import ProcessLink

            patience = self.settings.end_patience
            return ProcessLink(command, str(cwd.resolve()), env, max_bytes=max_bytes, clean=clean, patience=patience)

        return process

    # -- reports of its connections -----------------------------------------------------------------------

    def failed(self, error: InterlinguaError) -> None:
        """Counts a failure: the server could not be started, or died without an answer since the last time."""
        self._failures += 1
        self._last_failure = error
        pause = min(self.settings.pause * 2 ** (self._failures - 1), _LONGEST_PAUSE)
        self._not_before = asyncio.get_running_loop().time() + pause

    def _retire(self, life: _Life) -> None:
        """Takes a connection out of use for new calls. Its present calls may end."""
        life.retired = True
        if self._life is life:
            self._life = None

    # -- idle time ----------------------------------------------------------------------------------------

    def _too_idle(self) -> None:
        if self._life is not None:
            log.info("%s is let go: nobody has used it for %g s", self.name, self.settings.idle_timeout)
            self._life.end()
            self._life = None

    async def close(self) -> None:
        self._use.stop()
        for life in self._lives:
            life.end()
        if self._lives:
            await asyncio.wait([life.task for life in self._lives])


class _Life:
    """One connection, from its start to its end. All of it happens in one task, because the library requires that."""

    def __init__(self, host: _Host, make: Callable[[], Link], pause: float, before: list[asyncio.Task[None]]) -> None:
        loop = asyncio.get_running_loop()
        self._host = host
        self._make = make
        self._pause = pause
        self._before = before
        self.calls = 0
        self.over = False
        self.retired = False
        self._ended = False
        self._counted = False  # as a failure
        self._links: list[Link] = []
        self._ready: asyncio.Future[Session] = loop.create_future()
        self.task = loop.create_task(self._live(), name=f"tool server {host.name}")

    async def opened(self, timeout: float | None) -> Session:
        """Waits until the connection can be used. A caller that gives up does not stop the start for others."""
        done, _ = await asyncio.wait([self._ready], timeout=timeout)
        if not done:
            raise RunTimedOut(f"{self._host.name} did not start within {timeout:g} s")
        if isinstance(error := self._ready.exception(), InterlinguaError):  # a new one for each caller
            raise type(error)(error.message, transient=error.transient) from error
        return self._ready.result()

    def end(self) -> None:
        """Ends the connection. Its task cleans up."""
        self.over = True
        if self._ready.done() and self._ready.exception() is None:
            self._ready.result().let_go = True
        if not self._ended:
            self._ended = True
            self.task.cancel()  # once: it is busy with the end from then on

    async def _live(self) -> None:
        name = self._host.name
        try:
            await self._started()
        except asyncio.CancelledError:
            self._fail(Unavailable(f"{name} was let go before it had started"), counts=False)
        except InterlinguaError as error:
            self._fail(error)
        except Exception as error:
            log.info("the connection to %s failed", name, exc_info=error)
            self._fail(Unavailable(f"{name} cannot be used: {type(error).__name__}"))
        finally:
            self.over = True

    async def _started(self) -> None:
        if self._before:
            await asyncio.wait(self._before)  # the connection before it is ended first
        await asyncio.sleep(self._pause)
        await _load()
        from .sessions import connected

        limit = self._host.server.timeout or self._host.settings.timeout
        timer = asyncio.get_running_loop().call_later(limit, self._too_slow, limit)
        try:
            async with connected(self._host.name, self._link, self._host.settings.max_result) as session:
                timer.cancel()
                self._ready.set_result(session)
                await session.link.lost.wait()
                self.over = True
                why = await session.link.why()
                log.info("%s is gone: %s", self._host.name, why)
                self.lost(Unavailable(f"{self._host.name} is gone: {why}"))
        finally:
            timer.cancel()

    def lost(self, error: Unavailable) -> None:
        """Notes that a started server is gone. Counts once, and only where it has never answered."""
        session = self._ready.result()
        if session.link.lost.is_set() and not (session.answered or session.let_go or self._counted):
            self._counted = True
            self._host.failed(error)

    def _link(self) -> Link:
        self._links.append(self._make())
        return self._links[-1]

    def _too_slow(self, limit: float) -> None:
        said = self._links[-1].said() if self._links else ""
        words = f"; the last it said: {said}" if said else ""
        self._fail(RunTimedOut(f"{self._host.name} did not start within {limit:g} s{words}"))
        self.end()

    def _fail(self, error: InterlinguaError, *, counts: bool = True) -> None:
        """Fails the callers that wait for the start."""
        if not self._ready.done():
            if counts:
                self._host.failed(error)
            self._ready.set_exception(error)
            self._ready.exception()  # perhaps no caller waits any more

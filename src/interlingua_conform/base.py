"""Defines checks, suites of checks, and the loop that runs them.

A check is a coroutine that gets a driver (an open connection to the server, in the protocol's own words). It returns,
or raises Broken with what the server did, or NotApplicable if it does not apply to this server. It carries the ids of
the requirements that it shows, as the manifest has them; their sections and texts come from the catalogue beside this
module.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cache
from importlib import resources
from typing import Any, Generic, Literal, TypeVar

import msgspec

from interlingua.model.errors import InterlinguaError, Invalid, InvalidRequest, Unavailable
from interlingua.transports.raw_client import Broken, Endpoint, Gone, expect, shown

__all__ = ["Broken", "Gone", "expect", "shown"]

UNREADABLE = "no sense could be made of what came"

_NAMED = 20  # agents that the error lists, if a name is unknown

Verdict = Literal["pass", "fail", "not applicable"]
Driver = TypeVar("Driver")


class NotApplicable(Exception):
    """The server does not offer what the requirement is about. The text says what is missing."""


class Requirement(msgspec.Struct, frozen=True):
    id: str
    section: str
    level: str
    text: str


class Finding(msgspec.Struct, frozen=True):
    """The verdict for one requirement."""

    id: str
    verdict: Verdict
    section: str
    level: str
    text: str
    why: str = ""  # for a failure, the deed of the server; else the missing thing


class Roles(msgspec.Struct, frozen=True, kw_only=True):
    """The agents of the server that the checks may use. Checks that need an agent that is not named do not apply."""

    agent: str | None = None  # any that answers soon; the first one, where none is named
    asking: str | None = None  # asks a question before it ends
    slow: str | None = None  # runs until it is cancelled, or for a good while
    failing: str | None = None  # always fails
    input: Any = None  # for `agent`, where what its schema tells is not enough


Role = Literal["agent", "asking", "slow", "failing"]
OPTIONS: dict[Role, str] = {"agent": "--agent", "asking": "--asks", "slow": "--slow", "failing": "--fails"}
"""The option of `interlingua conform` that names the agent of a role."""
WANTED: dict[Role, str] = {
    "agent": "--agent", "asking": "--asks: one that asks a question", "slow": "--slow: one that runs for a while",
    "failing": "--fails: one that always fails",
}  # fmt: skip
"""The same options with their meaning, for a caller that did not name the agent."""


class Subject(Endpoint, frozen=True, kw_only=True):
    """The server that is looked at, and what the checker may use there."""

    secret: str | None = None
    """The secret that signs messages, if the server has one and the checker knows it."""
    roles: Roles = Roles()


CheckFunction = Callable[[Driver], Awaitable[None]]


class Check(Generic[Driver]):
    def __init__(self, ids: tuple[str, ...], function: CheckFunction[Driver], fresh: bool, calm: bool) -> None:
        self.ids = ids
        self.function = function
        self.fresh = fresh
        self.calm = calm
        self.name = getattr(function, "__name__", "check")


class Suite(Generic[Driver]):
    """The checks of one protocol. `open` connects: checks share a connection until one of them breaks it, but for
    those that say `fresh`, which get one of their own. Those that say `calm` only read what a server tells of itself:
    nothing is run or changed by them. `lasting` (of the suite, or of a driver): a failed check breaks
    none, as nothing is shared but what was seen, which need not be looked at again. `names` tells which agents the
    server has: all names that each goes by, with the one that people know it by; none where it does not say, or where
    its list is wrong, which is for checks to tell."""

    def __init__(
        self,
        protocol: str,
        open: Callable[[Subject], AbstractAsyncContextManager[Driver]],  # noqa: A002
        *,
        names: Callable[[Driver], Awaitable[dict[str, str]]] | None = None,
        lasting: bool = False,
    ) -> None:
        self.protocol = protocol
        self.open = open
        self.names = names
        self.lasting = lasting
        self.checks: list[Check[Driver]] = []

    def check(
        self, *ids: str, fresh: bool = False, calm: bool = False
    ) -> Callable[[CheckFunction[Driver]], CheckFunction[Driver]]:  # fmt: skip
        def register(function: CheckFunction[Driver]) -> CheckFunction[Driver]:
            self.checks.append(Check(ids, function, fresh, calm))
            return function

        return register

    @property
    def ids(self) -> list[str]:
        """The ids of all requirements that the checks show, in the order of the checks."""
        return list(dict.fromkeys(name for check in self.checks for name in check.ids))


# -- what checks say ------------------------------------------------------------------------------------------


def applies(holds: object, why: str) -> None:
    """Raises NotApplicable unless something holds."""
    if not holds:
        raise NotApplicable(why)


Kind = TypeVar("Kind")


def member(value: Any, path: str, kind: type[Kind], where: str = "the answer") -> Kind:
    """Returns the value at a path such as `result.agents.0.name`. Raises Broken if it is missing or of another type."""
    at = value
    for step in path.split(".") if path else ():
        if isinstance(at, dict) and step in at:
            at = at[step]
        elif isinstance(at, list) and step.isdigit() and int(step) < len(at):
            at = at[int(step)]
        else:
            raise Broken(f"{where} has no {path}: {shown(value)}")
    if not isinstance(at, kind) or (isinstance(at, bool) and kind is not bool and kind is not object):
        raise Broken(
            f"{path or 'what came'} of {where} is {_kind_of(at)}, not {_NAMES.get(kind, kind.__name__)}: {shown(at)}"
        )
    return at


_NAMES: dict[type, str] = {
    dict: "an object", list: "an array", str: "a string", int: "an integer", float: "a number", bool: "a boolean",
    type(None): "null",
}  # fmt: skip


def _kind_of(value: Any) -> str:
    return _NAMES.get(type(value), type(value).__name__)


# -- running them ---------------------------------------------------------------------------------------------


@cache
def catalogue() -> dict[str, Requirement]:
    """Returns every requirement that can be seen from outside."""
    data = resources.files(__package__).joinpath("catalogue.json").read_bytes()
    return {entry.id: entry for entry in msgspec.json.decode(data, type=list[Requirement])}


class Report(msgspec.Struct):
    protocol: str
    subject: str
    findings: list[Finding] = []

    @property
    def failed(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict == "fail"]


async def conform(
    suite: Suite[Any], subject: Subject, only: Iterable[str] | None = None, *, calm: bool = False
) -> AsyncIterator[Finding]:  # fmt: skip
    """Runs the checks, and yields the finding for each requirement, in the order of the checks.

    A requirement that several checks show fails with the first that fails. `only` are ids, or beginnings of ids;
    `calm`: only checks that neither run nor change anything. Raises Unavailable if the server cannot be reached at all,
    and InvalidRequest if a named agent is not on it.
    """
    wanted = None if only is None else tuple(only)
    chosen = [c for c in suite.checks if wanted is None or any(i.startswith(wanted) for i in c.ids)]
    chosen = [c for c in chosen if c.calm or not calm]
    last = {name: at for at, check in enumerate(chosen) for name in check.ids}
    so_far: dict[str, tuple[Verdict, str]] = {}
    async with _Sharing(suite, subject) as sharing:
        await sharing.meet()
        for at, check in enumerate(chosen):
            verdict, why = await sharing.run(check)
            for name in check.ids:
                before = so_far.get(name)
                if before is None or (before[0] != "fail" and verdict != "not applicable"):
                    so_far[name] = (verdict, why)
                if last[name] == at and (wanted is None or name.startswith(wanted)):
                    yield _finding(name, *so_far[name])


def _finding(name: str, verdict: Verdict, why: str) -> Finding:
    entry = catalogue()[name]
    return Finding(name, verdict, entry.section, entry.level, entry.text, "" if verdict == "pass" else why)


def _unreached(error: InterlinguaError) -> InterlinguaError:
    """Returns the error to raise for a server that was not reached. A mistake in the request is reported as it is: it
    says nothing about the server."""
    return error if isinstance(error, Invalid) else Unavailable(f"the server cannot be reached: {error.message}")


class _Sharing:
    """Keeps the connection that checks share, and makes another where one was broken."""

    def __init__(self, suite: Suite[Any], subject: Subject) -> None:
        self._suite = suite
        self._subject = subject
        self._kept = AsyncExitStack()
        self._driver: Any = None
        self._reached = False

    async def __aenter__(self) -> _Sharing:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._kept.aclose()

    async def meet(self) -> None:
        """Checks that the named agents are on the server: a misspelt name must not count as a mistake of the server. If
        the server does not list its agents, the checks find out."""
        roles = {role: name for role in OPTIONS if (name := getattr(self._subject.roles, role)) is not None}
        if not roles or self._suite.names is None:
            return
        try:
            async with asyncio.timeout(6 * self._subject.patience):
                known = await self._suite.names(await self._connected(None))
        except Exception as error:  # checks report any mistake of the list
            if isinstance(error, InterlinguaError) and not self._reached:
                raise _unreached(error) from error
            await self._renew()
            return
        for role, name in roles.items():
            if known and name not in known:
                there = list(dict.fromkeys(known.values()))
                more = f" and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
                raise InvalidRequest(
                    f"the server has no agent {shown(name, 60)!r}, which {OPTIONS[role]} names; "
                    f"it has {', '.join(there[:_NAMED])}{more}"
                )

    async def run(self, check: Check[Any]) -> tuple[Verdict, str]:
        if check.fresh:
            async with AsyncExitStack() as own:
                return await self._judge(check, own)
        verdict = await self._judge(check, None)
        # A failure leaves nothing behind for the next check, unless there is nothing that it could spoil.
        if verdict[0] == "fail" and not (self._suite.lasting or getattr(self._driver, "lasting", False)):
            await self._renew()
        return verdict

    async def _renew(self) -> None:
        await self._kept.aclose()
        self._kept, self._driver = AsyncExitStack(), None

    async def _judge(self, check: Check[Any], own: AsyncExitStack | None) -> tuple[Verdict, str]:
        patience = self._subject.patience
        try:
            async with asyncio.timeout(6 * patience):
                await check.function(await self._connected(own))
        except Broken as error:
            if not self._reached and isinstance(error.__cause__, InterlinguaError):
                raise error.__cause__ from error
            return "fail", str(error)
        except NotApplicable as error:
            return "not applicable", str(error)
        except TimeoutError:
            return "fail", f"nothing came within {patience:g} s"
        except Gone as error:
            return "fail", str(error)
        except InterlinguaError as error:
            if not self._reached:
                raise _unreached(error) from error
            return "fail", error.message
        except Exception as error:  # the answer was too odd for the check: the report still goes on
            if not self._reached:
                raise
            return "fail", f"{UNREADABLE}: {type(error).__name__}: {error}"
        return "pass", ""

    async def _connected(self, own: AsyncExitStack | None) -> Any:
        if own is None and self._driver is not None:
            return self._driver
        driver = await (own or self._kept).enter_async_context(self._suite.open(self._subject))
        self._reached = True
        if own is None:
            self._driver = driver
        return driver

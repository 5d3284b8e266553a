"""Plays scenes that several checks look at: each once per connection, and remembers the result."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from .base import Broken, Gone, NotApplicable

Given = ParamSpec("Given")
Seen = TypeVar("Seen")


class Remembers(Protocol):
    kept: dict[Any, tuple[Any, Exception | None]]


Driver = TypeVar("Driver", bound=Remembers)


def once(
    function: Callable[Concatenate[Driver, Given], Awaitable[Seen]],
) -> Callable[Concatenate[Driver, Given], Coroutine[Any, Any, Seen]]:
    """A scene that is played once, and remembered with its failure."""

    @functools.wraps(function)
    async def remembered(driver: Driver, *given: Given.args, **named: Given.kwargs) -> Seen:
        key = (function, tuple((type(value), value) for value in given), tuple(named.items()))  # 0 is not False
        if key not in driver.kept:
            try:
                driver.kept[key] = (await function(driver, *given, **named), None)
            except (Broken, NotApplicable, Gone) as error:
                driver.kept[key] = (None, error)
        seen, failure = driver.kept[key]
        if failure is not None:
            raise type(failure)(*failure.args)
        return seen  # type: ignore[no-any-return]

    return remembered  # type: ignore[return-value]  # the name of the driver makes no difference

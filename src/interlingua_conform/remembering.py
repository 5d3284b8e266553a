"""Plays scenes that several checks look at: each once per connection, and remembers the result."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from .base import Broken, Gone, NotApplicable

Given = ParamSpec("Given")
Seen = TypeVar("Seen")
Driver = TypeVar("Driver")


def once(
    function: Callable[Concatenate[Driver, Given], Awaitable[Seen]],
) -> Callable[Concatenate[Driver, Given], Coroutine[Any, Any, Seen]]:
    """A scene that is played once for each driver, and remembered there with its failure."""

    @functools.wraps(function)
    async def remembered(driver: Driver, *given: Given.args, **named: Given.kwargs) -> Seen:
        kept = driver.__dict__.setdefault("kept", {})
        key = (function, tuple((type(value), value) for value in given), tuple(named.items()))  # 0 is not False
        if key not in kept:
            try:
                kept[key] = (await function(driver, *given, **named), None)
            except (Broken, NotApplicable, Gone) as error:
                kept[key] = (None, error)
            except asyncio.CancelledError:  # other checks that need it do not wait as long again
                kept[key] = (None, NotApplicable("it takes too long to see this"))
                raise
        seen, failure = kept[key]
        if failure is not None:
            raise type(failure)(*failure.args)
        return seen  # type: ignore[no-any-return]

    return remembered  # type: ignore[return-value]  # the name of the driver makes no difference

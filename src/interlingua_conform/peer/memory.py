"""Remembers every observation, so that it is made once."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from ..base import Broken, Gone, NotApplicable

Self = TypeVar("Self")
Seen = TypeVar("Seen")


def once(function: Callable[[Self], Awaitable[Seen]]) -> Callable[[Self], Awaitable[Seen]]:
    """Makes an observation run only once per object: the result is kept in that object, also if it is an error."""
    name = f"once {function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    async def remembered(self: Self) -> Seen:
        kept = self.__dict__.get(name)
        if kept is None:
            try:
                kept = (await function(self), None)
            except (Broken, NotApplicable, Gone) as error:
                kept = (None, error)
            except asyncio.CancelledError:  # other checks that need it do not wait as long again
                self.__dict__[name] = (None, NotApplicable("it takes too long to see this"))
                raise
            self.__dict__[name] = kept
        found, why = kept
        if why is not None:
            raise type(why)(str(why))
        return cast("Seen", found)

    return remembered

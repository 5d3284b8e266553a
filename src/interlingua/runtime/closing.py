"""Closing several things: each is closed, whatever goes wrong with the others."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any

log = logging.getLogger("interlingua.engine")

Step = Callable[[], Any]
"""Closes one thing: a function, or a coroutine function."""


async def close_all(steps: Iterable[Step]) -> None:
    """Carry out all steps in order, then raise the first error. A cancellation is one: it ends a step, and no more."""
    first: BaseException | None = None
    for step in steps:
        try:
            result = step()
            if inspect.isawaitable(result):
                await result
        except BaseException as error:
            if first is None:
                first = error
            else:
                log.error("while stopping: %s", error, exc_info=error)
    if first is not None:
        raise first

"""The example agents, in an installed package or beside a checkout's sources, and a server of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..model.errors import NotFound

if TYPE_CHECKING:
    from ..engine.agents import Agent
    from .serve import Server

EXAMPLES = ("echo", "mailcomposer", "counter")


def example(name: str) -> Path:
    """The file of an example agent."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "examples", package.parent.parent / "examples"):
        file = folder / f"{name}.py"
        if file.is_file():
            return file
    raise NotFound(f"the example {name}.py is not installed beside {package}")


def example_folder(name: str) -> Path:
    """The folder of an example team."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "examples" / name, package.parent.parent / "examples" / name):
        if folder.is_dir():
            return folder
    raise NotFound(f"the example {name} is not installed beside {package}")


@contextlib.asynccontextmanager
async def serving_somewhere(store: Path, agents: Iterable[Agent[..., Any]]) -> AsyncIterator[Server]:
    """Serve on the usual port, or on any free one where that is taken."""
    from .serve import CannotListen, ServeSettings, serving

    async with contextlib.AsyncExitStack() as stack:
        try:
            server = await stack.enter_async_context(serving(store, agents))
        except CannotListen:
            server = await stack.enter_async_context(serving(store, agents, ServeSettings(port=0)))
        yield server

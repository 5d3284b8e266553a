"""An agent whose process is given Ctrl-C at one moment of `interlingua run`: the one that WINDOW names.

What is patched here only says when; the process, its signals and its store are real.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import interlingua as il
from interlingua.cli.commands import run as command
from interlingua.engine.runs.service import RunService
from interlingua.engine.runs.worker import Worker
from interlingua.terminal.follow_run import Watch


@il.agent
async def hold() -> str:
    await asyncio.sleep(3600)
    return "never"


@il.agent
async def quick() -> str:
    return "done"


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def before(owner: Any, name: str) -> None:
    real: Callable[..., Any] = getattr(owner, name)

    def pressed(*args: Any, **named: Any) -> Any:
        setattr(owner, name, real)
        press()
        return real(*args, **named)

    setattr(owner, name, pressed)


def after(owner: Any, name: str) -> None:
    real: Callable[..., Any] = getattr(owner, name)

    async def pressed(*args: Any, **named: Any) -> Any:
        result = await real(*args, **named)
        press()
        return result

    setattr(owner, name, pressed)


match os.environ["WINDOW"]:
    case "the file is loaded":
        press()
    case "the store is opened":
        before(il.Engine, "start")
    case "the store is open":
        after(il.Engine, "start")
    case "the run is submitted":
        before(RunService, "submit")
    case "the run has begun, and nobody knows":
        before(Worker, "enter_submitted")
    case "the run is on disk":
        after(RunService, "submit")
    case "its card is looked up":
        before(command, "card_of")
    case "it is about to be followed":
        before(Watch, "follow")
    case "the store is closed":
        before(il.Engine, "stop")
    case "the store is shut":
        after(il.Engine, "stop")

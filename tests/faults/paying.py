"""Agents that must not be repeated, and write down that they were called."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import interlingua as il


def agents(effects: Path, *, dies: bool) -> list[il.Agent[..., Any]]:
    def pays(what: str) -> str:
        with effects.open("a") as file:
            file.write(f"{what}\n")
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return what

    @il.agent(retries=0)
    async def pay(what: str) -> str:
        return pays(what)

    @il.agent(retries=0)
    def pay_sync(what: str) -> str:
        return pays(what)

    return [pay, pay_sync]

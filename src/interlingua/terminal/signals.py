"""Handles SIGINT, SIGTERM and SIGHUP for a command that runs agents: the first asks it to end, the second ends it at
once. Either way its runs go on from their logs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..engine.engine import Engine

_AT_ONCE = 2.0  # seconds to hand the runs back, before the process ends all the same
ENDING = (signal.SIGINT, signal.SIGTERM)
HANGUP = signal.SIGHUP


class Signals:
    """Handles signals inside its context: the first signal calls `first`, the second leaves at once.

    Uses plain signal handlers rather than the loop's: they also work while an agent keeps the event loop busy.
    """

    def __init__(self, first: Callable[[], None], *, hangup: Callable[[], bool] | None = None) -> None:
        """`hangup`: what SIGHUP does; it returns True where the process is to end. None: as without this."""
        self.number: signal.Signals | None = None  # the number of the first signal
        self.engine: Engine | None = None  # the second signal hands its runs back
        self.folder: Path | None = None  # the second signal removes it
        self._first = first
        self._hangup = hangup
        self._count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        self._loop = asyncio.get_running_loop()
        for number in (*ENDING, HANGUP) if self._hangup is not None else ENDING:
            self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    @staticmethod
    def outlives_terminal() -> bool:
        """Returns whether the process was started with `nohup`."""
        return signal.getsignal(HANGUP) is signal.SIG_IGN

    def _received(self, number: int, frame: FrameType | None) -> None:
        # A terminal that is closed sends SIGHUP more than once, and the second one does not insist. It may arrive while
        # `_hangup` works for the first, so the count is looked at afterwards.
        if number == HANGUP and self._hangup is not None and (not self._hangup() or self._count):
            return
        self._count += 1
        if self._count == 1:
            self.number = signal.Signals(number)
            self._loop.call_soon_threadsafe(self._first)
        elif self._count == 2 and self.engine is not None:
            threading.Thread(target=self._leave, args=(self.engine, 128 + number), daemon=True).start()
        else:
            os._exit(128 + number)

    def _leave(self, engine: Engine, code: int) -> None:
        """Ends the process, and hands its runs back if that takes no time."""
        with contextlib.suppress(Exception):  # the loop is busy, or has ended; the store is away
            asyncio.run_coroutine_threadsafe(engine.abandon(), self._loop).result(_AT_ONCE)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(code)

"""The watchdog of the event loop: logs the code that blocks it, such as an agent that computes in an async function.

Blocking code cannot be stopped from outside, but the log names the line to move into a plain function.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback

log = logging.getLogger("interlingua.engine")


class LoopWatchdog:
    def __init__(self, after: float) -> None:
        self._after = after
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._beat = threading.Event()
        self._closed = threading.Event()
        if after > 0:
            threading.Thread(target=self._watch, name="interlingua-stall", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(self._after):
            self._beat.clear()
            try:
                self._loop.call_soon_threadsafe(self._beat.set)
            except RuntimeError:
                return
            if not self._beat.wait(self._after) and not self._closed.is_set():
                self._report()
                self._beat.wait(self._after * 30)

    def _report(self) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        if frame is not None:
            where = "".join(traceback.format_stack(frame)[-3:])
            log.warning(
                "the event loop has been blocked for %g s; make this agent a plain `def`, or process=True:\n%s",
                self._after, where,
            )  # fmt: skip

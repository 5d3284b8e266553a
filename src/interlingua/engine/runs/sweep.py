"""The sweep: what a worker does from time to time, to find what was overlooked."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from ...runtime.clock import sleep
from ...store.ports import Store
from ..alarm_clock import AlarmClock
from ..settings import Settings

log = logging.getLogger("interlingua.engine")


class Sweep:
    def __init__(
        self, store: Store, clock: AlarmClock, settings: Settings, swept: Callable[[], None],
        store_returned: Callable[[], None],
    ) -> None:  # fmt: skip
        """`swept` is called after all duties, `store_returned` when the store can be read again."""
        self.duties: list[Callable[[], Awaitable[None]]] = []
        self._store = store
        self._clock = clock
        self._every = settings.sweep_every
        self._swept = swept
        self._store_returned = store_returned
        self._trouble: str | None = None  # of the store, at the last look

    async def repeat(self) -> None:
        """Sweeps until it is cancelled. A duty that fails is logged, and the others are done."""
        while True:
            await sleep(self._clock, self._every)
            self._look_at_store()
            self._clock.look()
            for duty in self.duties:
                try:
                    await duty()
                except Exception as error:
                    log.error("sweeping failed: %s", error)
            self._swept()  # hints may get lost: look into the inboxes anyway

    def _look_at_store(self) -> None:
        trouble, before = self._store.trouble(), self._trouble
        self._trouble = trouble
        if trouble is not None and before is None:
            log.error("%s", trouble)
        elif before is not None and trouble is None:
            log.warning("the store file is there again")
            self._store_returned()

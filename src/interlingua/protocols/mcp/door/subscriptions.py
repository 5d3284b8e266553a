"""Serves `subscriptions/listen` of the revision without sessions: a request that stays open, and notifies of changed
lists.

There is nothing to catch up with: each notification says only "list again". So a client that reads slowly gets one
notification for any number of changes, and one that returns just subscribes anew.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ....transports.jsonrpc import params as params_
from ....transports.jsonrpc.core import Call
from .. import wire

if TYPE_CHECKING:
    from ....transports.jsonrpc.connection import Connection
    from .shared import Shared


class Subscriptions:
    """The open subscriptions of one client."""

    def __init__(self, shared: Shared, rpc: Connection) -> None:
        self._shared = shared
        self._rpc = rpc
        self._news: dict[asyncio.Event, asyncio.Task[Any]] = {}

    def wake(self) -> list[asyncio.Task[Any]]:
        """Wakes all subscriptions, because the lists have changed or the door stops. Returns the tasks that notify
        them."""
        for news in self._news:
            news.set()
        return list(self._news.values())

    async def listen(self, call: Call) -> dict[str, Any]:
        kinds = params_.read(call.params, wire.ListenRequest).notifications
        methods = []
        honoured = {}
        if kinds.tools_list_changed:
            honoured["toolsListChanged"] = True
            methods.append("notifications/tools/list_changed")
        if kinds.agents_list_changed:
            honoured["agentsListChanged"] = True
            methods.append("notifications/agents/list_changed")
        meta = {wire.META_SUBSCRIPTION: call.id}
        rpc = self._rpc
        news, task = asyncio.Event(), asyncio.current_task()
        assert task is not None
        self._news[news] = task
        try:
            # The honoured kinds are sent first; kinds that never change here are left out.
            acknowledged = {"notifications": honoured, "_meta": meta}
            rpc.notify("notifications/subscriptions/acknowledged", acknowledged, about=call.id)
            while not self._shared.stopping:
                await news.wait()
                news.clear()
                if not self._shared.stopping:
                    for method in methods:
                        rpc.notify(method, {"_meta": meta}, about=call.id)
                    await rpc.drain(call.id)
        finally:
            del self._news[news]
        return {"_meta": meta}

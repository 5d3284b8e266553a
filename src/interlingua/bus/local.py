"""The bus within one process. Processes that share a SQLite file notice changes in the file itself."""

from __future__ import annotations

from collections.abc import Callable


class LocalBus:
    def __init__(self) -> None:
        self._listeners: dict[str, dict[object, Callable[[], None]]] = {}

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        self._listeners.clear()

    def publish(self, topic: str) -> None:
        listeners = self._listeners.get(topic)
        if listeners:
            for callback in list(listeners.values()):
                callback()

    def publish_all(self) -> None:
        for topic in list(self._listeners):
            self.publish(topic)

    def subscribe(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        mark = object()
        self._listeners.setdefault(topic, {})[mark] = callback

        def end() -> None:
            listeners = self._listeners.get(topic)
            if listeners is not None:
                listeners.pop(mark, None)
                if not listeners:
                    self._listeners.pop(topic, None)

        return end

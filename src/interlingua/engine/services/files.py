"""Files that travel by address: a door that serves files registers its publisher, and mounts publish theirs with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ...model.errors import Unavailable

Publisher = Callable[[bytes, str, str | None], tuple[str, Awaitable[object]]]
"""Publishes a file (bytes, media type, name). Returns its address, and what to await before anybody learns it."""


class FileService:
    """Publishes files at addresses of this process, where a door serves them."""

    def __init__(self) -> None:
        self._publisher: Publisher | None = None

    def register(self, publisher: Publisher) -> None:
        """Takes the publisher of a door. The last one is used."""
        self._publisher = publisher

    @property
    def available(self) -> bool:
        return self._publisher is not None

    def publish(self, data: bytes, media_type: str, name: str | None) -> tuple[str, Awaitable[object]]:
        """Returns the address of a file, and what to await before anybody learns it."""
        if self._publisher is None:
            raise Unavailable("no door of this process serves files")
        return self._publisher(data, media_type, name)

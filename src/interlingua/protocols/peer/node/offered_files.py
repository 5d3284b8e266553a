"""Files that a node offers: bytes at addresses that nobody guesses."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable

import msgspec

from ....engine.engine import Engine
from ....model.documents import Drop, Put
from .node_store import Journal


class OfferedFiles:
    def __init__(self, engine: Engine, journal: Journal, public_url: str | None) -> None:
        self._engine = engine
        self._journal = journal
        self._public_url = public_url
        self.base: str | None = None  # the address below which they are offered

    def put(self, body: bytes, media_type: str, name: str | None) -> tuple[Put, str]:
        """Returns the change that stores bytes at an address that cannot be guessed, and that address."""
        id_ = secrets.token_urlsafe(24)
        kept = msgspec.json.encode({"media_type": media_type, "name": name}) + b"\n" + body
        base = self._public_url or self.base or "http://127.0.0.1"
        return Put(self._journal.files_space, id_, kept), f"{base.rstrip('/')}/files/{id_}"

    def offer_at(self, base: str) -> None:
        """Offers files below this address, those of mounts too."""
        self.base = base
        self._engine.files.register(self._offer)

    def _offer(self, body: bytes, media_type: str, name: str | None) -> tuple[str, Awaitable[object]]:
        put, address = self.put(body, media_type, name)
        return address, self._journal.keep([put])

    async def find(self, id_: str) -> tuple[bytes, str, str | None] | None:
        """The bytes of a file, its media type and its name."""
        found = await self._engine.documents.get(self._journal.files_space, id_)
        if found is None:
            return None
        head, _, body = found.body.partition(b"\n")
        facts = msgspec.json.decode(head)
        return body, facts["media_type"], facts["name"]

    async def forget(self, before: int) -> None:
        """Forget those that were made before a time."""
        space = self._journal.files_space
        while True:
            page = await self._engine.documents.search(space, limit=200)
            old = [Drop(space, file.id) for file in page if file.created_at < before]
            if old:
                await self._engine.documents.write(old)
            if len(old) < 200:
                return

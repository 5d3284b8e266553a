"""Links: the ids that other systems have for runs, threads and questions, kept over restarts."""

from __future__ import annotations

from ...store.ports import DocumentStore


class LinkService:
    """Keeps for each kind of foreign id its target. The first target of an id stays."""

    def __init__(self, documents: DocumentStore) -> None:
        self._documents = documents

    async def add(self, kind: str, foreign: str, target: str) -> str:
        """Links a foreign id, where it has no target yet. Returns its target."""
        return await self._documents.link(kind, foreign, target)

    async def find(self, kind: str, foreign: str) -> str | None:
        return await self._documents.linked(kind, foreign)

    async def remove(self, kind: str, foreign: str) -> None:
        await self._documents.unlink(kind, foreign)

"""The identity of this side at a remote node, kept in the store: after a restart it is the same peer there, with the
same tasks and the same conversations.

Only one process can be a peer at a time, because the newest connection counts. So each identity belongs to a worker,
and another worker takes it only when the first is dead.
"""

from __future__ import annotations

import base64
import hashlib
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from ....engine.engine import Engine
from ....engine.ids import new_id
from ....model.documents import Document, Put
from ..wire.links import Link

_SPACE = "peer.mount"
_LIMIT = 1000


class Place:
    """The place in the store for our identity, for one link and one worker."""

    def __init__(self, engine: Engine, link: Link) -> None:
        self._engine = engine
        self._topic = hashlib.sha256(str(link).encode()).hexdigest()[:32]  # the link itself is a secret
        self._id: str | None = None

    async def find(self) -> str | None:
        """Takes over the identity of a dead worker, and returns it."""
        alive = {worker.id for worker in await self._engine.cluster.workers()}
        for kept in await self._kept():
            if kept.owner not in alive and await self._take(kept):
                self._id = kept.id
                return kept.body.decode()
        return None

    async def keep(self, token: str) -> None:
        """Stores the identity of this side."""
        self._id = self._id or new_id()
        await self._engine.documents.write([self._put(self._id, token)])

    async def claim(self, token: str) -> None:
        """Takes over the identity with which a run was begun, so that no third worker does."""
        for kept in await self._kept():
            if kept.body == token.encode() and kept.owner != self._engine.cluster.worker_id:
                await self._take(kept)

    async def _kept(self) -> list[Document]:
        return await self._engine.documents.search(_SPACE, topic=self._topic, limit=_LIMIT)

    async def _take(self, kept: Document) -> bool:
        done = await self._engine.documents.write([self._put(kept.id, kept.body.decode(), kept.version)])
        return done.stale is None

    def _put(self, id_: str, token: str, version: int | None = None) -> Put:
        return Put(
            _SPACE, id_, token.encode(), topic=self._topic, owner=self._engine.cluster.worker_id, version=version
        )


# -- in the log of a run ---------------------------------------------------------------------------------------


def seal(link: Link, token: str) -> str:
    """Encrypts our identity for a run's log: many may read a log, and only the owner of the link may have the
    identity."""
    nonce = os.urandom(12)
    return base64.urlsafe_b64encode(nonce + _cipher(link).encrypt(nonce, token.encode(), None)).decode()


def unseal(link: Link, sealed: str) -> str | None:
    """Returns the identity; None where it was sealed with another link."""
    data = base64.urlsafe_b64decode(sealed)
    try:
        return _cipher(link).decrypt(data[:12], data[12:], None).decode()
    except InvalidTag:
        return None


def _cipher(link: Link) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(hashlib.sha256(f"known by|{link}".encode()).digest())

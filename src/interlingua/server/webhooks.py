"""Sends callbacks over HTTP."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx2

from ..engine.ports import NotTaken
from ..model.errors import Unavailable
from ..security import webhook_signatures
from ..security.egress import EgressGuard


class Webhooks:
    """Sends callbacks through the egress guard, with a delivery id and a signature."""

    def __init__(self, guard: EgressGuard, secret: str | None) -> None:
        self._client = guard.client(timeout=10.0)
        self._guard = guard
        self._secret = secret

    def check(self, url: str) -> None:
        """Raises an error for a URL to which nothing is ever sent."""
        self._guard.check_text(url)

    async def send(self, url: str, body: Any, delivery: int) -> None:
        content = json.dumps(body, allow_nan=False).encode()
        headers = {"content-type": "application/json", "x-interlingua-delivery": str(delivery)}
        if self._secret is not None:
            headers |= webhook_signatures.headers(self._secret, str(delivery), int(time.time()), content)
        try:
            # Only the status of the answer counts: the rest comes from a stranger, of any length and encoding.
            async with self._client.stream("POST", url, content=content, headers=headers) as answer:
                status = answer.status_code
        except httpx2.HTTPError as error:
            raise Unavailable(f"{type(error).__name__}: {error}") from error
        if not 200 <= status < 300:
            raise NotTaken(f"the receiver answered {status}")

    async def close(self) -> None:
        await self._client.aclose()

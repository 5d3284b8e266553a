"""Seals the `requestState` of a question that is returned, because clients carry it and could change it.

It holds the run and the question. Only the caller that got it can open it, with the same method, name and input, at
every process that shares the store. It has no time limit of its own: the question has one.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from ....engine.engine import Engine
from ....model import json_values
from ....model.documents import Put
from ....model.errors import InvalidRequest
from ....transports.jsonrpc.core import Call

_SPACE, _ID = "mcp:seal", "key"
_NONCE = 12  # bytes


class RequestStates:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cipher: ChaCha20Poly1305 | None = None

    async def seal(self, caller: str, call: Call, run: str, question: str) -> str:
        nonce = secrets.token_bytes(_NONCE)
        sealed = (await self._ready()).encrypt(nonce, f"{run} {question}".encode(), _about(caller, call))
        return base64.urlsafe_b64encode(nonce + sealed).decode()

    async def open(self, caller: str, call: Call, state: Any) -> tuple[str, str]:
        """Returns the run and the question. Raises InvalidRequest for any state that this request did not get."""
        try:
            data = base64.b64decode(state, altchars=b"-_", validate=True)
            if base64.urlsafe_b64encode(data).decode() != state:  # several texts can stand for the same bytes
                raise ValueError
            opened = (await self._ready()).decrypt(data[:_NONCE], data[_NONCE:], _about(caller, call))
        except (TypeError, ValueError, binascii.Error, InvalidTag):
            problem = "requestState is not the one that this request was answered with; send both again as they were"
            raise InvalidRequest(problem, path="/requestState") from None
        run, _, question = opened.decode().partition(" ")
        return run, question

    async def _ready(self) -> ChaCha20Poly1305:
        """Returns the key, which is made once for each store."""
        if self._cipher is None:
            documents = self._engine.documents
            await documents.write([Put(_SPACE, _ID, ChaCha20Poly1305.generate_key(), version=0)])
            document = await documents.get(_SPACE, _ID)
            assert document is not None
            self._cipher = ChaCha20Poly1305(document.body)
        return self._cipher


def _about(caller: str, call: Call) -> bytes:
    """Returns the caller and the request that a state is bound to."""
    params = call.params
    input_ = params.get("input", params.get("arguments"))
    return json_values.digest([caller, call.method, params.get("name"), input_]).encode()


__all__ = ["RequestStates"]

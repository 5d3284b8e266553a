"""The length and the digest of a text that grows: for comparing it later without holding it."""

from __future__ import annotations

import hashlib


class TextDigest:
    """A text that is added in pieces."""

    def __init__(self) -> None:
        self.length = 0
        self._hash = hashlib.blake2b()

    def add(self, text: str) -> None:
        self.length += len(text)
        self._hash.update(text.encode("utf-8", "surrogatepass"))

    def begins(self, text: str) -> bool:
        """Says whether a text begins with this one."""
        beginning = hashlib.blake2b(text[: self.length].encode("utf-8", "surrogatepass"))
        return len(text) >= self.length and beginning.digest() == self._hash.digest()

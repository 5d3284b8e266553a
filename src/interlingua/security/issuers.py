"""Describes the issuers of bearer tokens that the owner trusts. `tokens` checks their tokens and needs a library of
signatures: a server that trusts no issuer starts without it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec

from ..model.errors import InvalidRequest
from . import scopes as scopes_
from .addresses import is_loopback

# RFC 9864 renames EdDSA with its usual curve to Ed25519; issuers send either.
ALGORITHMS: dict[str, str] = {"RS256": "RSA", "PS256": "RSA", "ES256": "EC", "EdDSA": "OKP", "Ed25519": "OKP"}


class Issuer(msgspec.Struct, frozen=True):
    """An issuer whose tokens are accepted, their audience, and the place of its keys: a URL, or the key set itself."""

    issuer: str
    audience: str | list[str]
    jwks_url: str | None = None
    jwks: dict[str, Any] | None = None
    algorithms: tuple[str, ...] = tuple(ALGORITHMS)
    scopes: list[str] = []  # of callers whose tokens name no scope of this server

    def __post_init__(self) -> None:
        if not self.issuer or "|" in self.issuer:  # caller ids are ISSUER|SUBJECT
            raise InvalidRequest(f"An issuer is a text without |, got {self.issuer!r}", path="/issuer")
        if not self.audiences or not all(self.audiences):
            raise InvalidRequest(f"Issuer {self.issuer} needs an audience: the name it has for us", path="/audience")
        if (self.jwks_url is None) == (self.jwks is None):
            raise InvalidRequest(f"Issuer {self.issuer} needs either jwks_url or jwks", path="/jwks_url")
        if self.jwks_url is not None:
            url = urlsplit(self.jwks_url)
            if url.scheme != "https" and not (url.scheme == "http" and is_loopback(url.hostname or "")):
                raise InvalidRequest(f"jwks_url must be https, got {self.jwks_url!r}", path="/jwks_url")
        unknown = [name for name in self.algorithms if name not in ALGORITHMS]
        if unknown or not self.algorithms:
            known = ", ".join(ALGORITHMS)
            raise InvalidRequest(f"Algorithms may be {known}, got {', '.join(unknown) or 'none'}", path="/algorithms")
        scopes_.validate(self.scopes)

    @property
    def audiences(self) -> list[str]:
        return [self.audience] if isinstance(self.audience, str) else self.audience

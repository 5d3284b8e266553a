"""Makes API keys, defines their records, and checks keys against them.

The secret leaves `make_key` once and is kept nowhere; a record holds only its hash. An implementation of `KeyStore`
decides where records live.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from collections.abc import Iterable
from typing import Protocol

import msgspec

from ..model.errors import InvalidRequest
from . import scopes as scopes_

_ALPHABET = string.digits + string.ascii_letters
_ID_LENGTH = 10
_SECRET_LENGTH = 44  # of 62 letters: 262 bits
_KEY = re.compile(rf"il_([0-9A-Za-z]{{{_ID_LENGTH}}})_([0-9A-Za-z]{{{_SECRET_LENGTH}}})")
_NAME_LIMIT = 100


class KeyRecord(msgspec.Struct, omit_defaults=True):
    """The stored record of a key. Times are microseconds since 1970, UTC."""

    id: str  # public: it stands in listings and logs
    name: str
    hash: str
    scopes: list[str]
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    last_used_at: int | None = None


class KeyStore(Protocol):
    """The storage of key records."""

    async def put(self, record: KeyRecord) -> None: ...

    async def all(self) -> list[KeyRecord]: ...

    async def get(self, key_id: str) -> KeyRecord | None: ...

    async def revoke(self, key_id: str, at: int) -> bool:
        """Revokes a key. Returns False if there is none. Revoking it again keeps the first time."""

    async def touch(self, key_id: str, at: int) -> None:
        """Notes that the key was used."""


def make_key(name: str, scopes: Iterable[str], now: int, *, expires_at: int | None = None) -> tuple[str, KeyRecord]:
    """A new key: the secret text, to be shown once, and the record to keep."""
    if not name.strip() or len(name) > _NAME_LIMIT or not name.isprintable():
        raise InvalidRequest(f"a key needs a name of 1 to {_NAME_LIMIT} printable characters, got {name[:200]!r}")
    if expires_at is not None and expires_at <= now:
        raise InvalidRequest("a key cannot expire before it is made")
    key_id, secret = _random(_ID_LENGTH), _random(_SECRET_LENGTH)
    record = KeyRecord(key_id, name, _hash(key_id, secret), list(scopes_.validate(scopes)), now, expires_at)
    return f"il_{key_id}_{secret}", record


def key_id(presented: str) -> str | None:
    """Returns the public id in a text that has the form of a key. The key may still be wrong."""
    match = _KEY.fullmatch(presented)
    return match[1] if match else None


def check_key(presented: str, record: KeyRecord | None, now: int) -> KeyRecord | None:
    """The record, if it is the one of the presented key and still good.

    Look the record up by `key_id` and pass None where there is none: an unknown id then costs the same hash and the
    same comparison as a wrong secret, so that time does not tell which ids exist.
    """
    match = _KEY.fullmatch(presented)
    known = record if record is not None and match is not None and record.id == match[1] else _NOBODY
    same = hmac.compare_digest(_hash(known.id, match[2] if match else ""), known.hash)
    if not same or known is _NOBODY or known.revoked_at is not None:
        return None
    if known.expires_at is not None and known.expires_at <= now:
        return None
    return known


def _hash(key_id: str, secret: str) -> str:
    # Slow hashes (scrypt, argon2) make up for passwords that can be guessed. This secret has 262 random bits: no
    # dictionary holds it and no search ends, so a fast hash is as safe, and it is computed on every request. The
    # id is the salt: equal secrets would not show, and a hash moved to another record does not verify.
    digest = hashlib.blake2b(secret.encode(), digest_size=32, salt=key_id.encode(), person=b"interlingua.key1")
    return f"blake2b:{digest.hexdigest()}"


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


# The record to compare an unknown key with. Its secret is thrown away here.
_NOBODY = KeyRecord("0" * _ID_LENGTH, "nobody", _hash("0" * _ID_LENGTH, _random(_SECRET_LENGTH)), [], 0)

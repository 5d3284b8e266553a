"""Signs webhook deliveries: HMAC-SHA256 over id, time and body, so that a receiver knows who sent them.

The value is versioned (`v1=…`); a sender that changes its secret may send several, separated by commas. The time is
signed with the rest, so an old delivery cannot be played again later.
"""

from __future__ import annotations

import hashlib
import hmac
import re

from ..model.errors import InvalidRequest

DELIVERY_HEADER = "interlingua-delivery"
TIMESTAMP_HEADER = "interlingua-timestamp"
SIGNATURE_HEADER = "interlingua-signature"

TOLERANCE = 300  # seconds that the clocks of sender and receiver may differ

_ID = re.compile(r"[A-Za-z0-9_-]{1,200}")  # no dot: it separates what is signed
_DIGITS = re.compile(r"[0-9]{1,15}", re.ASCII)


def sign(secret: str | bytes, delivery_id: str, timestamp: int, body: bytes) -> str:
    """The value of the signature header. `timestamp` is in seconds."""
    if not secret:
        raise InvalidRequest("a signature needs a secret that is not empty")
    if not _ID.fullmatch(delivery_id):
        raise InvalidRequest(f"a delivery id is letters, digits, - and _, got {delivery_id[:200]!r}")
    if timestamp < 0:
        raise InvalidRequest(f"a timestamp is in seconds since 1970, got {timestamp}")
    signed = f"v1.{delivery_id}.{timestamp}.".encode() + body
    return "v1=" + hmac.new(_bytes(secret), signed, hashlib.sha256).hexdigest()


def headers(secret: str | bytes, delivery_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Returns the three headers of a delivery."""
    return {
        DELIVERY_HEADER: delivery_id,
        TIMESTAMP_HEADER: str(timestamp),
        SIGNATURE_HEADER: sign(secret, delivery_id, timestamp, body),
    }


def verify(
    secret: str | bytes,
    delivery_id: str,
    timestamp: int | str,
    body: bytes,
    signature: str,
    *,
    now: float,
    tolerance: float = TOLERANCE,
) -> bool:
    """Returns whether a delivery is genuine and recent. `timestamp` may be the header's text; bad input is not
    genuine."""
    text = str(timestamp)
    if not secret or not _ID.fullmatch(delivery_id) or not _DIGITS.fullmatch(text):
        return False
    expected = sign(secret, delivery_id, int(text), body).encode()
    genuine = False
    for value in signature.split(","):  # all of them, whichever matches
        genuine |= hmac.compare_digest(value.strip().encode("utf-8", "replace"), expected)
    return genuine and abs(now - int(text)) <= tolerance


def _bytes(secret: str | bytes) -> bytes:
    return secret.encode() if isinstance(secret, str) else secret

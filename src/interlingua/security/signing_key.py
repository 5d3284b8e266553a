"""Holds the owner's key: an Ed25519 pair that signs what the owner hands to others, and the public half with which they
check it.

The private key is a PEM file that only its owner may read, made when it is first needed. A public key is one line,
`ed25519:…`; its fingerprint is short enough to be read out over the telephone.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import stat
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ..model.errors import InvalidRequest
from .private_files import write_once

_SCHEME = "ed25519:"
_FINGERPRINT = "SHA256:"
_LARGEST = 64 * 1024  # bytes of a file that may be a key


class SigningKey:
    """A key pair. The private key stays in here and in its file."""

    def __init__(self, private: Ed25519PrivateKey, warnings: list[str] | None = None) -> None:
        self._private = private
        self.public = _text(private.public_key().public_bytes_raw())
        self.warnings = warnings or []  # about the file

    @classmethod
    def load_or_create(cls, file: Path) -> SigningKey:
        """Loads the key pair in a file, and makes it if there is none. Several processes may do this at once."""
        try:
            if not file.exists():
                _write(file, Ed25519PrivateKey.generate())
            return cls._load(file)
        except OSError as error:
            raise InvalidRequest(f"the key file {file} cannot be used: {error.strerror or error}") from error

    @classmethod
    def _load(cls, file: Path) -> SigningKey:
        warnings = []
        mode = stat.S_IMODE(file.stat().st_mode)
        private = _private(_small(file))
        if private is None:
            raise InvalidRequest(
                f"{file} holds no private Ed25519 key: name another file, or one that is not there yet"
            )
        if mode & 0o077:
            file.chmod(0o600)
            warnings.append(f"others could read the key file {file} (mode {mode:04o}); now they cannot")
        return cls(private, warnings)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.public)

    def sign(self, data: bytes) -> str:
        return _b64(self._private.sign(data))


def genuine(key: str, signature: str, data: bytes) -> bool:
    """Returns whether a signature of this public key covers the data. Bad input is not genuine."""
    raw, signed = _raw(key), _unb64(signature)
    if raw is None or signed is None:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(signed, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def fingerprint(key: str) -> str:
    """Returns the fingerprint of a public key, which people compare. A text that is no public key is returned as it
    is."""
    raw = _raw(key)
    return key if raw is None else _FINGERPRINT + _b64(hashlib.sha256(raw).digest())


class Expected:
    """Tests for an expected key: given as a public key, its fingerprint, or a file that holds either half of the
    key."""

    def __init__(self, key: str) -> None:
        self.fingerprint = _expected(key)

    def __call__(self, key: str) -> bool:
        return _raw(key) is not None and fingerprint(key) == self.fingerprint


def _expected(key: str) -> str:
    key = key.strip()
    if _raw(key) is not None:
        return fingerprint(key)
    if key.startswith(_FINGERPRINT) and len(_unb64(key.removeprefix(_FINGERPRINT)) or b"") == 32:
        return key
    if key.startswith((_SCHEME, _FINGERPRINT)):
        raise InvalidRequest(f"{key[:80]!r} is no Ed25519 key: it is cut off, or misspelt")
    try:
        held = _small(Path(key).expanduser())
    except (OSError, ValueError):
        raise InvalidRequest(
            f"{key[:200]!r} is no public key, no fingerprint of one, and no file that can be read"
        ) from None
    text = held.decode("utf-8", "replace").strip()
    private = _private(held)
    if _raw(text) is not None:
        return fingerprint(text)
    public = private.public_key() if private is not None else _public(held)
    if public is None:
        raise InvalidRequest(f"{key} holds no Ed25519 key")
    return fingerprint(_text(public.public_bytes_raw()))


# -- files ----------------------------------------------------------------------------------------------------


def _write(file: Path, private: Ed25519PrivateKey) -> None:
    held = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_once(file, held)


def _small(file: Path) -> bytes:
    with file.open("rb") as held:
        return held.read(_LARGEST)


def _private(held: bytes) -> Ed25519PrivateKey | None:
    try:
        key = serialization.load_pem_private_key(held, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it wants a password
        return None
    return key if isinstance(key, Ed25519PrivateKey) else None


def _public(held: bytes) -> Ed25519PublicKey | None:
    try:
        key = serialization.load_pem_public_key(held)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, Ed25519PublicKey) else None


# -- texts ----------------------------------------------------------------------------------------------------


def _text(raw: bytes) -> str:
    return _SCHEME + _b64(raw)


def _raw(key: str) -> bytes | None:
    raw = _unb64(key.removeprefix(_SCHEME)) if key.startswith(_SCHEME) else None
    return raw if raw is not None and len(raw) == 32 else None


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unb64(text: str) -> bytes | None:
    """Decodes base64url in the spelling that this program writes, and in no other spelling of the same bytes."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if _b64(raw) == text else None

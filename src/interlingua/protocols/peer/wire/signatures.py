"""Trust in senders: signs frames and cards, and checks those of others.

Two things sign, separately or together: a secret that both peers share (HMAC, which covers id and time alone) and a key
pair of the node's own (Ed25519, which covers the whole frame). By default a bad signature is a warning on the message;
a strict node drops untrusted frames. The modules that keep peers decide which key to believe.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import stat
import time
from pathlib import Path
from typing import Any, Literal

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ....model.errors import InvalidRequest
from ....security.private_files import write_once
from .frames import SIGNED, Frame, now_z, seconds_of

WINDOW = 300.0  # seconds that a signed time may be away
DEFAULT_KEY_FILE = Path("~/.acp/identity.json")

Verdict = Literal["valid", "invalid", "absent", "unchecked"]

# Members that only a receiver may write on a frame. A sender's are not believed.
MARKS = frozenset({"_sig_invalid", "_sig_stale", "_ed25519_verified", "_ed25519_invalid"})


class Checked(msgspec.Struct, kw_only=True):
    """The result of checking a frame. `unchecked` is a signature for which there is no key to check it."""

    sig: Verdict = "absent"
    identity: Verdict = "absent"
    stale: bool = False  # a good sig of a time too far away: perhaps played again
    public_key: str | None = None  # whose identity it is, where that is valid
    warnings: list[str] = []
    drop: bool = False

    def mark(self, frame: Frame) -> Frame:
        """Returns the frame with the result of its check, and without its sender's claims about that."""
        marked = {name: value for name, value in frame.items() if name not in MARKS}
        if self.sig == "invalid":
            marked["_sig_invalid"] = True
        if self.stale:
            marked["_sig_stale"] = True
        if self.identity == "valid":
            marked["_ed25519_verified"] = True
        elif self.identity == "invalid":
            marked["_ed25519_invalid"] = True
        return marked


class Trust:
    def __init__(
        self,
        secret: str | None = None,
        identity: Identity | None = None,
        window: float = WINDOW,
        strict: bool = False,
    ) -> None:
        self._secret = secret.encode() if secret else None
        self.identity = identity
        self.window = window
        self.strict = strict

    @property
    def hmac(self) -> bool:
        """Tells if messages are signed with a shared secret."""
        return self._secret is not None

    @property
    def signs(self) -> bool:
        """Tells if outgoing frames are signed in any way."""
        return self._secret is not None or self.identity is not None

    @property
    def lenient(self) -> bool:
        """Tells if a frame without signatures is accepted like any other: then there is nothing to check on it."""
        return not self.strict

    @property
    def room(self) -> int:
        """Returns the bytes by which a frame may grow on its way out: its number, the mark that it waited, and our
        signatures."""
        return 64 + (80 if self.hmac else 0) + (400 if self.identity is not None else 0)

    # -- frames -------------------------------------------------------------------------------------------

    def sign(self, frame: Frame) -> Frame:
        """Returns the frame with our signatures in place of any that it had. It must not be changed afterwards."""
        if self._secret is None and self.identity is None:
            return frame
        signed = {name: value for name, value in frame.items() if name not in ("sig", "identity")}
        if self._secret is not None and "message_id" in signed and "ts" in signed:
            signed["sig"] = _mac(self._secret, signed)
        if self.identity is not None:
            # The reference covers sig too, so it comes first.
            signed["identity"] = {**self.identity.block(), "sig": self.identity.sign(canonical(signed))}
        return signed

    def check(self, frame: Frame, card: dict[str, Any] | None = None, *, now: float | None = None) -> Checked:
        """Checks the signatures of a frame. `card` is that of the peer on whose connection it came."""
        found = Checked(warnings=[])
        self._check_sig(frame, found, time.time() if now is None else now)
        self._check_identity(frame, card, found)
        if self.strict:
            kind = frame.get("type")
            signs = (isinstance(kind, str) and kind in SIGNED) or "parts" in frame  # which is a message by any name
            required = signs and _card_key(card) is not None
            found.drop = (
                found.sig == "invalid"
                or found.identity == "invalid"
                or found.stale
                or (signs and self.hmac and found.sig != "valid")
                or (required and found.identity != "valid")
            )
            if found.drop and not found.warnings:
                found.warnings.append("it is not signed, and this node takes only what is")
        return found

    def _check_sig(self, frame: Frame, found: Checked, now: float) -> None:
        sig = frame.get("sig")
        if sig is None:
            return
        if self._secret is None:
            found.sig = "unchecked"
            return
        expected = _mac(self._secret, frame) if "message_id" in frame and "ts" in frame else None
        if expected is None or not isinstance(sig, str) or not _same(sig, expected):
            found.sig = "invalid"
            found.warnings.append("sig does not match: the peer has another secret, or id or time were changed")
            return
        found.sig = "valid"
        at = seconds_of(frame["ts"])
        if at is None or abs(now - at) > self.window:
            found.stale = True
            found.warnings.append(f"sig is of a time that is more than {self.window:g} seconds away")

    def _check_identity(self, frame: Frame, card: dict[str, Any] | None, found: Checked) -> None:
        block = frame.get("identity")
        if block is None:
            return
        scheme = block.get("scheme", "ed25519") if isinstance(block, dict) else None
        if isinstance(scheme, str) and not scheme.startswith("ed25519"):
            found.identity = "unchecked"
            found.warnings.append(f"the identity has the scheme {scheme[:40]!r}, which is not known")
            return
        key = _key_of(block)
        if not isinstance(block, dict) or key is None or not verify(key, block.get("sig"), _unsigned(frame)):
            found.identity = "invalid"
            found.warnings.append("the identity's signature does not match the message")
            return
        known = _card_key(card)
        if known is not None and known != key:
            found.identity = "invalid"
            found.warnings.append("the message is signed with another key than the one on the peer's card")
            return
        found.identity = "valid"
        found.public_key = b64(key)

    # -- cards --------------------------------------------------------------------------------------------

    def card_block(self) -> dict[str, Any] | None:
        """Returns the identity on our card, before the card is signed."""
        if self.identity is None:
            return None
        return {**self.identity.block(), "did": self.identity.did_acp, "did_key": self.identity.did_key,
                "did_acp": self.identity.did_acp}  # fmt: skip

    def sign_card(self, card: dict[str, Any]) -> dict[str, Any]:
        """Returns the card with our identity and a signature over all of it."""
        if self.identity is None:
            return card
        block = {name: value for name, value in (card.get("identity") or {}).items() if name != "card_sig"}
        told = {**card, "identity": {**block, **(self.card_block() or {})}}
        told["identity"] = {**told["identity"], "card_sig": self.identity.sign(canonical(told))}
        return told

    def verify_card(self, card: Any) -> dict[str, Any]:
        return verify_card(card)

    # -- documents ----------------------------------------------------------------------------------------

    def jwks(self, name: str | None = None) -> dict[str, Any]:
        """Returns the key set of RFC 7517, empty without an identity."""
        if self.identity is None:
            return {"keys": []}
        x = self.identity.public_key
        # The reference builds the id from the agent's name; without one, the DID is an id that never changes.
        kid = f"{name}:{x[:8]}" if name else self.identity.did_acp
        return {"keys": [{"kty": "OKP", "crv": "Ed25519", "x": x, "use": "sig", "alg": "EdDSA", "kid": kid}]}

    def did_document(self, link: str | None = None) -> dict[str, Any] | None:
        """Returns the DID document, or None without an identity. Everyone can read a link in it."""
        if self.identity is None:
            return None
        did, multibase = self.identity.did_key, self.identity.did_key.removeprefix("did:key:")
        method = f"{did}#{multibase}"
        service = [{"id": f"{did}#acp", "type": "ACPRelay", "serviceEndpoint": link}] if link else []
        return {
            "@context": ["https://www.w3.org/ns/did/v1", "https://w3id.org/security/suites/ed25519-2020/v1"],
            "id": did,
            "alsoKnownAs": [self.identity.did_acp],
            "verificationMethod": [
                {
                    "id": method,
                    "type": "Ed25519VerificationKey2020",
                    "controller": did,
                    "publicKeyMultibase": multibase,
                }
            ],
            "authentication": [method],
            "assertionMethod": [method],
            "service": service,
        }


def verify_card(card: Any) -> dict[str, Any]:
    """Reports if a card was signed with its own key, and claims no DID but that key's.

    It proves who made the card, and not that its sender is the same: cards are public. The members that `card.served`
    adds beside the card are not covered, and do not count.
    """
    block = card.get("identity") if isinstance(card, dict) else None
    told: dict[str, Any] = {"valid": False, "did": None, "did_consistent": None, "public_key": None, "scheme": "none",
                            "error": None}  # fmt: skip
    if not isinstance(block, dict):
        return {**told, "error": "the card has no identity"}
    for name in ("did", "scheme"):
        if isinstance(block.get(name), str):
            told[name] = block[name]
    key = _key_of(block)
    if key is None:
        return {**told, "error": "identity.public_key is missing, or is no Ed25519 key"}
    told["public_key"] = b64(key)
    own = (did_acp(key), did_key(key))
    told["did_consistent"] = all(block.get(name) in (None, *own) for name in ("did", "did_acp", "did_key"))
    told["did"] = told["did"] or own[0]
    if not isinstance(block.get("card_sig"), str):
        return {**told, "error": "identity.card_sig is missing: the card is not signed"}
    unsigned = {name: value for name, value in card.items() if name not in ("self", "peer")}
    unsigned["identity"] = {name: value for name, value in block.items() if name != "card_sig"}
    if not verify(key, block["card_sig"], unsigned):
        return {**told, "error": "the signature does not match the card"}
    if not told["did_consistent"]:  # the reference calls such a card valid: anybody could take another's DID
        return {**told, "error": "the card claims a DID that is not of its key"}
    return {**told, "valid": True}


# -- the key pair ---------------------------------------------------------------------------------------------


class Identity:
    """A key pair of the node's own. The private key stays in this object and in its file."""

    def __init__(self, private: Ed25519PrivateKey, warnings: list[str] | None = None) -> None:
        self._private = private
        self.raw = private.public_key().public_bytes_raw()
        self.public_key = b64(self.raw)
        self.did_acp = did_acp(self.raw)
        self.did_key = did_key(self.raw)
        self.warnings = warnings or []  # about the file

    @classmethod
    def new(cls) -> Identity:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def load_or_create(cls, path: Path | str) -> Identity:
        """Loads the key pair of a file, which is created where it is missing. Several processes may do this at once."""
        file = Path(path).expanduser()
        if not file.exists():
            cls.new()._write(file)
        return cls._load(file)

    def sign(self, data: bytes) -> str:
        return b64(self._private.sign(data))

    def block(self) -> dict[str, Any]:
        """Returns the facts about the signer in a signed message, beside the signature."""
        return {"scheme": "ed25519", "public_key": self.public_key, "pubkey_b64": self.public_key, "did": self.did_key}

    @classmethod
    def _load(cls, file: Path) -> Identity:
        warnings = []
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & 0o077:
            file.chmod(0o600)
            warnings.append(f"others could read the key file {file} (mode {mode:04o}); now they cannot")
        try:
            held = json.loads(file.read_text())
            seed = unb64(held["private_key"])
            identity = cls(Ed25519PrivateKey.from_private_bytes(seed or b""), warnings)
        except (OSError, ValueError, KeyError, TypeError):
            raise InvalidRequest(f"{file} holds no Ed25519 key: move it away, and a new one is made") from None
        stored = unb64(held.get("public_key"))
        if stored is not None and stored != identity.raw:
            raise InvalidRequest(f"the two keys in {file} do not belong together")
        return identity

    def _write(self, file: Path) -> None:
        held = {
            "scheme": "ed25519",
            "public_key": self.public_key,
            "did": self.did_key,
            "did_acp": self.did_acp,
            "private_key": b64(self._private.private_bytes_raw()),
            "created_at": now_z(),
        }
        write_once(file, (json.dumps(held, indent=2) + "\n").encode())


# -- bytes ----------------------------------------------------------------------------------------------------

_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_ED25519 = b"\xed\x01"  # the multicodec of an Ed25519 public key


def canonical(value: Any) -> bytes:
    """Returns JSON for signing: sorted keys, no white space, text as it is. The reference's json.dumps decides how
    numbers are written, so this is the standard library's too."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def verify(key: bytes, signature: Any, signed: Any) -> bool:
    """Tells if a signature (base64url) of this key covers a value. Malformed input is not genuine."""
    raw = unb64(signature)
    if raw is None:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(raw, canonical(signed))
    except (InvalidSignature, ValueError, RecursionError):
        return False
    return True


def did_acp(key: bytes) -> str:
    return f"did:acp:{b64(key)}"


def did_key(key: bytes) -> str:
    return f"did:key:z{base58(_ED25519 + key)}"


def key_of_did(did: str) -> bytes | None:
    """Returns the public key in a DID of either kind."""
    if did.startswith("did:acp:"):
        key = unb64(did.removeprefix("did:acp:"))
    elif did.startswith("did:key:z"):
        whole = unbase58(did.removeprefix("did:key:z"))
        key = whole[2:] if whole is not None and whole.startswith(_ED25519) else None
    else:
        return None
    return key if key is not None and len(key) == 32 else None


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: Any) -> bytes | None:
    """Decodes base64url, with or without padding."""
    if not isinstance(text, str) or not text.isascii():
        return None
    bare = text.rstrip("=")
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None


def base58(data: bytes) -> str:
    number, digits = int.from_bytes(data, "big"), ""
    while number:
        number, rest = divmod(number, 58)
        digits = _BASE58[rest] + digits
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + digits


def unbase58(text: str) -> bytes | None:
    if len(text) > 200 or any(letter not in _BASE58 for letter in text):
        return None
    number = 0
    for letter in text:
        number = number * 58 + _BASE58.index(letter)
    zeros = len(text) - len(text.lstrip("1"))
    return b"\0" * zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")


def _mac(secret: bytes, frame: Frame) -> str:
    return hmac.new(
        secret, f"{frame['message_id']}:{frame['ts']}".encode("utf-8", "replace"), hashlib.sha256
    ).hexdigest()


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def _unsigned(frame: Frame) -> Frame:
    return {name: value for name, value in frame.items() if name != "identity"}


def _key_of(block: Any) -> bytes | None:
    if not isinstance(block, dict):
        return None
    key = unb64(block.get("public_key") or block.get("pubkey_b64"))
    return key if key is not None and len(key) == 32 else None


def _card_key(card: dict[str, Any] | None) -> bytes | None:
    """Returns the key on a peer's card."""
    return _key_of((card or {}).get("identity"))

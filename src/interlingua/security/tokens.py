"""Checks bearer tokens of issuers that the owner trusts: JWTs, verified with the issuer's published keys (JWKS).

Only signatures with public keys count: `none` and HMAC are refused, whatever a token claims. The caller gives the
function that fetches keys; keys are kept for a while, and stay in use while their issuer cannot be reached.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
from joserfc import jwk, jws
from joserfc.errors import ClaimError, ExpiredTokenError
from joserfc.jwt import JWTClaimsRegistry

from ..model.errors import InvalidRequest
from ..model.run import Caller
from . import scopes as scopes_
from .errors import KeysUnavailable, Unauthenticated
from .issuers import ALGORITHMS, Issuer

Fetch = Callable[[str], Awaitable[bytes]]

_TYPES = ("jwt", "at+jwt", "application/at+jwt")  # not logout tokens, DPoP proofs and the like, signed by the same keys
_TOKEN_LIMIT = 16_384
_KEYS_LIMIT = 262_144
_TEXT_LIMIT = 255
_RSA_2048 = 342  # base64 letters of a modulus of 2,048 bits
_FETCH_TIMEOUT = 10.0


class TokenVerifier:
    """Turns a token into a caller, or refuses it."""

    def __init__(
        self,
        issuers: Iterable[Issuer],
        fetch: Fetch | None = None,
        *,
        leeway: int = 30,  # seconds that clocks may differ
        keep: float = 600.0,  # seconds until keys are fetched again
        pause: float = 30.0,  # seconds between fetches for unknown keys, and after a failed one
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leeway = leeway
        self._clock = clock
        self._sources: dict[str, _Source] = {}
        for issuer in issuers:
            if issuer.jwks_url is not None and fetch is None:
                raise InvalidRequest(f"Issuer {issuer.issuer} has a jwks_url, but nothing to fetch it with")
            if issuer.issuer in self._sources:
                raise InvalidRequest(f"Issuer {issuer.issuer} is given twice")
            self._sources[issuer.issuer] = _Source(issuer, fetch, keep, pause, monotonic)

    @property
    def issuers(self) -> list[Issuer]:
        return [source.issuer for source in self._sources.values()]

    async def verify(self, token: str) -> Caller:
        """Returns the caller of a good token. Raises Unauthenticated for a bad one, KeysUnavailable if the keys to
        check it with cannot be fetched."""
        signed, claims = _read(token)
        name = claims.get("iss")
        source = self._sources.get(name) if isinstance(name, str) else None
        if source is None:
            raise Unauthenticated("The token is from an issuer that this server does not accept")
        header = signed.headers()
        algorithm, key_id = header["alg"], header.get("kid")
        if algorithm not in source.issuer.algorithms:
            allowed = ", ".join(source.issuer.algorithms)
            raise Unauthenticated(f"The token's algorithm is not accepted; sign with one of {allowed}")
        key = await source.find(algorithm, key_id)
        if key is None:
            problem = "names no key (kid)" if key_id is None else "names a key (kid)"
            raise Unauthenticated(f"The token {problem} that could be found among its issuer's keys")
        if not _genuine(signed, key):
            raise Unauthenticated("The token's signature is wrong")
        self._check(source.issuer, claims)
        return _caller(source.issuer, claims)

    def _check(self, issuer: Issuer, claims: dict[str, Any]) -> None:
        registry = JWTClaimsRegistry(
            now=int(self._clock()),
            leeway=self._leeway,
            iss={"essential": True, "value": issuer.issuer},
            aud={"essential": True, "values": issuer.audiences},
            exp={"essential": True},
            sub={"essential": True},
        )
        try:
            registry.validate(claims)
        except ExpiredTokenError:
            raise Unauthenticated("The token has expired") from None
        except ClaimError as error:
            claim = error.claim
            if claim == "nbf" and "not yet" in error.description:
                raise Unauthenticated("The token is not valid yet") from None
            raise Unauthenticated(f"The token's claim {claim} is missing, or not what this server expects") from None


class _Registry(jws.JWSRegistry):
    """Accepts the algorithms of this project only. The library warns of EdDSA, which has two names now; both are
    fine."""

    max_header_length = 2048
    max_payload_length = _TOKEN_LIMIT

    def get_alg(self, name: str) -> Any:
        return self.algorithms[name] if name in ALGORITHMS else super().get_alg(name)


_REGISTRY = _Registry(algorithms=list(ALGORITHMS), strict_check_header=False)  # issuers add headers of their own


def _read(token: str) -> tuple[jws.CompactSignature, dict[str, Any]]:
    """Returns the signature and the claims of a token before it is verified: they only tell whose keys to verify it
    with."""
    if len(token) > _TOKEN_LIMIT:
        raise Unauthenticated(f"The token is longer than {_TOKEN_LIMIT} characters")
    try:
        signed = jws.extract_compact(token.encode("ascii"), registry=_REGISTRY)
        _REGISTRY.check_header(signed.headers())
        claims = msgspec.json.decode(signed.payload, type=dict[str, Any])
        header = signed.headers()
        # Extensions that must be understood: none is supported. b64 would change the signed bytes.
        odd = "crit" in header or "b64" in header or header.get("typ", "JWT").lower() not in _TYPES
    except Exception:  # any failure to parse a stranger's bytes has the same answer
        raise Unauthenticated("The token is no well-formed JWT") from None
    if odd:
        raise Unauthenticated("The token is no access token (its typ or crit header says so)")
    return signed, claims


def _genuine(signed: jws.CompactSignature, key: jwk.Key) -> bool:
    try:
        return jws.validate_compact(signed, key, registry=_REGISTRY)
    except Exception:  # a key that does not fit its algorithm, a signature of impossible shape
        return False


def _caller(issuer: Issuer, claims: dict[str, Any]) -> Caller:
    subject = claims["sub"]
    if not subject or len(subject) > _TEXT_LIMIT or not subject.isprintable():
        raise Unauthenticated(f"The token's claim sub must be 1 to {_TEXT_LIMIT} printable characters")
    names = (claims.get(claim) for claim in ("name", "preferred_username", "client_id"))
    name = next((name for name in names if isinstance(name, str) and name.isprintable() and name.strip()), None)
    return Caller(f"{issuer.issuer}|{subject}", name[:_TEXT_LIMIT] if name else None, _scopes(issuer, claims))


def _scopes(issuer: Issuer, claims: dict[str, Any]) -> tuple[str, ...]:
    """Returns the scopes of a token that this server defines. Others (openid, email …) have no meaning here, but one
    that looks like a scope of this server and is invalid refuses the token: scopes narrow what is allowed, so skipping
    a misspelt one would allow more."""
    scopes: dict[str, None] = {}
    for claim in ("scope", "scp", "scopes"):
        value = claims.get(claim)
        items = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
        scopes.update((item, None) for item in items if isinstance(item, str) and scopes_.ours(item))
    if not all(scopes_.valid(scope) for scope in scopes):
        raise Unauthenticated("The token has a scope that looks like one of this server's, but means nothing")
    return tuple(scopes) or tuple(issuer.scopes)


class _Source:
    """The keys of one issuer, as far as they are known."""

    def __init__(
        self, issuer: Issuer, fetch: Fetch | None, keep: float, pause: float, monotonic: Callable[[], float]
    ) -> None:
        self.issuer = issuer
        self._fetch = fetch
        self._keep = keep
        self._pause = pause
        self._now = monotonic
        self._keys: list[jwk.Key] = []
        self._fresh_until = float("-inf")  # until then, nothing is fetched but for an unknown kid
        self._searched_at: float | None = None  # when keys were last fetched for the sake of an unknown kid
        self._lock = asyncio.Lock()  # one fetch at a time; waiting callers use its result
        if issuer.jwks is not None:
            self._keys = _import(issuer.jwks)
            self._fresh_until = float("inf")
            if not self._keys:
                raise InvalidRequest(f"The jwks of issuer {issuer.issuer} holds no usable public key", path="/jwks")

    async def find(self, algorithm: str, key_id: str | None) -> jwk.Key | None:
        # While one caller fetches new keys, the others go on with the old ones.
        if self._stale() and not (self._keys and self._lock.locked()):
            async with self._lock:
                if self._stale():
                    await self._refresh()
        if not self._keys:
            raise KeysUnavailable(f"The keys of the issuer {self.issuer.issuer} could not be fetched; try again later")
        key = self._pick(algorithm, key_id)
        if key is not None or key_id is None or self.issuer.jwks is not None:
            return key
        async with self._lock:
            # A caller that waited here for the fetch of another looks again before it fetches.
            key = self._pick(algorithm, key_id)
            if key is None and (self._searched_at is None or self._now() - self._searched_at >= self._pause):
                self._searched_at = self._now()
                await self._refresh()
                key = self._pick(algorithm, key_id)
        return key

    def _stale(self) -> bool:
        return self._now() >= self._fresh_until

    def _pick(self, algorithm: str, key_id: str | None) -> jwk.Key | None:
        fitting = [key for key in self._keys if key.key_type == ALGORITHMS[algorithm] and _for(key, algorithm)]
        if key_id is None:
            return fitting[0] if len(fitting) == 1 else None
        return next((key for key in fitting if key.kid == key_id), None)

    async def _refresh(self) -> None:
        assert self._fetch is not None
        assert self.issuer.jwks_url is not None
        keys: list[jwk.Key] = []
        try:
            async with asyncio.timeout(_FETCH_TIMEOUT):
                text = await self._fetch(self.issuer.jwks_url)
            if len(text) <= _KEYS_LIMIT:
                keys = _import(msgspec.json.decode(text))
        except Exception:  # unreachable, not JSON, no keys: in any case the old keys stay in use
            keys = []
        self._keys = keys or self._keys
        self._fresh_until = self._now() + (self._keep if keys else self._pause)


def _for(key: jwk.Key, algorithm: str) -> bool:
    names = ("EdDSA", "Ed25519") if ALGORITHMS[algorithm] == "OKP" else (algorithm,)
    return key.get("use") in (None, "sig") and key.get("alg") in (None, *names)


def _import(jwks: object) -> list[jwk.Key]:
    """Returns the usable public keys of a set. RFC 7517 wants the others ignored; shared secrets do not count as keys,
    because every reader of the set could sign with them."""
    entries = jwks.get("keys") if isinstance(jwks, dict) else None
    keys: list[jwk.Key] = []
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict) or entry.get("kty") not in ALGORITHMS.values():
            continue
        if entry["kty"] == "RSA" and len(str(entry.get("n", ""))) < _RSA_2048:
            continue
        try:
            keys.append(jwk.import_key(entry))
        except Exception:  # noqa: S112 - a broken key, or of a kind that the library does not know
            continue
    return keys

"""Tokens: real keys, real signatures, and the ways in which tokens are forged."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import warnings
from typing import Any

import msgspec
import pytest
from joserfc import jwk, jws, jwt
from joserfc.errors import SecurityWarning

from interlingua.model.errors import InvalidRequest
from interlingua.security.errors import KeysUnavailable, Unauthenticated
from interlingua.security.tokens import Fetch, Issuer, TokenVerifier
from tests.kit.keys import NOW, Clock

ISSUER = "https://issuer.example"
URL = "https://issuer.example/jwks"
RSA = jwk.RSAKey.generate_key(2048, {"kid": "rsa"})
EC = jwk.ECKey.generate_key("P-256", {"kid": "ec"})
ED = jwk.OKPKey.generate_key("Ed25519", {"kid": "ed"})
STRANGER = jwk.RSAKey.generate_key(2048, {"kid": "rsa"})
KEYS: dict[str, jwk.Key] = {"RS256": RSA, "PS256": RSA, "ES256": EC, "EdDSA": ED, "Ed25519": ED}

GOOD: dict[str, Any] = {"iss": ISSUER, "aud": "interlingua", "sub": "alice", "exp": NOW + 60}


def public(*keys: jwk.Key) -> dict[str, Any]:
    return {"keys": [dict(key.as_dict(private=False)) for key in keys]}


def token(key: jwk.Key = RSA, alg: str = "RS256", header: dict[str, Any] | None = None, **claims: Any) -> str:
    """A signed token; a claim or header of None is left out."""
    merged = {name: value for name, value in {**GOOD, **claims}.items() if value is not None}
    head = {name: value for name, value in {"alg": alg, "kid": key.kid, **(header or {})}.items() if value is not None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)
        return jwt.encode(head, merged, key, algorithms=[alg], registry=None)


def part(value: object) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def raw(header: dict[str, Any], body: str) -> str:
    """A token with a good signature over whatever it says."""
    signed = f"{part(header)}.{body}"
    return f"{signed}.{part(jws.JWSRegistry.algorithms['RS256'].sign(signed.encode(), RSA))}"


def verifier(clock: Clock | None = None, **issuer: Any) -> TokenVerifier:
    settings: dict[str, Any] = {"audience": "interlingua", "jwks": public(RSA, EC, ED), **issuer}
    return TokenVerifier([Issuer(ISSUER, **settings)], clock=clock or Clock())


async def refusal(text: str, by: TokenVerifier | None = None) -> str:
    with pytest.raises(Unauthenticated) as refused:
        await (by or verifier()).verify(text)
    assert len(text) < 8 or text not in refused.value.message
    assert 'error="invalid_token"' in refused.value.challenge
    return refused.value.message


class Published:
    """An issuer's key set on the network: it changes, fails, and counts who asks."""

    def __init__(self, *keys: jwk.Key) -> None:
        self.body = msgspec.json.encode(public(*keys))
        self.failing = False
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, url: str) -> bytes:
        assert url == URL
        self.asked += 1
        await self.gate.wait()
        if self.failing:
            raise OSError("unreachable")
        return self.body


def remote(fetch: Fetch, ticks: Clock) -> TokenVerifier:
    issuer = Issuer(ISSUER, "interlingua", jwks_url=URL)
    return TokenVerifier([issuer], fetch, clock=Clock(), monotonic=ticks, keep=600, pause=30)


@pytest.mark.parametrize("alg", list(KEYS))
async def test_a_good_token_gives_its_caller(alg: str) -> None:
    caller = await verifier().verify(token(KEYS[alg], alg, name="Alice"))
    assert (caller.id, caller.name, caller.scopes) == (f"{ISSUER}|alice", "Alice", ())


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({"scope": "openid do:run agents:mail email"}, ("do:run", "agents:mail")),
        ({"scp": ["do:read", "profile"]}, ("do:read",)),
        ({"scopes": ["see:all"], "scope": "do:run"}, ("do:run", "see:all")),
        ({"scope": "*"}, ("*",)),
        ({"scope": "openid"}, ("do:read",)),
        ({"scope": 7, "scp": [7]}, ("do:read",)),
        ({}, ("do:read",)),
    ],
)
async def test_scopes_that_are_ours_are_taken_and_a_token_without_gets_the_issuers(
    claims: dict[str, Any], scopes: tuple[str, ...]
) -> None:
    assert (await verifier(scopes=["do:read"]).verify(token(**claims))).scopes == scopes


async def test_a_misspelt_scope_refuses_the_token_because_skipping_it_would_allow_more() -> None:
    assert "means nothing" in await refusal(token(scope="openid do:raed"))


@pytest.mark.parametrize("alg", ["none", "None", "NONE"])
async def test_a_token_without_signature_is_refused(alg: str) -> None:
    for header in ({"alg": alg}, {"alg": alg, "kid": "rsa"}):
        assert "algorithm is not accepted" in await refusal(f"{part(header)}.{part(GOOD)}.")


@pytest.mark.parametrize("encoding", ["PEM", "DER"])
async def test_a_public_key_used_as_a_shared_secret_is_refused(encoding: Any) -> None:
    # By hand, because the library refuses to make such a key.
    for algorithm, digest in (("HS256", "sha256"), ("HS512", "sha512")):
        signed = f"{part({'alg': algorithm, 'kid': 'rsa'})}.{part(GOOD)}"
        signature = hmac.digest(RSA.as_bytes(encoding=encoding), signed.encode(), digest)
        assert "algorithm is not accepted" in await refusal(f"{signed}.{part(signature)}")


async def test_a_shared_secret_in_the_key_set_is_no_key() -> None:
    shared = jwk.OctKey.generate_key(256, {"kid": "oct"})
    by = verifier(jwks={"keys": [dict(shared.as_dict(private=True)), *public(RSA)["keys"]]})
    await refusal(jwt.encode({"alg": "HS256", "kid": "oct"}, GOOD, shared), by)
    with pytest.raises(InvalidRequest, match="no usable public key"):
        verifier(jwks={"keys": [dict(shared.as_dict(private=True))]})


async def test_a_token_signed_by_a_stranger_under_a_known_kid_is_refused() -> None:
    assert await refusal(token(STRANGER)) == "The token's signature is wrong"


async def test_a_key_that_a_token_brings_along_is_not_believed() -> None:
    brought = dict(STRANGER.as_dict(private=False))
    for header in ({"jwk": brought}, {"jku": "https://evil.example/jwks"}):
        await refusal(token(STRANGER, header=header))


async def test_a_token_whose_claims_were_changed_is_refused() -> None:
    head, _, signature = token().split(".")
    assert await refusal(f"{head}.{part({**GOOD, 'sub': 'root'})}.{signature}") == "The token's signature is wrong"


async def test_an_algorithm_that_does_not_fit_the_key_is_refused() -> None:
    _, body, signature = token(EC, "ES256").split(".")
    confused = part({"alg": "RS256", "kid": "ec"})
    assert "could be found" in await refusal(f"{confused}.{body}.{signature}")
    bound = verifier(jwks=public(jwk.RSAKey.import_key(RSA.as_dict(private=True), {"kid": "rsa", "alg": "PS256"})))
    assert "could be found" in await refusal(token(RSA, "RS256"), bound)
    await bound.verify(token(RSA, "PS256"))


async def test_an_issuer_may_allow_fewer_algorithms() -> None:
    only = verifier(algorithms=("ES256",))
    assert "sign with one of ES256" in await refusal(token(), only)
    await only.verify(token(EC, "ES256"))


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"exp": NOW - 31}, "has expired"),
        ({"exp": None}, "claim exp"),
        ({"exp": "tomorrow"}, "claim exp"),
        ({"exp": True}, "claim exp"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"nbf": "x"}, "claim nbf"),
        ({"iat": NOW + 31}, "claim iat"),
        ({"aud": "somebody-else"}, "claim aud"),
        ({"aud": ["a", "b"]}, "claim aud"),
        ({"aud": None}, "claim aud"),
        ({"aud": []}, "claim aud"),
        ({"aud": {"interlingua": 1}}, "claim aud"),
        ({"sub": None}, "claim sub"),
        ({"sub": ""}, "claim sub"),
        ({"sub": 7}, "claim sub"),
        ({"sub": "a\nb"}, "claim sub"),
        ({"sub": "x" * 256}, "claim sub"),
        ({"iss": "https://other.example"}, "issuer that this server does not accept"),
        ({"iss": ISSUER + "/"}, "issuer that this server does not accept"),
        ({"iss": None}, "issuer that this server does not accept"),
        ({"iss": [ISSUER]}, "issuer that this server does not accept"),
    ],
)
async def test_a_claim_that_is_wrong_refuses_the_token_and_is_named(claims: dict[str, Any], message: str) -> None:
    assert message in await refusal(token(**claims))


async def test_clocks_may_differ_a_little() -> None:
    await verifier().verify(token(exp=NOW - 29, nbf=NOW + 29, iat=NOW + 29))


async def test_one_of_several_audiences_is_enough_on_either_side() -> None:
    await verifier().verify(token(aud=["other", "interlingua"]))
    await verifier(audience=["one", "two"]).verify(token(aud="two"))


@pytest.mark.parametrize("typ", ["logout+jwt", "dpop+jwt", "secevent+jwt", ""])
async def test_another_kind_of_token_of_the_same_issuer_is_refused(typ: str) -> None:
    assert "no access token" in await refusal(token(header={"typ": typ}))


@pytest.mark.parametrize("typ", ["JWT", "at+jwt", "application/at+JWT"])
async def test_access_tokens_are_accepted_with_headers_of_the_issuers_own(typ: str) -> None:
    await verifier().verify(raw({"alg": "RS256", "kid": "rsa", "typ": typ, "x-tenant": "a"}, part(GOOD)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        "a.b.c",
        "é.é.é",
        f"{part([])}.{part(GOOD)}.x",
        f"{part('alg')}.{part(GOOD)}.x",
        f"{part(7)}.{part(GOOD)}.x",
        f"{part({'alg': ['RS256']})}.{part(GOOD)}.x",
        f"{part({'alg': 'RS256', 'kid': 7})}.{part(GOOD)}.x",
        f"{part({'alg': 'RS256', 'crit': 7})}.{part(GOOD)}.x",
        f"{part({'alg': 'RS256', 'typ': 7})}.{part(GOOD)}.x",
        f"{part({'alg': 'RS256', 'kid': 'rsa'})}.{part([GOOD])}.x",
        f"{part({'alg': 'RS256', 'kid': 'rsa'})}.{part(b'{' * 3)}.x",
        f"{part(b'[' * 1500)}.{part(GOOD)}.x",
        f"{part({'alg': 'RS256'})}.{part(b'[' * 10000)}.x",
        f"{part({'kid': 'rsa'})}.{part(GOOD)}.x",
    ],
)
async def test_what_is_no_well_formed_token_is_refused_and_nothing_breaks(text: str) -> None:
    assert "well-formed" in await refusal(text)


@pytest.mark.parametrize("header", [{"b64": True, "crit": ["b64"]}, {"b64": True}, {"crit": []}, {"crit": ["exp"]}])
async def test_extensions_that_must_be_understood_are_refused_however_well_signed(header: dict[str, Any]) -> None:
    await refusal(raw({"alg": "RS256", "kid": "rsa", **header}, part(GOOD)))


async def test_a_token_that_is_too_long_is_refused_unread() -> None:
    assert "longer than" in await refusal("a" * 16_385)


async def test_a_signature_of_impossible_shape_is_just_wrong() -> None:
    for key, alg in ((RSA, "RS256"), (EC, "ES256"), (ED, "EdDSA")):
        head, body, _ = token(key, alg).split(".")
        for signature in ("", "x", "!!!", part(b"\0" * 64)):
            assert await refusal(f"{head}.{body}.{signature}") == "The token's signature is wrong"


async def test_a_token_without_kid_is_fine_while_only_one_key_fits() -> None:
    await verifier().verify(token(EC, "ES256", {"kid": None}))
    two = verifier(jwks=public(RSA, jwk.RSAKey.generate_key(2048, {"kid": "other"})))
    assert "names no key" in await refusal(token(header={"kid": None}), two)


async def test_keys_are_fetched_once_and_kept_until_they_are_old() -> None:
    ticks, published = Clock(0), Published(RSA)
    by = remote(published, ticks)
    await by.verify(token())
    await by.verify(token())
    ticks.now = 599
    await by.verify(token())
    assert published.asked == 1
    ticks.now = 600
    await by.verify(token())
    assert published.asked == 2


async def test_an_unknown_kid_fetches_the_keys_again_once_in_a_while() -> None:
    ticks, published = Clock(0), Published(RSA)
    by = remote(published, ticks)
    await by.verify(token())
    rotated = jwk.RSAKey.generate_key(2048, {"kid": "next"})
    published.body = msgspec.json.encode(public(RSA, rotated))
    await by.verify(token(rotated))
    assert published.asked == 2
    for kid in ("guess-1", "guess-2", "guess-3"):
        assert "could be found" in await refusal(token(STRANGER, header={"kid": kid}), by)
    assert published.asked == 2
    ticks.now = 30
    await refusal(token(STRANGER, header={"kid": "guess-4"}), by)
    await refusal(token(STRANGER, header={"kid": "guess-5"}), by)
    assert published.asked == 3


async def test_many_tokens_at_once_fetch_the_keys_once() -> None:
    ticks, published = Clock(0), Published(RSA)
    by = remote(published, ticks)
    published.gate.clear()
    waiting = [asyncio.create_task(by.verify(token())) for _ in range(10)]
    while not published.asked:
        await asyncio.sleep(0)
    published.gate.set()
    callers = await asyncio.gather(*waiting)
    assert {caller.id for caller in callers} == {f"{ISSUER}|alice"}
    assert published.asked == 1


async def test_old_keys_stay_in_use_while_the_issuer_cannot_be_reached() -> None:
    ticks, published = Clock(0), Published(RSA)
    by = remote(published, ticks)
    await by.verify(token())
    published.failing = True
    ticks.now = 700
    await by.verify(token())
    await by.verify(token())
    assert published.asked == 2  # not again at once
    await refusal(token(STRANGER, header={"kid": "guess"}), by)
    ticks.now = 800
    published.failing, published.body = False, b"<html>not found</html>"
    await by.verify(token())
    published.body = b'{"keys": []}'
    ticks.now = 900
    await by.verify(token())
    assert published.asked == 5


async def test_while_one_caller_fetches_anew_the_others_go_on_with_the_old_keys() -> None:
    ticks, published = Clock(0), Published(RSA)
    by = remote(published, ticks)
    await by.verify(token())
    published.gate.clear()
    ticks.now = 700
    first = asyncio.create_task(by.verify(token()))
    while published.asked < 2:
        await asyncio.sleep(0)
    await by.verify(token())
    assert not first.done()
    published.gate.set()
    await first


async def test_without_any_keys_nobody_can_tell_and_the_issuer_is_not_asked_in_a_row() -> None:
    ticks, published = Clock(0), Published(RSA)
    published.failing = True
    by = remote(published, ticks)
    for _ in range(3):
        with pytest.raises(KeysUnavailable) as unknown:
            await by.verify(token())
        assert unknown.value.transient
    assert published.asked == 1
    published.failing = False
    ticks.now = 30
    await by.verify(token())


async def test_a_stranger_to_all_issuers_makes_nobody_fetch() -> None:
    published = Published(RSA)
    await refusal(token(iss="https://evil.example"), remote(published, Clock(0)))
    await refusal("a.b.c", remote(published, Clock(0)))
    assert published.asked == 0


async def test_keys_that_are_broken_or_unknown_are_skipped_not_fatal() -> None:
    odd = [{"kty": "AKP", "kid": "pq"}, {"kty": "EC", "crv": "P-256"}, "nonsense", {}, None]
    by = verifier(jwks={"keys": [*odd, *public(RSA)["keys"]]})
    await by.verify(token())


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
async def test_a_key_that_is_too_short_signs_nothing() -> None:
    short = jwk.RSAKey.generate_key(1024, {"kid": "short"})
    assert "could be found" in await refusal(token(short), verifier(jwks=public(short, RSA)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"issuer": ""}, "issuer"),
        ({"issuer": "a|b"}, "without |"),
        ({"audience": ""}, "audience"),
        ({"audience": []}, "audience"),
        ({"jwks_url": None}, "either jwks_url or jwks"),
        ({"jwks": {"keys": []}}, "either jwks_url or jwks"),
        ({"jwks_url": "http://issuer.example/jwks"}, "must be https"),
        ({"jwks_url": "file:///jwks"}, "must be https"),
        ({"algorithms": ("HS256",)}, "got HS256"),
        ({"algorithms": ("none",)}, "got none"),
        ({"algorithms": ()}, "Algorithms may be"),
        ({"scopes": ["do:raed"]}, "did you mean"),
    ],
)
def test_an_issuer_that_would_not_be_safe_cannot_be_declared(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Issuer(**{"issuer": ISSUER, "audience": "interlingua", "jwks_url": URL, **settings})
    assert message in refused.value.message


def test_a_verifier_needs_a_way_to_fetch_and_each_issuer_once() -> None:
    issuer = Issuer(ISSUER, "interlingua", jwks_url="http://localhost:9000/jwks")
    with pytest.raises(InvalidRequest, match="nothing to fetch"):
        TokenVerifier([issuer])
    inline = Issuer(ISSUER, "interlingua", jwks=public(RSA))
    with pytest.raises(InvalidRequest, match="twice"):
        TokenVerifier([inline, inline])

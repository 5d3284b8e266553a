"""From headers to callers: what every HTTP door asks first."""

from __future__ import annotations

import re

import pytest
from joserfc import jwk, jwt

from interlingua.model.errors import InvalidRequest, StoreError
from interlingua.security.auth import ANONYMOUS, Authenticator, check_bind, redact
from interlingua.security.errors import Unauthenticated, UnsafeBind
from interlingua.security.keys import make_key
from interlingua.security.tokens import Issuer, TokenVerifier
from tests.kit.keys import NOW, NOW_MICROS, Clock, MemoryKeys

SECRET, RECORD = make_key("ci", ["do:run"], NOW_MICROS)
SIGNER = jwk.ECKey.generate_key("P-256", {"kid": "k"})
ISSUER = Issuer("https://issuer.example", "interlingua", jwks={"keys": [dict(SIGNER.as_dict(private=False))]})
CHALLENGE = re.compile(
    r'Bearer realm="interlingua"(, error="invalid_token", error_description="[\x20-\x21\x23-\x5b\x5d-\x7e]+")?'
)
TOKEN = jwt.encode(
    {"alg": "ES256", "kid": "k"},
    {"iss": "https://issuer.example", "aud": "interlingua", "sub": "alice", "exp": NOW + 60},
    SIGNER,
)


def closed(keys: MemoryKeys | None = None, clock: Clock | None = None) -> Authenticator:
    ticking = clock or Clock()
    store = MemoryKeys(RECORD) if keys is None else keys
    return Authenticator(store, TokenVerifier([ISSUER], clock=ticking), clock=ticking)


async def refusal(headers: dict[str, str], by: Authenticator | None = None) -> Unauthenticated:
    with pytest.raises(Unauthenticated) as refused:
        await (by or closed()).authenticate(headers)
    for value in headers.values():
        secret = value.split(" ")[-1]
        assert len(secret) < 8 or secret not in refused.value.message + refused.value.challenge
    assert refused.value.code == "unauthenticated"
    assert CHALLENGE.fullmatch(refused.value.challenge)
    return refused.value


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": SECRET},
        {"X-API-Key": f" {SECRET} "},
        {"authorization": f"Bearer {SECRET}"},
        {"Authorization": f"bearer  {SECRET}"},
        {"x-api-key": SECRET, "authorization": f"Bearer {SECRET}"},
        {"x-api-key": SECRET, "authorization": "Basic cHJveHk6cHJveHk="},
    ],
)
async def test_a_key_is_accepted_in_either_header(headers: dict[str, str]) -> None:
    caller = await closed().authenticate(headers)
    assert (caller.id, caller.name, caller.scopes) == (f"key:{RECORD.id}", "ci", ("do:run",))


async def test_a_token_is_accepted_as_bearer() -> None:
    assert (await closed().authenticate({"authorization": f"Bearer {TOKEN}"})).id == "https://issuer.example|alice"


async def test_without_a_credential_the_refusal_says_what_to_send_and_the_challenge_has_no_error() -> None:
    error = await refusal({})
    assert '"x-api-key: KEY" or "Authorization: Bearer KEY"' in error.message
    assert '"Authorization: Bearer TOKEN"' in error.message
    assert error.challenge == 'Bearer realm="interlingua"'
    assert "nobody is let in" in (await refusal({}, Authenticator())).message


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": SECRET[:-1] + ("a" if SECRET[-1] != "a" else "b")},
        {"x-api-key": "il_unknownkey_" + SECRET.split("_")[2]},
        {"x-api-key": ""},
        {"x-api-key": "not a key at all"},
        {"x-api-key": TOKEN},
        {"authorization": "Bearer not-a-key-at-all"},
        {"authorization": "Bearer"},
        {"authorization": "Basic dXNlcjpwYXNzd29yZA=="},
        {"authorization": f"{SECRET}"},
        {"authorization": "Bearer eyJhbGciOiJub25lIn0.e30."},
        {"x-api-key": SECRET, "authorization": f"Bearer {TOKEN}"},
    ],
)
async def test_a_wrong_credential_is_refused_without_repeating_it(headers: dict[str, str]) -> None:
    assert 'error="invalid_token"' in (await refusal(headers)).challenge
    open_ = Authenticator(MemoryKeys(RECORD), open_to_all=True)
    if SECRET not in headers.get("x-api-key", ""):
        await refusal(headers, open_)  # nobody becomes anonymous by sending nonsense


async def test_a_server_without_keys_asks_for_one_as_soon_as_somebody_has_one() -> None:
    auth = Authenticator(MemoryKeys(RECORD), open_to_all=True)
    await auth.authenticate({})
    await auth.authenticate({"x-api-key": SECRET})
    await refusal({}, auth)


async def test_credentials_of_a_kind_that_the_server_has_none_of_are_refused() -> None:
    assert (
        "accepts no tokens"
        in (await refusal({"authorization": f"Bearer {TOKEN}"}, Authenticator(MemoryKeys()))).message
    )
    await refusal({"x-api-key": SECRET}, Authenticator())


async def test_revoked_and_expired_keys_are_refused_at_once() -> None:
    keys = MemoryKeys(RECORD)
    by = closed(keys)
    await by.authenticate({"x-api-key": SECRET})
    assert await keys.revoke(RECORD.id, NOW_MICROS)
    await refusal({"x-api-key": SECRET}, by)

    secret, record = make_key("short", [], NOW_MICROS, expires_at=NOW_MICROS + 5_000_000)
    clock = Clock()
    by = closed(MemoryKeys(record), clock)
    await by.authenticate({"x-api-key": secret})
    clock.now += 5
    await refusal({"x-api-key": secret}, by)


async def test_the_use_of_a_key_is_noted_at_most_once_a_minute_and_never_for_a_wrong_secret() -> None:
    keys, clock = MemoryKeys(RECORD), Clock()
    by = closed(keys, clock)
    await refusal({"x-api-key": SECRET[:-3] + "000"}, by)
    assert keys.touched == []
    for _ in range(3):
        await by.authenticate({"x-api-key": SECRET})
    clock.now += 60
    await by.authenticate({"x-api-key": SECRET})
    assert keys.touched == [(RECORD.id, NOW_MICROS), (RECORD.id, NOW_MICROS + 60_000_000)]


async def test_a_use_that_cannot_be_noted_does_not_fail_the_request() -> None:
    class ReadOnly(MemoryKeys):
        async def touch(self, key_id: str, at: int) -> None:
            raise StoreError("read only")

    await closed(ReadOnly(RECORD)).authenticate({"x-api-key": SECRET})


async def test_an_open_server_lets_in_who_sends_nothing() -> None:
    by = Authenticator(open_to_all=True)
    assert await by.authenticate({"host": "localhost"}) == ANONYMOUS
    assert by.schemes() == []


async def test_a_request_that_repeats_a_credential_with_another_value_is_refused() -> None:
    class Lines(dict[str, str]):
        def items(self) -> list[tuple[str, str]]:  # type: ignore[override]
            return [("x-api-key", SECRET), ("x-api-key", "other")]

    with pytest.raises(InvalidRequest, match="several x-api-key headers") as refused:
        await closed().authenticate(Lines())
    assert SECRET not in refused.value.message


def test_what_is_accepted_is_told_as_openapi_security_schemes() -> None:
    assert [(scheme["type"], scheme.get("scheme"), scheme.get("name")) for scheme in closed().schemes()] == [
        ("apiKey", None, "x-api-key"),
        ("http", "bearer", None),
        ("http", "bearer", None),
    ]
    jwt_scheme = closed().schemes()[2]
    assert jwt_scheme["bearerFormat"] == "JWT"
    assert "https://issuer.example" in jwt_scheme["description"]


def test_logs_show_the_public_id_of_a_key_and_no_secret() -> None:
    hidden = SECRET.split("_")[2]
    shown = redact(
        {
            "X-API-Key": SECRET,
            "Authorization": f"Bearer {SECRET}",
            "authorization": f"Bearer {TOKEN}",
            "proxy-authorization": "Basic dXNlcjpwYXNzd29yZA==",
            "Cookie": f"session=1; key={SECRET}",
            "cookie": f"key= {SECRET}",
            "accept": "*/*",
        }
    )
    assert shown == {
        "X-API-Key": f"il_{RECORD.id}_***",
        "Authorization": f"Bearer il_{RECORD.id}_***",
        "authorization": "***",
        "proxy-authorization": "***",
        "Cookie": "***",
        "cookie": f"il_{RECORD.id}_***",
        "accept": "*/*",
    }
    assert hidden not in str(shown)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.5", "agents.example"])
def test_a_public_bind_without_authentication_is_refused_with_what_to_do(host: str) -> None:
    with pytest.raises(UnsafeBind, match=r"interlingua keys add NAME.*--host 127\.0\.0\.1"):
        check_bind(host, Authenticator(open_to_all=True))
    check_bind(host, closed())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_a_loopback_bind_may_be_open(host: str) -> None:
    check_bind(host, Authenticator(open_to_all=True))

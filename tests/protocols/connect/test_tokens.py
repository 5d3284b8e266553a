"""Tokens (JWT) through the door: a real server, and an issuer on loopback that publishes its keys."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from joserfc import jwk, jwt

from interlingua.security.tokens import Issuer
from tests.kit.http_servers import serve

from .test_door import up

KEY = jwk.ECKey.generate_key("P-256", {"kid": "ours"})
STRANGER = jwk.ECKey.generate_key("P-256", {"kid": "theirs"})
ISSUER = "https://login.example.org"
JWKS = msgspec.json.encode({"keys": [KEY.as_dict(private=False)]})
PUBLISHED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(JWKS) + JWKS


def bearer(sub: str = "ada", key: Any = KEY, **claims: Any) -> dict[str, str]:
    told = {"iss": ISSUER, "aud": "agents", "sub": sub, "exp": int(time.time()) + 60, **claims}
    return {"authorization": f"Bearer {jwt.encode({'alg': 'ES256', 'kid': key.kid}, told, key)}"}


async def test_a_token_runs_an_agent_and_sees_only_its_own_runs(store: Path) -> None:
    async with serve(PUBLISHED) as keys:
        issuer = Issuer(ISSUER, "agents", jwks_url=f"http://127.0.0.1:{keys.port}/keys")
        async with up(store, issuers=[issuer]) as s:
            ada, bob = bearer("ada"), bearer("bob")
            body = {"agent_id": "echo", "input": {"text": "hello"}}
            told = await s.post("/runs/wait", body, headers=ada)
            assert told["output"]["values"] == {"text": "hello "}
            run = told["run"]["run_id"]
            theirs = (await s.post("/runs/wait", body, headers=bob))["run"]["run_id"]
            assert [r["run_id"] for r in await s.post("/runs/search", {}, headers=ada)] == [run]
            assert [r["run_id"] for r in await s.post("/runs/search", {}, headers=bob)] == [theirs]
            await s.get(f"/runs/{run}", headers=ada)
            await s.get(f"/runs/{run}", 404, headers=bob)
            await s.get(f"/runs/{run}", 404, headers=bearer("eve"))
            await s.get(f"/runs/{run}", headers=bearer("root", scope="openid see:all do:read"))
            assert len(keys.requests) == 1, "the issuer's keys are fetched once"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"exp": int(time.time()) - 3600}, "expired"),
        ({"aud": "somebody else"}, "claim aud"),
        ({"key": STRANGER}, "kid"),
        ({"iss": "https://evil.example.org"}, "issuer"),
    ],
)
async def test_a_token_that_is_not_good_is_401_and_says_so(store: Path, wrong: dict[str, Any], said: str) -> None:
    async with serve(PUBLISHED) as keys:
        issuer = Issuer(ISSUER, "agents", jwks_url=f"http://127.0.0.1:{keys.port}/keys")
        async with up(store, issuers=[issuer]) as s:
            refused = await s.http.post("/runs/wait", json={"agent_id": "echo"}, headers=bearer(**wrong))
            _is_challenge(refused, 'error="invalid_token"')
            assert said in refused.json()
            _is_challenge(await s.http.post("/runs/wait", json={"agent_id": "echo"}), "Bearer")
            assert (await s.http.post("/runs/search", json={}, headers=bearer())).json() == [], "nothing was run"


def _is_challenge(refused: httpx2.Response, said: str) -> None:
    assert refused.status_code == 401
    assert said in refused.headers["www-authenticate"]

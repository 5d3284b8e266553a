"""What the document asks of authentication: callers are known, schemes are told, and what is allowed is our affair."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from joserfc import jwk, jwt

from interlingua.security.errors import UnsafeBind
from interlingua.security.tokens import Issuer
from interlingua.server.app import ServeSettings, serving

from .test_door import AGENTS, NOBODY, Gate, _keys, echo, mailer, up

SIGNER = jwk.ECKey.generate_key("P-256", {"kid": "k"})
ISSUER = Issuer("https://issuer.example", "interlingua", jwks={"keys": [dict(SIGNER.as_dict(private=False))]})
RUN = {"agent_id": "echo", "input": {"text": "a"}}


def token(**claims: Any) -> str:
    usual = {"iss": "https://issuer.example", "aud": "interlingua", "sub": "alice", "exp": int(time.time()) + 60}
    return jwt.encode({"alg": "ES256", "kid": "k"}, {**usual, **claims}, SIGNER)


async def test_an_agent_runs_only_for_callers_that_the_server_knows(store: Path) -> None:
    (ada,) = await _keys(store, "ada")
    gate = Gate()
    gate.go.set()
    async with up(store, gate.agent) as s:
        strangers: list[dict[str, str]] = [
            {}, {"x-api-key": "il_nobody_secret"}, {"x-api-key": ada[:-1]}, {"authorization": f"Bearer {ada}x"},
            {"authorization": "Basic YWRhOnNlY3JldA=="},
        ]  # fmt: skip
        for headers in strangers:
            for path in ("/runs", "/runs/wait", "/runs/stream", f"/threads/{NOBODY}/runs"):
                assert isinstance(await s.post(path, {"agent_id": "held"}, 401, headers=headers), str)
        assert gate.runs == []
        told = await s.post("/runs/wait", {"agent_id": "held"}, headers={"x-api-key": ada})
        assert gate.runs == [told["run"]["run_id"]]


async def test_an_agent_runs_only_for_callers_that_may_run_it(store: Path) -> None:
    gate = Gate()
    gate.go.set()
    (reader,) = await _keys(store, "reader", scopes=("do:read",))
    (elsewhere,) = await _keys(store, "elsewhere", scopes=("agents:echo",))
    (allowed,) = await _keys(store, "allowed", scopes=("agents:held", "do:run", "do:read"))
    async with up(store, gate.agent, echo) as s:
        for path in ("/runs", "/runs/wait", "/runs/stream"):
            assert isinstance(await s.post(path, {"agent_id": "held"}, 403, headers={"x-api-key": reader}), str)
            # Whoever may not even know of an agent is told that there is none.
            await s.post(path, {"agent_id": "held"}, 404, headers={"x-api-key": elsewhere})
        assert gate.runs == []
        told = await s.post("/runs/wait", {"agent_id": "held"}, headers={"x-api-key": allowed})
        assert gate.runs == [told["run"]["run_id"]]


async def test_a_caller_that_may_not_answer_or_cancel_leaves_the_run_as_it_is(store: Path) -> None:
    (ada,) = await _keys(store, "ada")
    (looker,) = await _keys(store, "looker", scopes=("do:read", "see:all"))
    mine, theirs = {"x-api-key": ada}, {"x-api-key": looker}
    async with up(store, mailer) as s:
        run = (await s.post("/runs/wait", {"agent_id": "mailer"}, headers=mine))["run"]["run_id"]
        await s.post(f"/runs/{run}", {"approved": True}, 403, headers=theirs)
        await s.ask("POST", f"/runs/{run}/cancel", None, 403, headers=theirs)
        await s.ask("DELETE", f"/runs/{run}", None, 403, headers=theirs)
        assert (await s.get(f"/runs/{run}", headers=theirs))["status"] == "interrupted"


async def test_what_a_caller_may_do_is_no_part_of_any_message(store: Path) -> None:
    """The same request is granted to one and refused to another: only the credential in the header differs."""
    (runner,) = await _keys(store, "runner", scopes=("do:run", "do:read"))
    (reader,) = await _keys(store, "reader", scopes=("do:read",))
    async with up(store, echo) as s:
        granted = await s.http.post("/runs/wait", json=RUN, headers={"x-api-key": runner})
        refused = await s.http.post("/runs/wait", json=RUN, headers={"x-api-key": reader})
        assert (granted.status_code, refused.status_code) == (200, 403)
        assert granted.request.content == refused.request.content
        run = granted.json()["run"]
        assert set(run) == {"run_id", "agent_id", "created_at", "updated_at", "status", "creation"}
        described = await s.get("/agents/echo/descriptor", headers={"x-api-key": reader})
        assert "do:" not in granted.text + str(described), "no scope goes over the wire"
        # A body cannot say what its sender may do either.
        for claim in ({"scopes": ["*"]}, {"metadata": {"scopes": ["*"]}}, {"caller": "runner"}):
            await s.post("/runs/wait", {**RUN, **claim}, 403, headers={"x-api-key": reader})


@pytest.mark.parametrize("scheme", ["none", "keys", "tokens", "both"])
async def test_a_server_chooses_its_schemes_and_agents_work_with_each(store: Path, scheme: str) -> None:
    key = (await _keys(store, "ada"))[0] if scheme in ("keys", "both") else ""
    issuers = [ISSUER] if scheme in ("tokens", "both") else []
    async with up(store, echo, issuers=issuers) as s:
        by_key, by_token = {"x-api-key": key or "il_ada_secret"}, {"authorization": f"Bearer {token()}"}
        await s.post("/runs/wait", RUN, 200 if scheme == "none" else 401)
        await s.post("/runs/wait", RUN, 200 if key else 401, headers=by_key)
        await s.post("/runs/wait", RUN, 200 if issuers else 401, headers=by_token)


async def test_every_scheme_that_is_told_is_of_a_known_kind_and_is_accepted_as_told(store: Path) -> None:
    (key,) = await _keys(store, "ada")
    async with up(store, echo, issuers=[ISSUER]) as s:
        schemes = (await s.get("/auth"))["schemes"]
        kinds = [(scheme["type"], scheme.get("scheme") or scheme.get("in")) for scheme in schemes]
        assert kinds == [("apiKey", "header"), ("http", "bearer"), ("http", "bearer")]
        for scheme in schemes:
            secret = token() if scheme.get("bearerFormat") == "JWT" else key
            header = {scheme["name"]: secret} if scheme["type"] == "apiKey" else {"authorization": f"Bearer {secret}"}
            assert (await s.post("/runs/wait", RUN, headers=header))["run"]["status"] == "success"
        for other in ({"authorization": f"Basic {key}"}, {"cookie": f"x-api-key={key}"}, {"api-key": key}):
            await s.post("/runs/wait", RUN, 401, headers=other)
        await s.post(f"/runs/wait?x-api-key={key}", RUN, 401)


async def test_the_scheme_endpoint_says_what_the_server_accepts(store: Path) -> None:
    async with up(store, echo) as s:
        assert await s.get("/auth") == {"schemes": []}, "nothing is needed"
    async with up(store, echo, issuers=[ISSUER]) as s:
        *_, last = (await s.get("/auth"))["schemes"]
        assert (last["type"], last["scheme"], last["bearerFormat"]) == ("http", "bearer", "JWT")
        assert "https://issuer.example" in last["description"]
    await _keys(store, "ada")
    async with up(store, echo) as s:
        first, second = (await s.get("/auth"))["schemes"]
        assert (first["type"], first["in"], first["name"]) == ("apiKey", "header", "x-api-key")
        assert (second["type"], second["scheme"]) == ("http", "bearer")


async def test_the_scheme_endpoint_is_open_where_nothing_else_is(store: Path) -> None:
    await _keys(store, "ada")
    async with up(store) as s:
        known = await s.get("/auth")
        assert known["schemes"]
        for headers in ({"x-api-key": "wrong"}, {"authorization": "Bearer wrong"}):
            assert await s.get("/auth", headers=headers) == known
        for path in ("/errors", "/agents/echo", "/agents/echo/descriptor", "/agents/echo/capabilities", "/runs/x"):
            await s.get(path, 401)
        for path in ("/agents/search", "/runs/search", "/threads/search"):
            await s.post(path, {}, 401)


async def test_nothing_is_served_to_the_world_without_authentication(store: Path) -> None:
    settings = ServeSettings(host="0.0.0.0", port=0)
    with pytest.raises(UnsafeBind):
        async with serving(store, AGENTS, settings):
            pass
    (key,) = await _keys(store, "ada")
    async with serving(store, AGENTS, settings) as server:
        address = server.address.replace("0.0.0.0", "127.0.0.1")
        async with httpx2.AsyncClient(base_url=f"{address}/connect") as http:
            assert (await http.post("/runs/wait", json=RUN)).status_code == 401
            assert (await http.post("/runs/wait", json=RUN, headers={"x-api-key": key})).status_code == 200


async def test_an_error_met_at_the_door_is_in_the_table_too(store: Path) -> None:
    await _keys(store, "ada")
    async with up(store) as s:
        refused = await s.http.post("/runs", json={})
        assert refused.status_code == 401
        (key,) = await _keys(store, "bob")
        table = {e["code"]: e for e in await s.get("/errors", headers={"x-api-key": key})}
        assert table[refused.headers["x-error-code"]]["errcode"] == 401
        assert {"slow_body", "wrong_content_type", "host_refused", "origin_refused"} <= set(table)


async def test_a_key_that_may_only_run_runs_and_sees_no_agents(store: Path) -> None:
    (key,) = await _keys(store, "runner", scopes=("agents:echo", "do:run"))
    async with up(store) as s:
        headers = {"x-api-key": key}
        await s.post("/runs/wait", {"agent_id": "echo", "input": {"text": "a"}}, headers=headers)
        await s.post("/runs/wait", {"agent_id": "chat", "input": {"text": "a"}}, 404, headers=headers)
        assert await s.post("/agents/search", {}, headers=headers) == []

"""`interlingua serve` and `interlingua keys`, as a user runs them."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx2
import pytest
from joserfc import jwk, jwt

import interlingua as il
from interlingua.server.auth.stored_keys import StoredKeys
from tests.kit.commands import Result
from tests.kit.postgres import store_in
from tests.kit.servers import Process, started

Cli = Callable[..., Result]

HOUR = 3_600_000_000  # in microseconds
ZOO = Path(__file__).parent / "zoo.py"


def serving(tmp_path: Path, *options: str, last: str = "Ctrl-C stops.") -> AbstractContextManager[Process]:
    """A server of the zoo that is up."""
    env = {**os.environ, "INTERLINGUA_STORE": str(store_in(tmp_path)), "INTERLINGUA_PROJECT": "tests", "COLUMNS": "200"}
    return started(["serve", f"{ZOO}", "--port", "0", *options], env, Path.cwd(), last)


@contextmanager
def server(tmp_path: Path, *options: str) -> Iterator[tuple[str, Process]]:
    with serving(tmp_path, *options) as process:
        yield process.address, process


def test_agents_are_served_until_ctrl_c(tmp_path: Path) -> None:
    with server(tmp_path) as (address, _):
        answer = httpx2.post(f"{address}/connect/runs/wait", json={"agent_id": "shout", "input": "hello"})
        assert answer.json()["output"]["values"]["text"].startswith("HELLO")
        assert httpx2.get(f"{address}/healthz").text == "ok\n"
        assert "interlingua_runs_finished_total" in httpx2.get(f"{address}/metrics").text


def test_a_key_lets_in_whoever_has_it_and_a_revoked_one_does_not(tmp_path: Path, cli: Cli) -> None:
    secret = cli("keys", "add", "laptop").out.strip()
    assert secret.startswith("il_")
    listed = cli("keys", "list", "--json").json
    assert [key["name"] for key in listed] == ["laptop"]
    assert "hash" not in listed[0]
    with server(tmp_path) as (address, _):
        search = f"{address}/connect/agents/search"
        assert httpx2.post(search, json={}).status_code == 401
        assert httpx2.get(f"{address}/connect/auth").status_code == 200
        assert httpx2.post(search, json={}, headers={"x-api-key": secret}).status_code == 200
        assert cli("keys", "revoke", listed[0]["id"]).out.endswith("is revoked\n")
        assert httpx2.post(search, json={}, headers={"x-api-key": secret}).status_code == 401


def test_a_key_is_revoked_by_its_name_or_by_itself_and_its_secret_is_not_shown(cli: Cli) -> None:
    first, second, third = (cli("keys", "add", name).out.split()[-1] for name in ("one", "two", "two"))
    assert cli("keys", "revoke", "one").out.endswith("is revoked\n")
    refused = cli("keys", "revoke", "two")
    assert refused.code == 2
    assert "2 keys are called two" in refused.err
    done = cli("keys", "revoke", second)
    assert done.code == 0
    again = cli("keys", "revoke", second)
    assert again.code == 3
    for said in (done.out, again.err):
        assert second.rpartition("_")[2] not in said
    assert cli("keys", "revoke", "two").code == 0, "there is only one of that name now"
    assert cli("keys", "revoke", third).code == 3
    assert first != second


def test_the_list_of_keys_tells_which_have_expired_and_when_each_was_used(tmp_path: Path, cli: Cli) -> None:
    assert cli("keys", "add", "short", "--days", "0.5").code == 0
    (short,) = cli("keys", "list", "--json").json
    assert 0 <= short["created_at"] + 12 * HOUR - short["expires_at"] < HOUR  # the times of making it and of reading it
    assert "  valid  never used  " in cli("keys", "list").out
    secret = cli("keys", "add", "laptop").out.strip()
    with server(tmp_path) as (address, _):
        done = httpx2.post(f"{address}/connect/agents/search", json={}, headers={"x-api-key": secret})
        assert done.status_code == 200
    asyncio.run(half_a_day_later(store_in(tmp_path), short["id"]))
    listed = cli("keys", "list").out
    shown = {line.split()[1]: line for line in listed.splitlines()}
    assert "  expired  never used  " in shown["short"]
    assert re.search(r"  valid  last used 20\d\d-\d\d-\d\dT", shown["laptop"])


async def half_a_day_later(store: Path | str, key: str) -> None:
    """Move the times of a key back, as if it had been made then."""
    async with il.Engine(store) as engine:
        keys = StoredKeys(engine.keys)
        record = await keys.get(key)
        assert record is not None
        assert record.expires_at is not None
        record.created_at -= 12 * HOUR
        record.expires_at -= 12 * HOUR
        await keys.put(record)


def test_a_public_address_without_keys_is_refused_with_what_to_do(cli: Cli) -> None:
    done = cli("serve", str(ZOO), "--host", "0.0.0.0", "--port", "0")
    assert done.code == 2
    assert "interlingua keys add" in done.err
    assert "--host 127.0.0.1" in done.err


@pytest.mark.parametrize("scope", ["do:everything", "agents:"])
def test_a_scope_that_means_nothing_is_refused(cli: Cli, scope: str) -> None:
    done = cli("keys", "add", "x", "--scope", scope)
    assert done.code == 2
    assert scope in done.err


def test_a_port_that_is_taken_is_told_with_what_to_do(cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = cli("serve", str(ZOO), "--port", str(taken.getsockname()[1]))
    assert done.code == 2
    assert "is taken" in done.err
    assert "--port" in done.err


def test_ctrl_c_ends_a_server_whose_streams_are_open_and_the_run_goes_on_later(tmp_path: Path) -> None:
    with server(tmp_path) as (address, process):
        body = {"agent_id": "confirm", "input": {}}
        waiting = httpx2.post(f"{address}/connect/runs/wait", json=body).json()["run"]["run_id"]
        later = {"agent_id": "shout", "input": "x", "after_seconds": 3600}
        with httpx2.stream("POST", f"{address}/connect/runs/stream", json=later) as answer:
            assert answer.status_code == 200
            held = httpx2.post(f"{address}/connect/runs/search", json={"status": "pending"}).json()[0]["run_id"]
            process.popen.send_signal(signal.SIGINT)
            with pytest.raises(httpx2.RemoteProtocolError):
                list(answer.iter_lines())
            assert process.popen.wait(timeout=60) == 0
    with server(tmp_path) as (address, _):
        assert httpx2.get(f"{address}/connect/runs/{held}").json()["status"] == "pending"
        httpx2.post(f"{address}/connect/runs/{waiting}", json={"approved": True})
        told = httpx2.get(f"{address}/connect/runs/{waiting}/wait").json()
        assert told["output"]["values"] == {"text": "done"}


@pytest.mark.parametrize("option", [["--log", "json"], ["--access-log"]])
def test_the_log_as_json_has_the_runs_and_the_requests_with_who_asked(
    tmp_path: Path, cli: Cli, option: list[str]
) -> None:
    secret = cli("keys", "add", "laptop").out.strip()
    caller = f"key:{secret.split('_')[1]}"
    with serving(tmp_path, *option, last="serving on") as process:
        lines = [json.loads(line) for line in process.said.splitlines()]
        address = lines[-1]["address"] + "/connect"
        headers = {"x-api-key": secret}
        run = httpx2.post(f"{address}/runs/wait", json={"agent_id": "shout", "input": "x"}, headers=headers).json()[
            "run"
        ]
        httpx2.post(f"{address}/runs/wait", json={"agent_id": "crash", "input": "x"}, headers=headers)
        httpx2.get(f"{address}/runs/{run['run_id']}", headers=headers)
        httpx2.get(f"{address}/runs/{run['run_id']}", headers={"x-api-key": secret + "x"})
        httpx2.get(f"{address.removesuffix('/connect')}/healthz")
    lines += [json.loads(line) for line in process.rest.splitlines()]
    for line in lines:
        assert {"time", "level", "logger", "message"} <= set(line)
        assert secret not in json.dumps(line)
    created, ended, created_2, failed = (line for line in lines if line["logger"] == "interlingua.runs")
    assert {line["caller"] for line in (created, ended, created_2, failed)} == {caller}
    assert created["run"] == ended["run"] == run["run_id"]
    assert ended["status"] == "succeeded"
    assert ended["agent"].startswith("shout@")
    assert ended["ms"] >= 0
    assert (failed["status"], failed["error"], failed["level"]) == ("failed", "agent_crashed", "warning")
    (crashed,) = (line for line in lines if line["logger"] == "interlingua.engine")
    assert crashed["run"] == failed["run"]
    assert "Traceback" in crashed["exception"]
    first, second, read, refused = (line for line in lines if line["logger"] == "interlingua.access")
    assert (first["method"], first["path"], first["status"]) == ("POST", "/connect/runs/wait", 200)
    assert first["caller"] == second["caller"] == read["caller"] == caller
    assert read["run"] == run["run_id"]
    assert refused["status"] == 401
    assert "caller" not in refused, "nobody knows who that was"


def test_the_log_as_json_tells_the_doors_and_the_link_of_peers(tmp_path: Path) -> None:
    ports = ("--peer-port", "0", "--peer-http-port", "0")
    with serving(tmp_path, "--log", "json", *ports, last="serving on") as process:
        told = json.loads(process.said.splitlines()[-1])
        assert any("acp://" in note for note in told["notes"])
        assert told["doors"]["mcp"] == f"{told['address']}/mcp"


def test_each_door_has_one_line_to_try_however_many_agents_there_are(tmp_path: Path) -> None:
    with serving(tmp_path) as process:
        assert len([line for line in process.said.splitlines() if line.startswith("$ ")]) == 5


def test_the_log_as_text_is_the_default_and_off_is_silent(tmp_path: Path) -> None:
    for option, told in ([], True), (["--log", "off"], False):
        with serving(tmp_path, *option) as process:
            httpx2.post(f"{process.address}/connect/runs/wait", json={"agent_id": "shout", "input": "x"})
        assert "POST /connect/runs/wait" not in process.rest  # people read of runs; machines get the requests, too
        assert (" of shout created" in process.rest) is told


def test_looking_at_a_server_and_running_an_agent_of_it_are_a_few_lines_of_its_log(tmp_path: Path, cli: Cli) -> None:
    with serving(tmp_path) as process:
        assert cli("inspect", process.address).code in (0, 1)
        assert cli("run", f"{process.address}/connect#shout", "hello").code == 0
    lines = [line for line in process.rest.splitlines() if re.match(r"\d{4}-\d\d-\d\dT", line)]
    assert any(" of shout succeeded" in line for line in lines), process.rest
    assert len(lines) <= 3, lines


def test_tokens_of_an_issuer_are_accepted_whose_keys_are_where_it_says(tmp_path: Path, cli: Cli) -> None:
    with issuer() as (name, token):
        given = {aud: {"authorization": f"Bearer {token(aud)}"} for aud in ("agents", "others")}
        for more in [], ["--jwks-url", f"{name}/keys"]:
            with server(tmp_path, "--issuer", name, "--audience", "agents", *more) as (address, _):
                search = f"{address}/connect/agents/search"
                assert httpx2.post(search, json={}).status_code == 401
                assert httpx2.post(search, json={}, headers=given["agents"]).status_code == 200
                assert httpx2.post(search, json={}, headers=given["others"]).status_code == 401


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--issuer", "https://login.example.org"], "--audience"),
        (["--audience", "agents"], "--issuer"),
        (["--issuer", "http://login.example.org", "--audience", "a"], "over https, got --issuer 'http://login"),
        (["--issuer", "http://127.0.0.1:1", "--audience", "a"], "--jwks-url"),
        (["--jwks-url", "https://login.example.org/keys"], "--jwks-url: auth.jwks_url: has more addresses"),
    ],
)
def test_an_issuer_that_cannot_be_used_is_refused_with_what_is_wrong(cli: Cli, options: list[str], said: str) -> None:
    done = cli("serve", str(ZOO), "--port", "0", *options)
    assert done.code == 2
    assert said in done.err


@contextmanager
def issuer() -> Iterator[tuple[str, Callable[[str], str]]]:
    """An issuer of tokens on loopback: its address, and a way to get a token for an audience."""
    key = jwk.ECKey.generate_key("P-256", {"kid": "one"})

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            documents = {
                "/.well-known/openid-configuration": {"issuer": name, "jwks_uri": f"{name}/keys"},
                "/keys": {"keys": [key.as_dict(private=False)]},
            }
            found = documents.get(self.path)
            body = json.dumps(found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    def token(audience: str) -> str:
        claims = {"iss": name, "aud": audience, "sub": "ada", "exp": int(time.time()) + 60}
        return jwt.encode({"alg": "ES256", "kid": "one"}, claims, key)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as running:
        name = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield name, token
        finally:
            running.shutdown()
            thread.join()

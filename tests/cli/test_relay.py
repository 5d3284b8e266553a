"""`interlingua relay`: a relay of one's own, as a user runs it, with nodes that use it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import httpx2

from tests.kit.commands import Result
from tests.kit.servers import node, started

from .conftest import ZOO

Cli = Callable[..., Result]


def test_nodes_that_cannot_reach_each_other_talk_by_a_relay_of_their_own(env: dict[str, str], tmp_path: Path) -> None:
    with started(["relay", "--port", "0"], env, tmp_path) as relay:
        at = relay.find(r"interlingua peer --relay (\S+)")
        zoo_options = ["--name", "Zoo", "--default-agent", "shout", "--store", "zoo.db", "--relay", at]
        with node(env, tmp_path, ZOO, *zoo_options) as zoo:
            link = zoo.find(r"by the relay, with (\S+)")
            assert link.startswith("acp+ws://127.0.0.1:")
            with node(env, tmp_path, "--name", "Guest", "--store", "guest.db", "--join", link) as guest:
                guest.until("card")
                told = guest.post("/message:send", role="user", text="hello", sync=True, timeout=15, peer_id="peer_001")
                assert "HELLO" in json.dumps(told["reply"])
                assert guest.get("/peers")["peers"][0]["connection_type"] == "relay"
        assert httpx2.get(relay.find(r"Relay on (\S+)") + "/acp/rooms").status_code == 404


def test_the_limits_of_a_relay_are_flags(env: dict[str, str], tmp_path: Path) -> None:
    with started(
        ["relay", "--port", "0", "--sessions-per-address", "1", "--message-bytes", "1024"], env, tmp_path
    ) as one:
        at = one.find(r"Relay on (\S+)")
        token = httpx2.post(f"{at}/acp/new").json()["token"]
        assert httpx2.post(f"{at}/acp/new").status_code == 429
        assert httpx2.post(f"{at}/acp/{token}/send", json={"text": "x" * 2000}).status_code == 413


def test_a_relay_behind_a_proxy_gives_links_with_its_public_name(env: dict[str, str], tmp_path: Path) -> None:
    with started(["relay", "--port", "0", "--public-host", "relay.example.org"], env, tmp_path) as one:
        assert "--relay acp+wss://relay.example.org\n" in one.said
        link = httpx2.post(one.find(r"Relay on (\S+)") + "/acp/new").json()["link"]
        assert link.startswith("acp+wss://relay.example.org/acp/tok_")


def test_a_relay_whose_port_is_taken_says_what_to_do(cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = cli("relay", "--port", str(taken.getsockname()[1]))
    assert done.code == 2
    assert "choose another one with --port" in done.err


def test_a_relay_without_its_certificate_does_not_start(cli: Cli, tmp_path: Path) -> None:
    assert "--tls-key belongs to a --tls-cert" in cli("relay", "--tls-key", "k.pem").err
    assert "there is no file absent.pem" in cli("relay", "--tls-cert", "absent.pem").err
    (tmp_path / "bad.pem").write_text("nothing")
    done = cli("relay", "--port", "0", "--tls-cert", "bad.pem")
    assert done.code == 2
    assert "cannot be used" in done.err

"""`interlingua peer`, `interlingua peers` and the node in `interlingua serve`, as a user runs them."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from interlingua import __version__
from interlingua.model.errors import InvalidRequest
from interlingua.protocols.peer.commands import spelled_out
from interlingua.protocols.peer.config import DoorSettings
from interlingua.protocols.peer.node_flags import from_config, read_config, settings_of
from tests.kit.commands import Result
from tests.kit.servers import node, started

from .conftest import ZOO

Cli = Callable[..., Result]


@contextmanager
def held(port: int = 0) -> Iterator[int]:
    """A port that is taken; by somebody else already is as good."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            taken.bind(("127.0.0.1", port))
            taken.listen()
        yield port or taken.getsockname()[1]


def port_of(address: str) -> int:
    return int(re.findall(r":(\d+)", address)[-1])


# -- starting and stopping ------------------------------------------------------------------------------------


def test_a_name_is_all_that_a_node_needs_and_it_prints_its_link(env: dict[str, str], tmp_path: Path) -> None:
    with started(["peer", "--name", "Alice"], env, tmp_path) as alice:
        assert alice.find(r"Node (\w+) is up") == "Alice"
        assert re.fullmatch(r"acp://127\.0\.0\.1:\d+/tok_[0-9a-f]{16}", alice.link)
        for address, port in ((alice.link, 7801), (alice.control, 7901)):
            assert (port_of(address) == port) is not (f"port {port} is taken" in alice.said)
        assert alice.get("/link")["link"] == alice.link
        assert alice.get("/.well-known/acp.json")["name"] == "Alice"


def test_without_a_name_it_has_the_default_one(env: dict[str, str], tmp_path: Path) -> None:
    with node(env, tmp_path) as anyone:
        assert anyone.get("/.well-known/acp.json")["name"] == "ACP-Agent"


def test_default_ports_that_are_taken_give_way_with_a_notice(env: dict[str, str], tmp_path: Path) -> None:
    with held(7801), held(7901), started(["peer"], env, tmp_path) as moved:
        assert port_of(moved.link) != 7801
        assert port_of(moved.control) != 7901
        assert f"note: port 7801 is taken; peers connect on port {port_of(moved.link)} instead" in moved.said
        assert f"note: port 7901 is taken; the control API is on port {port_of(moved.control)} instead" in moved.said
        assert moved.get("/status")["ok"] is True


@pytest.mark.parametrize("option", ["--port", "--http-port", "--tcp-port"])
def test_a_port_that_was_asked_for_and_is_taken_is_an_error_that_says_what_to_do(cli: Cli, option: str) -> None:
    with held() as port:
        ports = {"--port": "0", "--http-port": "0", option: str(port)}
        done = cli("peer", *(word for pair in ports.items() for word in pair))
    assert done.code == 2
    assert f"port {port} of 127.0.0.1 is taken" in done.err
    assert f"choose another one with {option}" in done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_node_in_good_order_also_while_a_stream_is_open(
    env: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    with (
        node(env, tmp_path) as alice,
        httpx2.stream("GET", f"{alice.control}/stream", timeout=20) as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines).startswith(":")
        assert alice.end(number) == 0
    assert "Traceback" not in alice.rest


def test_the_link_is_the_same_after_a_restart(env: dict[str, str], tmp_path: Path) -> None:
    with node(env, tmp_path) as first:
        token = first.link.rpartition("/")[2]
    with node(env, tmp_path) as second:
        assert second.link.endswith(token)


@pytest.mark.usefixtures("in_a_file")  # elsewhere one that was killed is missed when its lease is over
def test_a_second_node_of_the_same_name_and_store_is_refused_while_the_first_is_up(
    env: dict[str, str], tmp_path: Path, cli: Cli
) -> None:
    with node(env, tmp_path) as first:
        done = cli("peer", "--port", "0", "--http-port", "0")
        assert done.code == 5
        assert "is up already, on the same store" in done.err
        assert "--name" in done.err
        with node(env, tmp_path, "--name", "Other") as other:
            assert other.link != first.link
        first.kill()  # a dead one is no hindrance
        with node(env, tmp_path) as again:
            assert again.get("/status")["ok"] is True


def test_the_version_is_printed_and_nothing_starts(cli: Cli) -> None:
    assert cli("peer", "--version").out == f"interlingua {__version__}\n"


@pytest.mark.parametrize("option", ["-v", "--verbose"])
def test_verbose_logs_what_is_otherwise_left_out(env: dict[str, str], tmp_path: Path, option: str) -> None:
    with node(env, tmp_path) as quiet, node(env, tmp_path, "--name", "Loud", option) as loud:
        assert " DEBUG " not in quiet.said
        assert " DEBUG " in loud.said


def test_the_log_as_json_has_no_link_in_it(env: dict[str, str], tmp_path: Path) -> None:
    arguments = ["peer", "--port", "0", "--http-port", "0", "--log", "json"]
    with started(arguments, env, tmp_path, last="a node is up") as quiet:
        lines = [json.loads(line) for line in quiet.said.splitlines()]
        assert lines[-1]["address"].startswith("http://127.0.0.1:")
    assert "tok_" not in quiet.said + quiet.rest


def test_acp_relay_is_the_same_command(env: dict[str, str], tmp_path: Path) -> None:
    script = shutil.which("acp-relay", path=str(Path(sys.executable).parent))
    assert script is not None
    with node(env, tmp_path, "--name", "MyAgent", "--skills", "a,b", command=[script]) as mine:
        card = mine.get("/.well-known/acp.json")
        assert (card["name"], [skill["id"] for skill in card["skills"]]) == ("MyAgent", ["a", "b"])
    told = subprocess.run([script, "--version"], env=env, capture_output=True, text=True, check=True)
    assert told.stdout == f"interlingua {__version__}\n"


# -- two nodes ------------------------------------------------------------------------------------------------


def test_a_node_that_joins_by_a_link_talks_to_the_agents_behind_it(env: dict[str, str], tmp_path: Path) -> None:
    with (
        node(env, tmp_path, ZOO, "--name", "Zoo", "--default-agent", "shout", "--store", "zoo.db") as zoo,
        node(env, tmp_path, "--name", "Guest", "--join", zoo.link, "--store", "guest.db") as guest,
    ):
        guest.until("card")
        told = guest.post("/message:send", role="user", text="hello", sync=True, timeout=15, peer_id="peer_001")
        assert "HELLO" in json.dumps(told["reply"])
        assert [peer["name"] for peer in guest.get("/peers")["peers"]] == ["Zoo"]
        assert [peer["name"] for peer in zoo.get("/peers")["peers"]] == ["Guest"]


def test_tls_gives_an_acps_link_that_a_node_with_the_authority_can_join(env: dict[str, str], tmp_path: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    safe = ["--tls-cert", "cert.pem", "--tls-key", "key.pem"]
    with (
        node(env, tmp_path, ZOO, "--name", "Zoo", "--default-agent", "shout", *safe, "--store", "zoo.db") as zoo,
        node(env, tmp_path, "--name", "Guest", "--join", zoo.link, "--tls-ca", "cert.pem", "--store", "g.db") as guest,
    ):
        assert zoo.link.startswith("acps://")
        guest.until("card")
        told = guest.post("/message:send", role="user", text="hello", sync=True, timeout=15, peer_id="peer_001")
        assert "HELLO" in json.dumps(told["reply"])


def test_a_running_node_is_used_by_the_peers_commands_at_acp_base_url(
    env: dict[str, str], tmp_path: Path, cli: Cli
) -> None:
    with (
        node(env, tmp_path, ZOO, "--name", "Zoo", "--default-agent", "shout", "--store", "zoo.db") as zoo,
        node(env, tmp_path, "--name", "Guest", "--store", "guest.db") as guest,
    ):
        at = {"ACP_BASE_URL": guest.control}
        assert guest.link in cli("peers", "status", **at).out
        assert cli("peers", "status", "--json", "--url", zoo.control, **at).json["agent_name"] == "Zoo"
        assert "no peers yet" in cli("peers", "list", **at).out
        assert "peer_001 is being connected" in cli("peers", "connect", zoo.link, **at).out
        guest.until("card")
        assert cli("peers", "send", "hello", "--to", "peer_001", "--wait", "15", **at).out.startswith("HELLO")
        assert re.search(r"peer_001  connected  Zoo", cli("peers", "list", **at).out)
        assert cli("peers", "send", "again", "--to", "peer_001", **at).out.startswith("sent as msg_")
        assert cli("peers", "receive", "--wait", "15", **at).out.startswith("Zoo: AGAIN")
        lost = cli("peers", "send", "x", "--to", "peer_009", **at)
        assert (lost.code, lost.out) == (3, "")
        assert "peer_009" in lost.err


def test_where_no_node_runs_the_peers_commands_say_so(cli: Cli) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        done = cli("peers", "status", ACP_BASE_URL=f"http://127.0.0.1:{free.getsockname()[1]}")
    assert done.code == 1
    assert "no node answers at http://127.0.0.1:" in done.err
    wrong = cli("peers", "status", ACP_BASE_URL="localhost:7901")
    assert wrong.code == 2
    assert "begins with http://" in wrong.err


# -- flags ----------------------------------------------------------------------------------------------------


def card_with(env: dict[str, str], tmp_path: Path, *options: str) -> dict[str, Any]:
    with node(env, tmp_path, *options) as one:
        card: dict[str, Any] = one.get("/.well-known/acp.json")
        assert one.get("/extensions")["extensions"] == card["extensions"]
    return card


def test_what_the_flags_declare_is_on_the_card(env: dict[str, str], tmp_path: Path) -> None:
    billing, audit = "https://corp.example.com/ext/billing", "https://corp.example.com/ext/audit"
    card = card_with(
        env, tmp_path, "--name", "Agent", "--skills", "summarize, translate", "--secret", "shared-key",
        "--extension", f"{billing},required=true,tier=pro", "--extension", "https://example.com/ext/x",
        "--extensions", f"acp:ext:custom-v1,{audit},{billing}", "--transport-modes", "p2p", "--max-msg-bytes", "65536",
        "--supported-interfaces", "core,task", "--limitations", "no images,no audio",
        "--limitations-json", '[{"kind": "scale", "code": "slow", "message": "slow today", "permanent": false}]',
        "--availability-cron", "0 9 * * 1", "--next-active-at", "2026-11-16T09:00:00Z",
    )  # fmt: skip
    assert [skill["id"] for skill in card["skills"]] == ["summarize", "translate"]
    assert card["extensions"] == [
        {"uri": billing, "required": True, "params": {"tier": "pro"}},
        {"uri": "https://example.com/ext/x", "required": False, "params": {}},
        {"uri": "acp:ext:custom-v1", "required": False, "params": {}},
        {"uri": audit, "required": False, "params": {}},
        {"uri": "acp:ext:hmac-v1", "required": False, "params": {"scheme": "hmac-sha256"}},
    ]
    assert card["transport_modes"] == ["p2p"]
    assert card["supported_interfaces"] == ["core", "task"]
    assert [one["code"] for one in card["limitations"]] == ["no images", "no audio", "slow"]
    assert card["availability"] == {
        "mode": "cron", "schedule": "0 9 * * 1", "next_active_at": "2026-11-16T09:00:00Z",
    }  # fmt: skip
    assert card["capabilities"]["max_msg_bytes"] == 65536
    assert card["capabilities"]["hmac_signing"] is True
    assert "shared-key" not in json.dumps(card)


def test_without_flags_nothing_is_declared_and_nothing_is_on(env: dict[str, str], tmp_path: Path) -> None:
    card = card_with(env, tmp_path)
    assert (card["skills"], card["extensions"], card["limitations"]) == ([], [], [])
    assert card["transport_modes"] == ["p2p", "relay"]
    flags = card["capabilities"]
    assert (flags["hmac_signing"], flags["identity"], flags["lan_discovery"]) == (False, "none", False)
    assert flags["max_msg_bytes"] == 1_048_576
    assert flags["supported_transports"] == ["http", "ws"]


def test_skills_may_be_a_json_array_and_the_size_has_two_names(env: dict[str, str], tmp_path: Path) -> None:
    skills = '[{"id": "sum", "name": "Sum up", "tags": ["text"]}, "plain"]'
    card = card_with(env, tmp_path, "--skills", skills, "--max-msg-size", "70000")
    assert [(skill["id"], skill["name"]) for skill in card["skills"]] == [("sum", "Sum up"), ("plain", "plain")]
    assert card["capabilities"]["max_msg_bytes"] == 70_000


def test_a_message_that_is_larger_than_the_flag_says_ends_its_connection(env: dict[str, str], tmp_path: Path) -> None:
    with node(env, tmp_path, "--max-msg-bytes", "2048") as small:
        with connect(small.link.replace("acp://", "ws://")) as peer:
            peer.send(json.dumps({"type": "acp.message", "text": "x" * 2048}))
            with pytest.raises(ConnectionClosed) as closed:
                list(peer)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


def test_an_identity_needs_no_path_and_is_kept_where_only_its_owner_reads_it(
    env: dict[str, str], tmp_path: Path
) -> None:
    env["HOME"] = str(tmp_path / "home")
    first = card_with(env, tmp_path, "--identity", ZOO)
    file = tmp_path / "home" / ".acp" / "identity.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert first["capabilities"]["identity"] == "ed25519"
    assert first["identity"]["public_key"] == json.loads(file.read_text())["public_key"]
    again = card_with(env, tmp_path, "--identity")
    assert again["identity"]["public_key"] == first["identity"]["public_key"]
    other = card_with(env, tmp_path, "--identity", "keys/mine.json")
    assert other["identity"]["public_key"] != first["identity"]["public_key"]
    assert (tmp_path / "keys" / "mine.json").is_file()
    assert card_with(env, tmp_path, "--identity-file", "keys/mine.json")["identity"]["did"] == other["identity"]["did"]


def test_announcing_on_the_network_is_on_the_card_and_off_by_default(env: dict[str, str], tmp_path: Path) -> None:
    card = card_with(env, tmp_path, "--advertise-mdns")
    assert card["capabilities"]["lan_discovery"] is True
    assert [one["uri"] for one in card["extensions"]] == ["acp:ext:mdns-v1"]


def test_a_secret_may_come_from_the_environment_and_signs(env: dict[str, str], tmp_path: Path) -> None:
    card = card_with({**env, "INTERLINGUA_PEER_SECRET": "shared"}, tmp_path)
    assert card["trust"]["scheme"] == "hmac-sha256"


def test_a_control_api_that_others_reach_wants_a_token(env: dict[str, str], tmp_path: Path) -> None:
    tokens = []
    for _ in range(2):
        with node(env, tmp_path, "--http-host", "0.0.0.0") as open_:
            at = f"http://127.0.0.1:{port_of(open_.control)}"
            tokens.append(open_.find(r"Authorization: Bearer (\S+)"))
            assert httpx2.get(f"{at}/status").status_code == 401
            assert httpx2.get(f"{at}/link", headers={"authorization": "Bearer wrong"}).status_code == 401
            assert httpx2.get(f"{at}/link", headers={"authorization": f"Bearer {tokens[-1]}"}).status_code == 200
    assert tokens[0] == tokens[1]
    with node(env, tmp_path, "--http-token", "mine") as closed:
        assert "mine" not in closed.said
        assert httpx2.get(f"{closed.control}/status").status_code == 401
        assert httpx2.get(f"{closed.control}/status", headers={"authorization": "Bearer mine"}).status_code == 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--relay"], "--relay needs to know which one"),
        (["--relay", "ftp://x"], "--relay is an address such as acp+wss://"),
        (["--transport-modes", "p2p,pigeon"], "pigeon"),
        (["--extension", "no uri"], "uri"),
        (["--extension", "https://example.com/x,required=maybe"], "required is true or false"),
        (["--limitations-json", "{"], "--limitations-json is JSON"),
        (["--availability-mode", "sometimes"], "/availability/mode is one of persistent"),
        (["--skills", '["a"'], "JSON array"),
        (["--join", "http//x"], "the link has no scheme"),
        (["--name", ""], "--name is a text"),
        (["--tls-key", "k.pem"], "--tls-key belongs to a --tls-cert"),
        (["--tls-cert", "absent.pem"], "there is no file absent.pem"),
        (["--default-agent", "nobody"], "there is no agent 'nobody'"),
        (["--config", "absent.json"], "absent.json cannot be read"),
        (["absent.py"], "there is no file"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(here: Cli, options: list[str], said: str) -> None:
    done = here("peer", "--port", "0", "--http-port", "0", *options)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--identity"], ["--identity="]),
        (["--identity", "--name", "A"], ["--identity=", "--name", "A"]),
        (["--identity", "key.json"], ["--identity", "key.json"]),
        (["--identity", "agents.py"], ["--identity=", "agents.py"]),
        (["--identity", "agents.py:echo"], ["--identity=", "agents.py:echo"]),
        (["--identity=key.json"], ["--identity=key.json"]),
        (["--relay", "agents.py"], ["--relay=", "agents.py"]),
        (["--relay", "acp+wss://relay.example.org"], ["--relay", "acp+wss://relay.example.org"]),
        (["--relay", ""], ["--relay", ""]),
        (["--relay", "--relay-url", "https://x"], ["--relay=", "--relay-url", "https://x"]),
        (["--", "--identity"], ["--", "--identity"]),
    ],
)
def test_flags_whose_value_may_be_left_out(arguments: list[str], expected: list[str]) -> None:
    assert spelled_out(arguments) == expected


@pytest.mark.parametrize(
    ("flags", "relay", "modes"),
    [
        (DoorSettings(), None, ("p2p", "relay")),
        (DoorSettings(relay="acp+wss://relay.example.org"), "acp+wss://relay.example.org", ("p2p", "relay")),
        (DoorSettings(relay="https://relay.example.org/acp/"), "acp+wss://relay.example.org", ("p2p", "relay")),
        (DoorSettings(relay="http://127.0.0.1:7950"), "acp+ws://127.0.0.1:7950", ("p2p", "relay")),
        (DoorSettings(relay_url="wss://relay.example.org"), "acp+wss://relay.example.org", ("p2p", "relay")),
        (DoorSettings(relay="", relay_url="https://relay.example.org"), "acp+wss://relay.example.org", ("relay",)),
        (DoorSettings(relay="https://r.example", transport_modes="relay"), "acp+wss://r.example", ("relay",)),
        (DoorSettings(transport_modes="relay,p2p"), None, ("p2p", "relay")),
    ],
)
def test_the_relay_is_named_in_either_spelling(flags: DoorSettings, relay: str | None, modes: tuple[str, ...]) -> None:
    settings = settings_of(flags)
    assert settings.relay == relay
    assert sorted(settings.transport_modes) == sorted(modes)


# -- the config file ------------------------------------------------------------------------------------------

CONFIG = {"name": "FromFile", "http-port": 0, "port": 0, "skills": ["a", "b"], "max_msg_size": 65536, "relay": ""}


def test_a_node_starts_from_a_config_file_alone_and_flags_win_over_it(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text(json.dumps(CONFIG))
    with started(["peer", "--config", "node.json"], env, tmp_path) as one:
        card = one.get("/.well-known/acp.json")
        assert (card["name"], [skill["id"] for skill in card["skills"]]) == ("FromFile", ["a", "b"])
        assert card["capabilities"]["max_msg_bytes"] == 65536
    with started(["peer", "--name", "FromFlag", "--config", "node.json"], env, tmp_path) as one:
        card = one.get("/.well-known/acp.json")
        assert (card["name"], len(card["skills"])) == ("FromFlag", 2)
        assert card["transport_modes"] == ["p2p", "relay"], "the default, where neither says anything"


def test_the_config_file_may_be_yaml(env: dict[str, str], tmp_path: Path) -> None:
    text = "name: Yaml\nport: 0\nhttp_port: 0\nidentity: keys.json\nextension:\n  - uri: https://example.com/x\n"
    for name in ("node.yaml", "node.conf"):
        (tmp_path / name).write_text(text)
        with started(["peer", "--config", name], env, tmp_path) as one:
            card = one.get("/.well-known/acp.json")
            assert (card["name"], card["capabilities"]["identity"]) == ("Yaml", "ed25519")
            assert [entry["uri"] for entry in card["extensions"]] == ["https://example.com/x"]


def test_yaml_without_its_library_is_told_with_what_to_install(fresh: Cli, env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "without" / "yaml").mkdir(parents=True)
    (tmp_path / "without" / "yaml" / "__init__.py").write_text("raise ImportError('not here')")
    (tmp_path / "node.yaml").write_text("name: A\n")
    done = fresh("peer", "--config", "node.yaml", PYTHONPATH=f"{tmp_path / 'without'}:{env['PYTHONPATH']}")
    assert done.code == 1
    assert "pip install 'interlingua[yaml]'" in done.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "holds no object"),
        ("{", "is no JSON"),
        ('{"nmae": "A"}', "'nmae', and there is no such flag"),
    ],
)
def test_a_config_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "node.json"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        read_config(file)


def test_a_config_file_has_values_as_files_have_them(tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    written = {
        "identity": True, "relay": False, "secret": "", "join": "acp://192.0.2.1/tok_x", "transport_modes": ["relay"],
        "advertise-mdns": True, "inbox": "/var/x", "limitations": ["no images"], "port": "7811", "tls_ca": None,
    }  # fmt: skip
    file.write_text(json.dumps(written))
    flags = from_config(file)
    assert (flags.identity, flags.relay, flags.secret) == (Path(), None, None)
    assert (flags.join, flags.transport_modes, flags.port) == (("acp://192.0.2.1/tok_x",), "relay", 7811)
    settings = settings_of(flags)
    assert settings.identity == Path("~/.acp/identity.json").expanduser()
    assert [one["code"] for one in settings.limitations] == ["no images"]
    assert settings.advertise_mdns is True


# -- in serve -------------------------------------------------------------------------------------------------


def serve(env: dict[str, str], tmp_path: Path, *options: str) -> Any:
    return started(["serve", ZOO, "--port", "0", *options], env, tmp_path)


def test_a_server_has_the_node_with_it_and_prints_its_link(env: dict[str, str], tmp_path: Path) -> None:
    ports = ["--peer-port", "0", "--peer-http-port", "0"]
    with (
        serve(env, tmp_path, "--peer-name", "Zoo", *ports) as server,
        node(env, tmp_path, "--name", "Guest", "--join", server.link, "--store", "guest.db") as guest,
    ):
        body = {"role": "user", "text": "hello", "skill_id": "shout", "sync": True}
        door = httpx2.post(f"{server.address}/peer/message:send", json=body, timeout=20).json()
        assert "HELLO" in json.dumps(door)
        guest.until("card")
        told = guest.post("/message:send", peer_id="peer_001", timeout=15, **body)
        assert "HELLO" in json.dumps(told["reply"])
        assert server.get("/.well-known/acp.json")["name"] == "Zoo"
        assert "/peer/message:send" in server.said


def test_a_server_may_do_without_the_ports_of_peers(env: dict[str, str], tmp_path: Path) -> None:
    with serve(env, tmp_path, "--no-peer-ports") as server:
        assert "acp://" not in server.said
        assert "control API" not in server.said
        card = httpx2.get(f"{server.address}/peer/.well-known/acp.json").json()
        assert "shout" in [skill["id"] for skill in card["skills"]]


def test_a_second_server_on_the_same_store_leaves_the_ports_to_the_first(env: dict[str, str], tmp_path: Path) -> None:
    ports = ["--peer-port", "0", "--peer-http-port", "0"]
    with serve(env, tmp_path, *ports) as first, serve(env, tmp_path, *ports) as second:
        assert first.get("/status")["ok"] is True
        assert "is run by another process on this store" in second.said
        body = {"role": "user", "text": "hello", "skill_id": "shout", "sync": True}
        answer = httpx2.post(f"{second.address}/peer/message:send", json=body, timeout=20)
        assert "HELLO" in answer.text


def test_a_server_takes_the_config_file_of_a_node(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text(json.dumps({**CONFIG, "secret": "shared"}))
    with serve(env, tmp_path, "--peer-config", "node.json", "--peer-name", "FromFlag") as server:
        card = server.get("/.well-known/acp.json")
        assert (card["name"], card["trust"]["scheme"]) == ("FromFlag", "hmac-sha256")


@pytest.mark.parametrize("option", ["--peer-port", "--peer-http-port"])
def test_a_port_for_peers_that_was_asked_for_and_is_taken_ends_the_server(cli: Cli, option: str) -> None:
    with held() as port:
        done = cli("serve", ZOO, "--port", "0", option, str(port))
    assert done.code == 2
    assert f"port {port} of 127.0.0.1 is taken" in done.err

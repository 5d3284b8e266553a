"""`interlingua inspect` and `interlingua conform`, as a user runs them."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.commands import Result

from .test_serve import server

Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(tmp_path_factory.mktemp("served"), "--no-peer-ports") as (address, _):
        yield address


@pytest.fixture
def wrong() -> Iterator[str]:
    """A server that lists its agents without what belongs there, and wants a header."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body: Any = [{"agent_id": "1"}] if self.headers.get("x-key") == "sesame" else None
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(200 if body and self.path == "/agents/search" else 404)
            data = json.dumps(body).encode()
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_what_is_spoken_is_told_with_lines_that_work(cli: Cli, address: str) -> None:
    done = cli("inspect", address)
    assert done.code == 0
    for words in ("Agent Connect Protocol", "Agents over MCP", "Agent Client Protocol", "CAP", "acp:// links"):
        assert words in done.out
    assert f"$ interlingua run 'connect+{address}/connect#" in done.out
    assert f"$ interlingua conform 'mcp+{address}/mcp' --agent " in done.out
    told = cli("inspect", address, "--json").json
    assert {one["protocol"] for one in told["spoken"]} == {"connect", "mcp", "editor", "peer", "cap"}
    (peer,) = [one for one in told["spoken"] if one["protocol"] == "peer"]
    assert len(peer["capabilities"]) > 30  # which nobody reads on one line
    assert all(len(line) < 400 for line in done.out.splitlines())
    assert "more; --json has all" in done.out


def test_what_is_wrong_is_told_and_counts_as_a_failure(cli: Cli, wrong: str) -> None:
    done = cli("inspect", wrong)
    assert done.code == 1
    assert done.out.splitlines()[0] == "None of the protocols is spoken there."
    done = cli("inspect", wrong, "--header", "X-Key: sesame")
    assert done.code == 1
    assert "has no metadata" in done.out
    assert "connect.agents.search-item-metadata]" in done.out
    done = cli("inspect", wrong, "--header", "sesame")
    assert done.code == 2
    assert "'NAME: VALUE'" in done.err


def test_a_server_is_checked_requirement_by_requirement(cli: Cli, address: str) -> None:
    done = cli(
        "conform", f"{address}/connect", "--agent", "shout", "--only", "connect.openapi", "--only", "connect.auth"
    )
    assert done.code == 0, done.out
    assert "✓ connect.openapi.operations  [OpenAPI document 0.2.3 / Operations; feature]" in done.out
    assert done.out.splitlines()[-1].startswith("connect: ")
    assert " 0 fail" in done.out.splitlines()[-1]
    done = cli(
        "conform", f"{address}/mcp", "--agent", "shout", "--only", "mcp.door.cancel", "--only", "mcp.door.question"
    )
    assert done.out.splitlines()[-2:] == [
        "4 of those that do not apply need an agent that you name with --asks, --slow",
        "mcp: 0 pass, 0 fail, 4 not applicable",
    ]
    told = cli("conform", f"connect+{address}/connect", "--only", "connect.openapi.operations", "--json").json
    (finding,) = told["findings"]
    assert finding["verdict"] == "pass"
    assert finding["section"] == "OpenAPI document 0.2.3 / Operations"
    assert told["counts"] == {"pass": 1, "fail": 0, "not applicable": 0}


def test_one_of_several_protocols_at_an_address_can_be_asked_for(cli: Cli, address: str) -> None:
    done = cli("conform", address, "--only", "peer.4-1.agent-card")
    assert done.code == 2
    assert "peer.4-1.agent-card is of the protocol peer, and the server is looked at as one of connect" in done.err
    for protocol, id_ in [("peer", "peer.4-1.agent-card"), ("mcp", "mcp.listing.method")]:
        done = cli("conform", address, "--protocol", protocol, "--only", id_)
        assert (done.code, done.out.splitlines()[-1]) == (0, f"{protocol}: 1 pass, 0 fail, 0 not applicable")


def test_headers_are_sent_to_find_out_what_is_spoken(cli: Cli, wrong: str) -> None:
    done = cli("conform", wrong, "--header", "x-key: sesame", "--only", "connect.agents.search")
    assert "connect: " in done.out


def test_a_server_that_fails_is_told_what_it_did(cli: Cli, wrong: str) -> None:
    done = cli(
        "conform", f"connect+{wrong}", "--header", "x-key: sesame", "--only", "connect.openapi.operations", "--failures"
    )  # fmt: skip
    assert done.code == 1
    assert "✗ connect.openapi.operations" in done.out
    assert "    → " in done.out


@pytest.mark.parametrize(
    ("args", "said", "code"),
    [
        (["some-command --flag"], "which protocol does", 2),
        (["http://127.0.0.1:1"], "nothing answers at http://127.0.0.1:1", 3),
        (["connect+http://127.0.0.1:1"], "cannot be reached", 3),
        (["mcp:no-such-command"], "cannot be reached", 3),
        (["mcp:x", "--protocol", "corba"], "there is no protocol 'corba'", 2),
        (["connect+http://127.0.0.1:1", "--only", "connect.nothing"], "no requirement that can be seen", 2),
        (["connect+http://127.0.0.1:1", "--input", "{"], "--input", 2),
        (["connect+http://127.0.0.1:1", "--only", "peer.4-1"], "peer.4-1 is of the protocol peer, and", 2),
        (["connect+http://127.0.0.1:1", "--only", "peer.4-1"], "--protocol peer", 2),
        (["--protocol", "connect", "some-command"], "an address is needed, not a command", 2),
    ],
)
def test_what_cannot_be_checked_is_said(here: Cli, args: list[str], said: str, code: int) -> None:
    done = here("conform", *args)
    assert done.code == code
    assert said in done.err


@pytest.mark.parametrize("protocol", ["connect", "mcp", "peer", "editor", "cap"])
@pytest.mark.parametrize("role", ["--agent", "--asks", "--slow", "--fails"])
def test_an_agent_that_the_server_does_not_have_is_a_slip_of_whoever_named_it(
    cli: Cli, address: str, protocol: str, role: str
) -> None:
    done = cli("conform", f"{protocol}+{address}/{protocol}", role, "shuot")
    assert (done.code, done.out) == (2, "")
    assert f"no agent 'shuot', which {role} names; it has " in done.err
    assert "shout" in done.err


def test_the_help_of_both_is_a_manual(here: Cli, tmp_path: Path) -> None:
    assert "Four protocols are called ACP" in here("inspect", "--help").out
    assert "Exit codes" in here("conform", "--help").out

"""Nodes of the peer protocol on hosts of their own: direct, through a relay, found by multicast, and over a cable that
is cut and mended. The hosts are network namespaces, which need root and `ip`; nothing here leaves this machine.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.faults

AGENTS = '''
import interlingua as il

@il.agent
async def echo(text: str):
    """Repeats what it hears."""
    for word in text.split():
        yield word + " "
'''
PATIENCE = 60.0


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


class Host:
    """A namespace with an address, in which programs run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cables: dict[str, str] = {}  # by network: the end that is outside
        self.processes: list[subprocess.Popen[bytes]] = []
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")

    def command(self, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *words]

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self.command(sys.executable, "-m", "interlingua", *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self.processes.append(process)
        return process

    def curl(self, method: str, path: str, body: Any = None, *, port: int = 7901) -> tuple[int, Any]:
        words = ["curl", "-sS", "-m", "40", "-X", method, "-w", "\n%{http_code}", f"http://127.0.0.1:{port}{path}"]
        if body is not None:
            words += ["-H", "content-type: application/json", "-d", json.dumps(body)]
        done = subprocess.run(self.command(*words), capture_output=True, text=True, timeout=60)
        text, _, code = done.stdout.rpartition("\n")
        return int(code or 0), json.loads(text) if text.strip() else None

    def events(self, until: str) -> list[dict[str, Any]]:
        """The stream from its beginning until an event tells a word."""
        words = ["curl", "-sSN", "-m", "40", "http://127.0.0.1:7901/stream?since=0"]
        told = []
        with subprocess.Popen(self.command(*words), stdout=subprocess.PIPE, text=True) as reading:
            assert reading.stdout is not None
            try:
                for line in reading.stdout:
                    if line.startswith("data: "):
                        told.append(json.loads(line[6:]))
                        if until in line:
                            break
            finally:
                reading.kill()
        return told

    def end(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        run("ip", "netns", "del", self.name)


class Network:
    """A switch to which hosts are plugged. It lives in a namespace of its own, so nothing of the machine changes."""

    def __init__(self, name: str) -> None:
        self.name = name
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "add", "sw0", "type", "bridge")
        run("ip", "-n", name, "link", "set", "sw0", "type", "bridge", "mcast_snooping", "0")
        run("ip", "-n", name, "link", "set", "sw0", "up")

    def plug(self, host: Host, address: str) -> None:
        inner, outer = f"e{uuid.uuid4().hex[:8]}", f"o{uuid.uuid4().hex[:8]}"
        run("ip", "-n", self.name, "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", host.name)
        run("ip", "-n", self.name, "link", "set", outer, "master", "sw0", "up")
        run("ip", "-n", host.name, "addr", "add", f"{address}/24", "dev", inner)
        run("ip", "-n", host.name, "link", "set", inner, "up")
        run("ip", "-n", host.name, "route", "replace", "224.0.0.0/4", "dev", inner)
        host.cables[self.name] = outer

    def cut(self, host: Host) -> None:
        run("ip", "-n", self.name, "link", "set", host.cables[self.name], "down")

    def mend(self, host: Host) -> None:
        run("ip", "-n", self.name, "link", "set", host.cables[self.name], "up")


@pytest.fixture
def lab() -> Iterator[Lab]:
    if shutil.which("ip") is None:
        pytest.fail("this needs `ip` of iproute2, and the right to make network namespaces")
    made = Lab()
    try:
        yield made
    finally:
        made.end()


class Lab:
    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex[:6]
        self.hosts: list[Host] = []
        self.networks: list[Network] = []

    def host(self, name: str) -> Host:
        host = Host(f"il{self._mark}{name}")
        self.hosts.append(host)
        return host

    def network(self, name: str) -> Network:
        network = Network(f"il{self._mark}{name}")
        self.networks.append(network)
        return network

    def end(self) -> None:
        for host in self.hosts:
            with contextlib.suppress(Exception):
                host.end()
        for network in self.networks:
            with contextlib.suppress(Exception):
                run("ip", "netns", "del", network.name)


def until(test: Any, what: str) -> Any:
    """Ask again until it holds: what is on another host has no other way to tell."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(Exception):
            found = test()
            if found:
                return found
        assert time.monotonic() < deadline, f"still not so: {what}"
        time.sleep(0.1)


def node(host: Host, folder: Path, name: str, *words: str, agents: bool = True) -> dict[str, Any]:
    """Start a node, and wait until it answers."""
    file = folder / "agents.py"
    file.write_text(AGENTS)
    given = [str(file)] if agents else []
    host.start("peer", *given, "--name", name, "--store", str(folder / f"{name}.db"), *words)
    return dict(until(lambda: host.curl("GET", "/status")[1], f"{name} is up"))


def link_of(host: Host) -> str:
    return str(host.curl("GET", "/link")[1]["link"])


def connected(host: Host) -> bool:
    peers = host.curl("GET", "/peers")[1]["peers"]
    return any(peer["connected"] and peer["agent_card"] for peer in peers)


def test_two_hosts_talk_directly(lab: Lab, tmp_path: Path) -> None:
    net, a, b = lab.network("n"), lab.host("a"), lab.host("b")
    net.plug(a, "10.77.0.1")
    net.plug(b, "10.77.0.2")
    node(a, tmp_path, "alpha", "--host", "10.77.0.1")
    link = link_of(a)
    assert link.startswith("acp://10.77.0.1:7801/tok_")
    node(b, tmp_path, "beta", "--join", link, agents=False)
    until(lambda: connected(b), "beta is connected")
    code, sent = b.curl("POST", "/message:send", {"role": "user", "text": "over the wire", "sync": True})
    assert code == 200
    assert sent["reply"]["parts"] == [{"type": "text", "content": "over the wire "}]
    code, task = b.curl("POST", "/tasks", {"role": "user", "text": "a task"})
    assert code == 201
    _, ended = b.curl("GET", f"/tasks/{task['task']['id']}/wait?timeout=20")
    assert ended["task"]["status"] == "completed"


def test_hosts_that_cannot_reach_each_other_meet_at_a_relay(lab: Lab, tmp_path: Path) -> None:
    left, right = lab.network("l"), lab.network("r")
    a, b, middle = lab.host("a"), lab.host("b"), lab.host("m")
    left.plug(a, "10.78.1.1")
    left.plug(middle, "10.78.1.3")
    right.plug(b, "10.78.2.1")
    right.plug(middle, "10.78.2.3")
    middle.start("relay", "--host", "0.0.0.0", "--port", "8787")
    until(lambda: middle.curl("GET", "/acp/myip", port=8787)[0] == 200, "the relay is up")
    node(a, tmp_path, "alpha", "--host", "10.78.1.1", "--relay", "acp+ws://10.78.1.3:8787")
    node(b, tmp_path, "beta", "--relay", "acp+ws://10.78.2.3:8787", "--join", link_of(a), agents=False)
    until(lambda: connected(b), "beta is connected by the relay")
    code, sent = b.curl("POST", "/message:send", {"role": "user", "text": "the long way", "sync": True, "timeout": 30})
    assert code == 200, sent
    assert sent["reply"]["parts"] == [{"type": "text", "content": "the long way "}]
    fallen = [event for event in b.events("relay_fallback") if event.get("event") == "relay_fallback"]
    assert fallen[0]["reason"]
    assert b.curl("GET", "/peers")[1]["peers"][0]["connection_type"] == "relay"


def test_hosts_find_each_other_by_multicast(lab: Lab, tmp_path: Path) -> None:
    net, a, b = lab.network("n"), lab.host("a"), lab.host("b")
    net.plug(a, "10.79.0.1")
    net.plug(b, "10.79.0.2")
    node(a, tmp_path, "alpha", "--host", "10.79.0.1", "--advertise-mdns")
    node(b, tmp_path, "beta", "--host", "10.79.0.2", agents=False)
    found = until(
        lambda: [one for one in b.curl("GET", "/discover")[1]["lan_peers"] if one["name"] == "alpha"], "alpha is found"
    )
    assert found[0]["ip"] == "10.79.0.1"
    assert [event["name"] for event in b.events("discovered") if event["type"] == "mdns"] == ["alpha"]
    code, _ = b.curl("POST", "/peers/connect", {"link": found[0]["link"]})
    assert code == 200
    until(lambda: connected(b), "beta is connected to what it found")
    silent = a.curl("GET", "/discover")[1]["lan_peers"]
    assert [one for one in silent if one["name"] == "beta"] == []  # it did not ask to be found


def test_a_cut_cable_that_heals_loses_nothing(lab: Lab, tmp_path: Path) -> None:
    net, a, b = lab.network("n"), lab.host("a"), lab.host("b")
    net.plug(a, "10.80.0.1")
    net.plug(b, "10.80.0.2")
    node(a, tmp_path, "alpha", "--host", "10.80.0.1", agents=False)
    node(b, tmp_path, "beta", "--join", link_of(a), agents=False)
    until(lambda: connected(b), "beta is connected")
    sent = []
    for number in range(30):
        if number == 10:
            net.cut(a)
        if number == 20:
            net.mend(a)
        code, answer = b.curl(
            "POST", "/message:send", {"role": "user", "text": str(number), "message_id": f"m{number}"}
        )
        assert code == 200 or (code, answer["queued"]) == (503, True), answer
        sent.append(str(number))
    arrived: list[str] = []

    def all_there() -> bool:
        for message in a.curl("GET", "/message:recv?limit=100")[1]["messages"]:
            arrived.append(message["parts"][0]["content"])
        return len(arrived) >= len(sent)

    until(all_there, "all thirty have arrived")
    assert arrived == sent

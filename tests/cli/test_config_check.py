"""`interlingua config check` says all that a start would refuse, each with where it is written, and nothing else."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from interlingua.store.open import open_store
from interlingua.store.rows import WorkerRow
from tests.kit.commands import COMMAND, Result

from .test_config import AGENTS, home, write

__all__ = ["home"]

Cli = Callable[..., Result]
SERVED = '[[agents]]\nfile = "agents.py"\n'


# -- the store ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["folder", "agents.py", "agents.py/store.db"])
def test_a_place_that_can_be_no_store_is_told_by_its_key_and_a_start_says_the_same(
    here: Cli, home: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.delenv("INTERLINGUA_STORE")
    (home / "folder").mkdir()
    write(home, f'{SERVED}[store]\npath = "{place}"\n[doors.mcp]\nport = 8000\n')
    done = here("config", "check")
    assert done.code == 2
    assert f"interlingua.toml:4: store.path: the store {home / place} cannot be opened: " in done.err
    assert "port 8000 is used" in done.err, "everything is told at once"
    assert "unexpected" not in done.err
    served = here("serve")
    assert served.code == 2
    assert f"the store {home / place} cannot be opened: " in served.err
    assert "choose another one with --store" in served.err


def test_a_store_that_cannot_be_opened_does_not_tell_whether_it_has_keys(here: Cli, home: Path) -> None:
    (home / "folder").mkdir()
    write(home, f'{SERVED}[server]\nhost = "0.0.0.0"\n')
    done = here("config", "check")
    assert "without authentication" in done.err
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("INTERLINGUA_STORE", str(home / "folder"))
        done = here("config", "check")
    assert done.code == 2
    assert f"INTERLINGUA_STORE: store.path: the store {home / 'folder'} cannot be opened: " in done.err
    assert "without authentication" not in done.err


# -- ports ----------------------------------------------------------------------------------------------------


def test_ports_of_the_node_and_of_metrics_are_wanted_too(here: Cli, home: Path) -> None:
    write(
        home,
        f'{SERVED}[server]\nport = 18340\nmetrics = "18341"\n[doors.peer]\nport = 18340\nhttp_port = 18340\n'
        "tcp_port = 18341\n",
    )
    done = here("config", "check")
    assert done.code == 2
    assert (
        "interlingua.toml:8: doors.peer.http_port: port 18340 is used 3 times: by server.port, doors.peer.port and "
        "doors.peer.http_port\n"
    ) in done.err
    assert "port 18341 is used 2 times: by doors.peer.tcp_port and server.metrics\n" in done.err
    assert here("serve").code == 2


def test_ports_of_the_nodes_own_file_are_wanted_too(here: Cli, home: Path) -> None:
    (home / "node.json").write_text('{"port": 18340}')
    write(home, f'{SERVED}[server]\nport = 18340\n[doors.peer]\nconfig = "node.json"\n')
    done = here("config", "check")
    assert done.code == 2
    assert "interlingua.toml:6: doors.peer.port: port 18340 is used 2 times: by server.port and " in done.err


@pytest.mark.parametrize(
    "settings",
    [
        "[doors.peer]\nport = 18340\nports = false\n",
        "[doors.peer]\nport = 18340\nenabled = false\n",
        "[doors.mcp]\nport = 18340\nenabled = false\n",
        '[doors.peer]\nport = 18340\nhost = "127.0.0.2"\n',
        "[doors.peer]\nport = 0\nhttp_port = 0\n",
    ],
)
def test_a_port_that_nothing_else_listens_on_there_is_no_mistake(here: Cli, home: Path, settings: str) -> None:
    write(home, f"{SERVED}[server]\nport = 18340\n{settings}")
    done = here("config", "check")
    assert (done.code, done.err) == (0, "")


# -- mounts ---------------------------------------------------------------------------------------------------


def command(file: str) -> str:
    """A mount that is a process with the agents of a file."""
    return f"mcp:env INTERLINGUA_PROJECT=far {shlex.join(COMMAND)} stdio --as mcp {file} --store far.db"


def mounted(file: str) -> str:
    python = os.environ.get("PYTHONPATH", "")
    return f'[[mounts]]\ntarget = "{command(file)}"\nenv = {{ PYTHONPATH = "{python}" }}\n'


def test_a_mounted_agent_whose_name_is_taken_is_told_with_what_to_do_and_is_not_shown_as_served(
    here: Cli, home: Path
) -> None:
    write(home, AGENTS, "agents.py")
    (home / "far.py").write_text(AGENTS + AGENTS.replace("echo", "other"))
    write(home, SERVED + mounted("far.py"))
    done = here("config", "check")
    assert done.code == 2
    assert (
        "interlingua.toml:3: mounts[0]: echo@0.1.0 is left out: there are two agents echo@0.1.0; give the mount a "
        "`prefix`, or `as` where it has one agent\n"
    ) in done.err
    assert f"{command('far.py')}: up; other@0.1.0\n" in done.out
    assert "no mistakes" not in done.out
    write(home, SERVED + mounted("far.py") + 'prefix = "far-"\n')
    done = here("config", "check")
    assert (done.code, done.err) == (0, "")
    assert "up; far-echo@0.1.0, far-other@0.1.0\n" in done.out
    write(home, SERVED + mounted("far.py") + 'only = ["echo"]\nas = "echo"\n')
    assert "interlingua.toml:7: mounts[0].as: echo@0.1.0 is left out" in here("config", "check").err


def test_names_are_looked_at_although_something_else_is_wrong(here: Cli, home: Path) -> None:
    (home / "again.py").write_text(AGENTS)
    write(home, f'{SERVED}[[agents]]\nfile = "again.py"\n[server]\nadvertise = "nowhere"\nhost = "0.0.0.0"\n')
    done = here("config", "check")
    assert done.code == 2
    for said in ("server.advertise", "there are two agents echo@0.1.0", "without authentication"):
        assert said in done.err, said


def test_all_that_is_wrong_with_the_server_is_told_at_once_and_a_start_says_the_same(here: Cli, home: Path) -> None:
    write(
        home,
        f'{SERVED}[server]\nadvertise = "nowhere"\nmetrics = "9100x"\n[bus]\nurl = "http://bus"\n'
        '[auth]\njwks_url = ["https://a/keys", "https://b/keys", "https://c/keys"]\n'
        '[[auth.issuers]]\nissuer = "http://one.example.org"\naudience = ["us"]\n'
        '[[auth.issuers]]\nissuer = "https://two.example.org"\njwks_url = "http://two.example.org/keys"\n'
        '[doors.peer]\navailability_mode = "sometimes"\n[doors.mcp]\nport = 18350\n[doors.cap]\nport = 18350\n',
    )
    wanted = (
        "interlingua.toml:4: server.advertise: must be an address such as http://10.0.0.5:8000, not 'nowhere'",
        "interlingua.toml:5: server.metrics: must be HOST:PORT, or a port of this machine, not '9100x'",
        "interlingua.toml:7: bus.url: ",
        "interlingua.toml:9: auth.jwks_url: has more addresses than there are issuers without one",
        "interlingua.toml:13: auth.issuers[1]: needs an audience",
        "interlingua.toml:17: doors.peer.availability_mode: ",
    )
    checked, served = here("config", "check"), here("serve")
    for done in (checked, served):
        assert done.code == 2
        for said in wanted:
            assert done.err.count(said) == 1, (said, done.err)
    assert "port 18350 is used 2 times" in checked.err
    assert "Traceback" not in checked.err + served.err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("settings = { patiense = 1 }\n", "5: mounts[0].settings: such a mount has no setting 'patiense'; did you"),
        ('settings = { patience = "x" }\n', "5: mounts[0].settings: a setting of the mount"),
        ('as = "one"\n', "5: mounts[0].as: it has 2 agents (echo, other), and `as` is a name for one"),
        ('only = ["ecko"]\n', "5: mounts[0].only: it has no agent ecko; it has echo, other"),
    ],
)
def test_a_mistake_in_a_mount_is_wrong_and_no_mount_that_is_down(here: Cli, home: Path, more: str, said: str) -> None:
    (home / "far.py").write_text(AGENTS + AGENTS.replace("echo", "other"))
    write(home, f"{mounted('far.py')}\n{more}")
    done = here("config", "check")
    assert done.code == 2
    assert f"error: interlingua.toml:{said}" in done.err
    assert "warning" not in done.err
    assert ": wrong\n" in done.out


def test_an_agent_that_a_mount_does_not_have_is_a_mistake_of_its_target(here: Cli, home: Path) -> None:
    (home / "far.py").write_text(AGENTS)
    write(home, mounted("far.py").replace("far.db", "far.db#ecko"))
    done = here("config", "check")
    assert done.code == 2
    assert "error: interlingua.toml:2: mounts[0].target: there is no agent 'ecko' in mcp:" in done.err
    assert "did you mean echo?" in done.err
    assert here("config", "check", "--json").json["mounts"][0]["wrong"] is True


# -- the node -------------------------------------------------------------------------------------------------


def test_all_mistakes_of_the_node_are_told_by_their_keys_and_a_start_says_the_same(here: Cli, home: Path) -> None:
    write(
        home,
        f'{SERVED}[doors.peer]\nname = ""\ntls_cert = "absent.pem"\ntls_ca = "absent.pem"\nrelay = "ftp://x"\n'
        'transport_modes = "pigeon"\nskills = "[1]"\njoin = ["http//x"]\nextension = ["no uri"]\n'
        'availability_mode = "sometimes"\nnext_active_at = "soon"\nlimitations = "["\n',
    )
    checked, served = here("config", "check"), here("serve")
    assert (checked.code, served.code) == (2, 2)
    for said in (
        "4: doors.peer.name: is a text of at most 200 characters, on one line",
        f"5: doors.peer.tls_cert: there is no file {home / 'absent.pem'}",
        f"6: doors.peer.tls_ca: there is no file {home / 'absent.pem'}",
        "7: doors.peer.relay: is an address such as acp+wss://",
        "8: doors.peer.transport_modes: a transport mode is p2p or relay, got 'pigeon'",
        "9: doors.peer.skills: [0] is the id of a skill",
        "10: doors.peer.join: the link has no scheme",
        "11: doors.peer.extension: ",
        "12: doors.peer.availability_mode: is one of persistent, heartbeat, cron, manual, got 'sometimes'",
        "13: doors.peer.next_active_at: is a time of ISO 8601, got 'soon'",
        "14: doors.peer.limitations: the limitations look like a JSON array",
    ):
        for done in (checked, served):
            assert f"interlingua.toml:{said}" in done.err, (said, done.err)
    assert "--" not in checked.err


def test_a_key_of_the_node_without_its_certificate_is_told_by_its_key(here: Cli, home: Path) -> None:
    write(home, f'{SERVED}[doors.peer]\ntls_key = "agents.py"\n')
    assert "interlingua.toml:4: doors.peer.tls_key: belongs to a tls_cert\n" in here("config", "check").err


def test_a_mistake_in_the_nodes_own_file_is_told_by_the_key_that_names_it(here: Cli, home: Path) -> None:
    write(home, f'{SERVED}[doors.peer]\nconfig = "node.json"\n')
    for text, said in (
        ('{"availability_mode": "sometimes"}', "doors.peer.availability_mode: is one of persistent"),
        ('{"nmae": "A"}', f"doors.peer.config: {home / 'node.json'} has 'nmae', and there is no such flag"),
        ("{", f"doors.peer.config: {home / 'node.json'} is no JSON"),
    ):
        (home / "node.json").write_text(text)
        done = here("config", "check")
        assert done.code == 2
        assert f"interlingua.toml:4: {said}" in done.err


def test_the_default_agent_of_the_node_is_one_that_is_there(here: Cli, home: Path) -> None:
    write(home, f'{SERVED}[doors.peer]\ndefault_agent = "nobody"\n')
    done = here("config", "check")
    assert done.code == 2
    assert "interlingua.toml:4: doors.peer.default_agent: there is no agent 'nobody'; there are echo\n" in done.err
    down = '[[mounts]]\ntarget = "connect+http://127.0.0.1:1/connect"\n'
    write(home, f'{SERVED}{down}[doors.peer]\ndefault_agent = "nobody"\n')
    assert here("config", "check").code == 1, "a mount that is down may have it"
    for fine in ("echo", "echo@0.1.0"):
        write(home, f'{SERVED}[doors.peer]\ndefault_agent = "{fine}"\n')
        assert here("config", "check").code == 0


def test_the_default_agent_of_the_node_may_be_one_of_another_process(here: Cli, home: Path) -> None:
    where = os.environ["INTERLINGUA_STORE"]

    async def enter() -> None:
        store = open_store(where)
        await store.open()
        await store.claims.enter(WorkerRow("w1", "host", 1, 1, ["far@0.1.0"]))
        await store.close()

    asyncio.run(enter())
    write(home, f'{SERVED}[doors.peer]\ndefault_agent = "far"\n')
    assert here("config", "check").code == 0
    write(home, f'{SERVED}[server]\nelsewhere = false\n[doors.peer]\ndefault_agent = "far"\n')
    assert here("config", "check").code == 2

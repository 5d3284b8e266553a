"""`interlingua config check` says all that a start would refuse, each with where it is written, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Result
from .test_config import home, write

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
    assert "port 8000 is wanted" in done.err, "everything is told at once"
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
        "interlingua.toml:8: doors.peer.http_port: port 18340 is wanted 3 times: by server.port, doors.peer.port and "
        "doors.peer.http_port\n"
    ) in done.err
    assert "port 18341 is wanted 2 times: by doors.peer.tcp_port and server.metrics\n" in done.err
    assert here("serve").code == 2


def test_ports_of_the_nodes_own_file_are_wanted_too(here: Cli, home: Path) -> None:
    (home / "node.json").write_text('{"port": 18340}')
    write(home, f'{SERVED}[server]\nport = 18340\n[doors.peer]\nconfig = "node.json"\n')
    done = here("config", "check")
    assert done.code == 2
    assert "interlingua.toml:6: doors.peer.port: port 18340 is wanted 2 times: by server.port and " in done.err


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

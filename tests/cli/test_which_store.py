"""Which store a command works on: the one that is named, that of a variable, that of the config file, or the
project's."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from interlingua.bus.port import BusSettings
from interlingua.server.config.load import read
from interlingua.server.paths import Place
from interlingua.store.open import is_postgres, shown
from tests.kit.commands import COMMAND, Result
from tests.kit.postgres import forget, fresh
from tests.kit.servers import started

from .test_config import AGENTS, write
from .test_stdio import INITIALIZE

Cli = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a config file that names a store."""
    (tmp_path / "agents.py").write_text(AGENTS)
    write(
        tmp_path,
        'project = "home"\n[store]\npath = "folder.db"\n[doors.peer]\nports = false\n[[agents]]\nfile = "agents.py"\n',
    )
    return tmp_path


@pytest.fixture
def env(env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """No variable names a store or a project, and the user has a folder of data of their own."""
    del env["INTERLINGUA_STORE"], env["INTERLINGUA_PROJECT"]
    return {**env, "XDG_DATA_HOME": str(tmp_path / "data")}


@pytest.fixture
def there(env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """What is found in this folder, with these variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INTERLINGUA_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", env["XDG_DATA_HOME"])

    def found(named: Path | None = None, **variables: str) -> Path:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return Place(named).store

    return found


def stores(home: Path) -> list[str]:
    return sorted(str(file.relative_to(home)) for file in home.rglob("*.db"))


# -- all commands have one ------------------------------------------------------------------------------------


def test_a_key_that_is_added_beside_the_config_file_is_one_of_its_server(
    env: dict[str, str], home: Path, cli: Cli
) -> None:
    secret = cli("keys", "add", "laptop").out.strip()
    with started(["serve", "--port", "0"], env, home) as server:
        search = f"{server.address}/connect/agents/search"
        assert httpx2.post(search, json={}).status_code == 401
        assert httpx2.post(search, json={}, headers={"x-api-key": secret}).status_code == 200
    assert stores(home) == ["folder.db"]


def test_a_server_of_a_target_has_the_store_of_its_folder_too(env: dict[str, str], home: Path, cli: Cli) -> None:
    cli("keys", "add", "laptop")
    with started(["serve", "agents.py", "--port", "0", "--no-peer-ports"], env, home) as server:
        assert httpx2.post(f"{server.address}/connect/agents/search", json={}).status_code == 401
    said = cli("config", "show", "--mount", "mcp:x").out
    assert f'path = "{home / "folder.db"}"' in said
    assert stores(home) == ["folder.db"]


@pytest.mark.parametrize(
    "command",
    [
        "runs list", "runs show last", "runs follow last", "runs cancel last", "threads list", "questions",
        "questions list --all", "keys list", "callbacks list", "audit tree last", "audit export last", "audit key",
        "store check", "store migrate", "workers", "run agents.py again",
    ],
)  # fmt: skip
def test_every_command_finds_the_store_of_the_config_file(cli: Cli, home: Path, command: str) -> None:
    assert cli("run", "agents.py", "hello").code == 0
    assert stores(home) == ["folder.db"]
    done = cli(*command.split())
    assert done.code == (5 if "cancel" in command else 0), done.err
    assert stores(home) == ["folder.db"]
    assert not (home / "data").exists()


def test_what_is_run_beside_the_config_file_is_listed_there(cli: Cli, home: Path) -> None:
    cli("run", "agents.py", "hello")
    (run,) = cli("runs", "list", "--json").json
    assert run["agent"] == "echo"


# -- where it is looked for -----------------------------------------------------------------------------------


def test_a_flag_comes_before_a_variable_before_the_file_before_the_projects_own(
    there: Callable[..., Path], home: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (home / "interlingua.toml").rename(home / "later.toml")
    assert there() == home / ".interlingua" / "store.db"
    (home / "later.toml").rename(home / "interlingua.toml")
    assert there() == home / "folder.db"
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write(elsewhere, '[store]\npath = "other.db"\n', "prod.toml")
    assert there(INTERLINGUA_CONFIG=str(elsewhere / "prod.toml")) == elsewhere / "other.db"
    assert there(INTERLINGUA_STORE="variable.db") == Path("variable.db")
    assert there(Path("~/flag.db")) == Path.home() / "flag.db"


def test_a_file_that_names_no_store_leaves_the_projects_own(there: Callable[..., Path], home: Path) -> None:
    write(home, "[server]\nport = 9000\n[store]\nttl_runs = 60\n")
    assert there() == home / ".interlingua" / "store.db"


def test_a_database_in_the_file_is_an_address_and_takes_its_password_from_a_variable(
    there: Callable[..., Path], home: Path
) -> None:
    write(home, '[store]\npath = "postgresql://user:${PASSWORD}@host/agents?schema=one"\n')
    found = there(PASSWORD="secret")
    assert is_postgres(found)
    assert str(found) == "postgresql:/user:secret@host/agents?schema=one"
    assert shown(found) == "postgresql://user:***@host/agents?schema=one"


def test_commands_work_on_a_database_that_the_file_names(cli: Cli, home: Path, postgres: str) -> None:
    where = fresh(postgres)
    write(home, f'project = "home"\n[store]\npath = "{where}"\n')
    cli("run", "agents.py", "hello")
    assert [run["agent"] for run in cli("runs", "list", "--json").json] == ["echo"]
    assert stores(home) == []
    forget(where)


def test_a_program_that_starts_agents_does_not_choose_their_store_by_its_folder(
    env: dict[str, str], home: Path
) -> None:
    shop = home / "shop"
    shop.mkdir()
    (shop / "agents.py").write_text(AGENTS)
    (shop / "interlingua.toml").write_text("")

    def stdio(**extra: str) -> None:
        command = [*COMMAND, "stdio", "--as", "editor", "shop/agents.py"]
        subprocess.run(command, input=INITIALIZE, env={**env, **extra}, cwd=home, capture_output=True, check=True)

    stdio()
    assert stores(home) == ["shop/.interlingua/store.db"]
    stdio(INTERLINGUA_CONFIG="interlingua.toml")
    assert stores(home) == ["folder.db", "shop/.interlingua/store.db"]


# -- and its bus ----------------------------------------------------------------------------------------------


def test_the_bus_is_that_of_the_file_where_the_store_is(
    there: Callable[..., Path], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there()
    assert Place().bus == BusSettings()
    write(home, '[store]\npath = "folder.db"\n[bus]\nurl = "nats://${WHERE}"\nca = "ca.pem"\n')
    monkeypatch.setenv("WHERE", "one")
    assert Place().bus == BusSettings(url="nats://one", ca=home / "ca.pem")
    monkeypatch.setenv("INTERLINGUA_BUS", "nats://two")
    assert Place().bus == BusSettings(url="nats://two", ca=home / "ca.pem")
    assert Place(Path("other.db")).bus == BusSettings(url="nats://two")
    monkeypatch.setenv("INTERLINGUA_STORE", "other.db")
    assert Place().bus == BusSettings(url="nats://two")


def test_a_server_of_a_target_has_the_bus_of_its_folder_where_it_has_its_store(home: Path) -> None:
    file = write(home, '[store]\npath = "folder.db"\n[server]\nport = 1\n[bus]\nurl = "nats://one"\nprefix = "p"\n')
    config = read(None, {"bus_prefix": "q"}, {}, store_from=file)
    assert config.problems == []
    assert (config["store.path"], config["bus.url"], config["bus.prefix"]) == (home / "folder.db", "nats://one", "q")
    assert config["server.port"] == 8000
    other = read(None, {"store_path": Path("other.db")}, {}, store_from=file)
    assert (other["store.path"], other["bus.url"]) == (Path("other.db"), None)


def test_a_bus_that_cannot_be_told_is_said(cli: Cli, home: Path) -> None:
    write(home, 'project = "home"\n[store]\npath = "folder.db"\n[bus]\nurl = "nats://${MISSING}"\n')
    done = cli("keys", "add", "laptop")
    assert done.code == 2
    assert "interlingua.toml:5: bus.url: MISSING is not in the environment" in done.err
    assert cli("runs", "list", "--store", "folder.db").code == 3, "the file is not needed then, and there is no store"


# -- files with mistakes --------------------------------------------------------------------------------------


def test_what_is_wrong_elsewhere_in_the_file_is_left_to_the_server(cli: Cli, home: Path) -> None:
    write(
        home,
        '[server]\nport = "x"\nnone = 1\n[stores]\n[store]\npath = "folder.db"\nttl_runs = -1\n'
        '[[mounts]]\ntarget = "${MISSING}"\n',
    )
    assert cli("runs", "list").code == 3
    assert cli("run", "agents.py", "hi", INTERLINGUA_PROJECT="home").code == 0
    assert stores(home) == ["folder.db"]
    assert cli("runs", "list").code == 0
    assert cli("serve").code == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[store\n", "interlingua.toml is not valid TOML"),
        ("[store]\npath = 1\n", "interlingua.toml:2: store.path: must be a path, not 1"),
        (
            "[store]\npth = 'x.db'\n",
            "interlingua.toml:2: store.pth: unknown setting; did you mean store.path?",
        ),
        ("store = 'x.db'\n", 'interlingua.toml:1: store: must be a table, written [store], not "x.db"'),
        ("[store]\npath = '${MISSING}'\n", "interlingua.toml:2: store.path: MISSING is not in the environment"),
    ],
)
@pytest.mark.parametrize("command", ["keys add laptop", "runs list", "run agents.py hi", "serve agents.py"])
def test_a_store_that_cannot_be_told_is_said_and_no_other_is_used(
    cli: Cli, home: Path, text: str, said: str, command: str
) -> None:
    write(home, text)
    done = cli(*command.split())
    assert done.code == 2
    assert said in done.err
    assert stores(home) == []
    if not command.startswith("serve"):
        done = cli(*command.split(), INTERLINGUA_STORE="named.db", INTERLINGUA_PROJECT="named")
        assert done.code == (3 if "list" in command else 0), "the file is not needed then"


def test_a_config_file_that_is_named_and_not_there_is_said(cli: Cli, home: Path) -> None:
    done = cli("runs", "list", INTERLINGUA_CONFIG="missing.toml")
    assert done.code == 2
    assert "there is no file missing.toml" in done.err
    assert stores(home) == []

"""`interlingua config`, and `serve` with a config file, as a user has them."""

from __future__ import annotations

import json
import re
import socket
import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import httpx2
import pytest

from interlingua.server.config import toml_lines
from interlingua.server.config.load import read
from interlingua.server.config.settings import all_settings
from interlingua.server.config.toml_lines import lines_of
from tests.kit.commands import Result
from tests.kit.servers import Process, started

Cli = Callable[..., Result]
AGENTS = '''import interlingua as il

@il.agent
async def echo(text: str) -> str:
    """Says it again."""
    return text
'''


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "agents.py").write_text(AGENTS)
    return tmp_path


def write(folder: Path, text: str, name: str = "interlingua.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def serve(env: dict[str, str], home: Path, *args: str) -> AbstractContextManager[Process]:
    return started(["serve", *args], env, home)


def agents(at: str) -> list[str]:
    found = httpx2.post(f"{at}/agents/search", json={}).raise_for_status().json()
    return [one["metadata"]["ref"]["name"] for one in found]


# -- where a setting comes from -------------------------------------------------------------------------------


def test_a_flag_comes_before_a_variable_before_the_file_before_the_default(home: Path) -> None:
    file = write(home, "[server]\nport = 1\n")
    variable, flag = {"INTERLINGUA_PORT": "2"}, {"server_port": 3}
    for config, port, origin in (
        (read(None, environ={}), 8000, "default"),
        (read(file, environ={}), 1, f"{file}:2"),
        (read(file, environ=variable), 2, "INTERLINGUA_PORT"),
        (read(file, flag, environ=variable), 3, "--port"),
    ):
        assert (config["server.port"], config.values["server.port"].origin) == (port, origin)


def test_show_prints_toml_that_tells_where_each_setting_comes_from(here: Cli, home: Path) -> None:
    write(home, '[server]\nport = 9000\n[[agents]]\nfile = "agents.py"\n')
    shown = here("config", "show").out
    said = tomllib.loads(shown)
    assert said["server"]["port"] == 9000
    assert said["limits"]["max_running"] == 1000
    assert said["agents"] == [{"file": str(home / "agents.py")}]
    assert re.search(r"^port = 9000 +# interlingua.toml:2$", shown, re.MULTILINE)
    assert re.search(r"^host = .* # default$", shown, re.MULTILINE)
    assert re.search(r"^path = .* # INTERLINGUA_STORE$", shown, re.MULTILINE)
    changed = tomllib.loads(here("config", "show", "--changed").out)
    assert set(changed) == {"project", "server", "store", "agents"}
    told = here("config", "show", "--json").json
    assert told["settings"]["server.port"] == {"value": 9000, "from": "interlingua.toml:2"}


def test_show_takes_the_flags_of_serve_and_tells_what_it_would_use(here: Cli, home: Path) -> None:
    write(home, "[server]\nport = 9000\n[limits]\nmax_running = 5\n")
    told = here("config", "show", "--port", "9001", "--reload", "--json").json["settings"]
    assert told["server.port"] == {"value": 9001, "from": "--port"}
    assert told["server.reload"]["value"] is True
    assert told["limits.max_running"]["value"] == 5
    # As with `serve`, a target leaves the file of the folder alone, unless that is named.
    mount = ["--mount", "mcp+http://127.0.0.1:1/mcp"]
    assert "server" not in tomllib.loads(here("config", "show", "--changed", *mount).out)
    said = tomllib.loads(here("config", "show", "interlingua.toml", "--changed", *mount).out)
    assert (said["server"]["port"], said["mounts"][0]["target"]) == (9000, "mcp+http://127.0.0.1:1/mcp")
    refused = here("config", "show", "--port", "99999")
    assert refused.code == 2
    assert "--port" in refused.err


def test_show_keeps_secrets_to_itself_and_names_their_variables(
    here: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "sesame")
    monkeypatch.setenv("INTERLINGUA_DOORS_PEER_SECRET", "shibboleth")
    write(
        home,
        '[callbacks]\nsecret = "${MY_SECRET}"\n[doors.peer]\nhttp_token = "abracadabra"\n'
        '[[mounts]]\ntarget = "mcp+http://127.0.0.1:1/mcp?token=hocuspocus"\nkey = "simsalabim"\n'
        '[mounts.headers]\n"x-one" = "${MY_SECRET}"\n"x-two" = "mutabor"\n',
    )
    for args in (["show"], ["show", "--json"], ["check"], ["check", "--json"]):
        done = here("config", *args)
        for secret in ("sesame", "shibboleth", "abracadabra", "hocuspocus", "simsalabim", "mutabor"):
            assert secret not in done.out + done.err, args
    shown = tomllib.loads(here("config", "show").out)
    assert shown["callbacks"]["secret"] == "${MY_SECRET}"
    assert shown["mounts"][0]["headers"] == {"x-one": "${MY_SECRET}", "x-two": "***"}


@pytest.mark.parametrize("scheme", ["acp", "acps", "acp+ws", "tcp"])
def test_the_token_of_a_link_is_shown_nowhere_and_its_variable_is(
    here: Cli, home: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST", "127.0.0.1:1")
    monkeypatch.setenv("TOKEN", "tok_1123456789abcdef")
    ends = ("127.0.0.1:1/tok_0123456789abcdef", "${HOST}/tok_2123456789abcdef", "${HOST}/${TOKEN}")
    write(home, "".join(f'[[mounts]]\ntarget = "{scheme}://{end}"\nprefix = "p{at}-"\n' for at, end in enumerate(ends)))
    for args in (["show"], ["show", "--json"], ["check"], ["check", "--json"]):
        done = here("config", *args)
        assert "123456789abcdef" not in done.out + done.err, args
    shown = [one["target"] for one in tomllib.loads(here("config", "show").out)["mounts"]]
    assert shown == [f"{scheme}://127.0.0.1:1/…", f"{scheme}://${{HOST}}/…", f"{scheme}://${{HOST}}/${{TOKEN}}"]


def test_the_password_of_an_address_is_not_in_the_reason_why_it_is_down(here: Cli, home: Path) -> None:
    write(home, '[[mounts]]\ntarget = "connect+http://ada:hunter2@127.0.0.1:1/connect"\n')
    for args in (["check"], ["check", "--json"]):
        done = here("config", *args)
        assert done.code == 1
        assert "cannot be reached" in done.out + done.err
        assert "hunter2" not in done.out + done.err, args


# -- what is wrong --------------------------------------------------------------------------------------------


def test_all_mistakes_of_a_file_are_told_at_once_with_line_and_path_and_what_was_meant(here: Cli, home: Path) -> None:
    write(
        home,
        '[server]\nprot = 9\nport = "nine"\nlog = "xml"\n\n[limits]\nmax_sessions = 3\nmax_running = -1\n\n'
        '[[mounts]]\nas = "x"\n[[mounts]]\ntarget = "mcp:true"\n[mounts.env]\nKEY = "${NOT_THERE}"\n\n'
        '[[mounts]]\ntarget = "agents.py"\n[[agents]]\nfile = "agnets.py"\n[[agents]]\nfile = "agents.py"\n'
        'only = ["ecko"]\n[doors]\nmcp = 1\n',
    )
    done = here("config", "check")
    assert done.code == 2
    for said in (
        "interlingua.toml:2: server.prot: unknown setting; did you mean server.port?",
        'interlingua.toml:3: server.port: must be a whole number from 0 to 65535, not "nine"',
        'interlingua.toml:4: server.log: must be one of json, text, off, not "xml"',
        "interlingua.toml:7: limits.max_sessions: unknown setting; did you mean doors.mcp.max_sessions?",
        "interlingua.toml:8: limits.max_running: must be a whole number, at least 0, not -1",
        "interlingua.toml:10: mounts[0]: needs target",
        "interlingua.toml:14: mounts[1].env: NOT_THERE is not in the environment",
        "belongs under [[agents]]",
        "there is no file",
        "did you mean",
        "there is no agent 'ecko'",
        "interlingua.toml:25: doors.mcp: must be a table, written [doors.mcp], not 1",
    ):
        assert said in done.err, said
    assert here("config", "show").code == 2
    assert here("serve").code == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [("[server\n", "interlingua.toml is not valid TOML"), ("x = 1\n", "x: unknown setting"),
     ("server = 1\n", "must be a table, written [server]"),
     ("agents = 1\n", "must be a list of tables, each written [[agents]]"),
     ('agents = ["agents.py", 1]\n', "must be a table or a text, not 1")],
)  # fmt: skip
def test_a_file_that_is_none_is_refused(here: Cli, home: Path, text: str, said: str) -> None:
    write(home, text)
    done = here("config", "check")
    assert done.code == 2
    assert said in done.err


def test_a_variable_or_flag_that_is_wrong_is_told_by_its_name(
    here: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLINGUA_LIMITS_MAX_RUNNING", "many")
    monkeypatch.setenv("INTERLINGUA_MOUNTS", "[1")
    done = here("serve", "agents.py", "--shutdown-grace", "-1")
    assert done.code == 2
    assert (
        'INTERLINGUA_LIMITS_MAX_RUNNING: limits.max_running: must be a whole number, at least 0, not "many"' in done.err
    )
    assert "INTERLINGUA_MOUNTS: mounts: begins with [ and is not valid JSON" in done.err
    assert "--shutdown-grace: server.shutdown_grace: must be a whole number, at least 0, not -1" in done.err


def test_a_file_that_is_named_and_not_there_is_told(here: Cli) -> None:
    for args in (["serve", "--config", "no.toml"], ["config", "check", "no.toml"], ["config", "show", "no.toml"]):
        done = here(*args)
        assert done.code == 2
        assert "there is no file no.toml" in done.err


def test_nothing_to_serve_is_told_with_what_to_do(here: Cli, home: Path) -> None:
    done = here("serve")
    assert done.code == 2
    assert "interlingua config init" in done.err
    write(home, "[server]\nport = 1\n")
    done = here("config", "check")
    assert done.code == 2
    assert "there is nothing to serve" in done.err


# -- variables and places -------------------------------------------------------------------------------------


def test_texts_take_variables_and_numbers_do_too(home: Path) -> None:
    file = write(home, '[server]\nport = "${PORT}"\nhost = "${HOST}"\nallowed_hosts = ["$${x}", "a${HOST}b"]\n')
    config = read(file, environ={"PORT": "9001", "HOST": "localhost"})
    config.check()
    assert (config["server.port"], config["server.host"]) == (9001, "localhost")
    assert config["server.allowed_hosts"] == ["${x}", "alocalhostb"]
    config = read(file, environ={"PORT": "sesame", "HOST": "x"})
    (problem,) = config.problems
    assert "sesame" not in str(problem), "what a variable holds may be a secret"
    assert '"${PORT}"' in problem.message


def test_paths_of_a_file_are_relative_to_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "etc").mkdir()
    file = write(home / "etc", '[store]\npath = "s.db"\n[[agents]]\nfile = "../agents.py"\n[[teams]]\ndir = "crew"\n')
    monkeypatch.chdir("/")
    config = read(file, {"server_trace": Path("t.jsonl")}, environ={})
    assert config["store.path"] == home / "etc" / "s.db"
    assert config.entries["agents"][0]["file"] == home / "etc" / "../agents.py"
    assert config.entries["teams"][0]["dir"] == home / "etc" / "crew"
    assert config["server.trace"] == Path("t.jsonl")


def test_the_line_of_every_key_is_known_however_it_is_written(tmp_path: Path) -> None:
    text = '# x = 1\n[a]\nb.c = 1\n"d e" = 2\n[[f.g]]\nh = 1\n[f.g.i]\nj = 1\n[[f.g]]\nh = 2\n'
    assert lines_of(text) == {
        "a": 2, "a.b.c": 3, "a.d e": 4, "f.g[0]": 5, "f.g[0].h": 6, "f.g[0].i": 7, "f.g[0].i.j": 8, "f.g[1]": 9,
        "f.g[1].h": 10,
    }  # fmt: skip
    file = write(tmp_path, text)
    written = toml_lines.read(file)
    assert written.place("f.g[1].k") == f"{file}:9"
    assert written.place("nowhere") == str(file)


# -- init and check -------------------------------------------------------------------------------------------


def test_init_writes_a_file_that_serves_the_agents_beside_it(here: Cli, home: Path) -> None:
    (home / "other.py").write_text("import interlingua\n")
    assert here("config", "init").out == "wrote interlingua.toml\n"
    done = here("config", "check")
    assert (done.code, done.out) == (0, f"{home / 'agents.py'}: echo@0.1.0\nno mistakes\n")
    before = (home / "interlingua.toml").read_text()
    done = here("config", "init", "--all")
    assert done.code == 2
    assert "--force" in done.err
    assert (home / "interlingua.toml").read_text() == before
    assert here("config", "init", "--all", "--force").code == 0


def test_all_that_init_comments_out_is_the_default(here: Cli, home: Path) -> None:
    assert here("config", "init", "all.toml", "--all").code == 0
    text = (home / "all.toml").read_text()
    for one in all_settings():
        assert re.search(rf"^# {one.name} = ", text, re.MULTILINE), one.path
    text = re.sub(r"^# \[\[.*(\n# \w+ = .*)*", "", text, flags=re.MULTILINE)  # examples
    begin = text.index("[server]")
    body = re.sub(r"^# ((?!\[)\w+ = (?!…).*)$", r"\1", text[begin:], flags=re.MULTILINE)
    config = read(write(home, text[:begin] + body, "said.toml"), environ={})
    config.check()
    said = [one for one in all_settings() if config.given(one.path)]
    assert {one.path for one in all_settings() if one.default is not None} == {one.path for one in said}
    assert all(config[one.path] == one.default for one in said)


def test_check_tells_what_a_start_would_refuse(here: Cli, home: Path) -> None:
    (home / "broken.py").write_text("import nothing_like_this\n")
    write(
        home,
        '[server]\nhost = "0.0.0.0"\nport = 9001\n[doors.mcp]\nport = 9001\n[[agents]]\nfile = "agents.py"\n'
        '[[agents]]\nfile = "broken.py"\n[[agents]]\nfile = "again.py"\n[[teams]]\ndir = "crew"\n',
    )
    (home / "again.py").write_text(AGENTS)
    (home / "crew").mkdir()
    done = here("config", "check")
    assert done.code == 2
    for said in (
        "nothing_like_this", "there are two agents echo@0.1.0", "port 9001 is used 2 times", "without authentication",
        str(home / "crew"),
    ):  # fmt: skip
        assert said in done.err, said
    told = here("config", "check", "--json")
    assert told.code == 2
    assert len(told.json["problems"]) == 5


def test_a_mount_that_is_down_is_no_mistake_and_has_an_exit_code_of_its_own(here: Cli, home: Path) -> None:
    write(home, '[[agents]]\nfile = "agents.py"\n[[mounts]]\ntarget = "connect+http://127.0.0.1:1/connect"\n')
    done = here("config", "check")
    assert done.code == 1
    assert "warning: connect+http://127.0.0.1:1/connect: is down: " in done.err
    assert "connect+http://127.0.0.1:1/connect: down\n" in done.out


def test_check_hints_at_variables_that_are_none(here: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLINGUA_PROT", "1")
    monkeypatch.setenv("INTERLINGUA_MCP_PATIENCE", "1")
    write(home, '[[agents]]\nfile = "agents.py"\n')
    done = here("config", "check")
    assert done.code == 0
    assert done.err == "warning: INTERLINGUA_PROT: unknown variable; did you mean INTERLINGUA_PORT?\n"


@pytest.mark.parametrize(
    ("entry", "said"),
    [('target = "mcp:true"\nkey = "x"', "mcp:COMMAND has no use for key"),
     ('target = "mcp+http://h/mcp"\nenv = { A = "x" }', "mcp+http://… has no use for env"),
     ('target = "acp://h/tok"\nheaders = { A = "x" }', "acp://… has no use for headers"),
     ('target = "mcp:true"\nas = "a b"', "as must be a name"),
     ('target = "mcp:true"\nprefix = "a b"', "prefix must be of letters"),
     ('target = "mcp:true"\nas = "a"\nprefix = "b"', "exclude each other"),
     ('target = "mpc://h"', "mpc:// is no kind of target"),
     ('target = "mcp:true"\n[[mounts]]\ntarget = "mcp:true"', "is configured twice")],
)  # fmt: skip
def test_a_mount_that_makes_no_sense_is_refused(here: Cli, home: Path, entry: str, said: str) -> None:
    write(home, f"[[mounts]]\n{entry}\n")
    done = here("serve", "--config", "interlingua.toml")
    assert done.code == 2
    assert said in done.err


# -- serving by it --------------------------------------------------------------------------------------------


def test_serve_alone_takes_the_file_of_its_folder_and_flags_come_first(env: dict[str, str], home: Path) -> None:
    write(
        home,
        '[server]\nport = 1\nallowed_hosts = ["agents.example.org"]\n[doors.peer]\nports = false\n'
        '[doors.editor]\nenabled = false\n[doors.connect]\nmax_body_bytes = 100\n[[agents]]\nfile = "agents.py"\n',
    )
    with serve(env, home, "--port", "0") as server:
        at = server.address
        assert agents(f"{at}/connect") == ["echo"]
        assert httpx2.get(f"{at}/healthz", headers={"host": "agents.example.org"}).status_code == 200
        assert httpx2.get(f"{at}/editor").status_code == 404
        assert "editor+http" not in server.said
        body = {"agent_id": "echo", "input": "x" * 200}
        assert httpx2.post(f"{at}/connect/runs", json=body).status_code == 413


def test_targets_leave_the_file_of_the_folder_alone_unless_it_is_named(env: dict[str, str], home: Path) -> None:
    write(home, '[[agents]]\nfile = "missing.py"\n')
    with serve(env, home, "agents.py", "--port", "0", "--no-peer-ports") as server:
        assert agents(f"{server.address}/connect") == ["echo"]
    (home / "missing.py").write_text(AGENTS.replace("echo", "other"))
    variables = {**env, "INTERLINGUA_CONFIG": "interlingua.toml"}
    with serve(variables, home, "agents.py", "--port", "0", "--no-peer-ports") as server:
        assert sorted(agents(f"{server.address}/connect")) == ["echo", "other"]


def test_only_the_doors_that_are_named_are_served(env: dict[str, str], home: Path) -> None:
    with serve(env, home, "agents.py", "--port", "0", "--door", "cap", "--door", "connect") as server:
        at = server.address
        assert agents(f"{at}/connect") == ["echo"]
        assert httpx2.get(f"{at}/cap/agents").status_code == 200
        for closed in ("/mcp", "/editor", "/peer/.well-known/acp.json"):
            assert httpx2.get(at + closed).status_code == 404
        assert "acp://" not in server.said
        assert httpx2.get(f"{at}/healthz").status_code == 200


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('doors = ["cap", "mpc"]', "interlingua.toml:2: server.doors: there is no door 'mpc'; did you mean mcp?"),
        ('doors = ["cap"]\n[doors.cap]\nenabled = false', "server.doors: names cap, and doors.cap.enabled is false"),
    ],
)
def test_a_door_that_cannot_be_served_is_a_mistake(here: Cli, home: Path, written: str, said: str) -> None:
    write(home, f'[server]\n{written}\n[[agents]]\nfile = "agents.py"\n')
    for command in (["config", "check"], ["serve"]):
        done = here(*command)
        assert done.code == 2
        assert said in done.err


@pytest.mark.parametrize("door", ["connect", "cap", "peer"])
def test_a_door_can_have_a_port_of_its_own_with_its_paths_at_the_root(
    env: dict[str, str], home: Path, door: str
) -> None:
    option = "--peer-door-port" if door == "peer" else f"--{door}-port"
    with serve(env, home, "agents.py", "--port", "0", "--no-peer-ports", option, "0") as server:
        own = server.find(r" is at (http://\S+), too")
        path = {"connect": "/agents/search", "cap": "/agents", "peer": "/.well-known/acp.json"}[door]
        for base in (own, f"{server.address}/{door}"):
            asked = httpx2.post if door == "connect" else httpx2.get
            answer = asked(base + path, **({"json": {}} if door == "connect" else {}))
            assert answer.status_code == 200
            assert "echo" in answer.text
        assert httpx2.get(own + "/healthz").status_code == 404
        assert httpx2.get(own + path, headers={"host": "evil.example.org"}).status_code == 403
        body = {"agent_id": "echo", "input": "hi"}
        if door == "connect":
            assert httpx2.post(f"{own}/runs/wait", json=body).json()["output"]["values"] == {"text": "hi"}


def test_the_mcp_door_at_the_root_of_a_port_can_be_mounted(env: dict[str, str], home: Path, cli: Cli) -> None:
    with serve(env, home, "agents.py", "--port", "0", "--no-peer-ports", "--mcp-port", "0") as server:
        own = server.find(r" is at (http://\S+), too")
        done = cli("run", f"mcp+{own}/", "hello")
        assert done.out == "hello\n", done.err


def test_a_port_of_a_door_that_is_taken_is_told_with_its_flag(cli: Cli, home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = cli("serve", "agents.py", "--port", "0", "--no-peer-ports", "--cap-port", port)
    assert done.code == 2
    assert f"port {port} of 127.0.0.1 is taken" in done.err
    assert "--cap-port" in done.err


def test_a_door_on_a_public_address_needs_keys_too(cli: Cli, home: Path) -> None:
    done = cli("serve", "agents.py", "--port", "0", "--mcp-port", "0", "--mcp-host", "0.0.0.0")
    assert done.code == 2
    assert "interlingua keys add" in done.err


def test_mounts_of_a_server_are_shown_with_their_state(env: dict[str, str], home: Path, cli: Cli) -> None:
    more = ["--mount", "connect+http://127.0.0.1:1/connect", "--mount", '{"target": "cap:cat", "as": "yes"}']
    with serve(env, home, "agents.py", "--port", "0", "--no-peer-ports", *more) as server:
        at = server.address
        assert "down: http://127.0.0.1:1/connect cannot be reached" in server.said
        shown = cli("mounts", at)
        assert shown.code == 1
        assert re.search(r"connect\+http://127.0.0.1:1/connect +down .*cannot be reached", shown.out)
        assert re.search(r"cap:cat as yes +up .*yes@0.0.0", shown.out)
        told = json.loads(cli("mounts", at, "--json").out)
        assert [one["state"] for one in told] == ["down", "up"]
        secret = cli("keys", "add", "laptop").out.strip()
        server.read_until("the store has its first key")
        assert "wants a key" in cli("mounts", at).err
        assert json.loads(cli("mounts", at, "--json", INTERLINGUA_KEY=secret).out)[1]["agents"] == ["yes@0.0.0"]
    assert "no server answers" in cli("mounts", at).err


def test_the_server_of_the_settings_in_force_is_asked_where_none_is_named(cli: Cli, home: Path) -> None:
    write(home, '[server]\nhost = "0.0.0.0"\nport = 1\n')
    assert "no server answers at http://127.0.0.1:1:" in cli("mounts").err
    assert "begins with http://" in cli("mounts", "localhost:1").err

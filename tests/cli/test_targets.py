"""What a target may be, and what is said about one that is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import interlingua as il
from interlingua.protocols.targets import Target, TargetError, choose, parse
from tests.kit.commands import Result

from .conftest import ZOO

Cli = Callable[..., Result]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("agents.py", Target("file", "agents.py")),
        ("agents.py:echo", Target("file", "agents.py", "echo")),
        ("agents.py#echo", Target("file", "agents.py", "echo")),
        ("./a:b/agents.py:org.x.echo@1.0", Target("file", "./a:b/agents.py", "org.x.echo@1.0")),
        ("team:crew", Target("team", "crew")),
        ("team:crew#lead", Target("team", "crew", "lead")),
        ("mcp:npx server --flag", Target("mcp", "npx server --flag")),
        ("editor:claude-agent-acp", Target("editor", "claude-agent-acp")),
        ("cap:run me#you", Target("cap", "run me", "you")),
        ("http://host:8000#echo", Target("http", "http://host:8000", "echo")),
        ("connect+http://host:8000/connect#echo", Target("connect+http", "connect+http://host:8000/connect", "echo")),
        ("acp://host/agent", Target("acp", "acp://host/agent")),
        ("editor+wss://h", Target("editor+wss", "editor+wss://h")),
        ("tcp://h:1", Target("tcp", "tcp://h:1")),
    ],
)
def test_the_grammar(text: str, target: Target) -> None:
    assert parse(text) == target


@pytest.mark.parametrize("text", ["", " ", "foo://x", "mcp:", "agents.py:"])
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(TargetError):
        parse(text)


def test_a_file_wins_over_every_other_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mcp:odd#name").write_text("")
    assert parse("mcp:odd#name") == Target("file", "mcp:odd#name")


def test_an_address_where_nothing_answers_is_said_to_be_so(here: Cli) -> None:
    for target in ("http://localhost:1", "https://localhost:1"):
        done = here("run", target, "hi")
        assert done.code == 1
        assert f"nothing answers at {target}" in done.err


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("agents.py", "agents.py:one"),
        ("mcp:il stdio --as mcp agents.py", "mcp:il stdio --as mcp agents.py#one"),
        ("team:crew", "team:crew#one"),
        ("connect+http://ada:pw@host/connect", "connect+http://***@host/connect#one"),
        ("acp://host/tok_0123456789abcdef", "acp://host/…#one"),
    ],
)
def test_which_one_of_several_is_asked_for_as_it_would_be_written(text: str, hint: str) -> None:
    async def say(text: str) -> str:
        return text

    several = [il.agent(name=name)(say) for name in ("one", "two")]
    for wanted in (None, "three"):
        with pytest.raises(TargetError) as refused:
            choose(several, Target(parse(text).kind, parse(text).rest, wanted))
        assert hint[:-4] in refused.value.message
        assert refused.value.hint == (f"say which one, for instance {hint}" if wanted is None else "")


def test_errors_about_files(here: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("import interlingua\n\n\ndef f():\n    return 1 / 0\n\n\nf()\n")
    (tmp_path / "syntax.py").write_text("def f(:\n    pass\n")
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "wrong.py").write_text("import interlingua as il\n\n\n@il.agent(name='a b')\ndef f(): ...\n")
    for target, words in [
        ("emtpy.py", ["there is no file emtpy.py", "did you mean empty.py?"]),
        ("empty.py", ["there is no agent in empty.py", "@interlingua.agent"]),
        (".", ["is a folder", "broken.py"]),
        ("broken.py", ["broken.py", "line 5, in f", "return 1 / 0", "ZeroDivisionError"]),
        ("syntax.py", ["syntax.py", "line 1", "SyntaxError"]),
        ("leaves.py", ["ends the program while it loads"]),
        ("wrong.py", ["'a b' is not a name"]),
        (ZOO, ["has 20 agents: shout, report", f"{ZOO}:shout"]),
        (f"{ZOO}:shuot", ["no agent 'shuot'", "did you mean shout?"]),
    ]:
        done = here("run", target, "hi")
        assert (done.code, done.out) == (2, ""), target
        for word in words:
            assert word in done.err, (target, done.err)
        assert "Traceback" not in done.err


def test_an_agent_file_may_import_its_neighbours_now_and_later(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "er"
    folder.mkdir(parents=True)
    (folder / "words.py").write_text("HELLO = 'hello'\n")
    (folder / "late.py").write_text("WORLD = 'world'\n")
    (folder / "json.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "import interlingua as il\nfrom words import HELLO\n"
        "@dataclass\nclass Out:\n    text: str\n"
        "@il.agent\ndef greet(text: str) -> Out:\n    import late\n    return Out(f'{HELLO} {late.WORLD} {text}')\n"
    )
    done = cli("run", "deep/er/json.py", "x")  # and its name may be one of the standard library
    assert (done.code, done.out) == (0, "hello world x\n")

"""Blocked runs and retries on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.kit.commands import Result

Cli = Callable[..., Result]

_PAYER = """
import interlingua as il

@il.agent(asks=[il.Confirm])
async def payer(ctx: il.Context[None, None], text: str) -> str:
    {before}
    await ctx.ask(il.Confirm("Pay?"))
    {after}
    return f"paid {{text}}"
"""


def deploy(folder: Path, before: str = "pass", after: str = "pass") -> str:
    file = folder / "payers.py"
    file.write_text(_PAYER.format(before=before, after=after))
    return f"{file}:payer"


def answered(cli: Cli, tmp_path: Path) -> str:
    """A run of good code whose question is answered, and that nobody runs."""
    assert cli("run", deploy(tmp_path), "10").code == 4
    run = str(cli("runs", "list", "--json").json[0]["id"])
    (question,) = cli("questions", "list", "--json").json
    assert cli("questions", "answer", question["id"], "y").code == 0
    return run


def test_a_blocked_run_is_listed_shown_and_retried(cli: Cli, tmp_path: Path) -> None:
    run = answered(cli, tmp_path)
    broken = cli("run", deploy(tmp_path, before=f"open('{tmp_path}/there').close()"), "--resume", run)
    assert broken.code == 4
    assert "blocked: the code failed before it came as far as the run had come" in broken.err
    assert f"interlingua runs retry {run[-8:]}" in broken.err
    listed = cli("runs", "list", "--blocked")
    assert run[-8:] in listed.out
    assert "FileNotFoundError" in listed.out
    (found,) = cli("runs", "list", "--blocked", "--json").json
    assert (found["id"], found["blocked"]["reason"]) == (run, "failed_on_resume")
    shown = cli("runs", "show", run).out
    assert "(failed_on_resume)" in shown
    assert f"interlingua runs retry {run[-8:]}" in shown
    (tmp_path / "there").touch()
    assert cli("runs", "retry", run).out == f"run {run[-8:]} goes on\n"
    (found,) = cli("runs", "list", "--blocked", "--json").json
    assert found["blocked"]["reason"] == "no_code"
    done = cli("run", f"{tmp_path}/payers.py:payer", "--resume", run)
    assert (done.code, done.out) == (0, "paid 10\n")
    again = cli("runs", "retry", run)
    assert again.code == 5
    assert "only a run that is blocked or has failed can be retried" in again.err


def test_a_failed_run_is_continued_as_a_new_one(cli: Cli, tmp_path: Path) -> None:
    run = answered(cli, tmp_path)
    assert cli("run", deploy(tmp_path, after="raise OSError('no route')"), "--resume", run).code == 1
    retried = cli("runs", "retry", run)
    assert retried.code == 0
    new = str(cli("runs", "list", "--json").json[0]["id"])
    assert retried.out == f"run {new} continues run {run[-8:]}\n"
    assert "continues" in cli("runs", "show", new).out
    done = cli("run", deploy(tmp_path), "--resume", new)
    assert (done.code, done.out) == (0, "paid 10\n")


def test_a_run_that_nobody_serves_is_listed_as_blocked(cli: Cli, tmp_path: Path) -> None:
    run = answered(cli, tmp_path)
    (found,) = cli("runs", "list", "--blocked", "--json").json
    assert (found["id"], found["blocked"]["reason"]) == (run, "no_code")
    assert "which nobody serves" in cli("runs", "show", run).out
    refused = cli("runs", "retry", run)
    assert refused.code == 5
    assert "which nobody serves" in refused.err


_CALLER = """
import os
import interlingua as il

@il.agent
async def child(n: int) -> int:
    return n

@il.agent
async def caller(ctx: il.Context[None, None], text: str) -> str:
    await ctx.call(child, n=1)
    if not os.path.exists("there"):
        raise OSError("no route")
    return text
"""


def test_the_export_of_a_run_that_continues_another_is_proven(here: Cli, tmp_path: Path) -> None:
    (tmp_path / "callers.py").write_text(_CALLER)
    assert here("run", "callers.py:caller", "hi").code == 1
    failed = here("runs", "list", "--agent", "caller", "--json").json[0]["id"]
    here("runs", "retry", failed)
    (tmp_path / "there").touch()
    new = here("runs", "list", "--agent", "caller", "--json").json[0]["id"]
    assert here("run", "callers.py:caller", "--resume", new).code == 0
    exported = here("audit", "export", new, "--output", "new.jsonl")
    assert exported.code == 0, exported.err
    checked = here("audit", "verify", "new.jsonl")
    assert checked.code == 0, checked.out + checked.err
    assert f"continues run {failed}: events 2 to 3 are copies of its records" in checked.out + checked.err

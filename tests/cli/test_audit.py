"""`interlingua audit`: a task becomes a file that proves itself to somebody who has nothing else."""

from __future__ import annotations

import asyncio
import json
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.filters import RunFilter
from interlingua.model.team.oversight import Proposal, ReviewVerdict
from tests.kit.commands import Result, store_of
from tests.kit.databases import sql
from tests.kit.engines import QUICK, engine, finish, question, submit
from tests.kit.overseers import SECRET, approve, judge, staff

from .conftest import ZOO

Cli = Callable[..., Result]


@il.agent
async def lead(ctx: il.Context[None, None], text: str) -> str:
    with pytest.raises(il.InterlinguaError):
        await ctx.delegate("stranger", "x")
    return str((await ctx.delegate("analyst", text, reason="it is about numbers"))["text"])


def doubtful() -> il.Agent[..., Any]:
    """Asks about the first result, and approves the second."""
    seen: list[str] = []

    def rule(proposal: Proposal) -> ReviewVerdict:
        seen.append(proposal.result_hash)
        return ReviewVerdict("inquire", inquiry="All of it?") if len(seen) == 1 else approve(proposal)

    return judge(rule)


@pytest.fixture
def task(env: dict[str, str]) -> str:
    """A task of a team, done and in the store. The id of the team's run."""

    async def work() -> str:
        async with engine(store_of(env), settings=QUICK) as eng:
            staff(eng, doubtful(), lead=lead)
            run = await finish(eng, "crew", {"text": "sales"})
            assert run.status is il.Status.SUCCEEDED, run.error
            return run.id

    return asyncio.run(work())


@pytest.fixture
def waiting(env: dict[str, str]) -> str:
    """A task that waits for the verdict of the user."""

    async def work() -> str:
        async with engine(store_of(env), settings=QUICK) as eng:
            staff(eng, judge(approve), overseer="user")
            run = await submit(eng, "crew", {"text": "analyst sales"})
            await question(eng, run.id)
            return run.id

    return asyncio.run(work())


def agents(branch: dict[str, Any]) -> list[str]:
    return [branch["agent"], *(name for child in branch.get("children", []) for name in agents(child))]


@pytest.mark.usefixtures("in_a_file")
def test_a_task_is_exported_and_checked_by_somebody_who_has_only_the_file_and_the_public_key(
    cli: Cli, task: str, env: dict[str, str], tmp_path: Path
) -> None:
    done = cli("audit", "export", "T1")
    assert (done.code, done.out) == (0, "audit-T1.jsonl\n"), done.err
    file = tmp_path / "audit-T1.jsonl"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600  # what was withheld is in it
    assert SECRET in file.read_text()
    manifest = json.loads(file.read_text().splitlines()[0])
    assert manifest["root"] == task
    assert {one["id"] for one in manifest["teams"]["crew"]} == {"lead", "analyst", "qa"}
    key = Path(env["INTERLINGUA_STORE"] + ".key")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    public = cli("audit", "key", "--public")
    assert public.out.startswith("ed25519:")
    (tmp_path / "owner.pub").write_text(public.out)
    for one in tmp_path.glob("store.db*"):
        one.rename(tmp_path / f"away-{one.name}")
    good = cli(
        "audit", "verify", "audit-T1.jsonl", "--public-key", "owner.pub", INTERLINGUA_STORE=str(tmp_path / "none.db")
    )
    assert good.code == 0, good.out + good.err
    assert "is whole: 7 runs with" in good.out
    assert "of task T1" in good.out
    assert "signed with the key that you gave" in good.out
    assert not (tmp_path / "none.db").exists()


def test_without_a_key_it_is_said_that_origin_was_not_checked(here: Cli, task: str) -> None:
    here("audit", "export", "T1")
    told = here("audit", "verify", "audit-T1.jsonl")
    assert told.code == 0
    assert "only integrity was checked, not origin" in told.out
    fingerprint = here("audit", "key").out.split("fingerprint")[1].split()[0]
    assert fingerprint in told.out
    report = here("audit", "verify", "audit-T1.jsonl", "--json").json
    assert (report["ok"], report["origin"], report["fingerprint"]) == (True, "unchecked", fingerprint)
    assert here("audit", "verify", "audit-T1.jsonl", "--public-key", fingerprint, "--json").json["origin"] == "checked"


def test_an_export_signed_with_another_key_is_refused(here: Cli, task: str) -> None:
    assert here("audit", "export", "T1", "--signing-key", "mine.key").code == 0
    usual = here("audit", "key", "--public").out.strip()
    assert here("audit", "key", "--public", "--signing-key", "mine.key").out.strip() != usual
    bad = here("audit", "verify", "audit-T1.jsonl", "--public-key", usual)
    assert bad.code == 1
    assert "signed with another key" in bad.out
    assert "that you gave" not in bad.out
    assert here("audit", "verify", "audit-T1.jsonl", "--public-key", usual, "--json").json["origin"] == "failed"
    assert here("audit", "verify", "audit-T1.jsonl", "--public-key", "mine.key").code == 0


@pytest.mark.parametrize("seed", range(5))
def test_the_event_that_was_changed_first_is_named(here: Cli, task: str, tmp_path: Path, seed: int) -> None:
    here("audit", "export", "T1")
    chance = random.Random(seed)
    lines = (tmp_path / "audit-T1.jsonl").read_text().splitlines(keepends=True)
    first, second = sorted(chance.sample(range(1, len(lines) - 1), 2))
    for at in (first, second):
        event = json.loads(lines[at])
        lines[at] = lines[at].replace(f'"time":{event["time"]}', f'"time":{event["time"] + 1}')
    (tmp_path / "changed.jsonl").write_text("".join(lines))
    event = json.loads(lines[first])
    told = here("audit", "verify", "changed.jsonl")
    assert told.code == 1
    assert "changed.jsonl is not what was exported" in told.out
    assert f"first: event {event['seq']} ({event['kind']}) of run {event['run']}" in told.out
    problem = here("audit", "verify", "changed.jsonl", "--json").json["problems"][0]
    assert (problem["run"], problem["seq"], problem["kind"]) == (event["run"], event["seq"], event["kind"])


def test_a_cut_tail_and_a_removed_run_are_named(here: Cli, task: str, tmp_path: Path) -> None:
    here("audit", "export", "T1")
    lines = (tmp_path / "audit-T1.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_text("".join(lines[:-3]))
    cut = here("audit", "verify", "cut.jsonl")
    assert cut.code == 1
    assert "2 of its" in cut.out
    assert "the seal, is not there" in cut.out
    child = json.loads(lines[0])["runs"][2]["run"]
    (tmp_path / "less.jsonl").write_text("".join(line for line in lines if not line.startswith(_event_of(child))))
    less = here("audit", "verify", "less.jsonl")
    assert less.code == 1
    assert f"run {child} (analyst) is not there" in less.out


def _event_of(run: str) -> str:
    return f'{{"type":"event","run":"{run}"'


def test_a_task_that_waits_is_exported_as_far_as_it_is(here: Cli, waiting: str) -> None:
    done = here("audit", "export", "T1")
    assert done.code == 0
    assert "not finished: run" in done.err
    told = here("audit", "verify", "audit-T1.jsonl")
    assert told.code == 0
    assert f"not finished: run {waiting} (orchestrator)" in told.out
    assert waiting in here("audit", "verify", "audit-T1.jsonl", "--json").json["unfinished"]
    tree = here("audit", "tree", "T1")
    assert "not finished" in tree.out


def test_any_run_can_be_exported_and_not_only_a_teams(here: Cli, tmp_path: Path) -> None:
    here("run", f"{ZOO}:shout", "hi")
    run = here("runs", "list", "--json").json[0]["id"]
    done = here("audit", "export", "last", "-o", "one.jsonl")
    assert (done.code, done.out) == (0, "one.jsonl\n")
    assert "1 run with" in here("audit", "verify", "one.jsonl").out
    named = here("audit", "export", run[-6:])
    assert named.out == f"audit-{run[-8:]}.jsonl\n"
    assert (tmp_path / named.out.strip()).exists()


def test_an_export_goes_through_a_pipe(cli: Cli, task: str) -> None:
    done = cli("audit", "export", "T1.1", "-o", "-")
    assert done.code == 0
    assert len(done.lines) == sum(one["events"] for one in done.lines[0]["runs"]) + 2
    told = cli("audit", "verify", "-", stdin=done.out)
    assert told.code == 0, told.out
    assert "of task T1.1" in told.out
    assert "is not part of this file" in told.out
    cut = cli("audit", "verify", "-", stdin=done.out[:-10])
    assert cut.code == 1
    assert "where the seal should be" in cut.out


def test_a_file_that_is_there_is_not_written_over_unless_asked(here: Cli, task: str, tmp_path: Path) -> None:
    (tmp_path / "audit-T1.jsonl").write_text("precious")
    refused = here("audit", "export", "T1")
    assert refused.code == 2
    assert "already" in refused.err
    assert (tmp_path / "audit-T1.jsonl").read_text() == "precious"
    assert here("audit", "export", "T1", "--force").code == 0
    assert here("audit", "verify", "audit-T1.jsonl").code == 0
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".audit")]


def test_a_store_in_which_something_was_changed_is_exported_as_it_is_and_said_to_be(
    here: Cli, task: str, env: dict[str, str]
) -> None:
    sql(store_of(env), "UPDATE events SET time=time+1 WHERE run=? AND seq=2", task)
    done = here("audit", "export", "T1")
    assert (done.code, done.out) == (1, "")
    assert "something was changed: event 2" in done.err
    assert "event 2" in here("audit", "verify", "audit-T1.jsonl").out


def test_a_deleted_run_is_shown_with_its_last_hash(here: Cli, env: dict[str, str]) -> None:
    async def work() -> tuple[str, str]:
        @il.agent
        async def shout(text: str) -> str:
            return text.upper()

        @il.agent
        async def caller(ctx: il.Context[None, None], text: str) -> str:
            return str((await ctx.call("shout", {"text": text}))["text"])

        async with engine(store_of(env), shout, caller, settings=QUICK) as eng:
            run = await finish(eng, "caller", {"text": "x"})
            (child,) = await eng.runs.search(RunFilter(parent=run.id))
            head = (await eng.runs.get(child.id)).head
            await eng.runs.delete(child.id)
            return run.id, head

    run, head = asyncio.run(work())
    assert here("audit", "export", run, "-o", "f.jsonl").code == 0
    told = here("audit", "verify", "f.jsonl")
    assert told.code == 0
    assert f"its last hash, {head}" in told.out
    assert "deleted" in here("audit", "tree", run).out


def test_the_tree_shows_who_delegated_why_and_what_was_withheld_or_refused(here: Cli, task: str) -> None:
    shown = here("audit", "tree", "T1").out
    for words in (
        "T1  lead", "T1.1  analyst", "delegated by lead: it is about numbers", "sealed",
        "refused delegation to stranger", "verdict inquire, All of it?", "verdict approve", "succeeded",
    ):  # fmt: skip
        assert words in shown, shown
    assert "\x1b" not in shown
    tree = here("audit", "tree", "T1", "--json").json
    assert tree["run"] == task
    assert sorted(set(agents(tree))) == ["crew", "crew/analyst", "crew/analyst/work", "crew/lead", "crew/qa/review"]
    first = tree["children"][0]
    assert first["started_at"].endswith("Z")
    assert first["seconds"] >= 0
    assert first["refusals"][0]["code"] == "denied"
    part = here("audit", "tree", "T1.1", "--json").json
    assert part["agent"] == "crew/analyst"
    sealed = part["children"][0]["run"]
    assert here("audit", "tree", sealed[-8:], "--json").json["sealed"] is True


def test_what_cannot_be_done_is_told_kindly(here: Cli, task: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("hello\n")
    (tmp_path / "new.jsonl").write_text('{"type":"manifest","format":"interlingua-audit","version":99}\n')
    (tmp_path / "no.key").write_text("nothing")
    here("audit", "export", "T1")
    for args, code, words in (
        (("export", "T7"), 3, "there is no task T7"),
        (("export", "zzz"), 3, "there is no run 'zzz'"),
        (("export", "01a1de97-1299-7e22-bc4f-3260440dd4d4"), 3, "there is no run"),
        (("export", "T1", "--signing-key", "no.key"), 2, "holds no private Ed25519 key"),
        (("export", "T1", "-o", "nowhere/file"), 2, "cannot be written"),
        (("export", "T1", "-o", "."), 2, "is a folder"),
        (("tree", "T1.9"), 3, "there is no task T1.9"),
        (("verify", "nothing.jsonl"), 3, "there is no file nothing.jsonl"),
        (("verify", "."), 2, "cannot be read"),
        (("verify", "text.txt"), 1, "no audit export"),
        (("verify", "new.jsonl"), 1, "format version 99"),
        (("verify", "audit-T1.jsonl", "--public-key", "nobody"), 2, "no public key"),
        (("verify", "audit-T1.jsonl", "--public-key", "no.key"), 2, "holds no Ed25519 key"),
    ):
        done = here("audit", *args)
        told = done.out + done.err
        assert done.code == code, (args, told)
        assert words in told, (args, told)
        assert "Traceback" not in told
        assert "bug" not in told


def test_a_key_is_made_where_there_is_none_and_shown(cli: Cli, tmp_path: Path) -> None:
    first = cli("audit", "key", "--store", "other.db")
    assert first.code == 0
    assert "ed25519:" in first.out
    assert "SHA256:" in first.out
    assert "other.db.key" in first.out
    assert (tmp_path / "other.db.key").exists()
    assert cli("audit", "key", "--store", "other.db").out == first.out
    assert cli("audit", "key", "--store", "other.db", "--public").out.strip() in first.out

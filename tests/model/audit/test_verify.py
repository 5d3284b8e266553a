"""Audit exports: whatever is done to one, the check finds it, and names the event that was touched first."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

import interlingua as il
from interlingua.model import hash_chain
from interlingua.model.audit.export import (
    FORMAT,
    VERSION,
    EventLine,
    Manifest,
    Missing,
    Report,
    RunEntry,
    Seal,
    decoder,
    digest,
    event_line,
    line,
    signed_text,
)
from interlingua.model.audit.verify import verify
from interlingua.model.errors import InvalidInput, RunNotFound
from interlingua.model.filters import RunFilter
from interlingua.model.status import Status
from interlingua.model.team.oversight import Proposal, ReviewVerdict
from interlingua.security.signing_key import SigningKey, genuine
from interlingua.server.audit import collect, export, read_lines
from tests.kit.databases import sql
from tests.kit.engines import PATIENT, QUICK, engine, finish, question, submit
from tests.kit.overseers import SECRET, approve, judge, staff
from tests.kit.teams import shout, tree

Lines = list[bytes]


@il.agent
async def busy_lead(ctx: il.Context[None, None], text: str) -> str:
    """Delegates, is refused, and delegates again."""
    with pytest.raises(il.InterlinguaError):
        await ctx.delegate("stranger", "x")
    done = [await ctx.delegate("analyst", f"{text} {part}", reason="numbers") for part in ("north", "south")]
    return " ".join(one["text"] for one in done)


def hesitating() -> Callable[[Proposal], ReviewVerdict]:
    """Asks about the first result, and approves the others."""
    asked: list[str] = []

    def rule(proposal: Proposal) -> ReviewVerdict:
        asked.append(proposal.result_hash)
        return ReviewVerdict("inquire", inquiry="Are you sure?") if len(asked) == 1 else approve(proposal)

    return rule


async def exported(eng: il.Engine, run: str, key: SigningKey) -> Lines:
    return [one async for one in export(eng, run, key, now=1)]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return SigningKey.load_or_create(tmp_path_factory.mktemp("key") / "owner.key")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return SigningKey.load_or_create(tmp_path_factory.mktemp("key") / "stranger.key")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory, key: SigningKey) -> Lines:
    """An export of a team's task: eight runs and more, some of them sealed."""

    async def make() -> Lines:
        async with engine(tmp_path_factory.mktemp("task") / "store.db") as eng:
            staff(eng, judge(hesitating()), lead=busy_lead)
            run = await finish(eng, "crew", {"text": "sales"})
            assert run.status is Status.SUCCEEDED, run.error
            return await exported(eng, run.id, key)

    return asyncio.run(make())


def check(lines: Lines, key: SigningKey | None = None) -> Report:
    return verify(lines, genuine, None if key is None else lambda public: public == key.public)


def events(lines: Lines) -> list[EventLine]:
    found = [decoder.decode(one) for one in lines[1:-1]]
    assert all(isinstance(one, EventLine) for one in found)
    return [one for one in found if isinstance(one, EventLine)]


def manifest_of(lines: Lines) -> Manifest:
    found = decoder.decode(lines[0])
    assert isinstance(found, Manifest)
    return found


def seal(manifest: Manifest, body: Lines, key: SigningKey) -> Lines:
    """A file that whoever has this key could have written."""
    first = line(manifest)
    made = digest(first, manifest.runs)
    return [first, *body, line(Seal(made, key.public, key.sign(signed_text(made))))]


def chained(found: list[EventLine]) -> list[EventLine]:
    """The events of one run with hashes that fit, whatever was done to their bodies."""
    previous, made = hash_chain.GENESIS, []
    for one in found:
        assert isinstance(one.body, msgspec.Raw)
        previous = hash_chain.link(
            previous, one.run, one.seq, one.kind, one.time, hash_chain.body_hash(bytes(one.body))
        )
        made.append(msgspec.structs.replace(one, hash=previous.hex()))
    return made


def of_agent(manifest: Manifest, agent: str) -> RunEntry:
    return next(entry for entry in manifest.runs if entry.agent == agent)


# -- what is whole ------------------------------------------------------------------------------------------


def test_an_export_of_a_team_is_whole_and_has_its_sealed_runs(task: Lines, key: SigningKey) -> None:
    report = check(task, key)
    assert (report.problems, report.notes) == ([], [])
    assert report.origin
    manifest = manifest_of(task)
    agents = [entry.agent for entry in manifest.runs]
    assert agents[:3] == ["crew", "crew/lead", "crew/analyst"]
    assert agents.count("crew/analyst/work") == 3  # one of them twice: the overseer had asked
    assert agents.count("crew/qa/review") == 3
    assert {entry.agent for entry in manifest.runs if entry.sealed} == {"crew/analyst/work", "crew/qa/review"}
    assert SECRET.encode() in b"".join(task)
    assert report.events == len(task) - 2 == sum(entry.events for entry in manifest.runs)
    assert report.task == ""
    assert [entry.task for entry in manifest.runs[:3]] == ["", "T1", "T1.1"]
    assert {one["id"] for one in manifest.teams["crew"]} == {"lead", "analyst", "qa"}
    assert {card["name"] for card in manifest.cards.values()} == set(agents)


def test_an_export_can_be_checked_by_its_description_alone(task: Lines) -> None:
    """As docs/audit.md tells it, with nothing of ours."""
    manifest, found, end = json.loads(task[0]), task[1:-1], json.loads(task[-1])
    place = 0
    for entry in manifest["runs"]:
        before = bytes(32)
        for seq in range(1, entry["events"] + 1):
            event = json.loads(found[place])
            body = found[place].split(b',"body":', 1)[1].removesuffix(b"}\n")
            named = "\n".join([event["run"], str(event["seq"]), event["kind"], str(event["time"]), ""]).encode()
            before = hashlib.sha256(before + named + hashlib.sha256(body).digest()).digest()
            assert (event["run"], event["seq"], event["hash"]) == (entry["run"], seq, before.hex())
            place += 1
        assert entry["head"] == before.hex()
    assert place == len(found)
    heads = "".join(f"{entry['run']}\n{entry['events']}\n{entry['head']}\n" for entry in manifest["runs"])
    signed = b"interlingua-audit\n1\n" + hashlib.sha256(task[0]).digest() + heads.encode()
    assert end["digest"] == hashlib.sha256(signed).hexdigest()
    public = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(end["key"].removeprefix("ed25519:") + "="))
    public.verify(
        base64.urlsafe_b64decode(end["signature"] + "=="), f"interlingua-audit 1 {end['digest']}\n".encode()
    )  # fmt: skip


def test_without_a_key_origin_is_not_said_to_be_checked(task: Lines, key: SigningKey, stranger: SigningKey) -> None:
    report = check(task)
    assert report.ok
    assert not report.origin
    assert report.key == key.public
    wrong = check(task, stranger)
    assert [problem.code for problem in wrong.problems] == ["key"]
    assert not wrong.origin


def test_a_body_may_be_erased_in_the_file_and_the_rest_is_still_proven(task: Lines, key: SigningKey) -> None:
    for place, one in enumerate(events(task), 1):
        assert isinstance(one.body, msgspec.Raw)
        hashed = hash_chain.body_hash(bytes(one.body)).hex()
        erased = msgspec.structs.replace(one, body=msgspec.UNSET, erased=hashed)
        report = check([*task[:place], line(erased), *task[place + 1 :]], key)
        assert report.ok, (one.kind, report.problems)
        assert report.erased == 1
        lied = msgspec.structs.replace(erased, erased=hash_chain.body_hash(b"{}").hex())
        told = check([*task[:place], line(lied), *task[place + 1 :]], key).problems[0]
        assert (told.code, told.run, told.seq, told.kind) == ("changed", one.run, one.seq, one.kind)


# -- what was changed by somebody without the key -----------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_a_changed_byte_is_found_and_its_event_is_named(task: Lines, key: SigningKey, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(20):
        at = chance.randrange(1, len(task) - 1)
        was = decoder.decode(task[at])
        assert isinstance(was, EventLine)
        raw = bytearray(task[at])
        place = chance.randrange(len(raw) - 1)
        raw[place] = chance.choice([byte for byte in range(32, 127) if byte != raw[place]])
        report = check([*task[:at], bytes(raw), *task[at + 1 :]], key)
        told = report.problems[0]
        assert (told.run, told.seq, told.line) == (was.run, was.seq, at + 1), (bytes(raw), report.problems)


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda raw: raw.replace(b'{"type":"event",', b'{"type": "event",'),
        lambda raw: raw.replace(b'{"type":"event",', b'{"type":"event","seq":99,'),
        lambda raw: raw.replace(b'"kind":"', b'"kind":"\\u0063', 1).replace(b"\\u0063c", b"\\u0063", 1),
        lambda raw: raw.replace(b'{"type":"event",', b"{").replace(b"}\n", b',"type":"event"}\n'),
        lambda raw: b" " + raw,
        lambda raw: raw.replace(b"}\n", b"}\r\n"),
    ],
    ids=["a space", "a member twice", "another spelling", "another order", "indented", "another line break"],
)
def test_a_line_that_only_reads_the_same_is_not_the_same(
    task: Lines, key: SigningKey, rewrite: Callable[[bytes], bytes]
) -> None:
    """Two readers could read two different things in it."""
    for at, was in enumerate(events(task), 1):
        if not was.kind.startswith("c"):
            continue
        again = rewrite(task[at])
        assert again != task[at]
        told = check([*task[:at], again, *task[at + 1 :]], key).problems[0]
        assert (told.code, told.run, told.seq, told.line) == ("changed", was.run, was.seq, at + 1)


@pytest.mark.parametrize("at", [0, -1], ids=["manifest", "seal"])
def test_a_changed_byte_of_the_manifest_or_the_seal_is_found(task: Lines, key: SigningKey, at: int) -> None:
    chance = random.Random(at)
    for _ in range(500):
        changed = list(task)
        raw = bytearray(changed[at])
        place = chance.randrange(len(raw))
        raw[place] = chance.choice([byte for byte in range(32, 127) if byte != raw[place]])
        changed[at] = bytes(raw)
        assert not check(changed).ok, bytes(raw)
        assert not check(changed, key).origin


@pytest.mark.parametrize("seed", range(20))
def test_a_line_that_is_gone_is_missed(task: Lines, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(5):
        at = chance.randrange(1, len(task) - 1)
        was = events(task)[at - 1]
        told = check([*task[:at], *task[at + 1 :]]).problems[0]
        assert (told.run, told.seq) == (was.run, was.seq)
        assert told.code in ("missing", "cut")


@pytest.mark.parametrize("seed", range(20))
def test_lines_in_another_order_are_noticed(task: Lines, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(5):
        first, second = sorted(chance.sample(range(1, len(task) - 1), 2))
        changed = list(task)
        changed[first], changed[second] = changed[second], changed[first]
        was = events(task)[first - 1]
        told = check(changed).problems[0]
        assert (told.run, told.seq, told.line) == (was.run, was.seq, first + 1)


@pytest.mark.parametrize("seed", range(20))
def test_a_line_that_stands_twice_is_noticed(task: Lines, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(5):
        copied, to = chance.randrange(len(task)), chance.randrange(1, len(task) + 1)
        changed = [*task[:to], task[copied], *task[to:]]
        report = check(changed)
        assert not report.ok, (copied, to)
        # A copy right before its original is only noticed when the original comes.
        assert report.problems[0].line in (to + 1, to + 2)


@pytest.mark.parametrize("seed", range(20))
def test_a_file_that_is_cut_off_anywhere_is_not_whole(task: Lines, seed: int) -> None:
    whole = b"".join(task)
    chance = random.Random(seed)
    for _ in range(10):
        size = chance.randrange(len(whole))
        left = whole[:size].splitlines(keepends=True)
        report = check(left)
        assert not report.ok, size
        if b"\n" in whole[:size]:
            complete = left if left[-1].endswith(b"\n") else left[:-1]
            if len(complete) < len(task) - 1:
                was = events(task)[len(complete) - 1]
                assert (report.problems[0].run, report.problems[0].seq) == (was.run, was.seq)
            assert report.problems[-1].code == "seal"


def test_events_that_are_added_with_hashes_that_fit_are_noticed(task: Lines, key: SigningKey) -> None:
    for entry in manifest_of(task).runs:
        mine = [one for one in events(task) if one.run == entry.run]
        at = task.index(line(mine[-1])) + 1
        body = msgspec.Raw(b'{"kind":"warning","message":"it was not me"}')
        forged = chained([*mine, EventLine(entry.run, entry.events + 1, "warning", mine[-1].time, "", body)])[-1]
        told = check([*task[:at], line(forged), *task[at:]], key).problems[0]
        assert (told.code, told.run, told.seq, told.kind) == ("added", entry.run, entry.events + 1, "warning")


def rewritten(task: Lines, run: str) -> tuple[Lines, str]:
    """The log of a run with another time of its end, and hashes that fit; and its new last hash."""
    mine = [one for one in events(task) if one.run == run]
    mine[-1] = msgspec.structs.replace(mine[-1], time=mine[-1].time + 1)
    mine = chained(mine)
    again = {one.seq: line(one) for one in mine}
    body = [again[one.seq] if one.run == run else line(one) for one in events(task)]
    return body, mine[-1].hash


def test_a_log_that_was_written_anew_does_not_fit_the_manifest(task: Lines, key: SigningKey) -> None:
    for entry in manifest_of(task).runs:
        body, _ = rewritten(task, entry.run)
        told = check([task[0], *body, task[-1]], key).problems[0]
        assert (told.code, told.run) == ("head", entry.run)


def test_a_manifest_that_was_made_to_fit_is_not_what_was_signed(task: Lines, key: SigningKey) -> None:
    manifest = manifest_of(task)
    body, head = rewritten(task, manifest.root)
    manifest.runs[0].head = head
    report = check([line(manifest), *body, task[-1]])
    assert [problem.code for problem in report.problems] == ["signature"]


# -- what was changed by somebody who signs it again --------------------------------------------------------


def test_a_file_that_a_stranger_signed_anew_is_not_from_the_owner(
    task: Lines, key: SigningKey, stranger: SigningKey
) -> None:
    manifest = manifest_of(task)
    body, manifest.runs[0].head = rewritten(task, manifest.root)
    again = seal(manifest, body, stranger)
    assert check(again).ok  # nothing else holds the last hash of the root
    report = check(again, key)
    assert [problem.code for problem in report.problems] == ["key"]


def test_a_child_that_was_written_anew_is_not_the_one_whose_end_its_parent_saw(task: Lines, key: SigningKey) -> None:
    for place, entry in enumerate(manifest_of(task).runs[1:], 1):
        manifest = manifest_of(task)
        body, manifest.runs[place].head = rewritten(task, entry.run)
        problems = check(seal(manifest, body, key), key).problems
        assert [(problem.code, problem.run) for problem in problems] == [("child_head", entry.run)]


def without(task: Lines, run: str) -> tuple[Manifest, Lines]:
    """As if a run, and all below it, had never been."""
    manifest = manifest_of(task)
    gone = {run}
    for entry in manifest.runs:
        if entry.parent in gone:
            gone.add(entry.run)
    manifest.runs = [entry for entry in manifest.runs if entry.run not in gone]
    return manifest, [line(one) for one in events(task) if one.run not in gone]


def test_a_child_run_that_was_removed_is_missed(task: Lines, key: SigningKey) -> None:
    for entry in manifest_of(task).runs[1:]:
        manifest, body = without(task, entry.run)
        told = check(seal(manifest, body, key), key).problems[0]
        assert (told.code, told.run) == ("removed_run", entry.run)
        unsigned = check([line(manifest), *body, task[-1]], key)
        assert {problem.code for problem in unsigned.problems} == {"removed_run", "signature"}


def test_a_child_run_that_is_said_to_have_never_begun_is_missed(task: Lines, key: SigningKey) -> None:
    for entry in manifest_of(task).runs[1:]:
        manifest, body = without(task, entry.run)
        manifest.missing = [Missing(entry.run, entry.parent or "", entry.agent)]
        told = check(seal(manifest, body, key), key).problems[0]
        assert (told.code, told.run) == ("removed_run", entry.run)


def test_events_of_a_run_that_are_all_gone_are_missed(task: Lines, key: SigningKey) -> None:
    for entry in manifest_of(task).runs:
        body = [line(one) for one in events(task) if one.run != entry.run]
        told = check([task[0], *body, task[-1]], key).problems[0]
        assert (told.code, told.run) == ("removed_run", entry.run)


def test_a_run_whose_end_was_cut_off_is_noticed(task: Lines, key: SigningKey) -> None:
    for place, entry in enumerate(manifest_of(task).runs):
        manifest = manifest_of(task)
        mine = [one for one in events(task) if one.run == entry.run]
        manifest.runs[place].events -= 1
        manifest.runs[place].head = mine[-2].hash
        body = [line(one) for one in events(task) if (one.run, one.seq) != (entry.run, entry.events)]
        told = check(seal(manifest, body, key), key).problems
        assert [(problem.code, problem.run) for problem in told] == [("child_head" if place else "manifest", entry.run)]
        manifest.runs[place].status = Status.RUNNING
        told = check(seal(manifest, body, key), key).problems
        # Of the root nobody else knows that it ended: there the owner's signature is all.
        assert [(problem.code, problem.run) for problem in told] == ([("child_head", entry.run)] if place else [])


def test_a_run_from_elsewhere_is_a_stranger(task: Lines, key: SigningKey) -> None:
    manifest = manifest_of(task)
    lead = manifest.runs[1]
    other = "01a1de97-1299-7e22-bc4f-3260440dd4d4"
    created = {
        "kind": "created", "request": {"agent": "ghost"}, "card": "", "parent": lead.run, "parent_head": lead.head,
    }  # fmt: skip
    ended = {"kind": "finished", "status": "succeeded"}
    mine = chained(
        [
            EventLine(other, seq, body["kind"], 1, "", msgspec.Raw(msgspec.json.encode(body)))  # type: ignore[arg-type]
            for seq, body in enumerate((created, ended), 1)
        ]
    )
    entry = RunEntry(other, "ghost", 2, mine[-1].hash, Status.SUCCEEDED, lead.run, lead.head)
    manifest.runs.append(entry)
    body = [*(line(one) for one in events(task)), *map(line, mine)]
    told = check(seal(manifest, body, key), key).problems
    assert [(problem.code, problem.run) for problem in told] == [("stranger", other)]


def test_a_child_names_a_moment_in_its_parents_log(task: Lines, key: SigningKey) -> None:
    """One that was called at another moment than its parent's log has is no child of it."""
    for place, entry in enumerate(manifest_of(task).runs[1:], 1):
        manifest = manifest_of(task)
        mine = [one for one in events(task) if one.run == entry.run]
        assert isinstance(mine[0].body, msgspec.Raw)
        assert entry.parent_head is not None
        moved = bytes(mine[0].body).replace(entry.parent_head.encode(), b"f" * 64)
        mine[0] = msgspec.structs.replace(mine[0], body=msgspec.Raw(moved))
        again = {one.seq: one for one in chained(mine)}
        manifest.runs[place].head, manifest.runs[place].parent_head = again[entry.events].hash, "f" * 64
        body = [line(again[one.seq] if one.run == entry.run else one) for one in events(task)]
        told = check(seal(manifest, body, key), key).problems
        assert {(problem.code, problem.run) for problem in told} >= {
            ("parent_head", entry.run),
            ("child_head", entry.run),
        }
        lied = manifest_of(task)
        lied.runs[place].parent_head = "f" * 64
        told = check(seal(lied, [line(one) for one in events(task)], key), key).problems
        assert (told[0].code, told[0].run, told[0].seq) == ("manifest", entry.run, 1)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda manifest: manifest.runs.append(manifest.runs[-1]), "duplicate_run"),
        (lambda manifest: setattr(manifest.runs[1], "agent", "crew/qa"), "manifest"),
        (lambda manifest: setattr(manifest.runs[0], "status", Status.FAILED), "manifest"),
        (lambda manifest: setattr(manifest.runs[1], "parent", manifest.runs[2].run), "manifest"),
        (lambda manifest: setattr(manifest.runs[2], "parent", manifest.runs[0].run), "manifest"),
        (lambda manifest: setattr(manifest.runs[1], "events", 0), "manifest"),
        (lambda manifest: setattr(manifest, "root", manifest.runs[1].run), "manifest"),
        (lambda manifest: manifest.cards.update({next(iter(manifest.cards)): {"name": "other"}}), "manifest"),
        (lambda manifest: manifest.runs.clear(), "manifest"),
    ],
    ids=["twice", "agent", "status", "parent below", "grandparent", "no events", "root", "card", "no runs"],
)
def test_a_manifest_that_disagrees_with_the_logs_is_told(
    task: Lines, key: SigningKey, change: Callable[[Manifest], Any], code: str
) -> None:
    manifest = manifest_of(task)
    change(manifest)
    told = check(seal(manifest, task[1:-1], key), key).problems
    assert code in {problem.code for problem in told}


def test_a_run_that_is_listed_below_another_is_told_also_where_it_no_longer_says_who_called_it(
    task: Lines, key: SigningKey
) -> None:
    manifest = manifest_of(task)
    child = manifest.runs[2]
    child.parent = manifest.root
    body = []
    for one in events(task):
        assert isinstance(one.body, msgspec.Raw)
        if (one.run, one.seq) == (child.run, 1):
            hashed = hash_chain.body_hash(bytes(one.body)).hex()
            one = msgspec.structs.replace(one, body=msgspec.UNSET, erased=hashed)
        body.append(line(one))
    told = check(seal(manifest, body, key), key).problems[0]
    assert told.code == "manifest"
    assert child.run in told.message


def test_a_manifest_of_a_team_that_allows_less_is_remarked(task: Lines, key: SigningKey) -> None:
    manifest = manifest_of(task)
    for one in manifest.teams["crew"]:
        one["allowed_agents"] = []
    report = check(seal(manifest, task[1:-1], key), key)
    assert report.ok
    assert any("which its manifest in this file does not allow" in told for told in report.notes)


# -- what is no export --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "code", "words"),
    [
        ([], "format", "empty"),
        ([b"hello\n"], "format", "no audit export"),
        ([b'{"type":"manifest"}\n'], "format", "no audit export"),
        ([b"[1, 2]\n"], "format", "no audit export"),
        ([b"\xff\xfe\x00\n"], "format", "no audit export"),
        ([b"[" * 100_000 + b"\n"], "format", "no audit export"),
        ([f'{{"type":"manifest","format":"{FORMAT}","version":{VERSION + 1}}}\n'.encode()], "version", "version 2"),
        ([f'{{"type":"manifest","format":"{FORMAT}","version":"x"}}\n'.encode()], "version", "version"),
        ([f'{{"type":"manifest","format":"{FORMAT}","version":{VERSION}}}\n'.encode()], "manifest", "line 1"),
    ],
)
def test_what_is_no_export_is_told_kindly(lines: Lines, code: str, words: str) -> None:
    (problem,) = check(lines).problems
    assert problem.code == code
    assert words in problem.message


@pytest.mark.parametrize("seed", range(10))
def test_whatever_stands_in_a_file_the_check_comes_to_an_end(task: Lines, stranger: SigningKey, seed: int) -> None:
    chance = random.Random(seed)
    odd = [None, True, -1, 2**63, 2**64, 2**100, 1.5, "", "x" * 64, [], {}, [[]], {"id": 1}, [{"id": "lead"}]]

    def spoil(value: Any) -> Any:
        """The same with something else somewhere in it."""
        if isinstance(value, dict) and value and chance.random() < 0.9:
            name = chance.choice(list(value))
            return {**value, name: spoil(value[name])}
        if isinstance(value, list) and value and chance.random() < 0.9:
            place = chance.randrange(len(value))
            return [*value[:place], spoil(value[place]), *value[place + 1 :]]
        return chance.choice(odd)

    for _ in range(50):
        at = chance.choice([0, 0, chance.randrange(len(task))])
        spoilt = json.dumps(spoil(json.loads(task[at])), separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        if spoilt == task[at]:
            continue
        changed = [*task[:at], spoilt, *task[at + 1 :]]
        assert not check(changed).ok, spoilt
        if at == 0 and not {problem.code for problem in check(changed).problems} & {"format", "version"}:
            with contextlib.suppress(msgspec.MsgspecError):
                check(seal(manifest_of(changed), task[1:-1], stranger))  # signed, too


def test_a_file_full_of_nonsense_is_not_told_line_by_line(task: Lines) -> None:
    entry = manifest_of(task).runs[0]
    nonsense = [line(EventLine(entry.run, seq, "delta", 1, "")) for seq in range(2, 5_000, 2)]
    report = check([task[0], *nonsense])
    assert len(report.problems) <= 100


def test_a_long_file_is_never_in_memory_as_a_whole(key: SigningKey, tmp_path: Path) -> None:
    count, size = 500, 100_000
    run = "01a1de97-1299-7e22-bc4f-3260440dd4d4"

    def made() -> Iterator[tuple[bytes, bytes]]:
        previous = hash_chain.GENESIS
        for seq in range(1, count + 1):
            kind = "created" if seq == 1 else "finished" if seq == count else "delta"
            told: dict[str, Any] = {"kind": kind, "delta": str(seq) * (size // len(str(seq)))}
            if kind == "created":
                told["request"] = {"agent": "long"}
            if kind == "finished":
                told["status"] = "succeeded"
            body = msgspec.json.encode(told)
            previous = hash_chain.link(previous, run, seq, kind, seq, hash_chain.body_hash(body))
            yield event_line(run, seq, kind, seq, previous, body, None), previous

    head = b""
    for _, hashed in made():
        head = hashed
    manifest = Manifest(FORMAT, VERSION, run, 1, [RunEntry(run, "long", count, head.hex(), Status.SUCCEEDED)])
    ends = seal(manifest, [], key)
    file = tmp_path / "long.jsonl"
    with file.open("wb") as out:
        out.write(ends[0])
        out.writelines(one for one, _ in made())
        out.write(ends[-1])
    assert file.stat().st_size > count * size
    tracemalloc.start()
    try:
        with file.open("rb") as source:
            report = verify(read_lines(source), genuine)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert report.ok, report.problems
    assert report.events == count
    assert peak < file.stat().st_size / 20


# -- what the store has -------------------------------------------------------------------------------------


@il.agent(asks=[il.Confirm])
async def unsure(ctx: il.Context[None, None], text: str) -> str:
    await ctx.call(shout, text=text)
    await ctx.ask(il.Confirm("Shall I?"))
    return text


@il.agent
async def careless(ctx: il.Context[None, None]) -> str:
    """Calls somebody with an input that it does not take."""
    with pytest.raises(InvalidInput):
        await ctx.call("shout", {"wrong": 1})
    await ctx.call("shout", {"text": "right"})
    return "done"


@il.agent
async def fan(ctx: il.Context[None, None], count: int) -> str:
    await asyncio.gather(*(ctx.call("talker", {"text": str(n)}, key=str(n)) for n in range(count)))
    return "done"


@il.agent
async def talker(ctx: il.Context[None, None], text: str) -> str:
    for _ in range(3):
        await ctx.thought(text)
        await ctx.call("shout", {"text": text})
    return text


async def test_a_run_that_goes_on_is_exported_as_far_as_it_is(store: Path, key: SigningKey) -> None:
    async with engine(store, unsure, shout) as eng:
        run = await submit(eng, "unsure", {"text": "x"})
        asked = await question(eng, run.id)
        lines = await exported(eng, run.id, key)
        report = check(lines, key)
        assert report.ok, report.problems
        assert report.unfinished == [run.id]
        assert any(told.startswith("not finished: run") for told in report.notes)
        await eng.questions.answer(asked.id, {"approved": True})
        await eng.runs.wait(run.id, timeout=20)
        later = check(await exported(eng, run.id, key), key)
        assert later.ok
        assert later.unfinished == later.notes == []


async def test_a_child_that_goes_on_is_missed_too(store: Path, key: SigningKey) -> None:
    async with engine(store) as eng:
        staff(eng, judge(approve), overseer="user")
        run = await submit(eng, "crew", {"text": "analyst sales"})
        await question(eng, run.id)
        lines = await exported(eng, run.id, key)
    assert check(lines, key).ok
    for entry in manifest_of(lines).runs[1:]:
        manifest, body = without(lines, entry.run)
        told = check(seal(manifest, body, key), key).problems[0]
        assert (told.code, told.run) == ("removed_run", entry.run)


async def test_an_export_fits_together_at_any_moment(store: Path, key: SigningKey) -> None:
    async with engine(store, fan, talker, shout, settings=PATIENT) as eng:
        run = await submit(eng, "fan", {"count": 30})
        sizes = []
        while True:
            ended = (await eng.runs.get(run.id)).status.final
            report = check(await exported(eng, run.id, key), key)
            assert report.ok, report.problems
            sizes.append(report.events)
            if ended:
                break
        assert not report.unfinished
        assert report.runs == 1 + 30 + 90
        assert len(set(sizes)) > 1  # some of it was seen on the way


async def test_events_that_were_erased_in_the_store_are_exported_without_what_they_said(
    store: Path, key: SigningKey
) -> None:
    async with engine(store, fan, talker, shout) as eng:
        run = await finish(eng, "fan", {"count": 2})
        for one in await tree(eng, run.id):
            for seq in range(1, one.seq + 1):
                await eng.runs.erase(one.id, seq)
                lines = await exported(eng, run.id, key)
                report = check(lines, key)
                assert report.ok, report.problems
        assert report.erased == report.events == len(lines) - 2
        assert all(one.body is msgspec.UNSET for one in events(lines))


async def test_a_deleted_child_leaves_its_last_hash_in_the_export(store: Path, key: SigningKey) -> None:
    async with engine(store, fan, talker, shout) as eng:
        run = await finish(eng, "fan", {"count": 2})
        first = (await eng.runs.search(RunFilter(agent="talker")))[0]
        before = (await eng.runs.get(first.id)).head
        await eng.runs.delete(first.id)
        lines = await exported(eng, run.id, key)
        report = check(lines, key)
        assert report.ok, report.problems
        assert report.deleted == [first.id]
        assert any(told.startswith("deleted: run") and before in told for told in report.notes)
        (entry,) = [one for one in manifest_of(lines).runs if one.deleted]
        assert (entry.run, entry.agent, entry.head, entry.events) == (first.id, "talker", before, first.seq)
        assert entry.deleted_at is not None
        entry.head = "f" * 64
        lied = manifest_of(lines)
        lied.runs = [entry if one.run == entry.run else one for one in lied.runs]
        told = check(seal(lied, lines[1:-1], key), key).problems[0]
        assert (told.code, told.run) == ("child_head", first.id)


async def test_a_deleted_run_is_exported_as_a_tombstone_and_a_run_that_never_was_is_not(
    store: Path, key: SigningKey
) -> None:
    async with engine(store, shout) as eng:
        run = await finish(eng, "shout", {"text": "x"})
        await eng.runs.delete(run.id)
        lines = await exported(eng, run.id, key)
        report = check(lines, key)
        assert report.ok, report.problems
        assert report.deleted == [run.id]
        assert run.head in report.notes[0]
        assert len(lines) == 2
        with pytest.raises(RunNotFound):
            await exported(eng, "01a1de97-1299-7e22-bc4f-3260440dd4d4", key)


async def test_a_call_that_never_became_a_run_is_told_and_is_no_problem(store: Path, key: SigningKey) -> None:
    async with engine(store, careless, shout) as eng:
        run = await finish(eng, "careless")
        assert run.status is Status.SUCCEEDED, run.error
        lines = await exported(eng, run.id, key)
        report = check(lines, key)
        assert report.ok, report.problems
        (gone,) = manifest_of(lines).missing
        assert any(gone.run in told and "never began" in told for told in report.notes)


async def test_a_part_of_a_task_is_exported_alone(store: Path, key: SigningKey) -> None:
    async with engine(store) as eng:
        staff(eng, judge(approve))
        run = await finish(eng, "crew", {"text": "analyst sales"})
        part = (await eng.teams.task("T1.1")).run
        lines = await exported(eng, part, key)
        report = check(lines, key)
        assert report.ok, report.problems
        assert (report.root, report.task) == (part, "T1.1")
        assert [entry.agent for entry in manifest_of(lines).runs] == [
            "crew/analyst", "crew/analyst/work", "crew/qa/review",
        ]  # fmt: skip
        assert run.id not in {entry.run for entry in manifest_of(lines).runs}
        assert "is not part of this file" in report.notes[0]


async def test_what_was_changed_in_the_store_is_found_in_its_export(store: Path, key: SigningKey) -> None:
    async with engine(store, fan, talker, shout) as eng:
        run = await finish(eng, "fan", {"count": 2})
        victim = (await eng.runs.search(RunFilter(agent="talker")))[0].id
    for change, value, seq, code in (
        ("UPDATE events SET body=? WHERE run=? AND seq=3", b'{\n"kind":"plan"}', 3, "changed"),
        ("UPDATE events SET body=? WHERE run=? AND seq=3", b"no JSON", 3, "changed"),
        ("DELETE FROM events WHERE run=? AND seq=3", None, 3, "missing"),
        ("DELETE FROM events WHERE run=? AND seq>4", None, 3, "missing"),
        ("DELETE FROM events WHERE run=?", None, 1, "removed_run"),
        ("DELETE FROM runs WHERE id=?", None, None, "removed_run"),
    ):  # fmt: skip
        sql(store, change, *([value] if value is not None else []), victim)
        async with engine(store, settings=QUICK) as eng:
            told = check(await exported(eng, run.id, key), key).problems[0]
            assert (told.code, told.run, told.seq) == (code, victim, seq), told


async def test_a_log_is_exported_as_far_as_its_run_had_come(store: Path, key: SigningKey) -> None:
    async with engine(store, fan, talker, shout) as eng:
        run = await finish(eng, "fan", {"count": 2})
    # As if it had grown since, and as if somebody had taken an event out before.
    sql(store, "DELETE FROM events WHERE run=? AND seq=2", run.id)
    sql(store, "UPDATE runs SET next_seq=5 WHERE id=?", run.id)
    async with engine(store) as eng:
        lines = await exported(eng, run.id, key)
        assert [one.seq for one in events(lines) if one.run == run.id] == [1, 3, 4]


# -- the tree -----------------------------------------------------------------------------------------------


async def test_the_tree_tells_who_delegated_why_what_was_refused_and_how_it_was_judged(store: Path) -> None:
    async with engine(store) as eng:
        staff(eng, judge(hesitating()), lead=busy_lead)
        run = await finish(eng, "crew", {"text": "sales"})
        root = (await collect(eng.runs, run.id)).tree()
    assert (root.participant, root.agent, root.delegated_by) == ("orchestrator", "crew", None)
    (lead,) = root.children
    assert (lead.task, lead.participant, lead.delegated_by, lead.asked) == ("T1", "lead", "orchestrator", "sales")
    (refusal,) = lead.refusals
    assert (refusal.what, refusal.code) == ("delegation to stranger", "denied")
    north, south = lead.children
    assert (north.task, south.task) == ("T1.1", "T1.2")
    assert (north.participant, south.participant) == ("analyst", "analyst#2")
    assert (north.delegated_by, north.reason, north.rule) == ("lead", "numbers", "when analyst knows better")
    assert [child.agent for child in north.children] == ["crew/analyst/work", "crew/qa/review"] * 2
    assert all(child.sealed for child in north.children)
    verdicts = [child.verdict for child in north.children if child.verdict is not None]
    assert [(one.by, one.decision, one.text) for one in verdicts] == [
        (verdicts[0].by, "inquire", "Are you sure?"), (verdicts[1].by, "approve", ""),
    ]  # fmt: skip
    assert root.started_at is not None
    assert root.ended_at is not None
    assert root.ended_at >= root.started_at


async def test_the_tree_tells_how_the_user_judged(store: Path) -> None:
    async with engine(store) as eng:
        staff(eng, judge(approve), overseer="user")
        run = await submit(eng, "crew", {"text": "analyst sales"})
        asked = await question(eng, run.id)
        await eng.questions.answer(asked.id, {"decision": "approve", "result_hash": asked.payload["result_hash"]})
        await eng.runs.wait(run.id, timeout=20)
        root = (await collect(eng.runs, run.id)).tree()
    (review,) = root.children[0].children[0].reviews
    assert (review.by, review.decision, review.result_hash) == ("owner", "approve", asked.payload["result_hash"])

"""A server that breaks one rule is told which one. The server is `broken.py`, written by hand from the document."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from interlingua_conform import suite
from interlingua_conform.base import Finding, Roles, Subject

from ..common import failures, findings
from .broken import GARBAGE

pytestmark = pytest.mark.faults  # many servers, each broken in one way: too long for every change

SERVER = Path(__file__).parent / "broken.py"

# defect: the rule that it breaks, and those that cannot hold then
DEFECTS: dict[str, tuple[str, ...]] = {
    "no capability": ("mcp.capabilities.agents-declared",),
    "capability is true": ("mcp.capabilities.agents-is-object",),
    "no ping": ("mcp.intro.extends-mcp",),
    "says hello": ("mcp.intro.extends-mcp",),
    "answers notifications": ("mcp.door.never-ends", "mcp.intro.extends-mcp"),  # initialized is one
    "wants agents declared": ("mcp.intro.server-side", "mcp.intro.discover-and-run", "mcp.listing.method",
                              "mcp.listing.params-empty", "mcp.listing.result-agents"),  # nothing is listed
    "error is null": ("mcp.intro.extends-mcp",),
    "result is null": ("mcp.intro.extends-mcp",),
    "id is a text": ("mcp.listing.response-id", "mcp.running.response-id"),
    "no id": ("mcp.listing.response-id", "mcp.running.response-id"),
    "no empty params": ("mcp.listing.params-empty",),
    "a bare list": ("mcp.listing.result-agents", "mcp.intro.discover-and-run"),
    "listed as items": ("mcp.listing.result-agents", "mcp.intro.discover-and-run"),
    "two of one name": ("mcp.listing.agent-name",),
    "shown names": ("mcp.listing.agent-name", "mcp.intro.discover-and-run", "mcp.running.method"),
    "description is null": ("mcp.listing.agent-description",),
    "schema without a type": ("mcp.listing.agent-input-schema",),
    "schema is a text": ("mcp.listing.agent-input-schema",),
    "no output schema": ("mcp.listing.agent-output-schema",),
    "required is a text": ("mcp.listing.schema-properties", "mcp.listing.agent-input-schema"),
    "properties left out": ("mcp.listing.schema-properties",),
    "any name will do": ("mcp.running.params-name",),
    "first output for all": ("mcp.running.params-input",),
    "output is the result": ("mcp.running.result-output", "mcp.running.example-howdy"),
    "output is a text": ("mcp.running.result-output", "mcp.running.example-howdy"),
    "another output": ("mcp.running.result-output", "mcp.running.example-howdy", "mcp.progress.deltas-make-output"),
    "progress without a token": ("mcp.progress.none-without-token",),
    "progress late": ("mcp.progress.throughout-run",),
    "usual progress": ("mcp.progress.notification-method",),
    "progress with an id": ("mcp.progress.notification-no-id", "mcp.progress.example-howd"),
    "token is a text": ("mcp.progress.notification-token",),
    "tokens mixed up": ("mcp.progress.notification-token",),
    "token beside the input": ("mcp.progress.token-as-in-mcp",),
    "falsy tokens": ("mcp.progress.token-as-in-mcp",),
    "delta is a text": ("mcp.progress.notification-delta", "mcp.progress.example-howd"),
    "chunks": ("mcp.progress.delta-subset", "mcp.progress.deltas-make-output", "mcp.progress.example-howd"),
    "words lost": ("mcp.progress.deltas-make-output",),
    "text so far": ("mcp.delta.strings-concatenate", "mcp.progress.deltas-make-output"),
    "out of order": ("mcp.delta.fold", "mcp.progress.deltas-make-output"),
    "nested form": ("mcp.door.question-asked",),
    "question without words": ("mcp.door.question-asked",),
    "cancelled and answered": ("mcp.door.cancel",),
    "cancelled and done": ("mcp.door.cancel",),
    "cancelled, but told": ("mcp.door.cancel",),
    "cancels ignored": ("mcp.door.cancel",),
    "cursor ignored": ("mcp.door.paging", "mcp.door.templates"),  # what is made comes last
    "never destroyed": ("mcp.door.templates",),
    "no word of changes": ("mcp.door.list-changed",),
    "ends at an unknown method": ("mcp.door.never-ends",),
    "silent at an unknown method": ("mcp.door.never-ends",),
    "another code": ("mcp.door.never-ends",),
    "ends at bad JSON": ("mcp.door.never-ends",),
}  # fmt: skip

# the same, of the agent whose deltas need every rule
STORY_DEFECTS: dict[str, tuple[str, ...]] = {
    "totals": ("mcp.delta.numbers-add", "mcp.progress.deltas-make-output"),
    "arrays without a marker": ("mcp.delta.arrays-join-edge", "mcp.progress.deltas-make-output"),
    "another type": ("mcp.delta.types-differ", "mcp.progress.deltas-make-output", "mcp.progress.delta-subset"),
    "null resets": ("mcp.delta.null-is-neutral", "mcp.progress.deltas-make-output"),
    "markers kept": ("mcp.delta.exception-undefined-output", "mcp.progress.deltas-make-output"),
    "last object": ("mcp.delta.objects-merge", "mcp.progress.deltas-make-output"),
}

# What a server by the document alone does not offer.
OURS = {
    "mcp.door.question-returned", "mcp.door.stateless",  # of a revision of MCP that it does not speak
    "mcp.door.question-error", "mcp.door.revisions",
    "mcp.tools.call", "mcp.tools.structure", "mcp.tools.progress", "mcp.tools.questions",
}  # fmt: skip


# What needs no connection of its own: enough for a defect that concerns nothing else.
NEAR = ["mcp.capabilities", "mcp.intro", "mcp.listing", "mcp.running", "mcp.progress", "mcp.delta"]

# These show where something is refused, and nothing near is.
REFUSING = ("result is null",)

# Here something is waited for that never comes.
PATIENCE = {"silent at an unknown method": 3.0, "no id": 2.0}


async def looked_at(
    defect: str = "", agent: str | None = None, broken: tuple[str, ...] = ("mcp.door",)
) -> dict[str, Finding]:
    """`broken` are the rules that it breaks."""
    roles = Roles(agent=agent, asking="careful", slow="slow", failing="broken")
    if defect in ("shown names", "results are deep"):  # it lists none of them
        roles = Roles(agent=agent)
    command = (sys.executable, str(SERVER), defect)
    subject = Subject(command=command, roles=roles, quiet=0.05, patience=PATIENCE.get(defect, 10.0))
    only = None if defect in REFUSING or any(name.startswith("mcp.door") for name in broken) else NEAR
    return await findings("mcp", subject, only)


async def test_a_server_by_the_document_passes_and_shows_all_that_the_document_has() -> None:
    found = [await looked_at(agent="gpa"), await looked_at(agent="story")]
    assert [failures(one) for one in found] == [{}, {}]
    shown = {name for one in found for name, finding in one.items() if finding.verdict == "pass"}
    assert set(suite("mcp").ids) - shown == OURS


@pytest.mark.parametrize("defect", DEFECTS)
async def test_a_defect_is_found_by_its_rule(defect: str) -> None:
    broken = DEFECTS[defect]
    assert set(failures(await looked_at(defect, broken=broken))) == set(broken)


@pytest.mark.parametrize("defect", STORY_DEFECTS)
async def test_a_defect_of_deltas_is_found_by_its_rule(defect: str) -> None:
    broken = STORY_DEFECTS[defect]
    assert set(failures(await looked_at(defect, "story", broken))) == set(broken)


async def test_that_nothing_is_heard_of_a_run_does_not_show_that_it_was_cancelled() -> None:
    found = await looked_at("cancels ignored in silence")
    assert failures(found) == {}
    told = found["mcp.door.cancel"]
    assert (told.verdict, told.why.partition(",")[0]) == (
        "not applicable", "slow tells nothing more after its first word",
    )  # fmt: skip


@pytest.mark.parametrize("defect", GARBAGE)
async def test_garbage_is_told_and_ends_nothing(defect: str) -> None:
    found = await looked_at(defect, "gpa")
    assert set(found) == set(suite("mcp").ids)
    assert failures(found)
